//! Everything that a run depends on.

use std::path::PathBuf;
use std::str::FromStr;

use addnorm_data::DataConfig;
use addnorm_nn::{ConfigError, ModelConfig, StackKind};
use addnorm_scheme::nearest;
use serde::{Deserialize, Serialize};

use crate::schedule::{Decay, Schedule};

/// How a model is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Steps.
    pub steps: u64,
    /// Sequences of one step.
    pub batch: usize,
    /// Parts that a step's sequences are computed in, one after another. Only the last bits of the result
    /// depend on it.
    pub accumulate: usize,
    /// What the backward pass computes again instead of keeping it. The result does not depend on it.
    pub recompute: Recompute,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Steps of linear warm-up.
    pub warmup: u64,
    /// What follows the warm-up.
    pub decay: Decay,
    /// Where the decay ends, as a share of the peak.
    pub final_share: f64,
    /// AdamW's decay of the first moment.
    pub beta1: f64,
    /// AdamW's decay of the second moment.
    pub beta2: f64,
    /// AdamW's epsilon, outside the root.
    pub epsilon: f64,
    /// Decoupled weight decay, on matrices only.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 for no clipping.
    pub clip: f64,
    /// Steps from one validation to the next; 0 for a tenth of all steps.
    pub eval_every: u64,
    /// Validation tokens that are used, at most.
    pub eval_tokens: usize,
    /// Steps from one look at the layers to the next; 0 for a tenth of all steps.
    pub probe_every: u64,
    /// The folder of a run whose weights to start from; none for fresh ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
    /// The seed that every random stream derives from.
    pub seed: u64,
    /// Threads of the run; 0 for all cores. It decides the order of sums, and so the last bits of the result.
    pub threads: usize,
    /// `flex`, `cuda:N` or `wgpu`.
    pub device: String,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: 300,
            batch: 16,
            accumulate: 1,
            recompute: Recompute::None,
            learning_rate: 1e-3,
            warmup: 0,
            decay: Decay::Constant,
            final_share: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
            eval_every: 0,
            eval_tokens: 16_384,
            probe_every: 0,
            from: None,
            seed: 1,
            threads: 0,
            device: "flex".to_string(),
        }
    }
}

/// Recomputation in the backward pass: memory for time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RecomputeSetting", into = "RecomputeSetting")]
pub enum Recompute {
    /// Everything is kept.
    None,
    /// The streams that enter every so many blocks are kept, and the blocks run once more.
    Blocks(usize),
}

impl Recompute {
    /// Blocks that are run once more at a time; 0 for none.
    pub fn blocks(self) -> usize {
        match self {
            Recompute::None => 0,
            Recompute::Blocks(every) => every,
        }
    }
}

/// As it is written: `"none"`, `"blocks"`, or a number of blocks.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"none\", \"blocks\", or a number of blocks from 1 on")]
enum RecomputeSetting {
    Word(String),
    Blocks(usize),
}

impl TryFrom<RecomputeSetting> for Recompute {
    type Error = String;

    fn try_from(setting: RecomputeSetting) -> Result<Self, String> {
        match setting {
            RecomputeSetting::Word(word) => word.parse(),
            RecomputeSetting::Blocks(blocks) => blocks.to_string().parse(),
        }
    }
}

impl From<Recompute> for RecomputeSetting {
    fn from(recompute: Recompute) -> Self {
        match recompute {
            Recompute::None => RecomputeSetting::Word("none".into()),
            Recompute::Blocks(1) => RecomputeSetting::Word("blocks".into()),
            Recompute::Blocks(every) => RecomputeSetting::Blocks(every),
        }
    }
}

impl FromStr for Recompute {
    type Err = String;

    fn from_str(said: &str) -> Result<Self, String> {
        match (said, said.parse()) {
            ("none", _) => Ok(Recompute::None),
            ("blocks", _) => Ok(Recompute::Blocks(1)),
            (_, Ok(every)) if every > 0 => Ok(Recompute::Blocks(every)),
            _ => Err(format!("'{said}' is not \"none\", \"blocks\", or a number of blocks from 1 on")),
        }
    }
}

/// A run, whole.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// A scheme's name, a path to its file, or its text.
    pub scheme: String,
    /// The model.
    pub model: ModelConfig,
    /// The training.
    pub train: TrainConfig,
    /// The data.
    pub data: DataConfig,
}

/// The sections of a configuration file, each with its keys.
pub const CONFIG_SECTIONS: [(&str, &[&str]); 4] = [
    ("", &["scheme", "model", "train", "data"]),
    (
        "model",
        &[
            "stack",
            "blocks",
            "decoder_blocks",
            "width",
            "heads",
            "kv_heads",
            "head_width",
            "ffn_width",
            "context",
            "vocabulary",
            "positions",
            "rope_base",
            "activation",
            "bias",
            "qkv_bias",
            "tied",
            "embedding_width",
            "embedding_scale",
            "embedding_norm",
            "token_types",
            "shared_blocks",
            "output_transform",
            "logit_bias",
            "qk_norm",
            "image",
            "patch",
            "channels",
            "classes",
            "sparse_softmax",
            "sparse_norm",
            "dropout",
            "norm",
            "epsilon",
            "init_std",
        ],
    ),
    (
        "train",
        &[
            "steps",
            "batch",
            "accumulate",
            "recompute",
            "learning_rate",
            "warmup",
            "decay",
            "final_share",
            "beta1",
            "beta2",
            "epsilon",
            "weight_decay",
            "clip",
            "eval_every",
            "eval_tokens",
            "probe_every",
            "from",
            "seed",
            "threads",
            "device",
        ],
    ),
    (
        "data",
        &["paths", "extensions", "tokenizer", "validation", "invalid", "newlines", "builtin_tokens", "builtin_seed"],
    ),
];

/// A configuration file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TrainConfigError {
    /// What is wrong, with section and key.
    pub message: String,
    /// What would be right.
    pub hint: Option<String>,
}

impl RunConfig {
    /// Reads a TOML text. Unknown keys, wrong types and keys given twice are errors.
    ///
    /// # Errors
    /// The first thing that is wrong, with the nearest valid key.
    pub fn from_toml(text: &str) -> Result<Self, TrainConfigError> {
        let fail = |error: &toml::de::Error| TrainConfigError { message: error.to_string(), hint: None };
        let table: toml::Table = toml::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| fail(&error))?;
        for (key, value) in &table {
            known("", key)?;
            if let toml::Value::Table(section) = value {
                for inner in section.keys() {
                    known(key, inner)?;
                }
            }
        }
        toml::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| fail(&error))
    }

    /// As TOML, with every value.
    pub fn to_toml(&self) -> String {
        // The types are plain tables, texts and numbers, which TOML can always write.
        toml::to_string(self).expect("a configuration is a TOML table")
    }

    /// The schedule of learning rates.
    pub fn schedule(&self) -> Schedule {
        let train = &self.train;
        Schedule {
            peak: train.learning_rate,
            warmup: train.warmup,
            steps: train.steps,
            decay: train.decay,
            final_share: train.final_share,
        }
    }

    /// Checks every setting of the training, and the settings against each other. What comes back are
    /// warnings: settings that are possible but not what anyone wants.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn validate(&self) -> Result<Vec<String>, ConfigError> {
        let train = &self.train;
        let fail = |key, message: String| Err(ConfigError { section: "train", key, message });
        if train.steps == 0 {
            return fail("steps", "a run has at least one step".into());
        }
        if self.model.stack == StackKind::Pair && train.recompute != Recompute::None {
            return fail("recompute", "a pair keeps what it computes: nothing is computed again there".into());
        }
        if train.batch == 0 {
            return fail("batch", "a step has at least one sequence".into());
        }
        if train.accumulate == 0 || train.accumulate > train.batch {
            let message = format!("{} parts cannot be made of {} sequences", train.accumulate, train.batch);
            return fail("accumulate", message);
        }
        for (key, value) in [("learning_rate", train.learning_rate), ("epsilon", train.epsilon)] {
            if !(value.is_finite() && value > 0.0) {
                return fail(key, format!("{value} is not a positive number"));
            }
        }
        for (key, value) in [("weight_decay", train.weight_decay), ("clip", train.clip)] {
            if !(value.is_finite() && value >= 0.0) {
                return fail(key, format!("{value} is not a number from 0 on"));
            }
        }
        for (key, value) in [("beta1", train.beta1), ("beta2", train.beta2)] {
            if !(0.0..1.0).contains(&value) {
                return fail(key, format!("{value} is not in [0, 1)"));
            }
        }
        if !(0.0..=1.0).contains(&train.final_share) {
            return fail("final_share", format!("{} is not in [0, 1]", train.final_share));
        }
        for (key, value, most) in [
            ("batch", train.batch, 1 << 20),
            ("threads", train.threads, 1024),
            ("eval_tokens", train.eval_tokens, 1 << 30),
        ] {
            if value > most {
                return fail(key, format!("{value} is more than {most}"));
            }
        }
        // TOML, in which a run is recorded, has no larger integers.
        for (key, value) in [
            ("seed", train.seed),
            ("steps", train.steps),
            ("warmup", train.warmup),
            ("eval_every", train.eval_every),
            ("probe_every", train.probe_every),
            ("recompute", train.recompute.blocks() as u64),
        ] {
            if value > i64::MAX as u64 {
                return fail(key, format!("{value} is more than {}", i64::MAX));
            }
        }
        let mut warnings = Vec::new();
        if train.warmup > train.steps {
            warnings.push(format!(
                "the warm-up of {} steps is longer than the run of {}: the peak learning rate is never reached",
                train.warmup, train.steps
            ));
        }
        Ok(warnings)
    }
}

fn known(section: &str, key: &str) -> Result<(), TrainConfigError> {
    let Some((_, keys)) = CONFIG_SECTIONS.iter().find(|(name, _)| *name == section) else {
        return Ok(());
    };
    if keys.contains(&key) {
        return Ok(());
    }
    let place = if section.is_empty() { "the top level".to_string() } else { format!("[{section}]") };
    let elsewhere = CONFIG_SECTIONS.iter().find(|(name, keys)| *name != section && keys.contains(&key));
    let hint = match (nearest(key, keys.iter().copied()), elsewhere) {
        (_, Some((other, _))) if !other.is_empty() => format!("'{key}' belongs in [{other}]"),
        (Some(near), _) => format!("did you mean '{near}'?"),
        _ => format!("known here: {}", keys.join(", ")),
    };
    Err(TrainConfigError { message: format!("{place} has no key '{key}'"), hint: Some(hint) })
}
