//! Every kernel against central differences and against the composition of Burn's operators, in odd shapes.

use std::sync::Arc;

use addnorm_kernels::statistics::{mean_token_cosine, rms, to_f64};
use addnorm_kernels::*;
use burn::tensor::{DType, Device, Tensor, TensorData};

fn wave(count: usize, a: f64) -> Vec<f64> {
    (0..count).map(|i| 1.7 * (i as f64 * a + a).sin() + 0.3 * (i as f64 * 7.1 * a).cos()).collect()
}

fn device() -> Device {
    Device::flex().autodiff()
}

type Cube = Tensor<3>;

fn cube(values: &[f64], shape: [usize; 3], dtype: DType) -> Cube {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), (&device(), dtype)).require_grad()
}

/// Checks `f` on inputs of the given shapes: its gradient by every input against central differences of a
/// weighted sum, in f64.
fn check_gradient(shapes: &[[usize; 3]], f: impl Fn(&[Cube]) -> Cube) {
    let values: Vec<Vec<f64>> =
        shapes.iter().enumerate().map(|(at, shape)| wave(shape.iter().product(), 0.37 + 0.21 * at as f64)).collect();
    let run = |values: &[Vec<f64>]| {
        let inputs: Vec<Cube> =
            values.iter().zip(shapes).map(|(values, shape)| cube(values, *shape, DType::F64)).collect();
        let y = f(&inputs);
        let upstream = cube(&wave(y.dims().iter().product(), 0.53), y.dims(), DType::F64).detach();
        ((y * upstream).sum(), inputs)
    };
    let (total, inputs) = run(&values);
    let gradients = total.backward();
    let h = 1e-5;
    for (which, input) in inputs.iter().enumerate() {
        let found = to_f64(&input.grad(&gradients).expect("every input gets a gradient"));
        // A stride keeps large shapes affordable and still meets every row.
        for i in (0..found.len()).step_by(1 + found.len() / 64) {
            let value = |delta: f64| {
                let mut moved = values.clone();
                moved[which][i] += delta;
                to_f64(&run(&moved).0)[0]
            };
            let expected = (value(h) - value(-h)) / (2.0 * h);
            let error = (found[i] - expected).abs() / expected.abs().max(1.0);
            assert!(error < 1e-6, "{shapes:?} input {which} element {i}: {} and {expected}", found[i]);
        }
    }
}

/// Checks that `kernel` and `composition` agree in `f32`, forward and in every gradient.
fn check_composition(shapes: &[[usize; 3]], kernel: impl Fn(&[Cube]) -> Cube, composition: impl Fn(&[Cube]) -> Cube) {
    let run = |f: &dyn Fn(&[Cube]) -> Cube| {
        let inputs: Vec<Cube> = shapes
            .iter()
            .enumerate()
            .map(|(at, shape)| cube(&wave(shape.iter().product(), 0.37 + 0.21 * at as f64), *shape, DType::F32))
            .collect();
        let y = f(&inputs);
        let upstream = cube(&wave(y.dims().iter().product(), 0.53), y.dims(), DType::F32).detach();
        let gradients = (y.clone() * upstream).sum().backward();
        let mut results = vec![to_f64(&y)];
        results.extend(inputs.iter().map(|input| to_f64(&input.grad(&gradients).expect("a gradient arrives"))));
        results
    };
    for (found, expected) in run(&kernel).iter().zip(run(&composition)) {
        let size = expected.iter().fold(1.0f64, |most, value| most.max(value.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 2e-5 * size, "{shapes:?}: {found} and {expected}");
        }
    }
}

const ODD: [[usize; 3]; 5] = [[1, 1, 1], [2, 3, 5], [1, 65, 3], [3, 1, 65], [2, 70, 4]];

#[test]
fn activations() {
    for function in [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::Relu] {
        for shape in ODD {
            check_gradient(&[shape], |x| activation(x[0].clone(), function));
            check_gradient(&[shape, shape], |x| gated_activation(x[0].clone(), x[1].clone(), function));
            let composed = |x: Cube| match function {
                Activation::Gelu => burn::tensor::activation::gelu(x),
                Activation::GeluTanh => burn::tensor::activation::gelu_approximate(x),
                Activation::Silu => burn::tensor::activation::silu(x),
                Activation::Relu => burn::tensor::activation::relu(x),
            };
            check_composition(&[shape], |x| activation(x[0].clone(), function), |x| composed(x[0].clone()));
        }
    }
}

#[test]
fn activations_of_extreme_values() {
    let values = [-1e30, -200.0, -20.0, 0.0, 20.0, 200.0, 1e30];
    for function in [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::Relu] {
        let x = cube(&values, [1, 1, 7], DType::F32);
        let y = to_f64(&activation(x, function));
        assert!(y.iter().all(|y| y.is_finite()), "{function:?} {y:?}");
        assert!(y[0].abs() < 1e-6 && y[1].abs() < 1e-6 && y[5] == 200.0, "{function:?} {y:?}");
        let nan = to_f64(&activation(cube(&[f64::NAN], [1, 1, 1], DType::F32), function));
        assert!(nan[0].is_nan(), "{function:?} hides a NaN");
    }
}

#[test]
fn linear_maps() {
    for (batch, time, input, output) in [(1, 1, 1, 1), (2, 3, 5, 7), (1, 70, 65, 3), (3, 1, 1, 65)] {
        let as_matrix = |x: &Cube| x.clone().reshape([x.dims()[1], x.dims()[2]]);
        let as_vector = |x: &Cube| x.clone().reshape([x.dims()[2]]);
        let x = [batch, time, input];
        check_gradient(&[x, [1, input, output], [1, 1, output]], |t| {
            linear(t[0].clone(), as_matrix(&t[1]), Some(as_vector(&t[2])), false)
        });
        check_gradient(&[x, [1, output, input]], |t| linear(t[0].clone(), as_matrix(&t[1]), None, true));
        check_composition(
            &[x, [1, input, output]],
            |t| linear(t[0].clone(), as_matrix(&t[1]), None, false),
            |t| {
                let flat = t[0].clone().reshape([batch * time, input]);
                flat.matmul(as_matrix(&t[1])).reshape([batch, time, output])
            },
        );
    }
}

fn plain_attention(heads: usize, kv_heads: usize, causal: bool) -> AttentionSettings {
    AttentionSettings { heads, kv_heads, causal, rotary: None, visible: None }
}

#[test]
fn attention_with_grouped_heads() {
    for (batch, time, heads, kv_heads, head) in [(1, 1, 1, 1, 1), (2, 5, 4, 2, 3), (1, 66, 2, 1, 2), (2, 130, 3, 3, 1)]
    {
        let shapes = [[batch, time, heads * head], [batch, time, kv_heads * head], [batch, time, kv_heads * head]];
        for causal in [true, false] {
            let settings = plain_attention(heads, kv_heads, causal);
            let none = || [None, None, None];
            let kernel = |t: &[Cube]| attention(t[0].clone(), t[1].clone(), t[2].clone(), none(), &settings);
            if time < 100 {
                check_gradient(&shapes, kernel);
            }
            check_composition(&shapes, kernel, |t| {
                attention::composed(t[0].clone(), t[1].clone(), t[2].clone(), none(), &settings)
            });
        }
    }
}

#[test]
fn attention_with_norms_rotation_and_hidden_keys_inside() {
    for (batch, time, heads, kv_heads, head) in [(1, 1, 1, 1, 2), (2, 5, 4, 2, 6), (2, 67, 2, 1, 2)] {
        let stream = |count: usize| [batch, time, count * head];
        let vector = [1, 1, head];
        let shapes = [stream(heads), stream(kv_heads), stream(kv_heads), vector, vector, vector, vector];
        let centred = Norm { centre: true, epsilon: 1e-2, scale: 1.0, gain_offset: 0.0, round_before_gain: false };
        let shifted = Norm { centre: false, gain_offset: 1.0, ..centred };
        let visible: Arc<[bool]> = (0..batch * time).map(|at| at % 3 != 1).collect();
        for causal in [true, false] {
            for visible in [None, Some(visible.clone())] {
                let settings =
                    AttentionSettings { rotary: Some(100.0), visible, ..plain_attention(heads, kv_heads, causal) };
                let vector = |x: &Cube| x.clone().reshape([head]);
                let norms = |t: &[Cube]| {
                    [
                        Some(HeadNorm { norm: centred, gain: vector(&t[3]), bias: Some(vector(&t[4])) }),
                        Some(HeadNorm { norm: shifted, gain: vector(&t[5]), bias: None }),
                        Some(HeadNorm { norm: shifted, gain: vector(&t[6]), bias: None }),
                    ]
                };
                let kernel = |t: &[Cube]| attention(t[0].clone(), t[1].clone(), t[2].clone(), norms(t), &settings);
                if time < 60 {
                    check_gradient(&shapes, kernel);
                }
                check_composition(&shapes, kernel, |t| {
                    attention::composed(t[0].clone(), t[1].clone(), t[2].clone(), norms(t), &settings)
                });
            }
        }
    }
}

#[test]
fn t20_a_query_that_may_see_no_key_gives_zero_and_no_gradient() {
    type Body = fn(Cube, Cube, Cube, [Option<HeadNorm>; 3], &AttentionSettings) -> Cube;
    for body in [attention as Body, attention::composed as Body] {
        // The first sequence is all padding; in the second the one real score lies far below any finite fill.
        let settings =
            AttentionSettings { visible: Some([false, false, true, false].into()), ..plain_attention(1, 1, false) };
        let q = cube(&[1.0, 2.0, -200.0, 3.0], [2, 2, 1], DType::F32);
        let k = cube(&[5.0, 6.0, 100.0, 7.0], [2, 2, 1], DType::F32);
        let v = cube(&[1.0, 2.0, 3.0, 4.0], [2, 2, 1], DType::F32);
        let y = body(q.clone(), k.clone(), v.clone(), [None, None, None], &settings);
        assert_eq!(to_f64(&y), [0.0, 0.0, 3.0, 3.0]);
        let gradients = y.sum().backward();
        for x in [q, k, v.clone()] {
            let gradient = to_f64(&x.grad(&gradients).expect("a gradient arrives"));
            assert!(gradient.iter().all(|value| value.is_finite()), "{gradient:?}");
            assert_eq!(gradient[..2], [0.0, 0.0]);
        }
        assert_eq!(to_f64(&v.grad(&gradients).expect("a gradient arrives")), [0.0, 0.0, 2.0, 0.0]);
    }
}

#[test]
fn attention_survives_extreme_scores_and_shows_a_nan() {
    let causal = |q: &Cube, k: &Cube, v: Cube| {
        to_f64(&attention(q.clone(), k.clone(), v, [None, None, None], &plain_attention(1, 1, true)))
    };
    let q = cube(&[1e18, -1e18, 3.0, 0.0], [1, 4, 1], DType::F32);
    let k = cube(&[1e18, 1.0, -1e18, 2.0], [1, 4, 1], DType::F32);
    let y = causal(&q, &k, cube(&[1.0, 2.0, 3.0, 4.0], [1, 4, 1], DType::F32));
    assert_eq!(y[..3], [1.0, 2.0, 1.0]);
    assert!((y[3] - 2.5).abs() < 1e-6);
    let y = causal(&q, &k, cube(&[1.0, f64::NAN, 3.0, 4.0], [1, 4, 1], DType::F32));
    assert!(y[1].is_nan() && y[3].is_nan(), "{y:?}");
}

#[test]
fn w11_rotary_positions_are_half_split() {
    let place = |row: [f64; 4], at: usize| {
        let mut rows = vec![0.0; 8];
        rows[4 * at..4 * at + 4].copy_from_slice(&row);
        cube(&rows, [1, 2, 4], DType::F64)
    };
    let q = to_f64(&rotary(place([1.0, 2.0, 3.0, 4.0], 1), 1, 10000.0));
    for (found, expected) in q[4..].iter().zip([-1.9841, 1.9599, 2.4624, 4.0198]) {
        assert!((found - expected).abs() < 1e-4);
    }
    let k = to_f64(&rotary(place([1.0, 0.0, 0.0, 1.0], 0), 1, 10000.0));
    let score: f64 = q[4..].iter().zip(&k[..4]).map(|(q, k)| q * k).sum();
    assert!((score - 2.0357).abs() < 1e-4, "{score}");
    for (shape, heads) in [([1, 1, 2], 1), ([2, 7, 12], 3), ([1, 65, 4], 2)] {
        check_gradient(&[shape], |t| rotary(t[0].clone(), heads, 10000.0));
    }
}

/// Losses of given logits: the head is the unit matrix.
fn losses_of(logits: Cube, targets: Arc<[u32]>) -> Vec<f64> {
    let vocabulary = logits.dims()[2];
    let unit = (0..vocabulary * vocabulary).map(|at| if at % (vocabulary + 1) == 0 { 1.0 } else { 0.0 });
    let unit = cube(&unit.collect::<Vec<f64>>(), [1, vocabulary, vocabulary], logits.dtype());
    to_f64(&head_loss(logits, unit.reshape([vocabulary, vocabulary]), targets))
}

#[test]
fn head_and_loss_and_their_gradients() {
    for (batch, time, width, vocabulary) in [(1, 1, 1, 1), (2, 3, 4, 5), (1, 40, 3, 65)] {
        let targets: Arc<[u32]> = (0..batch * time).map(|i| (i * 7 % vocabulary) as u32).collect();
        let shapes = [[batch, time, width], [1, vocabulary, width]];
        let kernel = |t: &[Cube]| {
            let losses = head_loss(t[0].clone(), t[1].clone().reshape([vocabulary, width]), targets.clone());
            losses.reshape([batch, time, 1])
        };
        check_gradient(&shapes, kernel);
        check_composition(&shapes, kernel, |t| {
            let logits = t[0].clone().matmul(t[1].clone().swap_dims(1, 2));
            let shares = burn::tensor::activation::log_softmax(logits, 2).reshape([batch * time, vocabulary]);
            let numbers: Vec<i32> = targets.iter().map(|&target| target as i32).collect();
            let numbers =
                Tensor::<2, burn::tensor::Int>::from_data(TensorData::new(numbers, [batch * time, 1]), &device());
            shares.gather(1, numbers).neg().reshape([batch, time, 1])
        });
    }
    let first = losses_of(cube(&[1e4, 0.0, -1e4], [1, 1, 3], DType::F32), [1].into());
    assert!((first[0] - 1e4).abs() < 1.0, "{first:?}");
    let second = losses_of(cube(&[f64::NAN, 0.0, 0.0], [1, 1, 3], DType::F32), [1].into());
    assert!(second[0].is_nan());
}

#[test]
fn a_large_vocabulary_is_worked_on_in_parts_and_gives_the_same() {
    // 70 rows of 65,537 logits are more than are kept: the sum over all equals that over two halves.
    let (rows, vocabulary) = (70, 65_537);
    let x = cube(&wave(rows * 2, 0.7), [1, rows, 2], DType::F32);
    let weight = cube(&wave(vocabulary * 2, 0.0013), [1, vocabulary, 2], DType::F32);
    let targets: Arc<[u32]> = (0..rows as u32).map(|i| i * 911).collect();
    let run = |from: usize, to: usize| {
        let part = x.clone().slice_dim(1, from..to);
        let losses = head_loss(part, weight.clone().reshape([vocabulary, 2]), targets[from..to].into());
        let gradients = losses.clone().sum().backward();
        let [dx, dweight] = [&x, &weight].map(|x| to_f64(&x.grad(&gradients).expect("a gradient arrives")));
        (to_f64(&losses), dx, dweight)
    };
    let (whole, halves) = (run(0, rows), [run(0, rows / 2), run(rows / 2, rows)]);
    assert_eq!(whole.0, [halves[0].0.clone(), halves[1].0.clone()].concat());
    for (which, tolerance) in [(0, 1e-7), (1, 1e-6)] {
        let pick = |run: &(Vec<f64>, Vec<f64>, Vec<f64>)| if which == 0 { run.1.clone() } else { run.2.clone() };
        let (first, second) = (pick(&halves[0]), pick(&halves[1]));
        for ((whole, a), b) in pick(&whole).iter().zip(first).zip(second) {
            assert!((whole - a - b).abs() < tolerance, "{whole} and {}", a + b);
        }
    }
}

#[test]
fn a_norm_of_a_sum_is_the_norm_after_the_sum() {
    let settings = Norm { centre: true, epsilon: 1e-2, scale: 0.7, gain_offset: 0.0, round_before_gain: false };
    for shape in ODD {
        for count in [1, 2, 3, 4, 5] {
            let mut shapes = vec![shape; count];
            shapes.extend([[1, 1, shape[2]]; 2]);
            let terms = |t: &[Cube]| -> Vec<(f64, Cube)> {
                t[..count].iter().enumerate().map(|(at, x)| (1.0 - 0.6 * at as f64, x.clone())).collect()
            };
            let vector = |x: &Cube| Some(x.clone().reshape([x.dims()[2]]));
            for settings in [settings, Norm { centre: false, gain_offset: 1.0, ..settings }] {
                let kernel = |t: &[Cube]| add_norm(terms(t), vector(&t[count]), vector(&t[count + 1]), settings);
                check_gradient(&shapes, kernel);
                check_composition(&shapes, kernel, |t| {
                    norm::composed(weighted_sum(terms(t)), vector(&t[count]), vector(&t[count + 1]), settings)
                });
            }
        }
    }
    // A term that goes on beside the norm, and a term that is there twice.
    check_gradient(&[[2, 9, 5], [2, 9, 5]], |t| {
        let sum = weighted_sum(vec![(1.0, t[0].clone()), (0.5, t[1].clone())]);
        let normal = add_norm(vec![(1.0, sum.clone())], None, None, settings);
        add_norm(vec![(1.0, sum.clone()), (-0.4, normal.clone()), (0.3, sum), (1.0, normal)], None, None, settings)
    });
}

#[test]
fn a_linear_map_with_its_non_linearity_inside() {
    for (rows, hidden, output) in [(1, 1, 1), (5, 65, 3), (70, 3, 65)] {
        let shapes = [[1, rows, hidden], [1, rows, hidden], [1, hidden, output], [1, 1, output]];
        let matrix = |x: &Cube| x.clone().reshape([hidden, output]);
        let vector = |x: &Cube| Some(x.clone().reshape([output]));
        for function in [Activation::Gelu, Activation::Silu] {
            check_gradient(&shapes, |t| {
                activated_linear(t[0].clone(), Some(t[1].clone()), function, matrix(&t[2]), vector(&t[3]))
            });
            check_composition(
                &[shapes[0], shapes[2], shapes[3]],
                |t| activated_linear(t[0].clone(), None, function, matrix(&t[1]), vector(&t[2])),
                |t| linear(activation(t[0].clone(), function), matrix(&t[1]), vector(&t[2]), false),
            );
        }
    }
}

#[test]
fn sums_embeddings_and_dropout() {
    for count in [1, 2, 3, 4, 5, 9] {
        let shapes = vec![[2, 3, 5]; count];
        check_gradient(&shapes, |t| {
            weighted_sum(t.iter().enumerate().map(|(at, x)| (0.5 - 0.7 * at as f64, x.clone())).collect())
        });
    }
    let tokens: Arc<[u32]> = [3, 0, 3, 1, 3, 2].into();
    check_gradient(&[[1, 4, 5]], |t| embedding(t[0].clone().reshape([4, 5]), tokens.clone(), [2, 3]));
    check_gradient(&[[2, 3, 5]], |t| dropout(t[0].clone(), 0.4, 17, 0));
    let ones = cube(&vec![1.0; 100_000], [1, 100, 1000], DType::F32);
    let (a, b) = (to_f64(&dropout(ones.clone(), 0.25, 1, 0)), to_f64(&dropout(ones.clone(), 0.25, 1, 0)));
    assert_eq!(a, b, "a seed is a mask");
    assert_ne!(a, to_f64(&dropout(ones.clone(), 0.25, 2, 0)));
    let second_half = ones.slice_dim(1, 50..100);
    assert_eq!(a[50_000..], to_f64(&dropout(second_half, 0.25, 1, 50_000)), "a part is masked as in the whole");
    let mean = a.iter().sum::<f64>() / a.len() as f64;
    assert!((mean - 1.0).abs() < 0.01, "the mean stays: {mean}");
}

#[test]
fn one_value_used_twice_adds_its_gradients() {
    check_gradient(&[[2, 3, 4]], |t| {
        weighted_sum(vec![(1.0, t[0].clone()), (2.0, activation(t[0].clone(), Activation::Gelu)), (0.5, t[0].clone())])
    });
}

#[test]
fn a_view_that_is_not_contiguous_is_read_in_its_own_order() {
    let x = cube(&wave(24, 0.3), [2, 3, 4], DType::F32);
    let turned = x.clone().swap_dims(1, 2);
    let copied = cube(&to_f64(&turned.clone()), [2, 4, 3], DType::F32);
    let a = to_f64(&activation(turned, Activation::Gelu));
    assert_eq!(a, to_f64(&activation(copied, Activation::Gelu)));
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let x = cube(&wave(2 * 150 * 96, 0.01), [2, 150, 96], DType::F32);
            let w = cube(&wave(96 * 96, 0.003), [1, 96, 96], DType::F32);
            let gain =
                Tensor::<1>::from_data(TensorData::new(wave(96, 0.2), [96]), (&device(), DType::F32)).require_grad();
            let settings = Norm { centre: true, epsilon: 1e-5, scale: 1.0, gain_offset: 0.0, round_before_gain: false };
            let y =
                norm(linear(x.clone(), w.clone().reshape([96, 96]), None, false), Some(gain.clone()), None, settings);
            let y = attention(y.clone(), y.clone(), y, [None, None, None], &plain_attention(4, 4, true));
            let gradients = (y.clone() * x.clone().detach()).sum().backward();
            [
                to_f64(&y),
                to_f64(&x.grad(&gradients).unwrap()),
                to_f64(&w.grad(&gradients).unwrap()),
                to_f64(&gain.grad(&gradients).unwrap()),
            ]
        })
    };
    let one = run(1);
    for threads in [2, 3, 5] {
        assert_eq!(one, run(threads), "{threads} threads");
    }
}

#[test]
fn adamw_is_the_published_update_and_decays_only_as_told() {
    let vector = |values: &[f64]| {
        Tensor::<1>::from_data(TensorData::new(values.to_vec(), [values.len()]), (&Device::flex(), DType::F64))
    };
    let step = AdamwStep {
        learning_rate: 0.1,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.2,
        number: 1,
        gradient_scale: 0.5,
    };
    let [mut w, mut m, mut v] = [&[1.0, -2.0], &[0.0, 0.0], &[0.0, 0.0]].map(|values: &[f64; 2]| vector(values));
    let (mut ew, mut em, mut ev) = ([1.0, -2.0], [0.0, 0.0], [0.0, 0.0]);
    for number in 1..=5 {
        let gradient = [0.3 * f64::from(number), -0.7];
        let parameter = AdamwParameter { weight: w, gradient: vector(&gradient), first: m, second: v, decays: true };
        // A second parameter, which is not decayed, stands beside it.
        let other = AdamwParameter { decays: false, ..parameter.clone() };
        let mut both = adamw(vec![parameter, other], AdamwStep { number: number as u64, ..step });
        let other = both.pop().unwrap();
        AdamwParameter { weight: w, first: m, second: v, .. } = both.pop().unwrap();
        if number == 1 {
            let difference = to_f64(&other.weight)[0] - to_f64(&w)[0];
            assert!((difference - 0.1 * 0.2).abs() < 1e-12, "the decay alone differs: {difference}");
        }
        for i in 0..2 {
            let g: f64 = 0.5 * gradient[i];
            em[i] = 0.9 * em[i] + 0.1 * g;
            ev[i] = 0.95 * ev[i] + 0.05 * g * g;
            let (mh, vh) = (em[i] / (1.0 - 0.9f64.powi(number)), ev[i] / (1.0 - 0.95f64.powi(number)));
            ew[i] = ew[i] * (1.0 - 0.1 * 0.2) - 0.1 * mh / (f64::sqrt(vh) + 1e-8);
        }
    }
    for (found, expected) in to_f64(&w).iter().zip(ew) {
        assert!((found - expected).abs() < 1e-12, "{found} and {expected}");
    }
    // B03: with a tiny gradient the epsilon shows.
    let tiny = AdamwStep { learning_rate: 1.0, weight_decay: 0.0, gradient_scale: 1.0, ..step };
    let [weight, gradient, first, second] = [0.0, 1e-6, 0.0, 0.0].map(|value| vector(&[value]));
    let moved = adamw(vec![AdamwParameter { weight, gradient, first, second, decays: true }], tiny);
    assert!((to_f64(&moved[0].weight)[0] + 0.990).abs() < 1e-3);
}

#[test]
fn statistics_of_streams() {
    let alike = cube(&[1.0, 2.0, 2.0, 4.0, -3.0, -6.0], [1, 3, 2], DType::F32);
    // Pairs: (1, 2) same direction, (1, 3) and (2, 3) opposite.
    assert!((mean_token_cosine(&alike) - (1.0 - 1.0 - 1.0) / 3.0).abs() < 1e-6);
    assert!(mean_token_cosine(&cube(&[1.0, 2.0], [1, 1, 2], DType::F32)).is_nan());
    let huge = cube(&[1e30, 1e30, 2e30, 2e30], [1, 2, 2], DType::F32);
    assert!((mean_token_cosine(&huge) - 1.0).abs() < 1e-6);
    assert!((rms(&cube(&[3.0, 4.0], [1, 1, 2], DType::F32)) - 12.5f64.sqrt()).abs() < 1e-6);
    assert!(rms(&cube(&[3.0, f64::NAN], [1, 1, 2], DType::F32)).is_nan());
}

#[test]
fn a_tap_records_the_whole_gradient_of_its_value() {
    let x = cube(&wave(12, 0.4), [1, 3, 4], DType::F64);
    let into = GradientTap::new();
    let tapped = tap(activation(x, Activation::Silu), &into);
    let y = tapped.clone() * 2.0 + tapped * 3.0;
    let _ = y.sum().backward();
    let gradient = to_f64(&into.take().expect("the backward pass came through"));
    assert!(gradient.iter().all(|g| (g - 5.0).abs() < 1e-12));
    assert!(into.take().is_none());
}
