//! Sums whose weights are trained, one number a term.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::mix::sum_into;
use crate::parallel::grain;
use crate::simd::{self, vectorised};
use crate::slot::Slot;

const CHUNK: usize = 8192;

/// Terms that one kernel sums, besides the sum of those before and the weights.
const MOST_TERMS: usize = 7;

#[derive(Debug, Clone)]
struct LearnedSum {
    /// Whether the first input is the sum of terms before, with weight one.
    goes_on: bool,
    /// The weights of the terms, by number in the vector, which is the last input.
    numbers: Vec<usize>,
}

/// `Σ weights[k] * terms[k]`.
///
/// The last term is summed first: of terms that have arisen one after another, each kernel then comes after all
/// that it reads in the order of a graph, and gradients of terms with many readers add up from the last reader
/// to the first, whether the graph is whole or in parts.
///
/// # Shapes
/// - terms: `[.., .., d]`, all alike; weights: one number for each.
///
/// # Panics
/// If there is no term, the shapes differ, or there is not one weight a term.
pub fn learned_sum(terms: Vec<Tensor<3>>, weights: Tensor<1>) -> Tensor<3> {
    assert!(!terms.is_empty(), "a sum has a term");
    assert_eq!(weights.dims(), [terms.len()], "one weight a term");
    let shape = terms[0].dims();
    assert!(terms.iter().all(|term| term.dims() == shape), "the terms of a sum have one shape");
    let count = terms.len();
    let mut newest_first = terms.into_iter().enumerate().rev();
    if !flex::is_flex(&weights) {
        let scaled = |(number, term): (usize, Tensor<3>)| {
            term * weights.clone().slice_dim(0, number..number + 1).reshape([1, 1, 1])
        };
        let first = scaled(newest_first.next().expect("there is a term"));
        return newest_first.map(scaled).fold(first, |sum, term| sum + term);
    }
    let mut sum: Option<Tensor<3>> = None;
    for _ in 0..count.div_ceil(MOST_TERMS) {
        let goes_on = sum.is_some();
        let mut inputs: Vec<_> = sum.take().into_iter().map(flex::input).collect();
        let mut numbers = Vec::new();
        for (number, term) in newest_first.by_ref().take(MOST_TERMS) {
            numbers.push(number);
            inputs.push(flex::input(term));
        }
        inputs.push(flex::input(weights.clone()));
        sum = Some(flex::run(LearnedSum { goes_on, numbers }, inputs));
    }
    sum.expect("there is a term")
}

vectorised! {
    fn product_sum<E: Element>(a: &[E], b: &[E]) -> f64 {
        let mut total = 0.0;
        for (a, b) in a.chunks(CHUNK).zip(b.chunks(CHUNK)) {
            total += simd::sum_of_pairs(a, b, |a: E, b: E| a.wide() * b.wide());
        }
        total
    }
}

impl LearnedSum {
    fn weights<E: Element>(&self, vector: &[E]) -> Vec<E> {
        let own = self.numbers.iter().map(|&number| vector[number]);
        self.goes_on.then(|| E::of(1.0)).into_iter().chain(own).collect()
    }
}

impl Kernel for LearnedSum {
    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let (vector, terms) = inputs.split_last().expect("the weights are there");
            let weights = self.weights(flex::slice::<E>(vector));
            let terms: Vec<&[E]> = terms.iter().map(flex::slice::<E>).collect();
            let mut y = Buffer::<E>::take(terms[0].len());
            y.par_chunks_mut(CHUNK).enumerate().with_min_len(grain()).for_each(|(chunk, y)| {
                sum_into(y, &weights, &terms, chunk * CHUNK);
            });
            (y.into_tensor(&flex::dims(&inputs[0])), Vec::new())
        })
    }

    fn backward(&self, inputs: &[FlexTensor], _: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        for_element!(&inputs[0], E => {
            let (vector, terms) = inputs.split_last().expect("the weights are there");
            let (vector_slot, term_slots) = slots.split_last_mut().expect("one for each input");
            let values = flex::slice::<E>(vector);
            for (slot, weight) in term_slots.iter_mut().zip(self.weights(values)) {
                slot.put(weight.wide(), &upstream);
            }
            if vector_slot.is_needed() {
                let dy = flex::slice::<E>(&upstream);
                let mut gradient = Buffer::<E>::take(values.len());
                gradient.fill(E::default());
                let own = &terms[usize::from(self.goes_on)..];
                for (term, &number) in own.iter().zip(&self.numbers) {
                    gradient[number] = E::of(product_sum(flex::slice::<E>(term), dy));
                }
                vector_slot.put(1.0, &gradient.into_tensor(&[values.len()]));
            }
        })
    }
}
