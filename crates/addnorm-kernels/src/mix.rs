//! Weighted sums of residual streams and branches.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::parallel::grain;
use crate::simd::vectorised;
use crate::slot::Slot;

const CHUNK: usize = 8192;

/// Terms that one kernel sums.
const MOST_TERMS: usize = 6;

#[derive(Debug, Clone)]
struct WeightedSum {
    weights: Vec<f64>,
}

/// `Σ weight * term` with fixed weights, in the order given.
///
/// # Panics
/// If there is no term or the shapes differ.
pub fn weighted_sum(terms: Vec<(f64, Tensor<3>)>) -> Tensor<3> {
    assert!(!terms.is_empty(), "a sum has a term");
    if let [(weight, term)] = terms.as_slice()
        && *weight == 1.0
    {
        return term.clone();
    }
    let shape = terms[0].1.dims();
    assert!(terms.iter().all(|(_, term)| term.dims() == shape), "the terms of a sum have one shape");
    if flex::is_flex(&terms[0].1) {
        // Some at a time; the running sum joins the next ones.
        let mut rest = terms.into_iter();
        let mut sum: Option<Tensor<3>> = None;
        loop {
            let room = MOST_TERMS - usize::from(sum.is_some());
            let group: Vec<_> = rest.by_ref().take(room).collect();
            if group.is_empty() {
                return sum.expect("there is a term");
            }
            let mut weights: Vec<f64> = sum.iter().map(|_| 1.0).collect();
            let mut inputs: Vec<_> = sum.take().into_iter().map(flex::input).collect();
            for (weight, term) in group {
                weights.push(weight);
                inputs.push(flex::input(term));
            }
            sum = Some(flex::run(WeightedSum { weights }, inputs));
        }
    }
    let scaled = |(weight, term): (f64, Tensor<3>)| if weight == 1.0 { term } else { term * weight };
    let mut terms = terms.into_iter().map(scaled);
    let first = terms.next().expect("there is a term");
    terms.fold(first, |sum, term| sum + term)
}

vectorised! {
    /// `y = Σ weight * term[from..]`.
    pub(crate) fn sum_into<E: Element>(y: &mut [E], weights: &[E], terms: &[&[E]], from: usize) {
        let length = y.len();
        if let (&[a, b], &[wa, wb]) = (terms, weights) {
            let (a, b) = (&a[from..][..length], &b[from..][..length]);
            for i in 0..length {
                y[i] = wa * a[i] + wb * b[i];
            }
            return;
        }
        for (number, (term, &weight)) in terms.iter().zip(weights).enumerate() {
            let term = &term[from..][..length];
            if number == 0 {
                for i in 0..length {
                    y[i] = weight * term[i];
                }
            } else {
                for i in 0..length {
                    y[i] += weight * term[i];
                }
            }
        }
    }
}

impl Kernel for WeightedSum {
    fn kept(&self, _: Vec<FlexTensor>) -> Vec<FlexTensor> {
        Vec::new()
    }

    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let terms: Vec<&[E]> = inputs.iter().map(flex::slice::<E>).collect();
            let weights: Vec<E> = self.weights.iter().map(|&weight| E::of(weight)).collect();
            let mut y = Buffer::<E>::take(terms[0].len());
            y.par_chunks_mut(CHUNK).enumerate().with_min_len(grain()).for_each(|(chunk, y)| {
                sum_into(y, &weights, &terms, chunk * CHUNK);
            });
            (y.into_tensor(&flex::dims(&inputs[0])), Vec::new())
        })
    }

    fn backward(&self, _: &[FlexTensor], _: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        for (slot, &weight) in slots.iter_mut().zip(&self.weights) {
            slot.put(weight, &upstream);
        }
    }
}
