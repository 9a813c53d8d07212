//! The command line as its users meet it: results on stdout, messages on stderr, exit codes.

use std::path::Path;
use std::process::{Command, Output};

fn addnorm(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_addnorm"))
        .args(arguments)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .output()
        .expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Everything that a user sees of a command.
fn seen(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = addnorm(folder.path(), arguments);
    format!("exit {}\n{}{}", output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_list_of_schemes() {
    insta::assert_snapshot!(seen(&["schemes"]));
}

#[test]
fn showing_a_scheme() {
    insta::assert_snapshot!("show-deepnorm", seen(&["show", "deepnorm", "--depth", "64"]));
    insta::assert_snapshot!("show-siamese", seen(&["show", "siamese", "--depth", "64"]));
    insta::assert_snapshot!(
        "show-inline",
        seen(&["show", "learn g = 0; each f: x = x + g*f(x)/L; head: x", "--depth", "3"])
    );
}

#[test]
fn showing_and_checking_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&addnorm(folder.path(), arguments).stdout).expect("stdout is JSON")
    };
    let shown = json(&["show", "keel", "--depth", "64", "--json"]);
    assert_eq!(shown["constants"][2]["constants"]["alpha"], "128.0000");
    assert_eq!(shown["equations"]["blocks"][1]["equations"][0]["text"], "x = norm(alpha*x + attn(norm(x)))");
    assert!(shown["diagrams"][0].as_str().unwrap().starts_with("<svg"));
    assert_eq!(json(&["schemes", "--json"]).as_array().unwrap().len(), 43);
    let right = json(&["check", "post", "--json"]);
    assert_eq!((right["ok"].as_bool(), right["lints"].as_array().unwrap().len()), (Some(true), 0));
    let wrong = json(&["check", "each f: x = x + f(nrm(x)); head: x", "--json"]);
    assert_eq!((wrong["ok"].as_bool(), wrong["column"].as_u64()), (Some(false), Some(19)));
}

#[test]
fn mistakes_get_one_message_and_exit_code_2() {
    insta::assert_snapshot!("wrong-scheme", seen(&["check", "each f: x = x + f(nrm(x)); head: norm(x)"]));
    insta::assert_snapshot!("unknown-scheme", seen(&["show", "depnorm"]));
    insta::assert_snapshot!("lint", seen(&["check", "each f: x = x + f(norm(x)); head: x"]));
    insta::assert_snapshot!("wrong-heads", seen(&["compare", "pre", "--heads", "5"]));
    insta::assert_snapshot!("no-data", seen(&["compare", "pre", "--data", "missing.txt"]));
    insta::assert_snapshot!("no-device", seen(&["train", "--scheme", "pre", "--device", "cuda:0"]));
    insta::assert_snapshot!("no-scheme", seen(&["train"]));
    for arguments in
        [&["compare", "--norm", "batchnorm"][..], &["frobnicate"], &["generate", "nowhere", "--prompt", "a"]]
    {
        assert!(seen(arguments).starts_with("exit 2\n"), "{arguments:?}");
    }
}

const SMALL: [&str; 14] = [
    "--depth",
    "2",
    "--width",
    "16",
    "--heads",
    "2",
    "--context",
    "16",
    "--steps",
    "12",
    "--batch",
    "4",
    "--threads",
    "1",
];

#[test]
fn comparing_writes_a_table_a_report_and_run_folders() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("mine.scheme");
    std::fs::write(&own, "title \"Mine\"\neach f:\n    x = x + f(norm(x))/sqrt(2*L)\nhead: norm(x)\n").unwrap();
    let inline = "each f: x = norm(2*x + f(x)); head: x";
    let mut arguments = vec!["compare", "pre", "mine.scheme", inline, "--seeds", "2", "--out", "out"];
    arguments.extend(SMALL);
    let output = addnorm(folder.path(), &arguments);
    let (table, messages) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{messages}");
    for word in ["scheme", "above floor", "pre ", "mine ", "inline ", "±", "unigram entropy", "verdict"] {
        assert!(table.contains(word), "{word} is missing from\n{table}");
    }
    assert!(messages.contains("out/report.html") && !table.contains("report.html"));
    let page = std::fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    assert!(page.contains("3 schemes at 2 blocks") && page.contains("<math") && page.contains("<svg"));
    assert!(!page.contains("<script src") && !page.contains("<link"), "the page needs no network");
    assert!(!page.contains("merror"));
    for file in [
        "config.toml",
        "scheme.scheme",
        "meta.json",
        "metrics.jsonl",
        "layers.jsonl",
        "model.safetensors",
        "report.html",
    ] {
        assert!(folder.path().join("out/mine-seed2").join(file).exists(), "{file}");
    }
    // A run's record repeats it, from another folder too.
    let record = folder.path().join("out/mine-seed2/config.toml");
    let elsewhere = tempfile::tempdir().unwrap();
    let repeated = addnorm(elsewhere.path(), &["train", record.to_str().unwrap(), "--out", "again"]);
    assert_eq!(repeated.status.code(), Some(0), "{}", text(&repeated.stderr));
    // What follows the header, whose metadata stand in no fixed order.
    let weights = |path: std::path::PathBuf| {
        let bytes = std::fs::read(path.join("model.safetensors")).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + header..].to_vec()
    };
    let (first, second) = (weights(folder.path().join("out/mine-seed2")), weights(elsewhere.path().join("again")));
    assert!(first == second, "the weights are equal bit for bit");

    let again = addnorm(folder.path(), &arguments);
    assert_eq!(again.status.code(), Some(2), "the folder is taken");
    assert!(text(&again.stderr).contains("not empty"));
}

#[test]
fn comparing_on_text_as_json_then_writing_on() {
    let folder = tempfile::tempdir().unwrap();
    let line = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs\n";
    std::fs::write(folder.path().join("text.txt"), line.repeat(60)).unwrap();
    let mut arguments = vec!["compare", "keel", "--json", "--out", "out", "--data", "text.txt"];
    arguments.extend(SMALL);
    let output = addnorm(folder.path(), &arguments);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    let row = &report["rows"][0];
    let bits = row["mean_loss"].as_f64().unwrap() / std::f64::consts::LN_2;
    assert!((row["bits_per_byte"].as_f64().unwrap() - bits).abs() < 1e-9);
    assert!(report["corpus"]["floor"].is_null());
    let generate = |temperature: &str| {
        let arguments =
            ["generate", "out/keel", "--prompt", "the quick", "--tokens", "40", "--temperature", temperature];
        let output = addnorm(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let written = generate("0");
    assert!(written.starts_with("the quick") && written.len() >= 9 + 40, "{written:?}");
    assert_eq!(generate("1"), generate("1"), "a seed is a text");
}

#[test]
fn training_from_a_file_with_flags_over_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = "scheme = \"deepnorm\"\n[model]\nblocks = 2\nwidth = 16\nheads = 2\ncontext = 16\nactivation = \"swiglu\"\npositions = \"rope\"\n[train]\nsteps = 500\nbatch = 4\n";
    std::fs::write(folder.path().join("run.toml"), config).unwrap();
    let output = addnorm(folder.path(), &["train", "run.toml", "--steps", "8", "--norm", "rmsnorm", "--out", "run"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let resolved = std::fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    for line in ["steps = 8", "norm = \"rmsnorm\"", "activation = \"swiglu\"", "epsilon = 0.00001", "beta2 = 0.95"] {
        assert!(resolved.contains(line), "{line} is missing from\n{resolved}");
    }
    std::fs::write(folder.path().join("bad.toml"), "[train]\nwarmup_step = 3\n").unwrap();
    let output = addnorm(folder.path(), &["train", "bad.toml", "--scheme", "pre"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("did you mean 'warmup'?"), "{}", text(&output.stderr));
}

#[test]
fn a_run_that_breaks_exits_with_1_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let mut arguments = vec!["train", "--scheme", "pre", "--lr", "1e30", "--out", "run"];
    arguments.extend(SMALL);
    let output = addnorm(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("diverged at step 1 in block 1"), "{}", text(&output.stdout));
    assert!(folder.path().join("run/report.html").exists());
}

#[test]
fn a_bench_runs_its_items_beside_a_peer_and_refuses_another_model() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("suite.toml"),
        "[[item]]\ntask = \"train\"\nscheme = \"keel\"\nshape = \"8/2/2/4/3\"\n\
         [[item]]\ntask = \"evaluate\"\nscheme = \"post\"\nshape = \"8/2/2/4/3\"\n\
         [[item]]\ntask = \"norm\"\nkind = \"rmsnorm\"\nshape = \"5x7\"\n\
         [[item]]\ntask = \"memory\"\nscheme = \"pre\"\nshape = \"8/4/2/4/3\"\nrecompute = 2\n",
    )
    .unwrap();
    // Another process of ours is a peer like any other.
    let peer = format!("{} bench --worker", env!("CARGO_BIN_EXE_addnorm"));
    let quick = ["bench", "--suite", "suite.toml", "--repeats", "2", "--seconds", "0.01", "--threads", "2"];
    let run = addnorm(folder.path(), &[&quick[..], &["--peer", &peer, "--json"]].concat());
    assert!(run.status.success(), "{}", text(&run.stderr));
    let found: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let items = found["items"].as_array().unwrap();
    assert_eq!(items.len(), 4);
    for item in items {
        assert!(item["seconds"]["median"].as_f64().unwrap() > 0.0, "{item}");
        let peer = &item["peers"][0];
        assert!(peer["times_as_fast"]["median"].as_f64().or(peer["of_memory"].as_f64()).unwrap() > 0.0, "{item}");
    }
    assert!(items[0]["over_products"]["median"].as_f64().unwrap() > 0.0);
    assert!(items[2]["of_copy"]["median"].as_f64().unwrap() > 0.0);
    // A table for people, and only what was asked for.
    let table = addnorm(folder.path(), &[&quick[..], &["--only", "norm", "--only", "5x7"]].concat());
    assert!(text(&table.stdout).lines().count() == 2 && text(&table.stdout).contains("rmsnorm 5x7"));

    std::fs::write(
        folder.path().join("other.sh"),
        "while read line; do echo '{\"name\": \"other\", \"parameters\": 3}'; done\n",
    )
    .unwrap();
    for (arguments, said) in [
        (vec!["--peer", "sh other.sh"], "not the same model"),
        (vec!["--peer", "cat"], "does not say who it is"),
        (vec!["--peer", "echo hello"], "answered 'hello'"),
        (vec!["--peer", "no-such-program"], "cannot be started"),
        (vec!["--only", "nothing like it"], "no item"),
        (vec!["--suite", "absent.toml"], "absent.toml"),
        (vec!["--repeats", "0"], "above 0"),
    ] {
        let quick: Vec<&str> = if arguments[0] == "--suite" || arguments[0] == "--repeats" {
            ["bench"].into_iter().chain(["--only", "norm"]).collect()
        } else {
            quick.to_vec()
        };
        let run = addnorm(folder.path(), &[&quick[..], &arguments].concat());
        assert!(!run.status.success());
        assert!(text(&run.stderr).contains(said), "{arguments:?}: {}", text(&run.stderr));
    }
}

#[test]
fn published_models_are_listed_and_counted() {
    insta::assert_snapshot!("models", seen(&["models"]));
    insta::assert_snapshot!("show-bert", seen(&["show", "bert-base"]));
    insta::assert_snapshot!("show-model-resized", seen(&["show", "gpt2", "--depth", "3"]));
    insta::assert_snapshot!("show-pair", seen(&["show", "deepnorm", "--stack", "pair", "--depth", "6"]));
    insta::assert_snapshot!("refused-on-a-pair", seen(&["show", "keel", "--stack", "pair"]));
    insta::assert_snapshot!("unknown-model", seen(&["train", "--model", "bert-bas", "--steps", "1"]));
}

#[test]
fn constants_of_a_scheme_are_set_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let run = addnorm(folder.path(), &["show", "mix-ln(ratio=1/2)", "--depth", "8", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(shown["name"], "mix-ln(ratio=1/2)");
    assert_eq!(shown["equations"]["blocks"][0]["last"], 4);
    insta::assert_snapshot!("no-such-constant", seen(&["show", "mix-ln(share=1/2)"]));
}

/// Small runs of each stack, and what is done with them.
#[test]
fn other_stacks_train_translate_convert_and_save_work() {
    let folder = tempfile::tempdir().unwrap();
    let good = |arguments: &[&str]| {
        let run = addnorm(folder.path(), arguments);
        assert!(run.status.success(), "{arguments:?}: {}", text(&run.stderr));
        text(&run.stdout)
    };
    let small = ["--depth", "2", "--width", "16", "--heads", "2", "--context", "24", "--steps", "8", "--batch", "4"];
    let train = |more: &[&str]| good(&[&["train"][..], more, &small].concat());
    std::fs::write(folder.path().join("pairs.tsv"), "one two\tun deux\nthree\ttrois\n".repeat(40)).unwrap();
    assert!(train(&["--scheme", "post", "--stack", "encoder", "--out", "e"]).contains("validation loss"));
    let pair = train(&["--scheme", "deepnorm", "--stack", "pair", "--data", "pairs.tsv", "--out", "p"]);
    assert!(pair.contains("BLEU"), "{pair}");
    assert!(train(&["--scheme", "pre", "--stack", "vision", "--patch", "7", "--out", "v"]).contains("accuracy"));
    let translated = good(&["translate", "p", "--pairs", "3", "--beam", "2"]);
    assert!(translated.contains("BLEU") && translated.contains("reference  "), "{translated}");
    assert_eq!(good(&["translate", "p", "one two"]).lines().count(), 1);
    train(&["--scheme", "pre", "--positions", "rope", "--out", "d"]);
    for form in ["pre-rmsnorm", "pre-crmsnorm"] {
        let report: serde_json::Value =
            serde_json::from_str(&good(&["convert", "d", "--to", form, "--out", form, "--json"])).unwrap();
        assert_eq!(report["equal"], true, "{report}");
        assert!(report["largest_difference"].as_f64().unwrap() < 1e-5);
        train(&[
            "--config",
            &format!("{form}/config.toml"),
            "--scheme",
            form,
            "--from",
            form,
            "--out",
            &format!("{form}-on"),
        ]);
    }
    let sparse: serde_json::Value =
        serde_json::from_str(&good(&["sparse", "d", "--softmax", "0,0.2", "--norm", "0.2", "--long", "512", "--json"]))
            .unwrap();
    assert_eq!(sparse["settings"][0]["logit_error"], 0.0);
    assert_eq!(sparse["long"].as_array().unwrap().len(), 2);
    let refused = addnorm(folder.path(), &["convert", "e", "--to", "pre-rmsnorm"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("no exact conversion"), "{}", text(&refused.stderr));
    let refused = addnorm(folder.path(), &["translate", "d"]);
    assert_eq!(refused.status.code(), Some(2));
    let compared =
        good(&[&["compare", "pre", "post", "--stack", "vision", "--patch", "7", "--out", "c"][..], &small].concat());
    assert!(compared.contains("accuracy %") && compared.contains("nats a image").eq(&false), "{compared}");
}
