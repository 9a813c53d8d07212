//! What stands before a run: settings checked, data loaded, memory enough.

use std::path::Path;

use addnorm_data::Dataset;
use addnorm_nn::{MOST_LOGITS, Model, Purpose, stream_seed};
use addnorm_scheme::library;
use addnorm_train::{Recompute, RunConfig, RunSpec, task_of};

use crate::failure::Failure;
use crate::printer;

/// A path as it is from anywhere, so that a run's record holds good in another folder; other text as it is.
pub fn absolute(said: &str) -> String {
    let path = Path::new(said);
    match (path.is_file(), std::path::absolute(path)) {
        (true, Ok(path)) => path.display().to_string(),
        _ => said.to_string(),
    }
}

/// Refuses what the machine's memory cannot hold, with the arithmetic.
pub fn fits(spec: &RunSpec, jobs: usize) -> Result<(), Failure> {
    let model = Model::new(&spec.scheme, &spec.config.model).map_err(Failure::input)?;
    let train = &spec.config.train;
    let cost = model.cost();
    let tokens = (train.batch.div_ceil(train.accumulate.max(1)) * spec.config.model.sequence()) as f64;
    // Weight, gradient and two moments in f32.
    let parameters = 16.0 * cost.parameters as f64;
    // Beyond a limit the logits are computed again some rows at a time.
    let vocabulary = spec.config.model.answers() as f64;
    let most = MOST_LOGITS as f64;
    let spared = if tokens * vocabulary > most { 4.0 * (tokens * vocabulary - 2.0 * most).max(0.0) } else { 0.0 };
    let activations = tokens
        * match train.recompute {
            Recompute::None => cost.activation_bytes_per_token,
            Recompute::Blocks(every) => {
                // The streams that enter each segment, and what one segment computes.
                let blocks = spec.config.model.blocks as f64;
                let every = (every as f64).min(blocks);
                let streams = (4 * spec.config.model.width * model.plan().streams.len()) as f64;
                streams * (blocks / every).ceil() + cost.activation_bytes_per_token * every / blocks
            }
        }
        - spared;
    let needed = (parameters + activations) * jobs as f64;
    let Some(memory) = memory() else { return Ok(()) };
    if needed > memory {
        let giga = |bytes: f64| format!("{:.1} GB", bytes / 1e9);
        let message = format!(
            "{}: {} for parameters and their moments and {} for the activations of {tokens:.0} tokens, times {jobs} at a \
             time, is {}; the machine has {}",
            spec.label,
            giga(parameters),
            giga(activations),
            giga(needed),
            giga(memory),
        );
        return Err(Failure::input(message)
            .hint("a smaller '--batch', more '--accumulate', '--recompute blocks', or '--jobs 1' needs less"));
    }
    Ok(())
}

/// The machine's memory in bytes, where the system says.
fn memory() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<f64>().ok()? * 1024.0)
}

/// Checks the settings, loads the data, and fills in what the data decides.
pub fn prepare(config: &mut RunConfig) -> Result<Dataset, Failure> {
    for warning in config.validate()? {
        printer::message(&format!("warning: {warning}"));
    }
    // The data depends on the base seed alone, so that all runs of a comparison share it, and is recorded with
    // each, so that each can be repeated by itself.
    if config.data.builtin_seed == 0 {
        config.data.builtin_seed = stream_seed(config.train.seed, Purpose::DataOrder, "corpus") >> 1;
    }
    let (task, context) = (task_of(config.model.stack), config.model.context.max(1));
    let dataset = Dataset::load(task, &config.data, context, config.train.eval_tokens).map_err(|error| {
        let missing = config.data.paths.iter().find(|path| !path.exists());
        let name = missing.and_then(|path| path.file_name()).and_then(|name| name.to_str()).unwrap_or_default();
        let failure = Failure::from(error);
        if library().any(|(known, _)| known == name) {
            return failure.hint("schemes stand before '--data', which takes every word up to the next flag");
        }
        failure
    })?;
    for path in config.data.paths.iter_mut().chain(&mut config.data.tokenizer).chain(&mut config.train.from) {
        if let Ok(whole) = std::path::absolute(&*path) {
            *path = whole;
        }
    }
    let (key, asked, size) = match &dataset {
        Dataset::ImageClass(images) => {
            if config.model.image == 0 {
                config.model.image = images.side;
            }
            if config.model.image != images.side || config.model.channels != 1 {
                let message = format!(
                    "[model] image: {} pixels in {} channels, and the data has {} in one",
                    config.model.image, config.model.channels, images.side
                );
                return Err(Failure::input(message).hint("leave 'image' and 'channels' out to take what the data says"));
            }
            ("classes", &mut config.model.classes, dataset.answers())
        }
        _ => ("vocabulary", &mut config.model.vocabulary, dataset.answers()),
    };
    if *asked == 0 {
        *asked = size;
    }
    if *asked < size {
        let message = format!("[model] {key}: {asked} is less than the data's {size}");
        return Err(Failure::input(message));
    }
    if let Dataset::SecondText(pairs) = &dataset
        && pairs.cut > 0
    {
        printer::message(&format!("note: {} texts were cut to the context of {context} tokens", pairs.cut));
    }
    if let Some(text) = &dataset.summary().text {
        for (count, what) in [
            (text.replaced, "invalid UTF-8 sequences became U+FFFD"),
            (text.skipped.len(), "files that are not UTF-8 were left out"),
            (text.binary_files, "binary files were left out"),
            (text.byte_order_marks, "byte-order marks were taken off"),
            (text.crlf, "line ends are \\r\\n"),
            (text.lone_cr, "line ends are \\r alone"),
        ] {
            if count > 0 {
                printer::message(&format!("note: {count} {what}"));
            }
        }
    }
    config.model.validate()?;
    Ok(dataset)
}
