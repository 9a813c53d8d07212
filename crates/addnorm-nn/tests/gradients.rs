//! Every scheme's backward pass against central differences, in f64.

use std::sync::Arc;

use addnorm_nn::*;
use addnorm_scheme::{NormKind, Scheme, library};

/// Values under a stop-gradient are constants to the derivative. The first pass writes them down, the passes
/// with moved weights read them back.
#[derive(Default)]
struct FrozenStops {
    values: Vec<Tensor<3>>,
    next: usize,
    replay: bool,
}

impl Observer for FrozenStops {
    fn stopped(&mut self, x: Tensor<3>) -> Tensor<3> {
        if self.replay {
            self.next += 1;
            return self.values[self.next - 1].clone();
        }
        self.values.push(if x.is_autodiff() { x.clone().inner() } else { x.clone() });
        x
    }
}

fn noise(count: usize, seed: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 37 + seed * 101 + 11) as f64 * 0.731).sin()).collect()
}

fn configs() -> Vec<ModelConfig> {
    let base = ModelConfig {
        blocks: 3,
        width: 8,
        heads: 2,
        ffn_width: 12,
        context: 5,
        vocabulary: 11,
        init_std: 0.3,
        ..ModelConfig::default()
    };
    vec![
        base.clone(),
        ModelConfig {
            kv_heads: 1,
            heads: 4,
            positions: Positions::Rope,
            activation: ActivationKind::Swiglu,
            norm: NormKind::Rmsnorm,
            bias: false,
            tied: true,
            ..base.clone()
        },
        ModelConfig {
            positions: Positions::Sinusoidal,
            activation: ActivationKind::Geglu,
            norm: NormKind::RmsnormOnePlus,
            dropout: 0.2,
            ..base
        },
    ]
}

fn check(scheme: &Scheme, config: &ModelConfig, seed: usize) {
    let device = device("flex").unwrap();
    let model = Model::new(scheme, config).unwrap();
    let mut weights = model.initialise(7, &device, DType::F64);
    // Gains are not all one, biases and gates not all zero.
    for (at, (weight, info)) in weights.0.iter_mut().zip(model.parameters()).enumerate() {
        if info.shape.len() == 1 {
            let moved =
                weight.to_values().iter().zip(noise(info.elements(), at + seed)).map(|(w, n)| w + 0.3 * n).collect();
            *weight = Weight::from_values(moved, &info.shape, &device, DType::F64);
        }
    }
    let tokens = Tokens { numbers: [1, 4, 2, 9, 4, 0, 10, 3, 3, 7].into(), shape: [2, 5] };
    let targets: Arc<[u32]> = [4, 2, 9, 4, 8, 10, 3, 3, 7, 5].into();
    let options = ForwardOptions { dropout_seed: Some(3), step: 2, ..ForwardOptions::default() };
    let mut stops = FrozenStops::default();
    let result = model
        .loss_and_gradients(&weights, &tokens, targets.clone(), 1.0, options, &mut stops)
        .expect("a gradient reaches every parameter");
    stops.replay = true;
    for (at, info) in model.parameters().iter().enumerate() {
        let direction = noise(info.elements(), 3 * at + 1);
        let original = weights.0[at].to_values();
        let mut loss = |step: f64| {
            let moved = original.iter().zip(&direction).map(|(w, d)| w + step * d).collect();
            weights.0[at] = Weight::from_values(moved, &info.shape, &device, DType::F64);
            stops.next = 0;
            let losses = model.losses(&weights, &tokens, targets.clone(), options, &mut stops);
            statistics::to_f64(&losses).iter().sum::<f64>()
        };
        // Two step sizes extrapolated, so the error is of fourth order; small beside the weights themselves,
        // since a norm of small values bends sharply.
        let rms = (original.iter().map(|w| w * w).sum::<f64>() / original.len() as f64).sqrt();
        let h = 1e-3 * rms.clamp(1e-2, 0.1);
        let coarse = (loss(2.0 * h) - loss(-2.0 * h)) / (4.0 * h);
        let fine = (loss(h) - loss(-h)) / (2.0 * h);
        let expected = (4.0 * fine - coarse) / 3.0;
        weights.0[at] = Weight::from_values(original, &info.shape, &device, DType::F64);
        let found: f64 = result.gradients[at].to_values().iter().zip(&direction).map(|(g, d)| g * d).sum();
        let error = (found - expected).abs() / expected.abs().max(1e-2);
        assert!(error < 1e-6, "{}: {}: {found} and {expected}, error {error:.1e}", scheme.name, info.name);
    }
}

#[test]
fn every_scheme_has_the_gradient_of_its_loss() {
    for (name, text) in library() {
        let scheme = Scheme::parse(name, text).unwrap();
        for (seed, config) in configs().iter().enumerate() {
            check(&scheme, config, seed);
        }
    }
}

#[test]
fn every_word_of_the_language_has_its_gradient() {
    for text in [
        "learn a[d] = 0.5 per sublayer
learn b = 0.3
each f:
    x = (1 - sigmoid(b))*x + a*f(norm(x))
head: norm(x)",
        "learn a = 1
each f:
    x = x + exp(a)/L*f(norm(x)) - tanh(a)*stop(x)/4
head: norm(x)",
        "learn a = 2
each f:
    x = norm(sqrt(a)*x + f(x)/ln(a + 1))
head: x",
        "learn a[d] = 2
each f:
    x = x + f(a*norm(x))
head: norm(x)",
        "learn a[d] = 2
each f:
    x = x + f(norm(x)/a) + a^2*x/9
head: norm(x)",
        "let a = min((t + 1)/(4*l), 1)
each f:
    x = x + a*f(norm(x))
head: norm(x)",
        "streams x, y, z
embed:
    y = 2*x
    z = norm(x)
each f:
    o = f(norm(x) + y - z)
    x = x + o
    y = norm(y - o/2)
    z = z + 0.3*y
head: norm(x + y) + z",
        "attn: norm q k full width, inner norm, scaled heads
ffn: inner norm
block:
    y = norm(x + attn(x))
    x = norm(x + ffn(y))
head: x",
    ] {
        let scheme = Scheme::parse("inline", text).unwrap_or_else(|error| panic!("{text}\n{error}"));
        check(&scheme, &configs()[0], 5);
    }
}
