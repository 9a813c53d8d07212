//! Scaled dot-product attention with grouped key/value heads.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Bool, Tensor};
use rayon::prelude::*;

use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::gemm::{At, Threads, product};

/// Query rows that are scored at once: the table of scores never grows with the batch.
const QUERIES: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Attention {
    heads: usize,
    kv_heads: usize,
    causal: bool,
}

/// `softmax(q k^T / sqrt(head width)) v`, head by head; query head `i` reads key/value head
/// `i * kv_heads / heads` (arXiv:1706.03762, arXiv:2305.13245).
///
/// # Shapes
/// - q: `[batch, time, heads * head_width]`; k, v: `[batch, time, kv_heads * head_width]`.
/// - The result has the shape of q: the heads side by side, before any output projection.
///
/// # Panics
/// If the heads do not divide the width, or the key/value heads do not divide the heads.
pub fn attention(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, heads: usize, kv_heads: usize, causal: bool) -> Tensor<3> {
    let [batch, time, width] = q.dims();
    assert!(heads > 0 && width % heads == 0, "the heads divide the width");
    assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "the key/value heads divide the heads");
    let head = width / heads;
    assert_eq!(k.dims(), [batch, time, kv_heads * head], "keys match the queries");
    assert_eq!(v.dims(), [batch, time, kv_heads * head], "values match the queries");
    if flex::is_flex(&q) {
        let inputs = vec![flex::input(q), flex::input(k), flex::input(v)];
        return flex::run(Attention { heads, kv_heads, causal }, inputs);
    }
    composed(q, k, v, heads, kv_heads, causal)
}

/// The same out of Burn's operators, for other devices.
pub fn composed(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, heads: usize, kv_heads: usize, causal: bool) -> Tensor<3> {
    let [batch, time, width] = q.dims();
    let head = width / heads;
    let group = heads / kv_heads;
    let split = |x: Tensor<3>, count: usize| x.reshape([batch, time, count, head]).swap_dims(1, 2);
    let repeat = |x: Tensor<4>| {
        x.reshape([batch, kv_heads, 1, time, head])
            .expand([batch, kv_heads, group, time, head])
            .reshape([batch, heads, time, head])
    };
    let q = split(q, heads) * (1.0 / (head as f64).sqrt());
    let (k, v) = (repeat(split(k, kv_heads)), repeat(split(v, kv_heads)));
    let mut scores: Tensor<4> = q.matmul(k.swap_dims(2, 3));
    if causal {
        let device = scores.device();
        let mask = Tensor::<2, Bool>::tril_mask([time, time], 0, &device).reshape([1, 1, time, time]);
        scores = scores.mask_fill(mask.expand([batch, heads, time, time]), f32::NEG_INFINITY);
    }
    let largest = scores.clone().detach().max_dim(3);
    let powers = (scores - largest).exp();
    let weights = powers.clone() / powers.sum_dim(3);
    weights.matmul(v).swap_dims(1, 2).reshape([batch, time, width])
}

/// One head of one sequence: where its parts lie.
struct Head {
    time: usize,
    width: usize,
    q: At,
    kv: At,
}

impl Attention {
    fn head(&self, head: usize, time: usize, q_width: usize) -> Head {
        let width = q_width / self.heads;
        let kv_head = head * self.kv_heads / self.heads;
        Head {
            time,
            width,
            q: At::rows(q_width).from(head * width),
            kv: At::rows(width * self.kv_heads).from(kv_head * width),
        }
    }

    /// How many keys the queries `start..start + count` see at most.
    fn keys(&self, start: usize, count: usize, time: usize) -> usize {
        if self.causal { start + count } else { time }
    }

    /// Softmax weights of `count` queries from `start`, into `weights[count, keys]`.
    fn weights<E: Element>(&self, q: &[E], k: &[E], head: &Head, start: usize, count: usize, weights: &mut [E]) {
        let keys = self.keys(start, count, head.time);
        let scale = E::of(1.0 / (head.width as f64).sqrt());
        let rows = head.q.from(head.q.offset + start * head.q.row);
        let columns = At { offset: head.kv.offset, row: 1, column: head.kv.row };
        product(
            (count, head.width, keys),
            (q, rows),
            (k, columns),
            (weights, At::rows(keys)),
            false,
            scale,
            Threads::One,
        );
        for (i, row) in weights.chunks_exact_mut(keys).take(count).enumerate() {
            let seen = if self.causal { start + i + 1 } else { keys };
            softmax(&mut row[..seen]);
            row[seen..].fill(E::default());
        }
    }
}

#[inline(always)]
fn softmax<E: Element>(row: &mut [E]) {
    let mut largest = row[0];
    for &score in row.iter() {
        // A NaN loses every comparison; it comes back in through its own exponential.
        largest = if score > largest { score } else { largest };
    }
    for score in row.iter_mut() {
        *score = (*score - largest).exp();
    }
    let mut lanes = [E::default(); 8];
    let chunks = row.chunks_exact(8);
    let mut total = 0f64;
    for &power in chunks.remainder() {
        total += power.wide();
    }
    for chunk in chunks {
        for lane in 0..8 {
            lanes[lane] += chunk[lane];
        }
    }
    for lane in lanes {
        total += lane.wide();
    }
    let inverse = E::of(1.0 / total);
    for power in row.iter_mut() {
        *power *= inverse;
    }
}

impl Kernel for Attention {
    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let [q, k, v] = [0, 1, 2].map(|i| flex::slice::<E>(&inputs[i]));
            let shape = flex::dims(&inputs[0]);
            let (time, width) = (shape[1], shape[2]);
            let kv_width = flex::dims(&inputs[1])[2];
            let mut y = vec![E::default(); q.len()];
            let sizes = ((time * width).max(1), (time * kv_width).max(1));
            y.par_chunks_mut(sizes.0)
                .zip(q.par_chunks(sizes.0))
                .zip(k.par_chunks(sizes.1).zip(v.par_chunks(sizes.1)))
                .for_each(|((y, q), (k, v))| {
                    let mut weights = vec![E::default(); QUERIES.min(time) * time];
                    for head in 0..self.heads {
                        let head = self.head(head, time, width);
                        for start in (0..time).step_by(QUERIES) {
                            let count = QUERIES.min(time - start);
                            let keys = self.keys(start, count, time);
                            self.weights(q, k, &head, start, count, &mut weights);
                            let rows = head.q.from(head.q.offset + start * head.q.row);
                            product((count, keys, head.width), (&weights, At::rows(keys)), (v, head.kv), (y, rows), false, E::of(1.0), Threads::One);
                        }
                    }
                });
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
            let [q, k, v] = [0, 1, 2].map(|i| flex::slice::<E>(&inputs[i]));
            let dy = flex::slice::<E>(&upstream);
            let (shape, kv_shape) = (flex::dims(&inputs[0]), flex::dims(&inputs[1]));
            let (time, width, kv_width) = (shape[1], shape[2], kv_shape[2]);
            let mut dq = vec![E::default(); q.len()];
            let mut dk = vec![E::default(); k.len()];
            let mut dv = vec![E::default(); v.len()];
            let (size, kv_size) = ((time * width).max(1), (time * kv_width).max(1));
            let one = E::of(1.0);
            dq.par_chunks_mut(size)
                .zip(dk.par_chunks_mut(kv_size).zip(dv.par_chunks_mut(kv_size)))
                .zip(q.par_chunks(size).zip(dy.par_chunks(size)))
                .zip(k.par_chunks(kv_size).zip(v.par_chunks(kv_size)))
                .for_each(|(((dq, (dk, dv)), (q, dy)), (k, v))| {
                    let mut weights = vec![E::default(); QUERIES.min(time) * time];
                    let mut dweights = vec![E::default(); QUERIES.min(time) * time];
                    for head in 0..self.heads {
                        let head = self.head(head, time, width);
                        let scale = E::of(1.0 / (head.width as f64).sqrt());
                        for start in (0..time).step_by(QUERIES) {
                            let count = QUERIES.min(time - start);
                            let keys = self.keys(start, count, time);
                            self.weights(q, k, &head, start, count, &mut weights);
                            let rows = head.q.from(head.q.offset + start * head.q.row);
                            let table = At::rows(keys);
                            let turned = At::columns(keys);
                            let v_turned = At { offset: head.kv.offset, row: 1, column: head.kv.row };
                            product((count, head.width, keys), (dy, rows), (v, v_turned), (&mut dweights, table), false, one, Threads::One);
                            product((keys, count, head.width), (&weights, turned), (dy, rows), (dv, head.kv), true, one, Threads::One);
                            for (p, dp) in weights.chunks_exact(keys).zip(dweights.chunks_exact_mut(keys)).take(count) {
                                let along: f64 = p.iter().zip(dp.iter()).map(|(&p, &dp)| (p * dp).wide()).sum();
                                let along = E::of(along);
                                for (p, dp) in p.iter().zip(dp.iter_mut()) {
                                    *dp = *p * (*dp - along) * scale;
                                }
                            }
                            product((count, keys, head.width), (&dweights, table), (k, head.kv), (dq, rows), false, one, Threads::One);
                            product((keys, count, head.width), (&dweights, turned), (q, rows), (dk, head.kv), true, one, Threads::One);
                        }
                    }
                });
            vec![
                needed[0].then(|| flex::tensor(dq, &shape)),
                needed[1].then(|| flex::tensor(dk, &kv_shape)),
                needed[2].then(|| flex::tensor(dv, &kv_shape)),
            ]
        })
    }
}
