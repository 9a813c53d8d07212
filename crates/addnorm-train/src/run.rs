//! One run: the training loop.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addnorm_data::{Corpus, Cursor, Windows, validation_windows};
use addnorm_nn::{
    DType, ForwardOptions, GradientError, Model, ModelError, NoObserver, Purpose, Tokens, Weight, Weights, device,
    release_idle, stream_seed,
};
use addnorm_probe::{
    Ending, LayerStatistics, Number, find_first_non_finite, first_non_finite_gradient, judge, measure,
};
use addnorm_scheme::Scheme;

use crate::config::RunConfig;
use crate::folder::{FolderError, MetricLine, RunFolder, RunMeta};
use crate::optimizer::{AdamW, clip_factor, global_norm};

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

/// Windows of inputs and targets as one batch.
fn batch_of(windows: &[(&[u32], &[u32])], context: usize) -> (Tokens, Arc<[u32]>) {
    let numbers = windows.iter().flat_map(|(inputs, _)| inputs.iter().copied()).collect();
    let targets = windows.iter().flat_map(|(_, targets)| targets.iter().copied()).collect();
    (Tokens { numbers, shape: [windows.len(), context] }, targets)
}

/// Mean loss in nats over the validation windows that are used, with how many tokens it is the mean of. No dropout,
/// no gradient, no random number.
pub fn evaluate(
    model: &Model,
    weights: &Weights,
    corpus: &Corpus,
    batch: usize,
    limit: usize,
    step: u64,
) -> (f64, u64) {
    let context = model.config().context;
    let windows = validation_windows(&corpus.validation, context, limit.div_ceil(context).max(1));
    let (mut total, mut count) = (0.0, 0u64);
    for group in windows.chunks(batch.max(1)) {
        let (tokens, targets) = batch_of(group, context);
        let options = ForwardOptions { step, ..ForwardOptions::default() };
        total += model.total_loss(weights, &tokens, targets, options);
        count += (group.len() * context) as u64;
    }
    (total / count as f64, count)
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
    let tokens = Tokens { numbers: vec![0; time].into(), shape: [1, time] };
    let targets = vec![0; time].into();
    let found = model.loss_and_gradients(&weights, &tokens, targets, 1.0, ForwardOptions::default(), &mut NoObserver);
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
    corpus: &Corpus,
    folder: Option<&Path>,
    stepped: &(dyn Fn(u64, f64) + Sync),
) -> Result<RunOutcome, RunError> {
    let mut pool = rayon::ThreadPoolBuilder::new();
    if spec.config.train.threads > 0 {
        pool = pool.num_threads(spec.config.train.threads);
    }
    let pool = pool.build().map_err(|error| RunError::Threads(error.to_string()))?;
    pool.install(|| Trainer::new(spec, corpus, folder)?.train(stepped))
}

struct Trainer<'a> {
    spec: &'a RunSpec,
    corpus: &'a Corpus,
    folder: Option<RunFolder>,
    model: Model,
    weights: Weights,
    optimizer: AdamW,
    windows: Windows<'a>,
    diagnostic: (Tokens, Arc<[u32]>),
    metrics: Vec<MetricLine>,
    layers: Vec<LayerStatistics>,
    /// Time spent in training steps.
    training: Duration,
    tokens: u64,
}

/// Why a step was not applied: where it stopped being finite, when that could be found again.
struct NotFinite(Option<addnorm_probe::Trouble>);

impl<'a> Trainer<'a> {
    fn new(spec: &'a RunSpec, corpus: &'a Corpus, folder: Option<&Path>) -> Result<Self, RunError> {
        let (config, train) = (&spec.config, &spec.config.train);
        config.validate()?;
        let device = device(&train.device)?;
        let model = Model::new(&spec.scheme, &config.model)?;
        let weights = model.initialise(train.seed, &device, DType::F32);
        let optimizer = AdamW::of_run(model.parameters(), train, &device);
        let order = stream_seed(train.seed, Purpose::DataOrder, "windows");
        let context = config.model.context;
        let windows = Windows::new(&corpus.training, context, order, Cursor::default());
        // The layers are always looked at on the same validation batch, so that looks can be compared.
        // It is no larger than what training computes at once.
        let group = validation_windows(&corpus.validation, context, train.batch.div_ceil(train.accumulate));
        let diagnostic = batch_of(&group, context);
        let folder = match folder {
            Some(path) => Some(RunFolder::create(path, config, &spec.scheme)?),
            None => None,
        };
        Ok(Self {
            spec,
            corpus,
            folder,
            model,
            weights,
            optimizer,
            windows,
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
        let (train, context) = (&self.spec.config.train, self.spec.config.model.context);
        let (inputs, targets) = self.windows.next_batch(train.batch);
        let count = inputs.len() as f64;
        let dropout =
            stream_seed(train.seed, Purpose::Dropout, "masks").wrapping_add(step.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut total = 0.0;
        let mut gradients: Option<Vec<Weight>> = None;
        let part = train.batch.div_ceil(train.accumulate) * context;
        let mut trouble = None;
        for (number, (inputs, targets)) in inputs.chunks(part).zip(targets.chunks(part)).enumerate() {
            let tokens = Tokens { numbers: inputs.into(), shape: [inputs.len() / context, context] };
            let options = ForwardOptions {
                dropout_seed: Some(dropout),
                step: step - 1,
                recompute: train.recompute.blocks(),
                first_sequence: number * part / context,
            };
            // Every part is weighted by its tokens: the sum is the whole batch's mean.
            let result = self
                .model
                .loss_and_gradients(&self.weights, &tokens, targets.into(), 1.0 / count, options, &mut NoObserver)
                .map_err(|error| RunError::Gradient { scheme: self.spec.label.clone(), error })?;
            total += result.total;
            if !result.total.is_finite() && trouble.is_none() {
                trouble = find_first_non_finite(&self.model, &self.weights, &tokens, options);
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
        let trouble = find_first_non_finite(&self.model, &self.weights, &self.diagnostic.0, options);
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
        let (loss, tokens) = evaluate(&self.model, &self.weights, self.corpus, train.batch, train.eval_tokens, step);
        self.metrics.push(MetricLine::Validation { step, loss: loss.into(), tokens });
        self.record_last()?;
        Ok(loss)
    }

    fn look_at_layers(&mut self, step: u64) -> Result<(), RunError> {
        let (tokens, targets) = &self.diagnostic;
        let recompute = self.spec.config.train.recompute.blocks();
        let layers = measure(&self.model, &self.weights, tokens, targets.clone(), step, recompute);
        // A look runs the batch as a whole; training asks for other sizes.
        release_idle();
        if let Some(folder) = &mut self.folder {
            folder.layers(&layers)?;
        }
        self.layers.extend(layers);
        Ok(())
    }

    fn finish(self, ending: Ending, initial: f64, last: f64) -> Result<RunOutcome, RunError> {
        let (spec, config) = (self.spec, &self.spec.config);
        let looks: Vec<&[LayerStatistics]> = self.layers.chunk_by(|a, b| a.step == b.step).collect();
        let (first_look, last_look) = (looks.first().copied().unwrap_or(&[]), looks.last().copied().unwrap_or(&[]));
        let unigram = self.corpus.summary.unigram_entropy;
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
            dropped_tokens: self.windows.dropped(),
            tokens_per_second: if seconds > 0.0 { self.tokens as f64 / seconds } else { 0.0 },
            corpus: self.corpus.summary.clone(),
            norm: format!("{}, epsilon {:e}", self.model.norm_kind().name(), config.model.epsilon),
            initialisers: self.model.initialisers(),
            decayed: parameters.iter().filter(|info| info.decays()).count(),
            tensors: parameters.len(),
            initial_validation_loss: initial.into(),
            validation_loss: last.into(),
            ending,
            judgement,
        };
        if let Some(folder) = &self.folder {
            folder.finish(&self.model, &self.weights, config, &spec.scheme, &meta)?;
        }
        Ok(RunOutcome { spec: spec.clone(), meta, metrics: self.metrics, layers: self.layers })
    }
}
