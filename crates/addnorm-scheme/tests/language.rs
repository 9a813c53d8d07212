//! The language as its authors meet it: errors that point, lints, words, and no text that breaks it.

use addnorm_scheme::prose::prose;
use addnorm_scheme::*;
use proptest::prelude::*;

fn dimensions(blocks: usize) -> Dimensions {
    Dimensions { blocks, width: 64, heads: 4, stack: Stack::Decoder }
}

/// Every mistake here is one that someone writing a scheme makes.
const MISTAKES: &[&str] = &[
    "each f:\n    x = x + f(nrm(x))\nhead: norm(x)",
    "each f:\n    x = x + f(norm(y))\nhead: norm(x)",
    "each f:\n    x = x + f(norm(x)\nhead: norm(x)",
    "each f:\n    x = x * f(norm(x))\nhead: norm(x)",
    "each f:\n    x = x + 1\nhead: norm(x)",
    "each f:\n    x = 0.5\nhead: norm(x)",
    "let alpah = 2*L\neach f:\n    x = norm(alpha*x + f(x))\nhead: x",
    "let alpha = 2*x\neach f:\n    x = norm(alpha*x + f(x))\nhead: x",
    "let l = 3\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "learn g = t\neach f:\n    x = x + g*f(norm(x))\nhead: norm(x)",
    "learn g[h] = 1\neach f:\n    x = x + g*f(norm(x))\nhead: norm(x)",
    "learn g = 1\neach f:\n    x = x + round(g)*f(norm(x))\nhead: norm(x)",
    "learn g = 1\neach f:\n    x = x + f(norm(x))\nhead: g*norm(x)",
    "each f:\n    x = x + attn(norm(x))\nhead: norm(x)",
    "block:\n    x = x + attn(norm(x)) + attn(x)\nhead: norm(x)",
    "block:\n    x = norm(x)\nhead: x",
    "each f:\n    x = x + f(norm(x))",
    "head: norm(x)",
    "title \"no blocks\"",
    "titel \"a\"\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "title \"a\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "each f:\nx = x + f(norm(x))\nhead: norm(x)",
    "each f:\n    x = x + f(norm(x))\n  x = x\nhead: norm(x)",
    "each f:\n\tx = x + f(norm(x))\nhead: norm(x)",
    "each f:\n    x = x + f(norm(x))\nblock:\n    x = x + attn(x)\nhead: norm(x)",
    "attn: norm q k v per heads\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "ffn: scaled heads\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "init wz: normal(0.02)\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "init wo: xavier\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "init wo: normal\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "norm: layernrom\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "for encoders of pair: let a = 1\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "streams x, x\neach f:\n    x = x + f(norm(x))\nhead: norm(x)",
    "each f:\n    x = x + f(norm(x)) ? 2\nhead: norm(x)",
    "each f:\n    x = norm\nhead: norm(x)",
    "each head:\n    x = x + head(norm(x))\nhead: norm(x)",
    "each f:\n    x = x + sqrt(2, 3)*f(norm(x))\nhead: norm(x)",
    "block 1 < l < 4:\n    x = x + attn(x)\nblock:\n    x = x + ffn(x)\nhead: norm(x)",
    "block 1 or L:\n    x = x + attn(x)\nblock:\n    x = x + ffn(x)\nhead: norm(x)",
    "block l + (l < 2):\n    x = x + attn(x)\nblock:\n    x = x + ffn(x)\nhead: norm(x)",
    "let a = l < 3\neach f:\n    x = x + a*f(norm(x))\nhead: norm(x)",
    "each f:\n    x = x + (l < 3)*f(norm(x))\nhead: norm(x)",
    "learn g = 1\neach f:\n    x = x + f(norm(x)) + stop(g*x)\nhead: norm(x)",
    "learn g = 1\neach f:\n    x = x + 2^g*f(norm(x))\nhead: norm(x)",
    "learn g = 1\neach f:\n    x = x + (g < 2)*f(norm(x))\nhead: norm(x)",
    "each f:\n    é = x + f(norm(ñ))\nhead: norm(x)",
];

#[test]
fn every_mistake_gets_its_line_a_caret_and_advice() {
    let mut text = String::new();
    for mistake in MISTAKES {
        let error = Scheme::parse("test", mistake).expect_err(mistake);
        text.push_str(&format!("{error}\n\n"));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn what_is_suspicious_is_said() {
    let codes =
        |text: &str| -> Vec<&str> { Scheme::parse("test", text).unwrap().lints.iter().map(|lint| lint.code).collect() };
    assert_eq!(codes("each f:\n    x = x + f(norm(x))\nhead: norm(x)"), [""; 0]);
    assert_eq!(codes("each f:\n    x = x + f(norm(x))\nhead: x"), ["no-final-norm"]);
    assert_eq!(codes("each f:\n    x = norm(x + f(x))\nhead: norm(x)"), ["double-norm"]);
    assert_eq!(codes("each f:\n    x = x + f(norm(norm(x)))\nhead: norm(x)"), ["double-norm"]);
    let unused = codes("each f:\n    o = f(norm(x))\n    x = x + norm(x)\nhead: norm(x)");
    assert_eq!(unused, ["unused-output", "unused-value", "unused-output"]);
    assert_eq!(codes("learn g = 1\neach f:\n    x = x + f(norm(x))\nhead: norm(x)"), ["unused-learnable"]);
    assert_eq!(codes("let a = 1\neach f:\n    x = x + f(norm(x))\nhead: norm(x)"), ["unused-constant"]);
    assert_eq!(codes("block:\n    x = x + attn(norm(x))\nhead: norm(x)"), ["missing-sublayer"]);
    let stream = codes("streams x, y\neach f:\n    x = x + f(norm(x))\n    y = 2*x\nhead: norm(x)");
    assert_eq!(stream, ["unused-value", "unused-stream"]);
}

#[test]
fn one_line_says_the_same_as_many() {
    let many = "let a = 2*L\nlearn g = 0\neach f:\n    o = f(norm(x))\n    x = x + a*g*o\nhead: norm(x)";
    let one = "let a = 2*L; learn g = 0; each f: o = f(norm(x)); x = x + a*g*o; head: norm(x)";
    let plan =
        |text: &str| Scheme::parse("test", text).unwrap_or_else(|error| panic!("{error}")).plan(dimensions(4)).unwrap();
    assert_eq!(prose(&plan(many)), prose(&plan(one)));
    assert_eq!(plan(many).blocks[3].constants, plan(one).blocks[3].constants);
}

#[test]
fn blocks_are_chosen_by_conditions() {
    let text = "block 1:\n    x = attn(x)\nblock l == L or l == 3 and L > 4:\n    x = ffn(x)\nblock l <= round(L/2):\n    x = x + attn(x)\nblock:\n    x = x + ffn(x)\nhead: x";
    let plan = Scheme::parse("test", text).unwrap().plan(dimensions(6)).unwrap();
    let words: Vec<String> =
        prose(&plan).blocks.iter().map(|b| format!("{}-{} {}", b.first, b.last, b.equations[0].text)).collect();
    assert_eq!(
        words,
        ["1-1 x = attn(x)", "2-2 x = x + attn(x)", "3-3 x = ffn(x)", "4-5 x = x + ffn(x)", "6-6 x = ffn(x)"]
    );
}

#[test]
fn a_scheme_that_fails_at_a_depth_says_where() {
    let plan = |text: &str, blocks| {
        Scheme::parse("test", text).unwrap().plan(dimensions(blocks)).map_err(|error| error.message)
    };
    let text = "let a = 1/(l - 2)\neach f:\n    x = x + a*f(norm(x))\nhead: norm(x)";
    assert!(plan(text, 1).is_ok());
    assert_eq!(plan(text, 3).unwrap_err(), "the constant 'a' is not finite at blocks.2");
    let text = "block 1:\n    x = x + attn(x) + ffn(x)\nhead: norm(x)";
    assert!(plan(text, 2).unwrap_err().contains("no body is for blocks.2"));
    let text = "learn a = 1 per sublayer\nblock:\n    x = x + a*attn(x) + ffn(x)\nhead: norm(x)";
    assert!(plan(text, 1).unwrap_err().contains("can only stand under 'each'"));
    assert!(plan("each f: x = f(x); head: x", 0).unwrap_err().contains("1 to 100000"));
}

#[test]
fn a_constant_may_use_one_that_stands_further_down() {
    let text = "let a = 1\nlet c = 2\nfor decoder: let a = c*2\neach f:\n    x = x + a*f(norm(x))\nhead: norm(x)";
    let plan = Scheme::parse("test", text).unwrap().plan(dimensions(2)).unwrap();
    let constants = &plan.blocks[0].constants;
    assert!(constants.contains(&("a".to_string(), Scalar::Number(4.0))), "{constants:?}");
    let circle = "let a = 1\nlet c = a\nfor decoder: let a = c\neach f:\n    x = x + a*f(norm(x))\nhead: norm(x)";
    let error = Scheme::parse("test", circle).unwrap().plan(dimensions(2)).unwrap_err();
    assert!(error.message.contains("'a' has no value"), "{error}");
}

#[test]
fn what_reaches_no_result_is_left_out_of_the_plan() {
    let text =
        "streams x, y\nlearn g = 1 per sublayer\neach f:\n    x = x + f(norm(y))\n    y = g*norm(y + x)\nhead: norm(x)";
    let plan = Scheme::parse("test", text).unwrap().plan(dimensions(3)).unwrap();
    let count = |block: usize| (plan.blocks[block - 1].norms().count(), plan.blocks[block - 1].learnables.len());
    // In the last block the second value of y reaches nothing.
    assert_eq!((count(1), count(2), count(3)), ((4, 2), (4, 2), (3, 1)));
}

#[test]
fn numbers_have_the_precedence_of_mathematics() {
    let value = |text: &str| {
        let scheme = Scheme::parse("test", &format!("let a = {text}\neach f:\n    x = x + a*f(x)\nhead: x")).unwrap();
        scheme.plan(dimensions(4)).unwrap().blocks[2].constants[0].1.number().unwrap()
    };
    for (text, expected) in [
        ("2*L^2", 32.0),
        ("-2^2", -4.0),
        ("2^-1", 0.5),
        ("2^3^2", 512.0),
        ("2^-1^2", 0.5),
        ("8/4/2", 1.0),
        ("1 - 2 - 3", -4.0),
        ("(8*L)^(-1/4)", 32f64.powf(-0.25)),
        ("sqrt(l)", 3f64.sqrt()),
        ("max(2, min(9, 5))", 5.0),
        ("round(2.5) + round(3.5)", 6.0),
        ("1e-3*1000", 1.0),
        ("d/h", 16.0),
    ] {
        assert!((value(text) - expected).abs() < 1e-12, "{text} is {}", value(text));
    }
}

#[test]
fn constants_may_follow_the_training_step() {
    let text = "let a = min(t/(10*l), 1)\neach f:\n    x = x + a*f(norm(x))\nhead: norm(x)";
    let plan = Scheme::parse("test", text).unwrap().plan(dimensions(2)).unwrap();
    let at = |block: usize, step: f64| {
        plan.blocks[block - 1]
            .steps
            .iter()
            .find_map(|step_| match step_ {
                Step::Mix(mix) if mix.terms.len() == 2 => mix.terms[1].coefficient.at_step(step).number(),
                _ => None,
            })
            .unwrap()
    };
    assert_eq!((at(1, 0.0), at(1, 5.0), at(2, 5.0), at(2, 100.0)), (0.0, 0.5, 0.25, 1.0));
}

#[test]
fn size_and_nesting_are_bounded() {
    let deep = |count: usize| format!("each f:\n    x = {}x{}\nhead: x", "(".repeat(count), ")".repeat(count));
    assert!(Scheme::parse("test", &deep(10_000)).unwrap_err().message.contains("levels of nesting"));
    let minus = format!("each f:\n    x = {}x\nhead: x", "-".repeat(20_000));
    assert!(Scheme::parse("test", &minus).is_err());
    let power = format!("let a = 2{}\neach f:\n    x = f(x)\nhead: x", "^2".repeat(10_000));
    assert!(Scheme::parse("test", &power).is_err());
    let long = format!("each f:\n    x = f(x){}\nhead: x", " + x".repeat(10_000));
    assert!(Scheme::parse("test", &long).unwrap_err().message.contains("256 names and numbers"));
    let wide = format!(
        "let a = {}\neach f:\n    x = x + a*f(norm(x))\nhead: norm(x)",
        "(".repeat(40) + &["1"; 200].join("+") + &")".repeat(40)
    );
    assert!(Scheme::parse("test", &wide).is_ok());
    let lines = format!("each f:\n{}    x = x + f(x)\nhead: x", "    y = norm(x)\n".repeat(2000));
    assert!(Scheme::parse("test", &lines).unwrap_err().message.contains("128 equations"));
    let big = "# comment\n".repeat(10_000);
    assert!(Scheme::parse("test", &big).unwrap_err().message.contains("bytes"));
    // Constants of the step that double each time would grow without end.
    let mut growing = String::from("let a0 = t\n");
    for i in 1..60 {
        growing.push_str(&format!("let a{i} = a{} + a{}\n", i - 1, i - 1));
    }
    growing.push_str("each f:\n    x = x + a59*f(norm(x))\nhead: norm(x)");
    let error = Scheme::parse("test", &growing).unwrap().plan(dimensions(2)).unwrap_err();
    assert!(error.message.contains("too large"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// No text panics or hangs, and an error points into its text.
    #[test]
    fn no_text_breaks_the_reader(text in "\\PC{0,200}") {
        let _ = Scheme::parse("fuzz", &text).map_err(|error| error.to_string());
    }

    /// Nor do texts made of the language's own words, which get further in.
    #[test]
    fn no_arrangement_of_words_breaks_the_reader(words in proptest::collection::vec(prop::sample::select(vec![
        "each", "f", ":", "x", "=", "+", "-", "*", "/", "^", "(", ")", "[", "]", ",", ";", "\n", "\n    ", "norm", "attn", "ffn", "stop",
        "head", "block", "let", "learn", "streams", "init", "wo", "times", "normal", "0.5", "1", "L", "l", "t", "d", "a", "<=", "==", "and",
        "embed", "gate", "history", "sum", "choose", "cross", "not", "eps", "entry", "sublayer", "y", "per", "sublayer", "for", "encoder", "of", "pair", "\"t\"", "title", "#", "sqrt", "silu", " ", "head: x", "each f:\n    x = x + f(norm(x))\n",
    ]), 0..60)) {
        let text = words.join(" ");
        if let Ok(scheme) = Scheme::parse("fuzz", &text) {
            for blocks in [1, 5] {
                if let Ok(plan) = scheme.plan(dimensions(blocks)) {
                    let words = prose(&plan);
                    let _ = diagram::diagram(&plan.blocks[0], &plan.streams, "fuzz");
                    prop_assert!(!words.blocks.is_empty());
                }
            }
        }
    }

    /// A published scheme with a stretch cut out of it or doubled.
    #[test]
    fn no_damage_to_a_scheme_breaks_the_reader(which in 0usize..43, a in 0usize..600, b in 0usize..600, double in any::<bool>()) {
        let (_, text) = library().nth(which).unwrap();
        let cut = |at: usize| (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let (a, b) = (cut(a.min(b)), cut(a.max(b)));
        let damaged = if double { format!("{}{}", &text[..b], &text[a..]) } else { format!("{}{}", &text[..a], &text[b..]) };
        if let Ok(scheme) = Scheme::parse("fuzz", &damaged) {
            let _ = scheme.plan(dimensions(3)).map(|plan| prose(&plan));
        }
    }

    /// What prose writes, the reader reads: the equations come back the same.
    #[test]
    fn equations_round_trip(which in 0usize..43, blocks in 1usize..9) {
        let (name, text) = library().nth(which).unwrap();
        let plan = Scheme::parse(name, text).unwrap().plan(dimensions(blocks)).unwrap();
        let words = prose(&plan);
        // Everything but the equations stays; these are written anew.
        let mut again: String = text
            .lines()
            .filter(|line| ["streams", "history", "embed", "let", "learn", "attn:", "ffn:"].iter().any(|word| line.starts_with(word)))
            .map(|line| match line.strip_suffix(" per sublayer").and_then(|line| line.split_once(" = ")) {
                // Written out, the sublayers share one.
                Some((learn, _)) => format!("{learn} = 1\n"),
                None => format!("{line}\n"),
            })
            .collect();
        for range in &words.blocks {
            again.push_str(&format!("block l <= {}:\n", range.last));
            range.equations.iter().for_each(|equation| again.push_str(&format!("    {}\n", equation.text)));
        }
        again.push_str(&words.head.text);
        let back = Scheme::parse(name, &again).unwrap_or_else(|error| panic!("{again}\n{error}"));
        let back = back.plan(dimensions(blocks)).unwrap();
        prop_assert_eq!(prose(&back), words);
    }
}
