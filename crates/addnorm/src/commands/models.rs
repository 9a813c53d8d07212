//! `addnorm models`, and `addnorm show` of one of them

use std::process::ExitCode;

use addnorm_nn::{Model, ModelConfig, ParameterInfo, Preset, Role, StackKind, preset, preset_names};
use addnorm_scheme::prose::prose;
use addnorm_scheme::{MatrixKind, lookup};

use crate::args::{ModelsArguments, ShowArguments};
use crate::commands::unknown_model;
use crate::failure::Failure;
use crate::printer;

/// Lists every preset.
pub fn models(arguments: &ModelsArguments) -> Result<ExitCode, Failure> {
    let entries = preset_names()
        .map(|name| preset(name).map(|preset| (name, preset)).map_err(unknown_model))
        .collect::<Result<Vec<(&str, Preset)>, Failure>>()?;
    if arguments.json {
        let list: Vec<_> =
            entries.iter().map(|(name, preset)| serde_json::json!({ "name": name, "preset": preset })).collect();
        printer::result(&serde_json::to_string_pretty(&list).map_err(Failure::run)?);
        return Ok(ExitCode::SUCCESS);
    }
    let rows = entries.iter().map(|(name, preset)| {
        let model = &preset.model;
        let blocks = match model.stack {
            StackKind::Pair => format!("{}+{}", model.blocks, model.blocks_of_decoder()),
            _ => model.blocks.to_string(),
        };
        let scheme = preset.scheme.clone();
        vec![name.to_string(), preset.title.clone(), scheme, blocks, model.width.to_string(), count(preset.parameters)]
    });
    let header = ["model", "title", "scheme", "blocks", "width", "parameters"];
    printer::result(&addnorm_report::plain_table(&header, rows.collect()));
    Ok(ExitCode::SUCCESS)
}

/// A count in the unit that suits it.
fn count(number: u64) -> String {
    let number = number as f64;
    match number {
        big if big >= 1e9 => format!("{:.2} billion", big / 1e9),
        small => format!("{:.1} million", small / 1e6),
    }
}

/// With commas between thousands.
fn whole(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What a parameter is counted under.
fn group(info: &ParameterInfo) -> &'static str {
    match info.role {
        Role::Gain | Role::NormBias => "norms",
        Role::Learnable => "learnables",
        _ if info.is_outside() => match info.role {
            Role::Matrix(MatrixKind::Head) => "output",
            _ if info.name.starts_with("head") => "output",
            _ => "embeddings",
        },
        _ if info.name.contains(".ffn.") => "feed-forward networks",
        _ => "attention",
    }
}

/// Shows a published model, without making its weights.
pub fn show_model(arguments: &ShowArguments) -> Result<ExitCode, Failure> {
    let preset = preset(&arguments.scheme).map_err(unknown_model)?;
    if arguments.stack.is_some() || arguments.depth.is_some() || arguments.width.is_some() || arguments.heads.is_some()
    {
        let message = format!("'{}' is a published model, whose sizes are what they are", arguments.scheme);
        return Err(Failure::input(message).hint("'addnorm train --model NAME --depth N' trains one of other sizes"));
    }
    let scheme = lookup(&preset.scheme)?;
    let config: &ModelConfig = &preset.model;
    let model = Model::new(&scheme, config).map_err(Failure::input)?;
    let cost = model.cost();
    let counted = model.parameter_count() as u64;
    let ratio = counted as f64 / preset.parameters as f64;
    let mut groups: Vec<(&str, u64)> = Vec::new();
    for info in model.parameters() {
        let name = group(info);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += info.elements() as u64,
            None => groups.push((name, info.elements() as u64)),
        }
    }
    let gigabytes = |bytes: f64| format!("{:.2} GB", bytes / 1e9);
    let sequence = config.sequence() as f64;
    let weights = counted as f64;
    let gains = model.parameters().iter().filter(|info| info.role == Role::Gain).count();
    // Kinds without a gain are counted by the equations.
    let norms = if gains > 0 { gains } else { cost.block_norms.iter().sum::<usize>() + cost.other_norms };
    if arguments.json {
        let report = serde_json::json!({
            "name": arguments.scheme, "preset": preset, "parameters": counted, "published": preset.parameters,
            "ratio": ratio, "parameters_by_part": groups, "norm": model.norm_kind().name(), "epsilon": config.epsilon,
            "norms": norms, "equations": prose(model.plan()), "cost": cost,
            "bytes": {
                "weights_bf16": 2.0 * weights, "weights_f32": 4.0 * weights, "training_f32": 16.0 * weights,
                "activations_f32_one_sequence": cost.activation_bytes_per_token * sequence,
            },
        });
        printer::result(&serde_json::to_string_pretty(&report).map_err(Failure::run)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![name.to_string(), value]);
    row("published", format!("{}; {}", preset.paper, preset.source));
    row("scheme", format!("{} ({})", scheme.title, preset.scheme));
    row("norms", format!("{norms}, {} with epsilon {:e} inside the root", model.norm_kind().name(), config.epsilon));
    let blocks = match config.stack {
        StackKind::Pair => format!("{} + {}", config.blocks, config.blocks_of_decoder()),
        _ => config.blocks.to_string(),
    };
    row(
        "sizes",
        format!(
            "{}, {blocks} blocks of width {}, {} heads of width {} ({} for keys and values), feed-forward width {}",
            config.stack.name(),
            config.width,
            config.heads,
            config.width_of_head(),
            config.key_value_heads(),
            config.hidden_width(),
        ),
    );
    let against = if counted == preset.parameters {
        "exactly as published".to_string()
    } else if preset.exact {
        format!("published: {}", whole(preset.parameters))
    } else {
        format!("{ratio:.4} of the published {}", count(preset.parameters))
    };
    row("parameters", format!("{} ({against})", whole(counted)));
    for (name, sum) in &groups {
        row(&format!("  {name}"), format!("{} ({:.1} %)", whole(*sum), 100.0 * *sum as f64 / weights));
    }
    row("weights", format!("{} in bf16, {} in f32", gigabytes(2.0 * weights), gigabytes(4.0 * weights)));
    row("training", format!("{} for weights, gradients and both moments in f32", gigabytes(16.0 * weights)));
    row(
        "activations",
        format!(
            "{} in f32 for one sequence of {} positions",
            gigabytes(cost.activation_bytes_per_token * sequence),
            config.sequence()
        ),
    );
    row("forward", format!("{:.2} GFLOP a token", cost.forward_flops_per_token / 1e9));
    let mut text = format!("{}\n", preset.title);
    if !preset.note.is_empty() {
        text.push_str(&format!("{}\n", preset.note));
    }
    text.push('\n');
    text.push_str(addnorm_report::plain_table(&["", ""], rows).trim_start());
    printer::result(&text);
    Ok(ExitCode::SUCCESS)
}
