//! The folder of a run: what it did can be read from here alone.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use addnorm_data::{CorpusSummary, Dataset, Vocabulary};
use addnorm_nn::{Device, InitialiserRow, Model, Weights};
use addnorm_probe::{Ending, Judgement, LayerStatistics, Number};
use addnorm_scheme::Scheme;
use serde::{Deserialize, Serialize};

use crate::batch::task_of;
use crate::config::RunConfig;

/// A folder that cannot be written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct FolderError {
    /// The path.
    pub path: String,
    /// What is wrong.
    pub reason: String,
}

impl FolderError {
    fn new(path: &Path, reason: impl ToString) -> Self {
        FolderError { path: path.display().to_string(), reason: reason.to_string() }
    }
}

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MetricLine {
    /// A training step.
    Train {
        /// From 1.
        step: u64,
        /// Mean loss of the step's tokens in nats, before its update.
        loss: Number,
        /// Global gradient norm before clipping.
        gradient_norm: Number,
        /// What the gradients were multiplied by.
        clip_factor: Number,
        /// The learning rate that was used.
        learning_rate: f64,
        /// Training tokens seen, this step's included.
        tokens: u64,
        /// Seconds since the start, validation and probing left out.
        seconds: f64,
    },
    /// A validation.
    Validation {
        /// Updates made before it.
        step: u64,
        /// Mean loss in nats.
        loss: Number,
        /// Targets that it is the mean of.
        tokens: u64,
        /// The share of them that is the model's first choice, where that was asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        accuracy: Option<Number>,
    },
}

/// What a task is judged by besides its loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// What it is called.
    pub name: String,
    /// Its value: a share for accuracy, 0 to 100 for BLEU (greedy, a sample of the validation pairs).
    pub value: Number,
}

/// What is known of a run when it has ended: `meta.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunMeta {
    /// The scheme's name.
    pub scheme: String,
    /// The scheme's title.
    pub title: String,
    /// Version of addnorm.
    pub version: String,
    /// Version of Burn.
    pub burn: String,
    /// The base seed.
    pub seed: u64,
    /// The device.
    pub device: String,
    /// Threads.
    pub threads: usize,
    /// Trainable numbers.
    pub parameters: usize,
    /// Training tokens seen.
    pub tokens: u64,
    /// Tokens at the end of the training part that fill no window, in each epoch.
    pub dropped_tokens: usize,
    /// Training tokens per second, validation and probing left out.
    pub tokens_per_second: f64,
    /// The data.
    pub corpus: CorpusSummary,
    /// Norm kind and epsilon in use.
    pub norm: String,
    /// What the matrices started from.
    pub initialisers: Vec<InitialiserRow>,
    /// Parameters (tensors) that weight decay applies to.
    pub decayed: usize,
    /// Parameters (tensors) in all.
    pub tensors: usize,
    /// Validation loss before the first step.
    pub initial_validation_loss: Number,
    /// Validation loss at the end.
    pub validation_loss: Number,
    /// What else the task is judged by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measures: Vec<Measure>,
    /// How it ended.
    pub ending: Ending,
    /// In words.
    pub judgement: Judgement,
}

/// Writes a run folder as the run goes.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    metrics: File,
    layers: File,
}

impl RunFolder {
    /// Makes the folder, with the resolved configuration and the scheme's text.
    ///
    /// # Errors
    /// If it exists and holds a run already, or cannot be written.
    pub fn create(path: &Path, config: &RunConfig, scheme: &Scheme) -> Result<Self, FolderError> {
        if path.join("metrics.jsonl").exists() {
            return Err(FolderError::new(path, "the folder holds a run already"));
        }
        std::fs::create_dir_all(path).map_err(|error| FolderError::new(path, error))?;
        let write = |name: &str, text: &str| {
            let file = path.join(name);
            std::fs::write(&file, text).map_err(|error| FolderError::new(&file, error))
        };
        write("config.toml", &config.to_toml())?;
        write("scheme.scheme", &scheme.source)?;
        let open = |name: &str| {
            let file = path.join(name);
            // New, so that two runs at once cannot write into one folder.
            let options = OpenOptions::new().create_new(true).append(true).open(&file);
            options.map_err(|error| FolderError::new(&file, error))
        };
        Ok(Self { path: path.to_path_buf(), metrics: open("metrics.jsonl")?, layers: open("layers.jsonl")? })
    }

    /// Appends a metric.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn metric(&mut self, line: &MetricLine) -> Result<(), FolderError> {
        append(&mut self.metrics, line).map_err(|reason| FolderError::new(&self.path.join("metrics.jsonl"), reason))
    }

    /// Appends what was measured of the layers.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn layers(&mut self, layers: &[LayerStatistics]) -> Result<(), FolderError> {
        for layer in layers {
            append(&mut self.layers, layer)
                .map_err(|reason| FolderError::new(&self.path.join("layers.jsonl"), reason))?;
        }
        Ok(())
    }

    /// Writes the final weights and `meta.json`.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn finish(
        &self,
        model: &Model,
        weights: &Weights,
        config: &RunConfig,
        scheme: &Scheme,
        meta: &RunMeta,
    ) -> Result<(), FolderError> {
        let metadata = BTreeMap::from([
            ("format".to_string(), "addnorm".to_string()),
            ("config".to_string(), config.to_toml()),
            ("scheme".to_string(), scheme.source.clone()),
            ("scheme_name".to_string(), scheme.name.clone()),
        ]);
        let path = self.path.join("model.safetensors");
        weights.save(model.parameters(), metadata, &path).map_err(|error| FolderError::new(&path, error))?;
        let path = self.path.join("meta.json");
        let text = serde_json::to_string_pretty(meta).map_err(|error| FolderError::new(&path, error))?;
        std::fs::write(&path, text).map_err(|error| FolderError::new(&path, error))
    }
}

fn append(file: &mut File, value: &impl Serialize) -> Result<(), String> {
    let mut line = serde_json::to_string(value).map_err(|error| error.to_string())?;
    line.push('\n');
    // One write a line, so that a kill leaves whole lines.
    file.write_all(line.as_bytes()).map_err(|error| error.to_string())
}

/// A run read back from its folder.
#[derive(Debug)]
pub struct LoadedRun {
    /// The configuration.
    pub config: RunConfig,
    /// The scheme.
    pub scheme: Scheme,
    /// The model.
    pub model: Model,
    /// The final weights.
    pub weights: Weights,
    /// How tokens read; none where there are no tokens.
    pub vocabulary: Option<Vocabulary>,
    /// What is known of it.
    pub meta: RunMeta,
}

/// Writes a converted model as the folder of a finished run, which can be read, used and trained on as any other.
/// What was measured stays with the run that it comes from.
///
/// # Errors
/// If it cannot be written.
pub fn write_converted(
    run: &LoadedRun,
    scheme: &Scheme,
    model: &Model,
    weights: &Weights,
    path: &Path,
) -> Result<(), FolderError> {
    let config = RunConfig { scheme: scheme.name.clone(), model: model.config().clone(), ..run.config.clone() };
    let folder = RunFolder::create(path, &config, scheme)?;
    let meta = RunMeta {
        scheme: scheme.name.clone(),
        title: scheme.title.clone(),
        parameters: model.parameter_count(),
        norm: format!("{}, epsilon {:e}", model.norm_kind().name(), config.model.epsilon),
        initialisers: model.initialisers(),
        decayed: model.parameters().iter().filter(|info| info.decays()).count(),
        tensors: model.parameters().len(),
        ..run.meta.clone()
    };
    folder.finish(model, weights, &config, scheme, &meta)
}

/// Reads a finished run.
///
/// # Errors
/// If a file is missing or does not fit the others.
pub fn load_run(path: &Path, device: &Device) -> Result<LoadedRun, FolderError> {
    let read = |name: &str| {
        let file = path.join(name);
        std::fs::read_to_string(&file).map_err(|error| FolderError::new(&file, error))
    };
    let meta: RunMeta =
        serde_json::from_str(&read("meta.json")?).map_err(|error| FolderError::new(&path.join("meta.json"), error))?;
    let config = RunConfig::from_toml(&read("config.toml")?)
        .map_err(|error| FolderError::new(&path.join("config.toml"), error))?;
    let scheme = Scheme::parse(&meta.scheme, &read("scheme.scheme")?)
        .map_err(|error| FolderError::new(&path.join("scheme.scheme"), error))?;
    let model = Model::new(&scheme, &config.model).map_err(|error| FolderError::new(path, error))?;
    let weights = Weights::load(model.parameters(), &path.join("model.safetensors"), device)
        .map_err(|error| FolderError::new(path, error))?;
    let task = task_of(config.model.stack);
    let vocabulary = Dataset::vocabulary_of(task, &config.data).map_err(|error| FolderError::new(path, error))?;
    Ok(LoadedRun { config, scheme, model, weights, vocabulary, meta })
}

/// Reads the lines of a JSONL file. A last line that a kill cut short is left out.
///
/// # Errors
/// If the file cannot be read or a whole line is not what it should be.
pub(crate) fn read_lines<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Vec<T>, FolderError> {
    let file = File::open(path).map_err(|error| FolderError::new(path, error))?;
    let mut values = Vec::new();
    let mut reader = BufReader::new(file);
    let mut line = String::new();
    while reader.read_line(&mut line).map_err(|error| FolderError::new(path, error))? > 0 {
        match serde_json::from_str(&line) {
            Ok(value) => values.push(value),
            Err(_) if !line.ends_with('\n') => break,
            Err(error) => return Err(FolderError::new(path, format!("line {}: {error}", values.len() + 1))),
        }
        line.clear();
    }
    Ok(values)
}

impl LoadedRun {
    /// Every metric of a run folder.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn metrics(path: &Path) -> Result<Vec<MetricLine>, FolderError> {
        read_lines(&path.join("metrics.jsonl"))
    }

    /// Every look at the layers of a run folder.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn layers(path: &Path) -> Result<Vec<LayerStatistics>, FolderError> {
        read_lines(&path.join("layers.jsonl"))
    }
}
