//! The non-linearities of the feed-forward network, alone or as a gate.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Tensor, activation as composed};
use rayon::prelude::*;

use crate::element::Element;
use crate::flex::{self, Kernel, for_element};

/// Elements that one task handles.
const CHUNK: usize = 8192;

/// A non-linearity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x Φ(x), Φ the normal distribution function (arXiv:1606.08415).
    Gelu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// max(x, 0).
    Relu,
    /// x sigmoid(x).
    Silu,
}

const TANH_SCALE: f64 = 0.797_884_560_802_865_4; // sqrt(2/pi)
const TANH_CUBE: f64 = 0.044_715;

impl Activation {
    #[inline(always)]
    fn value<E: Element>(self, x: E) -> E {
        let (half, one) = (E::of(0.5), E::of(1.0));
        match self {
            Activation::Gelu => half * x * (one + (x * E::of(std::f64::consts::FRAC_1_SQRT_2)).erf()),
            Activation::GeluTanh => half * x * (one + tanh(E::of(TANH_SCALE) * (x + E::of(TANH_CUBE) * x * x * x))),
            // Written so that a NaN passes through.
            Activation::Relu => {
                if x < E::default() {
                    E::default()
                } else {
                    x
                }
            }
            Activation::Silu => x / (one + (-x).exp()),
        }
    }

    #[inline(always)]
    fn slope<E: Element>(self, x: E) -> E {
        let (half, one) = (E::of(0.5), E::of(1.0));
        match self {
            Activation::Gelu => {
                let density = E::of(0.398_942_280_401_432_7) * (-(half * x * x)).exp();
                half * (one + (x * E::of(std::f64::consts::FRAC_1_SQRT_2)).erf()) + x * density
            }
            Activation::GeluTanh => {
                let t = tanh(E::of(TANH_SCALE) * (x + E::of(TANH_CUBE) * x * x * x));
                let inner = E::of(TANH_SCALE) * (one + E::of(3.0 * TANH_CUBE) * x * x);
                let flat = one - t * t;
                // Where tanh has saturated its slope is 0, even if the square of x overflows.
                let rest = half * x * flat * inner;
                half * (one + t) + if flat == E::default() { flat } else { rest }
            }
            Activation::Relu => {
                if x < E::default() {
                    E::default()
                } else if x > E::default() {
                    one
                } else {
                    x
                }
            }
            Activation::Silu => {
                let sigmoid = one / (one + (-x).exp());
                sigmoid * (one + x * (one - sigmoid))
            }
        }
    }

    fn composed<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Activation::Gelu => composed::gelu(x),
            Activation::GeluTanh => composed::gelu_approximate(x),
            Activation::Relu => composed::relu(x),
            Activation::Silu => composed::silu(x),
        }
    }
}

#[inline(always)]
fn tanh<E: Element>(x: E) -> E {
    // Beyond 15 the result is 1 to the last bit; comparisons keep NaN.
    let (bound, one) = (E::of(20.0), E::of(1.0));
    let x = if x > bound { bound } else { x };
    let x = if x < -bound { -bound } else { x };
    let e = (x + x).exp();
    (e - one) / (e + one)
}

#[derive(Debug, Clone)]
struct Single(Activation);

#[derive(Debug, Clone)]
struct Gated(Activation);

/// `f(x)` element by element.
pub fn activation(x: Tensor<3>, function: Activation) -> Tensor<3> {
    if flex::is_flex(&x) {
        return flex::run(Single(function), vec![flex::input(x)]);
    }
    function.composed(x)
}

/// `f(gate) * x` element by element: SwiGLU with SiLU, GeGLU with GELU (arXiv:2002.05202).
///
/// # Panics
/// If the shapes differ.
pub fn gated_activation(x: Tensor<3>, gate: Tensor<3>, function: Activation) -> Tensor<3> {
    assert_eq!(x.dims(), gate.dims(), "the gate has the shape of what it gates");
    if flex::is_flex(&x) {
        return flex::run(Gated(function), vec![flex::input(x), flex::input(gate)]);
    }
    function.composed(gate) * x
}

/// Runs `$body` with `$constant` bound to the activation as a value known when compiling, so that the
/// loop inside has no branch on it.
macro_rules! for_activation {
    ($activation:expr, $constant:ident => $body:expr) => {
        match $activation {
            Activation::Gelu => {
                const $constant: Activation = Activation::Gelu;
                $body
            }
            Activation::GeluTanh => {
                const $constant: Activation = Activation::GeluTanh;
                $body
            }
            Activation::Relu => {
                const $constant: Activation = Activation::Relu;
                $body
            }
            Activation::Silu => {
                const $constant: Activation = Activation::Silu;
                $body
            }
        }
    };
}

impl Kernel for Single {
    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let x = flex::slice::<E>(&inputs[0]);
            let mut y = vec![E::default(); x.len()];
            for_activation!(self.0, F => y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(y, x)| {
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = F.value(x);
                }
            }));
            (flex::tensor(y, &flex::dims(&inputs[0])), Vec::new())
        })
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        _: &[FlexTensor],
        upstream: FlexTensor,
        _: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        for_element!(&inputs[0], E => {
            let x = flex::slice::<E>(&inputs[0]);
            let dy = flex::slice::<E>(&upstream);
            let mut dx = vec![E::default(); x.len()];
            for_activation!(self.0, F => {
                dx.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).zip(dy.par_chunks(CHUNK)).for_each(|((dx, x), dy)| {
                    for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
                        *dx = dy * F.slope(x);
                    }
                });
            });
            vec![Some(flex::tensor(dx, &flex::dims(&inputs[0])))]
        })
    }
}

impl Kernel for Gated {
    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let [x, gate] = [0, 1].map(|i| flex::slice::<E>(&inputs[i]));
            let mut y = vec![E::default(); x.len()];
            for_activation!(self.0, F => {
                y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).zip(gate.par_chunks(CHUNK)).for_each(|((y, x), gate)| {
                    for ((y, &x), &gate) in y.iter_mut().zip(x).zip(gate) {
                        *y = x * F.value(gate);
                    }
                });
            });
            (flex::tensor(y, &flex::dims(&inputs[0])), Vec::new())
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
            let [x, gate] = [0, 1].map(|i| flex::slice::<E>(&inputs[i]));
            let dy = flex::slice::<E>(&upstream);
            let mut dx = vec![E::default(); x.len()];
            let mut dgate = vec![E::default(); x.len()];
            for_activation!(self.0, F => {
                dx.par_chunks_mut(CHUNK)
                    .zip(dgate.par_chunks_mut(CHUNK))
                    .zip(x.par_chunks(CHUNK).zip(gate.par_chunks(CHUNK)))
                    .zip(dy.par_chunks(CHUNK))
                    .for_each(|(((dx, dgate), (x, gate)), dy)| {
                        for i in 0..dx.len() {
                            dx[i] = dy[i] * F.value(gate[i]);
                            dgate[i] = dy[i] * x[i] * F.slope(gate[i]);
                        }
                    });
            });
            let shape = flex::dims(&inputs[0]);
            vec![needed[0].then(|| flex::tensor(dx, &shape)), needed[1].then(|| flex::tensor(dgate, &shape))]
        })
    }
}
