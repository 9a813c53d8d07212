//! A checked scheme: every name resolved, every sum in its normal form.

use crate::error::Lint;
use crate::init::InitRules;
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
}

impl NormKind {
    /// Every kind, by the name it has in schemes and configurations.
    pub const ALL: [(&'static str, NormKind); 4] = [
        ("layernorm", NormKind::Layernorm),
        ("layernorm_no_bias", NormKind::LayernormNoBias),
        ("rmsnorm", NormKind::Rmsnorm),
        ("rmsnorm_one_plus", NormKind::RmsnormOnePlus),
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
        !matches!(self, NormKind::Rmsnorm | NormKind::RmsnormOnePlus)
    }

    /// What is added to the stored gain.
    pub fn gain_offset(self) -> f64 {
        if self == NormKind::RmsnormOnePlus { 1.0 } else { 0.0 }
    }

    /// Whether it has a bias.
    pub fn has_bias(self) -> bool {
        matches!(self, NormKind::Layernorm)
    }
}

/// A sublayer of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sublayer {
    /// Self-attention with its output projection.
    Attention,
    /// The position-wise feed-forward network.
    FeedForward,
}

impl Sublayer {
    /// The sublayers of a decoder-only or encoder-only block, in order.
    pub const ORDER: [Sublayer; 2] = [Sublayer::Attention, Sublayer::FeedForward];

    /// Its name in the language and in site names.
    pub fn name(self) -> &'static str {
        match self {
            Sublayer::Attention => "attn",
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
    /// One learnable factor a head, before the output projection (NormFormer).
    pub scaled_heads: bool,
    /// Norms on queries, keys, values.
    pub projection_norms: Option<ProjectionNorms>,
    /// A norm over the concatenated heads, before the output projection (Sub-LN).
    pub attention_inner_norm: bool,
    /// A norm over the hidden activations, before the second matrix (NormFormer, Sub-LN).
    pub ffn_inner_norm: bool,
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

/// A learnable of each block (or of each sublayer).
#[derive(Debug, Clone, PartialEq)]
pub struct Learnable {
    /// Its name.
    pub name: String,
    /// A vector over the width, instead of one scalar.
    pub vector: bool,
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
    Norm(Box<Sum>),
    /// The attention or the feed-forward network.
    Sublayer(Sublayer, Box<Sum>),
    /// The sublayer that an `each` stands for.
    EachSublayer(Box<Sum>),
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
    /// What its author wants known.
    pub notes: Vec<String>,
    /// The text that it was read from.
    pub source: String,
    /// The residual streams; the first is the one that reports speak of.
    pub streams: Vec<String>,
    /// Named constants, in order.
    pub constants: Vec<Constant>,
    /// Learnables, in order.
    pub learnables: Vec<Learnable>,
    /// The norm kind, where the scheme insists on one.
    pub norm: Option<NormKind>,
    /// Changes inside the sublayers.
    pub options: SublayerOptions,
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
