//! Weighted sums of residual streams and branches.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::element::Element;
use crate::flex::{self, Kernel, for_element};

const CHUNK: usize = 8192;

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
        // Four at a time; the running sum joins the next ones.
        let mut rest = terms.into_iter();
        let mut sum: Option<Tensor<3>> = None;
        loop {
            let room = if sum.is_some() { 3 } else { 4 };
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

impl Kernel for WeightedSum {
    const KEEPS_INPUTS: bool = false;

    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let slices: Vec<&[E]> = inputs.iter().map(flex::slice::<E>).collect();
            let weights: Vec<E> = self.weights.iter().map(|&weight| E::of(weight)).collect();
            let mut y = vec![E::default(); slices[0].len()];
            y.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
                let from = chunk * CHUNK;
                match (slices.as_slice(), weights.as_slice()) {
                    (&[a, b], &[wa, wb]) => {
                        let (a, b) = (&a[from..][..y.len()], &b[from..][..y.len()]);
                        for i in 0..y.len() {
                            y[i] = wa * a[i] + wb * b[i];
                        }
                    }
                    _ => {
                        for (slice, &weight) in slices.iter().zip(&weights) {
                            for (y, &x) in y.iter_mut().zip(&slice[from..]) {
                                *y += weight * x;
                            }
                        }
                    }
                }
            });
            (flex::tensor(y, &flex::dims(&inputs[0])), Vec::new())
        })
    }

    fn backward(
        &self,
        _: &[FlexTensor],
        _: &[FlexTensor],
        upstream: FlexTensor,
        needed: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let gradient = |weight: f64| {
            if weight == 1.0 {
                return upstream.clone();
            }
            for_element!(&upstream, E => {
                let dy = flex::slice::<E>(&upstream);
                let weight = E::of(weight);
                let mut dx = vec![E::default(); dy.len()];
                dx.par_chunks_mut(CHUNK).zip(dy.par_chunks(CHUNK)).for_each(|(dx, dy)| {
                    for (dx, &dy) in dx.iter_mut().zip(dy) {
                        *dx = weight * dy;
                    }
                });
                flex::tensor(dx, &flex::dims(&upstream))
            })
        };
        self.weights.iter().zip(needed).map(|(&weight, &needed)| needed.then(|| gradient(weight))).collect()
    }
}
