//! The sizes and choices of a model besides its scheme.

use addnorm_scheme::NormKind;
use serde::{Deserialize, Serialize};

/// How a token's position enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// Not at all.
    None,
    /// A learned table added to the embedding.
    Learned,
    /// Fixed sines and cosines added to the embedding (arXiv:1706.03762), amplitude 1.
    Sinusoidal,
    /// Rotation of queries and keys (arXiv:2104.09864), half-split.
    Rope,
}

/// The non-linearity of the feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationKind {
    /// x Φ(x).
    Gelu,
    /// Its tanh approximation.
    GeluTanh,
    /// max(x, 0).
    Relu,
    /// Gated, with x sigmoid(x) on the gate (arXiv:2002.05202).
    Swiglu,
    /// Gated, with GELU on the gate.
    Geglu,
}

impl ActivationKind {
    /// Whether there is a gate matrix.
    pub fn is_gated(self) -> bool {
        matches!(self, ActivationKind::Swiglu | ActivationKind::Geglu)
    }
}

/// A model's sizes and choices. Every constant is here; nothing has a hidden default elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Blocks.
    pub blocks: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Key/value heads; 0 stands for as many as heads.
    pub kv_heads: usize,
    /// Width of the feed-forward network's hidden layer; 0 stands for four times the width.
    pub ffn_width: usize,
    /// Tokens of one sequence.
    pub context: usize,
    /// Vocabulary; 0 stands for what the data says.
    pub vocabulary: usize,
    /// How positions enter.
    pub positions: Positions,
    /// Base of the rotary frequencies.
    pub rope_base: f64,
    /// The non-linearity.
    pub activation: ActivationKind,
    /// Whether linear maps have biases.
    pub bias: bool,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Dropout on the embedding and on every branch before it is added.
    pub dropout: f64,
    /// Norm kind, where the scheme leaves it open.
    pub norm: NormKind,
    /// Epsilon of every norm, inside the root.
    pub epsilon: f64,
    /// Standard deviation of the normal initialiser where the scheme sets none.
    pub init_std: f64,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            blocks: 24,
            width: 64,
            heads: 4,
            kv_heads: 0,
            ffn_width: 0,
            context: 64,
            vocabulary: 0,
            positions: Positions::Learned,
            rope_base: 10_000.0,
            activation: ActivationKind::Gelu,
            bias: true,
            tied: false,
            dropout: 0.0,
            norm: NormKind::Layernorm,
            epsilon: 1e-5,
            init_std: 0.02,
        }
    }
}

/// A setting that cannot be, and what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("[{section}] {key}: {message}")]
pub struct ConfigError {
    /// The section of the configuration file.
    pub section: &'static str,
    /// The key.
    pub key: &'static str,
    /// What is wrong.
    pub message: String,
}

impl ModelConfig {
    /// Key/value heads, worked out.
    pub fn key_value_heads(&self) -> usize {
        if self.kv_heads == 0 { self.heads } else { self.kv_heads }
    }

    /// Hidden width of the feed-forward network, worked out.
    pub fn hidden_width(&self) -> usize {
        if self.ffn_width == 0 { self.width.saturating_mul(4) } else { self.ffn_width }
    }

    /// Width of one head.
    pub fn head_width(&self) -> usize {
        self.width / self.heads.max(1)
    }

    /// Checks every setting, and the settings against each other.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail = |key, message: String| Err(ConfigError { section: "model", key, message });
        for (key, value, most) in [
            ("blocks", self.blocks, 100_000),
            ("width", self.width, 1 << 16),
            ("heads", self.heads, 1 << 16),
            ("ffn_width", self.hidden_width(), 1 << 20),
            ("context", self.context, 1 << 20),
            ("vocabulary", self.vocabulary, 1 << 24),
        ] {
            if value == 0 || value > most {
                return fail(key, format!("{value} is not between 1 and {most}"));
            }
        }
        if !self.width.is_multiple_of(self.heads) {
            return fail("heads", format!("{} heads do not divide the width {}", self.heads, self.width));
        }
        let kv = self.key_value_heads();
        if !self.heads.is_multiple_of(kv) {
            return fail("kv_heads", format!("{kv} key/value heads do not divide {} heads", self.heads));
        }
        if self.positions == Positions::Rope && !self.head_width().is_multiple_of(2) {
            let message = format!("rotary positions need an even head width, not {}", self.head_width());
            return fail("positions", message);
        }
        if self.positions == Positions::Rope && !(self.rope_base.is_finite() && self.rope_base > 0.0) {
            return fail("rope_base", format!("{} is not a positive number", self.rope_base));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return fail("dropout", format!("{} is not in [0, 1)", self.dropout));
        }
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return fail(
                "epsilon",
                format!("{} is not a positive number; every norm states its epsilon", self.epsilon),
            );
        }
        if !(self.init_std.is_finite() && self.init_std >= 0.0) {
            return fail("init_std", format!("{} is not a number from 0 on", self.init_std));
        }
        Ok(())
    }
}
