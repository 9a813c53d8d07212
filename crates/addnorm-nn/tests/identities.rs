//! Where one scheme becomes another: constants at one, gates closed, a block alone. Each is checked on logits and
//! on the gradients of the parameters that both have, in float64.

use std::collections::BTreeMap;
use std::sync::Arc;

use addnorm_nn::*;
use addnorm_scheme::{NormKind, Scheme, lookup};

fn config() -> ModelConfig {
    ModelConfig { blocks: 4, width: 8, heads: 2, ffn_width: 12, context: 5, vocabulary: 9, ..ModelConfig::default() }
}

struct Found {
    logits: Vec<f64>,
    gradients: BTreeMap<String, Vec<f64>>,
}

/// Runs a scheme on weights that depend on parameters' names alone. `set` gives parameters whose name ends so a
/// value everywhere; `renamed` says under which other name a parameter takes its values.
fn run(scheme: &Scheme, config: &ModelConfig, step: u64, set: &[(&str, f64)], renamed: &[(&str, &str)]) -> Found {
    let model = Model::new(scheme, config).unwrap();
    let device = device("flex").unwrap();
    let name_of = |info: &ParameterInfo| {
        let mut name = info.name.clone();
        for (from, to) in renamed {
            name = name.replace(from, to);
        }
        name
    };
    let weight = |info: &ParameterInfo| {
        let name = name_of(info);
        let hash = name.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let drawn = |i: usize| (f64::from(hash % 977) + 0.7 * i as f64).sin();
        let fixed = set.iter().find(|(ending, _)| info.name.ends_with(ending)).map(|(_, value)| *value);
        let base = f64::from(u8::from(name.ends_with(".gain")));
        let values = (0..info.elements()).map(|i| match fixed {
            Some(value) => value,
            None if info.shape.len() == 2 => 0.4 * drawn(i),
            None => base + 0.3 * drawn(i),
        });
        Weight::from_values(values.collect(), &info.shape, &device, DType::F64)
    };
    let weights = Weights(model.parameters().iter().map(weight).collect());
    let tokens = Tokens { numbers: [1, 4, 2, 8, 4, 0, 7, 3, 3, 5].into(), shape: [2, 5] };
    let targets: Arc<[u32]> = [4, 2, 8, 4, 1, 7, 3, 3, 5, 6].into();
    let options = ForwardOptions { step, ..ForwardOptions::default() };
    let logits = statistics::to_f64(&model.logits(&weights, &tokens, options, &mut NoObserver));
    let result = model.loss_and_gradients(&weights, &tokens, targets, 1.0, options, &mut NoObserver).unwrap();
    let named = model.parameters().iter().map(name_of);
    Found { logits, gradients: named.zip(result.gradients.iter().map(Weight::to_values)).collect() }
}

fn close(what: &str, a: &[f64], b: &[f64]) {
    let size = a.iter().chain(b).fold(1.0f64, |size, value| size.max(value.abs()));
    assert_eq!(a.len(), b.len(), "{what}");
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 1e-11 * size, "{what}: {a} and {b}");
    }
}

/// The two give the same logits, and the same gradients for every parameter of the second.
fn same(what: &str, a: &Found, b: &Found) {
    close(what, &a.logits, &b.logits);
    for (name, gradient) in &b.gradients {
        let other = a.gradients.get(name).unwrap_or_else(|| panic!("{what}: no {name}"));
        close(&format!("{what}: {name}"), other, gradient);
    }
}

fn named(name: &str) -> Scheme {
    lookup(name).unwrap_or_else(|error| panic!("{error}"))
}

/// A scheme of the library with parts of its text replaced.
fn changed(name: &str, changes: &[(&str, &str)]) -> Scheme {
    let mut text = named(name).source;
    for (from, to) in changes {
        assert!(text.contains(from), "{name} has no '{from}'");
        text = text.replace(from, to);
    }
    Scheme::parse(name, &text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn plain(scheme: &Scheme) -> Found {
    run(scheme, &config(), 0, &[], &[])
}

#[test]
fn constants_at_one_make_post_ln() {
    let post = plain(&named("post"));
    same("deepnorm", &plain(&named("deepnorm(alpha=1)")), &post);
    same("admin-constant", &plain(&named("admin-constant(omega=1)")), &post);
    same("admin", &run(&named("admin"), &config(), 0, &[("omega", 1.0)], &[]), &post);
    let lipschitz = plain(&named("lipschitz"));
    let glm =
        run(&named("glm-deepnorm(alpha=1, shrink=1)"), &config(), 0, &[], &[("embed.residual_norm", "embed.norm")]);
    same("glm-deepnorm", &glm, &lipschitz);
    same(
        "lipschitz without its norm on the embedding",
        &plain(&changed("lipschitz", &[("embed: x = norm(x)\n", "")])),
        &post,
    );
}

#[test]
fn mix_ln_runs_from_pre_ln_to_post_ln_with_a_final_norm() {
    same("at 0", &plain(&named("mix-ln(ratio=0)")), &plain(&named("pre")));
    let post = changed("post", &[("head: x ", "head: norm(x) ")]);
    same("at 1", &plain(&named("mix-ln(ratio=1)")), &plain(&post));
    same("at 1, gated", &run(&named("mix-ln-gpas(ratio=1)"), &config(), 0, &[("learned.g", 0.0)], &[]), &plain(&post));
}

#[test]
fn gpas_with_closed_gates_is_its_host() {
    for (gated, host) in [
        ("pre-gpas", named("pre")),
        ("sandwich-gpas", named("sandwich")),
        ("deepnorm-gpas", named("deepnorm")),
        ("mix-ln-gpas", named("mix-ln")),
        // Whose factor is where the gains start, so at run time it is Pre-LN.
        ("lns-gpas", named("pre")),
    ] {
        same(gated, &run(&named(gated), &config(), 0, &[("learned.g", 0.0)], &[]), &plain(&host));
    }
}

#[test]
fn a_block_alone() {
    let one = ModelConfig { blocks: 1, ..config() };
    let alone = |scheme: &Scheme| run(scheme, &one, 0, &[], &[]);
    same("lns", &alone(&named("lns")), &alone(&named("pre")));
    same("keel-v1", &alone(&changed("keel-v1", &[("head: x", "head: norm(x)")])), &alone(&named("pre")));
}

#[test]
fn what_is_left_when_a_scheme_loses_its_idea() {
    let (post, pre) = (plain(&named("post")), plain(&named("pre")));
    let b2t = changed("b2t", &[("    x = norm(x + y + ffn(y))", "    x = norm(y + ffn(y))")]);
    same("b2t without its bypass", &plain(&b2t), &post);
    let siamese = changed(
        "siamese",
        &[
            ("streams x, y ", "streams x "),
            ("f(x + norm(y))", "f(x)"),
            ("o/sqrt(l + 1)", "o"),
            ("    y = y + o\n", ""),
            ("head: x + norm(y)", "head: x"),
        ],
    );
    same("siamese with one stream", &plain(&siamese), &post);
    let residual = changed("residual", &[("head: u + norm(r, eps=1e-7)", "head: u")]);
    same("residual without its second stream", &plain(&residual), &post);
    let sub_ln = changed("sub-ln", &[("attn: inner norm ", "# "), ("ffn: inner norm ", "# ")]);
    same("sub-ln without inner norms", &plain(&sub_ln), &pre);
    let output = [("attn.output_norm", "attn.input_norm"), ("ffn.output_norm", "ffn.input_norm")];
    let moved = changed("output-norm", &[("norm(f(x))", "f(norm(x))"), ("attn: norm q k full width\n", "")]);
    same("output-norm with its norms moved", &run(&moved, &config(), 0, &[], &output), &pre);
    same("peri is sandwich", &plain(&named("peri")), &plain(&named("sandwich")));
    same("pre-scaled-init is pre", &plain(&named("pre-scaled-init")), &pre);
    let embedding = changed("peri-embedding-norm", &[("embed: x = norm(x)\n", "")]);
    same("peri without its norm on the embedding", &plain(&embedding), &plain(&named("peri")));
    let span = changed("spannorm", &[("attn(norm(x))", "attn(x)"), ("norm(x + ffn(y))", "norm(y + ffn(y))")]);
    same("spannorm whose second path starts where Post-LN's does", &plain(&span), &post);
}

#[test]
fn learned_factors_at_one_are_no_factors() {
    let pre = plain(&named("pre"));
    let factor = |name: &str| run(&named(name), &config(), 0, &[("lambda", 1.0), ("learned.a", 1.0)], &[]);
    same("layerscale", &factor("layerscale"), &pre);
    same("normformer", &factor("normformer-residual-scale"), &plain(&named("normformer")));
    same("rezero", &factor("rezero"), &plain(&named("t-fixup")));
    // All blocks are in after T*L steps.
    same("prores", &run(&named("prores"), &config(), 4000, &[], &[]), &pre);
    let early = run(&named("prores"), &config(), 0, &[], &[]);
    let silent = changed("pre", &[("x = x + f(norm(x))", "x = x + 0*f(norm(x))")]);
    same("prores before the first step", &early, &plain(&silent));
}

#[test]
fn a_highway_with_its_gates_shut_hands_its_input_on() {
    let shut = run(&named("highway"), &config(), 0, &[("gate.w", 0.0), ("gate.b", -800.0)], &[]);
    let nothing = changed("t-fixup", &[("x = x + f(x)", "x = x + 0*f(x)")]);
    close("highway", &shut.logits, &plain(&nothing).logits);
}

#[test]
fn parallel_blocks_differ_by_their_norms_alone() {
    let two = run(
        &named("parallel-two-norms"),
        &config(),
        0,
        &[],
        &[("attn.input_norm", "norm"), ("ffn.input_norm", "norm")],
    );
    close("parallel", &two.logits, &plain(&named("parallel")).logits);
}

#[test]
fn hybridnorm_star_differs_in_block_1_only() {
    let model = |name: &str| Model::new(&named(name), &config()).unwrap();
    let (with, without) = (model("hybridnorm-star"), model("hybridnorm"));
    let words = |model: &Model| addnorm_scheme::prose::prose(model.plan()).blocks;
    let (with, without) = (words(&with), words(&without));
    assert_eq!((with[0].first, with[0].last), (1, 1));
    assert_eq!((with[1].first, with[1].last), (2, 4));
    assert_eq!(with[1].equations, without[0].equations);
    assert_ne!(with[0].equations, without[0].equations);
}

#[test]
fn keels_versions_differ_in_block_1_only() {
    let words = |name: &str| addnorm_scheme::prose::prose(Model::new(&named(name), &config()).unwrap().plan()).blocks;
    let (first, second) = (words("keel-v1"), words("keel"));
    assert_eq!(first[1..], second[1..]);
    assert_ne!(first[0], second[0]);
}

#[test]
fn pre_rmsnorm_is_pre_ln_without_means() {
    let no_bias = ModelConfig { norm: NormKind::LayernormNoBias, ..config() };
    let layer_norm = run(&named("pre"), &no_bias, 0, &[], &[]);
    same("pre-rmsnorm", &plain(&named("pre-rmsnorm")), &layer_norm);
}

#[test]
fn dlcl_that_weighs_the_last_output_alone_is_a_stack_of_normed_blocks() {
    let text = "block:\n    each f:\n        x = x + f(norm(x))\n    x = norm(x)\nhead: norm(x)\n";
    let scheme = named("dlcl-pre");
    let model = Model::new(&scheme, &config()).unwrap();
    let weights: Vec<&ParameterInfo> =
        model.parameters().iter().filter(|info| info.name.ends_with("learned.w")).collect();
    let sizes: Vec<usize> = weights.iter().map(|info| info.elements()).collect();
    assert_eq!(sizes, [1, 2, 3, 4, 5], "a lower triangle, with one row for the head");
    let starts: Vec<InitialValue> = weights.iter().map(|info| info.initial).collect();
    let expected: Vec<InitialValue> = (1..=5).map(|entries| InitialValue::Constant(1.0 / f64::from(entries))).collect();
    assert_eq!(starts, expected);
    // A history of which only the newest entry has a weight.
    let newest = changed(
        "dlcl-pre",
        &[
            ("    x = sum(w*y)", "    x = sum(choose(entry == l - 1, 1, 0)*y)"),
            ("norm(sum(w*y))", "norm(sum(choose(entry == L, 1, 0)*y))"),
            ("learn w[y] = 1/entries\n", ""),
        ],
    );
    let plain_stack = Scheme::parse("stack", text).unwrap();
    same("dlcl", &run(&newest, &config(), 0, &[], &[("head.residual_norm", "head.norm")]), &plain(&plain_stack));
}
