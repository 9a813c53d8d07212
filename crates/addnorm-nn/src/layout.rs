//! Which parameters a model has, what each is for, and where it is.

use std::collections::BTreeMap;

use addnorm_scheme::{HeadNormScope, Initializer, MatrixKind, NormKind, Place, Plan, Section, Sublayer};

use crate::config::{ModelConfig, Positions};

/// What a parameter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A matrix; the only ones that weight decay applies to.
    Matrix(MatrixKind),
    /// A bias of a linear map.
    Bias,
    /// A gain of a norm.
    Gain,
    /// A bias of a norm.
    NormBias,
    /// A learnable of the scheme, or a factor on heads.
    Learnable,
}

/// Where a parameter starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InitialValue {
    /// Drawn.
    Random(Initializer),
    /// The same number everywhere.
    Constant(f64),
}

/// One parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterInfo {
    /// Its name, such as `blocks.3.attn.wq`.
    pub name: String,
    /// One or two sizes; a matrix is `[input, output]`, a table `[rows, width]`.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// The block that it belongs to, from 1.
    pub block: Option<usize>,
    /// Where it starts.
    pub initial: InitialValue,
}

impl ParameterInfo {
    /// Whether weight decay applies: to matrices only, never to gains, biases or scalars.
    pub fn decays(&self) -> bool {
        matches!(self.role, Role::Matrix(_))
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Where a norm's parameters are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormAt {
    pub gain: usize,
    pub bias: Option<usize>,
}

/// Where a linear map's parameters are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinearAt {
    pub weight: usize,
    pub bias: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct AttentionAt {
    pub query: LinearAt,
    pub key: LinearAt,
    pub value: LinearAt,
    pub output: LinearAt,
    pub query_norm: Option<NormAt>,
    pub key_norm: Option<NormAt>,
    pub value_norm: Option<NormAt>,
    pub inner_norm: Option<NormAt>,
    pub head_scale: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct FeedForwardAt {
    pub input: LinearAt,
    pub gate: Option<LinearAt>,
    pub output: LinearAt,
    pub inner_norm: Option<NormAt>,
}

/// Where the parameters of one section are.
#[derive(Debug, Clone, Default)]
pub(crate) struct SectionAt {
    pub norms: BTreeMap<String, NormAt>,
    pub learnables: BTreeMap<String, usize>,
    pub attention: Option<AttentionAt>,
    pub feed_forward: Option<FeedForwardAt>,
}

/// Where everything is.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub parameters: Vec<ParameterInfo>,
    pub embedding: usize,
    pub positions: Option<usize>,
    pub head: usize,
    pub embed: SectionAt,
    pub blocks: Vec<SectionAt>,
    pub head_section: SectionAt,
}

impl Layout {
    pub(crate) fn section(&self, place: Place) -> &SectionAt {
        match place {
            Place::Embed => &self.embed,
            Place::Block(block) => &self.blocks[block - 1],
            Place::Head => &self.head_section,
        }
    }

    pub(crate) fn new(plan: &Plan, config: &ModelConfig, norm: NormKind) -> Self {
        let mut builder = Builder { plan, config, norm, parameters: Vec::new() };
        let width = config.width;
        let table = |builder: &mut Builder, kind: MatrixKind, section: &Section, rows: usize| {
            // A table is read by rows: fan-in and fan-out as an embedding's.
            let initializer = section.init.initializer(kind, rows, width, builder.default_initializer());
            let initial = InitialValue::Random(initializer);
            builder.add(kind.name().to_string(), vec![rows, width], Role::Matrix(kind), None, initial)
        };
        let embedding = table(&mut builder, MatrixKind::Embedding, &plan.embed, config.vocabulary);
        let positions = (config.positions == Positions::Learned)
            .then(|| table(&mut builder, MatrixKind::Positions, &plan.embed, config.context));
        let embed = builder.section(&plan.embed);
        let blocks = plan.blocks.iter().map(|section| builder.section(section)).collect();
        let head_section = builder.section(&plan.head);
        let head = if config.tied {
            embedding
        } else {
            let initializer =
                plan.head.init.initializer(MatrixKind::Head, width, config.vocabulary, builder.default_initializer());
            let initial = InitialValue::Random(initializer);
            let shape = vec![config.vocabulary, width];
            builder.add("head".to_string(), shape, Role::Matrix(MatrixKind::Head), None, initial)
        };
        Layout { parameters: builder.parameters, embedding, positions, head, embed, blocks, head_section }
    }
}

struct Builder<'a> {
    plan: &'a Plan,
    config: &'a ModelConfig,
    norm: NormKind,
    parameters: Vec<ParameterInfo>,
}

impl Builder<'_> {
    fn default_initializer(&self) -> Initializer {
        Initializer::Normal { std: self.config.init_std }
    }

    fn add(
        &mut self,
        name: String,
        shape: Vec<usize>,
        role: Role,
        block: Option<usize>,
        initial: InitialValue,
    ) -> usize {
        self.parameters.push(ParameterInfo { name, shape, role, block, initial });
        self.parameters.len() - 1
    }

    fn section(&mut self, section: &Section) -> SectionAt {
        let prefix = section.place.prefix();
        let block = if let Place::Block(block) = section.place { Some(block) } else { None };
        let mut at = SectionAt::default();
        for name in section.norms() {
            let norm = self.norm(&format!("{prefix}.{name}"), self.config.width, block);
            at.norms.insert(name.to_string(), norm);
        }
        for learnable in &section.learnables {
            let size = if learnable.vector { self.config.width } else { 1 };
            let initial = InitialValue::Constant(learnable.initial);
            // In a space of their own: a learnable may have the name of a matrix.
            let name = format!("{prefix}.learned.{}", learnable.name);
            let index = self.add(name, vec![size], Role::Learnable, block, initial);
            at.learnables.insert(learnable.name.clone(), index);
        }
        if section.applies(Sublayer::Attention) {
            at.attention = Some(self.attention(section, &format!("{prefix}.attn"), block));
        }
        if section.applies(Sublayer::FeedForward) {
            at.feed_forward = Some(self.feed_forward(section, &format!("{prefix}.ffn"), block));
        }
        at
    }

    fn norm(&mut self, name: &str, width: usize, block: Option<usize>) -> NormAt {
        // The gain in effect starts at one, however it is stored.
        let initial = InitialValue::Constant(1.0 - self.norm.gain_offset());
        let gain = self.add(format!("{name}.gain"), vec![width], Role::Gain, block, initial);
        let bias = self
            .norm
            .has_bias()
            .then(|| self.add(format!("{name}.bias"), vec![width], Role::NormBias, block, InitialValue::Constant(0.0)));
        NormAt { gain, bias }
    }

    fn linear(&mut self, section: &Section, prefix: &str, kind: MatrixKind, input: usize, output: usize) -> LinearAt {
        let block = if let Place::Block(block) = section.place { Some(block) } else { None };
        let initializer = section.init.initializer(kind, input, output, self.default_initializer());
        let initial = InitialValue::Random(initializer);
        let name = format!("{prefix}.{}", kind.name());
        let weight = self.add(name, vec![input, output], Role::Matrix(kind), block, initial);
        let bias = self.config.bias.then(|| {
            // wq has the bias bq, and so on.
            let name = format!("{prefix}.b{}", &kind.name()[1..]);
            self.add(name, vec![output], Role::Bias, block, InitialValue::Constant(0.0))
        });
        LinearAt { weight, bias }
    }

    fn attention(&mut self, section: &Section, prefix: &str, block: Option<usize>) -> AttentionAt {
        let (width, head) = (self.config.width, self.config.head_width());
        let (heads, kv_heads) = (self.config.heads, self.config.key_value_heads());
        let options = self.plan.options;
        let query = self.linear(section, prefix, MatrixKind::Query, width, width);
        let key = self.linear(section, prefix, MatrixKind::Key, width, head * kv_heads);
        let value = self.linear(section, prefix, MatrixKind::Value, width, head * kv_heads);
        let projection_norm = |builder: &mut Self, name: &str, wanted: bool, count: usize| {
            let norms = options.projection_norms.filter(|_| wanted)?;
            let width = if norms.scope == HeadNormScope::PerHead { head } else { head * count };
            Some(builder.norm(&format!("{prefix}.{name}"), width, block))
        };
        let wanted = options.projection_norms;
        let query_norm = projection_norm(self, "query_norm", wanted.is_some_and(|norms| norms.query), heads);
        let key_norm = projection_norm(self, "key_norm", wanted.is_some_and(|norms| norms.key), kv_heads);
        let value_norm = projection_norm(self, "value_norm", wanted.is_some_and(|norms| norms.value), kv_heads);
        let head_scale = options.scaled_heads.then(|| {
            let name = format!("{prefix}.head_scale");
            self.add(name, vec![heads], Role::Learnable, block, InitialValue::Constant(1.0))
        });
        let inner_norm = options.attention_inner_norm.then(|| self.norm(&format!("{prefix}.inner_norm"), width, block));
        let output = self.linear(section, prefix, MatrixKind::AttentionOutput, width, width);
        AttentionAt { query, key, value, output, query_norm, key_norm, value_norm, inner_norm, head_scale }
    }

    fn feed_forward(&mut self, section: &Section, prefix: &str, block: Option<usize>) -> FeedForwardAt {
        let (width, hidden) = (self.config.width, self.config.hidden_width());
        let input = self.linear(section, prefix, MatrixKind::FeedForwardIn, width, hidden);
        let gate = self
            .config
            .activation
            .is_gated()
            .then(|| self.linear(section, prefix, MatrixKind::FeedForwardGate, width, hidden));
        let inner_norm =
            self.plan.options.ffn_inner_norm.then(|| self.norm(&format!("{prefix}.inner_norm"), hidden, block));
        let output = self.linear(section, prefix, MatrixKind::FeedForwardOut, hidden, width);
        FeedForwardAt { input, gate, output, inner_norm }
    }
}
