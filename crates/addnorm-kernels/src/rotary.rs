//! Rotary positions (arXiv:2104.09864), in the half-split form that Hugging Face checkpoints use.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::flex::FlexTensor;
use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::parallel::grain;
use crate::simd::vectorised;
use crate::slot::Slot;

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
    let angles = angles(time, half, base);
    let device = x.device();
    let table = |values: &Vec<f64>| {
        Tensor::<2>::from_data(TensorData::new(values.clone(), [time, half]), (&device, x.dtype()))
            .reshape([1, time, 1, half])
    };
    let (cosines, sines) = (table(&angles.wide[0]), table(&angles.wide[1]));
    let parts = x.reshape([batch, time, heads, 2 * half]);
    let first = parts.clone().slice_dim(3, 0..half);
    let second = parts.slice_dim(3, half..2 * half);
    let turned_first = first.clone() * cosines.clone() - second.clone() * sines.clone();
    let turned_second = second * cosines + first * sines;
    Tensor::cat(vec![turned_first, turned_second], 3).reshape([batch, time, width])
}

/// Cosines and sines of `time * half` angles, by position and then by frequency.
#[derive(Debug)]
struct Angles {
    key: (usize, usize, u64),
    wide: [Vec<f64>; 2],
    narrow: [Vec<f32>; 2],
}

/// Tables that were asked for last: every block of every step asks for the same.
static TABLES: Mutex<Vec<Arc<Angles>>> = Mutex::new(Vec::new());

/// Tables that are kept.
const MOST_TABLES: usize = 8;

fn angles(time: usize, half: usize, base: f64) -> Arc<Angles> {
    let key = (time, half, base.to_bits());
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(table) = tables.iter().find(|table| table.key == key) {
        return Arc::clone(table);
    }
    let frequencies: Vec<f64> = (0..half).map(|i| base.powf(-(i as f64) / half as f64)).collect();
    let angle = |at: usize| (at / half) as f64 * frequencies[at % half];
    let wide =
        [(0..time * half).map(|at| angle(at).cos()).collect(), (0..time * half).map(|at| angle(at).sin()).collect()];
    let narrow = wide.each_ref().map(|values: &Vec<f64>| values.iter().map(|&value| value as f32).collect());
    let table = Arc::new(Angles { key, wide, narrow });
    if tables.len() == MOST_TABLES {
        tables.remove(0);
    }
    tables.push(Arc::clone(&table));
    table
}

/// The gradient of a rotation is turned the other way: its transpose is its inverse.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// Turns rows in place: `[.., time, heads * width]`.
pub(crate) fn turn<E: Element>(
    rows: &mut [E],
    time: usize,
    heads: usize,
    width: usize,
    base: f64,
    direction: Direction,
) {
    if rows.is_empty() {
        return;
    }
    let half = width / 2;
    let table = angles(time, half, base);
    let [cosines, sines] = [0, 1].map(|which| E::either(&table.narrow[which], &table.wide[which]));
    rows.par_chunks_mut(time * heads * width).with_min_len(grain()).for_each(|rows| {
        for (at, row) in rows.chunks_exact_mut(heads * width).enumerate() {
            turn_row(row, half, &cosines[at * half..][..half], &sines[at * half..][..half], direction);
        }
    });
}

vectorised! {
    fn turn_row<E: Element>(row: &mut [E], half: usize, cosines: &[E], sines: &[E], direction: Direction) {
        let (cosines, sines) = (&cosines[..half], &sines[..half]);
        for head in row.chunks_exact_mut(2 * half) {
            let (first, second) = head.split_at_mut(half);
            if direction == Direction::Forward {
                for i in 0..half {
                    let (a, b) = (first[i], second[i]);
                    first[i] = a * cosines[i] - b * sines[i];
                    second[i] = b * cosines[i] + a * sines[i];
                }
            } else {
                for i in 0..half {
                    let (a, b) = (first[i], second[i]);
                    first[i] = a * cosines[i] + b * sines[i];
                    second[i] = b * cosines[i] - a * sines[i];
                }
            }
        }
    }
}

impl Rotary {
    fn turned(&self, x: &FlexTensor, direction: Direction) -> FlexTensor {
        for_element!(x, E => {
            let shape = flex::dims(x);
            let mut y = Buffer::copy_of(flex::slice::<E>(x));
            turn(&mut y, shape[1], self.heads, shape[2] / self.heads, self.base, direction);
            y.into_tensor(&shape)
        })
    }
}

impl Kernel for Rotary {
    fn kept(&self, _: Vec<FlexTensor>) -> Vec<FlexTensor> {
        Vec::new()
    }

    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        (self.turned(&inputs[0], Direction::Forward), Vec::new())
    }

    fn backward(&self, _: &[FlexTensor], _: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        slots[0].put(1.0, &self.turned(&upstream, Direction::Backward));
    }
}
