//! Initialisers: which distribution each kind of matrix starts from.

use std::collections::BTreeMap;

use crate::scalar::Scalar;

/// The matrices that a scheme can speak of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatrixKind {
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Attention output projection.
    AttentionOutput,
    /// Query projection of a pair decoder's attention to its encoder.
    CrossQuery,
    /// Its key projection.
    CrossKey,
    /// Its value projection.
    CrossValue,
    /// Its output projection.
    CrossOutput,
    /// First feed-forward matrix.
    FeedForwardIn,
    /// Gate matrix of a gated feed-forward network.
    FeedForwardGate,
    /// Second feed-forward matrix.
    FeedForwardOut,
    /// Matrix of a gate on the residual path.
    Gate,
    /// Token embedding; an image's patches are embedded by a matrix of this kind.
    Embedding,
    /// Learned positions.
    Positions,
    /// Output head.
    Head,
}

impl MatrixKind {
    /// Every kind, by the name it has in schemes.
    pub const ALL: [(&'static str, MatrixKind); 15] = [
        ("wq", MatrixKind::Query),
        ("wk", MatrixKind::Key),
        ("wv", MatrixKind::Value),
        ("wo", MatrixKind::AttentionOutput),
        ("cq", MatrixKind::CrossQuery),
        ("ck", MatrixKind::CrossKey),
        ("cv", MatrixKind::CrossValue),
        ("co", MatrixKind::CrossOutput),
        ("w1", MatrixKind::FeedForwardIn),
        ("wg", MatrixKind::FeedForwardGate),
        ("w2", MatrixKind::FeedForwardOut),
        ("gate", MatrixKind::Gate),
        ("embedding", MatrixKind::Embedding),
        ("positions", MatrixKind::Positions),
        ("head", MatrixKind::Head),
    ];

    /// The word for all matrices of the blocks.
    pub const GROUP: &'static str = "matrices";

    /// Its name in schemes.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// The kinds that a word stands for.
    pub(crate) fn named(word: &str) -> Option<Vec<MatrixKind>> {
        if word == Self::GROUP {
            return Some(Self::ALL[..11].iter().map(|&(_, kind)| kind).collect());
        }
        Self::ALL.iter().find(|(known, _)| *known == word).map(|&(_, kind)| vec![kind])
    }
}

/// A distribution of initial weights; fan-in and fan-out are the matrix's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DistributionKind {
    /// normal(standard deviation)
    Normal,
    /// truncated_normal(standard deviation, cut): redrawn beyond `cut` standard deviations (2 if not given).
    TruncatedNormal,
    /// uniform(bound): between -bound and bound.
    Uniform,
    /// xavier_normal(gain = 1): standard deviation gain * sqrt(2/(fan_in + fan_out)).
    XavierNormal,
    /// xavier_uniform(gain = 1): bound gain * sqrt(6/(fan_in + fan_out)).
    XavierUniform,
    /// fan_in_normal(gain = 1): standard deviation gain/sqrt(fan_in).
    FanInNormal,
    /// fan_in_uniform(gain = 1): bound gain/sqrt(fan_in).
    FanInUniform,
}

impl DistributionKind {
    /// Every distribution: name, kind, fewest and most arguments.
    pub const ALL: [(&'static str, DistributionKind, usize, usize); 7] = [
        ("normal", DistributionKind::Normal, 1, 1),
        ("truncated_normal", DistributionKind::TruncatedNormal, 1, 2),
        ("uniform", DistributionKind::Uniform, 1, 1),
        ("xavier_normal", DistributionKind::XavierNormal, 0, 1),
        ("xavier_uniform", DistributionKind::XavierUniform, 0, 1),
        ("fan_in_normal", DistributionKind::FanInNormal, 0, 1),
        ("fan_in_uniform", DistributionKind::FanInUniform, 0, 1),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|row| row.1 == self).map_or("", |row| row.0)
    }
}

/// One `init` line.
#[derive(Debug, Clone, PartialEq)]
pub struct InitRule {
    /// The matrices it is for.
    pub kinds: Vec<MatrixKind>,
    /// The distribution it sets, with its arguments.
    pub distribution: Option<(DistributionKind, Vec<Scalar>)>,
    /// The factor it multiplies by.
    pub times: Option<Scalar>,
}

/// All `init` lines, in order.
pub type InitRules = Vec<InitRule>;

/// What one matrix of one block starts from: a distribution with numbers.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(tag = "distribution", rename_all = "snake_case")]
pub enum Initializer {
    /// Normal with this standard deviation.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Normal, redrawn beyond `cut` standard deviations.
    TruncatedNormal {
        /// Standard deviation before the cut.
        std: f64,
        /// In standard deviations.
        cut: f64,
    },
    /// Uniform between -bound and bound.
    Uniform {
        /// The bound.
        bound: f64,
    },
}

impl Initializer {
    /// With every weight multiplied by `factor`.
    pub fn times(self, factor: f64) -> Self {
        match self {
            Initializer::Normal { std } => Initializer::Normal { std: std * factor },
            Initializer::TruncatedNormal { std, cut } => Initializer::TruncatedNormal { std: std * factor, cut },
            Initializer::Uniform { bound } => Initializer::Uniform { bound: bound * factor },
        }
    }

    /// In words, with numbers to five digits.
    pub fn describe(self) -> String {
        let short = |value: f64| format!("{value:.4e}").parse::<f64>().unwrap_or(value);
        match self {
            Initializer::Normal { std } => format!("normal, std {}", short(std)),
            Initializer::TruncatedNormal { std, cut } => format!("normal, std {}, cut at {cut} std", short(std)),
            Initializer::Uniform { bound } => format!("uniform, within {}", short(bound)),
        }
    }
}

/// What `init` lines say of one kind of matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct InitRow {
    /// The distribution with its numbers, where one is set.
    pub distribution: Option<(DistributionKind, Vec<f64>)>,
    /// What every weight is multiplied by.
    pub factor: f64,
}

/// The initialisers of one block, before fan-in and fan-out are known.
#[derive(Debug, Clone, PartialEq)]
pub struct InitTable {
    /// For each kind that the scheme speaks of.
    pub rows: BTreeMap<MatrixKind, InitRow>,
}

impl InitTable {
    /// What a matrix of this kind and shape starts from; `default` where the scheme leaves it open.
    pub fn initializer(&self, kind: MatrixKind, fan_in: usize, fan_out: usize, default: Initializer) -> Initializer {
        let Some(row) = self.rows.get(&kind) else {
            return default;
        };
        let base = match &row.distribution {
            None => default,
            Some((distribution, arguments)) => {
                let argument = |at: usize, otherwise: f64| arguments.get(at).copied().unwrap_or(otherwise);
                let (fan_in, fan_out) = (fan_in as f64, fan_out as f64);
                match distribution {
                    DistributionKind::Normal => Initializer::Normal { std: argument(0, 0.0) },
                    DistributionKind::TruncatedNormal => {
                        Initializer::TruncatedNormal { std: argument(0, 0.0), cut: argument(1, 2.0) }
                    }
                    DistributionKind::Uniform => Initializer::Uniform { bound: argument(0, 0.0) },
                    DistributionKind::XavierNormal => {
                        Initializer::Normal { std: argument(0, 1.0) * (2.0 / (fan_in + fan_out)).sqrt() }
                    }
                    DistributionKind::XavierUniform => {
                        Initializer::Uniform { bound: argument(0, 1.0) * (6.0 / (fan_in + fan_out)).sqrt() }
                    }
                    DistributionKind::FanInNormal => Initializer::Normal { std: argument(0, 1.0) / fan_in.sqrt() },
                    DistributionKind::FanInUniform => Initializer::Uniform { bound: argument(0, 1.0) / fan_in.sqrt() },
                }
            }
        };
        base.times(row.factor)
    }
}
