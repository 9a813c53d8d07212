//! What the documents show works as shown.

use std::path::Path;
use std::process::Command;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The fenced blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut rest = text;
    let fence = format!("```{language}\n");
    while let Some(start) = rest.find(&fence) {
        rest = &rest[start + fence.len()..];
        let end = rest.find("```").expect("a block ends");
        blocks.push(rest[..end].to_string());
        rest = &rest[end..];
    }
    blocks
}

#[test]
fn every_scheme_in_the_documents_trains_a_step() {
    use addnorm_nn::*;
    let mut count = 0;
    for document in ["docs/scheme-language.md", "README.md", "README.zh-CN.md"] {
        for text in blocks(&read(document), "scheme") {
            let scheme =
                addnorm_scheme::Scheme::parse("document", &text).unwrap_or_else(|error| panic!("{document}: {error}"));
            let config =
                ModelConfig { blocks: 5, width: 8, heads: 2, context: 4, vocabulary: 7, ..ModelConfig::default() };
            let model = Model::new(&scheme, &config).unwrap_or_else(|error| panic!("{document}: {error}"));
            let weights = model.initialise(1, &device("flex").unwrap(), DType::F32);
            let tokens = Tokens { numbers: [1, 2, 3, 4].into(), shape: [1, 4] };
            let options = ForwardOptions { step: 3, ..ForwardOptions::default() };
            let result =
                model.loss_and_gradients(&weights, &tokens, [2, 3, 4, 5].into(), 1.0, options, &mut NoObserver);
            assert!(result.is_ok_and(|result| result.total.is_finite()), "{document}:\n{text}");
            count += 1;
        }
    }
    assert!(count >= 12, "the documents have examples, {count} were found");
}

#[test]
fn every_command_in_the_documents_is_understood() {
    for document in ["docs/scheme-language.md", "docs/performance.md", "docs/tasks.md", "README.md", "README.zh-CN.md"]
    {
        for block in blocks(&read(document), "sh") {
            for line in block.lines().filter(|line| line.starts_with("addnorm ")) {
                let words = split(line);
                let run =
                    Command::new(env!("CARGO_BIN_EXE_addnorm")).args(&words[1..2]).arg("--help").output().unwrap();
                assert!(run.status.success(), "{document}: {line}");
                let help = String::from_utf8_lossy(&run.stdout).to_string();
                for flag in words.iter().filter(|word| word.starts_with("--")) {
                    assert!(help.contains(flag.as_str()), "{document}: {flag} in {line}");
                }
            }
        }
    }
}

/// Splits a shell line whose only quotes are single ones.
fn split(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().expect("there is a word").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn the_settings_in_the_documents_are_all_settings_with_their_defaults() {
    let text = &blocks(&read("docs/comparing.md"), "toml")[0];
    let mut config = addnorm_train::RunConfig::from_toml(text).unwrap();
    assert_eq!((config.scheme.as_str(), config.data.tokenizer.is_some()), ("pre", true));
    config.scheme.clear();
    config.data.tokenizer = None;
    assert_eq!(config, addnorm_train::RunConfig::default());
    for (section, keys) in addnorm_train::CONFIG_SECTIONS {
        keys.iter().for_each(|key| assert!(text.contains(key), "[{section}] {key} is missing"));
    }
}

#[test]
fn the_document_of_schemes_is_what_the_scheme_files_say() {
    let folder = tempfile::tempdir().unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_addnorm"))
        .args(["schemes", "--markdown"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let again = "docs/schemes.md is stale: run 'addnorm schemes --markdown docs'";
    let anew = std::fs::read_to_string(folder.path().join("schemes.md")).unwrap();
    assert!(anew == read("docs/schemes.md"), "{again}");
    for entry in std::fs::read_dir(folder.path().join("diagrams")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        assert!(std::fs::read_to_string(&path).unwrap() == read(&format!("docs/diagrams/{name}")), "{again}: {name}");
    }
}
