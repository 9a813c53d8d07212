//! Softmax cross-entropy.

use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Int, Tensor, TensorData, activation};
use rayon::prelude::*;

use crate::element::Element;
use crate::flex::{self, Kernel, for_element};

const ROWS: usize = 32;

#[derive(Debug, Clone)]
struct CrossEntropy {
    targets: Arc<[u32]>,
}

/// `log(Σ exp(logits)) - logits[target]` for every position, in nats.
///
/// # Shapes
/// - logits: `[batch, time, vocabulary]`; targets: `batch * time` token numbers; the result is `[batch * time]`.
///
/// # Panics
/// If the counts do not match or a target is not in the vocabulary.
pub fn cross_entropy(logits: Tensor<3>, targets: Arc<[u32]>) -> Tensor<1> {
    let [batch, time, vocabulary] = logits.dims();
    assert_eq!(targets.len(), batch * time, "one target a position");
    assert!(targets.iter().all(|&target| (target as usize) < vocabulary), "targets are in the vocabulary");
    if flex::is_flex(&logits) {
        return flex::run(CrossEntropy { targets }, vec![flex::input(logits)]);
    }
    let device = logits.device();
    let rows = batch * time;
    let indices: Vec<i32> = targets.iter().map(|&target| target as i32).collect();
    let indices = Tensor::<2, Int>::from_data(TensorData::new(indices, [rows, 1]), &device);
    activation::log_softmax(logits.reshape([rows, vocabulary]), 1).gather(1, indices).reshape([rows]).neg()
}

impl Kernel for CrossEntropy {
    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let logits = flex::slice::<E>(&inputs[0]);
            let width = flex::dims(&inputs[0])[2];
            let rows = self.targets.len();
            // Kept for the backward pass: the largest logit and the sum of powers of every row.
            let mut shifts = vec![E::default(); 2 * rows];
            let mut losses = vec![E::default(); rows];
            losses
                .par_chunks_mut(ROWS)
                .zip(shifts.par_chunks_mut(2 * ROWS))
                .zip(logits.par_chunks(ROWS * width).zip(self.targets.par_chunks(ROWS)))
                .for_each(|((losses, shifts), (logits, targets))| {
                    let mut powers = vec![E::default(); width];
                    for (i, row) in logits.chunks_exact(width).enumerate() {
                        let largest = row.iter().fold(row[0], |most, &x| if x > most { x } else { most });
                        for (power, &x) in powers.iter_mut().zip(row) {
                            *power = (x - largest).exp();
                        }
                        let total: f64 = powers.iter().map(|power| power.wide()).sum();
                        let target = row[targets[i] as usize];
                        losses[i] = E::of(total.ln() + (largest - target).wide());
                        shifts[2 * i] = largest;
                        shifts[2 * i + 1] = E::of(total);
                    }
                });
            (flex::tensor(losses, &[rows]), vec![flex::tensor(shifts, &[rows, 2])])
        })
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        saved: &[FlexTensor],
        upstream: FlexTensor,
        _: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        for_element!(&inputs[0], E => {
            let logits = flex::slice::<E>(&inputs[0]);
            let shifts = flex::slice::<E>(&saved[0]);
            let dlosses = flex::slice::<E>(&upstream);
            let shape = flex::dims(&inputs[0]);
            let width = shape[2];
            let mut dlogits = vec![E::default(); logits.len()];
            dlogits
                .par_chunks_mut(ROWS * width)
                .zip(logits.par_chunks(ROWS * width))
                .zip(shifts.par_chunks(2 * ROWS).zip(dlosses.par_chunks(ROWS).zip(self.targets.par_chunks(ROWS))))
                .for_each(|((dlogits, logits), (shifts, (dlosses, targets)))| {
                    for (i, (drow, row)) in dlogits.chunks_exact_mut(width).zip(logits.chunks_exact(width)).enumerate() {
                        let (largest, factor) = (shifts[2 * i], dlosses[i] / shifts[2 * i + 1]);
                        for (d, &x) in drow.iter_mut().zip(row) {
                            *d = (x - largest).exp() * factor;
                        }
                        drow[targets[i] as usize] += -dlosses[i];
                    }
                });
            vec![Some(flex::tensor(dlogits, &shape))]
        })
    }
}
