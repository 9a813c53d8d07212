//! Sparse attention: what it leaves out is bounded, nothing is left out at zero, and gradients are those of what it
//! kept.

use addnorm_kernels::statistics::to_f64;
use addnorm_kernels::*;
use burn::tensor::{DType, Device, Tensor, TensorData};

fn wave(count: usize, a: f64, size: f64) -> Vec<f64> {
    (0..count).map(|i| size * ((i as f64 * a + a).sin() + 0.3 * (i as f64 * 7.1 * a).cos())).collect()
}

fn cube(values: Vec<f64>, shape: [usize; 3], dtype: DType) -> Tensor<3> {
    Tensor::from_data(TensorData::new(values, shape), (&Device::flex().autodiff(), dtype))
}

fn settings(heads: usize, kv_heads: usize, causal: bool) -> AttentionSettings {
    AttentionSettings { heads, kv_heads, causal, rotary: None, visible: None }
}

/// What is counted is counted for the whole process: these tests run one at a time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static COUNTS: std::sync::Mutex<()> = std::sync::Mutex::new(());
    COUNTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const NONE: [Option<HeadNorm>; 3] = [const { None }; 3];

/// Shapes: batch, queries, keys, heads, key heads, head width.
const SHAPES: [[usize; 6]; 6] = [
    [1, 1, 1, 1, 1, 1],
    [2, 7, 7, 2, 1, 3],
    [1, 65, 65, 4, 2, 8],
    [2, 33, 100, 2, 2, 5],
    [1, 130, 130, 1, 1, 16],
    [3, 9, 31, 3, 1, 4],
];

#[test]
fn what_is_left_out_is_no_more_than_was_said() {
    let _alone = alone();
    for [batch, time, key_time, heads, kv_heads, head] in SHAPES {
        for (size, dtype) in [(0.5, DType::F64), (3.0, DType::F64), (3.0, DType::F32)] {
            for causal in [false, true] {
                if causal && time != key_time {
                    continue;
                }
                let q = cube(wave(batch * time * heads * head, 0.37, size), [batch, time, heads * head], dtype);
                let k = cube(
                    wave(batch * key_time * kv_heads * head, 0.61, size),
                    [batch, key_time, kv_heads * head],
                    dtype,
                );
                // Values of one magnitude: what is left out shows in the result by at most twice its share.
                let v = cube(
                    wave(batch * key_time * kv_heads * head, 0.83, 0.7),
                    [batch, key_time, kv_heads * head],
                    dtype,
                );
                let largest = to_f64(&v).iter().fold(0.0f64, |most, value| most.max(value.abs()));
                let settings = settings(heads, kv_heads, causal);
                let dense = to_f64(&attention(q.clone(), k.clone(), v.clone(), NONE, &settings));
                for error in [1e-4, 1e-2, 0.2] {
                    let found = to_f64(&sparse_attention(q.clone(), k.clone(), v.clone(), NONE, &settings, error));
                    let rounding = if dtype == DType::F64 { 1e-12 } else { 1e-5 };
                    for (found, dense) in found.iter().zip(&dense) {
                        let off = (found - dense).abs();
                        assert!(off <= 2.0 * error * largest + rounding, "{off} at {error}: {found} and {dense}");
                    }
                }
            }
        }
    }
}

#[test]
fn at_zero_it_is_the_dense_kernel_to_the_bit() {
    let _alone = alone();
    let q = cube(wave(2 * 40 * 12, 0.37, 2.0), [2, 40, 12], DType::F32);
    let settings = settings(3, 3, true);
    let dense = to_f64(&attention(q.clone(), q.clone(), q.clone(), NONE, &settings));
    assert_eq!(dense, to_f64(&sparse_attention(q.clone(), q.clone(), q, NONE, &settings, 0.0)));
}

#[test]
fn gradients_are_those_of_what_was_kept() {
    let _alone = alone();
    // Where nothing crosses a threshold the function is smooth, and differences of it are its gradient.
    for [batch, time, key_time, heads, kv_heads, head] in [[1, 5, 5, 2, 1, 3], [2, 34, 70, 2, 2, 4]] {
        let shapes =
            [[batch, time, heads * head], [batch, key_time, kv_heads * head], [batch, key_time, kv_heads * head]];
        let values: Vec<Vec<f64>> = shapes
            .iter()
            .enumerate()
            .map(|(at, shape)| wave(shape.iter().product(), 0.37 + 0.21 * at as f64, 2.0))
            .collect();
        let settings = settings(heads, kv_heads, time == key_time);
        let run = |values: &[Vec<f64>]| {
            let inputs: Vec<Tensor<3>> = values
                .iter()
                .zip(shapes)
                .map(|(values, shape)| cube(values.clone(), shape, DType::F64).require_grad())
                .collect();
            let [q, k, v] = [0, 1, 2].map(|at| inputs[at].clone());
            let y = sparse_attention(q, k, v, NONE, &settings, 0.03);
            let upstream = cube(wave(y.dims().iter().product(), 0.53, 1.0), y.dims(), DType::F64);
            ((y * upstream).sum(), inputs)
        };
        let (total, inputs) = run(&values);
        let gradients = total.backward();
        for (which, input) in inputs.iter().enumerate() {
            let found = to_f64(&input.grad(&gradients).expect("every input gets a gradient"));
            for i in (0..found.len()).step_by(1 + found.len() / 40) {
                let value = |delta: f64| {
                    let mut moved = values.clone();
                    moved[which][i] += delta;
                    to_f64(&run(&moved).0)[0]
                };
                let h = 1e-6;
                let expected = (value(h) - value(-h)) / (2.0 * h);
                let error = (found[i] - expected).abs() / expected.abs().max(1.0);
                assert!(error < 1e-5, "input {which} element {i}: {} and {expected}", found[i]);
            }
        }
    }
}

/// T20, and masks: hidden keys take no part, and a query that may see no key gives 0.
#[test]
fn t20_hidden_keys_are_hidden_here_too() {
    let _alone = alone();
    let q = cube(wave(2 * 6 * 4, 0.37, 2.0), [2, 6, 4], DType::F32);
    let visible: Vec<bool> = (0..12).map(|at| at < 3).collect();
    let settings = AttentionSettings { visible: Some(visible.into()), ..settings(2, 2, false) };
    let dense = to_f64(&attention(q.clone(), q.clone(), q.clone(), NONE, &settings));
    let found = to_f64(&sparse_attention(q.clone(), q.clone(), q, NONE, &settings, 1e-6));
    for (found, dense) in found.iter().zip(&dense) {
        assert!((found - dense).abs() < 1e-5, "{found} and {dense}");
    }
    assert!(found[24..].iter().all(|&value| value == 0.0), "the second sequence sees nothing");
}

#[test]
fn few_tall_scores_spare_most_of_the_work_and_the_counts_say_so() {
    let _alone = alone();
    // Keys in two far clusters: queries of the first need nothing of the second.
    let (time, head) = (256, 16);
    let key = |at: usize| (at / head) < time / 2;
    let values = wave(time * head, 0.61, 0.1);
    let keys: Vec<f64> = values.iter().enumerate().map(|(at, x)| if key(at) { x + 4.0 } else { x - 4.0 }).collect();
    let k = cube(keys, [1, time, head], DType::F32);
    take_softmax_work();
    let settings = settings(1, 1, false);
    let found = to_f64(&sparse_attention(k.clone(), k.clone(), k.clone(), NONE, &settings, 1e-4));
    let work = take_softmax_work();
    let pairs = (time * time) as u64;
    assert_eq!(work.dense_exponentials, pairs);
    assert_eq!(work.dense_score_products, pairs * head as u64);
    assert!(work.score_products < work.dense_score_products * 6 / 10, "{work:?}");
    assert!(work.exponentials < work.dense_exponentials * 7 / 10, "{work:?}");
    assert!(work.value_products <= work.dense_value_products / 2, "{work:?}");
    let dense = to_f64(&attention(k.clone(), k.clone(), k, NONE, &settings));
    assert!(found.iter().zip(&dense).all(|(a, b)| (a - b).abs() < 1e-3));
}

/// A NaN that goes in comes out, in queries, keys and values, and never as a zero.
#[test]
fn a_nan_is_shown() {
    let _alone = alone();
    for which in 0..3 {
        let mut values: Vec<Vec<f64>> = (0..3).map(|at| wave(40 * 4, 0.37 + 0.2 * at as f64, 1.0)).collect();
        values[which][5 * 4 + 1] = f64::NAN;
        let [q, k, v] = [0, 1, 2].map(|at| cube(values[at].clone(), [1, 40, 4], DType::F32));
        for error in [1e-3, 0.3] {
            let y = to_f64(&sparse_attention(q.clone(), k.clone(), v.clone(), NONE, &settings(1, 1, true), error));
            let dense = to_f64(&attention(q.clone(), k.clone(), v.clone(), NONE, &settings(1, 1, true)));
            assert!(y[..5 * 4].iter().all(|value| value.is_finite()), "what comes before does not see it");
            if which < 2 {
                assert!(y[5 * 4..6 * 4].iter().all(|value| value.is_nan()), "input {which}: {:?}", &y[20..24]);
            }
            // Where the dense operator has a NaN in its own row, so has this one.
            assert_eq!(y[5 * 4..6 * 4].iter().any(|x| x.is_nan()), dense[5 * 4..6 * 4].iter().any(|x| x.is_nan()));
        }
    }
}
