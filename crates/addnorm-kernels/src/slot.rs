//! Where a kernel leaves the gradient of one of its inputs.

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use crate::buffer::{self, Buffer};
use crate::element::Element;
use crate::flex::{self, for_element};
use crate::parallel::grain;
use crate::simd::vectorised;

const CHUNK: usize = 8192;

/// The gradient of one input. An input that has other uses may have a gradient already: kernels whose last
/// operation is a sum add to it in place, which saves a pass over memory.
pub(crate) struct Slot {
    needed: bool,
    held: Option<FlexTensor>,
}

impl Slot {
    pub(crate) fn unneeded() -> Self {
        Slot { needed: false, held: None }
    }

    pub(crate) fn needed(held: Option<FlexTensor>) -> Self {
        Slot { needed: true, held }
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.needed
    }

    /// Memory for the gradient, to be given back by [`close`](Slot::close).
    pub(crate) fn open<E: Element>(&mut self, shape: &[usize]) -> Opened<E> {
        match self.held.take() {
            // The same memory may stand for the gradient of another node too.
            Some(held) if !held.is_unique() => Opened::Held(buffer::copy::<E>(&held)),
            Some(held) => Opened::Held(held),
            None => Opened::Fresh(Buffer::take(shape.iter().product()), shape.to_vec()),
        }
    }

    pub(crate) fn close<E: Element>(&mut self, opened: Opened<E>) {
        self.held = Some(match opened {
            Opened::Held(held) => held,
            Opened::Fresh(buffer, shape) => buffer.into_tensor(&shape),
        });
    }

    /// Adds `weight * gradient` to what is held.
    pub(crate) fn put(&mut self, weight: f64, gradient: &FlexTensor) {
        if !self.needed {
            return;
        }
        if self.held.is_none() && weight == 1.0 {
            self.held = Some(gradient.clone());
            return;
        }
        for_element!(gradient, E => {
            let mut opened = self.open::<E>(&flex::dims(gradient));
            let (adds, to) = opened.parts();
            let (weight, from) = (E::of(weight), flex::slice::<E>(gradient));
            let chunks = to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).with_min_len(grain());
            chunks.for_each(|(to, from)| scale_or_add(to, weight, from, adds));
            self.close(opened);
        });
    }

    pub(crate) fn into_gradient(self) -> Option<FlexTensor> {
        self.held
    }
}

/// Memory that a gradient is written or added to.
pub(crate) enum Opened<E> {
    Fresh(Buffer<E>, Vec<usize>),
    Held(FlexTensor),
}

impl<E: Element> Opened<E> {
    /// Whether the memory holds a gradient to add to, and the memory. If not, what it holds has no meaning.
    pub(crate) fn parts(&mut self) -> (bool, &mut [E]) {
        match self {
            Opened::Fresh(buffer, _) => (false, buffer),
            Opened::Held(held) => {
                let length = burn::backend::TensorMetadata::shape(held).num_elements();
                (true, &mut held.storage_mut::<E>()[..length])
            }
        }
    }
}

vectorised! {
    fn scale_or_add<E: Element>(to: &mut [E], weight: E, from: &[E], adds: bool) {
        let from = &from[..to.len()];
        if adds {
            for i in 0..to.len() {
                to[i] += weight * from[i];
            }
        } else {
            for i in 0..to.len() {
                to[i] = weight * from[i];
            }
        }
    }
}
