//! The output matrix and softmax cross-entropy in one operator.

use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Int, Tensor, TensorData, activation};
use rayon::prelude::*;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::gemm::{At, Threads, product};
use crate::linear::linear;
use crate::parallel::grain;
use crate::simd::{self, fused, vectorised};
use crate::slot::Slot;

/// Rows that one task of the softmax handles.
const ROWS: usize = 32;

/// Logits that are computed at once. A table with no more is kept for the backward pass; a larger one is
/// computed again, some rows at a time, so that it never stands in memory as a whole.
pub const MOST_LOGITS: usize = 1 << 22;

#[derive(Debug, Clone)]
struct HeadLoss {
    targets: Arc<[u32]>,
}

/// `log(Σ exp(logits)) - logits[target]` for every position, in nats, with `logits = x * weightᵀ`.
///
/// # Shapes
/// - x: `[batch, time, d]`; weight: `[vocabulary, d]`; targets: `batch * time` token numbers; the result is
///   `[batch * time]`.
///
/// # Panics
/// If the sizes do not match or a target is not in the vocabulary.
pub fn head_loss(x: Tensor<3>, weight: Tensor<2>, targets: Arc<[u32]>) -> Tensor<1> {
    let [batch, time, width] = x.dims();
    let vocabulary = weight.dims()[0];
    assert_eq!(weight.dims()[1], width, "the head reads the width of the stream");
    assert_eq!(targets.len(), batch * time, "one target a position");
    assert!(targets.iter().all(|&target| (target as usize) < vocabulary), "targets are in the vocabulary");
    if flex::is_flex(&x) {
        return flex::run(HeadLoss { targets }, vec![flex::input(x), flex::input(weight)]);
    }
    let device = x.device();
    let rows = batch * time;
    let indices: Vec<i32> = targets.iter().map(|&target| target as i32).collect();
    let indices = Tensor::<2, Int>::from_data(TensorData::new(indices, [rows, 1]), &device);
    let logits = linear(x, weight, None, true).reshape([rows, vocabulary]);
    activation::log_softmax(logits, 1).gather(1, indices).reshape([rows]).neg()
}

/// Rows whose logits are computed at once.
fn rows_at_once(vocabulary: usize) -> usize {
    (MOST_LOGITS / vocabulary.max(1)).max(1)
}

fn logits<E: Element>(x: &[E], weight: &[E], width: usize, vocabulary: usize, logits: &mut [E]) {
    let sizes = (x.len() / width.max(1), width, vocabulary);
    let (rows, turned) = (At::rows(width), At::columns(width));
    product(sizes, (x, rows), (weight, turned), (logits, At::rows(vocabulary)), false, E::of(1.0), Threads::Pool);
}

vectorised! {
    /// The losses of some rows. Of each row its largest logit and the sum of its powers are left in `kept`.
    fn losses_of<E: Element>(losses: &mut [E], kept: &mut [E], logits: &[E], targets: &[u32], vocabulary: usize) {
        for (i, row) in logits.chunks_exact(vocabulary).enumerate() {
            let largest = simd::largest(row);
            let total = simd::sum(row, |x| (x - largest).exp(fused!()).wide());
            let target = row[targets[i] as usize];
            losses[i] = E::of(total.ln() + (largest - target).wide());
            kept[2 * i] = largest;
            kept[2 * i + 1] = E::of(total);
        }
    }

    /// The gradient by the logits of some rows.
    fn gradients_of<E: Element>(
        d: &mut [E],
        logits: &[E],
        kept: &[E],
        dlosses: &[E],
        targets: &[u32],
        vocabulary: usize,
    ) {
        for (i, (drow, row)) in d.chunks_exact_mut(vocabulary).zip(logits.chunks_exact(vocabulary)).enumerate() {
            let (largest, factor) = (kept[2 * i], dlosses[i] / kept[2 * i + 1]);
            for j in 0..vocabulary {
                drow[j] = (row[j] - largest).exp(fused!()) * factor;
            }
            drow[targets[i] as usize] += -dlosses[i];
        }
    }
}

impl Kernel for HeadLoss {
    fn forward(&self, inputs: &[FlexTensor], tracked: bool) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let [x, weight] = [0, 1].map(|at| flex::slice::<E>(&inputs[at]));
            let [vocabulary, width] = [0, 1].map(|at| flex::dims(&inputs[1])[at]);
            let rows = self.targets.len();
            let at_once = rows_at_once(vocabulary).min(rows.max(1));
            let mut kept = Buffer::<E>::take(2 * rows);
            let mut losses = Buffer::<E>::take(rows);
            let mut table = Buffer::<E>::take(at_once * vocabulary);
            for start in (0..rows).step_by(at_once) {
                let count = at_once.min(rows - start);
                let table = &mut table[..count * vocabulary];
                logits(&x[start * width..][..count * width], weight, width, vocabulary, table);
                losses[start..start + count]
                    .par_chunks_mut(ROWS)
                    .zip(kept[2 * start..2 * (start + count)].par_chunks_mut(2 * ROWS))
                    .zip(table.par_chunks(ROWS * vocabulary))
                    .zip(self.targets[start..start + count].par_chunks(ROWS))
                    .with_min_len(grain())
                    .for_each(|(((losses, kept), logits), targets)| losses_of(losses, kept, logits, targets, vocabulary));
            }
            let mut saved = Vec::new();
            if tracked {
                saved.push(kept.into_tensor(&[rows, 2]));
                if at_once == rows {
                    saved.push(table.into_tensor(&[rows, vocabulary]));
                }
            }
            (losses.into_tensor(&[rows]), saved)
        })
    }

    fn backward(&self, inputs: &[FlexTensor], saved: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        for_element!(&inputs[0], E => {
            let [x, weight] = [0, 1].map(|at| flex::slice::<E>(&inputs[at]));
            let (shape, sizes) = (flex::dims(&inputs[0]), flex::dims(&inputs[1]));
            let [vocabulary, width] = [sizes[0], sizes[1]];
            let dlosses = flex::slice::<E>(&upstream);
            let (kept, table) = (flex::slice::<E>(&saved[0]), saved.get(1).map(flex::slice::<E>));
            let rows = self.targets.len();
            let at_once = rows_at_once(vocabulary).min(rows.max(1));
            let [for_x, for_weight] = slots else { unreachable!("the kernel has two inputs") };
            let mut dx = for_x.is_needed().then(|| for_x.open::<E>(&shape));
            let mut dweight = for_weight.is_needed().then(|| for_weight.open::<E>(&sizes));
            if let (0, Some(opened)) = (rows, &mut dweight) {
                // Nothing below is reached, and nothing is what the weight's gradient is.
                let (adds, dweight) = opened.parts();
                if !adds {
                    dweight.fill(E::default());
                }
            }
            let mut again = Buffer::<E>::take(if table.is_some() { 0 } else { at_once * vocabulary });
            let mut d = Buffer::<E>::take(at_once * vocabulary);
            let one = E::of(1.0);
            for start in (0..rows).step_by(at_once) {
                let count = at_once.min(rows - start);
                let x = &x[start * width..][..count * width];
                let table = match table {
                    Some(table) => table,
                    None => {
                        logits(x, weight, width, vocabulary, &mut again[..count * vocabulary]);
                        &again[..count * vocabulary]
                    }
                };
                let d = &mut d[..count * vocabulary];
                d.par_chunks_mut(ROWS * vocabulary)
                    .zip(table.par_chunks(ROWS * vocabulary))
                    .zip(kept[2 * start..].par_chunks(2 * ROWS))
                    .zip(dlosses[start..].par_chunks(ROWS).zip(self.targets[start..].par_chunks(ROWS)))
                    .with_min_len(grain())
                    .for_each(|(((d, logits), kept), (dlosses, targets))| {
                        gradients_of(d, logits, kept, dlosses, targets, vocabulary);
                    });
                if let Some(opened) = &mut dx {
                    let (adds, dx) = opened.parts();
                    let dx = &mut dx[start * width..][..count * width];
                    let (from, to) = (At::rows(vocabulary), At::rows(width));
                    product((count, vocabulary, width), (d, from), (weight, to), (dx, to), adds, one, Threads::Pool);
                }
                if let Some(opened) = &mut dweight {
                    let (adds, dweight) = opened.parts();
                    let (from, to) = (At::columns(vocabulary), At::rows(width));
                    let adds = adds || start > 0;
                    product((vocabulary, count, width), (d, from), (x, to), (dweight, to), adds, one, Threads::Pool);
                }
            }
            if let Some(opened) = dx {
                for_x.close(opened);
            }
            if let Some(opened) = dweight {
                for_weight.close(opened);
            }
        })
    }
}
