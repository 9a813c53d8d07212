//! A plan with sizes.

use std::sync::Arc;

use addnorm_kernels::statistics;
use addnorm_scheme::cost::{Cost, Sizes, cost};
use addnorm_scheme::{Dimensions, HeadNormScope, NormKind, Plan, PlanError, ProjectionNorms, Scheme, Stack};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, ModelConfig, QkNorm, StackKind};
use crate::forward::{ForwardOptions, Parameters, Pass};
use crate::gradient::{part, parts_of, side_by_side};
use crate::inputs::{Inputs, Tokens};
use crate::layout::{InitialValue, Layout, ParameterInfo, Role};
use crate::observer::{NoObserver, Observer};
use crate::sparse_norm::SparseNorms;
use crate::weights::{Weight, Weights};

/// A Transformer with its scheme: every parameter by name, none of their numbers.
#[derive(Debug, Clone)]
pub struct Model {
    /// One, or those of a pair, the encoder's first.
    pub(crate) plans: Vec<Plan>,
    pub(crate) config: ModelConfig,
    pub(crate) norm: NormKind,
    pub(crate) layout: Layout,
    pub(crate) sparse_norms: SparseNorms,
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
        let (encoder, decoder) = (config.blocks, config.blocks_of_decoder());
        let stacks = match config.stack {
            StackKind::Decoder => vec![(encoder, Stack::Decoder)],
            StackKind::Encoder | StackKind::Vision => vec![(encoder, Stack::Encoder)],
            StackKind::Pair => vec![
                (encoder, Stack::PairEncoder { decoder_blocks: decoder }),
                (decoder, Stack::PairDecoder { encoder_blocks: encoder }),
            ],
        };
        let plan = |(blocks, stack)| -> Result<Plan, ModelError> {
            let mut plan = scheme.plan(Dimensions { blocks, width: config.width, heads: config.heads, stack })?;
            let scope = match config.qk_norm {
                QkNorm::None => None,
                QkNorm::PerHead => Some(HeadNormScope::PerHead),
                QkNorm::FullWidth => Some(HeadNormScope::FullWidth),
            };
            let norms = scope.map(|scope| ProjectionNorms { query: true, key: true, value: false, scope });
            for options in [&mut plan.options.attention, &mut plan.options.cross] {
                options.projection_norms = options.projection_norms.or(norms);
            }
            Ok(plan)
        };
        let plans = stacks.into_iter().map(plan).collect::<Result<Vec<_>, _>>()?;
        let norm = plans[0].norm.unwrap_or(config.norm);
        let layout = Layout::new(&plans, config, norm)?;
        Ok(Self { plans, config: config.clone(), norm, layout, sparse_norms: SparseNorms::Off })
    }

    /// The plan; of a pair its decoder's.
    pub fn plan(&self) -> &Plan {
        &self.plans[self.plans.len() - 1]
    }

    /// Every plan: one, or those of a pair, the encoder's first.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
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
            head_width: config.width_of_head(),
            ffn_width: config.hidden_width(),
            gated: config.activation.is_gated(),
            bias: config.bias,
            qkv_bias: config.qkv_bias.unwrap_or(config.bias),
            norm: self.norm,
            answers: config.answers(),
            context: config.sequence(),
            outside: self.parameters().iter().filter(|info| info.is_outside()).map(ParameterInfo::elements).sum(),
            shared_blocks: config.shared_blocks,
        };
        cost(&self.plans, sizes)
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

    /// The logits, `[batch, time, vocabulary]`; of images `[batch, 1, classes]`.
    ///
    /// # Panics
    /// If a token is not in the vocabulary or the sequences are longer than a learned table of positions.
    pub fn logits(
        &self,
        weights: &Weights,
        inputs: impl Into<Inputs>,
        options: ForwardOptions,
        observer: &mut dyn Observer,
    ) -> Tensor<3> {
        let mut pass = Pass::new(self, Parameters::Plain(weights), options, observer, 0);
        let x = pass.whole(&inputs.into());
        pass.logits(x)
    }

    /// What a pair's encoder gives of some sources, `[batch, source time, d]`; `visible` tells which of their
    /// tokens are no padding.
    ///
    /// # Panics
    /// If this is no pair, or as [`logits`](Model::logits).
    pub fn encode(
        &self,
        weights: &Weights,
        source: &Tokens,
        visible: Arc<[bool]>,
        options: ForwardOptions,
    ) -> Tensor<3> {
        let mut unseen = NoObserver;
        let mut pass = Pass::new(self, Parameters::Plain(weights), options, &mut unseen, 0);
        pass.encode(source, visible)
    }

    /// The logits of a pair's decoder, `[rows, time, answers]`, from what [`encode`](Model::encode) gave: row
    /// `i` of `target` attends to source `which[i]`; `visible` has the marks of every row's source.
    ///
    /// # Panics
    /// As [`encode`](Model::encode).
    pub fn decode(
        &self,
        weights: &Weights,
        encoded: Tensor<3>,
        which: &[usize],
        visible: Arc<[bool]>,
        target: &Tokens,
        options: ForwardOptions,
    ) -> Tensor<3> {
        let rows: Vec<i32> = which.iter().map(|&source| source as i32).collect();
        let count = rows.len();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [count]), &encoded.device());
        let mut unseen = NoObserver;
        let mut pass = Pass::new(self, Parameters::Plain(weights), options, &mut unseen, 0);
        let x = pass.decode(encoded.select(0, rows), visible, target);
        pass.logits(x)
    }

    /// The loss of every target that counts, in nats; `[batch * time]` where all do.
    ///
    /// # Panics
    /// As [`logits`](Model::logits), or if there is not one target a position.
    pub fn losses(
        &self,
        weights: &Weights,
        inputs: impl Into<Inputs>,
        targets: Arc<[u32]>,
        options: ForwardOptions,
        observer: &mut dyn Observer,
    ) -> Tensor<1> {
        let mut pass = Pass::new(self, Parameters::Plain(weights), options, observer, 0);
        let x = pass.whole(&inputs.into());
        pass.losses(x, &targets)
    }

    /// The sum of the losses of all targets that count, in nats. On the CPU the sequences are parted among the threads
    /// of the current pool, and the sum is made in their order.
    ///
    /// # Panics
    /// As [`losses`](Model::losses).
    pub fn total_loss(
        &self,
        weights: &Weights,
        inputs: impl Into<Inputs>,
        targets: Arc<[u32]>,
        options: ForwardOptions,
    ) -> f64 {
        let inputs = inputs.into();
        let parts = part(&inputs, &targets, parts_of(&inputs, weights));
        let losses = side_by_side(parts, |_, part| {
            let losses = self.losses(weights, &part.inputs, part.targets, options, &mut NoObserver);
            statistics::to_f64(&losses)
        });
        losses.into_iter().flatten().sum()
    }
}
