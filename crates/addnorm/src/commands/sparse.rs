//! `addnorm sparse`

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Instant;

use addnorm_data::{Cursor, Dataset, Feed};
use addnorm_nn::{
    ForwardOptions, IGNORED, Inputs, Model, ModelConfig, NoObserver, Positions, Purpose, StackKind, Tokens, Weights,
    device, likeliest, log_total, release_idle, statistics, stream_seed, take_norm_work, take_softmax_work,
};
use addnorm_train::{Batch, load_run, task_of};
use serde::Serialize;

use crate::args::SparseArguments;
use crate::failure::Failure;
use crate::printer;

/// Validation targets that each setting is run on, about.
const TARGETS: usize = 4096;

/// One setting with what it saves and what it costs.
#[derive(Debug, Serialize)]
struct Row {
    softmax: f64,
    norm: f64,
    /// How many times fewer: exponentials, products of scores, products with values, operations of norms.
    exponentials: f64,
    scores: f64,
    values: f64,
    norms: f64,
    /// RMS of the change of the logits over their own RMS about their mean.
    logit_error: f64,
    /// The share of targets whose first choice stays the same.
    agreement: f64,
    loss: f64,
    seconds: f64,
}

/// A pass over a long text.
#[derive(Debug, Serialize)]
struct Long {
    softmax: f64,
    tokens: usize,
    loss: f64,
    exponentials: f64,
    seconds: f64,
    /// Most memory of the process so far, in bytes.
    peak_bytes: Option<u64>,
}

fn ratio(dense: u64, sparse: u64) -> f64 {
    if sparse == 0 { 1.0 } else { dense as f64 / sparse as f64 }
}

/// Most resident memory of this process so far.
fn peak() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

pub fn sparse(arguments: &SparseArguments) -> Result<ExitCode, Failure> {
    for &share in arguments.softmax.iter().chain(&arguments.norm) {
        if !(0.0..1.0).contains(&share) {
            return Err(Failure::input(format!("an error is in [0, 1), not {share}")));
        }
    }
    let device = device("flex").map_err(Failure::input)?;
    let run = load_run(&arguments.run, &device)
        .map_err(|error| Failure::input(error).hint("a finished run of 'addnorm train' or 'compare' is wanted"))?;
    let config = &run.config;
    let with = |softmax: f64| -> Result<Model, Failure> {
        let config = ModelConfig { sparse_softmax: softmax, sparse_norm: 0.0, ..config.model.clone() };
        Model::new(&run.scheme, &config).map_err(Failure::input)
    };
    let dataset =
        Dataset::load(task_of(config.model.stack), &config.data, config.model.context, config.train.eval_tokens)?;
    let (context, patch) = (config.model.context, config.model.patch);
    let batches: Vec<Batch> =
        dataset.validation(context, patch, TARGETS, config.train.batch).into_iter().map(Batch::from).collect();
    // Significance is measured on training examples; what it does is measured on others.
    let order = stream_seed(config.train.seed, Purpose::DataOrder, "norms");
    let examples =
        Batch::from(Feed::new(&dataset, context, patch, order, Cursor::default()).next_batch(config.train.batch));
    let step = config.train.steps;
    let dense = with(0.0)?;
    let reference: Vec<Vec<f64>> =
        batches.iter().map(|batch| logits(&dense, &run.weights, &batch.inputs, step)).collect();
    let mut rows = Vec::new();
    let settings = arguments.softmax.iter().map(|&softmax| (softmax, 0.0));
    let settings = settings.chain(arguments.norm.iter().filter(|share| **share > 0.0).map(|&norm| (0.0, norm)));
    let most = (last(&arguments.softmax), last(&arguments.norm));
    let both = (most.0 > 0.0 && most.1 > 0.0).then_some(most);
    for (softmax, norm) in settings.chain(both) {
        let model = with(softmax)?.with_sparse_norms(&run.weights, &examples.inputs, norm, step);
        take_softmax_work();
        take_norm_work();
        let started = Instant::now();
        let found: Vec<Vec<f64>> =
            batches.iter().map(|batch| logits(&model, &run.weights, &batch.inputs, step)).collect();
        let seconds = started.elapsed().as_secs_f64();
        let (work, norms) = (take_softmax_work(), take_norm_work());
        let (logit_error, agreement, loss) = against(&reference, &found, &batches, config.model.answers());
        rows.push(Row {
            softmax,
            norm,
            exponentials: ratio(work.dense_exponentials, work.exponentials),
            scores: ratio(work.dense_score_products, work.score_products),
            values: ratio(work.dense_value_products, work.value_products),
            norms: ratio(norms.dense_operations, norms.operations),
            logit_error,
            agreement,
            loss,
            seconds,
        });
    }
    let long = match arguments.long {
        Some(tokens) => long_passes(arguments, (tokens, step), &dataset, &run.weights, &with, config.model.clone())?,
        None => Vec::new(),
    };
    if arguments.json {
        let report = serde_json::json!({ "settings": rows, "long": long });
        printer::result(&serde_json::to_string_pretty(&report).map_err(Failure::run)?);
        return Ok(ExitCode::SUCCESS);
    }
    printer::result(&in_words(&rows, &long));
    Ok(ExitCode::SUCCESS)
}

fn last(shares: &[f64]) -> f64 {
    shares.iter().copied().fold(0.0, f64::max)
}

fn logits(model: &Model, weights: &Weights, inputs: &Inputs, step: u64) -> Vec<f64> {
    let options = ForwardOptions { step, ..ForwardOptions::default() };
    statistics::to_f64(&model.logits(weights, inputs, options, &mut NoObserver))
}

/// Relative error of the logits, share of equal first choices, and mean loss.
fn against(reference: &[Vec<f64>], found: &[Vec<f64>], batches: &[Batch], answers: usize) -> (f64, f64, f64) {
    let (mut wrong, mut size, mut equal, mut loss, mut count) = (0.0, 0.0, 0usize, 0.0, 0usize);
    for ((reference, found), batch) in reference.iter().zip(found).zip(batches) {
        let rows = reference.chunks_exact(answers).zip(found.chunks_exact(answers)).zip(batch.targets.iter());
        for ((reference, found), &target) in rows {
            if target == IGNORED {
                continue;
            }
            let mean = reference.iter().sum::<f64>() / answers as f64;
            wrong += reference.iter().zip(found).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
            size += reference.iter().map(|a| (a - mean).powi(2)).sum::<f64>();
            let answers = found.iter().all(|logit| !logit.is_nan());
            equal += usize::from(answers && likeliest(reference) == likeliest(found));
            loss += log_total(found) - found[target as usize];
            count += 1;
        }
    }
    ((wrong / size).sqrt(), equal as f64 / count as f64, loss / count as f64)
}

/// One long sequence through the model, dense and with each setting of the softmax.
fn long_passes(
    arguments: &SparseArguments,
    (tokens, step): (usize, u64),
    dataset: &Dataset,
    weights: &Weights,
    with: &dyn Fn(f64) -> Result<Model, Failure>,
    config: ModelConfig,
) -> Result<Vec<Long>, Failure> {
    if !(1..=1 << 20).contains(&tokens) {
        return Err(Failure::input(format!("a long pass has 1 to {} tokens, not {tokens}", 1 << 20)));
    }
    if config.stack != StackKind::Decoder {
        return Err(Failure::input("a long pass is for a decoder"));
    }
    if config.positions == Positions::Learned && tokens > config.context {
        let message = format!("the model has learned positions for {} tokens, not {tokens}", config.context);
        return Err(Failure::input(message).hint("train one with '--positions rope' for a long pass"));
    }
    let Dataset::NextToken(corpus) = dataset else { return Err(Failure::input("a long pass needs a text")) };
    let text: Vec<u32> = corpus.validation.iter().chain(&corpus.training).copied().cycle().take(tokens + 1).collect();
    let inputs = Tokens { numbers: text[..tokens].into(), shape: [1, tokens] };
    let mut passes = Vec::new();
    for &softmax in &arguments.softmax {
        let model = with(softmax)?;
        release_idle();
        take_softmax_work();
        let started = Instant::now();
        let total =
            model.total_loss(weights, &inputs, text[1..].into(), ForwardOptions { step, ..ForwardOptions::default() });
        let work = take_softmax_work();
        passes.push(Long {
            softmax,
            tokens,
            loss: total / tokens as f64,
            exponentials: ratio(work.dense_exponentials, work.exponentials),
            seconds: started.elapsed().as_secs_f64(),
            peak_bytes: peak(),
        });
    }
    Ok(passes)
}

fn in_words(rows: &[Row], long: &[Long]) -> String {
    let times = |value: f64| format!("{value:.2}");
    let cells = rows.iter().map(|row| {
        vec![
            format!("{}", row.softmax),
            format!("{}", row.norm),
            times(row.exponentials),
            times(row.scores),
            times(row.values),
            times(row.norms),
            format!("{:.2e}", row.logit_error),
            format!("{:.2} %", 100.0 * row.agreement),
            format!("{:.4}", row.loss),
            format!("{:.2}", row.seconds),
        ]
    });
    let header = [
        "softmax error",
        "norm error",
        "exponentials",
        "scores",
        "values",
        "norm work",
        "logit error",
        "same choice",
        "loss",
        "seconds",
    ];
    let mut text = addnorm_report::plain_table(&header, cells.collect());
    text.push_str(
        "\nexponentials, scores, values, norm work: how many times fewer than the dense operators, counted; logit error: \
         RMS of the change over the RMS of the logits about their mean\n",
    );
    for pass in long {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{} tokens at once, softmax error {}: loss {:.4}, {:.2} times fewer exponentials, {:.1} s, peak memory {}",
            pass.tokens,
            pass.softmax,
            pass.loss,
            pass.exponentials,
            pass.seconds,
            pass.peak_bytes.map_or_else(|| "unknown".into(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6)),
        );
    }
    text.trim_end().to_string()
}
