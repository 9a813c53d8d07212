//! The algebra of tensors: what a plan's steps compute.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use addnorm_kernels::{
    Activation, AttentionSettings, HeadNorm, Norm, activated_linear, activation, add_norm, attention, dropout,
    embedding, gated_activation, head_loss, linear, weighted_sum,
};
use addnorm_scheme::{
    Algebra, HeadNormScope, Mix, Operator, Place, Scalar, ScalarFunction, Section, Sublayer, interpret_section,
};
use burn::tensor::{DType, Device, Tensor, TensorData, activation as functions};

use crate::config::{ActivationKind, ModelConfig, Positions};
use crate::gradient::Leaves;
use crate::layout::{LinearAt, NormAt};
use crate::model::Model;
use crate::observer::Observer;
use crate::weights::{Weight, Weights};

/// Token numbers of some sequences of one length.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// `batch * time` numbers, sequence after sequence.
    pub numbers: Arc<[u32]>,
    /// `[batch, time]`.
    pub shape: [usize; 2],
}

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
        Pass { model, parameters, options, observer, masks }
    }

    /// Dropout masks drawn so far.
    pub(crate) fn masks(&self) -> u64 {
        self.masks
    }

    /// Runs sections by number: 0 is the embedding rule, the last one the head.
    pub(crate) fn sections(&mut self, sections: Range<usize>, mut streams: Vec<Tensor<3>>) -> Vec<Tensor<3>> {
        let model = self.model;
        for section in model.plan.sections().skip(sections.start).take(sections.len()) {
            let Ok(results) = interpret_section(section, self, streams);
            streams = results;
        }
        streams
    }

    /// Runs everything up to what the output matrix reads.
    pub(crate) fn whole(&mut self, tokens: &Tokens) -> Tensor<3> {
        let streams = self.embed(tokens);
        let sections = self.model.plan.blocks.len() + 2;
        // The head has one result.
        self.sections(0..sections, streams).swap_remove(0)
    }

    /// The logits of what the head's section gave, `[batch, time, vocabulary]`.
    pub(crate) fn logits(&self, x: Tensor<3>) -> Tensor<3> {
        linear(x, self.parameters.matrix(self.model.layout.head), None, true)
    }

    /// The loss of every position, `[batch * time]`.
    pub(crate) fn losses(&self, x: Tensor<3>, targets: Arc<[u32]>) -> Tensor<1> {
        head_loss(x, self.parameters.matrix(self.model.layout.head), targets)
    }

    fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    /// The streams that the embedding rule begins with.
    pub(crate) fn embed(&mut self, tokens: &Tokens) -> Vec<Tensor<3>> {
        let layout = &self.model.layout;
        let [batch, time] = tokens.shape;
        let embedded = embedding(self.parameters.matrix(layout.embedding), tokens.numbers.clone(), tokens.shape);
        let embedded = match self.config().positions {
            Positions::None | Positions::Rope => embedded,
            Positions::Learned => {
                let numbers: Arc<[u32]> = (0..batch).flat_map(|_| 0..time as u32).collect();
                let index = layout.positions.expect("learned positions have a table");
                let positions = embedding(self.parameters.matrix(index), numbers, tokens.shape);
                weighted_sum(vec![(1.0, embedded), (1.0, positions)])
            }
            Positions::Sinusoidal => {
                let device = embedded.device();
                let table = sinusoids(time, self.config().width, &device, embedded.dtype());
                embedded + table
            }
        };
        vec![self.drop_out(embedded); self.model.plan.streams.len()]
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

    fn norm_of(&self, scale: f64) -> Norm {
        let kind = self.model.norm;
        Norm {
            centre: kind.centres(),
            epsilon: self.config().epsilon,
            scale,
            gain_offset: kind.gain_offset(),
            round_before_gain: false,
        }
    }

    fn norm(&self, x: Tensor<3>, at: NormAt) -> Tensor<3> {
        self.add_norm(vec![(1.0, x)], at, 1.0)
    }

    fn add_norm(&self, terms: Vec<(f64, Tensor<3>)>, at: NormAt, scale: f64) -> Tensor<3> {
        let parameter = |index: usize| self.parameters.vector(index);
        add_norm(terms, Some(parameter(at.gain)), at.bias.map(parameter), self.norm_of(scale))
    }

    fn linear(&self, x: Tensor<3>, at: LinearAt) -> Tensor<3> {
        linear(x, self.parameters.matrix(at.weight), at.bias.map(|bias| self.parameters.vector(bias)), false)
    }

    /// Norms on queries, keys or values over their full width are taken here; those of every head by itself
    /// belong to the attention.
    fn projection(&self, x: Tensor<3>, at: LinearAt, norm_at: Option<NormAt>) -> (Tensor<3>, Option<HeadNorm>) {
        let x = self.linear(x, at);
        let (Some(at), Some(norms)) = (norm_at, self.model.plan.options.projection_norms) else {
            return (x, None);
        };
        match norms.scope {
            HeadNormScope::FullWidth => (self.norm(x, at), None),
            HeadNormScope::PerHead => {
                let bias = at.bias.map(|bias| self.parameters.vector(bias));
                (x, Some(HeadNorm { norm: self.norm_of(1.0), gain: self.parameters.vector(at.gain), bias }))
            }
        }
    }

    fn attention(&mut self, place: Place, x: Tensor<3>) -> Tensor<3> {
        let model = self.model;
        let at = model.layout.section(place).attention.as_ref().expect("the layout has the sublayers of the plan");
        let (heads, kv_heads) = (self.config().heads, self.config().key_value_heads());
        let (query, query_norm) = self.projection(x.clone(), at.query, at.query_norm);
        let (key, key_norm) = self.projection(x.clone(), at.key, at.key_norm);
        let (value, value_norm) = self.projection(x, at.value, at.value_norm);
        let rotary = (self.config().positions == Positions::Rope).then_some(self.config().rope_base);
        let settings = AttentionSettings { heads, kv_heads, causal: true, rotary, visible: None };
        let mut y = attention(query, key, value, [query_norm, key_norm, value_norm], &settings);
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
        let model = self.model;
        let at = model.layout.section(place).feed_forward.as_ref().expect("the layout has the sublayers of the plan");
        let hidden = self.linear(x.clone(), at.input);
        let function = match self.config().activation {
            ActivationKind::Gelu | ActivationKind::Geglu => Activation::Gelu,
            ActivationKind::GeluTanh => Activation::GeluTanh,
            ActivationKind::Relu => Activation::Relu,
            ActivationKind::Swiglu => Activation::Silu,
        };
        let gate = at.gate.map(|gate| self.linear(x, gate));
        let Some(inner) = at.inner_norm else {
            let bias = at.output.bias.map(|bias| self.parameters.vector(bias));
            return activated_linear(hidden, gate, function, self.parameters.matrix(at.output.weight), bias);
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
                let index = self.model.layout.section(place).learnables[name];
                Learned(self.parameters.vector(index))
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

/// Rows of sines and cosines, `[1, time, width]`: element `2i` of position `p` is `sin(p / 10000^(2i/width))`,
/// element `2i + 1` the cosine of the same.
fn sinusoids(time: usize, width: usize, device: &Device, dtype: DType) -> Tensor<3> {
    let value = |at: usize| {
        let (position, i) = ((at / width) as f64, at % width);
        let angle = position / 10_000f64.powf((i - i % 2) as f64 / width as f64);
        if i % 2 == 0 { angle.sin() } else { angle.cos() }
    };
    let values: Vec<f64> = (0..time * width).map(value).collect();
    Tensor::from_data(TensorData::new(values, [1, time, width]), (device, dtype))
}

impl Algebra for Pass<'_> {
    type Value = Tensor<3>;
    type Error = Infallible;

    fn mix(&mut self, place: Place, mix: &Mix, inputs: &[Tensor<3>]) -> Result<Tensor<3>, Infallible> {
        let step = self.options.step as f64;
        let mut terms = Vec::with_capacity(inputs.len());
        for (term, input) in mix.terms.iter().zip(inputs) {
            let mut x = input.clone();
            if term.stopped {
                x = self.observer.stopped(x);
                if x.is_autodiff() {
                    x = x.detach();
                }
            }
            match self.factor(place, &term.coefficient.at_step(step)) {
                Factor::Number(number) => terms.push((number, x)),
                Factor::Learned(factor) => {
                    let [size] = factor.dims();
                    terms.push((1.0, x * factor.reshape([1, 1, size])));
                }
            }
        }
        let contributions: Vec<_> = if self.observer.wants_contributions() && terms.len() > 1 {
            let sources = mix.terms.iter().zip(&terms);
            sources.filter_map(|(term, (weight, x))| Some((term.contribution_of?, *weight, x.clone()))).collect()
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
            Some(name) => self.add_norm(terms, self.model.layout.section(place).norms[name], fixed),
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
            Sublayer::Attention => self.attention(place, input),
            Sublayer::FeedForward => self.feed_forward(place, input),
        };
        let mut output = self.drop_out(output);
        self.observer.sublayer_output(place, sublayer, &mut output);
        Ok(output)
    }

    fn leave(&mut self, section: &Section, results: &mut [Tensor<3>]) -> Result<(), Infallible> {
        if section.place != Place::Head {
            for (stream, x) in results.iter_mut().enumerate() {
                self.observer.stream(section.place, stream, x);
            }
        }
        Ok(())
    }
}
