//! Matrix product with a bias.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::gemm::{At, Threads, product};

const ROWS: usize = 64;

#[derive(Debug, Clone)]
struct Linear {
    /// Whether the weight is stored `[output, input]`, as an embedding that serves as the head is.
    transposed: bool,
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
        return flex::run(Linear { transposed }, inputs);
    }
    let weight = if transposed { weight.transpose() } else { weight };
    let y = x.reshape([a * b, input]).matmul(weight);
    let y = match bias {
        Some(bias) => y + bias.reshape([1, output]),
        None => y,
    };
    y.reshape([a, b, output])
}

impl Kernel for Linear {
    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let x = flex::slice::<E>(&inputs[0]);
            let weight = flex::slice::<E>(&inputs[1]);
            let mut shape = flex::dims(&inputs[0]);
            let sizes = flex::dims(&inputs[1]);
            let (input, output) = if self.transposed { (sizes[1], sizes[0]) } else { (sizes[0], sizes[1]) };
            let at = if self.transposed { At::columns(input) } else { At::rows(output) };
            let rows = shape[0] * shape[1];
            let mut y = vec![E::default(); rows * output];
            let bias = inputs.get(2).map(flex::slice::<E>);
            if let Some(bias) = bias {
                y.par_chunks_mut((output * ROWS).max(1)).for_each(|rows| {
                    rows.chunks_exact_mut(output).for_each(|row| row.copy_from_slice(bias));
                });
            }
            let one = E::of(1.0);
            product((rows, input, output), (x, At::rows(input)), (weight, at), (&mut y, At::rows(output)), bias.is_some(), one, Threads::Pool);
            shape[2] = output;
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
            let weight = flex::slice::<E>(&inputs[1]);
            let dy = flex::slice::<E>(&upstream);
            let shape = flex::dims(&inputs[0]);
            let sizes = flex::dims(&inputs[1]);
            let (input, output) = if self.transposed { (sizes[1], sizes[0]) } else { (sizes[0], sizes[1]) };
            let rows = shape[0] * shape[1];
            let one = E::of(1.0);
            let dx = needed[0].then(|| {
                let mut dx = vec![E::default(); rows * input];
                let at = if self.transposed { At::rows(input) } else { At::columns(output) };
                product((rows, output, input), (dy, At::rows(output)), (weight, at), (&mut dx, At::rows(input)), false, one, Threads::Pool);
                flex::tensor(dx, &shape)
            });
            let dweight = needed[1].then(|| {
                let mut dweight = vec![E::default(); input * output];
                if self.transposed {
                    product((output, rows, input), (dy, At::columns(output)), (x, At::rows(input)), (&mut dweight, At::rows(input)), false, one, Threads::Pool);
                } else {
                    product((input, rows, output), (x, At::columns(input)), (dy, At::rows(output)), (&mut dweight, At::rows(output)), false, one, Threads::Pool);
                }
                flex::tensor(dweight, &sizes)
            });
            let mut gradients = vec![dx, dweight];
            if inputs.len() > 2 {
                gradients.push(needed[2].then(|| flex::tensor(column_sums(dy, output), &[output])));
            }
            gradients
        })
    }
}

/// Sum over the rows of a row-major matrix, in `f64`.
pub(crate) fn column_sums<E: Element>(rows: &[E], width: usize) -> Vec<E> {
    let partials: Vec<Vec<f64>> = rows
        .par_chunks((width * ROWS).max(1))
        .map(|chunk| {
            let mut sums = vec![0f64; width];
            for row in chunk.chunks_exact(width) {
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += x.wide();
                }
            }
            sums
        })
        .collect();
    add_up(&partials, width).into_iter().map(E::of).collect()
}

/// Partial sums of parts of the work, added in the order of the parts.
pub(crate) fn add_up(partials: &[Vec<f64>], width: usize) -> Vec<f64> {
    let mut total = vec![0f64; width];
    for partial in partials {
        for (total, part) in total.iter_mut().zip(partial) {
            *total += part;
        }
    }
    total
}
