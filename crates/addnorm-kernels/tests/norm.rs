//! Norm arithmetic: cases N01 to N11 of the public reports.

use addnorm_kernels::norm::composed;
use addnorm_kernels::statistics::to_f64;
use addnorm_kernels::{Norm, norm};
use burn::tensor::{DType, Device, Tensor, TensorData};

fn layer(epsilon: f64) -> Norm {
    Norm { centre: true, epsilon, scale: 1.0, gain_offset: 0.0, round_before_gain: false }
}

fn rms(epsilon: f64) -> Norm {
    Norm { centre: false, ..layer(epsilon) }
}

fn tensor(rows: &[f64], width: usize, dtype: DType) -> Tensor<3> {
    let data = TensorData::new(rows.to_vec(), [1, rows.len() / width, width]);
    Tensor::from_data(data, (&Device::flex(), dtype))
}

/// Both bodies: the kernel, and the composition that other devices use.
fn both(rows: &[f64], width: usize, settings: Norm, dtype: DType) -> [Vec<f64>; 2] {
    let x = tensor(rows, width, dtype);
    [to_f64(&norm(x.clone(), None, None, settings)), to_f64(&composed(x, None, None, settings))]
}

fn close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= tolerance, "{found} is not {expected}");
    }
}

#[test]
fn n01_a_large_common_offset_costs_no_accuracy() {
    for found in both(&[40000.0, 40001.0, 40002.0, 40003.0], 4, layer(1e-5), DType::F32) {
        close(&found, &[-1.3416, -0.4472, 0.4472, 1.3416], 1e-4);
    }
    for found in both(&[9999.0, 10001.0, 9999.0, 10001.0], 4, layer(1e-5), DType::F32) {
        close(&found, &[-1.0, 1.0, -1.0, 1.0], 1e-4);
    }
}

#[test]
fn n02_accuracy_does_not_fall_as_the_mean_grows() {
    for mean in [0.0, 100.0, 1000.0, 10000.0] {
        // What counts is the row as f32 holds it.
        let row: Vec<f64> = (0..16).map(|i| f64::from((mean + f64::from(i) * 0.001) as f32)).collect();
        let centre = row.iter().sum::<f64>() / 16.0;
        let variance = row.iter().map(|x| (x - centre) * (x - centre)).sum::<f64>() / 16.0;
        let exact: Vec<f64> = row.iter().map(|x| (x - centre) / (variance + 1e-5).sqrt()).collect();
        let [kernel, composition] = both(&row, 16, layer(1e-5), DType::F32);
        close(&kernel, &exact, 1e-6);
        close(&composition, &exact, 1e-5);
    }
}

#[test]
fn n04_large_finite_inputs_are_not_flushed_to_zero() {
    for found in both(&[1e20, -1e20, 1e20, -1e20], 4, rms(1e-5), DType::F32) {
        close(&found, &[1.0, -1.0, 1.0, -1.0], 1e-5);
    }
    for found in both(&[1e20, 2e20, 3e20, 4e20], 4, layer(1e-5), DType::F32) {
        close(&found, &[-1.3416, -0.4472, 0.4472, 1.3416], 1e-4);
    }
}

#[test]
fn n05_half_precision_statistics_are_wider_than_the_storage() {
    for dtype in [DType::F16, DType::BF16] {
        let gain = Tensor::<1>::from_data(TensorData::new(vec![1f64; 4], [4]), (&Device::flex(), dtype));
        let y = norm(tensor(&[300.0; 4], 4, dtype), Some(gain), None, rms(1e-6));
        assert_eq!(y.dtype(), dtype);
        close(&to_f64(&y.cast(DType::F32)), &[1.0; 4], 1e-2);
        let y = norm(tensor(&[20.0; 4096], 4096, dtype), None, None, rms(1e-6));
        close(&to_f64(&y.cast(DType::F32)), &[1.0; 4096], 1e-2);
    }
}

#[test]
fn n06_a_row_of_zeros_gives_the_bias_and_finite_gradients() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for epsilon in [1e-12, 1e-8, 1e-6] {
            for settings in [layer(epsilon), rms(epsilon)] {
                let x =
                    Tensor::<3>::from_data(TensorData::new(vec![0f64; 6], [1, 2, 3]), (&device, dtype)).require_grad();
                let vector = |values: [f64; 3]| {
                    Tensor::<1>::from_data(TensorData::new(values.to_vec(), [3]), (&device, dtype)).require_grad()
                };
                let (gain, bias) = (vector([1.5, 0.5, 2.0]), vector([0.25, -0.5, 1.0]));
                let y = norm(x.clone(), Some(gain.clone()), Some(bias.clone()), settings);
                close(&to_f64(&y.clone().cast(DType::F32)), &[0.25, -0.5, 1.0, 0.25, -0.5, 1.0], 0.0);
                let gradients = y.sum().backward();
                for gradient in [
                    x.grad(&gradients).map(|gradient| to_f64(&gradient.cast(DType::F32))),
                    gain.grad(&gradients).map(|gradient| to_f64(&gradient.cast(DType::F32))),
                    bias.grad(&gradients).map(|gradient| to_f64(&gradient.cast(DType::F32))),
                ] {
                    // In f16 a gradient by x of 1/sqrt(1e-12) is beyond the type's range; not so in the others.
                    let gradient = gradient.expect("a gradient arrives");
                    let beyond = dtype == DType::F16 && epsilon < 1e-7;
                    assert!(
                        beyond || gradient.iter().all(|value| value.is_finite()),
                        "{dtype:?} {epsilon} {gradient:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn n07_epsilon_is_inside_the_root() {
    for settings in [layer(1e-5), rms(1e-5)] {
        for found in both(&[0.001, -0.001], 2, settings, DType::F32) {
            close(&found, &[0.3015, -0.3015], 1e-4);
        }
    }
}

#[test]
fn n08_one_is_added_to_a_stored_gain_after_widening() {
    let gemma = Norm { gain_offset: 1.0, ..rms(0.0) };
    for (stored, effective) in [(15.8125, 16.8125), (0.0033, 1.0033)] {
        let gain = Tensor::<1>::from_data(TensorData::new(vec![stored; 2], [2]), (&Device::flex(), DType::BF16));
        let x = Tensor::<3>::from_data(TensorData::new(vec![1.0, -1.0], [1, 1, 2]), (&Device::flex(), DType::F32));
        let y = norm(x, Some(gain.cast(DType::F32)), None, gemma);
        close(&to_f64(&y), &[effective, -effective], 2e-5);
    }
}

#[test]
fn n09_the_order_of_rounding_and_gain_is_a_choice() {
    let row = [0.31, -1.27, 2.03, 0.77, -0.45, 1.91, -2.21, 0.13];
    let run = |round_before_gain, dtype| {
        let gain: Vec<f64> = (0..8).map(|i| 1.3 + 0.0123 * f64::from(i)).collect();
        let gain = Tensor::<1>::from_data(TensorData::new(gain, [8]), (&Device::flex(), dtype));
        let settings = Norm { round_before_gain, ..rms(1e-5) };
        to_f64(&norm(tensor(&row, 8, dtype), Some(gain), None, settings).cast(DType::F32))
    };
    assert_ne!(run(true, DType::BF16), run(false, DType::BF16));
    close(&run(true, DType::F32), &run(false, DType::F32), 1e-6);
}

#[test]
fn n10_the_epsilon_that_is_given_is_the_one_that_is_used() {
    for (epsilon, expected) in [(1e-5, 0.3015), (1.19e-7, 0.9453)] {
        for found in both(&[1e-3; 4], 4, rms(epsilon), DType::F32) {
            close(&found, &[expected; 4], 1e-3);
        }
    }
}

/// Central differences of a weighted sum of the output: the gains are not one, the upstream gradient is not
/// uniform, and the input joins the sum by a residual path.
#[test]
fn n11_the_backward_pass_is_the_derivative() {
    let device = Device::flex().autodiff();
    for (rows, width) in [(1, 1), (2, 3), (5, 65), (70, 4)] {
        for settings in [
            layer(1e-5),
            rms(1e-5),
            Norm { scale: 0.37, ..layer(1e-2) },
            Norm { gain_offset: 1.0, scale: -2.0, ..rms(1e-3) },
        ] {
            let wave = |count: usize, a: f64| (0..count).map(|i| (i as f64 * a + a).sin()).collect::<Vec<f64>>();
            let x = wave(rows * width, 0.7).iter().map(|x| 3.0 * x + 1.0).collect::<Vec<_>>();
            let gain: Vec<f64> = wave(width, 1.3).iter().map(|x| 1.0 + 0.5 * x).collect();
            let (bias, upstream) = (wave(width, 2.1), wave(rows * width, 0.9));
            let run = |x: &[f64], gain: &[f64], bias: &[f64]| {
                let cube = |values: &[f64]| {
                    Tensor::<3>::from_data(TensorData::new(values.to_vec(), [1, rows, width]), (&device, DType::F64))
                };
                let vector = |values: &[f64]| {
                    Tensor::<1>::from_data(TensorData::new(values.to_vec(), [width]), (&device, DType::F64))
                        .require_grad()
                };
                let (x, gain, bias) = (cube(x).require_grad(), vector(gain), vector(bias));
                let y = x.clone() + norm(x.clone(), Some(gain.clone()), Some(bias.clone()), settings);
                let total = (y * cube(&upstream)).sum();
                (total, x, gain, bias)
            };
            let (total, tx, tgain, tbias) = run(&x, &gain, &bias);
            let gradients = total.backward();
            let found = [
                to_f64(&tx.grad(&gradients).unwrap()),
                to_f64(&tgain.grad(&gradients).unwrap()),
                to_f64(&tbias.grad(&gradients).unwrap()),
            ];
            let h = 1e-5;
            let inputs = [&x, &gain, &bias];
            for (which, input) in inputs.iter().enumerate() {
                for i in 0..input.len() {
                    let value = |delta: f64| {
                        let mut moved = inputs.map(Clone::clone);
                        moved[which][i] += delta;
                        to_f64(&run(&moved[0], &moved[1], &moved[2]).0)[0]
                    };
                    let expected = (value(h) - value(-h)) / (2.0 * h);
                    let error = (found[which][i] - expected).abs() / expected.abs().max(1.0);
                    assert!(
                        error < 1e-6,
                        "{rows}x{width} input {which} element {i}: {} and {expected}",
                        found[which][i]
                    );
                }
            }
        }
    }
}

#[test]
fn a_number_that_is_not_one_comes_through() {
    for value in [f64::NAN, f64::INFINITY] {
        for found in both(&[1.0, value, 3.0, 4.0], 4, layer(1e-5), DType::F32) {
            assert!(found.iter().any(|y| y.is_nan()), "{found:?}");
        }
    }
}
