//! `addnorm show`

use std::fmt::Write;
use std::process::ExitCode;

use addnorm_nn::{Model, ModelConfig, StackKind, preset_names};
use addnorm_scheme::diagram::diagram;
use addnorm_scheme::prose::{prose, scalar_as_text};
use addnorm_scheme::{Coefficient, ParameterSize, Scalar, Section, Step, lookup};

use crate::args::ShowArguments;
use crate::commands::models::show_model;
use crate::failure::Failure;
use crate::printer;

/// Vocabulary that the price of embedding and head is shown for.
const VOCABULARY: usize = 256;

pub fn show(arguments: &ShowArguments) -> Result<ExitCode, Failure> {
    if preset_names().any(|name| name == arguments.scheme) {
        return show_model(arguments);
    }
    let scheme = lookup(&arguments.scheme)?;
    let (depth, width, heads) =
        (arguments.depth.unwrap_or(24), arguments.width.unwrap_or(64), arguments.heads.unwrap_or(4));
    let stack = arguments.stack.unwrap_or(StackKind::Decoder);
    let config = ModelConfig {
        stack,
        blocks: depth,
        width,
        heads,
        vocabulary: VOCABULARY,
        classes: VOCABULARY,
        image: 28,
        ..ModelConfig::default()
    };
    let model = Model::new(&scheme, &config).map_err(Failure::input)?;
    let (plan, cost) = (model.plan(), model.cost());
    let words = prose(plan);
    let mut shown: Vec<usize> = vec![1, depth.div_ceil(2), depth];
    shown.dedup();
    let names: Vec<&str> = plan.blocks[0].constants.iter().map(|(name, _)| name.as_str()).collect();
    let constant = |name: &str, block: usize| {
        let found = plan.blocks[block - 1].constants.iter().find(|(known, _)| known == name);
        found.map_or_else(String::new, |(_, value)| match value {
            Scalar::Number(number) => format!("{number:.4}"),
            other => scalar_as_text(other),
        })
    };
    let initialisers = model.initialisers();
    if arguments.json {
        let diagrams: Vec<_> = words
            .blocks
            .iter()
            .map(|blocks| {
                let title = format!("{}, blocks {} to {}", scheme.title, blocks.first, blocks.last);
                diagram(&plan.blocks[blocks.first - 1], &plan.streams, &title)
            })
            .collect();
        let constants: Vec<_> = shown
            .iter()
            .map(|&block| {
                let values: serde_json::Map<_, _> =
                    names.iter().map(|name| (name.to_string(), constant(name, block).into())).collect();
                serde_json::json!({ "block": block, "constants": values })
            })
            .collect();
        let report = serde_json::json!({
            "name": scheme.name, "title": scheme.title, "papers": scheme.papers, "claims": scheme.claims, "notes": scheme.notes,
            "stack": stack.name(), "depth": depth, "width": width, "heads": heads, "streams": plan.streams,
            "equations": words, "constants": constants, "diagrams": diagrams,
            "norm": model.norm_kind().name(), "epsilon": config.epsilon,
            "norms": shown.iter().map(|&block| serde_json::json!({
                "block": block, "names": plan.blocks[block - 1].norms().collect::<Vec<_>>(),
                "count": cost.block_norms[block - 1],
            })).collect::<Vec<_>>(),
            "initialisers": initialisers,
            "cost": cost, "lints": scheme.lints, "source": scheme.source,
        });
        printer::result(&serde_json::to_string_pretty(&report).map_err(Failure::run)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write!(text, "{}", scheme.title);
    if !scheme.papers.is_empty() {
        let _ = write!(text, " ({})", scheme.papers.join(", "));
    }
    text.push('\n');
    for claim in &scheme.claims {
        let _ = writeln!(text, "Claimed: {claim}");
    }
    for note in &scheme.notes {
        let _ = writeln!(text, "{note}");
    }
    if !words.embed.is_empty() {
        let _ = writeln!(text, "\nembedding:");
        for equation in &words.embed {
            let _ = writeln!(text, "    {}", equation.text);
        }
    }
    text.push('\n');
    for blocks in &words.blocks {
        let range = match (blocks.first, blocks.last) {
            (first, last) if first == last => format!("block {first}:"),
            (first, last) => format!("blocks {first} to {last}:"),
        };
        let _ = writeln!(text, "{range}");
        for equation in &blocks.equations {
            let _ = writeln!(text, "    {}", equation.text);
        }
    }
    let _ = writeln!(text, "{}", words.head.text);
    let header: Vec<String> =
        std::iter::once(String::new()).chain(shown.iter().map(|block| format!("block {block}"))).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut rows = Vec::new();
    for name in &names {
        rows.push(std::iter::once(name.to_string()).chain(shown.iter().map(|&block| constant(name, block))).collect());
    }
    for symbol in factors(&model) {
        let value = |block: usize| factor_value(&plan.blocks[block - 1], &symbol);
        rows.push(std::iter::once(scalar_as_text(&symbol)).chain(shown.iter().map(|&block| value(block))).collect());
    }
    for learnable in &plan.blocks[depth - 1].learnables {
        let size = match learnable.size {
            ParameterSize::Scalar => "scalar",
            ParameterSize::Width => "vector",
            ParameterSize::Entries(_) => "weight of each earlier output",
        };
        let label = format!("{} (learned {size}, starts at)", learnable.name);
        let value = |block: usize| {
            let found = plan.blocks[block - 1].learnables.iter().find(|known| known.name == learnable.name);
            found.map_or_else(String::new, |learnable| match &learnable.measured {
                Some(start) => format!("measured: {}", scalar_as_text(&start.expression)),
                None => format!("{}", learnable.initial),
            })
        };
        rows.push(std::iter::once(label).chain(shown.iter().map(|&block| value(block))).collect());
    }
    let counts = |values: &[usize]| shown.iter().map(|&block| values[block - 1].to_string()).collect::<Vec<_>>();
    rows.push(std::iter::once("norms".to_string()).chain(counts(&cost.block_norms)).collect());
    rows.push(std::iter::once("parameters".to_string()).chain(counts(&cost.block_parameters)).collect());
    let _ = write!(text, "\n{}", addnorm_report::plain_table(&header, rows));
    let rows = initialisers.into_iter().map(|row| vec![row.matrices.join(" "), row.first, row.last]).collect();
    let _ =
        write!(text, "\n{}", addnorm_report::plain_table(&["matrices", "start from, first block", "last block"], rows));
    let _ = writeln!(
        text,
        "\nAt width {}, {} heads, {} blocks, vocabulary {VOCABULARY}, context {}: {} parameters, {:.0} kFLOP forward\n\
         and {:.1} kB of activations a token. Norms are {} with epsilon {:e} inside the root.",
        width,
        heads,
        depth,
        config.context,
        cost.parameters,
        cost.forward_flops_per_token / 1e3,
        cost.activation_bytes_per_token / 1e3,
        model.norm_kind().name(),
        config.epsilon,
    );
    printer::result(&text);
    printer::lints(&scheme);
    Ok(ExitCode::SUCCESS)
}

/// Every weight of a sum in a section.
fn coefficients(section: &Section) -> impl Iterator<Item = &Coefficient> {
    section.steps.iter().flat_map(|step| match step {
        Step::Mix(mix) => mix.terms.iter().map(|term| &term.coefficient).chain([&mix.scale]).collect::<Vec<_>>(),
        _ => Vec::new(),
    })
}

/// Factors that stand in an equation as an expression of their own, such as `1/sqrt(l)`: what neither a
/// number in the text nor a named constant shows already.
fn factors(model: &Model) -> Vec<Scalar> {
    let mut found: Vec<Scalar> = Vec::new();
    for coefficient in model.plan().blocks.iter().flat_map(coefficients) {
        let mut dimensional = false;
        coefficient
            .symbol
            .names(&mut |name| dimensional |= ["L", "l", "N", "M", "d", "h", "sublayers", "sublayer"].contains(&name));
        let known = found.contains(&coefficient.symbol);
        if dimensional && coefficient.fixed().is_some() && !known {
            found.push(coefficient.symbol.clone());
        }
    }
    found
}

fn factor_value(section: &Section, symbol: &Scalar) -> String {
    let found = coefficients(section).find(|coefficient| coefficient.symbol == *symbol);
    found.and_then(Coefficient::fixed).map_or_else(String::new, |value| format!("{value:.4}"))
}
