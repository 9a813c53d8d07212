//! The non-linearities of the feed-forward network, alone or as a gate.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Tensor, activation as composed};
use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::parallel::grain;
use crate::simd::{fused, vectorised};
use crate::slot::Slot;

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
    fn value<E: Element>(self, x: E, fused: bool) -> E {
        let (half, one) = (E::of(0.5), E::of(1.0));
        match self {
            Activation::Gelu => half * x * (one + (x * E::of(std::f64::consts::FRAC_1_SQRT_2)).erf(fused)),
            Activation::GeluTanh => {
                half * x * (one + tanh(E::of(TANH_SCALE) * (x + E::of(TANH_CUBE) * x * x * x), fused))
            }
            // Written so that a NaN passes through.
            Activation::Relu => {
                if x < E::default() {
                    E::default()
                } else {
                    x
                }
            }
            Activation::Silu => x / (one + (-x).exp(fused)),
        }
    }

    #[inline(always)]
    fn slope<E: Element>(self, x: E, fused: bool) -> E {
        let (half, one) = (E::of(0.5), E::of(1.0));
        match self {
            Activation::Gelu => {
                let density = E::of(0.398_942_280_401_432_7) * (-(half * x * x)).exp(fused);
                half * (one + (x * E::of(std::f64::consts::FRAC_1_SQRT_2)).erf(fused)) + x * density
            }
            Activation::GeluTanh => {
                let t = tanh(E::of(TANH_SCALE) * (x + E::of(TANH_CUBE) * x * x * x), fused);
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
                let sigmoid = one / (one + (-x).exp(fused));
                sigmoid * (one + x * (one - sigmoid))
            }
        }
    }

    pub(crate) fn composed<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Activation::Gelu => composed::gelu(x),
            Activation::GeluTanh => composed::gelu_approximate(x),
            Activation::Relu => composed::relu(x),
            Activation::Silu => composed::silu(x),
        }
    }
}

#[inline(always)]
fn tanh<E: Element>(x: E, fused: bool) -> E {
    // Beyond 20 the result is 1 to the last bit; comparisons keep NaN.
    let (bound, one) = (E::of(20.0), E::of(1.0));
    let x = if x > bound { bound } else { x };
    let x = if x < -bound { -bound } else { x };
    let e = (x + x).exp(fused);
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

vectorised! {
    fn values<E: Element>(function: Activation, y: &mut [E], x: &[E]) {
        let x = &x[..y.len()];
        for_activation!(function, F => for i in 0..y.len() {
            y[i] = F.value(x[i], fused!());
        });
    }

    fn gated_values<E: Element>(function: Activation, y: &mut [E], x: &[E], gate: &[E]) {
        let (x, gate) = (&x[..y.len()], &gate[..y.len()]);
        for_activation!(function, F => for i in 0..y.len() {
            y[i] = x[i] * F.value(gate[i], fused!());
        });
    }

    /// `y = f(x)` and `d = d f'(x)`.
    fn values_and_gradients<E: Element>(function: Activation, y: &mut [E], d: &mut [E], x: &[E]) {
        let (x, d) = (&x[..y.len()], &mut d[..y.len()]);
        for_activation!(function, F => for i in 0..y.len() {
            y[i] = F.value(x[i], fused!());
            d[i] *= F.slope(x[i], fused!());
        });
    }

    /// `y = x f(gate)`, `dgate = d x f'(gate)` and `d = d f(gate)`.
    fn gated_values_and_gradients<E: Element>(
        function: Activation,
        y: &mut [E],
        d: &mut [E],
        dgate: &mut [E],
        x: &[E],
        gate: &[E],
    ) {
        let count = y.len();
        let (x, gate, d, dgate) = (&x[..count], &gate[..count], &mut d[..count], &mut dgate[..count]);
        for_activation!(function, F => for i in 0..count {
            let value = F.value(gate[i], fused!());
            y[i] = x[i] * value;
            dgate[i] = d[i] * x[i] * F.slope(gate[i], fused!());
            d[i] *= value;
        });
    }
}

/// `f(x)`, or `x f(gate)`.
pub(crate) fn activate<E: Element>(function: Activation, x: &[E], gate: Option<&[E]>) -> Buffer<E> {
    let mut y = Buffer::<E>::take(x.len());
    let chunks = y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK));
    match gate {
        None => chunks.with_min_len(grain()).for_each(|(y, x)| values(function, y, x)),
        Some(gate) => chunks
            .zip(gate.par_chunks(CHUNK))
            .with_min_len(grain())
            .for_each(|((y, x), gate)| gated_values(function, y, x, gate)),
    }
    y
}

/// Turns `d`, the gradient by what [`activate`] gives, into the gradient by `x`. The results are what
/// `activate` gives, for it need not have been kept, and the gradient by the gate.
pub(crate) fn activate_backward<E: Element>(
    function: Activation,
    d: &mut [E],
    x: &[E],
    gate: Option<&[E]>,
) -> (Buffer<E>, Option<Buffer<E>>) {
    let mut y = Buffer::<E>::take(x.len());
    let chunks = y.par_chunks_mut(CHUNK).zip(d.par_chunks_mut(CHUNK)).zip(x.par_chunks(CHUNK));
    match gate {
        None => {
            chunks.with_min_len(grain()).for_each(|((y, d), x)| values_and_gradients(function, y, d, x));
            (y, None)
        }
        Some(gate) => {
            let mut dgate = Buffer::<E>::take(x.len());
            chunks
                .zip(dgate.par_chunks_mut(CHUNK).zip(gate.par_chunks(CHUNK)))
                .with_min_len(grain())
                .for_each(|(((y, d), x), (dgate, gate))| gated_values_and_gradients(function, y, d, dgate, x, gate));
            (y, Some(dgate))
        }
    }
}

impl Kernel for Single {
    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let y = activate(self.0, flex::slice::<E>(&inputs[0]), None);
            (y.into_tensor(&flex::dims(&inputs[0])), Vec::new())
        })
    }

    fn backward(&self, inputs: &[FlexTensor], _: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        for_element!(&inputs[0], E => {
            let mut d = Buffer::copy_of(flex::slice::<E>(&upstream));
            activate_backward(self.0, &mut d, flex::slice::<E>(&inputs[0]), None);
            slots[0].put(1.0, &d.into_tensor(&flex::dims(&inputs[0])));
        })
    }
}

impl Kernel for Gated {
    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let y = activate(self.0, flex::slice::<E>(&inputs[0]), Some(flex::slice::<E>(&inputs[1])));
            (y.into_tensor(&flex::dims(&inputs[0])), Vec::new())
        })
    }

    fn backward(&self, inputs: &[FlexTensor], _: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        for_element!(&inputs[0], E => {
            let [x, gate] = [0, 1].map(|i| flex::slice::<E>(&inputs[i]));
            let mut d = Buffer::copy_of(flex::slice::<E>(&upstream));
            let (_, dgate) = activate_backward(self.0, &mut d, x, Some(gate));
            let shape = flex::dims(&inputs[0]);
            slots[0].put(1.0, &d.into_tensor(&shape));
            if let Some(dgate) = dgate {
                slots[1].put(1.0, &dgate.into_tensor(&shape));
            }
        })
    }
}
