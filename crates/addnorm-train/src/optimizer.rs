//! AdamW over all parameters, with one global gradient norm.

use addnorm_nn::{
    AdamwParameter, AdamwStep, DType, Device, ParameterInfo, Tensor, Weight, Weights, adamw, total_of_squares,
};

use crate::config::TrainConfig;

/// Norm of all gradients together, before any clipping. A parameter that has several uses, such as a tied
/// head, is in the list once.
pub fn global_norm(gradients: &[Weight]) -> f64 {
    let flat: Vec<Tensor<1>> = gradients.iter().map(Weight::flat).collect();
    total_of_squares(&flat).sqrt()
}

/// What gradients of a global norm are multiplied by, so that it is at most `clip`; 0 stands for no clipping.
pub(crate) fn clip_factor(norm: f64, clip: f64) -> f64 {
    if clip > 0.0 && norm > clip { clip / norm } else { 1.0 }
}

/// The moments, and the constants that do not change.
#[derive(Debug, Clone)]
pub struct AdamW {
    moments: Vec<(Tensor<1>, Tensor<1>)>,
    decays: Vec<bool>,
    constants: AdamwStep,
}

impl AdamW {
    /// Zero moments. `constants.weight_decay` applies to matrices only; the step's number, learning rate and
    /// gradient scale are set at each step.
    pub fn new(parameters: &[ParameterInfo], constants: AdamwStep, device: &Device, dtype: DType) -> Self {
        let zeros = |info: &ParameterInfo| Tensor::<1>::zeros([info.elements()], (device, dtype));
        Self {
            moments: parameters.iter().map(|info| (zeros(info), zeros(info))).collect(),
            decays: parameters.iter().map(ParameterInfo::decays).collect(),
            constants,
        }
    }

    /// With a run's constants.
    pub(crate) fn of_run(parameters: &[ParameterInfo], train: &TrainConfig, device: &Device) -> Self {
        let constants = AdamwStep {
            learning_rate: 0.0,
            beta1: train.beta1,
            beta2: train.beta2,
            epsilon: train.epsilon,
            weight_decay: train.weight_decay,
            number: 0,
            gradient_scale: 1.0,
        };
        Self::new(parameters, constants, device, DType::F32)
    }

    /// One update, in one pass over everything.
    pub fn step(&mut self, weights: &mut Weights, gradients: Vec<Weight>, learning_rate: f64, gradient_scale: f64) {
        self.constants.number += 1;
        let constants = AdamwStep { learning_rate, gradient_scale, ..self.constants };
        let shapes: Vec<Vec<usize>> = weights.0.iter().map(Weight::shape).collect();
        // Nothing else holds the tensors while they are updated, so that it happens in place.
        let old = std::mem::take(&mut weights.0).into_iter().zip(std::mem::take(&mut self.moments));
        let parameters = old
            .zip(gradients)
            .zip(&self.decays)
            .map(|(((weight, (first, second)), gradient), &decays)| {
                let (weight, gradient) = (weight.into_flat(), gradient.into_flat());
                AdamwParameter { weight, gradient, first, second, decays }
            })
            .collect();
        for (parameter, shape) in adamw(parameters, constants).into_iter().zip(shapes) {
            weights.0.push(Weight::from_flat(parameter.weight, &shape));
            self.moments.push((parameter.first, parameter.second));
        }
    }
}
