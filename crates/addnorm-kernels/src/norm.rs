//! Layer normalisation and RMS normalisation.

use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};
use rayon::prelude::*;

use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::linear::add_up;

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

impl Norm {
    /// Mean and reciprocal root of a row, in `f64`: a large common offset costs no accuracy and a square
    /// of a large `f32` does not overflow.
    #[inline]
    fn statistics<E: Element>(&self, row: &[E]) -> (f64, f64) {
        let width = row.len() as f64;
        let mean = if self.centre { sum(row, |x| x) / width } else { 0.0 };
        let variance = sum(row, |x| (x - mean) * (x - mean)) / width;
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }
}

/// Sum in four lanes, which vectorises, in a fixed order.
#[inline(always)]
fn sum<E: Element>(row: &[E], term: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0f64; 4];
    let chunks = row.chunks_exact(4);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..4 {
            lanes[lane] += term(chunk[lane].wide());
        }
    }
    let tail: f64 = rest.iter().map(|x| term(x.wide())).sum();
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) + tail
}

/// Normalises over the last dimension.
///
/// # Shapes
/// - x: `[.., .., d]`, gain and bias: `[d]`; the result has the shape of x.
///
/// # Panics
/// If gain or bias do not have the width of x, or a bias is given without a gain.
pub fn norm(x: Tensor<3>, gain: Option<Tensor<1>>, bias: Option<Tensor<1>>, norm: Norm) -> Tensor<3> {
    let width = x.dims()[2];
    for vector in gain.iter().chain(&bias) {
        assert_eq!(vector.dims()[0], width, "a norm's gain and bias have the width of its input");
    }
    assert!(bias.is_none() || gain.is_some(), "a norm with a bias has a gain");
    if matches!(x.dtype(), DType::F16 | DType::BF16) {
        return half(x, gain, bias, norm);
    }
    if flex::is_flex(&x) {
        let mut inputs = vec![flex::input(x)];
        inputs.extend(gain.map(flex::input));
        inputs.extend(bias.map(flex::input));
        return flex::run(norm, inputs);
    }
    composed(x, gain, bias, norm)
}

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

impl Kernel for Norm {
    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let x = flex::slice::<E>(&inputs[0]);
            let shape = flex::dims(&inputs[0]);
            let width = shape[2];
            let gain = inputs.get(1).map(flex::slice::<E>);
            let bias = inputs.get(2).map(flex::slice::<E>);
            let mut y = vec![E::default(); x.len()];
            if width > 0 {
                y.par_chunks_mut(width * ROWS).zip(x.par_chunks(width * ROWS)).for_each(|(y, x)| {
                    for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                        let (mean, reciprocal) = self.statistics(x);
                        let reciprocal = reciprocal * self.scale;
                        match (gain, bias) {
                            (Some(gain), Some(bias)) => {
                                for i in 0..width {
                                    let normal = (x[i].wide() - mean) * reciprocal;
                                    y[i] = E::of(normal * (gain[i].wide() + self.gain_offset) + bias[i].wide() * self.scale);
                                }
                            }
                            (Some(gain), None) => {
                                for i in 0..width {
                                    y[i] = E::of((x[i].wide() - mean) * reciprocal * (gain[i].wide() + self.gain_offset));
                                }
                            }
                            _ => {
                                for i in 0..width {
                                    y[i] = E::of((x[i].wide() - mean) * reciprocal);
                                }
                            }
                        }
                    }
                });
            }
            (flex::tensor(y, &shape), Vec::new())
        })
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        _: &[FlexTensor],
        upstream: FlexTensor,
        needed: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        for_element!(&inputs[0], E => {
            let x = flex::slice::<E>(&inputs[0]);
            let shape = flex::dims(&inputs[0]);
            let width = shape[2];
            let gain = inputs.get(1).map(flex::slice::<E>);
            let upstream = flex::slice::<E>(&upstream);
            let mut dx = vec![E::default(); x.len()];
            // One row of [gain gradient, bias gradient] a task, added up in order afterwards.
            let partials: Vec<Vec<f64>> = dx
                .par_chunks_mut((width * ROWS).max(1))
                .zip(x.par_chunks((width * ROWS).max(1)))
                .zip(upstream.par_chunks((width * ROWS).max(1)))
                .map(|((dx, x), dy)| {
                    let mut sums = vec![0f64; 2 * width];
                    let (dgain, dbias) = sums.split_at_mut(width);
                    let mut scaled = vec![0f64; width];
                    let mut normal = vec![0f64; width];
                    for ((dx, x), dy) in dx.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(dy.chunks_exact(width)) {
                        let (mean, reciprocal) = self.statistics(x);
                        for i in 0..width {
                            let d = dy[i].wide() * self.scale;
                            normal[i] = (x[i].wide() - mean) * reciprocal;
                            dgain[i] += d * normal[i];
                            dbias[i] += d;
                            scaled[i] = d;
                        }
                        if let Some(gain) = gain {
                            for i in 0..width {
                                scaled[i] *= gain[i].wide() + self.gain_offset;
                            }
                        }
                        let along = dot(&scaled, &normal) / width as f64;
                        let level = if self.centre { scaled.iter().sum::<f64>() / width as f64 } else { 0.0 };
                        for i in 0..width {
                            dx[i] = E::of(reciprocal * (scaled[i] - level - normal[i] * along));
                        }
                    }
                    sums
                })
                .collect();
            let total = add_up(&partials, 2 * width);
            let vector = |values: &[f64]| flex::tensor::<E>(values.iter().map(|&value| E::of(value)).collect(), &[width]);
            let mut gradients = vec![needed[0].then(|| flex::tensor(dx, &shape))];
            if inputs.len() > 1 {
                gradients.push(needed[1].then(|| vector(&total[..width])));
            }
            if inputs.len() > 2 {
                gradients.push(needed[2].then(|| vector(&total[width..])));
            }
            gradients
        })
    }
}

#[inline(always)]
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0f64; 4];
    let (a_chunks, b_chunks) = (a.chunks_exact(4), b.chunks_exact(4));
    let tail: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..4 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) + tail
}
