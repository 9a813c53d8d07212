//! One run: the training loop.

use std::path::Path;
use std::time::{Duration, Instant};

use addnorm_data::{Cursor, Dataset, Feed};
use addnorm_nn::{
    DType, ForwardOptions, GradientError, Inputs, Model, ModelError, NoObserver, Purpose, StackKind, Tokens, Weight,
    Weights, device, likeliest, release_idle, statistics, stream_seed,
};
use addnorm_probe::{
    Ending, LayerStatistics, Number, find_first_non_finite, first_non_finite_gradient, judge, measure,
};
use addnorm_scheme::Scheme;

use crate::batch::Batch;
use crate::config::RunConfig;
use crate::decode::{Search, sample, translation_score};
use crate::folder::{FolderError, Measure, MetricLine, RunFolder, RunMeta};
use crate::optimizer::{AdamW, clip_factor, global_norm};

/// Validation pairs that a finished run translates for its score.
const TRANSLATED: usize = 64;

/// The version of Burn that the workspace pins.
const BURN_VERSION: &str = "0.22.1";

/// What to train.
#[derive(Debug, Clone)]
pub struct RunSpec {
    /// What reports and folders call it.
    pub label: String,
    /// The scheme.
    pub scheme: Scheme,
    /// Everything else.
    pub config: RunConfig,
}

/// A run that could not be made. A run that diverges is no error: it ends, and its ending says so.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The model cannot be made.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] addnorm_nn::ConfigError),
    /// The device is not there.
    #[error(transparent)]
    Device(#[from] addnorm_nn::DeviceError),
    /// The run folder cannot be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The weights to start from cannot be read, or are of another model.
    #[error(transparent)]
    Start(addnorm_nn::WeightsError),
    /// A parameter would never learn.
    #[error("{scheme}: {error}")]
    Gradient {
        /// The scheme.
        scheme: String,
        /// Which parameter.
        error: GradientError,
    },
    /// Threads cannot be started.
    #[error("the threads of a run cannot be started: {0}")]
    Threads(String),
}

/// A run that has ended.
#[derive(Debug, Clone)]
pub struct RunOutcome {
    /// What was trained.
    pub spec: RunSpec,
    /// What is known of it.
    pub meta: RunMeta,
    /// Every metric.
    pub metrics: Vec<MetricLine>,
    /// Every look at the layers, block 0 (the embedding) first in each.
    pub layers: Vec<LayerStatistics>,
}

impl RunOutcome {
    /// The looks at the layers, one slice a step.
    pub fn layers_by_step(&self) -> Vec<&[LayerStatistics]> {
        self.layers.chunk_by(|a, b| a.step == b.step).collect()
    }

    /// The last look at the layers.
    pub fn last_layers(&self) -> &[LayerStatistics] {
        self.layers_by_step().last().copied().unwrap_or(&[])
    }
}

/// What a validation finds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean loss in nats.
    pub loss: f64,
    /// Targets that it is the mean of.
    pub targets: u64,
    /// The share of them that is the model's first choice; asked for images only, where it costs little.
    pub accuracy: Option<f64>,
}

/// Validates on the examples that are used, with about `limit` targets, `batch` sequences at a time. No dropout,
/// no gradient, no random number.
pub fn evaluate(
    model: &Model,
    weights: &Weights,
    dataset: &Dataset,
    batch: usize,
    limit: usize,
    step: u64,
) -> Evaluation {
    let config = model.config();
    let options = ForwardOptions { step, ..ForwardOptions::default() };
    let (mut total, mut count, mut right) = (0.0, 0u64, 0u64);
    for examples in dataset.validation(config.context, config.patch, limit, batch) {
        let batch = Batch::from(examples);
        count += batch.counted() as u64;
        if config.stack == StackKind::Vision {
            let logits = model.logits(weights, &batch.inputs, options, &mut NoObserver);
            let values = statistics::to_f64(&logits);
            for (logits, &target) in values.chunks(config.answers()).zip(batch.targets.iter()) {
                // No number is no answer.
                let answers = logits.iter().all(|logit| !logit.is_nan());
                right += u64::from(answers && likeliest(logits) == target as usize);
            }
        }
        total += model.total_loss(weights, &batch.inputs, batch.targets, options);
    }
    let accuracy = (config.stack == StackKind::Vision).then(|| right as f64 / count as f64);
    Evaluation { loss: total / count as f64, targets: count, accuracy }
}

/// Runs one short sequence forward and backward and asks whether a gradient reaches every parameter, before
/// anything is spent on training.
///
/// # Errors
/// If the model cannot be made, or names the first parameter that would never learn.
pub fn check_gradients(spec: &RunSpec) -> Result<(), RunError> {
    let config = &spec.config;
    let model = Model::new(&spec.scheme, &config.model)?;
    let device = device(&config.train.device)?;
    let weights = model.initialise(config.train.seed, &device, DType::F32);
    let time = config.model.context.min(2);
    let tokens = || Tokens { numbers: vec![0; time].into(), shape: [1, time] };
    let (inputs, targets) = match config.model.stack {
        StackKind::Decoder | StackKind::Encoder => (Inputs::Text(tokens()), time),
        StackKind::Pair => {
            let visible = vec![true; time].into();
            (Inputs::Pair { source: tokens(), visible, target: tokens() }, time)
        }
        StackKind::Vision => {
            let shape = [1, config.model.patches(), config.model.patch_width()];
            let values = (0..shape[1] * shape[2]).map(|at| (at % 7) as f32 - 3.0).collect();
            (Inputs::Patches { values, shape }, 1)
        }
    };
    let targets = vec![0; targets].into();
    let found = model.loss_and_gradients(&weights, inputs, targets, 1.0, ForwardOptions::default(), &mut NoObserver);
    let checked = found.map(drop).map_err(|error| RunError::Gradient { scheme: spec.label.clone(), error });
    // The run has threads of its own, which would not find what this one freed.
    release_idle();
    checked
}

/// Trains. With a folder, everything is written there as it happens. `stepped` is told each step's number
/// and loss.
///
/// # Errors
/// If the run cannot be made or written.
pub fn run(
    spec: &RunSpec,
    dataset: &Dataset,
    folder: Option<&Path>,
    stepped: &(dyn Fn(u64, f64) + Sync),
) -> Result<RunOutcome, RunError> {
    let mut pool = rayon::ThreadPoolBuilder::new();
    if spec.config.train.threads > 0 {
        pool = pool.num_threads(spec.config.train.threads);
    }
    let pool = pool.build().map_err(|error| RunError::Threads(error.to_string()))?;
    pool.install(|| Trainer::new(spec, dataset, folder)?.train(stepped))
}

struct Trainer<'a> {
    spec: &'a RunSpec,
    dataset: &'a Dataset,
    folder: Option<RunFolder>,
    model: Model,
    weights: Weights,
    optimizer: AdamW,
    feed: Feed<'a>,
    diagnostic: Batch,
    metrics: Vec<MetricLine>,
    layers: Vec<LayerStatistics>,
    /// Time spent in training steps.
    training: Duration,
    tokens: u64,
}

/// Why a step was not applied: where it stopped being finite, when that could be found again.
struct NotFinite(Option<addnorm_probe::Trouble>);

impl<'a> Trainer<'a> {
    fn new(spec: &'a RunSpec, dataset: &'a Dataset, folder: Option<&Path>) -> Result<Self, RunError> {
        let (config, train) = (&spec.config, &spec.config.train);
        config.validate()?;
        let device = device(&train.device)?;
        let model = Model::new(&spec.scheme, &config.model)?;
        let mut weights = model.initialise(train.seed, &device, DType::F32);
        let order = stream_seed(train.seed, Purpose::DataOrder, "windows");
        let (context, patch) = (config.model.context, config.model.patch);
        if let Some(from) = &train.from {
            let path = from.join("model.safetensors");
            weights = Weights::load(model.parameters(), &path, &device).map_err(RunError::Start)?;
        } else if model.is_measured() {
            // On the first examples that training will see.
            let first = Feed::new(dataset, context, patch, order, Cursor::default()).next_batch(train.batch);
            model.calibrate(&mut weights, Batch::from(first).inputs);
        }
        let optimizer = AdamW::of_run(model.parameters(), train, &device);
        let feed = Feed::new(dataset, context, patch, order, Cursor::default());
        // The layers are always looked at on the same validation batch, so that looks can be compared.
        // It is no larger than what training computes at once.
        let size = train.batch.div_ceil(train.accumulate);
        let targets = match config.model.stack {
            StackKind::Vision => size,
            _ => size * context,
        };
        let diagnostic = dataset.validation(context, patch, targets, size).swap_remove(0).into();
        let folder = match folder {
            Some(path) => Some(RunFolder::create(path, config, &spec.scheme)?),
            None => None,
        };
        Ok(Self {
            spec,
            dataset,
            folder,
            model,
            weights,
            optimizer,
            feed,
            diagnostic,
            metrics: Vec::new(),
            layers: Vec::new(),
            training: Duration::ZERO,
            tokens: 0,
        })
    }

    fn train(mut self, stepped: &(dyn Fn(u64, f64) + Sync)) -> Result<RunOutcome, RunError> {
        let train = &self.spec.config.train;
        let tenth = (train.steps / 10).max(1);
        let every = |wanted: u64| if wanted == 0 { tenth } else { wanted };
        let (eval_every, probe_every) = (every(train.eval_every), every(train.probe_every));
        let schedule = self.spec.config.schedule();
        let mut ending = Ending::Finished;
        self.look_at_layers(0)?;
        let initial = self.validate(0)?;
        let (mut last, mut validated) = (initial, 0);
        if !initial.is_finite() {
            ending = self.broken_by(0);
            return self.finish(ending, initial, last);
        }
        for step in 1..=train.steps {
            let started = Instant::now();
            let result = self.step(step, schedule.rate(step))?;
            self.training += started.elapsed();
            if let Some(MetricLine::Train { seconds, .. }) = self.metrics.last_mut() {
                *seconds = self.training.as_secs_f64();
            }
            self.record_last()?;
            let loss = match result {
                Ok(loss) => loss,
                Err(NotFinite(trouble)) => {
                    ending = Ending::Diverged { step, trouble };
                    break;
                }
            };
            stepped(step, loss);
            if step % probe_every == 0 || step == train.steps {
                self.look_at_layers(step)?;
            }
            if step % eval_every == 0 || step == train.steps {
                (last, validated) = (self.validate(step)?, step);
                if !last.is_finite() {
                    // The step's own loss was finite; its update broke the weights.
                    ending = self.broken_by(step);
                    break;
                }
            }
        }
        if let (Ending::Diverged { step, .. }, true) = (&ending, last.is_finite()) {
            // The weights are those before the refused step; what they are worth is still a finding.
            let made = step - 1;
            if self.layers.last().is_none_or(|layer| layer.step != made) {
                self.look_at_layers(made)?;
            }
            if validated != made {
                last = self.validate(made)?;
            }
        }
        self.finish(ending, initial, last)
    }

    /// One update, or the finding that it cannot be made. Weights and moments stay as they were then.
    fn step(&mut self, step: u64, learning_rate: f64) -> Result<Result<f64, NotFinite>, RunError> {
        let train = &self.spec.config.train;
        let batch = Batch::from(self.feed.next_batch(train.batch));
        let count = batch.counted() as f64;
        let dropout =
            stream_seed(train.seed, Purpose::Dropout, "masks").wrapping_add(step.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut total = 0.0;
        let mut gradients: Option<Vec<Weight>> = None;
        let mut trouble = None;
        for (part, first_sequence) in batch.parts(train.accumulate) {
            let options = ForwardOptions {
                dropout_seed: Some(dropout),
                step: step - 1,
                recompute: train.recompute.blocks(),
                first_sequence,
            };
            // Every part is weighted by its targets: the sum is the whole batch's mean.
            let result = self
                .model
                .loss_and_gradients(&self.weights, &part.inputs, part.targets, 1.0 / count, options, &mut NoObserver)
                .map_err(|error| RunError::Gradient { scheme: self.spec.label.clone(), error })?;
            total += result.total;
            if !result.total.is_finite() && trouble.is_none() {
                trouble = find_first_non_finite(&self.model, &self.weights, &part.inputs, options);
            }
            gradients = Some(match gradients {
                None => result.gradients,
                Some(sum) => sum.into_iter().zip(result.gradients).map(|(sum, part)| sum.plus(part)).collect(),
            });
        }
        let gradients = gradients.unwrap_or_default();
        let loss = total / count;
        let norm = global_norm(&gradients);
        let clip_factor = clip_factor(norm, train.clip);
        self.metrics.push(MetricLine::Train {
            step,
            loss: loss.into(),
            gradient_norm: norm.into(),
            clip_factor: clip_factor.into(),
            learning_rate,
            tokens: self.tokens + count as u64,
            // Set when the step has ended.
            seconds: 0.0,
        });
        if !loss.is_finite() || !norm.is_finite() {
            if loss.is_finite() {
                trouble = first_non_finite_gradient(&self.model, &gradients);
            }
            return Ok(Err(NotFinite(trouble)));
        }
        self.tokens += count as u64;
        self.optimizer.step(&mut self.weights, gradients, learning_rate, clip_factor);
        Ok(Ok(loss))
    }

    /// The ending of a run whose weights give no finite validation loss after `step` updates.
    fn broken_by(&self, step: u64) -> Ending {
        let options = ForwardOptions { step, ..ForwardOptions::default() };
        let trouble = find_first_non_finite(&self.model, &self.weights, &self.diagnostic.inputs, options);
        Ending::Diverged { step: step.max(1), trouble }
    }

    fn record_last(&mut self) -> Result<(), RunError> {
        if let (Some(folder), Some(line)) = (&mut self.folder, self.metrics.last()) {
            folder.metric(line)?;
        }
        Ok(())
    }

    fn validate(&mut self, step: u64) -> Result<f64, RunError> {
        let train = &self.spec.config.train;
        let found = evaluate(&self.model, &self.weights, self.dataset, train.batch, train.eval_tokens, step);
        let (loss, accuracy) = (found.loss.into(), found.accuracy.map(Number));
        self.metrics.push(MetricLine::Validation { step, loss, tokens: found.targets, accuracy });
        self.record_last()?;
        Ok(found.loss)
    }

    /// Significance moves as training goes: sparse norms are chosen anew at every look, from training examples.
    fn choose_norms(&mut self, step: u64) {
        let share = self.spec.config.model.sparse_norm;
        if share > 0.0 {
            let (train, model) = (&self.spec.config.train, &self.spec.config.model);
            let order = stream_seed(train.seed, Purpose::DataOrder, "norms");
            let mut feed = Feed::new(self.dataset, model.context, model.patch, order, Cursor::default());
            let examples = Batch::from(feed.next_batch(train.batch));
            self.model = self.model.with_sparse_norms(&self.weights, examples.inputs, share, step);
        }
    }

    fn look_at_layers(&mut self, step: u64) -> Result<(), RunError> {
        self.choose_norms(step);
        let Batch { inputs, targets } = &self.diagnostic;
        let recompute = self.spec.config.train.recompute.blocks();
        let layers = measure(&self.model, &self.weights, inputs, targets.clone(), step, recompute);
        // A look runs the batch as a whole; training asks for other sizes.
        release_idle();
        if let Some(folder) = &mut self.folder {
            folder.layers(&layers)?;
        }
        self.layers.extend(layers);
        Ok(())
    }

    /// What the task is judged by besides its loss, on the final weights.
    fn measures(&self, ending: &Ending) -> Vec<Measure> {
        let last = self.metrics.iter().rev().find_map(|line| match line {
            MetricLine::Validation { accuracy, .. } => *accuracy,
            MetricLine::Train { .. } => None,
        });
        let mut measures: Vec<Measure> =
            last.into_iter().map(|accuracy| Measure { name: "accuracy".into(), value: accuracy }).collect();
        if let (Dataset::SecondText(pairs), Ending::Finished) = (self.dataset, ending) {
            let search = Search { beam: 1, length_penalty: 0.0, step: self.spec.config.train.steps };
            let sample = sample(pairs, TRANSLATED);
            let (score, _) = translation_score(&self.model, &self.weights, &pairs.vocabulary, &sample, search);
            measures.push(Measure { name: "BLEU".into(), value: score.score.into() });
        }
        measures
    }

    fn finish(self, ending: Ending, initial: f64, last: f64) -> Result<RunOutcome, RunError> {
        let (spec, config) = (self.spec, &self.spec.config);
        let looks: Vec<&[LayerStatistics]> = self.layers.chunk_by(|a, b| a.step == b.step).collect();
        let (first_look, last_look) = (looks.first().copied().unwrap_or(&[]), looks.last().copied().unwrap_or(&[]));
        let unigram = self.dataset.summary().unigram_entropy;
        let validation: Vec<(u64, Number)> = self
            .metrics
            .iter()
            .filter_map(|line| match line {
                MetricLine::Validation { step, loss, .. } => Some((*step, *loss)),
                MetricLine::Train { .. } => None,
            })
            .collect();
        let judgement = judge(&ending, &validation, unigram, first_look, last_look);
        let parameters = self.model.parameters();
        let seconds = self.training.as_secs_f64();
        let measures = self.measures(&ending);
        let meta = RunMeta {
            scheme: spec.scheme.name.clone(),
            title: spec.scheme.title.clone(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            burn: BURN_VERSION.to_string(),
            seed: config.train.seed,
            device: config.train.device.clone(),
            threads: rayon::current_num_threads(),
            parameters: self.model.parameter_count(),
            tokens: self.tokens,
            dropped_tokens: self.feed.dropped(),
            tokens_per_second: if seconds > 0.0 { self.tokens as f64 / seconds } else { 0.0 },
            corpus: self.dataset.summary().clone(),
            norm: format!("{}, epsilon {:e}", self.model.norm_kind().name(), config.model.epsilon),
            initialisers: self.model.initialisers(),
            decayed: parameters.iter().filter(|info| info.decays()).count(),
            tensors: parameters.len(),
            initial_validation_loss: initial.into(),
            validation_loss: last.into(),
            measures,
            ending,
            judgement,
        };
        if let Some(folder) = &self.folder {
            folder.finish(&self.model, &self.weights, config, &spec.scheme, &meta)?;
        }
        Ok(RunOutcome { spec: spec.clone(), meta, metrics: self.metrics, layers: self.layers })
    }
}
