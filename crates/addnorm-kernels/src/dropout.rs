//! Dropout whose mask is a function of a seed, so that it needs no storage and no shared random stream.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::parallel::grain;
use crate::slot::Slot;

const CHUNK: usize = 8192;

#[derive(Debug, Clone)]
struct Dropout {
    seed: u64,
    /// The number of the first element.
    first: usize,
    probability: f64,
}

/// Each element is set to 0 with the given probability and else divided by the probability of staying.
/// The same seed and shape give the same mask on every device. `first` is the number of the first element:
/// parts of a tensor, each with the number at which it begins, are masked as the whole would be.
///
/// # Panics
/// If the probability is not in [0, 1).
pub fn dropout(x: Tensor<3>, probability: f64, seed: u64, first: usize) -> Tensor<3> {
    assert!((0.0..1.0).contains(&probability), "a dropout probability is in [0, 1)");
    if probability == 0.0 {
        return x;
    }
    let kernel = Dropout { seed, first, probability };
    if flex::is_flex(&x) {
        return flex::run(kernel, vec![flex::input(x)]);
    }
    let shape = x.dims();
    let mask: Vec<f64> = (0..shape.iter().product()).map(|at| kernel.factor(at)).collect();
    let mask = Tensor::<3>::from_data(TensorData::new(mask, shape), (&x.device(), x.dtype()));
    x * mask
}

impl Dropout {
    #[inline(always)]
    fn factor(&self, at: usize) -> f64 {
        // SplitMix64 of the seed and the position.
        let mut z = self.seed.wrapping_add(((self.first + at) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let uniform = (z >> 11) as f64 / (1u64 << 53) as f64;
        if uniform < self.probability { 0.0 } else { 1.0 / (1.0 - self.probability) }
    }

    fn masked(&self, x: &FlexTensor) -> FlexTensor {
        for_element!(x, E => {
            let values = flex::slice::<E>(x);
            let mut y = Buffer::<E>::take(values.len());
            y.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK)).enumerate().with_min_len(grain()).for_each(|(chunk, (y, values))| {
                for (i, (y, &value)) in y.iter_mut().zip(values).enumerate() {
                    *y = value * E::of(self.factor(chunk * CHUNK + i));
                }
            });
            y.into_tensor(&flex::dims(x))
        })
    }
}

impl Kernel for Dropout {
    fn kept(&self, _: Vec<FlexTensor>) -> Vec<FlexTensor> {
        Vec::new()
    }

    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        (self.masked(&inputs[0]), Vec::new())
    }

    fn backward(&self, _: &[FlexTensor], _: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        slots[0].put(1.0, &self.masked(&upstream));
    }
}
