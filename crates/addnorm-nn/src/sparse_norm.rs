//! Norms that look at some dimensions only: a dual-path sparse LayerNorm.
//!
//! That the significance of dimensions may decide what is computed is the idea of ULSeq-TA (DOI
//! 10.1109/TCAD.2023.3329039), of which the abstract alone is public; the algorithm is our own.
//!
//! A pass over examples keeps some rows that each norm reads. On them is measured
//!
//! - how few dimensions, those that vary most, give the row's mean and deviation closely enough when all others stand
//!   as their average: the statistics are taken over these;
//! - for which dimensions of the result the row's own statistics matter so little that fixed numbers do, `a x + c`:
//!   these take the cheap path, the others the full one.
//!
//! Both together change the result by no more than `error`, as RMS over RMS, on the rows that were kept. With `error` 0
//! every dimension is read and takes the full path: the dense kernel runs, to the bit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use addnorm_kernels::statistics;
use burn::tensor::{Int, Tensor, TensorData};

use crate::forward::ForwardOptions;
use crate::inputs::Inputs;
use crate::model::Model;
use crate::observer::NoObserver;
use crate::weights::Weights;

/// What was computed, and what the dense operator would have: one for each addition, subtraction or product.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NormWork {
    /// Of the sparse norms.
    pub operations: u64,
    /// Of the same norms over all dimensions.
    pub dense_operations: u64,
}

static WORK: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// What all sparse norms of this process have computed since the last call, and starts anew.
pub fn take_norm_work() -> NormWork {
    let [operations, dense_operations] = [0, 1].map(|at| WORK[at].swap(0, Ordering::Relaxed));
    NormWork { operations, dense_operations }
}

/// Rows that are kept of each norm.
const ROWS: usize = 512;

/// Some rows that a norm has read, and what it gave for them.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    width: usize,
    epsilon: f64,
    read: Vec<f64>,
    given: Vec<f64>,
}

/// By the parameter that is the norm's gain; norms without one stay dense.
type Measured = Arc<Mutex<BTreeMap<usize, Rows>>>;

/// Whether norms look at all dimensions.
#[derive(Debug, Clone, Default)]
pub(crate) enum SparseNorms {
    /// They do.
    #[default]
    Off,
    /// They do, and write down what they see.
    Measure(Measured),
    /// They look at those chosen.
    On(Arc<BTreeMap<usize, Choice>>),
}

/// What one norm looks at.
#[derive(Debug)]
pub(crate) struct Choice {
    /// The dimensions that the statistics are taken over.
    statistics: Vec<i32>,
    /// Of the dimensions that they are not taken over, summed: the mean, and the mean square about the row's mean.
    rest: [f64; 2],
    /// The dimensions of the result that take the full path, at least one.
    full: Vec<i32>,
    /// Those that take the cheap path, and its factors and offsets.
    cheap: Vec<i32>,
    factors: Vec<f64>,
    offsets: Vec<f64>,
    /// Where each dimension of the result is among those of the full path and those of the cheap one after them.
    order: Vec<i32>,
}

impl SparseNorms {
    /// Writes down what a norm reads and gives, if that is wanted.
    pub(crate) fn look(&self, key: usize, epsilon: f64, x: &Tensor<3>, y: &Tensor<3>) {
        let SparseNorms::Measure(measured) = self else { return };
        let width = x.dims()[2];
        let (x, y) = (statistics::to_f64(x), statistics::to_f64(y));
        let rows = x.len() / width;
        let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = measured.entry(key).or_default();
        (kept.width, kept.epsilon) = (width, epsilon);
        // Evenly spread over what passes at once.
        let shown = rows.min(ROWS.saturating_sub(kept.read.len() / width));
        for row in (0..shown).map(|number| number * rows / shown) {
            kept.read.extend_from_slice(&x[row * width..][..width]);
            kept.given.extend_from_slice(&y[row * width..][..width]);
        }
    }

    pub(crate) fn choice(&self, key: usize) -> Option<&Choice> {
        if let SparseNorms::On(choices) = self { choices.get(&key) } else { None }
    }
}

/// Mean and reciprocal deviation of a row, by whatever it is read.
type Summary = (f64, f64);

impl Choice {
    fn new(rows: &Rows, centred: bool, error: f64) -> Self {
        let (width, epsilon) = (rows.width, rows.epsilon);
        let d = width as f64;
        let count = (rows.read.len() / width) as f64;
        let mean_of = |row: &[f64]| if centred { row.iter().sum::<f64>() / d } else { 0.0 };
        let summary = |mean: f64, squares: f64| -> Summary { (mean, 1.0 / (squares / d + epsilon).sqrt()) };
        let read: Vec<&[f64]> = rows.read.chunks_exact(width).collect();
        let exact: Vec<Summary> = read
            .iter()
            .map(|row| {
                let mean = mean_of(row);
                summary(mean, row.iter().map(|x| (x - mean).powi(2)).sum())
            })
            .collect();
        // By dimension over the rows: the mean, and the mean square about the row's mean.
        let (mut means, mut squares) = (vec![0.0; width], vec![0.0; width]);
        for (row, (mean, _)) in read.iter().zip(&exact) {
            for i in 0..width {
                means[i] += row[i] / count;
                squares[i] += (row[i] - mean).powi(2) / count;
            }
        }
        let mut order: Vec<usize> = (0..width).collect();
        order.sort_by(|&a, &b| squares[b].total_cmp(&squares[a]).then(a.cmp(&b)));
        // How far the result moves, over its size, when only the first `kept` of that order are read.
        let off = |kept: usize| -> f64 {
            let rest: [f64; 2] = [&means, &squares].map(|of| order[kept..].iter().map(|&i| of[i]).sum());
            let (mut wrong, mut size) = (0.0, 0.0);
            for (row, (mean, deviation)) in read.iter().zip(&exact) {
                let sum: f64 = order[..kept].iter().map(|&i| row[i]).sum();
                let about = if centred { (sum + rest[0]) / d } else { 0.0 };
                let found =
                    summary(about, order[..kept].iter().map(|&i| (row[i] - about).powi(2)).sum::<f64>() + rest[1]);
                for x in *row {
                    wrong += ((x - found.0) * found.1 - (x - mean) * deviation).powi(2);
                    size += ((x - mean) * deviation).powi(2);
                }
            }
            (wrong / size).sqrt()
        };
        let budget = error / 2f64.sqrt();
        let sizes = (0..=16).map(|sixteenth| width * sixteenth / 16);
        let kept = sizes.into_iter().find(|&kept| off(kept) <= budget).unwrap_or(width);
        let rest = [&means, &squares].map(|of| order[kept..].iter().map(|&i| of[i]).sum());
        let mut statistics: Vec<i32> = order[..kept].iter().map(|&i| i as i32).collect();
        statistics.sort_unstable();
        // The best fixed line from what is read to what is given, dimension by dimension.
        let (mut factors, mut offsets, mut wrong) = (vec![0.0; width], vec![0.0; width], vec![0.0; width]);
        let mut size = 0.0;
        for i in 0..width {
            let pairs = || read.iter().map(|row| row[i]).zip(rows.given.iter().skip(i).step_by(width).copied());
            let (x_mean, y_mean) = pairs().fold((0.0, 0.0), |(a, b), (x, y)| (a + x / count, b + y / count));
            let (mut xx, mut xy) = (0.0, 0.0);
            for (x, y) in pairs() {
                xx += (x - x_mean).powi(2);
                xy += (x - x_mean) * (y - y_mean);
                size += (y - y_mean).powi(2);
            }
            factors[i] = if xx > 0.0 { xy / xx } else { 0.0 };
            offsets[i] = y_mean - factors[i] * x_mean;
            wrong[i] = pairs().map(|(x, y)| (factors[i] * x + offsets[i] - y).powi(2)).sum();
        }
        let mut by_error: Vec<usize> = (0..width).collect();
        by_error.sort_by(|&a, &b| wrong[a].total_cmp(&wrong[b]).then(a.cmp(&b)));
        let mut left = budget * budget * size;
        let mut is_cheap = vec![false; width];
        for &i in &by_error {
            left -= wrong[i];
            if left < 0.0 {
                break;
            }
            is_cheap[i] = true;
        }
        // One dimension at least takes the full path, so that gain and bias go on learning.
        if is_cheap.iter().all(|cheap| *cheap)
            && let Some(&worst) = by_error.last()
        {
            is_cheap[worst] = false;
        }
        let those = |wanted: bool| -> Vec<usize> { (0..width).filter(|&i| is_cheap[i] == wanted).collect() };
        let (full, cheap) = (those(false), those(true));
        let mut order = vec![0; width];
        full.iter().chain(&cheap).enumerate().for_each(|(at, &dimension)| order[dimension] = at as i32);
        Choice {
            statistics,
            rest,
            full: full.into_iter().map(|i| i as i32).collect(),
            factors: cheap.iter().map(|&i| factors[i]).collect(),
            offsets: cheap.iter().map(|&i| offsets[i]).collect(),
            cheap: cheap.into_iter().map(|i| i as i32).collect(),
            order,
        }
    }

    /// The norm over what was chosen. `centred` says whether the mean is taken off.
    ///
    /// # Shapes
    /// - x: `[batch, time, d]`, gain and bias: `[d]`; the result has the shape of x.
    pub(crate) fn apply(
        &self,
        x: Tensor<3>,
        gain: Tensor<1>,
        bias: Option<Tensor<1>>,
        centred: bool,
        epsilon: f64,
        scale: f64,
    ) -> Tensor<3> {
        let ([batch, time, width], device) = (x.dims(), x.device());
        let index = |dimensions: &[i32]| {
            let count = dimensions.len();
            Tensor::<1, Int>::from_data(TensorData::new(dimensions.to_vec(), [count]), &device)
        };
        let d = width as f64;
        let (each_read, each_given, each_cheap) = if centred { (3, 4, 2) } else { (2, 2, 2) };
        let rows = (batch * time) as u64;
        let counts =
            [(each_read, self.statistics.len()), (each_given, self.full.len()), (each_cheap, self.cheap.len())];
        let work: usize = counts.iter().map(|(each, count)| each * count).sum();
        WORK[0].fetch_add(rows * work as u64, Ordering::Relaxed);
        WORK[1].fetch_add(rows * ((each_read + each_given) * width) as u64, Ordering::Relaxed);
        let pick = |x: &Tensor<3>, dimensions: &[i32]| {
            if dimensions.len() == width { x.clone() } else { x.clone().select(2, index(dimensions)) }
        };
        let fixed = |values: &[f64]| {
            let count = values.len();
            Tensor::<3>::from_data(TensorData::new(values.to_vec(), [1, 1, count]), (&device, x.dtype()))
        };
        let (mean, variance) = if self.statistics.is_empty() {
            (fixed(&[self.rest[0] / d]), fixed(&[self.rest[1] / d]))
        } else {
            let read = pick(&x, &self.statistics);
            let mean = (read.clone().sum_dim(2) + self.rest[0]) * (1.0 / d);
            let about = if centred { read - mean.clone() } else { read };
            (mean, ((about.clone() * about).sum_dim(2) + self.rest[1]) * (1.0 / d))
        };
        let mut y = pick(&x, &self.full);
        if centred {
            y = y - mean;
        }
        let count = self.full.len();
        let part = |vector: Tensor<1>| {
            let vector = if count == width { vector } else { vector.select(0, index(&self.full)) };
            vector.reshape([1, 1, count])
        };
        y = y / (variance + epsilon).sqrt() * part(gain);
        if let Some(bias) = bias {
            y = y + part(bias);
        }
        y = y * scale;
        if self.cheap.is_empty() {
            return y;
        }
        let cheap = pick(&x, &self.cheap) * fixed(&self.factors) + fixed(&self.offsets);
        Tensor::cat(vec![y, cheap], 2).select(2, index(&self.order))
    }
}

impl Model {
    /// The same model with sparse norms, chosen from what a pass of these examples shows at a training step. An
    /// `error` of 0 gives back the dense ones.
    ///
    /// # Panics
    /// As [`logits`](Model::logits).
    pub fn with_sparse_norms(&self, weights: &Weights, inputs: impl Into<Inputs>, error: f64, step: u64) -> Model {
        let mut model = self.clone();
        if error <= 0.0 {
            model.sparse_norms = SparseNorms::Off;
            return model;
        }
        let measured = Measured::default();
        model.sparse_norms = SparseNorms::Measure(Arc::clone(&measured));
        model.logits(weights, inputs, ForwardOptions { step, ..ForwardOptions::default() }, &mut NoObserver);
        let measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
        let centred = self.norm.centres();
        let choices = measured.iter().map(|(&key, rows)| (key, Choice::new(rows, centred, error))).collect();
        model.sparse_norms = SparseNorms::On(Arc::new(choices));
        model
    }
}
