//! What happens to queries, keys and values before attention: a norm on every head, and a rotation.

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex;
use crate::linear::{Partials, narrow};
use crate::norm::Norm;
use crate::norm_rows::{backward_rows, forward_rows};
use crate::parallel::grain;
use crate::rotary::{self, Direction};
use crate::slot::Slot;

/// Heads that one task handles. Fixed, so that sums do not depend on the number of threads.
const HEADS: usize = 512;

#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub norm: Option<Norm>,
    /// How many of gain and bias the norm has.
    pub vectors: usize,
    pub heads: usize,
    pub rotary: Option<f64>,
}

/// What a part has become.
pub(crate) struct Prepared<E> {
    /// None where it is the input itself.
    pub values: Option<Buffer<E>>,
    statistics: Buffer<f64>,
}

impl Part {
    pub(crate) fn prepare<E: Element>(&self, x: &FlexTensor, vectors: &[FlexTensor]) -> Prepared<E> {
        if self.norm.is_none() && self.rotary.is_none() {
            return Prepared { values: None, statistics: Buffer::take(0) };
        }
        let shape = flex::dims(x);
        let x = flex::slice::<E>(x);
        let width = shape[2] / self.heads;
        let mut statistics = Buffer::<f64>::take(0);
        let mut values = Buffer::<E>::take(x.len());
        match &self.norm {
            Some(norm) if width > 0 => {
                statistics = Buffer::take(2 * x.len() / width);
                let [gain, bias] = [0, 1].map(|at| vectors.get(at).map(flex::slice::<E>));
                values
                    .par_chunks_mut(HEADS * width)
                    .zip(x.par_chunks(HEADS * width))
                    .zip(statistics.par_chunks_mut(2 * HEADS))
                    .with_min_len(grain())
                    .for_each(|((y, x), kept)| forward_rows(norm, y, Some(x), gain, bias, width, kept));
            }
            _ => values.copy_from_slice(x),
        }
        if let Some(base) = self.rotary {
            rotary::turn(&mut values, shape[1], self.heads, width, base, Direction::Forward);
        }
        Prepared { values: Some(values), statistics }
    }

    /// `gradient` is the one by what [`prepare`](Part::prepare) gave.
    pub(crate) fn backward<E: Element>(
        &self,
        x: &FlexTensor,
        vectors: &[FlexTensor],
        prepared: &Prepared<E>,
        mut gradient: Buffer<E>,
        slot: &mut Slot,
        parameters: &mut [Slot],
    ) {
        let shape = flex::dims(x);
        let width = shape[2] / self.heads;
        if let Some(base) = self.rotary {
            rotary::turn(&mut gradient, shape[1], self.heads, width, base, Direction::Backward);
        }
        let Some(norm) = &self.norm else {
            slot.put(1.0, &gradient.into_tensor(&shape));
            return;
        };
        let x = flex::slice::<E>(x);
        let gain = vectors.first().map(flex::slice::<E>);
        let mut dx = Buffer::<E>::take(x.len());
        let size = (HEADS * width).max(1);
        let mut partials = Partials::new(x.len(), size, 2 * width);
        dx.par_chunks_mut(size)
            .zip(x.par_chunks(size))
            .zip(gradient.par_chunks(size))
            .zip(prepared.statistics.par_chunks(2 * HEADS))
            .zip(partials.parts())
            .with_min_len(grain())
            .for_each(|((((dx, x), dy), kept), sums)| {
                backward_rows(norm, dx, false, x, dy, gain, width, kept, sums);
            });
        slot.put(1.0, &dx.into_tensor(&shape));
        for (slot, values) in parameters.iter_mut().zip(partials.total().chunks_exact(width.max(1))) {
            slot.put(1.0, &narrow::<E>(values).into_tensor(&[width]));
        }
    }
}
