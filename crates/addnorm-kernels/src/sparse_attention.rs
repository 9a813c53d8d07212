//! Attention that leaves out what a bound shows to be negligible: a grouped sparse softmax.
//!
//! The idea of skipping work before and after the exponential is that of ULSeq-TA (DOI
//! 10.1109/TCAD.2023.3329039), of which the abstract alone is public; the algorithm is our own.
//!
//! Three things are left out, each only where it is shown to hold no more than a third of `error` of a query's whole
//! weight:
//!
//! - Scores. Keys are taken in groups of [`GROUP`], of each of which the mean `c` and the largest distance `r` of a key
//!   from it are known, so that no score of query `q` in it can exceed `(q·c + |q| r)/sqrt(head width)`. Groups are
//!   visited from the highest bound down until what is left cannot matter. Whether bounds are worth their cost is
//!   tried on one query of every block.
//! - Exponentials. A small group of [`SMALL`] scores holds no more than as many powers of its largest score.
//! - Products with values, of weights that the exponential has made small.
//!
//! What is kept is scaled to sum to one. With `error` 0 the dense kernel runs, to the bit. The backward pass goes
//! through what the forward pass kept.

use std::sync::atomic::{AtomicU64, Ordering};

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::attention::{self, Attention, AttentionSettings, HeadNorm};
use crate::buffer::Buffer;
use crate::element::Element;
use crate::flex::{self, Kernel, for_element};
use crate::gemm::{At, Threads, product};
use crate::parallel::grain;
use crate::simd::vectorised;
use crate::slot::Slot;

/// Keys of one group, of which a bound may spare the scores.
pub const GROUP: usize = 32;

/// Scores of one small group, whose largest may spare the exponentials.
pub const SMALL: usize = 8;

/// The share of groups that bounds must spare to be worth their cost.
const WORTH: f64 = 0.25;

/// Queries that one task handles.
const QUERIES: usize = 64;

/// What was computed, and what the dense operator would have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SoftmaxWork {
    /// Exponentials, those of bounds included.
    pub exponentials: u64,
    /// Exponentials of the dense softmax: one for every key that a query may see.
    pub dense_exponentials: u64,
    /// Products of a number of a query and one of a key, those of bounds included.
    pub score_products: u64,
    /// Of the dense operator.
    pub dense_score_products: u64,
    /// Products of a weight and a number of a value.
    pub value_products: u64,
    /// Of the dense operator.
    pub dense_value_products: u64,
}

static WORK: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];

/// What all forward passes of this process have computed since the last call, and starts anew.
pub fn take_softmax_work() -> SoftmaxWork {
    SoftmaxWork::of([0, 1, 2, 3, 4, 5].map(|at| WORK[at].swap(0, Ordering::Relaxed)))
}

impl SoftmaxWork {
    fn counts(self) -> [u64; 6] {
        [
            self.exponentials,
            self.dense_exponentials,
            self.score_products,
            self.dense_score_products,
            self.value_products,
            self.dense_value_products,
        ]
    }

    /// The reverse of [`counts`](SoftmaxWork::counts).
    fn of(counts: [u64; 6]) -> Self {
        let [
            exponentials,
            dense_exponentials,
            score_products,
            dense_score_products,
            value_products,
            dense_value_products,
        ] = counts;
        SoftmaxWork {
            exponentials,
            dense_exponentials,
            score_products,
            dense_score_products,
            value_products,
            dense_value_products,
        }
    }

    fn add(&mut self, other: SoftmaxWork) {
        let (own, other) = (self.counts(), other.counts());
        *self = SoftmaxWork::of([0, 1, 2, 3, 4, 5].map(|at| own[at] + other[at]));
    }

    fn record(self) {
        for (total, count) in WORK.iter().zip(self.counts()) {
            total.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// [`attention`](crate::attention()) that leaves out at most the share `error` of every query's weight. On devices other
/// than the CPU nothing is left out.
///
/// # Shapes
/// As [`attention`](crate::attention()).
///
/// # Panics
/// As [`attention`](crate::attention()), or if `error` is negative or NaN.
pub fn sparse_attention(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    norms: [Option<HeadNorm>; 3],
    settings: &AttentionSettings,
    error: f64,
) -> Tensor<3> {
    assert!(error >= 0.0, "an error is a number from 0 on");
    if error == 0.0 || !flex::is_flex(&q) {
        return attention::attention(q, k, v, norms, settings);
    }
    let (dense, inputs) = attention::kernel(q, k, v, norms, settings);
    flex::run(SparseAttention { dense, error }, inputs)
}

#[derive(Debug, Clone)]
struct SparseAttention {
    dense: Attention,
    error: f64,
}

/// The keys or values of one head of one sequence.
#[derive(Clone, Copy)]
struct Rows<'a, E> {
    values: &'a [E],
    stride: usize,
    offset: usize,
    width: usize,
}

impl<'a, E: Element> Rows<'a, E> {
    #[inline(always)]
    fn row(&self, at: usize) -> &'a [E] {
        &self.values[at * self.stride + self.offset..][..self.width]
    }

    fn count(&self) -> usize {
        self.values.len() / self.stride.max(1)
    }
}

/// Mean and radius of every group of keys.
struct Bounds {
    centres: Vec<f64>,
    radii: Vec<f64>,
}

impl Bounds {
    fn new<E: Element>(keys: Rows<'_, E>) -> Self {
        let groups = keys.count().div_ceil(GROUP);
        let (mut centres, mut radii) = (vec![0.0; groups * keys.width], vec![0.0f64; groups]);
        for group in 0..groups {
            let members = group * GROUP..keys.count().min((group + 1) * GROUP);
            let centre = &mut centres[group * keys.width..][..keys.width];
            for key in members.clone() {
                centre.iter_mut().zip(keys.row(key)).for_each(|(sum, value)| *sum += value.wide());
            }
            let count = members.len() as f64;
            centre.iter_mut().for_each(|sum| *sum /= count);
            for key in members {
                let square: f64 =
                    keys.row(key).iter().zip(&*centre).map(|(value, centre)| (value.wide() - centre).powi(2)).sum();
                radii[group] = radii[group].max(square.sqrt());
            }
        }
        Bounds { centres, radii }
    }
}

vectorised! {
    /// The scaled scores of one query and some keys.
    fn scores_of<E: Element>(scores: &mut [E], q: &[E], k: &[E], stride: usize, scale: E) {
        let width = q.len();
        for (number, score) in scores.iter_mut().enumerate() {
            let key = &k[number * stride..][..width];
            let mut sum = E::default();
            for i in 0..width {
                sum += q[i] * key[i];
            }
            *score = sum * scale;
        }
    }

    /// `y += weight * x`.
    fn add_scaled<E: Element>(y: &mut [E], weight: E, x: &[E]) {
        let x = &x[..y.len()];
        for i in 0..y.len() {
            y[i] += weight * x[i];
        }
    }
}

/// The larger of two; NaN if either is.
fn larger(most: f64, x: f64) -> f64 {
    if most.is_nan() || x <= most { most } else { x }
}

/// Sums by the power of two that their terms lie under: where to cut off the smallest without sorting.
struct Buckets {
    sums: [f64; 64],
}

impl Buckets {
    fn new() -> Self {
        Buckets { sums: [0.0; 64] }
    }

    /// The bucket of a power, which is at most one.
    fn of(power: f64) -> usize {
        // The exponent's bits: 2^-k <= power < 2^(1-k) has the bucket k.
        (1023usize.saturating_sub((power.to_bits() >> 52) as usize & 0x7ff)).min(63)
    }

    fn add(&mut self, power: f64, mass: f64) {
        self.sums[Self::of(power)] += mass;
    }

    /// The first bucket from which on everything together is no more than `budget`.
    fn cut(&self, budget: f64) -> usize {
        let mut left = budget;
        for bucket in (0..64).rev() {
            left -= self.sums[bucket];
            // A budget that is no number leaves nothing out.
            if left.is_nan() || left < 0.0 {
                return bucket + 1;
            }
        }
        0
    }
}

/// What one query has kept: keys with their weights.
#[derive(Default)]
struct Kept<E> {
    keys: Vec<u32>,
    weights: Vec<E>,
    bounds: Vec<(f64, u32)>,
    tails: Vec<f64>,
    scores: Vec<E>,
    of_key: Vec<u32>,
    largest: Vec<f64>,
}

/// One query and what it may see.
struct Query<'a, E> {
    q: &'a [E],
    keys: Rows<'a, E>,
    seen: usize,
    visible: Option<&'a [bool]>,
}

impl<E: Element> Kept<E> {
    /// Scores the groups that a bound does not spare. The result is the share of groups that it spared.
    fn bounded_scores(&mut self, query: &Query<'_, E>, bounds: &Bounds, error: f64, work: &mut SoftmaxWork) -> f64 {
        let width = query.q.len();
        let scale = 1.0 / (width as f64).sqrt();
        let groups = query.seen.div_ceil(GROUP);
        let length = query.q.iter().map(|x| x.wide() * x.wide()).sum::<f64>().sqrt();
        self.bounds.clear();
        for group in 0..groups {
            let centre = &bounds.centres[group * width..][..width];
            let along: f64 = query.q.iter().zip(centre).map(|(q, c)| q.wide() * c).sum();
            // A little more, for the rounding of the scores themselves.
            let bound = (along + length * bounds.radii[group]) * scale;
            self.bounds.push((bound + 1e-6 * bound.abs(), group as u32));
        }
        work.score_products += (groups * width) as u64;
        self.bounds.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        // What all groups from each on can hold at most, relative to the highest bound.
        let highest = self.bounds.first().map_or(0.0, |bound| bound.0);
        self.tails.clear();
        self.tails.resize(groups + 1, 0.0);
        for at in (0..groups).rev() {
            self.tails[at] = self.tails[at + 1] + GROUP as f64 * (self.bounds[at].0 - highest).exp();
        }
        work.exponentials += groups as u64;
        self.scores.clear();
        self.of_key.clear();
        let mut largest = f64::NEG_INFINITY;
        let mut visited = 0;
        for at in 0..groups {
            // The largest score alone makes the whole at least one, relative to itself.
            if self.tails[at] * (highest - largest).exp() <= error {
                break;
            }
            visited += 1;
            let group = self.bounds[at].1 as usize;
            let members = group * GROUP..query.seen.min((group + 1) * GROUP);
            let start = self.scores.len();
            self.scores.resize(start + members.len(), E::default());
            let rows = &query.keys.values[members.start * query.keys.stride + query.keys.offset..];
            scores_of(&mut self.scores[start..], query.q, rows, query.keys.stride, E::of(scale));
            self.of_key.extend(members.clone().map(|key| key as u32));
            let shown = members.clone().zip(&self.scores[start..]).filter(|(key, _)| query.shows(*key));
            largest = shown.fold(largest, |most, (_, score)| larger(most, score.wide()));
        }
        work.score_products += (self.scores.len() * width) as u64;
        1.0 - visited as f64 / groups.max(1) as f64
    }

    /// Takes scores that were computed for all keys that are seen.
    fn take_scores(&mut self, scores: &[E], query: &Query<'_, E>, work: &mut SoftmaxWork) {
        self.scores.clear();
        self.scores.extend_from_slice(&scores[..query.seen]);
        self.of_key.clear();
        self.of_key.extend(0..query.seen as u32);
        work.score_products += (query.seen * query.q.len()) as u64;
    }

    /// Weighs the scores and chooses among them.
    fn choose(&mut self, query: &Query<'_, E>, error: f64, work: &mut SoftmaxWork) {
        let width = query.q.len() as u64;
        let all = (0..query.seen).filter(|&key| query.shows(key)).count() as u64;
        work.dense_exponentials += all;
        work.dense_score_products += all * width;
        work.dense_value_products += all * width;
        self.keys.clear();
        self.weights.clear();
        self.largest.clear();
        if query.visible.is_some() {
            for (score, &key) in self.scores.iter_mut().zip(&self.of_key) {
                if !query.shows(key as usize) {
                    *score = E::of(f64::NEG_INFINITY);
                }
            }
        }
        for small in self.scores.chunks(SMALL) {
            // NaN is no reason to leave anything out.
            let most = small.iter().fold(f64::NEG_INFINITY, |most, x| larger(most, x.wide()));
            self.largest.push(most);
        }
        let largest = self.largest.iter().fold(f64::NEG_INFINITY, |most, &x| larger(most, x));
        if largest == f64::NEG_INFINITY {
            return;
        }
        // A small group holds at least the power of its largest score, and at most that for each of its scores.
        let mut buckets = Buckets::new();
        let mut at_least = 0.0;
        for most in &mut self.largest {
            *most = (*most - largest).exp();
            at_least += *most;
            buckets.add(*most, SMALL as f64 * *most);
        }
        work.exponentials += self.largest.len() as u64;
        let cut = buckets.cut(error * at_least);
        let mut buckets = Buckets::new();
        let mut whole = 0.0;
        for (group, &most) in self.largest.iter().enumerate() {
            if Buckets::of(most) >= cut {
                continue;
            }
            let members = group * SMALL..self.scores.len().min((group + 1) * SMALL);
            for at in members {
                let power = (self.scores[at].wide() - largest).exp();
                buckets.add(power, power);
                whole += power;
                self.weights.push(E::of(power));
                self.keys.push(self.of_key[at]);
            }
        }
        work.exponentials += self.weights.len() as u64;
        let cut = buckets.cut(error * whole);
        let (mut kept, mut count) = (0.0, 0);
        for at in 0..self.weights.len() {
            let power = self.weights[at].wide();
            if Buckets::of(power) >= cut {
                continue;
            }
            kept += power;
            (self.weights[count], self.keys[count]) = (self.weights[at], self.keys[at]);
            count += 1;
        }
        self.weights.truncate(count);
        self.keys.truncate(count);
        work.value_products += count as u64 * width;
        let reciprocal = E::of(1.0 / kept);
        self.weights.iter_mut().for_each(|weight| *weight *= reciprocal);
    }
}

impl<E> Query<'_, E> {
    #[inline(always)]
    fn shows(&self, key: usize) -> bool {
        self.visible.is_none_or(|visible| visible[key])
    }
}

/// The queries `start..start + count` of one head of one sequence.
struct Block<'a, E> {
    /// The sequence's queries, all heads.
    q: &'a [E],
    width: usize,
    keys: Rows<'a, E>,
    bounds: &'a Bounds,
    visible: Option<&'a [bool]>,
    /// Where the head lies in a query.
    at: usize,
    causal: bool,
    start: usize,
    count: usize,
}

impl<E: Element> Block<'_, E> {
    /// Tells of every query what it keeps.
    fn each(&self, error: f64, kept: &mut Kept<E>, mut tell: impl FnMut(usize, &Kept<E>)) -> SoftmaxWork {
        let mut work = SoftmaxWork::default();
        let third = error / 3.0;
        let query = |number: usize| {
            let row = self.start + number;
            Query {
                q: &self.q[row * self.width + self.at..][..self.keys.width],
                keys: self.keys,
                seen: if self.causal { row + 1 } else { self.keys.count() },
                visible: self.visible,
            }
        };
        // The last query sees the most.
        let last = self.count - 1;
        let mut tried = SoftmaxWork::default();
        let spared = kept.bounded_scores(&query(last), self.bounds, third, &mut tried);
        let worth = spared >= WORTH;
        let mut table = Buffer::<E>::take(0);
        let keys = query(last).seen;
        if !worth {
            // The trial is work too.
            work.add(tried);
            // One size for every block, which the next one takes again.
            table = Buffer::take(QUERIES * self.keys.count());
            let scale = E::of(1.0 / (self.keys.width as f64).sqrt());
            let rows = At::rows(self.width).from(self.start * self.width + self.at);
            let columns = At { offset: self.keys.offset, row: 1, column: self.keys.stride };
            let sizes = (self.count, self.keys.width, keys);
            product(
                sizes,
                (self.q, rows),
                (self.keys.values, columns),
                (&mut table[..self.count * keys], At::rows(keys)),
                false,
                scale,
                Threads::One,
            );
        }
        for number in 0..self.count {
            let query = query(number);
            if worth {
                kept.bounded_scores(&query, self.bounds, third, &mut work);
            } else {
                kept.take_scores(&table[number * keys..][..keys], &query, &mut work);
            }
            kept.choose(&query, third, &mut work);
            tell(number, kept);
        }
        work
    }
}

impl Kernel for SparseAttention {
    fn forward(&self, inputs: &[FlexTensor], _: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let dense = &self.dense;
        for_element!(&inputs[0], E => {
            let prepared = [0, 1, 2].map(|part| dense.parts[part].prepare::<E>(&inputs[part], &inputs[dense.vectors(part)]));
            let [q, k, v] = [0, 1, 2].map(|part| prepared[part].values.as_deref().unwrap_or(flex::slice::<E>(&inputs[part])));
            let shape = flex::dims(&inputs[0]);
            let (time, width) = (shape[1], shape[2]);
            let (key_time, kv_width) = (flex::dims(&inputs[1])[1], flex::dims(&inputs[1])[2]);
            let mut y = Buffer::<E>::take(q.len());
            y.fill(E::default());
            let bounds = self.bounds::<E>(k, shape[0], key_time, kv_width, width);
            let blocks: Vec<_> = y
                .chunks_mut((time * width).max(1))
                .enumerate()
                .flat_map(|(sequence, y)| {
                    y.chunks_mut(QUERIES * width).enumerate().map(move |(block, y)| (sequence, block * QUERIES, y))
                })
                .collect();
            blocks.into_par_iter().with_min_len(grain()).for_each(|(sequence, start, y)| {
                let mut kept = Kept::<E>::default();
                let q = &q[sequence * time * width..][..time * width];
                for head in 0..dense.heads {
                    let (keys, values) = self.rows(k, v, sequence, key_time, kv_width, width, head);
                    let at = head * keys.width;
                    let block = Block {
                        q,
                        width,
                        keys,
                        bounds: &bounds[sequence * dense.kv_heads + head * dense.kv_heads / dense.heads],
                        visible: dense.marks(sequence, key_time),
                        at,
                        causal: dense.causal,
                        start,
                        count: y.len() / width,
                    };
                    let work = block.each(self.error, &mut kept, |number, kept| {
                        let y = &mut y[number * width + at..][..keys.width];
                        for (&key, &weight) in kept.keys.iter().zip(&kept.weights) {
                            add_scaled(y, weight, values.row(key as usize));
                        }
                    });
                    work.record();
                }
            });
            (y.into_tensor(&shape), Vec::new())
        })
    }

    fn backward(&self, inputs: &[FlexTensor], _: &[FlexTensor], upstream: FlexTensor, slots: &mut [Slot]) {
        let dense = &self.dense;
        for_element!(&inputs[0], E => {
            let prepared = [0, 1, 2].map(|part| dense.parts[part].prepare::<E>(&inputs[part], &inputs[dense.vectors(part)]));
            let [q, k, v] = [0, 1, 2].map(|part| prepared[part].values.as_deref().unwrap_or(flex::slice::<E>(&inputs[part])));
            let dy = flex::slice::<E>(&upstream);
            let shape = flex::dims(&inputs[0]);
            let (time, width) = (shape[1], shape[2]);
            let (key_time, kv_width) = (flex::dims(&inputs[1])[1], flex::dims(&inputs[1])[2]);
            let mut dq = Buffer::<E>::take(q.len());
            let mut dk = Buffer::<E>::take(k.len());
            let mut dv = Buffer::<E>::take(v.len());
            for gradient in [&mut dq, &mut dk, &mut dv] {
                gradient.fill(E::default());
            }
            let bounds = self.bounds::<E>(k, shape[0], key_time, kv_width, width);
            let (size, kv_size) = ((time * width).max(1), (key_time * kv_width).max(1));
            dq.par_chunks_mut(size)
                .zip(dk.par_chunks_mut(kv_size).zip(dv.par_chunks_mut(kv_size)))
                .enumerate()
                .with_min_len(grain())
                .for_each(|(sequence, (dq, (dk, dv)))| {
                    let mut kept = Kept::<E>::default();
                    let marks = dense.marks(sequence, key_time);
                    let mut dweights: Vec<E> = Vec::new();
                    let q = &q[sequence * time * width..][..time * width];
                    for head in 0..dense.heads {
                        let (keys, values) = self.rows(k, v, sequence, key_time, kv_width, width, head);
                        let at = head * keys.width;
                        let scale = E::of(1.0 / (keys.width as f64).sqrt());
                        for start in (0..time).step_by(QUERIES) {
                            let block = Block {
                                q,
                                width,
                                keys,
                                bounds: &bounds[sequence * dense.kv_heads + head * dense.kv_heads / dense.heads],
                                visible: marks,
                                at,
                                causal: dense.causal,
                                start,
                                count: QUERIES.min(time - start),
                            };
                            block.each(self.error, &mut kept, |number, kept| {
                                let query = start + number;
                                let own = &q[query * width + at..][..keys.width];
                                let dy = &dy[(sequence * time + query) * width + at..][..keys.width];
                                dweights.clear();
                                dweights.resize(kept.keys.len(), E::default());
                                let mut along = 0.0f64;
                                for ((dweight, &key), &weight) in dweights.iter_mut().zip(&kept.keys).zip(&kept.weights) {
                                    scores_of(std::slice::from_mut(dweight), dy, values.row(key as usize), keys.width, E::of(1.0));
                                    along += dweight.wide() * weight.wide();
                                    let into = key as usize * kv_width + keys.offset;
                                    add_scaled(&mut dv[into..][..keys.width], weight, dy);
                                }
                                let along = E::of(along);
                                let dq = &mut dq[query * width + at..][..keys.width];
                                for ((&dweight, &key), &weight) in dweights.iter().zip(&kept.keys).zip(&kept.weights) {
                                    let dscore = weight * (dweight - along) * scale;
                                    add_scaled(dq, dscore, keys.row(key as usize));
                                    let into = key as usize * kv_width + keys.offset;
                                    add_scaled(&mut dk[into..][..keys.width], dscore, own);
                                }
                            });
                        }
                    }
                });
            for (part, gradient) in [dq, dk, dv].into_iter().enumerate() {
                let vectors = dense.vectors(part);
                let (streams, parameters) = slots.split_at_mut(3);
                let parameters = &mut parameters[vectors.start - 3..vectors.end - 3];
                dense.parts[part].backward(&inputs[part], &inputs[vectors], &prepared[part], gradient, &mut streams[part], parameters);
            }
        })
    }
}

impl SparseAttention {
    /// The keys and values that a head reads.
    fn rows<'a, E: Element>(
        &self,
        k: &'a [E],
        v: &'a [E],
        sequence: usize,
        key_time: usize,
        kv_width: usize,
        width: usize,
        head: usize,
    ) -> (Rows<'a, E>, Rows<'a, E>) {
        let head_width = width / self.dense.heads;
        let offset = head * self.dense.kv_heads / self.dense.heads * head_width;
        let rows = |values: &'a [E]| Rows {
            values: &values[sequence * key_time * kv_width..][..key_time * kv_width],
            stride: kv_width,
            offset,
            width: head_width,
        };
        (rows(k), rows(v))
    }

    /// By sequence and key head.
    fn bounds<E: Element>(&self, k: &[E], batch: usize, key_time: usize, kv_width: usize, width: usize) -> Vec<Bounds> {
        let group = self.dense.heads / self.dense.kv_heads;
        (0..batch * self.dense.kv_heads)
            .into_par_iter()
            .with_min_len(grain())
            .map(|number| {
                let (sequence, kv_head) = (number / self.dense.kv_heads, number % self.dense.kv_heads);
                let (keys, _) = self.rows(k, k, sequence, key_time, kv_width, width, kv_head * group);
                Bounds::new(keys)
            })
            .collect()
    }
}
