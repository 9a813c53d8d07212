//! Scaled dot-product attention with grouped key/value heads.

use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Bool, Tensor, TensorData};
use rayon::prelude::*;

use crate::attention_part::Part;
use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::gemm::{At, Threads, product};
use crate::norm::Norm;
use crate::parallel::grain;
use crate::simd::{self, fused, vectorised};
use crate::slot::Slot;
use crate::{norm, rotary};

/// Query rows that are scored at once: the table of scores never grows with the batch.
const QUERIES: usize = 32;

/// What attention is to do besides the products.
#[derive(Debug, Clone)]
pub struct AttentionSettings {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; they divide the heads.
    pub kv_heads: usize,
    /// Whether a token sees only itself and those before it; keys are then as many as queries.
    pub causal: bool,
    /// The base of rotary positions on queries and keys, if they are turned.
    pub rotary: Option<f64>,
    /// Which keys may be seen, `batch * key time` of them; all if none. A query that may see no key gives 0 and
    /// has no gradient.
    pub visible: Option<Arc<[bool]>>,
}

/// A norm on every head by itself, before any rotation.
#[derive(Debug, Clone)]
pub struct HeadNorm {
    /// What it computes.
    pub norm: Norm,
    /// `[head_width]`.
    pub gain: Tensor<1>,
    /// `[head_width]`.
    pub bias: Option<Tensor<1>>,
}

/// `softmax(q k^T / sqrt(head width)) v`, head by head; query head `i` reads key/value head
/// `i * kv_heads / heads` (arXiv:1706.03762, arXiv:2305.13245). Queries, keys and values may be normalised
/// first, in this order in `norms`, and queries and keys turned (arXiv:2010.04245, arXiv:2104.09864); what
/// that gives is computed again in the backward pass instead of being kept, and so are the weights.
///
/// # Shapes
/// - q: `[batch, time, heads * head_width]`; k, v: `[batch, key time, kv_heads * head_width]`.
/// - The result has the shape of q: the heads side by side, before any output projection.
///
/// # Panics
/// If the heads do not divide the width, the key/value heads do not divide the heads, a turned head has an
/// odd width, or a norm or the mask has another size.
pub fn attention(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    norms: [Option<HeadNorm>; 3],
    settings: &AttentionSettings,
) -> Tensor<3> {
    if !flex::is_flex(&q) {
        check(&q, &k, &v, &norms, settings);
        return composed(q, k, v, norms, settings);
    }
    let (kernel, inputs) = kernel(q, k, v, norms, settings);
    flex::run(kernel, inputs)
}

fn check(q: &Tensor<3>, k: &Tensor<3>, v: &Tensor<3>, norms: &[Option<HeadNorm>; 3], settings: &AttentionSettings) {
    let [batch, time, width] = q.dims();
    let AttentionSettings { heads, kv_heads, .. } = *settings;
    assert!(heads > 0 && width % heads == 0, "the heads divide the width");
    assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "the key/value heads divide the heads");
    let head = width / heads;
    let key_time = k.dims()[1];
    assert_eq!(k.dims(), [batch, key_time, kv_heads * head], "keys match the queries");
    assert_eq!(v.dims(), [batch, key_time, kv_heads * head], "values match the keys");
    assert!(!settings.causal || key_time == time, "what is causal has a key for every query");
    assert!(settings.rotary.is_none() || head.is_multiple_of(2), "rotary positions need an even head width");
    assert!(norms.iter().flatten().all(|norm| norm.gain.dims() == [head]), "a norm has the width of a head");
    assert!(settings.visible.as_ref().is_none_or(|keys| keys.len() == batch * key_time), "one mark a key");
}

/// The kernel on the CPU, and what it takes.
pub(crate) fn kernel(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    norms: [Option<HeadNorm>; 3],
    settings: &AttentionSettings,
) -> (Attention, Vec<flex::Input>) {
    check(&q, &k, &v, &norms, settings);
    let AttentionSettings { heads, kv_heads, .. } = *settings;
    let part = |which: usize| Part {
        norm: norms[which].as_ref().map(|norm| norm.norm),
        vectors: norms[which].as_ref().map_or(0, |norm| 1 + usize::from(norm.bias.is_some())),
        heads: if which == 0 { heads } else { kv_heads },
        rotary: if which < 2 { settings.rotary } else { None },
    };
    let parts = [0, 1, 2].map(part);
    let mut inputs = vec![flex::input(q), flex::input(k), flex::input(v)];
    for norm in norms.into_iter().flatten() {
        inputs.push(flex::input(norm.gain));
        inputs.extend(norm.bias.map(flex::input));
    }
    (Attention { heads, kv_heads, causal: settings.causal, parts, visible: settings.visible.clone() }, inputs)
}

/// The same out of Burn's operators, for other devices.
pub fn composed(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    norms: [Option<HeadNorm>; 3],
    settings: &AttentionSettings,
) -> Tensor<3> {
    let ([batch, time, width], key_time) = (q.dims(), k.dims()[1]);
    let AttentionSettings { heads, kv_heads, causal, .. } = *settings;
    let head = width / heads;
    let group = heads / kv_heads;
    let counts = [heads, kv_heads, kv_heads];
    let mut parts = [q, k, v];
    for ((part, of_head), count) in parts.iter_mut().zip(norms).zip(counts) {
        if let Some(HeadNorm { norm: settings, gain, bias }) = of_head {
            let own_time = part.dims()[1];
            let heads = part.clone().reshape([batch, own_time * count, head]);
            *part = norm::norm(heads, Some(gain), bias, settings).reshape([batch, own_time, count * head]);
        }
    }
    if let Some(base) = settings.rotary {
        for which in 0..2 {
            parts[which] = rotary::rotary(parts[which].clone(), counts[which], base);
        }
    }
    let [q, k, v] = parts;
    let split = |x: Tensor<3>, count: usize| {
        let own_time = x.dims()[1];
        x.reshape([batch, own_time, count, head]).swap_dims(1, 2)
    };
    let repeat = |x: Tensor<4>| {
        x.reshape([batch, kv_heads, 1, key_time, head])
            .expand([batch, kv_heads, group, key_time, head])
            .reshape([batch, heads, key_time, head])
    };
    let q = split(q, heads) * (1.0 / (head as f64).sqrt());
    let (k, v) = (repeat(split(k, kv_heads)), repeat(split(v, kv_heads)));
    let device = q.device();
    let mut scores: Tensor<4> = q.matmul(k.swap_dims(2, 3));
    let whole = [batch, heads, time, key_time];
    let mut hidden: Option<Tensor<4, Bool>> = None;
    if causal {
        let mask = Tensor::<2, Bool>::tril_mask([time, time], 0, &device).reshape([1, 1, time, time]);
        hidden = Some(mask.expand(whole));
    }
    if let Some(visible) = &settings.visible {
        let marks: Vec<bool> = visible.iter().map(|seen| !seen).collect();
        let mask = Tensor::<4, Bool>::from_data(TensorData::new(marks, [batch, 1, 1, key_time]), &device).expand(whole);
        hidden = Some(match hidden {
            Some(other) => other.bool_or(mask),
            None => mask,
        });
    }
    if let Some(hidden) = &hidden {
        scores = scores.mask_fill(hidden.clone(), f32::NEG_INFINITY);
    }
    let largest = scores.clone().detach().max_dim(3);
    let weights = match (hidden, &settings.visible) {
        (Some(hidden), Some(_)) => {
            // Where every score is hidden the largest is taken as 0 and the sum of no powers as 1; hidden
            // scores are 0 before the exponential too, lest infinity less infinity reach the gradient.
            let empty = largest.clone().equal_elem(f32::NEG_INFINITY);
            let shifted = scores.mask_fill(hidden.clone(), 0.0) - largest.mask_fill(empty.clone(), 0.0);
            let powers = shifted.exp().mask_fill(hidden, 0.0);
            powers.clone() / powers.sum_dim(3).mask_fill(empty, 1.0)
        }
        _ => {
            let powers = (scores - largest).exp();
            powers.clone() / powers.sum_dim(3)
        }
    };
    weights.matmul(v).swap_dims(1, 2).reshape([batch, time, width])
}

#[derive(Debug, Clone)]
pub(crate) struct Attention {
    pub heads: usize,
    pub kv_heads: usize,
    pub causal: bool,
    /// Queries, keys, values.
    pub parts: [Part; 3],
    visible: Option<Arc<[bool]>>,
}

/// One head of one sequence: where its parts lie.
struct Head {
    key_time: usize,
    width: usize,
    q: At,
    kv: At,
}

impl Attention {
    fn head(&self, head: usize, key_time: usize, q_width: usize) -> Head {
        let width = q_width / self.heads;
        let kv_head = head * self.kv_heads / self.heads;
        Head {
            key_time,
            width,
            q: At::rows(q_width).from(head * width),
            kv: At::rows(width * self.kv_heads).from(kv_head * width),
        }
    }

    /// How many keys the queries `start..start + count` see at most.
    fn keys(&self, start: usize, count: usize, key_time: usize) -> usize {
        if self.causal { start + count } else { key_time }
    }

    /// The marks of one sequence's keys.
    pub fn marks(&self, sequence: usize, key_time: usize) -> Option<&[bool]> {
        self.visible.as_ref().map(|visible| &visible[sequence * key_time..][..key_time])
    }

    /// The scaled scores of `count` queries from `start`, into `scores[count, keys]`. `q` begins at query `first`.
    fn scores<E: Element>(
        &self,
        (q, first): (&[E], usize),
        k: &[E],
        head: &Head,
        (start, count): (usize, usize),
        scores: &mut [E],
    ) {
        let keys = self.keys(start, count, head.key_time);
        let scale = E::of(1.0 / (head.width as f64).sqrt());
        let rows = head.q.from(head.q.offset + (start - first) * head.q.row);
        let columns = At { offset: head.kv.offset, row: 1, column: head.kv.row };
        let sizes = (count, head.width, keys);
        product(sizes, (q, rows), (k, columns), (scores, At::rows(keys)), false, scale, Threads::One);
    }

    /// Where a norm's vectors lie among the inputs.
    pub fn vectors(&self, part: usize) -> std::ops::Range<usize> {
        let start = 3 + self.parts[..part].iter().map(|part| part.vectors).sum::<usize>();
        start..start + self.parts[part].vectors
    }
}

vectorised! {
    /// Turns rows of scores into weights, and leaves each row's largest score and reciprocal sum of powers.
    /// Row `i` sees the first `seen + i` keys (all where not `causal`).
    fn softmax_rows<E: Element>(
        scores: &mut [E],
        keys: usize,
        seen: usize,
        causal: bool,
        visible: Option<&[bool]>,
        kept: &mut [E],
        stride: usize,
    ) {
        for (i, row) in scores.chunks_exact_mut(keys).enumerate() {
            // What is hidden loses every comparison and adds nothing: whole rows have no odd ends to go through
            // one by one.
            let seen = if causal { seen + i } else { keys };
            row[seen..].fill(E::of(f64::NEG_INFINITY));
            if let Some(visible) = visible {
                hide(&mut row[..seen], visible, E::of(f64::NEG_INFINITY));
            }
            let largest = simd::largest(row);
            // A NaN, which loses too, comes back in through its own exponential.
            for score in row.iter_mut() {
                *score = (*score - largest).exp(fused!());
            }
            row[seen..].fill(E::default());
            if let Some(visible) = visible {
                hide(&mut row[..seen], visible, E::default());
            }
            let total = simd::sum(row, |x| x).wide();
            let any = visible.is_none_or(|visible| visible[..seen].iter().any(|&seen| seen));
            let (largest, reciprocal) = if any { (largest, E::of(1.0 / total)) } else { Default::default() };
            for power in row.iter_mut() {
                *power *= reciprocal;
            }
            (kept[i * stride], kept[i * stride + 1]) = (largest, reciprocal);
        }
    }

    /// The same weights once more, from what [`softmax_rows`] left.
    fn weights_again<E: Element>(
        scores: &mut [E],
        keys: usize,
        seen: usize,
        causal: bool,
        visible: Option<&[bool]>,
        kept: &[E],
        stride: usize,
    ) {
        for (i, row) in scores.chunks_exact_mut(keys).enumerate() {
            let seen = if causal { seen + i } else { keys };
            let (largest, reciprocal) = (kept[i * stride], kept[i * stride + 1]);
            for score in row.iter_mut() {
                *score = (*score - largest).exp(fused!()) * reciprocal;
            }
            row[seen..].fill(E::default());
            if let Some(visible) = visible {
                hide(&mut row[..seen], visible, E::default());
            }
        }
    }

    /// The gradient by the scores in place of the gradient by the weights.
    fn softmax_backward<E: Element>(dweights: &mut [E], weights: &[E], keys: usize, scale: E) {
        for (dp, p) in dweights.chunks_exact_mut(keys).zip(weights.chunks_exact(keys)) {
            let along = simd::sum_of_pairs(p, dp, |p, dp| p * dp);
            for i in 0..keys {
                dp[i] = p[i] * (dp[i] - along) * scale;
            }
        }
    }
}

#[inline(always)]
fn hide<E: Element>(row: &mut [E], visible: &[bool], value: E) {
    let visible = &visible[..row.len()];
    for i in 0..row.len() {
        row[i] = if visible[i] { row[i] } else { value };
    }
}

impl Kernel for Attention {
    fn forward(&self, inputs: &[FlexTensor], tracked: bool) -> (FlexTensor, Vec<FlexTensor>) {
        for_element!(&inputs[0], E => {
            let prepared = [0, 1, 2].map(|part| self.parts[part].prepare::<E>(&inputs[part], &inputs[self.vectors(part)]));
            let [q, k, v] = [0, 1, 2].map(|part| prepared[part].values.as_deref().unwrap_or(flex::slice::<E>(&inputs[part])));
            let shape = flex::dims(&inputs[0]);
            let (time, width) = (shape[1], shape[2]);
            let key_time = flex::dims(&inputs[1])[1];
            let kv_size = (key_time * flex::dims(&inputs[1])[2]).max(1);
            let mut y = Buffer::<E>::take(q.len());
            // Of every query and head: its largest score and the reciprocal sum of its powers.
            let stride = 2 * self.heads;
            let mut kept = Buffer::<E>::take(shape[0] * time * stride);
            // Blocks of queries of one sequence are rows of the result: any number of threads shares one sequence.
            let sequences = y.chunks_mut((time * width).max(1)).zip(kept.chunks_mut((time * stride).max(1))).enumerate();
            let blocks: Vec<_> = sequences
                .flat_map(|(sequence, (y, kept))| {
                    let blocks = y.chunks_mut((QUERIES * width).max(1)).zip(kept.chunks_mut(QUERIES * stride)).enumerate();
                    blocks.map(move |(block, (y, kept))| (sequence, block * QUERIES, y, kept))
                })
                .collect();
            blocks.into_par_iter().with_min_len(grain()).for_each(|(sequence, start, y, kept)| {
                let count = QUERIES.min(time - start);
                let q = &q[(sequence * time + start) * width..];
                let (k, v) = (&k[sequence * kv_size..][..kv_size], &v[sequence * kv_size..][..kv_size]);
                let keys = self.keys(start, count, key_time);
                // One size for every block, which the next block and the next step take again.
                let mut all_weights = Buffer::<E>::take(QUERIES.min(time) * key_time);
                let weights = &mut all_weights[..count * keys];
                for number in 0..self.heads {
                    let head = self.head(number, key_time, width);
                    self.scores((q, start), k, &head, (start, count), weights);
                    softmax_rows(weights, keys, start + 1, self.causal, self.marks(sequence, key_time), &mut kept[2 * number..], stride);
                    product((count, keys, head.width), (&*weights, At::rows(keys)), (v, head.kv), (y, head.q), false, E::of(1.0), Threads::One);
                }
            });
            let saved = if tracked { vec![kept.into_tensor(&[shape[0] * time, stride])] } else { Vec::new() };
            (y.into_tensor(&shape), saved)
        })
    }

    fn backward(&self, inputs: &[FlexTensor], saved: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        for_element!(&inputs[0], E => {
            let prepared = [0, 1, 2].map(|part| self.parts[part].prepare::<E>(&inputs[part], &inputs[self.vectors(part)]));
            let [q, k, v] = [0, 1, 2].map(|part| prepared[part].values.as_deref().unwrap_or(flex::slice::<E>(&inputs[part])));
            let dy = flex::slice::<E>(&upstream);
            let kept = flex::slice::<E>(&saved[0]);
            let shape = flex::dims(&inputs[0]);
            let (time, width) = (shape[1], shape[2]);
            let (key_time, kv_width) = (flex::dims(&inputs[1])[1], flex::dims(&inputs[1])[2]);
            let stride = 2 * self.heads;
            let mut dq = Buffer::<E>::take(q.len());
            let mut dk = Buffer::<E>::take(k.len());
            let mut dv = Buffer::<E>::take(v.len());
            let (size, kv_size) = ((time * width).max(1), (key_time * kv_width).max(1));
            let one = E::of(1.0);
            dq.par_chunks_mut(size)
                .zip(dk.par_chunks_mut(kv_size).zip(dv.par_chunks_mut(kv_size)))
                .zip(q.par_chunks(size).zip(dy.par_chunks(size)))
                .zip(k.par_chunks(kv_size).zip(v.par_chunks(kv_size)))
                .zip(kept.par_chunks((time * stride).max(1)))
                .enumerate()
                .with_min_len(grain())
                .for_each(|(sequence, ((((dq, (dk, dv)), (q, dy)), (k, v)), kept))| {
                    dk.fill(E::default());
                    dv.fill(E::default());
                    let mut all_weights = Buffer::<E>::take(QUERIES.min(time) * key_time);
                    let mut all_dweights = Buffer::<E>::take(QUERIES.min(time) * key_time);
                    for number in 0..self.heads {
                        let head = self.head(number, key_time, width);
                        let scale = E::of(1.0 / (head.width as f64).sqrt());
                        for start in (0..time).step_by(QUERIES) {
                            let count = QUERIES.min(time - start);
                            let keys = self.keys(start, count, key_time);
                            let weights = &mut all_weights[..count * keys];
                            let dweights = &mut all_dweights[..count * keys];
                            self.scores((q, 0), k, &head, (start, count), weights);
                            let kept = &kept[start * stride + 2 * number..];
                            weights_again(weights, keys, start + 1, self.causal, self.marks(sequence, key_time), kept, stride);
                            let rows = head.q.from(head.q.offset + start * head.q.row);
                            let table = At::rows(keys);
                            let turned = At::columns(keys);
                            let v_turned = At { offset: head.kv.offset, row: 1, column: head.kv.row };
                            product((count, head.width, keys), (dy, rows), (v, v_turned), (dweights, table), false, one, Threads::One);
                            product((keys, count, head.width), (weights, turned), (dy, rows), (dv, head.kv), true, one, Threads::One);
                            softmax_backward(dweights, weights, keys, scale);
                            product((count, keys, head.width), (dweights, table), (k, head.kv), (dq, rows), false, one, Threads::One);
                            product((keys, count, head.width), (dweights, turned), (q, rows), (dk, head.kv), true, one, Threads::One);
                        }
                    }
                });
            for (part, gradient) in [dq, dk, dv].into_iter().enumerate() {
                let vectors = self.vectors(part);
                let (streams, parameters) = slots.split_at_mut(3);
                let parameters = &mut parameters[vectors.start - 3..vectors.end - 3];
                self.parts[part].backward(&inputs[part], &inputs[vectors], &prepared[part], gradient, &mut streams[part], parameters);
            }
        })
    }
}
