//! The algebra of tensors: what a plan's steps compute.

use std::convert::Infallible;
use std::sync::Arc;

use addnorm_kernels::{
    Activation, Norm, activation, attention, dropout, embedding, gated_activation, linear, norm, rotary, weighted_sum,
};
use addnorm_scheme::{
    Algebra, HeadNormScope, Mix, Operator, Place, Scalar, ScalarFunction, Section, Sublayer, interpret,
};
use burn::tensor::{DType, Device, Tensor, TensorData, activation as functions};

use crate::config::{ActivationKind, ModelConfig, Positions};
use crate::layout::{LinearAt, NormAt};
use crate::model::Model;
use crate::observer::Observer;
use crate::weights::Weights;

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
}

/// Runs the model. The result is the logits, `[batch, time, vocabulary]`.
pub(crate) fn forward(
    model: &Model,
    weights: &Weights,
    tokens: &Tokens,
    options: ForwardOptions,
    observer: &mut dyn Observer,
) -> Tensor<3> {
    let mut tensors = Tensors { model, weights, options, observer, masks: 0 };
    let embedded = tensors.embed(tokens);
    let Ok(result) = interpret(&model.plan, &mut tensors, embedded);
    linear(result, weights.0[model.layout.head].matrix(), None, true)
}

struct Tensors<'a> {
    model: &'a Model,
    weights: &'a Weights,
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

impl Tensors<'_> {
    fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    fn embed(&mut self, tokens: &Tokens) -> Tensor<3> {
        let layout = &self.model.layout;
        let [batch, time] = tokens.shape;
        let embedded = embedding(self.weights.0[layout.embedding].matrix(), tokens.numbers.clone(), tokens.shape);
        let embedded = match self.config().positions {
            Positions::None | Positions::Rope => embedded,
            Positions::Learned => {
                let numbers: Arc<[u32]> = (0..batch).flat_map(|_| 0..time as u32).collect();
                let index = layout.positions.expect("learned positions have a table");
                let positions = embedding(self.weights.0[index].matrix(), numbers, tokens.shape);
                weighted_sum(vec![(1.0, embedded), (1.0, positions)])
            }
            Positions::Sinusoidal => {
                let device = embedded.device();
                let table = sinusoids(time, self.config().width, &device, embedded.dtype());
                embedded + table
            }
        };
        self.drop_out(embedded)
    }

    fn drop_out(&mut self, x: Tensor<3>) -> Tensor<3> {
        let probability = self.config().dropout;
        match self.options.dropout_seed {
            Some(seed) if probability > 0.0 => {
                self.masks += 1;
                dropout(x, probability, seed.wrapping_add(self.masks.wrapping_mul(0xd134_2543_de82_ef95)))
            }
            _ => x,
        }
    }

    fn norm(&self, x: Tensor<3>, at: NormAt, scale: f64) -> Tensor<3> {
        let parameter = |index: usize| self.weights.0[index].vector();
        let kind = self.model.norm;
        let norm_of = Norm {
            centre: kind.centres(),
            epsilon: self.config().epsilon,
            scale,
            gain_offset: kind.gain_offset(),
            round_before_gain: false,
        };
        norm(x, Some(parameter(at.gain)), at.bias.map(parameter), norm_of)
    }

    fn linear(&self, x: Tensor<3>, at: LinearAt) -> Tensor<3> {
        linear(x, self.weights.0[at.weight].matrix(), at.bias.map(|bias| self.weights.0[bias].vector()), false)
    }

    /// A norm on queries, keys or values: `x: [batch, time, count * head_width]`.
    fn projection_norm(&self, x: Tensor<3>, at: Option<NormAt>, count: usize) -> Tensor<3> {
        let (Some(at), Some(norms)) = (at, self.model.plan.options.projection_norms) else {
            return x;
        };
        let [batch, time, width] = x.dims();
        match norms.scope {
            HeadNormScope::FullWidth => self.norm(x, at, 1.0),
            HeadNormScope::PerHead => {
                let heads = x.reshape([batch, time * count, width / count]);
                self.norm(heads, at, 1.0).reshape([batch, time, width])
            }
        }
    }

    fn attention(&mut self, place: Place, x: Tensor<3>) -> Tensor<3> {
        let model = self.model;
        let at = model.layout.section(place).attention.as_ref().expect("the layout has the sublayers of the plan");
        let (heads, kv_heads) = (self.config().heads, self.config().key_value_heads());
        let mut query = self.projection_norm(self.linear(x.clone(), at.query), at.query_norm, heads);
        let mut key = self.projection_norm(self.linear(x.clone(), at.key), at.key_norm, kv_heads);
        let value = self.projection_norm(self.linear(x, at.value), at.value_norm, kv_heads);
        if self.config().positions == Positions::Rope {
            query = rotary(query, heads, self.config().rope_base);
            key = rotary(key, kv_heads, self.config().rope_base);
        }
        let mut y = attention(query, key, value, heads, kv_heads, true);
        if let Some(scale) = at.head_scale {
            let [batch, time, width] = y.dims();
            let scale = self.weights.0[scale].vector().reshape([1, 1, heads, 1]);
            y = (y.reshape([batch, time, heads, width / heads]) * scale).reshape([batch, time, width]);
        }
        if let Some(inner) = at.inner_norm {
            y = self.norm(y, inner, 1.0);
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
        let mut hidden = match at.gate {
            Some(gate) => gated_activation(hidden, self.linear(x, gate), function),
            None => activation(hidden, function),
        };
        if let Some(inner) = at.inner_norm {
            hidden = self.norm(hidden, inner, 1.0);
        }
        self.linear(hidden, at.output)
    }

    fn factor(&self, place: Place, scalar: &Scalar) -> Factor {
        use Factor::{Learned, Number};
        match scalar {
            Scalar::Number(number) => Number(*number),
            Scalar::Name(name) => {
                let index = self.model.layout.section(place).learnables[name];
                Learned(self.weights.0[index].vector())
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

impl Algebra for Tensors<'_> {
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
        let mut sum = weighted_sum(terms);
        for (sublayer, weight, x) in contributions {
            self.observer.contribution(place, sublayer, &weighted_sum(vec![(weight, x)]), &sum);
        }
        let scale = self.factor(place, &mix.scale.at_step(step));
        let fixed = if let Factor::Number(number) = scale { number } else { 1.0 };
        if let Some(name) = &mix.norm {
            let at = self.model.layout.section(place).norms[name];
            sum = self.norm(sum, at, fixed);
        } else if fixed != 1.0 {
            sum = weighted_sum(vec![(fixed, sum)]);
        }
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
