//! Matrix product with a bias, and with the non-linearity before it.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::activation::{Activation, activate, activate_backward, activation, gated_activation};
use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::gemm::{At, Threads, product};
use crate::parallel::grain;
use crate::simd::{LANES, vectorised};
use crate::slot::Slot;

const ROWS: usize = 64;

/// Rows that are summed in the storage type before they join an `f64` sum.
const GROUP: usize = 8;

#[derive(Debug, Clone)]
struct Linear {
    /// Whether the weight is stored `[output, input]`, as an embedding that serves as the head is.
    transposed: bool,
    /// What the input goes through first.
    activation: Option<Activation>,
    /// Whether a gate follows the input.
    gated: bool,
}

/// `x * weight + bias`.
///
/// # Shapes
/// - x: `[.., .., input]`, weight: `[input, output]`, bias: `[output]`; the result is `[.., .., output]`.
/// - With `transposed` the weight is `[output, input]`.
///
/// # Panics
/// If the sizes do not match.
pub fn linear(x: Tensor<3>, weight: Tensor<2>, bias: Option<Tensor<1>>, transposed: bool) -> Tensor<3> {
    let [a, b, input] = x.dims();
    let [rows, columns] = weight.dims();
    let (expected, output) = if transposed { (columns, rows) } else { (rows, columns) };
    assert_eq!(expected, input, "the weight takes the width that its input has");
    if flex::is_flex(&x) {
        let mut inputs = vec![flex::input(x), flex::input(weight)];
        inputs.extend(bias.map(flex::input));
        return flex::run(Linear { transposed, activation: None, gated: false }, inputs);
    }
    let weight = if transposed { weight.transpose() } else { weight };
    let y = x.reshape([a * b, input]).matmul(weight);
    let y = match bias {
        Some(bias) => y + bias.reshape([1, output]),
        None => y,
    };
    y.reshape([a, b, output])
}

/// `f(x) * weight + bias`, or `(x f(gate)) * weight + bias`: the second half of a feed-forward network. What
/// the non-linearity gives is computed again in the backward pass instead of being kept.
///
/// # Shapes
/// - x and gate: `[.., .., hidden]`, weight: `[hidden, output]`, bias: `[output]`; the result is `[.., .., output]`.
///
/// # Panics
/// If the sizes do not match.
pub fn activated_linear(
    x: Tensor<3>,
    gate: Option<Tensor<3>>,
    function: Activation,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<3> {
    assert_eq!(weight.dims()[0], x.dims()[2], "the weight takes the width that its input has");
    assert!(gate.as_ref().is_none_or(|gate| gate.dims() == x.dims()), "the gate has the shape of what it gates");
    if flex::is_flex(&x) {
        let kernel = Linear { transposed: false, activation: Some(function), gated: gate.is_some() };
        let mut inputs = vec![flex::input(x)];
        inputs.extend(gate.map(flex::input));
        inputs.push(flex::input(weight));
        inputs.extend(bias.map(flex::input));
        return flex::run(kernel, inputs);
    }
    let hidden = match gate {
        Some(gate) => gated_activation(x, gate, function),
        None => activation(x, function),
    };
    linear(hidden, weight, bias, false)
}

impl Linear {
    /// Rows, input width and output width.
    fn sizes(&self, x: &[usize], weight: &[usize]) -> (usize, usize, usize) {
        let (input, output) = if self.transposed { (weight[1], weight[0]) } else { (weight[0], weight[1]) };
        (x[0] * x[1], input, output)
    }
}

impl Kernel for Linear {
    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let x = flex::slice::<E>(&inputs[0]);
            let gate = self.gated.then(|| flex::slice::<E>(&inputs[1]));
            let [weight, bias] = [1, 2].map(|at| inputs.get(at + usize::from(self.gated)));
            let (weight, sizes) = weight.map(|weight| (flex::slice::<E>(weight), flex::dims(weight))).expect("a weight");
            let mut shape = flex::dims(&inputs[0]);
            let (rows, input, output) = self.sizes(&shape, &sizes);
            let activated = self.activation.map(|function| activate(function, x, gate));
            let x = activated.as_deref().unwrap_or(x);
            let at = if self.transposed { At::columns(input) } else { At::rows(output) };
            let mut y = Buffer::<E>::take(rows * output);
            let bias = bias.map(flex::slice::<E>);
            if let Some(bias) = bias {
                let chunks = y.par_chunks_mut((output * ROWS).max(1)).with_min_len(grain());
                chunks.for_each(|rows| repeat_row(rows, bias));
            }
            let one = E::of(1.0);
            product((rows, input, output), (x, At::rows(input)), (weight, at), (&mut y, At::rows(output)), bias.is_some(), one, Threads::Pool);
            shape[2] = output;
            (y.into_tensor(&shape), Vec::new())
        })
    }

    fn backward(&self, inputs: &[FlexTensor], _: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        for_element!(&inputs[0], E => {
            let x = flex::slice::<E>(&inputs[0]);
            let at_weight = 1 + usize::from(self.gated);
            let weight = flex::slice::<E>(&inputs[at_weight]);
            let dy = flex::slice::<E>(&upstream);
            let shape = flex::dims(&inputs[0]);
            let sizes = flex::dims(&inputs[at_weight]);
            let (rows, input, output) = self.sizes(&shape, &sizes);
            let one = E::of(1.0);
            let by_input = |dx: &mut [E], adds: bool| {
                let at = if self.transposed { At::rows(input) } else { At::columns(output) };
                product((rows, output, input), (dy, At::rows(output)), (weight, at), (dx, At::rows(input)), adds, one, Threads::Pool);
            };
            let activated = match self.activation {
                None => {
                    if slots[0].is_needed() {
                        let mut opened = slots[0].open::<E>(&shape);
                        let (adds, dx) = opened.parts();
                        by_input(dx, adds);
                        slots[0].close(opened);
                    }
                    None
                }
                Some(function) => {
                    let gate = self.gated.then(|| flex::slice::<E>(&inputs[1]));
                    let mut d = Buffer::<E>::take(x.len());
                    by_input(&mut d, false);
                    let (activated, dgate) = activate_backward(function, &mut d, x, gate);
                    slots[0].put(1.0, &d.into_tensor(&shape));
                    if let Some(dgate) = dgate {
                        slots[1].put(1.0, &dgate.into_tensor(&shape));
                    }
                    Some(activated)
                }
            };
            let x = activated.as_deref().unwrap_or(x);
            if slots[at_weight].is_needed() {
                let mut opened = slots[at_weight].open::<E>(&sizes);
                let (adds, dweight) = opened.parts();
                if self.transposed {
                    product((output, rows, input), (dy, At::columns(output)), (x, At::rows(input)), (dweight, At::rows(input)), adds, one, Threads::Pool);
                } else {
                    product((input, rows, output), (x, At::columns(input)), (dy, At::rows(output)), (dweight, At::rows(output)), adds, one, Threads::Pool);
                }
                slots[at_weight].close(opened);
            }
            if let Some(slot) = slots.get_mut(at_weight + 1)
                && slot.is_needed()
            {
                slot.put(1.0, &column_sums(dy, output).into_tensor(&[output]));
            }
        })
    }
}

/// Sum over the rows of a row-major matrix, in `f64`.
pub(crate) fn column_sums<E: Element>(rows: &[E], width: usize) -> Buffer<E> {
    let mut partials = Partials::new(rows.len(), width * ROWS, width);
    let chunks = rows.par_chunks((width * ROWS).max(1)).zip(partials.parts()).with_min_len(grain());
    chunks.for_each(|(chunk, sums)| add_columns(sums, chunk, width));
    narrow(partials.total())
}

vectorised! {
    /// In pieces of a known size, which take a few instructions where a copy of any size is a call.
    fn repeat_row<E: Element>(rows: &mut [E], row: &[E]) {
        let (pieces, rest) = row.as_chunks::<LANES>();
        for to in rows.chunks_exact_mut(row.len()) {
            let (to_pieces, to_rest) = to.as_chunks_mut::<LANES>();
            for (to, piece) in to_pieces.iter_mut().zip(pieces) {
                *to = *piece;
            }
            to_rest.copy_from_slice(rest);
        }
    }

    /// Eight rows are summed in the storage type, and then join the `f64` sum.
    fn add_columns<E: Element>(sums: &mut [f64], rows: &[E], width: usize) {
        for group in rows.chunks(GROUP * width) {
            if group.len() == GROUP * width {
                let whole = width - width % LANES;
                for start in (0..whole).step_by(LANES) {
                    let mut lanes = [E::default(); LANES];
                    for row in 0..GROUP {
                        let row = &group[row * width + start..][..LANES];
                        for lane in 0..LANES {
                            lanes[lane] += row[lane];
                        }
                    }
                    let sums = &mut sums[start..start + LANES];
                    for lane in 0..LANES {
                        sums[lane] += lanes[lane].wide();
                    }
                }
                for row in group.chunks_exact(width) {
                    for i in whole..width {
                        sums[i] += row[i].wide();
                    }
                }
            } else {
                for row in group.chunks_exact(width) {
                    for i in 0..width {
                        sums[i] += row[i].wide();
                    }
                }
            }
        }
    }
}

/// Sums in the storage type.
pub(crate) fn narrow<E: Element>(sums: &[f64]) -> Buffer<E> {
    let mut narrow = Buffer::<E>::take(sums.len());
    narrow.iter_mut().zip(sums).for_each(|(to, &sum)| *to = E::of(sum));
    narrow
}

/// Sums of parts of the work, each in a row of its own, that are added up in the order of the parts.
pub(crate) struct Partials {
    sums: Buffer<f64>,
    width: usize,
}

impl Partials {
    /// Zeros, for `length` elements that are worked on in chunks of `chunk`.
    pub(crate) fn new(length: usize, chunk: usize, width: usize) -> Self {
        Partials { sums: Buffer::zeros(length.div_ceil(chunk.max(1)).max(1) * width), width }
    }

    /// The sums of each part, in order.
    pub(crate) fn parts(&mut self) -> rayon::slice::ChunksExactMut<'_, f64> {
        self.sums.par_chunks_exact_mut(self.width.max(1))
    }

    /// Adds everything to the first part's sums.
    pub(crate) fn total(&mut self) -> &[f64] {
        let (total, rest) = self.sums.split_at_mut(self.width);
        for part in rest.chunks_exact(self.width.max(1)) {
            for i in 0..total.len() {
                total[i] += part[i];
            }
        }
        total
    }
}
