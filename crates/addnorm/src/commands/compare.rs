//! `addnorm compare`

use std::process::ExitCode;

use addnorm_data::Corpus;
use addnorm_nn::{Model, Purpose, stream_seed};
use addnorm_scheme::lookup;
use addnorm_train::{RunConfig, RunSpec, default_comparison};

use crate::args::CompareArguments;
use crate::commands::{output_folder, read_config};
use crate::failure::Failure;
use crate::printer::{self, Bars};

pub fn compare(arguments: &CompareArguments) -> Result<ExitCode, Failure> {
    let default = default_comparison();
    let mut config = match &arguments.run.config {
        Some(path) => read_config(path)?,
        None => default.settings,
    };
    arguments.run.apply(&mut config);
    if arguments.seeds == 0 {
        return Err(Failure::input("a comparison has at least one seed"));
    }
    let said = if arguments.schemes.is_empty() { &default.schemes } else { &arguments.schemes };
    let corpus = prepare(&mut config)?;
    let mut specs: Vec<RunSpec> = Vec::new();
    for said in said {
        let scheme = lookup(said)?;
        for lint in &scheme.lints {
            printer::message(&format!("warning: {}: {} [{}]", scheme.name, lint.message, lint.code));
        }
        let mut label = scheme.name.clone();
        let mut count = 1;
        while specs.iter().any(|spec| spec.label == label) {
            count += 1;
            label = format!("{}-{count}", scheme.name);
        }
        // A scheme that cannot be built is wrong input; better said before the first run than after the seventh.
        Model::new(&scheme, &config.model).map_err(Failure::input)?;
        let config = RunConfig { scheme: said.clone(), ..config.clone() };
        specs.push(RunSpec { label, scheme, config });
    }
    let seeds: Vec<u64> = (0..arguments.seeds).map(|offset| config.train.seed.wrapping_add(offset)).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.unwrap_or(cores);
    let folder = output_folder(arguments.run.out.as_deref(), "compare")?;
    let model = &config.model;
    printer::message(&format!(
        "{} schemes, {} blocks of width {}, {} steps of {} x {} tokens of {}",
        specs.len(),
        model.blocks,
        model.width,
        config.train.steps,
        config.train.batch,
        model.context,
        corpus.summary.description,
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
    Ok(ExitCode::SUCCESS)
}

/// Checks the settings, loads the data, and fills in what the data decides.
pub fn prepare(config: &mut RunConfig) -> Result<Corpus, Failure> {
    for warning in config.validate()? {
        printer::message(&format!("warning: {warning}"));
    }
    // The data depends on the base seed alone, so that all runs of a comparison share it.
    let seed = stream_seed(config.train.seed, Purpose::DataOrder, "corpus");
    let corpus = Corpus::load(&config.data, config.model.context.max(1), config.train.eval_tokens, seed)?;
    let size = corpus.vocabulary.size();
    if config.model.vocabulary == 0 {
        config.model.vocabulary = size;
    }
    if config.model.vocabulary < size {
        let message = format!("[model] vocabulary: {} is less than the data's {size}", config.model.vocabulary);
        return Err(Failure::input(message));
    }
    if let Some(text) = &corpus.summary.text {
        for (count, what) in [
            (text.replaced, "invalid UTF-8 sequences became U+FFFD"),
            (text.skipped.len(), "files that are not UTF-8 were left out"),
            (text.binary_files, "binary files were left out"),
            (text.byte_order_marks, "byte-order marks were taken off"),
        ] {
            if count > 0 {
                printer::message(&format!("note: {count} {what}"));
            }
        }
    }
    config.model.validate()?;
    Ok(corpus)
}
