//! Rotary positions (arXiv:2104.09864), in the half-split form that Hugging Face checkpoints use.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

use crate::element::Element;
use crate::flex::{self, Kernel, for_element};

#[derive(Debug, Clone)]
struct Rotary {
    heads: usize,
    base: f64,
}

/// Turns element `i` and element `i + head_width/2` of every head by the angle `position * base^(-2i/head_width)`.
///
/// # Shapes
/// - x: `[batch, time, heads * head_width]`, positions count from 0 along time; the result has the shape of x.
///
/// # Panics
/// If the head width is not even.
pub fn rotary(x: Tensor<3>, heads: usize, base: f64) -> Tensor<3> {
    let [batch, time, width] = x.dims();
    assert!(
        heads > 0 && width % heads == 0 && (width / heads).is_multiple_of(2),
        "rotary positions need an even head width"
    );
    if flex::is_flex(&x) {
        return flex::run(Rotary { heads, base }, vec![flex::input(x)]);
    }
    let half = width / heads / 2;
    let (cosines, sines) = angles(time, half, base);
    let device = x.device();
    let table = |values: Vec<f64>| {
        Tensor::<2>::from_data(TensorData::new(values, [time, half]), (&device, x.dtype())).reshape([1, time, 1, half])
    };
    let (cosines, sines) = (table(cosines), table(sines));
    let parts = x.reshape([batch, time, heads, 2 * half]);
    let first = parts.clone().slice_dim(3, 0..half);
    let second = parts.slice_dim(3, half..2 * half);
    let turned_first = first.clone() * cosines.clone() - second.clone() * sines.clone();
    let turned_second = second * cosines + first * sines;
    Tensor::cat(vec![turned_first, turned_second], 3).reshape([batch, time, width])
}

fn angles(time: usize, half: usize, base: f64) -> (Vec<f64>, Vec<f64>) {
    let frequencies: Vec<f64> = (0..half).map(|i| base.powf(-(i as f64) / half as f64)).collect();
    let angle = |at: usize| (at / half) as f64 * frequencies[at % half];
    ((0..time * half).map(|at| angle(at).cos()).collect(), (0..time * half).map(|at| angle(at).sin()).collect())
}

impl Rotary {
    /// `direction` is 1 forward and -1 for the gradient: the transpose of a rotation is its inverse.
    fn turn(&self, x: &FlexTensor, direction: f64) -> FlexTensor {
        for_element!(x, E => {
            let shape = flex::dims(x);
            let (time, width) = (shape[1], shape[2]);
            let half = width / self.heads / 2;
            let (cosines, sines) = angles(time, half, self.base);
            let cosines: Vec<E> = cosines.into_iter().map(E::of).collect();
            let sines: Vec<E> = sines.into_iter().map(|sine| E::of(direction * sine)).collect();
            let x = flex::slice::<E>(x);
            let mut y = vec![E::default(); x.len()];
            y.par_chunks_mut((time * width).max(1)).zip(x.par_chunks((time * width).max(1))).for_each(|(y, x)| {
                for (at, (y, x)) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).enumerate() {
                    let (cosines, sines) = (&cosines[at * half..][..half], &sines[at * half..][..half]);
                    for (y, x) in y.chunks_exact_mut(2 * half).zip(x.chunks_exact(2 * half)) {
                        for i in 0..half {
                            y[i] = x[i] * cosines[i] - x[i + half] * sines[i];
                            y[i + half] = x[i + half] * cosines[i] + x[i] * sines[i];
                        }
                    }
                }
            });
            flex::tensor(y, &shape)
        })
    }
}

impl Kernel for Rotary {
    const KEEPS_INPUTS: bool = false;

    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Vec<FlexTensor>) {
        (self.turn(&inputs[0], 1.0), Vec::new())
    }

    fn backward(
        &self,
        _: &[FlexTensor],
        _: &[FlexTensor],
        upstream: FlexTensor,
        _: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        vec![Some(self.turn(&upstream, -1.0))]
    }
}
