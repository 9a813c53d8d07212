//! `addnorm schemes`

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use addnorm_nn::{Model, ModelConfig, StackKind};
use addnorm_scheme::diagram::diagram;
use addnorm_scheme::prose::{Prose, prose, scalar_as_text};
use addnorm_scheme::{Scalar, Scheme, library, lookup};
use serde::Serialize;

use crate::args::SchemesArguments;
use crate::failure::Failure;
use crate::printer;

#[derive(Serialize)]
struct Entry {
    name: String,
    title: String,
    papers: Vec<String>,
    claims: Vec<String>,
    notes: Vec<String>,
    /// By stack: whether it has a form there, or why not.
    stacks: Vec<(&'static str, Result<(), String>)>,
}

/// A model of the scheme on a stack, of sizes to look at.
fn model(scheme: &Scheme, stack: StackKind) -> Result<Model, String> {
    let config = ModelConfig { stack, blocks: 12, vocabulary: 256, classes: 10, image: 28, ..ModelConfig::default() };
    Model::new(scheme, &config).map_err(|error| error.to_string())
}

pub fn schemes(arguments: &SchemesArguments) -> Result<ExitCode, Failure> {
    if let Some(folder) = &arguments.markdown {
        write_document(folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    let entries = library()
        .map(|(name, _)| {
            let scheme = lookup(name)?;
            let stacks = StackKind::ALL
                .iter()
                .map(|&(stack_name, stack)| (stack_name, model(&scheme, stack).map(drop)))
                .collect();
            Ok(Entry {
                name: scheme.name,
                title: scheme.title,
                papers: scheme.papers,
                claims: scheme.claims,
                notes: scheme.notes,
                stacks,
            })
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    if arguments.json {
        let list: Vec<_> = entries
            .iter()
            .map(|entry| {
                let stacks: serde_json::Map<String, serde_json::Value> = entry
                    .stacks
                    .iter()
                    .map(|(name, form)| {
                        (name.to_string(), form.as_ref().map_or_else(|why| why.clone().into(), |()| true.into()))
                    })
                    .collect();
                serde_json::json!({
                    "name": entry.name, "title": entry.title, "papers": entry.papers, "claims": entry.claims, "notes": entry.notes,
                    "stacks": stacks,
                })
            })
            .collect();
        printer::result(&serde_json::to_string_pretty(&list).map_err(Failure::run)?);
    } else {
        let rows = entries.iter().map(|entry| {
            let pair = entry.stacks.iter().any(|(name, form)| *name == "pair" && form.is_ok());
            let pair = if pair { "yes" } else { "no" };
            vec![entry.name.clone(), entry.title.clone(), entry.papers.join(", "), pair.to_string()]
        });
        printer::result(&addnorm_report::plain_table(&["scheme", "title", "paper", "on a pair"], rows.collect()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The library as a document: `docs/schemes.md` is this, and a test says so when it is stale.
fn markdown() -> Result<String, Failure> {
    let mut text = String::from(
        "# Every scheme\n\n\
         Written from the files in `schemes/` by `addnorm schemes --markdown docs`. `norm` is any norm; the equations stand\n\
         as the program runs them, with constants at 12 blocks. `e` is the embedding, `l` a block's number from 1, `L`\n\
         the number of blocks.\n\n\
         A check mark says that forward values, the loss and the gradient of every parameter on that stack equal an\n\
         independent float64 reference, written in Python from the papers' equations (`reference/`), to 1e-9, and in\n\
         single precision to 1e-4. What is claimed is what the papers or their repositories say, and is not verified here.\n\
         A dash says that the scheme has no published form there; asked for it all the same,\n\
         addnorm refuses with the reason.\n\n\
         | scheme | decoder | encoder | pair | vision |\n|---|---|---|---|---|\n",
    );
    // Writing to a string does not fail.
    for (name, _) in library() {
        let scheme = lookup(name)?;
        let marks = StackKind::ALL.map(|(_, stack)| if model(&scheme, stack).is_ok() { "✓" } else { "-" });
        let _ = writeln!(text, "| [{name}](#{name}) | {} |", marks.join(" | "));
    }
    for (name, _) in library() {
        scheme_in_markdown(&mut text, &lookup(name)?)?;
    }
    Ok(text.trim_end().to_string())
}

fn equations(text: &mut String, words: &Prose) {
    text.push_str("\n```text\n");
    if !words.embed.is_empty() {
        text.push_str("embed:\n");
        words.embed.iter().for_each(|equation| {
            let _ = writeln!(text, "    {}", equation.text);
        });
    }
    for blocks in &words.blocks {
        let _ = match (blocks.first, blocks.last) {
            (first, last) if first == last => writeln!(text, "block {first}:"),
            (first, last) => writeln!(text, "blocks {first} to {last}:"),
        };
        blocks.equations.iter().for_each(|equation| {
            let _ = writeln!(text, "    {}", equation.text);
        });
    }
    let _ = writeln!(text, "{}\n```", words.head.text);
}

fn scheme_in_markdown(text: &mut String, scheme: &Scheme) -> Result<(), Failure> {
    let _ = writeln!(text, "\n## {}\n", scheme.name);
    let papers: Vec<String> = scheme
        .papers
        .iter()
        .map(|paper| match paper.strip_prefix("arXiv:") {
            Some(number) => format!("[{paper}](https://arxiv.org/abs/{number})"),
            None => paper.clone(),
        })
        .collect();
    let _ = writeln!(text, "**{}**, {}.", scheme.title, papers.join(", "));
    for claim in &scheme.claims {
        let _ = writeln!(text, "\nClaimed: {claim}");
    }
    for note in &scheme.notes {
        let _ = writeln!(text, "\n{note}");
    }
    for (stack, why) in &scheme.refusals {
        let _ = writeln!(text, "\nNot on a {stack}: {why}.");
    }
    let stack = if scheme.refusals.iter().any(|(stack, _)| stack == "decoder") {
        StackKind::Encoder
    } else {
        StackKind::Decoder
    };
    let made = model(scheme, stack).map_err(Failure::run)?;
    let plan = made.plan();
    let words = prose(plan);
    equations(text, &words);
    // What cross-attention reads is worth a look only where it is not one more sublayer of a kind.
    if scheme.bodies.iter().any(|body| body.only.is_some())
        && let Ok(pair) = model(scheme, StackKind::Pair)
    {
        text.push_str("\nIn the decoder of a pair:\n");
        equations(text, &prose(pair.plan()));
    }
    let last = plan.blocks.len() - 1;
    let constants: Vec<String> = plan.blocks[last]
        .constants
        .iter()
        .map(|(name, value)| match value {
            Scalar::Number(number) => {
                format!("`{name}` = {}", format!("{number:.4}").trim_end_matches('0').trim_end_matches('.'))
            }
            other => format!("`{name}` = `{}`", scalar_as_text(other)),
        })
        .collect();
    if !constants.is_empty() {
        let _ = writeln!(text, "\nConstants in block {}: {}.", last + 1, constants.join(", "));
    }
    let learned: Vec<String> = plan.blocks[last]
        .learnables
        .iter()
        .map(|learnable| match &learnable.measured {
            Some(start) => format!("`{}` from `{}`", learnable.name, scalar_as_text(&start.expression)),
            None => format!("`{}` from {}", learnable.name, learnable.initial),
        })
        .collect();
    if !learned.is_empty() {
        let _ = writeln!(text, "\nLearned in block {}: {}.", last + 1, learned.join(", "));
    }
    let options = &plan.options.attention;
    let mut inside = Vec::new();
    if options.projection_norms.is_some() {
        inside.push("norms on projections inside the attention");
    }
    if options.scaled_heads {
        inside.push("a learned factor a head");
    }
    if options.inner_norm {
        inside.push("a norm before the output projection");
    }
    if plan.options.ffn_inner_norm {
        inside.push("a norm inside the feed-forward network");
    }
    if !inside.is_empty() {
        let _ = writeln!(text, "\nInside the sublayers: {}.", inside.join(", "));
    }
    let starts: Vec<String> = made
        .initialisers()
        .iter()
        .map(|row| {
            format!(
                "{} {}",
                row.matrices.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" "),
                row.words()
            )
        })
        .collect();
    let _ = writeln!(text, "\nMatrices at 12 blocks of width 64 start from: {}.", starts.join("; "));
    let blocks = &words.blocks[words.blocks.len() - 1];
    let title = format!("{}, block {}", scheme.title, blocks.last);
    let _ = writeln!(text, "\n![{title}](diagrams/{}.svg)", scheme.name);
    Ok(())
}

/// Writes the document and its diagrams.
fn write_document(folder: &Path) -> Result<(), Failure> {
    let cannot =
        |path: &Path, error: std::io::Error| Failure::run(format!("{} cannot be written: {error}", path.display()));
    let pictures = folder.join("diagrams");
    std::fs::create_dir_all(&pictures).map_err(|error| cannot(&pictures, error))?;
    let write = |path: &Path, text: &str| std::fs::write(path, text).map_err(|error| cannot(path, error));
    write(&folder.join("schemes.md"), &format!("{}\n", markdown()?))?;
    for (name, svg) in diagrams()? {
        write(&pictures.join(name), &format!("{svg}\n"))?;
    }
    printer::message(&format!("{}", folder.join("schemes.md").display()));
    Ok(())
}

/// With every colour as itself: not all that shows pictures knows variables, and a picture by itself has none to set.
fn with_colours(svg: &str) -> String {
    let mut text = String::with_capacity(svg.len());
    let mut rest = svg;
    while let Some(start) = rest.find("var(--") {
        let (before, from) = rest.split_at(start);
        text.push_str(before);
        let Some((inner, after)) = from.split_once(')') else { break };
        text.push_str(inner.split_once(", ").map_or(inner, |(_, colour)| colour));
        rest = after;
    }
    text + rest
}

/// The diagrams that the document shows, by file name.
fn diagrams() -> Result<Vec<(String, String)>, Failure> {
    library()
        .map(|(name, _)| {
            let scheme = lookup(name)?;
            let refused = scheme.refusals.iter().any(|(stack, _)| stack == "decoder");
            let made =
                model(&scheme, if refused { StackKind::Encoder } else { StackKind::Decoder }).map_err(Failure::run)?;
            let last = made.plan().blocks.len();
            let title = format!("{}, block {last}", scheme.title);
            Ok((
                format!("{name}.svg"),
                with_colours(&diagram(&made.plan().blocks[last - 1], &made.plan().streams, &title)),
            ))
        })
        .collect()
}
