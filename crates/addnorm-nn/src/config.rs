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
    /// Gated, with GELU's tanh approximation on the gate.
    GegluTanh,
}

impl ActivationKind {
    /// Whether there is a gate matrix.
    pub fn is_gated(self) -> bool {
        matches!(self, ActivationKind::Swiglu | ActivationKind::Geglu | ActivationKind::GegluTanh)
    }
}

/// What kind of Transformer it is, and with it what it is trained to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StackKind {
    /// Says the next token from those before it.
    Decoder,
    /// Says hidden tokens from those around them.
    Encoder,
    /// An encoder and a decoder that attends to it: says a second text from a first.
    Pair,
    /// An encoder of an image's patches behind a class token: says which class it is.
    Vision,
}

impl StackKind {
    /// Every kind by its name in configurations.
    pub const ALL: [(&'static str, StackKind); 4] = [
        ("decoder", StackKind::Decoder),
        ("encoder", StackKind::Encoder),
        ("pair", StackKind::Pair),
        ("vision", StackKind::Vision),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// Norms on queries and keys, where the scheme says nothing of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// None.
    None,
    /// Every head by itself, before any rotation (arXiv:2302.05442; Qwen3).
    PerHead,
    /// Over the whole projection, before any rotation (OLMo 2).
    FullWidth,
}

/// A model's sizes and choices. Every constant is here; nothing has a hidden default elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// What kind of Transformer.
    pub stack: StackKind,
    /// Blocks; of a pair those of its encoder.
    pub blocks: usize,
    /// Blocks of a pair's decoder; 0 stands for as many as the encoder has.
    pub decoder_blocks: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Key/value heads; 0 stands for as many as heads.
    pub kv_heads: usize,
    /// Width of one head; 0 stands for the width over the heads.
    pub head_width: usize,
    /// Width of the feed-forward network's hidden layer; 0 stands for four times the width.
    pub ffn_width: usize,
    /// Tokens of one sequence; of a pair, of either text.
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
    /// Whether queries, keys and values have biases, where that differs from `bias`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// Whether the head is the embedding; in a pair both texts have that same embedding.
    pub tied: bool,
    /// Width of the embedding where it is narrower than the stream, which a linear map then widens
    /// (arXiv:1909.11942); 0 stands for the width.
    pub embedding_width: usize,
    /// Whether the embedding is multiplied by the root of the width before positions are added.
    pub embedding_scale: bool,
    /// Whether a norm follows the summed embeddings, besides what the scheme says.
    pub embedding_norm: bool,
    /// Rows of a table of token types, the first of which is added to every token; 0 for none.
    pub token_types: usize,
    /// Whether all blocks share one set of parameters (arXiv:1909.11942).
    pub shared_blocks: bool,
    /// Whether a linear map, the non-linearity and a norm stand before the output matrix (BERT).
    pub output_transform: bool,
    /// Whether the output matrix has a bias.
    pub logit_bias: bool,
    /// Norms on queries and keys, where the scheme says nothing of them.
    pub qk_norm: QkNorm,
    /// Height and width of an image, in pixels; 0 stands for what the data says.
    pub image: usize,
    /// Height and width of a patch of it.
    pub patch: usize,
    /// Numbers of one pixel.
    pub channels: usize,
    /// Classes of images; 0 stands for what the data says.
    pub classes: usize,
    /// What the attention may leave out: at most this share of every query's weight; 0 for nothing.
    pub sparse_softmax: f64,
    /// How far sparse norms may be off, as RMS over RMS on the examples they are chosen by; 0 for dense ones.
    pub sparse_norm: f64,
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
            stack: StackKind::Decoder,
            blocks: 24,
            decoder_blocks: 0,
            width: 64,
            heads: 4,
            kv_heads: 0,
            head_width: 0,
            ffn_width: 0,
            context: 64,
            vocabulary: 0,
            positions: Positions::Learned,
            rope_base: 10_000.0,
            activation: ActivationKind::Gelu,
            bias: true,
            qkv_bias: None,
            tied: false,
            embedding_width: 0,
            embedding_scale: false,
            embedding_norm: false,
            token_types: 0,
            shared_blocks: false,
            output_transform: false,
            logit_bias: false,
            qk_norm: QkNorm::None,
            image: 0,
            patch: 4,
            channels: 1,
            classes: 0,
            sparse_softmax: 0.0,
            sparse_norm: 0.0,
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

    /// Width of one head, worked out.
    pub fn width_of_head(&self) -> usize {
        if self.head_width == 0 { self.width / self.heads.max(1) } else { self.head_width }
    }

    /// Blocks of a pair's decoder, worked out.
    pub fn blocks_of_decoder(&self) -> usize {
        if self.decoder_blocks == 0 { self.blocks } else { self.decoder_blocks }
    }

    /// How many answers the model chooses between: tokens, or classes of images.
    pub fn answers(&self) -> usize {
        if self.stack == StackKind::Vision { self.classes } else { self.vocabulary }
    }

    /// Patches of an image.
    pub fn patches(&self) -> usize {
        (self.image / self.patch.max(1)).pow(2)
    }

    /// Numbers of one patch.
    pub fn patch_width(&self) -> usize {
        self.patch * self.patch * self.channels
    }

    /// Positions of one sequence: tokens, or an image's patches with the class token.
    pub fn sequence(&self) -> usize {
        if self.stack == StackKind::Vision { self.patches() + 1 } else { self.context }
    }

    /// Width of the token embedding, worked out.
    pub fn width_of_embedding(&self) -> usize {
        if self.embedding_width == 0 { self.width } else { self.embedding_width }
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
            (if self.stack == StackKind::Vision { "classes" } else { "vocabulary" }, self.answers(), 1 << 24),
        ] {
            if value == 0 || value > most {
                return fail(key, format!("{value} is not between 1 and {most}"));
            }
        }
        for (key, value) in [
            ("decoder_blocks", self.decoder_blocks),
            ("head_width", self.head_width),
            ("embedding_width", self.embedding_width),
            ("token_types", self.token_types),
        ] {
            if value > 1 << 17 {
                return fail(key, format!("{value} is more than {}", 1 << 17));
            }
        }
        self.validate_stack()?;
        if self.head_width == 0 && !self.width.is_multiple_of(self.heads) {
            return fail("heads", format!("{} heads do not divide the width {}", self.heads, self.width));
        }
        let kv = self.key_value_heads();
        if !self.heads.is_multiple_of(kv) {
            return fail("kv_heads", format!("{kv} key/value heads do not divide {} heads", self.heads));
        }
        if self.positions == Positions::Rope && !self.width_of_head().is_multiple_of(2) {
            let message = format!("rotary positions need an even head width, not {}", self.width_of_head());
            return fail("positions", message);
        }
        if self.positions == Positions::Rope && !(self.rope_base.is_finite() && self.rope_base > 0.0) {
            return fail("rope_base", format!("{} is not a positive number", self.rope_base));
        }
        for (key, share) in [("sparse_softmax", self.sparse_softmax), ("sparse_norm", self.sparse_norm)] {
            if !(0.0..1.0).contains(&share) {
                return fail(key, format!("{share} is not in [0, 1)"));
            }
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

    /// What only some stacks have.
    fn validate_stack(&self) -> Result<(), ConfigError> {
        let fail = |key, message: String| Err(ConfigError { section: "model", key, message });
        let pair = self.stack == StackKind::Pair;
        if self.decoder_blocks > 0 && !pair {
            return fail("decoder_blocks", format!("a {} has no decoder beside it", self.stack.name()));
        }
        if self.tied && self.width_of_embedding() != self.width && !self.output_transform {
            let message =
                "a head that is a narrower embedding needs 'output_transform' to bring the stream to its width";
            return fail("embedding_width", message.to_string());
        }
        if self.norm == NormKind::Crmsnorm && self.width < 2 {
            return fail("width", "crmsnorm stores one number less than the width, so it needs two".to_string());
        }
        if self.stack != StackKind::Vision {
            return Ok(());
        }
        for (key, value, most) in
            [("image", self.image, 1 << 14), ("patch", self.patch, 1 << 14), ("channels", self.channels, 1 << 10)]
        {
            if value == 0 || value > most {
                return fail(key, format!("{value} is not between 1 and {most}"));
            }
        }
        if !self.image.is_multiple_of(self.patch) {
            return fail("patch", format!("patches of {} pixels do not fill an image of {}", self.patch, self.image));
        }
        for (key, set) in [
            ("tied", self.tied),
            ("embedding_width", self.embedding_width > 0),
            ("embedding_scale", self.embedding_scale),
            ("token_types", self.token_types > 0),
        ] {
            if set {
                return fail(key, "an image has no token embedding".to_string());
            }
        }
        Ok(())
    }
}
