//! The same function in another form.

use std::sync::Arc;

use addnorm_nn::*;
use addnorm_scheme::{NormKind, Scheme, lookup};

fn configs() -> Vec<ModelConfig> {
    let base = ModelConfig {
        blocks: 3,
        width: 12,
        heads: 3,
        ffn_width: 20,
        context: 6,
        vocabulary: 11,
        init_std: 0.3,
        ..ModelConfig::default()
    };
    vec![
        base.clone(),
        ModelConfig { tied: true, kv_heads: 1, activation: ActivationKind::Swiglu, ..base.clone() },
        ModelConfig { bias: false, positions: Positions::Rope, ..base.clone() },
        ModelConfig { norm: NormKind::LayernormNoBias, bias: false, logit_bias: true, ..base.clone() },
        ModelConfig { stack: StackKind::Encoder, ..base.clone() },
        ModelConfig { positions: Positions::Sinusoidal, ..base.clone() },
        ModelConfig { stack: StackKind::Vision, image: 6, patch: 2, classes: 5, ..base },
    ]
}

fn inputs(config: &ModelConfig) -> (Inputs, Arc<[u32]>) {
    if config.stack == StackKind::Vision {
        let shape = [2, config.patches(), config.patch_width()];
        let values = (0..shape.iter().product()).map(|at| (at as f32 * 0.37).sin()).collect();
        return (Inputs::Patches { values, shape }, [1, 4].into());
    }
    let numbers = (0..12).map(|at| (at * 7 % 11) as u32).collect();
    (Inputs::Text(Tokens { numbers, shape: [2, 6] }), (0..12).map(|at| (at * 5 % 11) as u32).collect())
}

/// Weights as if trained: no gain is one, no bias is zero.
fn trained(model: &Model) -> Weights {
    let device = device("flex").unwrap();
    let mut weights = model.initialise(5, &device, DType::F64);
    for (at, (weight, info)) in weights.0.iter_mut().zip(model.parameters()).enumerate() {
        if info.shape.len() == 1 {
            let moved = weight
                .to_values()
                .iter()
                .enumerate()
                .map(|(i, w)| w + 0.4 * ((i * 7 + at * 13) as f64).sin())
                .collect();
            *weight = Weight::from_values(moved, &info.shape, &device, DType::F64);
        }
    }
    weights
}

fn logits(model: &Model, weights: &Weights, inputs: &Inputs) -> Vec<f64> {
    statistics::to_f64(&model.logits(weights, inputs, ForwardOptions::default(), &mut NoObserver))
}

#[test]
fn pre_ln_becomes_pre_rmsnorm_and_pre_crmsnorm_exactly() {
    for config in configs() {
        let source = Model::new(&lookup("pre").unwrap(), &config).unwrap();
        let weights = trained(&source);
        let (inputs, targets) = inputs(&config);
        let before = logits(&source, &weights, &inputs);
        for name in ["pre-rmsnorm", "pre-crmsnorm"] {
            let (target, converted) = source.convert(&weights, &lookup(name).unwrap()).unwrap();
            let after = logits(&target, &converted, &inputs);
            for (before, after) in before.iter().zip(&after) {
                assert!((before - after).abs() < 1e-10, "{name}: {before} and {after}");
            }
            // Trainable as it stands: a step down the gradient lowers the loss.
            let options = ForwardOptions::default();
            let found = target
                .loss_and_gradients(&converted, &inputs, targets.clone(), 1.0, options, &mut NoObserver)
                .expect("a gradient reaches every parameter");
            let device = device("flex").unwrap();
            let step = |(weight, (gradient, info)): (&Weight, (&Weight, &ParameterInfo))| {
                let values = weight.to_values().iter().zip(gradient.to_values()).map(|(w, g)| w - 1e-5 * g).collect();
                Weight::from_values(values, &info.shape, &device, DType::F64)
            };
            let stepped =
                Weights(converted.0.iter().zip(found.gradients.iter().zip(target.parameters())).map(step).collect());
            assert!(target.total_loss(&stepped, &inputs, targets.clone(), options) < found.total);
        }
    }
}

#[test]
fn what_would_not_be_exact_is_refused_with_the_reason() {
    let why = |from: &str, to: &str, change: &dyn Fn(&mut ModelConfig)| {
        let mut config = configs().swap_remove(0);
        change(&mut config);
        let source = Model::new(&lookup(from).unwrap(), &config).unwrap();
        source.convert(&trained(&source), &lookup(to).unwrap()).unwrap_err().to_string()
    };
    let nothing = |_: &mut ModelConfig| {};
    assert!(why("post", "pre-rmsnorm", &nothing).contains("adds the result of a norm, which has a mean"));
    assert!(why("layerscale", "pre-rmsnorm", &nothing).contains("scales a stream by a vector"));
    assert!(why("highway", "pre-rmsnorm", &nothing).contains("has a gate"));
    assert!(why("lns", "pre-crmsnorm", &nothing).contains("the equations of 'pre-crmsnorm' are not those of 'lns'"));
    assert!(why("pre", "pre", &nothing).contains("keeps no stream free of a mean"));
    assert!(why("sub-ln", "pre-rmsnorm", &nothing).contains("norms that read no stream"));
    assert!(why("pre", "pre-rmsnorm", &|config| config.norm = NormKind::Rmsnorm).contains("which take no mean off"));
}

#[test]
fn another_scheme_of_the_kind_converts_to_its_own_form() {
    let config = configs().swap_remove(0);
    let lns = lookup("lns").unwrap();
    let source = Model::new(&lns, &config).unwrap();
    let weights = trained(&source);
    let (inputs, _) = inputs(&config);
    for insisting in ["norm: crmsnorm\n", "norm: rmsnorm\ncentre: wo w2 embedding positions\n"] {
        let target = Scheme::parse("lns-form", &format!("{insisting}{}", lns.source)).unwrap();
        let (target, converted) = source.convert(&weights, &target).unwrap();
        let (before, after) = (logits(&source, &weights, &inputs), logits(&target, &converted, &inputs));
        assert!(before.iter().zip(&after).all(|(a, b)| (a - b).abs() < 1e-10));
    }
}
