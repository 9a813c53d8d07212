//! A plan with sizes.

use std::sync::Arc;

use addnorm_kernels::statistics;
use addnorm_scheme::cost::{Cost, Sizes, cost};
use addnorm_scheme::{Dimensions, NormKind, Plan, PlanError, Scheme, Stack};
use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, ModelConfig, Positions};
use crate::forward::{ForwardOptions, Parameters, Pass, Tokens};
use crate::gradient::{part, parts_of, side_by_side};
use crate::layout::{InitialValue, Layout, ParameterInfo, Role};
use crate::observer::{NoObserver, Observer};
use crate::weights::{Weight, Weights};

/// A decoder-only Transformer with its scheme: every parameter by name, none of their numbers.
#[derive(Debug, Clone)]
pub struct Model {
    pub(crate) plan: Plan,
    pub(crate) config: ModelConfig,
    pub(crate) norm: NormKind,
    pub(crate) layout: Layout,
}

/// What some kinds of matrices start from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitialiserRow {
    /// The kinds, by their names in schemes.
    pub matrices: Vec<String>,
    /// In the first block, or outside the blocks.
    pub first: String,
    /// In the last block.
    pub last: String,
}

impl InitialiserRow {
    /// First and last in one phrase.
    pub fn words(&self) -> String {
        if self.first == self.last {
            self.first.clone()
        } else {
            format!("{} in block 1, {} in the last", self.first, self.last)
        }
    }
}

/// Why a model cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The scheme does not work at this depth.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A loss with the gradient of every parameter.
pub struct LossAndGradients {
    /// Sum of the losses of all positions, in nats.
    pub total: f64,
    /// The gradient of `total * scale`, in the order of the parameters.
    pub gradients: Vec<Weight>,
}

/// A parameter that no gradient reached. It would never learn, and nothing else would say so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no gradient reaches the parameter '{name}'")]
pub struct GradientError {
    /// The parameter.
    pub name: String,
}

impl Model {
    /// Plans the scheme at the configured depth and lists the parameters.
    ///
    /// # Errors
    /// If a setting is wrong or the scheme does not work at this depth.
    pub fn new(scheme: &Scheme, config: &ModelConfig) -> Result<Self, ModelError> {
        config.validate()?;
        let dimensions =
            Dimensions { blocks: config.blocks, width: config.width, heads: config.heads, stack: Stack::Decoder };
        let plan = scheme.plan(dimensions)?;
        let norm = plan.norm.unwrap_or(config.norm);
        let layout = Layout::new(&plan, config, norm);
        Ok(Self { plan, config: config.clone(), norm, layout })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The norm kind in use: the scheme's, or the configured one.
    pub fn norm_kind(&self) -> NormKind {
        self.norm
    }

    /// Every parameter.
    pub fn parameters(&self) -> &[ParameterInfo] {
        &self.layout.parameters
    }

    /// Number of trainable numbers; a tied head counts once.
    pub fn parameter_count(&self) -> usize {
        self.layout.parameters.iter().map(ParameterInfo::elements).sum()
    }

    /// What it costs.
    pub fn cost(&self) -> Cost {
        let config = &self.config;
        let sizes = Sizes {
            kv_heads: config.key_value_heads(),
            ffn_width: config.hidden_width(),
            gated: config.activation.is_gated(),
            bias: config.bias,
            norm: self.norm,
            vocabulary: config.vocabulary,
            context: config.context,
            learned_positions: config.positions == Positions::Learned,
            tied: config.tied,
        };
        cost(&self.plan, sizes)
    }

    /// What the matrices start from, in words, in the order of the parameters. Kinds that start alike in the
    /// first block and in the last share a row.
    pub fn initialisers(&self) -> Vec<InitialiserRow> {
        let mut kinds: Vec<InitialiserRow> = Vec::new();
        for info in self.parameters() {
            if let (Role::Matrix(kind), InitialValue::Random(initializer)) = (info.role, info.initial) {
                let words = initializer.describe();
                match kinds.iter_mut().find(|row| row.matrices[0] == kind.name()) {
                    Some(row) => row.last = words,
                    None => {
                        let matrices = vec![kind.name().to_string()];
                        kinds.push(InitialiserRow { matrices, first: words.clone(), last: words });
                    }
                }
            }
        }
        let mut rows: Vec<InitialiserRow> = Vec::new();
        for kind in kinds {
            match rows.iter_mut().find(|row| row.first == kind.first && row.last == kind.last) {
                Some(row) => row.matrices.extend(kind.matrices),
                None => rows.push(kind),
            }
        }
        rows
    }

    /// Fresh weights.
    pub fn initialise(&self, seed: u64, device: &Device, dtype: DType) -> Weights {
        Weights::initialise(self.parameters(), seed, device, dtype)
    }

    /// The logits, `[batch, time, vocabulary]`.
    ///
    /// # Panics
    /// If a token is not in the vocabulary or the sequences are longer than a learned table of positions.
    pub fn logits(
        &self,
        weights: &Weights,
        tokens: &Tokens,
        options: ForwardOptions,
        observer: &mut dyn Observer,
    ) -> Tensor<3> {
        let mut pass = Pass::new(self, Parameters::Plain(weights), options, observer, 0);
        let x = pass.whole(tokens);
        pass.logits(x)
    }

    /// The loss of every position in nats, `[batch * time]`.
    ///
    /// # Panics
    /// As [`logits`](Model::logits), or if there is not one target a position.
    pub fn losses(
        &self,
        weights: &Weights,
        tokens: &Tokens,
        targets: Arc<[u32]>,
        options: ForwardOptions,
        observer: &mut dyn Observer,
    ) -> Tensor<1> {
        let mut pass = Pass::new(self, Parameters::Plain(weights), options, observer, 0);
        let x = pass.whole(tokens);
        pass.losses(x, targets)
    }

    /// The sum of the losses of all positions in nats. On the CPU the sequences are parted among the threads
    /// of the current pool, and the sum is made in their order.
    ///
    /// # Panics
    /// As [`losses`](Model::losses).
    pub fn total_loss(&self, weights: &Weights, tokens: &Tokens, targets: Arc<[u32]>, options: ForwardOptions) -> f64 {
        let parts = part(tokens, &targets, parts_of(tokens, weights));
        let losses = side_by_side(parts, |_, part| {
            let losses = self.losses(weights, &part.tokens, part.targets, options, &mut NoObserver);
            statistics::to_f64(&losses)
        });
        losses.into_iter().flatten().sum()
    }
}
