//! Initial values that a pass through the fresh model decides.

use addnorm_kernels::statistics;
use addnorm_scheme::{Place, Sublayer};
use burn::tensor::Tensor;

use crate::forward::{ForwardOptions, Parameters, Pass};
use crate::inputs::Inputs;
use crate::model::Model;
use crate::observer::Observer;
use crate::weights::Weights;

/// Variances in the order of computation, by stack.
#[derive(Default)]
struct Variances {
    stack: usize,
    embedding: [f64; 2],
    branches: [Vec<f64>; 2],
}

/// Over all numbers, biased, in `f64`.
fn variance(x: &Tensor<3>) -> f64 {
    let values = statistics::to_f64(x);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / values.len() as f64
}

impl Observer for Variances {
    fn stack(&mut self, stack: usize) {
        self.stack = stack;
    }

    fn stream(&mut self, place: Place, stream: usize, x: &mut Tensor<3>) {
        if place == Place::Embed && stream == 0 {
            self.embedding[self.stack] = variance(x);
        }
    }

    fn sublayer_output(&mut self, _: Place, _: Sublayer, x: &mut Tensor<3>) {
        self.branches[self.stack].push(variance(x));
    }
}

impl Model {
    /// Whether some learnable starts from a measurement.
    pub fn is_measured(&self) -> bool {
        let mut learnables = self.plans.iter().flat_map(|plan| plan.sections()).flat_map(|section| &section.learnables);
        learnables.any(|learnable| learnable.measured.is_some())
    }

    /// Sets the learnables whose start is measured: one pass of a batch through the fresh weights, with all of
    /// them at one, gives the variances that their expressions ask for (arXiv:2004.08249). Does nothing where
    /// there are none.
    ///
    /// # Panics
    /// As [`logits`](Model::logits).
    pub fn calibrate(&self, weights: &mut Weights, inputs: impl Into<Inputs>) {
        if !self.is_measured() {
            return;
        }
        let mut found = Variances::default();
        // Everything but the output, which takes the most memory and is not asked.
        Pass::new(self, Parameters::Plain(weights), ForwardOptions::default(), &mut found, 0).whole(&inputs.into());
        for (stack, (plan, tower)) in self.plans.iter().zip(&self.layout.towers).enumerate() {
            for section in plan.sections() {
                for learnable in &section.learnables {
                    let Some(start) = &learnable.measured else { continue };
                    let index = tower.section(section.place).learnables[&learnable.name];
                    let Some(value) = start.value(found.embedding[stack], &found.branches[stack]) else { continue };
                    let info = &self.parameters()[index];
                    weights.0[index] = weights.0[index].beside(vec![value; info.elements()], &info.shape);
                }
            }
        }
    }
}
