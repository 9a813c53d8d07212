//! `addnorm convert`

use std::process::ExitCode;

use addnorm_data::Dataset;
use addnorm_nn::{ConvertError, ForwardOptions, NoObserver, device, statistics};
use addnorm_scheme::lookup;
use addnorm_train::{Batch, load_run, task_of, write_converted};

use crate::args::ConvertArguments;
use crate::commands::output_folder;
use crate::failure::Failure;
use crate::printer;

/// How far logits may move, in absolute terms.
const TOLERANCE: f64 = 1e-5;

/// Sequences of validation examples that both forms are run on.
const SEQUENCES: usize = 4;

pub fn convert(arguments: &ConvertArguments) -> Result<ExitCode, Failure> {
    let target = lookup(&arguments.to)?;
    let device = device(&arguments.device).map_err(Failure::input)?;
    let run = load_run(&arguments.run, &device)
        .map_err(|error| Failure::input(error).hint("a finished run of 'addnorm train' or 'compare' is wanted"))?;
    let (model, weights) = run.model.convert(&run.weights, &target).map_err(|error| match error {
        ConvertError::NotExact(why) => Failure::input(format!("no exact conversion: {why}"))
            .hint("it takes norms that read streams and are read by sublayers alone, as in Pre-LN"),
        other => Failure::input(other),
    })?;
    // Not taken on trust: both are run.
    let config = &run.config;
    let dataset =
        Dataset::load(task_of(config.model.stack), &config.data, config.model.context, config.train.eval_tokens)?;
    let limit = SEQUENCES * config.model.sequence();
    let examples = dataset.validation(config.model.context, config.model.patch, limit, SEQUENCES).swap_remove(0);
    let inputs = Batch::from(examples).inputs;
    let options = ForwardOptions { step: config.train.steps, ..ForwardOptions::default() };
    let before = statistics::to_f64(&run.model.logits(&run.weights, &inputs, options, &mut NoObserver));
    let after = statistics::to_f64(&model.logits(&weights, &inputs, options, &mut NoObserver));
    let largest = before.iter().fold(0.0f64, |largest, logit| largest.max(logit.abs()));
    // A NaN stays one, and is not equal to anything.
    let worse = |off: f64, next: f64| if off.is_nan() || next <= off { off } else { next };
    let off = before.iter().zip(&after).fold(0.0f64, |off, (a, b)| worse(off, (a - b).abs()));
    let equal = off <= TOLERANCE * largest.max(1.0);
    if !equal {
        return Err(Failure::run(format!(
            "the two forms differ by {off:.1e}, more than {TOLERANCE:e}: nothing is written"
        )));
    }
    let folder = output_folder(arguments.out.as_deref(), &format!("convert-{}", target.name))?;
    write_converted(&run, &target, &model, &weights, &folder).map_err(Failure::run)?;
    if arguments.json {
        let report = serde_json::json!({
            "from": run.scheme.name, "to": target.name, "folder": folder, "logits": before.len(),
            "largest_difference": off, "largest_logit": largest, "equal": equal,
            "parameters_before": run.model.parameter_count(), "parameters": model.parameter_count(),
        });
        printer::result(&serde_json::to_string_pretty(&report).map_err(Failure::run)?);
    } else {
        printer::result(&format!(
            "{} as {}: {} logits of validation examples differ by {off:.1e} at most, the largest being {largest:.2}\n\
             {} parameters, from {}\n{}",
            run.scheme.name,
            target.name,
            before.len(),
            model.parameter_count(),
            run.model.parameter_count(),
            folder.display(),
        ));
    }
    if config.model.dropout > 0.0 {
        printer::message("note: with dropout in training a stream gets a mean, which the new form does not take off");
    }
    Ok(ExitCode::SUCCESS)
}
