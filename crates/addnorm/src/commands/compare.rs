//! `addnorm compare`

use std::process::ExitCode;

use addnorm_nn::StackKind;
use addnorm_scheme::lookup;
use addnorm_train::{RunConfig, RunSpec, check_gradients, default_comparison};

use crate::args::CompareArguments;
use crate::commands::prepare::{absolute, fits, prepare};
use crate::commands::{output_folder, read_config, start_from_model};
use crate::failure::Failure;
use crate::printer::{self, Bars};

pub fn compare(arguments: &CompareArguments) -> Result<ExitCode, Failure> {
    let default = default_comparison();
    let mut config = match &arguments.run.config {
        Some(path) => read_config(path)?,
        None => default.settings,
    };
    start_from_model(arguments.run.model.as_deref(), &mut config)?;
    config.scheme.clear();
    arguments.run.apply(&mut config);
    if !(1..=1000).contains(&arguments.seeds) {
        return Err(Failure::input(format!("a comparison has 1 to 1000 seeds, not {}", arguments.seeds)));
    }
    let said = if arguments.schemes.is_empty() { &default.schemes } else { &arguments.schemes };
    // Schemes first: a slip in a name is found before a corpus is read.
    let schemes = said.iter().map(|said| lookup(said)).collect::<Result<Vec<_>, _>>()?;
    let corpus = prepare(&mut config)?;
    let mut specs: Vec<RunSpec> = Vec::new();
    for (said, scheme) in said.iter().zip(schemes) {
        printer::warnings_of(&scheme);
        let mut label = scheme.name.clone();
        let mut count = 1;
        while specs.iter().any(|spec| spec.label == label) {
            count += 1;
            label = format!("{}-{count}", scheme.name);
        }
        let config = RunConfig { scheme: absolute(said), ..config.clone() };
        specs.push(RunSpec { label, scheme, config });
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.unwrap_or(cores).clamp(1, 1024);
    // What cannot run is wrong input; better said before the first run than after the seventh.
    for spec in &specs {
        fits(spec, jobs.min(specs.len() * arguments.seeds as usize))?;
        check_gradients(spec).map_err(Failure::input)?;
    }
    let seeds: Vec<u64> = (0..arguments.seeds).map(|offset| config.train.seed.wrapping_add(offset)).collect();
    let folder = output_folder(arguments.run.out.as_deref(), "compare")?;
    let model = &config.model;
    printer::message(&format!(
        "{} schemes, {} blocks of width {}, {} steps of {} x {} {} of {}",
        specs.len(),
        model.blocks,
        model.width,
        config.train.steps,
        config.train.batch,
        if model.stack == StackKind::Vision { model.patches() } else { model.context },
        if model.stack == StackKind::Vision { "patches" } else { "tokens" },
        corpus.summary().description,
    ));
    let bars = Bars::new(specs.len() * seeds.len(), config.train.steps);
    let comparison = addnorm_train::compare(&specs, &seeds, &corpus, Some(&folder), jobs, &bars)?;
    let report = folder.join("report.html");
    addnorm_report::write_comparison(&comparison, &folder)
        .map_err(|error| Failure::run(format!("the report cannot be written: {error}")))?;
    if arguments.run.json {
        printer::result(&addnorm_report::comparison_json(&comparison));
    } else {
        printer::result(&addnorm_report::comparison_text(&comparison));
    }
    printer::message(&format!("\n{}", report.display()));
    Ok(if comparison.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
