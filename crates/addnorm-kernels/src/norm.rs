//! Layer normalisation and RMS normalisation, alone or of a weighted sum.

use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};
use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::linear::{Partials, narrow};
use crate::mix::{self, weighted_sum};
use crate::norm_rows::{backward_rows, forward_rows};
use crate::parallel::grain;
use crate::slot::{Opened, Slot};

/// Rows that one task handles. Fixed, so that sums do not depend on the number of threads.
const ROWS: usize = 64;

/// What a norm computes: `scale * ((offset + gain) * (x - mean) / sqrt(variance + epsilon) + bias)` over the
/// last dimension, with the biased variance; without centring the mean is taken as 0 (arXiv:1607.06450,
/// arXiv:1910.07467).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Whether the mean is taken off.
    pub centre: bool,
    /// Inside the root. Kept in `f64`, so that 1e-12 is not rounded away.
    pub epsilon: f64,
    /// A fixed factor on the result.
    pub scale: f64,
    /// Added to the gain after widening: 1 where the stored gain is the difference from one, else 0.
    pub gain_offset: f64,
    /// In half precision, whether the normalised value is rounded before it meets the gain, as LLaMA does,
    /// or after, as Gemma does. Without effect in `f32` and `f64`.
    pub round_before_gain: bool,
}

/// Normalises over the last dimension.
///
/// # Shapes
/// - x: `[.., .., d]`, gain and bias: `[d]`; the result has the shape of x.
///
/// # Panics
/// If gain or bias do not have the width of x, or a bias is given without a gain.
pub fn norm(x: Tensor<3>, gain: Option<Tensor<1>>, bias: Option<Tensor<1>>, norm: Norm) -> Tensor<3> {
    add_norm(vec![(1.0, x)], gain, bias, norm)
}

/// Normalises a weighted sum, `norm(Σ weight * term)`, over the last dimension: the "Add & Norm" in one pass
/// over memory, forward and backward.
///
/// # Shapes
/// - terms: `[.., .., d]`, all alike; gain and bias: `[d]`; the result has the shape of a term.
///
/// # Panics
/// If there is no term, the shapes differ, or a bias is given without a gain.
pub fn add_norm(
    mut terms: Vec<(f64, Tensor<3>)>,
    gain: Option<Tensor<1>>,
    bias: Option<Tensor<1>>,
    norm: Norm,
) -> Tensor<3> {
    let shape = terms.first().expect("a sum has a term").1.dims();
    for vector in gain.iter().chain(&bias) {
        assert_eq!(vector.dims()[0], shape[2], "a norm's gain and bias have the width of its input");
    }
    assert!(terms.iter().all(|(_, term)| term.dims() == shape), "the terms of a sum have one shape");
    assert!(bias.is_none() || gain.is_some(), "a norm with a bias has a gain");
    let first = &terms[0].1;
    if matches!(first.dtype(), DType::F16 | DType::BF16) {
        return half(weighted_sum(terms), gain, bias, norm);
    }
    if !flex::is_flex(first) {
        return composed(weighted_sum(terms), gain, bias, norm);
    }
    if terms.len() > MOST_TERMS {
        terms = vec![(1.0, weighted_sum(terms))];
    }
    let weights = terms.iter().map(|(weight, _)| *weight).collect();
    let mut inputs: Vec<_> = terms.into_iter().map(|(_, term)| flex::input(term)).collect();
    inputs.extend(gain.map(flex::input));
    inputs.extend(bias.map(flex::input));
    flex::run(AddNorm { norm, weights }, inputs)
}

/// Terms that one kernel sums; with gain and bias it takes six tensors.
const MOST_TERMS: usize = 4;

/// Half precision: the statistics and the gain are computed in `f32`, and the result is rounded last, or
/// before the gain where the model was trained so.
fn half(x: Tensor<3>, gain: Option<Tensor<1>>, bias: Option<Tensor<1>>, settings: Norm) -> Tensor<3> {
    let dtype = x.dtype();
    let [_, _, width] = x.dims();
    let wide = |vector: Tensor<1>| vector.cast(DType::F32);
    let x = x.cast(DType::F32);
    let (gain, bias) = (gain.map(wide), bias.map(wide));
    if !settings.round_before_gain {
        return norm(x, gain, bias, settings).cast(dtype);
    }
    let mut y = norm(x, None, None, settings).cast(dtype).cast(DType::F32);
    if let Some(gain) = gain {
        y = y * (gain + settings.gain_offset).reshape([1, 1, width]);
    }
    if let Some(bias) = bias {
        y = y + bias.reshape([1, 1, width]) * settings.scale;
    }
    y.cast(dtype)
}

/// The same out of Burn's operators, for other devices.
///
/// The row is first shifted by its first element, which is exact where a common offset is large, and then
/// divided by its largest magnitude. Both are constants to the gradient: the norm does not change (the
/// epsilon is scaled along), and no square overflows.
pub fn composed(x: Tensor<3>, gain: Option<Tensor<1>>, bias: Option<Tensor<1>>, norm: Norm) -> Tensor<3> {
    let [_, _, width] = x.dims();
    let shifted = if norm.centre { x.clone() - x.detach().slice_dim(2, 0..1) } else { x };
    let largest = shifted.clone().detach().abs().max_dim(2).clamp_min(1e-30);
    let scaled = shifted / largest.clone();
    let centred = if norm.centre { scaled.clone() - scaled.mean_dim(2) } else { scaled };
    let variance = (centred.clone() * centred.clone()).mean_dim(2);
    let epsilon = largest.recip().powi_scalar(2) * norm.epsilon;
    let mut y = centred / (variance + epsilon).sqrt();
    if let Some(gain) = gain {
        y = y * (gain + norm.gain_offset).reshape([1, 1, width]);
    }
    if let Some(bias) = bias {
        y = y + bias.reshape([1, 1, width]);
    }
    if norm.scale == 1.0 { y } else { y * norm.scale }
}

#[derive(Debug, Clone)]
struct AddNorm {
    norm: Norm,
    /// Of the terms, which are the first inputs.
    weights: Vec<f64>,
}

impl AddNorm {
    /// Whether what is normalised is an input itself.
    fn is_alone(&self) -> bool {
        self.weights == [1.0]
    }
}

impl Kernel for AddNorm {
    fn kept(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        // The sum is saved; its terms need not live on for it.
        let terms = if self.is_alone() { 0 } else { self.weights.len() };
        inputs.into_iter().skip(terms).collect()
    }

    fn forward(&self, inputs: &[FlexTensor], tracked: bool) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let shape = flex::dims(&inputs[0]);
            let (width, count) = (shape[2], self.weights.len());
            let terms: Vec<&[E]> = inputs[..count].iter().map(flex::slice::<E>).collect();
            let weights: Vec<E> = self.weights.iter().map(|&weight| E::of(weight)).collect();
            let gain = inputs.get(count).map(flex::slice::<E>);
            let bias = inputs.get(count + 1).map(flex::slice::<E>);
            let mut y = Buffer::<E>::take(terms[0].len());
            let rows = y.len() / width.max(1);
            let mut statistics = Buffer::<f64>::take(2 * rows);
            // Without a backward pass the sum is made where the result will stand.
            let mut sum = Buffer::<E>::take(if self.is_alone() || !tracked { 0 } else { y.len() });
            if width > 0 {
                let mut sums: Vec<Option<&mut [E]>> = sum.chunks_mut(width * ROWS).map(Some).collect();
                sums.resize_with(rows.div_ceil(ROWS), || None);
                y.par_chunks_mut(width * ROWS)
                    .zip(statistics.par_chunks_mut(2 * ROWS))
                    .zip(sums)
                    .enumerate()
                    .with_min_len(grain())
                    .for_each(|(chunk, ((y, statistics), sum))| {
                        let from = chunk * ROWS * width;
                        if self.is_alone() {
                            forward_rows(&self.norm, y, Some(&terms[0][from..]), gain, bias, width, statistics);
                        } else if let Some(sum) = sum {
                            mix::sum_into(sum, &weights, &terms, from);
                            forward_rows(&self.norm, y, Some(sum), gain, bias, width, statistics);
                        } else {
                            mix::sum_into(y, &weights, &terms, from);
                            forward_rows(&self.norm, y, None, gain, bias, width, statistics);
                        }
                    });
            }
            let mut saved = Vec::new();
            if tracked {
                saved.push(statistics.into_tensor(&[rows, 2]));
                if !self.is_alone() {
                    saved.push(sum.into_tensor(&shape));
                }
            }
            (y.into_tensor(&shape), saved)
        })
    }

    fn backward(&self, inputs: &[FlexTensor], saved: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        for_element!(&upstream, E => {
            let (input, vectors) = if self.is_alone() { (&inputs[0], &inputs[1..]) } else { (&saved[1], inputs) };
            let x = flex::slice::<E>(input);
            let shape = flex::dims(input);
            let width = shape[2];
            let gain = vectors.first().map(flex::slice::<E>);
            let statistics = flex::slice::<f64>(&saved[0]);
            let dy = flex::slice::<E>(&upstream);
            let (terms, parameters) = slots.split_at_mut(self.weights.len());
            let learns = parameters.iter().any(Slot::is_needed);
            let mut opened = if self.is_alone() && terms[0].is_needed() {
                terms[0].open::<E>(&shape)
            } else {
                Opened::Fresh(Buffer::take(x.len()), shape.clone())
            };
            let (adds, dx) = opened.parts();
            let size = (width * ROWS).max(1);
            // One row of [gain gradient, bias gradient] a task, added up in order afterwards.
            let mut partials = Partials::new(x.len(), size, if learns { 2 * width } else { 0 });
            let chunks = dx
                .par_chunks_mut(size)
                .zip(x.par_chunks(size))
                .zip(dy.par_chunks(size))
                .zip(statistics.par_chunks(2 * ROWS));
            if learns {
                chunks.zip(partials.parts()).with_min_len(grain()).for_each(|((((dx, x), dy), statistics), sums)| {
                    backward_rows(&self.norm, dx, adds, x, dy, gain, width, statistics, sums);
                });
            } else {
                chunks.with_min_len(grain()).for_each(|(((dx, x), dy), statistics)| {
                    backward_rows(&self.norm, dx, adds, x, dy, gain, width, statistics, &mut []);
                });
            }
            if self.is_alone() {
                terms[0].close(opened);
            } else if let Opened::Fresh(dsum, _) = opened {
                let dsum = dsum.into_tensor(&shape);
                for (slot, &weight) in terms.iter_mut().zip(&self.weights) {
                    slot.put(weight, &dsum);
                }
            }
            if learns {
                for (slot, values) in parameters.iter_mut().zip(partials.total().chunks_exact(width.max(1))) {
                    slot.put(1.0, &narrow::<E>(values).into_tensor(&[width]));
                }
            }
        })
    }
}
