//! A checked scheme: every name resolved, every sum in its normal form.

use crate::error::Lint;
use crate::init::{InitRules, MatrixKind};
use crate::scalar::Scalar;

/// What kind of normalisation a `norm` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// gain * (x - mean) / sqrt(variance + eps) + bias (arXiv:1607.06450).
    Layernorm,
    /// Layernorm without the bias (PaLM).
    LayernormNoBias,
    /// gain * x / sqrt(mean(x^2) + eps) (arXiv:1910.07467).
    Rmsnorm,
    /// Rmsnorm whose stored gain is the difference from one: (1 + gain) * x / sqrt(mean(x^2) + eps) (Gemma).
    RmsnormOnePlus,
    /// RMSNorm of a zero-mean vector of which all entries but the last are stored (arXiv:2305.14858): streams
    /// are one narrower, and the norm has no parameters. Norms inside the sublayers are RMSNorm without gain.
    Crmsnorm,
    /// gain * tanh(alpha * x) + bias with one trained alpha, from 0.5 (arXiv:2503.10622). No statistics, no eps.
    Dyt,
    /// No normalisation at all, for schemes that are to do without.
    None,
}

impl NormKind {
    /// Every kind, by the name it has in schemes and configurations.
    pub const ALL: [(&'static str, NormKind); 7] = [
        ("layernorm", NormKind::Layernorm),
        ("layernorm_no_bias", NormKind::LayernormNoBias),
        ("rmsnorm", NormKind::Rmsnorm),
        ("rmsnorm_one_plus", NormKind::RmsnormOnePlus),
        ("crmsnorm", NormKind::Crmsnorm),
        ("dyt", NormKind::Dyt),
        ("none", NormKind::None),
    ];

    /// The kind of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|&(_, kind)| kind)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether the mean is taken off.
    pub fn centres(self) -> bool {
        matches!(self, NormKind::Layernorm | NormKind::LayernormNoBias)
    }

    /// What is added to the stored gain.
    pub fn gain_offset(self) -> f64 {
        if self == NormKind::RmsnormOnePlus { 1.0 } else { 0.0 }
    }

    /// Whether it has a bias.
    pub fn has_bias(self) -> bool {
        matches!(self, NormKind::Layernorm | NormKind::Dyt)
    }

    /// Whether it has a gain.
    pub fn has_gain(self) -> bool {
        !matches!(self, NormKind::Crmsnorm | NormKind::None)
    }

    /// Trainable numbers of one norm of this width.
    pub fn parameters(self, width: usize) -> usize {
        let vectors = usize::from(self.has_gain()) + usize::from(self.has_bias());
        vectors * width + usize::from(self == NormKind::Dyt)
    }

    /// How wide a stream of nominal width `width` is stored.
    pub fn stored_width(self, width: usize) -> usize {
        if self == NormKind::Crmsnorm { width.saturating_sub(1) } else { width }
    }
}

/// A sublayer of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sublayer {
    /// Self-attention with its output projection.
    Attention,
    /// Attention of a decoder to what its encoder gave.
    Cross,
    /// The position-wise feed-forward network.
    FeedForward,
}

impl Sublayer {
    /// Every sublayer, in the order of a block.
    pub const ALL: [Sublayer; 3] = [Sublayer::Attention, Sublayer::Cross, Sublayer::FeedForward];

    /// The sublayers of a decoder-only or encoder-only block, in order.
    pub const ORDER: [Sublayer; 2] = [Sublayer::Attention, Sublayer::FeedForward];

    /// Its name in the language and in site names.
    pub fn name(self) -> &'static str {
        match self {
            Sublayer::Attention => "attn",
            Sublayer::Cross => "cross",
            Sublayer::FeedForward => "ffn",
        }
    }
}

/// Over what a norm on queries, keys or values takes its statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadNormScope {
    /// Each head's part by itself; the gain has one head's width and is shared by the heads.
    PerHead,
    /// The whole projection at once.
    FullWidth,
}

/// Norms on the projections inside attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectionNorms {
    /// On the queries.
    pub query: bool,
    /// On the keys.
    pub key: bool,
    /// On the values.
    pub value: bool,
    /// Over what.
    pub scope: HeadNormScope,
}

/// What a scheme changes inside the sublayers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SublayerOptions {
    /// Inside self-attention.
    pub attention: AttentionOptions,
    /// Inside a pair decoder's attention to its encoder.
    pub cross: AttentionOptions,
    /// A norm over the hidden activations, before the second matrix (NormFormer, Sub-LN).
    pub ffn_inner_norm: bool,
}

/// What a scheme changes inside one kind of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttentionOptions {
    /// One learnable factor a head, before the output projection (NormFormer).
    pub scaled_heads: bool,
    /// Norms on queries, keys, values.
    pub projection_norms: Option<ProjectionNorms>,
    /// A norm over the concatenated heads, before the output projection (Sub-LN).
    pub inner_norm: bool,
}

/// A named constant.
#[derive(Debug, Clone, PartialEq)]
pub struct Constant {
    /// Its name.
    pub name: String,
    /// The stack that the definition is for, and whether only as one of a pair.
    pub only: Option<(StackSide, bool)>,
    /// Its definition.
    pub definition: Scalar,
}

/// A side of an encoder-decoder pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackSide {
    /// Reads the input.
    Encoder,
    /// Writes the output.
    Decoder,
}

/// How many numbers a learnable has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LearnableSize {
    /// One.
    Scalar,
    /// One for each dimension of the stream.
    Width,
    /// One for each entry that this history has where it is used.
    Entries(String),
}

/// A learnable of each block (or of each sublayer).
#[derive(Debug, Clone, PartialEq)]
pub struct Learnable {
    /// Its name.
    pub name: String,
    /// How many numbers it has.
    pub size: LearnableSize,
    /// One for each sublayer instead of one for the block.
    pub per_sublayer: bool,
    /// Where it starts.
    pub initial: Scalar,
}

/// A weighted sum; the weights are products of constants and learnables.
#[derive(Debug, Clone, PartialEq)]
pub struct Sum {
    /// At least one.
    pub terms: Vec<Term>,
}

/// One summand.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// Its weight.
    pub coefficient: Scalar,
    /// Whether no gradient flows into it.
    pub stopped: bool,
    /// What is weighted.
    pub operand: Operand,
}

/// What stands in a sum.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A stream or a value named earlier in the body.
    Name(String),
    /// A norm with parameters of its own.
    Norm(Box<Sum>, NormSettings),
    /// `sigmoid(W sum + b)` with a matrix and a bias of its own; the bias starts at `bias`.
    Gate {
        /// What it reads.
        input: Box<Sum>,
        /// Where every entry of the bias starts.
        bias: Scalar,
    },
    /// A gate times a stream, entry by entry.
    Product {
        /// The gate.
        gate: Box<Operand>,
        /// The stream.
        value: Box<Sum>,
    },
    /// Every entry of a history so far; the term's coefficient may depend on the entry's number `entry`, from 0.
    History(String),
    /// The attention or the feed-forward network.
    Sublayer(Sublayer, Box<Sum>),
    /// The sublayer that an `each` stands for.
    EachSublayer(Box<Sum>),
}

/// What one norm has of its own.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NormSettings {
    /// Its epsilon, where it is not the run's.
    pub epsilon: Option<Scalar>,
    /// Where its gain starts, if not at one.
    pub gain: Option<Scalar>,
}

/// `target = value`.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// A stream, or a name for use later in the body.
    pub target: String,
    /// Its new value.
    pub value: Sum,
    /// The line it stands on, from 1.
    pub line: usize,
}

/// A part of a body.
#[derive(Debug, Clone, PartialEq)]
pub enum BodyPart {
    /// One equation.
    Assignment(Assignment),
    /// Equations repeated for every sublayer in order.
    Each(Vec<Assignment>),
}

/// The equations of the blocks that a condition picks.
#[derive(Debug, Clone, PartialEq)]
pub struct Body {
    /// The stack that it is for, and whether only as one of a pair.
    pub only: Option<(StackSide, bool)>,
    /// Which blocks; none for all that are left.
    pub condition: Option<Scalar>,
    /// The equations in order.
    pub parts: Vec<BodyPart>,
}

/// A checked scheme. Made by [`Scheme::parse`](crate::Scheme::parse), used through
/// [`Plan`](crate::Plan) and [`Algebra`](crate::Algebra).
#[derive(Debug, Clone, PartialEq)]
pub struct Scheme {
    /// The short name: of its file, or `inline`.
    pub name: String,
    /// The title, or the name.
    pub title: String,
    /// Where it was published.
    pub papers: Vec<String>,
    /// What its authors say of it; not verified here.
    pub claims: Vec<String>,
    /// What its author wants known.
    pub notes: Vec<String>,
    /// The text that it was read from.
    pub source: String,
    /// The residual streams; the first is the one that reports speak of.
    pub streams: Vec<String>,
    /// Growing lists of values, one of which the embedding begins and every block adds to.
    pub histories: Vec<String>,
    /// Stacks that the scheme has no form for, by `decoder`, `encoder` or `pair`, and why.
    pub refusals: Vec<(String, String)>,
    /// Named constants, in order.
    pub constants: Vec<Constant>,
    /// Learnables, in order.
    pub learnables: Vec<Learnable>,
    /// The norm kind, where the scheme insists on one.
    pub norm: Option<NormKind>,
    /// Changes inside the sublayers.
    pub options: SublayerOptions,
    /// Matrices that are used with the mean over their output dimensions taken off.
    pub centred: Vec<MatrixKind>,
    /// Initialisers.
    pub init: InitRules,
    /// What is done with the embedding before the first block; may be empty.
    pub embed: Vec<Assignment>,
    /// Bodies; the first whose condition holds is a block's own.
    pub bodies: Vec<Body>,
    /// What the output head reads.
    pub head: Sum,
    /// What is legal but suspicious.
    pub lints: Vec<Lint>,
}
