//! `addnorm train`

use std::process::ExitCode;

use addnorm_probe::Ending;
use addnorm_scheme::lookup;
use addnorm_train::{Progress, RunConfig, RunSpec, check_gradients};

use crate::args::TrainArguments;
use crate::commands::prepare::{absolute, fits, prepare};
use crate::commands::{output_folder, read_config, start_from_model};
use crate::failure::Failure;
use crate::printer::{self, Bars};

pub fn train(arguments: &TrainArguments) -> Result<ExitCode, Failure> {
    let mut config = match (&arguments.config, &arguments.run.config) {
        (Some(_), Some(_)) => return Err(Failure::input("two configuration files are given")),
        (Some(path), None) | (None, Some(path)) => read_config(path)?,
        (None, None) => RunConfig::default(),
    };
    start_from_model(arguments.run.model.as_deref(), &mut config)?;
    arguments.run.apply(&mut config);
    if let Some(scheme) = &arguments.scheme {
        config.scheme.clone_from(scheme);
    }
    if config.scheme.is_empty() {
        return Err(Failure::input("no scheme is given")
            .hint("add '--scheme NAME', or 'scheme = \"NAME\"' to the file; 'addnorm schemes' lists them"));
    }
    let scheme = lookup(&config.scheme)?;
    printer::warnings_of(&scheme);
    let corpus = prepare(&mut config)?;
    config.scheme = absolute(&config.scheme);
    let spec = RunSpec { label: scheme.name.clone(), scheme, config };
    if let Some(from) = &spec.config.train.from {
        // The weights say nothing of factors and wiring, which are the scheme's.
        let other = std::fs::read_to_string(from.join("scheme.scheme")).is_ok_and(|text| text != spec.scheme.source);
        if other {
            let message = format!("warning: the weights of {} were trained with another scheme", from.display());
            printer::message(&message);
        }
    }
    fits(&spec, 1)?;
    check_gradients(&spec).map_err(Failure::input)?;
    let folder = output_folder(arguments.run.out.as_deref(), &format!("train-{}", spec.label))?;
    let bars = Bars::new(1, spec.config.train.steps);
    bars.started(0, &spec.label, spec.config.train.steps);
    let outcome = addnorm_train::run(&spec, &corpus, Some(&folder), &|step, loss| bars.stepped(0, step, loss))?;
    bars.finished(0, &outcome.meta.judgement.words);
    addnorm_report::write_run(&outcome, &folder)
        .map_err(|error| Failure::run(format!("the report cannot be written: {error}")))?;
    if arguments.run.json {
        printer::result(&serde_json::to_string_pretty(&outcome.meta).map_err(Failure::run)?);
    } else {
        printer::result(&addnorm_report::run_text(&outcome));
    }
    printer::message(&format!("\n{}", folder.join("report.html").display()));
    // A run that broke off is a failed run; one that stays at unigram has been made, and is a finding.
    let diverged = matches!(outcome.meta.ending, Ending::Diverged { .. });
    Ok(if diverged { ExitCode::from(1) } else { ExitCode::SUCCESS })
}
