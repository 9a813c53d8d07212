//! The algebra of tensors: what a plan's steps compute.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use addnorm_kernels::{
    Activation, AttentionSettings, HeadNorm, Norm, activated_linear, activation, add_norm, dropout, embedding,
    gated_activation, head_loss, learned_sum, linear, sparse_attention, weighted_sum,
};
use addnorm_scheme::{
    Algebra, HeadNormScope, Mix, NormKind, Operator, Place, Plan, Scalar, ScalarFunction, Section, Sublayer, entry_of,
    interpret_section,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation as functions};

use crate::config::{ActivationKind, ModelConfig, Positions, StackKind};
use crate::gradient::Leaves;
use crate::inputs::{IGNORED, Inputs, Tokens};
use crate::layout::{AttentionAt, LinearAt, NormAt, SectionAt, TowerAt};
use crate::model::Model;
use crate::observer::Observer;
use crate::sparse_norm::SparseNorms;
use crate::weights::{Weight, Weights};

/// What may differ from one forward pass to the next.
#[derive(Debug, Clone, Copy, Default)]
pub struct ForwardOptions {
    /// The seed of this pass's dropout masks; none switches dropout off.
    pub dropout_seed: Option<u64>,
    /// The training step, from 0, for constants that depend on it.
    pub step: u64,
    /// For gradients: how many blocks are run once more at a time in the backward pass, instead of keeping
    /// what they computed; 0 keeps everything.
    pub recompute: usize,
    /// How many sequences of the batch came before the first of these, so that a part of a batch meets the
    /// same dropout masks as in the whole.
    pub first_sequence: usize,
}

/// Where a pass reads the parameters.
#[derive(Clone, Copy)]
pub(crate) enum Parameters<'a> {
    /// As they are: no graph is made unless they are tracked themselves.
    Plain(&'a Weights),
    /// As leaves of a graph.
    Tracked(&'a Leaves<'a>),
}

impl Parameters<'_> {
    fn get(&self, index: usize) -> Weight {
        match self {
            Parameters::Plain(weights) => weights.0[index].clone(),
            Parameters::Tracked(leaves) => leaves.get(index),
        }
    }

    fn vector(&self, index: usize) -> Tensor<1> {
        self.get(index).vector()
    }

    fn matrix(&self, index: usize) -> Tensor<2> {
        self.get(index).matrix()
    }
}

/// One pass of some tokens through the model, or through some of its sections.
pub(crate) struct Pass<'a> {
    model: &'a Model,
    parameters: Parameters<'a>,
    options: ForwardOptions,
    observer: &'a mut dyn Observer,
    /// Dropout masks drawn so far in this pass.
    masks: u64,
    /// The stack that it is in: 0 is the encoder of a pair.
    tower: usize,
    /// What a pair's encoder gave.
    memory: Option<Tensor<3>>,
    /// Which tokens of a pair's source are no padding.
    visible: Option<Arc<[bool]>>,
}

/// A weight of a sum at run time.
#[expect(clippy::large_enum_variant, reason = "one lives at a time, on the stack")]
enum Factor {
    Number(f64),
    /// One element, or one for each dimension of the stream.
    Learned(Tensor<1>),
}

impl<'a> Pass<'a> {
    /// A pass that goes on after `masks` dropout masks.
    pub(crate) fn new(
        model: &'a Model,
        parameters: Parameters<'a>,
        options: ForwardOptions,
        observer: &'a mut dyn Observer,
        masks: u64,
    ) -> Self {
        // Alone, a stack is the last one too.
        let tower = model.plans.len() - 1;
        Pass { model, parameters, options, observer, masks, tower, memory: None, visible: None }
    }

    fn plan(&self) -> &'a Plan {
        &self.model.plans[self.tower]
    }

    fn tower(&self) -> &'a TowerAt {
        &self.model.layout.towers[self.tower]
    }

    fn at(&self, place: Place) -> &'a SectionAt {
        self.tower().section(place)
    }

    fn enter_tower(&mut self, tower: usize) {
        self.tower = tower;
        self.observer.stack(tower);
    }

    /// Dropout masks drawn so far.
    pub(crate) fn masks(&self) -> u64 {
        self.masks
    }

    /// Runs sections by number: 0 is the embedding rule, the last one the head.
    pub(crate) fn sections(&mut self, sections: Range<usize>, mut streams: Vec<Tensor<3>>) -> Vec<Tensor<3>> {
        for section in self.plan().sections().skip(sections.start).take(sections.len()) {
            let Ok(results) = interpret_section(section, self, streams);
            streams = results;
        }
        streams
    }

    /// Runs everything up to what the output reads.
    pub(crate) fn whole(&mut self, inputs: &Inputs) -> Tensor<3> {
        if let Inputs::Pair { source, visible, target } = inputs {
            let memory = self.encode(source, visible.clone());
            return self.decode(memory, visible.clone(), target);
        }
        self.stack(inputs)
    }

    /// The encoder of a pair.
    pub(crate) fn encode(&mut self, source: &Tokens, visible: Arc<[bool]>) -> Tensor<3> {
        self.visible = Some(visible);
        self.enter_tower(0);
        self.stack(&Inputs::Text(source.clone()))
    }

    /// The decoder of a pair.
    pub(crate) fn decode(&mut self, memory: Tensor<3>, visible: Arc<[bool]>, target: &Tokens) -> Tensor<3> {
        self.visible = Some(visible);
        self.memory = Some(memory);
        self.enter_tower(1);
        self.stack(&Inputs::Text(target.clone()))
    }

    fn stack(&mut self, inputs: &Inputs) -> Tensor<3> {
        let streams = self.embed(inputs);
        let sections = self.plan().blocks.len() + 2;
        // The head has one result.
        self.sections(0..sections, streams).swap_remove(0)
    }

    /// What stands between the head's section and the output matrix.
    fn before_output(&self, x: Tensor<3>) -> Tensor<3> {
        match self.model.layout.exit.transform {
            Some((map, norm)) => {
                let x = activation(self.linear(x, map), self.activation());
                self.norm(x, norm)
            }
            None => x,
        }
    }

    /// The output matrix as it is, also where it is an embedding that enters centred: what it reads is not
    /// centred, for the last norm has a gain.
    fn output_matrix(&self) -> Tensor<2> {
        self.parameters.matrix(self.model.layout.exit.matrix)
    }

    /// Of an image the class token alone is asked.
    fn asked(&self, x: Tensor<3>) -> Tensor<3> {
        if self.config().stack == StackKind::Vision { x.slice_dim(1, 0..1) } else { x }
    }

    /// The logits of what the head's section gave, `[batch, time, answers]`.
    pub(crate) fn logits(&self, x: Tensor<3>) -> Tensor<3> {
        let x = self.before_output(self.asked(x));
        let bias = self.model.layout.exit.bias.map(|bias| self.parameters.vector(bias));
        linear(x, self.output_matrix(), bias, true)
    }

    /// The loss of every target that counts, in order.
    pub(crate) fn losses(&self, x: Tensor<3>, targets: &Arc<[u32]>) -> Tensor<1> {
        let mut x = self.asked(x);
        let mut targets = targets.clone();
        if targets.contains(&IGNORED) {
            let [batch, time, width] = x.dims();
            assert_eq!(targets.len(), batch * time, "one target a position");
            let kept: Vec<i32> = (0..targets.len()).filter(|&at| targets[at] != IGNORED).map(|at| at as i32).collect();
            targets = targets.iter().copied().filter(|&target| target != IGNORED).collect();
            let count = kept.len();
            let rows = Tensor::<1, Int>::from_data(TensorData::new(kept, [count]), &x.device());
            x = x.reshape([batch * time, width]).select(0, rows).reshape([1, count, width]);
        }
        let x = self.before_output(x);
        let matrix = self.output_matrix();
        match self.model.layout.exit.bias {
            None => head_loss(x, matrix, targets),
            Some(bias) => {
                // A bias is the weight of an input that is always one.
                let ([batch, time, _], [answers, _]) = (x.dims(), matrix.dims());
                let ones = Tensor::ones([batch, time, 1], (&x.device(), x.dtype()));
                let bias = self.parameters.vector(bias).reshape([answers, 1]);
                head_loss(Tensor::cat(vec![x, ones], 2), Tensor::cat(vec![matrix, bias], 1), targets)
            }
        }
    }

    fn config(&self) -> &'a ModelConfig {
        &self.model.config
    }

    fn activation(&self) -> Activation {
        match self.config().activation {
            ActivationKind::Gelu | ActivationKind::Geglu => Activation::Gelu,
            ActivationKind::GeluTanh | ActivationKind::GegluTanh => Activation::GeluTanh,
            ActivationKind::Relu => Activation::Relu,
            ActivationKind::Swiglu => Activation::Silu,
        }
    }

    /// Tokens or patches as they enter, without positions, and how many of them a sequence has.
    fn entering(&self, inputs: &Inputs) -> Tensor<3> {
        let at = &self.tower().entrance;
        match inputs {
            Inputs::Text(tokens) => {
                let table = at.table.expect("a stack that reads text has an embedding");
                let table = centre(self.parameters.matrix(table), at.centred_table);
                let x = embedding(table, tokens.numbers.clone(), tokens.shape);
                if self.config().embedding_scale { x * (self.config().width as f64).sqrt() } else { x }
            }
            Inputs::Patches { values, shape } => {
                let map = at.patches.expect("a stack that reads images has a map of patches");
                let token = at.class_token.expect("and a class token");
                let token = centre(self.parameters.matrix(token), at.centred_positions);
                let data = TensorData::new(values.to_vec(), *shape);
                let patches = self.linear(Tensor::from_data(data, (&token.device(), token.dtype())), map);
                let token = token.unsqueeze_dim::<3>(0).repeat_dim(0, shape[0]);
                Tensor::cat(vec![token, patches], 1)
            }
            Inputs::Pair { .. } => unreachable!("the stacks of a pair read one text each"),
        }
    }

    /// The streams that the embedding rule begins with.
    pub(crate) fn embed(&mut self, inputs: &Inputs) -> Vec<Tensor<3>> {
        let at = &self.tower().entrance;
        let mut embedded = self.entering(inputs);
        let [batch, time, _] = embedded.dims();
        let row_of = |pass: &Self, table: usize, numbers: Arc<[u32]>| {
            embedding(centre(pass.parameters.matrix(table), at.centred_positions), numbers, [batch, time])
        };
        match self.config().positions {
            Positions::None | Positions::Rope => {}
            Positions::Learned => {
                let index = at.positions.expect("learned positions have a table");
                let numbers: Arc<[u32]> = (0..batch).flat_map(|_| 0..time as u32).collect();
                let positions = row_of(self, index, numbers);
                embedded = weighted_sum(vec![(1.0, embedded), (1.0, positions)]);
            }
            Positions::Sinusoidal => {
                let stored = embedded.dims()[2];
                // Of the nominal width, whose last entry a stream that is free of a mean may lack.
                let implied = self.model.norm == NormKind::Crmsnorm && at.widening.is_none();
                let width = if implied { self.config().width } else { stored };
                let table =
                    sinusoids(time, width, at.centred_positions || implied, &embedded.device(), embedded.dtype());
                embedded = embedded + table.slice_dim(2, 0..stored);
            }
        }
        if let Some(table) = at.token_types {
            let types = row_of(self, table, vec![0; batch * time].into());
            embedded = weighted_sum(vec![(1.0, embedded), (1.0, types)]);
        }
        if let Some(norm) = at.norm {
            embedded = self.norm(embedded, norm);
        }
        if let Some(map) = at.widening {
            embedded = self.linear(embedded, map);
        }
        vec![self.drop_out(embedded); self.plan().streams.len()]
    }

    fn drop_out(&mut self, x: Tensor<3>) -> Tensor<3> {
        let probability = self.config().dropout;
        match self.options.dropout_seed {
            Some(seed) if probability > 0.0 => {
                self.masks += 1;
                let seed = seed.wrapping_add(self.masks.wrapping_mul(0xd134_2543_de82_ef95));
                let [_, time, width] = x.dims();
                dropout(x, probability, seed, self.options.first_sequence * time * width)
            }
            _ => x,
        }
    }

    fn norm_of(&self, at: NormAt, scale: f64) -> Norm {
        let kind = self.model.norm;
        Norm {
            centre: kind.centres(),
            epsilon: at.epsilon.unwrap_or(self.config().epsilon),
            scale,
            gain_offset: kind.gain_offset(),
            round_before_gain: false,
        }
    }

    fn norm(&self, x: Tensor<3>, at: NormAt) -> Tensor<3> {
        self.add_norm(vec![(1.0, x)], at, 1.0)
    }

    fn add_norm(&self, mut terms: Vec<(f64, Tensor<3>)>, at: NormAt, scale: f64) -> Tensor<3> {
        let parameter = |index: usize| self.parameters.vector(index);
        match self.model.norm {
            NormKind::None => {
                terms.iter_mut().for_each(|(weight, _)| *weight *= scale);
                weighted_sum(terms)
            }
            NormKind::Dyt => {
                let x = weighted_sum(terms);
                let width = x.dims()[2];
                let [alpha, gain, bias] = [at.alpha, at.gain, at.bias].map(|index| {
                    let vector = parameter(index.expect("this kind has all three"));
                    let size = vector.dims()[0];
                    vector.reshape([1, 1, size])
                });
                debug_assert_eq!(gain.dims()[2], width);
                ((x * alpha).tanh() * gain + bias) * scale
            }
            NormKind::Crmsnorm if at.implied => {
                let x = weighted_sum(terms);
                let stored = x.dims()[2];
                // The entry that is not stored takes part in the mean of the squares.
                let last = x.clone().sum_dim(2).neg();
                let whole = Tensor::cat(vec![x, last], 2);
                add_norm(vec![(1.0, whole)], None, None, self.norm_of(at, scale)).slice_dim(2, 0..stored)
            }
            _ => self.statistics_norm(terms, at, scale),
        }
    }

    /// A norm that takes statistics, over all dimensions or those that were chosen.
    fn statistics_norm(&self, terms: Vec<(f64, Tensor<3>)>, at: NormAt, scale: f64) -> Tensor<3> {
        let (gain, bias) = (at.gain.map(|at| self.parameters.vector(at)), at.bias.map(|at| self.parameters.vector(at)));
        let settings = self.norm_of(at, scale);
        let sparse = &self.model.sparse_norms;
        let choice = at.gain.and_then(|key| sparse.choice(key));
        match (sparse, at.gain, gain, choice) {
            (SparseNorms::Measure(_), Some(key), gain, _) => {
                let x = weighted_sum(terms);
                let y = add_norm(vec![(1.0, x.clone())], gain, bias, settings);
                sparse.look(key, settings.epsilon, &x, &y);
                y
            }
            (_, _, Some(gain), Some(choice)) => {
                let x = weighted_sum(terms);
                let gain = if settings.gain_offset == 0.0 { gain } else { gain + settings.gain_offset };
                choice.apply(x, gain, bias, settings.centre, settings.epsilon, scale)
            }
            (_, _, gain, _) => add_norm(terms, gain, bias, settings),
        }
    }

    fn linear(&self, x: Tensor<3>, at: LinearAt) -> Tensor<3> {
        let (weight, bias) = self.map(at);
        linear(x, weight, bias, false)
    }

    /// The matrix `[input, output]` and the bias of a linear map as they are used.
    fn map(&self, at: LinearAt) -> (Tensor<2>, Option<Tensor<1>>) {
        let weight = centre(self.parameters.matrix(at.weight), at.centred);
        let bias = at.bias.map(|bias| self.parameters.vector(bias));
        (weight, bias.map(|bias| if at.centred { bias.clone() - bias.mean() } else { bias }))
    }

    /// Norms on queries, keys or values over their full width are taken here; those of every head by itself
    /// belong to the attention.
    fn projection(
        &self,
        x: Tensor<3>,
        at: LinearAt,
        norm_at: Option<NormAt>,
        scope: HeadNormScope,
    ) -> (Tensor<3>, Option<HeadNorm>) {
        let x = self.linear(x, at);
        let Some(at) = norm_at else { return (x, None) };
        match (scope, self.model.norm) {
            (_, NormKind::None) => (x, None),
            (HeadNormScope::FullWidth, _) => (self.norm(x, at), None),
            (HeadNormScope::PerHead, NormKind::Dyt) => {
                let ([batch, time, width], head) = (x.dims(), self.config().width_of_head());
                let heads = x.reshape([batch, time * width / head, head]);
                (self.norm(heads, at).reshape([batch, time, width]), None)
            }
            (HeadNormScope::PerHead, _) => {
                let head = self.config().width_of_head();
                let gain = match at.gain {
                    Some(gain) => self.parameters.vector(gain),
                    None => Tensor::ones([head], (&x.device(), x.dtype())),
                };
                let bias = at.bias.map(|bias| self.parameters.vector(bias));
                (x, Some(HeadNorm { norm: self.norm_of(at, 1.0), gain, bias }))
            }
        }
    }

    fn self_attention(&mut self, place: Place, x: Tensor<3>) -> Tensor<3> {
        let at = self.at(place).attention.as_ref().expect("the layout has the sublayers of the plan");
        let decodes = match self.config().stack {
            StackKind::Decoder => true,
            StackKind::Encoder | StackKind::Vision => false,
            StackKind::Pair => self.tower == 1,
        };
        let visible = if decodes { None } else { self.visible.clone() };
        let rotary = (self.config().positions == Positions::Rope).then_some(self.config().rope_base);
        self.attention(at, x.clone(), x, decodes, rotary, visible)
    }

    /// A decoder's attention to what its encoder gave. Positions of the one say nothing of the other's, so
    /// nothing is turned.
    fn cross_attention(&mut self, place: Place, x: Tensor<3>) -> Tensor<3> {
        let at = self.at(place).cross.as_ref().expect("the layout has the sublayers of the plan");
        let memory = self.memory.clone().expect("an encoder ran before");
        self.attention(at, x, memory, false, None, self.visible.clone())
    }

    fn attention(
        &mut self,
        at: &AttentionAt,
        x: Tensor<3>,
        memory: Tensor<3>,
        causal: bool,
        rotary: Option<f64>,
        visible: Option<Arc<[bool]>>,
    ) -> Tensor<3> {
        let (heads, kv_heads) = (self.config().heads, self.config().key_value_heads());
        let (query, query_norm) = self.projection(x, at.query, at.query_norm, at.scope);
        let (key, key_norm) = self.projection(memory.clone(), at.key, at.key_norm, at.scope);
        let (value, value_norm) = self.projection(memory, at.value, at.value_norm, at.scope);
        let settings = AttentionSettings { heads, kv_heads, causal, rotary, visible };
        let norms = [query_norm, key_norm, value_norm];
        let mut y = sparse_attention(query, key, value, norms, &settings, self.config().sparse_softmax);
        if let Some(scale) = at.head_scale {
            let [batch, time, width] = y.dims();
            let scale = self.parameters.vector(scale).reshape([1, 1, heads, 1]);
            y = (y.reshape([batch, time, heads, width / heads]) * scale).reshape([batch, time, width]);
        }
        if let Some(inner) = at.inner_norm {
            y = self.norm(y, inner);
        }
        self.linear(y, at.output)
    }

    fn feed_forward(&mut self, place: Place, x: Tensor<3>) -> Tensor<3> {
        let at = self.at(place).feed_forward.as_ref().expect("the layout has the sublayers of the plan");
        let hidden = self.linear(x.clone(), at.input);
        let function = self.activation();
        let gate = at.gate.map(|gate| self.linear(x, gate));
        let Some(inner) = at.inner_norm else {
            let (weight, bias) = self.map(at.output);
            return activated_linear(hidden, gate, function, weight, bias);
        };
        let hidden = match gate {
            Some(gate) => gated_activation(hidden, gate, function),
            None => activation(hidden, function),
        };
        self.linear(self.norm(hidden, inner), at.output)
    }

    fn factor(&self, place: Place, scalar: &Scalar) -> Factor {
        use Factor::{Learned, Number};
        match scalar {
            Scalar::Number(number) => Number(*number),
            Scalar::Name(name) => {
                let (base, entry) = entry_of(name);
                let learned = self.parameters.vector(self.at(place).learnables[base]);
                Learned(match entry {
                    Some(entry) => learned.slice_dim(0, entry..entry + 1),
                    None => learned,
                })
            }
            Scalar::Negative(inner) => match self.factor(place, inner) {
                Number(number) => Number(-number),
                Learned(tensor) => Learned(tensor.neg()),
            },
            Scalar::Call(function, arguments) => match self.factor(place, &arguments[0]) {
                Number(number) => Number(function.apply(&[number])),
                Learned(x) => Learned(match function {
                    ScalarFunction::Silu => functions::silu(x),
                    ScalarFunction::Sigmoid => functions::sigmoid(x),
                    ScalarFunction::Tanh => x.tanh(),
                    ScalarFunction::Exp => x.exp(),
                    ScalarFunction::Ln => x.log(),
                    ScalarFunction::Sqrt => x.sqrt(),
                    other => unreachable!("the checker lets no learnable into '{}'", other.name()),
                }),
            },
            Scalar::Binary(operator, left, right) => {
                match (operator, self.factor(place, left), self.factor(place, right)) {
                    (operator, Number(left), Number(right)) => Number(operator.apply(left, right)),
                    (Operator::Add, Learned(x), Number(c)) | (Operator::Add, Number(c), Learned(x)) => Learned(x + c),
                    (Operator::Add, Learned(x), Learned(y)) => Learned(x + y),
                    (Operator::Subtract, Learned(x), Number(c)) => Learned(x - c),
                    (Operator::Subtract, Number(c), Learned(x)) => Learned(x.neg() + c),
                    (Operator::Subtract, Learned(x), Learned(y)) => Learned(x - y),
                    (Operator::Multiply, Learned(x), Number(c)) | (Operator::Multiply, Number(c), Learned(x)) => {
                        Learned(x * c)
                    }
                    (Operator::Multiply, Learned(x), Learned(y)) => Learned(x * y),
                    // A product with the reciprocal: the gradient of a division by a number is rounded to f32.
                    (Operator::Divide, Learned(x), Number(c)) => Learned(x * (1.0 / c)),
                    (Operator::Divide, Number(c), Learned(x)) => Learned(x.recip() * c),
                    (Operator::Divide, Learned(x), Learned(y)) => Learned(x / y),
                    (Operator::Power, Learned(x), Number(c)) => Learned(x.powf_scalar(c)),
                    (operator, ..) => {
                        unreachable!("the planner lets no learnable into '{}'", operator.symbol())
                    }
                }
            }
        }
    }
}

/// Whether an expression has a weight of one entry of a history.
fn speaks_of_entries(scalar: &Scalar) -> bool {
    let mut found = false;
    scalar.names(&mut |name| found |= entry_of(name).1.is_some());
    found
}

/// A matrix with the mean of every row taken off, where that is wanted.
fn centre(matrix: Tensor<2>, wanted: bool) -> Tensor<2> {
    if wanted { matrix.clone() - matrix.mean_dim(1) } else { matrix }
}

/// Rows of sines and cosines, `[1, time, width]`: element `2i` of position `p` is `sin(p / 10000^(2i/width))`,
/// element `2i + 1` the cosine of the same; each row less its mean where that is wanted.
fn sinusoids(time: usize, width: usize, centred: bool, device: &Device, dtype: DType) -> Tensor<3> {
    let value = |at: usize| {
        let (position, i) = ((at / width) as f64, at % width);
        let angle = position / 10_000f64.powf((i - i % 2) as f64 / width as f64);
        if i % 2 == 0 { angle.sin() } else { angle.cos() }
    };
    let mut values: Vec<f64> = (0..time * width).map(value).collect();
    if centred {
        for row in values.chunks_exact_mut(width) {
            let mean = row.iter().sum::<f64>() / width as f64;
            row.iter_mut().for_each(|value| *value -= mean);
        }
    }
    Tensor::from_data(TensorData::new(values, [1, time, width]), (device, dtype))
}

impl Algebra for Pass<'_> {
    type Value = Tensor<3>;
    type Error = Infallible;

    fn mix(&mut self, place: Place, mix: &Mix, inputs: &[Tensor<3>]) -> Result<Tensor<3>, Infallible> {
        let step = self.options.step as f64;
        let mut terms = Vec::with_capacity(inputs.len());
        // The sublayer that each of them is the output of.
        let mut sources = Vec::with_capacity(inputs.len());
        // Entries of histories, with the factors that are trained.
        let mut entries: Vec<(Tensor<1>, Tensor<3>)> = Vec::new();
        for (term, input) in mix.terms.iter().zip(inputs) {
            let mut x = input.clone();
            if term.stopped {
                x = self.observer.stopped(x);
                if x.is_autodiff() {
                    x = x.detach();
                }
            }
            match self.factor(place, &term.coefficient.at_step(step)) {
                Factor::Number(number) => {
                    terms.push((number, x));
                    sources.push(term.contribution_of);
                }
                Factor::Learned(factor) if speaks_of_entries(&term.coefficient.folded) => entries.push((factor, x)),
                Factor::Learned(factor) => {
                    let [size] = factor.dims();
                    terms.push((1.0, x * factor.reshape([1, 1, size])));
                    sources.push(term.contribution_of);
                }
            }
        }
        if !entries.is_empty() {
            let (factors, values): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
            terms.push((1.0, learned_sum(values, Tensor::cat(factors, 0))));
            sources.push(None);
        }
        let contributions: Vec<_> = if self.observer.wants_contributions() && terms.len() > 1 {
            let sources = sources.into_iter().zip(&terms);
            sources.filter_map(|(source, (weight, x))| Some((source?, *weight, x.clone()))).collect()
        } else {
            Vec::new()
        };
        let scale = self.factor(place, &mix.scale.at_step(step));
        let fixed = if let Factor::Number(number) = scale { number } else { 1.0 };
        if !contributions.is_empty() {
            let sum = weighted_sum(terms);
            for (sublayer, weight, x) in contributions {
                self.observer.contribution(place, sublayer, &weighted_sum(vec![(weight, x)]), &sum);
            }
            terms = vec![(1.0, sum)];
        }
        let mut sum = match &mix.norm {
            Some(name) => self.add_norm(terms, self.at(place).norms[name], fixed),
            None => {
                terms.iter_mut().for_each(|(weight, _)| *weight *= fixed);
                weighted_sum(terms)
            }
        };
        if let Factor::Learned(factor) = scale {
            let [size] = factor.dims();
            sum = sum * factor.reshape([1, 1, size]);
        }
        Ok(sum)
    }

    fn apply(&mut self, place: Place, sublayer: Sublayer, input: Tensor<3>) -> Result<Tensor<3>, Infallible> {
        let output = match sublayer {
            Sublayer::Attention => self.self_attention(place, input),
            Sublayer::Cross => self.cross_attention(place, input),
            Sublayer::FeedForward => self.feed_forward(place, input),
        };
        let mut output = self.drop_out(output);
        self.observer.sublayer_output(place, sublayer, &mut output);
        Ok(output)
    }

    fn gate(&mut self, place: Place, name: &str, input: Tensor<3>) -> Result<Tensor<3>, Infallible> {
        let map = self.at(place).gates[name];
        Ok(functions::sigmoid(self.linear(input, map)))
    }

    fn multiply(&mut self, _: Place, gate: Tensor<3>, value: Tensor<3>) -> Result<Tensor<3>, Infallible> {
        Ok(gate * value)
    }

    fn leave(&mut self, section: &Section, results: &mut [Tensor<3>]) -> Result<(), Infallible> {
        if section.place != Place::Head {
            let streams = self.plan().streams.len();
            for (stream, x) in results.iter_mut().take(streams).enumerate() {
                self.observer.stream(section.place, stream, x);
            }
            // An entry of a history that is a stream is what the observer has made of that stream.
            for entry in streams..results.len() {
                let origin = section.origin(section.outputs[entry]);
                let same = (0..streams).find(|&stream| section.origin(section.outputs[stream]) == origin);
                if let Some(stream) = same {
                    results[entry] = results[stream].clone();
                }
            }
        }
        Ok(())
    }
}
