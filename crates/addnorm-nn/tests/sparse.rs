//! Sparse norms and sparse attention in whole models.

use std::sync::Arc;

use addnorm_nn::*;
use addnorm_scheme::{NormKind, lookup};

fn config() -> ModelConfig {
    ModelConfig {
        blocks: 3,
        width: 32,
        heads: 4,
        context: 48,
        vocabulary: 20,
        init_std: 0.2,
        positions: Positions::Rope,
        ..ModelConfig::default()
    }
}

fn tokens() -> Tokens {
    Tokens { numbers: (0..4 * 48).map(|at| (at * at % 19) as u32).collect(), shape: [4, 48] }
}

fn logits(model: &Model, weights: &Weights) -> Vec<f64> {
    statistics::to_f64(&model.logits(weights, tokens(), ForwardOptions::default(), &mut NoObserver))
}

fn off(a: &[f64], b: &[f64]) -> f64 {
    let wrong: f64 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (wrong / a.iter().map(|a| a * a).sum::<f64>()).sqrt()
}

#[test]
fn at_zero_both_are_the_dense_model_to_the_bit() {
    for norm in [NormKind::Layernorm, NormKind::Rmsnorm] {
        let model = Model::new(&lookup("pre").unwrap(), &ModelConfig { norm, ..config() }).unwrap();
        let weights = model.initialise(1, &device("flex").unwrap(), DType::F32);
        let sparse = model.with_sparse_norms(&weights, tokens(), 0.0, 0);
        assert_eq!(logits(&model, &weights), logits(&sparse, &weights));
    }
}

/// What is counted is counted for the whole process: tests that run sparse norms do so one at a time.
static COUNTS: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn error_and_saving_grow_with_the_knob() {
    let _alone = COUNTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for norm in [NormKind::Layernorm, NormKind::LayernormNoBias, NormKind::Rmsnorm, NormKind::RmsnormOnePlus] {
        let model = Model::new(&lookup("pre").unwrap(), &ModelConfig { norm, ..config() }).unwrap();
        let weights = model.initialise(1, &device("flex").unwrap(), DType::F32);
        let dense = logits(&model, &weights);
        let mut before = (0.0, 0.99);
        for error in [1e-6, 0.05, 0.3] {
            let sparse = model.with_sparse_norms(&weights, tokens(), error, 0);
            take_norm_work();
            let found = off(&dense, &logits(&sparse, &weights));
            let work = take_norm_work();
            let saved = work.dense_operations as f64 / work.operations as f64;
            assert!(found >= before.0 && saved >= before.1, "{norm:?} at {error}: {found} {saved} after {before:?}");
            // Two norms a block and the last one, each off by so much at most.
            assert!(found < 4.0 * error + 1e-5, "{norm:?} at {error}: off by {found}");
            before = (found, saved);
        }
        assert!(before.1 > 1.3, "{norm:?}: {before:?}");
    }
}

#[test]
fn sparse_models_train() {
    let _alone = COUNTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let config = ModelConfig { sparse_softmax: 0.02, ..config() };
    let model = Model::new(&lookup("pre").unwrap(), &config).unwrap();
    let mut weights = model.initialise(1, &device("flex").unwrap(), DType::F32);
    // So coarse that every dimension could do without its row's statistics: gains learn all the same.
    let coarse = model.with_sparse_norms(&weights, tokens(), 0.9, 0);
    let any: Arc<[u32]> = vec![0; 4 * 48].into();
    let options = ForwardOptions::default();
    assert!(coarse.loss_and_gradients(&weights, tokens(), any, 1.0, options, &mut NoObserver).is_ok());
    let model = model.with_sparse_norms(&weights, tokens(), 0.1, 0);
    let targets: Arc<[u32]> = (0..4 * 48).map(|at| ((at + 1) * (at + 1) % 19) as u32).collect();
    let mut losses = Vec::new();
    for _ in 0..12 {
        let options = ForwardOptions::default();
        let found = model
            .loss_and_gradients(&weights, tokens(), targets.clone(), 1.0 / 192.0, options, &mut NoObserver)
            .expect("a gradient reaches every parameter");
        losses.push(found.total);
        for ((weight, gradient), info) in weights.0.iter_mut().zip(&found.gradients).zip(model.parameters()) {
            let values = weight.to_values().iter().zip(gradient.to_values()).map(|(w, g)| w - 0.02 * g).collect();
            *weight = Weight::from_values(values, &info.shape, &device("flex").unwrap(), DType::F32);
        }
    }
    assert!(losses[11] < 0.95 * losses[0], "{losses:?}");
}

/// A pass over a long text keeps no table of all pairs of tokens: 32,768 of them would be 4 GB a head.
#[test]
fn a_long_pass_needs_no_table_of_pairs() {
    for sparse_softmax in [0.0, 0.1] {
        let config = ModelConfig { blocks: 1, width: 8, heads: 1, sparse_softmax, ..config() };
        let model = Model::new(&lookup("pre").unwrap(), &config).unwrap();
        let weights = model.initialise(1, &device("flex").unwrap(), DType::F32);
        let time = 8192;
        let inputs = Tokens { numbers: (0..time).map(|at| (at * 7 % 20) as u32).collect(), shape: [1, time] };
        let before = fresh_bytes();
        let loss = model.total_loss(
            &weights,
            &inputs,
            (0..time).map(|at| (at % 20) as u32).collect(),
            ForwardOptions::default(),
        );
        assert!(loss.is_finite());
        let taken = fresh_bytes() - before;
        assert!(taken < 64 << 20, "{} MB for {time} tokens; the pairs alone would be 256", taken >> 20);
    }
}
