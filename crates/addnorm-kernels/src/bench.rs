//! Norms and copies by themselves, to be timed.

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;

use crate::collect::resume;
use crate::norm::{Norm, norm};

/// One norm with everything that its forward and backward pass need.
#[derive(Debug)]
pub struct NormLoad {
    norm: Norm,
    x: Tensor<3>,
    gain: Tensor<1>,
    bias: Option<Tensor<1>>,
    upstream: Tensor<3>,
    /// For copies: as many numbers as the passes read and write, half of them read.
    from: Vec<f32>,
    to: Vec<f32>,
}

impl NormLoad {
    /// A layer norm with gain and bias where `centre` is set, else an RMS norm with gain, on `[rows, width]`.
    pub fn new(rows: usize, width: usize, centre: bool) -> Self {
        let device = Device::flex().autodiff();
        let wave = |count: usize, a: f32| (0..count).map(|i| (i as f32 * a).sin()).collect::<Vec<f32>>();
        let cube = |a: f32| TensorData::new(wave(rows * width, a), [1, rows, width]);
        let vector = |value: f32| Tensor::<1>::from_data(TensorData::new(vec![value; width], [width]), &device);
        NormLoad {
            norm: Norm { centre, epsilon: 1e-5, scale: 1.0, gain_offset: 0.0, round_before_gain: false },
            x: Tensor::from_data(cube(0.7), &device),
            gain: vector(1.0),
            bias: centre.then(|| vector(0.0)),
            upstream: Tensor::from_data(cube(0.3), &device).inner(),
            from: vec![1.0; rows * width * 5 / 2],
            to: vec![0.0; rows * width * 5 / 2],
        }
    }

    /// One forward and backward pass: it reads the input twice and the upstream gradient once, and writes
    /// the result and the input's gradient, five arrays in all.
    pub fn pass(&self) {
        let (x, gain) = (self.x.clone().require_grad(), self.gain.clone().require_grad());
        let y = norm(x, Some(gain), self.bias.clone().map(Tensor::require_grad), self.norm);
        let _ = resume(vec![(y, self.upstream.clone())]).backward();
    }

    /// Copies half as much as a pass reads and writes, so that as many bytes move.
    pub fn copy(&mut self) {
        const CHUNK: usize = 1 << 16;
        let chunks = self.to.par_chunks_mut(CHUNK).zip(self.from.par_chunks(CHUNK));
        chunks.for_each(|(to, from)| to.copy_from_slice(from));
        std::hint::black_box(&self.to);
    }
}
