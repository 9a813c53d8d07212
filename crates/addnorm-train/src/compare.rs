//! Many schemes on equal terms.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use addnorm_data::{CorpusSummary, Dataset};
use addnorm_nn::InitialiserRow;
use addnorm_probe::{Ending, Number, Verdict, gradient_ratio};
use serde::{Deserialize, Serialize};

use crate::config::RunConfig;
use crate::folder::Measure;
use crate::run::{RunError, RunOutcome, RunSpec, run};

/// What is compared when nothing is said: names of schemes, and the settings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultComparison {
    /// The schemes.
    pub schemes: Vec<String>,
    /// The settings.
    pub settings: RunConfig,
}

/// The default comparison: a data file beside the schemes.
pub fn default_comparison() -> DefaultComparison {
    let text = include_str!("../../../schemes/default-comparison.toml");
    toml::from_str(text).expect("the default comparison is valid TOML; a test reads it")
}

/// Told how a comparison goes. Runs are known by their number.
pub trait Progress: Sync {
    /// A run begins.
    fn started(&self, run: usize, label: &str, steps: u64);
    /// A step is made.
    fn stepped(&self, run: usize, step: u64, loss: f64);
    /// A run has ended.
    fn finished(&self, run: usize, words: &str);
}

/// A setting that is not the same for every run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Which setting.
    pub setting: String,
    /// Its value for each scheme, in the order of the table.
    pub values: Vec<(String, String)>,
}

/// One scheme's line in the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparisonRow {
    /// What the table calls it.
    pub label: String,
    /// Its place among the schemes that were compared, in the order given, from 0.
    pub order: usize,
    /// The scheme's title.
    pub title: String,
    /// Runs that were made, one a seed.
    pub seeds: Vec<u64>,
    /// Validation loss of each, in nats, at its last step (or at its last good one).
    pub losses: Vec<Number>,
    /// Mean of the losses; infinite if a run diverged.
    pub mean_loss: Number,
    /// Sample standard deviation of the losses; none for one seed, or if a run diverged.
    pub spread: Option<Number>,
    /// Mean loss over the floor, where the floor is known.
    pub above_floor: Option<Number>,
    /// Unigram entropy less the mean loss.
    pub below_unigram: Number,
    /// Mean loss in bits per byte of text, where there is text.
    pub bits_per_byte: Option<Number>,
    /// Mean over seeds of what else the task is judged by.
    pub measures: Vec<Measure>,
    /// Stream gradient at the first block over that at the last before training, geometric mean over seeds.
    pub initial_gradient_ratio: Number,
    /// The same at the end.
    pub gradient_ratio: Number,
    /// RMS of the first stream after the last block, at the end, mean over seeds.
    pub residual_rms: Number,
    /// Mean cosine between tokens after the last block, at the end, mean over seeds.
    pub token_cosine: Number,
    /// Training tokens per second of one run, mean over seeds.
    pub tokens_per_second: f64,
    /// Trainable numbers.
    pub parameters: usize,
    /// Runs that diverged.
    pub diverged: usize,
    /// The verdict; the worst over seeds.
    pub verdict: Verdict,
    /// In words.
    pub words: String,
}

/// A comparison that has been made.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// One line a scheme, best first; those that diverged last.
    pub rows: Vec<ComparisonRow>,
    /// Settings that differ besides the scheme.
    pub differences: Vec<Difference>,
    /// What all runs share.
    pub settings: RunConfig,
    /// The data.
    pub corpus: CorpusSummary,
    /// Every run, scheme after scheme in the order given, seed after seed.
    pub outcomes: Vec<RunOutcome>,
    /// Runs that could not be made or written, with the reason. Their schemes have no row.
    pub failures: Vec<(String, String)>,
    /// Runs at one time, and threads of each.
    pub jobs: (usize, usize),
    /// Seconds that the whole took.
    pub seconds: f64,
}

/// Trains every specification with every seed, `jobs` at a time, each with an equal part of the threads.
/// All see the same data in the same order; a run that diverges leaves the others running.
///
/// # Errors
/// If no scheme has all its runs. One whose run could not be made is among the failures.
pub fn compare(
    specs: &[RunSpec],
    seeds: &[u64],
    dataset: &Dataset,
    folder: Option<&Path>,
    jobs: usize,
    progress: &dyn Progress,
) -> Result<Comparison, RunError> {
    let started = std::time::Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = specs.first().map_or(0, |spec| spec.config.train.threads);
    let threads = if wanted == 0 { cores } else { wanted };
    let total = specs.len() * seeds.len();
    let jobs = jobs.clamp(1, total.max(1)).min(threads);
    let each = (threads / jobs).max(1);
    let runs: Vec<RunSpec> = specs
        .iter()
        .flat_map(|spec| {
            seeds.iter().map(|&seed| {
                let mut spec = spec.clone();
                spec.config.train.seed = seed;
                spec.config.train.threads = each;
                if seeds.len() > 1 {
                    spec.label = format!("{}-seed{seed}", spec.label);
                }
                spec
            })
        })
        .collect();
    let results: Vec<Mutex<Option<Result<RunOutcome, RunError>>>> = runs.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(spec) = runs.get(number) else { return };
                    progress.started(number, &spec.label, spec.config.train.steps);
                    let folder = folder.map(|folder| folder.join(&spec.label));
                    let result =
                        run(spec, dataset, folder.as_deref(), &|step, loss| progress.stepped(number, step, loss));
                    match &result {
                        Ok(outcome) => progress.finished(number, &outcome.meta.judgement.words),
                        Err(error) => progress.finished(number, &error.to_string()),
                    }
                    *results[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                }
            });
        }
    });
    let results: Vec<Result<RunOutcome, RunError>> =
        results.into_iter().filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner)).collect();
    let mut made: Vec<RunSpec> = Vec::new();
    let mut outcomes = Vec::new();
    let mut failures = Vec::new();
    let mut first_error = None;
    let mut results = results.into_iter().zip(&runs);
    for spec in specs {
        let (mut own, mut failed) = (Vec::new(), false);
        for (result, run) in results.by_ref().take(seeds.len()) {
            match result {
                Ok(outcome) => own.push(outcome),
                Err(error) => {
                    failures.push((run.label.clone(), error.to_string()));
                    first_error.get_or_insert(error);
                    failed = true;
                }
            }
        }
        if !failed {
            made.push(spec.clone());
            outcomes.extend(own);
        }
    }
    if let (true, Some(error)) = (made.is_empty(), first_error) {
        return Err(error);
    }
    let specs = made.as_slice();
    let mut rows: Vec<ComparisonRow> = specs
        .iter()
        .zip(outcomes.chunks(seeds.len().max(1)))
        .enumerate()
        .map(|(order, (spec, outcomes))| row(spec, order, outcomes, dataset.summary()))
        .collect();
    let differences = differences(specs, &outcomes, seeds.len());
    // A NaN mean, should one arise, ranks with the diverged.
    let key = |row: &ComparisonRow| if row.mean_loss.0.is_nan() { f64::INFINITY } else { row.mean_loss.0 };
    rows.sort_by(|a, b| key(a).total_cmp(&key(b)));
    let mut settings = specs.first().map(|spec| spec.config.clone()).unwrap_or_default();
    settings.scheme = String::new();
    Ok(Comparison {
        rows,
        differences,
        settings,
        corpus: dataset.summary().clone(),
        outcomes,
        failures,
        jobs: (jobs, each),
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

fn row(spec: &RunSpec, order: usize, outcomes: &[RunOutcome], corpus: &CorpusSummary) -> ComparisonRow {
    let losses: Vec<f64> = outcomes.iter().map(|outcome| outcome.meta.validation_loss.0).collect();
    let has_diverged = |outcome: &&RunOutcome| matches!(outcome.meta.ending, Ending::Diverged { .. });
    let diverged = outcomes.iter().filter(has_diverged).count();
    let mean_loss = if diverged > 0 { f64::INFINITY } else { mean(losses.iter().copied()) };
    let spread = (losses.len() > 1 && diverged == 0).then(|| {
        let centre = mean(losses.iter().copied());
        let squares: f64 = losses.iter().map(|loss| (loss - centre) * (loss - centre)).sum();
        Number((squares / (losses.len() - 1) as f64).sqrt())
    });
    let first = |outcome: &RunOutcome| gradient_ratio(outcome.layers_by_step().first().copied().unwrap_or(&[]));
    let geometric = |ratio: &dyn Fn(&RunOutcome) -> f64| mean(outcomes.iter().map(|outcome| ratio(outcome).ln())).exp();
    let last = |outcome: &RunOutcome, pick: fn(&addnorm_probe::LayerStatistics) -> f64| {
        outcome.last_layers().last().map_or(f64::NAN, pick)
    };
    let rank = |outcome: &&RunOutcome| match outcome.meta.judgement.verdict {
        Verdict::Trains => 0,
        Verdict::StaysAtUnigram => 1,
        Verdict::AboveUnigram => 2,
        Verdict::Diverged => 3,
    };
    // Of equal verdicts the first seed's words.
    let worst = outcomes.iter().rev().max_by_key(rank);
    let (verdict, mut words) = worst.map_or((Verdict::Diverged, String::new()), |run| {
        (run.meta.judgement.verdict, run.meta.judgement.words.clone())
    });
    let alike = outcomes.iter().filter(|outcome| outcome.meta.judgement.verdict == verdict).count();
    if alike < outcomes.len() {
        words = format!("{words} ({alike} of {} seeds)", outcomes.len());
    }
    ComparisonRow {
        label: spec.label.clone(),
        order,
        title: spec.scheme.title.clone(),
        seeds: outcomes.iter().map(|outcome| outcome.meta.seed).collect(),
        mean_loss: mean_loss.into(),
        spread,
        above_floor: corpus.floor.map(|floor| (mean_loss - floor).into()),
        below_unigram: (corpus.unigram_entropy - mean_loss).into(),
        bits_per_byte: corpus.bytes_per_token.map(|bytes| (mean_loss / std::f64::consts::LN_2 / bytes).into()),
        measures: outcomes[0]
            .meta
            .measures
            .iter()
            .map(|measure| {
                let of = |outcome: &RunOutcome| {
                    let found = outcome.meta.measures.iter().find(|other| other.name == measure.name);
                    found.map_or(f64::NAN, |found| found.value.0)
                };
                Measure { name: measure.name.clone(), value: mean(outcomes.iter().map(of)).into() }
            })
            .collect(),
        initial_gradient_ratio: geometric(&first).into(),
        gradient_ratio: geometric(&|outcome| gradient_ratio(outcome.last_layers())).into(),
        residual_rms: mean(outcomes.iter().map(|outcome| last(outcome, |layer| layer.streams[0].rms.0))).into(),
        token_cosine: mean(outcomes.iter().map(|outcome| last(outcome, |layer| layer.token_cosine.0))).into(),
        tokens_per_second: mean(outcomes.iter().map(|outcome| outcome.meta.tokens_per_second)),
        parameters: outcomes.first().map_or(0, |outcome| outcome.meta.parameters),
        losses: losses.into_iter().map(Number).collect(),
        diverged,
        verdict,
        words,
    }
}

/// Settings that differ from scheme to scheme: any that the runs were given differently, and those that a
/// scheme brings with itself.
fn differences(specs: &[RunSpec], outcomes: &[RunOutcome], seeds: usize) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut add = |setting: &str, values: Vec<(String, String)>| {
        if values.iter().any(|(_, value)| *value != values[0].1) {
            differences.push(Difference { setting: setting.to_string(), values });
        }
    };
    let labelled = |value: &dyn Fn(&RunSpec, &RunOutcome) -> String| -> Vec<(String, String)> {
        specs
            .iter()
            .zip(outcomes.chunks(seeds.max(1)))
            .map(|(spec, outcomes)| (spec.label.clone(), value(spec, &outcomes[0])))
            .collect()
    };
    if specs.is_empty() || outcomes.len() < specs.len() {
        return differences;
    }
    let flat = |config: &RunConfig| -> Vec<(String, String)> {
        let table: toml::Table = config.to_toml().parse().unwrap_or_default();
        let mut flat = Vec::new();
        for (section, value) in &table {
            if let toml::Value::Table(values) = value {
                flat.extend(values.iter().map(|(key, value)| (format!("{section}.{key}"), value.to_string())));
            }
        }
        flat
    };
    for (at, (key, _)) in flat(&specs[0].config).iter().enumerate() {
        add(key, labelled(&|spec, _| flat(&spec.config).get(at).map(|(_, value)| value.clone()).unwrap_or_default()));
    }
    add("norm", labelled(&|_, outcome| outcome.meta.norm.clone()));
    add("parameters", labelled(&|_, outcome| outcome.meta.parameters.to_string()));
    let mut kinds: Vec<&String> = Vec::new();
    for kind in outcomes.iter().flat_map(|outcome| &outcome.meta.initialisers).flat_map(|row| &row.matrices) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    for kind in kinds {
        let words = |outcome: &RunOutcome| {
            let row = outcome.meta.initialisers.iter().find(|row| row.matrices.contains(kind));
            row.map_or_else(|| "none".to_string(), InitialiserRow::words)
        };
        add(&format!("initial {kind}"), labelled(&|_, outcome| words(outcome)));
    }
    differences
}
