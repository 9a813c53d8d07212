//! Which parameters a model has, what each is for, and where it is.

use std::collections::BTreeMap;

use addnorm_scheme::{
    AttentionOptions, HeadNormScope, Initializer, MatrixKind, NormKind, NormNumbers, Place, Plan, Section, Sublayer,
};

use crate::config::{ConfigError, ModelConfig, Positions, StackKind};

/// Where the factor inside a norm without statistics starts (arXiv:2503.10622).
const DYT_ALPHA: f64 = 0.5;

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

    /// Whether it belongs to no section of a plan: embeddings, positions, and the output.
    pub fn is_outside(&self) -> bool {
        let name = self.name.trim_start_matches("encoder.").trim_start_matches("decoder.");
        let of_section = self.block.is_some() || name.starts_with("embed.");
        !of_section && (!name.starts_with("head.") || name.starts_with("head.transform") || name == "head.bias")
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Where a norm's parameters are, and what it has of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormAt {
    pub gain: Option<usize>,
    pub bias: Option<usize>,
    /// The factor inside a norm that takes no statistics.
    pub alpha: Option<usize>,
    pub epsilon: Option<f64>,
    /// Whether what it reads has one more entry than is stored, minus the sum of the others.
    pub implied: bool,
}

/// Where a linear map's parameters are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinearAt {
    pub weight: usize,
    pub bias: Option<usize>,
    /// Whether the mean over its outputs is taken off.
    pub centred: bool,
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
    pub scope: HeadNormScope,
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
    pub gates: BTreeMap<String, LinearAt>,
    pub learnables: BTreeMap<String, usize>,
    pub attention: Option<AttentionAt>,
    pub cross: Option<AttentionAt>,
    pub feed_forward: Option<FeedForwardAt>,
}

/// Where the parameters are that make a stream out of tokens or patches.
#[derive(Debug, Clone)]
pub(crate) struct EntranceAt {
    /// The token embedding.
    pub table: Option<usize>,
    pub patches: Option<LinearAt>,
    pub class_token: Option<usize>,
    pub positions: Option<usize>,
    pub token_types: Option<usize>,
    pub norm: Option<NormAt>,
    /// From a narrower embedding to the stream.
    pub widening: Option<LinearAt>,
    /// Whether the means of the rows of the tables are taken off.
    pub centred_table: bool,
    pub centred_positions: bool,
}

/// Where the parameters of one stack are.
#[derive(Debug, Clone)]
pub(crate) struct TowerAt {
    pub entrance: EntranceAt,
    pub embed: SectionAt,
    pub blocks: Vec<SectionAt>,
    pub head: SectionAt,
}

impl TowerAt {
    pub(crate) fn section(&self, place: Place) -> &SectionAt {
        match place {
            Place::Embed => &self.embed,
            Place::Block(block) => &self.blocks[block - 1],
            Place::Head => &self.head,
        }
    }
}

/// Where the parameters of the output are.
#[derive(Debug, Clone)]
pub(crate) struct ExitAt {
    pub transform: Option<(LinearAt, NormAt)>,
    pub matrix: usize,
    pub bias: Option<usize>,
}

/// Where everything is.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub parameters: Vec<ParameterInfo>,
    /// The encoder of a pair comes first.
    pub towers: Vec<TowerAt>,
    pub exit: ExitAt,
}

impl Layout {
    /// # Errors
    /// If blocks are to share parameters that they do not all have.
    pub(crate) fn new(plans: &[Plan], config: &ModelConfig, norm: NormKind) -> Result<Self, ConfigError> {
        let stored = norm.stored_width(config.width);
        let mut builder = Builder { plan: &plans[0], config, norm, stored, prefix: "", parameters: Vec::new() };
        let mut towers: Vec<TowerAt> = Vec::new();
        for (number, plan) in plans.iter().enumerate() {
            builder.plan = plan;
            builder.prefix = match (plans.len(), number) {
                (1, _) => "",
                (_, 0) => "encoder.",
                _ => "decoder.",
            };
            Builder::gains(plan, norm)?;
            let shared = towers.first().filter(|_| config.tied).and_then(|tower| tower.entrance.table);
            let entrance = builder.entrance(shared);
            let embed = builder.section(&plan.embed);
            let blocks = builder.blocks()?;
            let head = builder.section(&plan.head);
            towers.push(TowerAt { entrance, embed, blocks, head });
        }
        builder.prefix = "";
        let exit = builder.exit(towers[towers.len() - 1].entrance.table);
        Ok(Layout { parameters: builder.parameters, towers, exit })
    }
}

struct Builder<'a> {
    plan: &'a Plan,
    config: &'a ModelConfig,
    norm: NormKind,
    /// How wide a stream is stored.
    stored: usize,
    prefix: &'static str,
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
        let name = format!("{}{name}", self.prefix);
        self.parameters.push(ParameterInfo { name, shape, role, block, initial });
        self.parameters.len() - 1
    }

    fn centred(&self, kind: MatrixKind) -> bool {
        self.plan.centred.contains(&kind)
    }

    /// A table read by rows: fan-in and fan-out as an embedding's.
    fn table(&mut self, kind: MatrixKind, name: &str, section: &Section, rows: usize, width: usize) -> usize {
        let initializer = section.init.initializer(kind, rows, width, self.default_initializer());
        let initial = InitialValue::Random(initializer);
        self.add(name.to_string(), vec![rows, width], Role::Matrix(kind), None, initial)
    }

    /// `shared`: the table of the tower before, where both are to have one.
    fn entrance(&mut self, shared: Option<usize>) -> EntranceAt {
        let (plan, config) = (self.plan, self.config);
        let is_image = config.stack == StackKind::Vision;
        let narrow = config.width_of_embedding() != config.width;
        let width = if narrow { config.embedding_width } else { self.stored };
        let kind = MatrixKind::Embedding;
        let table = (!is_image)
            .then(|| shared.unwrap_or_else(|| self.table(kind, kind.name(), &plan.embed, config.vocabulary, width)));
        let patches = is_image.then(|| {
            let fan_in = config.patch_width();
            let initializer = plan.embed.init.initializer(kind, fan_in, width, self.default_initializer());
            let initial = InitialValue::Random(initializer);
            let weight = self.add("patches.w".into(), vec![fan_in, width], Role::Matrix(kind), None, initial);
            let bias = self.add("patches.b".into(), vec![width], Role::Bias, None, InitialValue::Constant(0.0));
            LinearAt { weight, bias: Some(bias), centred: self.centred(kind) }
        });
        // Trained like a position, so it starts like one; a vector all the same.
        let class_token = is_image.then(|| {
            let kind = MatrixKind::Positions;
            let initializer = plan.embed.init.initializer(kind, 1, width, self.default_initializer());
            let initial = InitialValue::Random(initializer);
            self.add("class_token".into(), vec![1, width], Role::Matrix(kind), None, initial)
        });
        let positions = (config.positions == Positions::Learned).then(|| {
            let kind = MatrixKind::Positions;
            self.table(kind, kind.name(), &plan.embed, config.sequence(), width)
        });
        let token_types = (config.token_types > 0)
            .then(|| self.table(MatrixKind::Positions, "token_types", &plan.embed, config.token_types, width));
        let implied = self.norm == NormKind::Crmsnorm && !narrow;
        let norm = config.embedding_norm.then(|| NormAt { implied, ..self.norm("embedding_norm", width, None, None) });
        let widening = narrow.then(|| {
            let initial = InitialValue::Random(self.default_initializer());
            let stored = self.stored;
            let weight = self.add("widening.w".into(), vec![width, stored], Role::Matrix(kind), None, initial);
            let bias = self.add("widening.b".into(), vec![stored], Role::Bias, None, InitialValue::Constant(0.0));
            LinearAt { weight, bias: Some(bias), centred: self.centred(kind) }
        });
        let centred_table = self.centred(kind) && !narrow;
        let centred_positions = self.centred(MatrixKind::Positions) && !narrow;
        EntranceAt {
            table,
            patches,
            class_token,
            positions,
            token_types,
            norm,
            widening,
            centred_table,
            centred_positions,
        }
    }

    fn exit(&mut self, table: Option<usize>) -> ExitAt {
        let (config, section) = (self.config, &self.plan.head);
        let narrow = config.width_of_embedding() != config.width;
        let width = if config.output_transform && narrow { config.embedding_width } else { self.stored };
        let transform = config.output_transform.then(|| {
            let initial = InitialValue::Random(self.default_initializer());
            let shape = vec![self.stored, width];
            let weight = self.add("head.transform.w".into(), shape, Role::Matrix(MatrixKind::Head), None, initial);
            let bias = self.add("head.transform.b".into(), vec![width], Role::Bias, None, InitialValue::Constant(0.0));
            // What the map gives is no stream, and has all its entries.
            let norm = self.norm("head.transform.norm", width, None, None);
            (LinearAt { weight, bias: Some(bias), centred: false }, norm)
        });
        let matrix = match table.filter(|_| config.tied) {
            Some(table) => table,
            None => {
                let kind = MatrixKind::Head;
                let initializer = section.init.initializer(kind, width, config.answers(), self.default_initializer());
                let shape = vec![config.answers(), width];
                self.add("head".to_string(), shape, Role::Matrix(kind), None, InitialValue::Random(initializer))
            }
        };
        let bias = config.logit_bias.then(|| {
            self.add("head.bias".into(), vec![config.answers()], Role::Bias, None, InitialValue::Constant(0.0))
        });
        ExitAt { transform, matrix, bias }
    }

    fn blocks(&mut self) -> Result<Vec<SectionAt>, ConfigError> {
        let plan = self.plan;
        if !self.config.shared_blocks {
            return Ok(plan.blocks.iter().map(|section| self.section(section)).collect());
        }
        let names = |section: &Section| {
            let learnables = section.learnables.iter().map(|learnable| (learnable.name.clone(), learnable.size));
            let norms: Vec<String> = section.norms().map(String::from).collect();
            let gates: Vec<String> = section.gates().map(|(name, _)| name.to_string()).collect();
            (norms, gates, learnables.collect::<Vec<_>>())
        };
        let first = names(&plan.blocks[0]);
        if let Some(other) = plan.blocks.iter().find(|section| names(section) != first) {
            let message = format!(
                "the scheme '{}' has other norms or learnables in {} than in the first block, which cannot be shared",
                plan.scheme,
                other.place.prefix()
            );
            return Err(ConfigError { section: "model", key: "shared_blocks", message });
        }
        let shared = self.section(&plan.blocks[0]);
        Ok(vec![shared; plan.blocks.len()])
    }

    /// # Errors
    /// If a norm is to start from a gain, and the kind in use has none.
    fn gains(plan: &Plan, norm: NormKind) -> Result<(), ConfigError> {
        let own = plan.sections().flat_map(|section| &section.norm_numbers);
        let lost = own.into_iter().find(|(_, numbers)| numbers.gain != 1.0 && !norm.has_gain());
        match lost {
            Some((name, numbers)) => Err(ConfigError {
                section: "model",
                key: "norm",
                message: format!(
                    "{} has no gain, and in '{}' the gain of {name} starts at {:.4}",
                    norm.name(),
                    plan.scheme,
                    numbers.gain
                ),
            }),
            None => Ok(()),
        }
    }

    fn section(&mut self, section: &Section) -> SectionAt {
        let prefix = section.place.prefix();
        let block = if let Place::Block(block) = section.place { Some(block) } else { None };
        let mut at = SectionAt::default();
        for name in section.norms() {
            let norm = self.norm(&format!("{prefix}.{name}"), self.stored, block, section.norm_numbers.get(name));
            at.norms.insert(name.to_string(), NormAt { implied: self.norm == NormKind::Crmsnorm, ..norm });
        }
        for (name, start) in section.gates() {
            let kind = MatrixKind::Gate;
            let stored = self.stored;
            let initializer = section.init.initializer(kind, stored, stored, self.default_initializer());
            let initial = InitialValue::Random(initializer);
            let weight =
                self.add(format!("{prefix}.{name}.w"), vec![stored, stored], Role::Matrix(kind), block, initial);
            let start = InitialValue::Constant(start.fixed().unwrap_or(0.0));
            let bias = self.add(format!("{prefix}.{name}.b"), vec![stored], Role::Bias, block, start);
            at.gates.insert(name.to_string(), LinearAt { weight, bias: Some(bias), centred: false });
        }
        for learnable in &section.learnables {
            let size = learnable.size.elements(self.stored);
            let initial = InitialValue::Constant(learnable.initial);
            // In a space of their own: a learnable may have the name of a matrix.
            let name = format!("{prefix}.learned.{}", learnable.name);
            let index = self.add(name, vec![size], Role::Learnable, block, initial);
            at.learnables.insert(learnable.name.clone(), index);
        }
        let options = self.plan.options;
        if section.applies(Sublayer::Attention) {
            at.attention = Some(self.attention(section, Sublayer::Attention, options.attention));
        }
        if section.applies(Sublayer::Cross) {
            at.cross = Some(self.attention(section, Sublayer::Cross, options.cross));
        }
        if section.applies(Sublayer::FeedForward) {
            at.feed_forward = Some(self.feed_forward(section, &format!("{prefix}.ffn"), block));
        }
        at
    }

    /// A norm inside a sublayer, or with `implied` set afterwards one on the stream.
    fn norm(&mut self, name: &str, width: usize, block: Option<usize>, own: Option<&NormNumbers>) -> NormAt {
        let kind = self.norm;
        // The gain in effect starts at one or where the scheme says, however it is stored.
        let start = own.map_or(1.0, |own| own.gain) - kind.gain_offset();
        let add = |builder: &mut Self, part: &str, width: usize, role: Role, start: f64| {
            builder.add(format!("{name}.{part}"), vec![width], role, block, InitialValue::Constant(start))
        };
        let gain = kind.has_gain().then(|| add(self, "gain", width, Role::Gain, start));
        let bias = kind.has_bias().then(|| add(self, "bias", width, Role::NormBias, 0.0));
        let alpha = (kind == NormKind::Dyt).then(|| add(self, "alpha", 1, Role::Learnable, DYT_ALPHA));
        NormAt { gain, bias, alpha, epsilon: own.and_then(|own| own.epsilon), implied: false }
    }

    fn linear(
        &mut self,
        section: &Section,
        prefix: &str,
        kind: MatrixKind,
        input: usize,
        output: usize,
        has_bias: bool,
    ) -> LinearAt {
        let block = if let Place::Block(block) = section.place { Some(block) } else { None };
        let initializer = section.init.initializer(kind, input, output, self.default_initializer());
        let initial = InitialValue::Random(initializer);
        // The last letter says which: wq and cq both are the queries' of their attention.
        let letter = &kind.name()[1..];
        let weight = self.add(format!("{prefix}.w{letter}"), vec![input, output], Role::Matrix(kind), block, initial);
        let bias = has_bias.then(|| {
            self.add(format!("{prefix}.b{letter}"), vec![output], Role::Bias, block, InitialValue::Constant(0.0))
        });
        LinearAt { weight, bias, centred: self.centred(kind) }
    }

    fn attention(&mut self, section: &Section, sublayer: Sublayer, options: AttentionOptions) -> AttentionAt {
        let prefix = format!("{}.{}", section.place.prefix(), sublayer.name());
        let prefix = prefix.as_str();
        let block = if let Place::Block(block) = section.place { Some(block) } else { None };
        let (stored, head) = (self.stored, self.config.width_of_head());
        let (heads, kv_heads) = (self.config.heads, self.config.key_value_heads());
        let [query, key, value, output] = match sublayer {
            Sublayer::Cross => {
                [MatrixKind::CrossQuery, MatrixKind::CrossKey, MatrixKind::CrossValue, MatrixKind::CrossOutput]
            }
            _ => [MatrixKind::Query, MatrixKind::Key, MatrixKind::Value, MatrixKind::AttentionOutput],
        };
        let qkv_bias = self.config.qkv_bias.unwrap_or(self.config.bias);
        let query = self.linear(section, prefix, query, stored, head * heads, qkv_bias);
        let key = self.linear(section, prefix, key, stored, head * kv_heads, qkv_bias);
        let value = self.linear(section, prefix, value, stored, head * kv_heads, qkv_bias);
        let scope = options.projection_norms.map_or(HeadNormScope::PerHead, |norms| norms.scope);
        let projection_norm = |builder: &mut Self, name: &str, wanted: bool, count: usize| {
            let width = if scope == HeadNormScope::PerHead { head } else { head * count };
            wanted.then(|| builder.norm(&format!("{prefix}.{name}"), width, block, None))
        };
        let wanted = options.projection_norms;
        let query_norm = projection_norm(self, "query_norm", wanted.is_some_and(|norms| norms.query), heads);
        let key_norm = projection_norm(self, "key_norm", wanted.is_some_and(|norms| norms.key), kv_heads);
        let value_norm = projection_norm(self, "value_norm", wanted.is_some_and(|norms| norms.value), kv_heads);
        let head_scale = options.scaled_heads.then(|| {
            let name = format!("{prefix}.head_scale");
            self.add(name, vec![heads], Role::Learnable, block, InitialValue::Constant(1.0))
        });
        let inner_norm =
            options.inner_norm.then(|| self.norm(&format!("{prefix}.inner_norm"), head * heads, block, None));
        let bias = self.config.bias;
        let output = self.linear(section, prefix, output, head * heads, stored, bias);
        AttentionAt { query, key, value, output, query_norm, key_norm, value_norm, scope, inner_norm, head_scale }
    }

    fn feed_forward(&mut self, section: &Section, prefix: &str, block: Option<usize>) -> FeedForwardAt {
        let (stored, hidden, bias) = (self.stored, self.config.hidden_width(), self.config.bias);
        let input = self.linear(section, prefix, MatrixKind::FeedForwardIn, stored, hidden, bias);
        let gate = self
            .config
            .activation
            .is_gated()
            .then(|| self.linear(section, prefix, MatrixKind::FeedForwardGate, stored, hidden, bias));
        let inner_norm =
            self.plan.options.ffn_inner_norm.then(|| self.norm(&format!("{prefix}.inner_norm"), hidden, block, None));
        let output = self.linear(section, prefix, MatrixKind::FeedForwardOut, hidden, stored, bias);
        FeedForwardAt { input, gate, output, inner_norm }
    }
}
