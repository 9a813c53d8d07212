//! AdamW over all parameters, with one global gradient norm.

use addnorm_nn::{AdamwStep, DType, Device, ParameterInfo, Weight, Weights, adamw};

/// Norm of all gradients together, before any clipping. A parameter that has several uses, such as a tied
/// head, is in the list once.
pub fn global_norm(gradients: &[Weight]) -> f64 {
    gradients.iter().map(Weight::sum_of_squares).sum::<f64>().sqrt()
}

/// The moments, and the constants that do not change.
#[derive(Debug, Clone)]
pub struct AdamW {
    moments: Vec<(Weight, Weight)>,
    decays: Vec<bool>,
    constants: AdamwStep,
}

impl AdamW {
    /// Zero moments. `constants.weight_decay` applies to matrices only; the step's number, learning rate and
    /// gradient scale are set at each step.
    pub fn new(parameters: &[ParameterInfo], constants: AdamwStep, device: &Device, dtype: DType) -> Self {
        let zeros = |info: &ParameterInfo| Weight::from_values(vec![0.0; info.elements()], &info.shape, device, dtype);
        Self {
            moments: parameters.iter().map(|info| (zeros(info), zeros(info))).collect(),
            decays: parameters.iter().map(ParameterInfo::decays).collect(),
            constants,
        }
    }

    /// One update.
    pub fn step(&mut self, weights: &mut Weights, gradients: Vec<Weight>, learning_rate: f64, gradient_scale: f64) {
        self.constants.number += 1;
        let constants = AdamwStep { learning_rate, gradient_scale, ..self.constants };
        let old = std::mem::take(&mut weights.0).into_iter().zip(std::mem::take(&mut self.moments));
        for (((weight, moments), gradient), &decays) in old.zip(gradients).zip(&self.decays) {
            let step = if decays { constants } else { AdamwStep { weight_decay: 0.0, ..constants } };
            let (weight, first, second) = match (weight, gradient, moments) {
                (Weight::Vector(weight), Weight::Vector(gradient), (Weight::Vector(first), Weight::Vector(second))) => {
                    let (weight, first, second) = adamw(weight, gradient, first, second, step);
                    (Weight::Vector(weight), Weight::Vector(first), Weight::Vector(second))
                }
                (Weight::Matrix(weight), Weight::Matrix(gradient), (Weight::Matrix(first), Weight::Matrix(second))) => {
                    let (weight, first, second) = adamw(weight, gradient, first, second, step);
                    (Weight::Matrix(weight), Weight::Matrix(first), Weight::Matrix(second))
                }
                _ => unreachable!("weights, gradients and moments are in the order of one list"),
            };
            weights.0.push(weight);
            self.moments.push((first, second));
        }
    }
}
