//! AdamW and the global gradient norm.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::element::Element;
use crate::flex::{self, for_element};

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
    /// Decoupled weight decay; 0 for what is not decayed.
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

/// Updates weight and moments: `weight <- weight (1 - lr decay) - lr m̂ / (sqrt(v̂) + epsilon)`.
///
/// The tensors are plain ones (not tracked). On the CPU a tensor that nothing else holds is updated in place.
pub fn adamw<const D: usize>(
    weight: Tensor<D>,
    gradient: Tensor<D>,
    first: Tensor<D>,
    second: Tensor<D>,
    step: AdamwStep,
) -> (Tensor<D>, Tensor<D>, Tensor<D>) {
    let (correction1, correction2) = step.corrections();
    if flex::is_flex(&weight) {
        let gradient = flex::plain(gradient);
        let [mut weight, mut first, mut second] = [weight, first, second].map(flex::plain);
        for_element!(&gradient, E => {
            let gradient = flex::slice::<E>(&gradient);
            let (weights, first, second) = (values::<E>(&mut weight), values::<E>(&mut first), values::<E>(&mut second));
            let [beta1, beta2, epsilon, scale] = [step.beta1, step.beta2, step.epsilon, step.gradient_scale].map(E::of);
            let [rest1, rest2] = [1.0 - step.beta1, 1.0 - step.beta2].map(E::of);
            let keep = E::of(1.0 - step.learning_rate * step.weight_decay);
            let rate = E::of(step.learning_rate / correction1);
            let root = E::of(1.0 / correction2.sqrt());
            weights
                .par_chunks_mut(CHUNK)
                .zip(first.par_chunks_mut(CHUNK).zip(second.par_chunks_mut(CHUNK)))
                .zip(gradient.par_chunks(CHUNK))
                .for_each(|((weights, (first, second)), gradient)| {
                    for i in 0..weights.len() {
                        let g = gradient[i] * scale;
                        first[i] = beta1 * first[i] + rest1 * g;
                        second[i] = beta2 * second[i] + rest2 * g * g;
                        weights[i] = keep * weights[i] - rate * first[i] / (second[i].sqrt() * root + epsilon);
                    }
                });
        });
        let [weight, first, second] = [weight, first, second].map(Tensor::<D>::from_primitive::<Flex>);
        return (weight, first, second);
    }
    let gradient = gradient * step.gradient_scale;
    let first = first * step.beta1 + gradient.clone() * (1.0 - step.beta1);
    let second = second * step.beta2 + gradient.clone() * gradient * (1.0 - step.beta2);
    let update = (first.clone() * (1.0 / correction1)) / ((second.clone() * (1.0 / correction2)).sqrt() + step.epsilon);
    let weight = weight * (1.0 - step.learning_rate * step.weight_decay) - update * step.learning_rate;
    (weight, first, second)
}

fn values<E: Element>(tensor: &mut FlexTensor) -> &mut [E] {
    let length = tensor.shape().num_elements();
    &mut tensor.storage_mut::<E>()[..length]
}

/// Sum of squares in `f64`. NaN and infinity come through.
pub fn sum_of_squares<const D: usize>(tensor: &Tensor<D>) -> f64 {
    if flex::is_flex(tensor) {
        let tensor = flex::plain(tensor.clone());
        return for_element!(&tensor, E => {
            let partials: Vec<f64> = flex::slice::<E>(&tensor)
                .par_chunks(CHUNK)
                .map(|chunk| {
                    let mut lanes = [0f64; 4];
                    let parts = chunk.chunks_exact(4);
                    let tail: f64 = parts.remainder().iter().map(|x| x.wide() * x.wide()).sum();
                    for part in parts {
                        for lane in 0..4 {
                            lanes[lane] += part[lane].wide() * part[lane].wide();
                        }
                    }
                    lanes.iter().sum::<f64>() + tail
                })
                .collect();
            partials.iter().sum()
        });
    }
    let values = tensor.clone().into_data();
    values.iter::<f64>().map(|x| x * x).sum()
}
