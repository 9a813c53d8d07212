//! AdamW and the global gradient norm, each one pass over all parameters.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::element::Element;
use crate::flex::{self, for_element};
use crate::parallel::grain;
use crate::simd::{self, vectorised};

const CHUNK: usize = 16_384;

/// One step's constants of AdamW (arXiv:1711.05101), all explicit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamwStep {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Outside the root.
    pub epsilon: f64,
    /// Decoupled weight decay of the parameters that are decayed.
    pub weight_decay: f64,
    /// The number of this step, from 1, for the bias correction.
    pub number: u64,
    /// What the gradient is multiplied by first (clipping).
    pub gradient_scale: f64,
}

impl AdamwStep {
    fn corrections(&self) -> (f64, f64) {
        let number = self.number as f64;
        (1.0 - self.beta1.powf(number), 1.0 - self.beta2.powf(number))
    }
}

/// One parameter with what its update needs, each flat and of one length. The tensors are plain ones (not tracked).
#[derive(Debug, Clone)]
pub struct AdamwParameter {
    /// The parameter.
    pub weight: Tensor<1>,
    /// The gradient of the loss.
    pub gradient: Tensor<1>,
    /// The first moment.
    pub first: Tensor<1>,
    /// The second moment.
    pub second: Tensor<1>,
    /// Whether it is decayed.
    pub decays: bool,
}

/// Updates weights and moments: `weight <- weight (1 - lr decay) - lr m̂ / (sqrt(v̂) + epsilon)`.
///
/// On the CPU a tensor that nothing else holds is updated in place.
pub fn adamw(parameters: Vec<AdamwParameter>, step: AdamwStep) -> Vec<AdamwParameter> {
    match parameters.first() {
        Some(first) if flex::is_flex(&first.weight) => {}
        _ => return parameters.into_iter().map(|parameter| composed(parameter, &step)).collect(),
    }
    let mut primitives: Vec<_> = parameters
        .into_iter()
        .map(|AdamwParameter { weight, gradient, first, second, decays }| {
            let gradient = flex::plain(gradient);
            ([weight, first, second].map(flex::plain), gradient, decays)
        })
        .collect();
    for_element!(&primitives[0].1, E => {
        let mut chunks = Vec::new();
        for ([weight, first, second], gradient, decays) in &mut primitives {
            let moments = values::<E>(first).chunks_mut(CHUNK).zip(values::<E>(second).chunks_mut(CHUNK));
            let gradient = flex::slice::<E>(gradient).chunks(CHUNK);
            chunks.extend(values::<E>(weight).chunks_mut(CHUNK).zip(moments).zip(gradient).map(|chunk| (chunk, *decays)));
        }
        let constants = Constants::<E>::of(&step);
        chunks.into_par_iter().with_min_len(grain()).for_each(|(((weight, (first, second)), gradient), decays)| {
            update(weight, first, second, gradient, decays, &constants);
        });
    });
    primitives
        .into_iter()
        .map(|([weight, first, second], gradient, decays)| {
            let [weight, first, second, gradient] =
                [weight, first, second, gradient].map(Tensor::<1>::from_primitive::<Flex>);
            AdamwParameter { weight, gradient, first, second, decays }
        })
        .collect()
}

struct Constants<E> {
    beta1: E,
    beta2: E,
    rest1: E,
    rest2: E,
    epsilon: E,
    scale: E,
    keep: E,
    rate: E,
    root: E,
}

impl<E: Element> Constants<E> {
    fn of(step: &AdamwStep) -> Self {
        let (correction1, correction2) = step.corrections();
        Constants {
            beta1: E::of(step.beta1),
            beta2: E::of(step.beta2),
            rest1: E::of(1.0 - step.beta1),
            rest2: E::of(1.0 - step.beta2),
            epsilon: E::of(step.epsilon),
            scale: E::of(step.gradient_scale),
            keep: E::of(1.0 - step.learning_rate * step.weight_decay),
            rate: E::of(step.learning_rate / correction1),
            root: E::of(1.0 / correction2.sqrt()),
        }
    }
}

vectorised! {
    fn update<E: Element>(
        weight: &mut [E],
        first: &mut [E],
        second: &mut [E],
        gradient: &[E],
        decays: bool,
        constants: &Constants<E>,
    ) {
        let count = weight.len();
        let (first, second, gradient) = (&mut first[..count], &mut second[..count], &gradient[..count]);
        let Constants { beta1, beta2, rest1, rest2, epsilon, scale, keep, rate, root } = *constants;
        let keep = if decays { keep } else { E::of(1.0) };
        for i in 0..count {
            let g = gradient[i] * scale;
            first[i] = beta1 * first[i] + rest1 * g;
            second[i] = beta2 * second[i] + rest2 * g * g;
            weight[i] = keep * weight[i] - rate * first[i] / (second[i].root() * root + epsilon);
        }
    }

    fn squares<E: Element>(values: &[E]) -> f64 {
        simd::sum(values, |x| x.wide() * x.wide())
    }
}

fn composed(parameter: AdamwParameter, step: &AdamwStep) -> AdamwParameter {
    let AdamwParameter { weight, gradient, first, second, decays } = parameter;
    let (correction1, correction2) = step.corrections();
    let scaled = gradient.clone() * step.gradient_scale;
    let first = first * step.beta1 + scaled.clone() * (1.0 - step.beta1);
    let second = second * step.beta2 + scaled.clone() * scaled * (1.0 - step.beta2);
    let update = (first.clone() * (1.0 / correction1)) / ((second.clone() * (1.0 / correction2)).sqrt() + step.epsilon);
    let decay = if decays { step.weight_decay } else { 0.0 };
    let weight = weight * (1.0 - step.learning_rate * decay) - update * step.learning_rate;
    AdamwParameter { weight, gradient, first, second, decays }
}

fn values<E: Element>(tensor: &mut FlexTensor) -> &mut [E] {
    let length = tensor.shape().num_elements();
    &mut tensor.storage_mut::<E>()[..length]
}

/// Sum of squares in `f64`. NaN and infinity come through.
pub fn sum_of_squares<const D: usize>(tensor: &Tensor<D>) -> f64 {
    let count: usize = tensor.dims().iter().product();
    total_of_squares(&[tensor.clone().reshape([count])])
}

/// Sum of the squares of all numbers of all tensors, in `f64`. NaN and infinity come through.
pub fn total_of_squares(tensors: &[Tensor<1>]) -> f64 {
    match tensors.first() {
        Some(first) if flex::is_flex(first) => {}
        _ => {
            let values = tensors.iter().map(|tensor| tensor.clone().into_data());
            return values.map(|values| values.iter::<f64>().map(|x| x * x).sum::<f64>()).sum();
        }
    }
    let primitives: Vec<FlexTensor> = tensors.iter().map(|tensor| flex::plain(tensor.clone())).collect();
    for_element!(&primitives[0], E => {
        let chunks: Vec<&[E]> = primitives.iter().flat_map(|tensor| flex::slice::<E>(tensor).chunks(CHUNK)).collect();
        let partials: Vec<f64> = chunks.into_par_iter().with_min_len(grain()).map(squares).collect();
        partials.iter().sum()
    })
}
