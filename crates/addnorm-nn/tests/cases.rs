//! Public bug reports about schemes, each with the smallest input that shows it.

use std::collections::BTreeMap;

use addnorm_nn::*;
use addnorm_scheme::{Scheme, lookup};

/// A model of one head and width 4 whose attention over one token, times `attention`, and whose feed-forward network
/// are the identity; streams before the output are read through an output matrix that is the identity too.
struct Hand {
    model: Model,
    values: BTreeMap<String, Vec<f64>>,
}

fn identity(rows: usize, columns: usize) -> Vec<f64> {
    (0..rows * columns).map(|at| f64::from(u8::from(at / columns == at % columns))).collect()
}

impl Hand {
    fn new(scheme: &Scheme, blocks: usize, attention: f64, feed_forward: f64) -> Self {
        let config = ModelConfig {
            blocks,
            width: 4,
            heads: 1,
            ffn_width: 8,
            context: 1,
            vocabulary: 4,
            positions: Positions::None,
            activation: ActivationKind::Relu,
            epsilon: 1e-12,
            ..ModelConfig::default()
        };
        let model = Model::new(scheme, &config).unwrap();
        let value = |info: &ParameterInfo| {
            let name = info.name.as_str();
            let scaled = |factor: f64| identity(4, 4).iter().map(|x| x * factor).collect::<Vec<f64>>();
            match name.rsplit('.').next().unwrap() {
                "wv" => scaled(attention),
                "wo" | "head" => scaled(1.0),
                // relu(x) - relu(-x) is x.
                "w1" => (0..32)
                    .map(|at| (at / 8, at % 8))
                    .map(|(i, j)| {
                        if j == i {
                            1.0
                        } else if j == i + 4 {
                            -1.0
                        } else {
                            0.0
                        }
                    })
                    .collect(),
                "w2" => (0..32)
                    .map(|at| (at / 4, at % 4))
                    .map(|(i, j)| {
                        if i == j {
                            feed_forward
                        } else if i == j + 4 {
                            -feed_forward
                        } else {
                            0.0
                        }
                    })
                    .collect(),
                "embedding" => [1.0, 2.0, 3.0, 4.0].repeat(4),
                "gain" => vec![1.0; info.elements()],
                _ => vec![0.0; info.elements()],
            }
        };
        let values = model.parameters().iter().map(|info| (info.name.clone(), value(info))).collect();
        Hand { model, values }
    }

    fn set(mut self, name: &str, values: Vec<f64>) -> Self {
        assert!(self.values.insert(name.to_string(), values).is_some(), "{name}");
        self
    }

    /// What the output matrix reads for the token [1, 2, 3, 4].
    fn result(&self) -> Vec<f64> {
        let device = device("flex").unwrap();
        let weights = self.model.parameters().iter();
        let weights =
            weights.map(|info| Weight::from_values(self.values[&info.name].clone(), &info.shape, &device, DType::F64));
        let weights = Weights(weights.collect());
        let tokens = Tokens { numbers: [0].into(), shape: [1, 1] };
        statistics::to_f64(&self.model.logits(&weights, &tokens, ForwardOptions::default(), &mut NoObserver))
    }
}

fn layer_norm(x: &[f64]) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    x.iter().map(|x| (x - mean) / variance.sqrt()).collect()
}

fn close(found: &[f64], expected: &[f64]) {
    assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?} and {expected:?}");
}

#[test]
fn s02_post_ln_normalises_what_the_next_sublayer_adds_to() {
    let found = Hand::new(&lookup("post").unwrap(), 1, 1.0, 1.0).result();
    let h = layer_norm(&[2.0, 4.0, 6.0, 8.0]);
    close(&found, &layer_norm(&h.iter().map(|h| h + h).collect::<Vec<_>>()));
    let mean = found.iter().sum::<f64>() / 4.0;
    let deviation = (found.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4.0).sqrt();
    assert!(mean.abs() < 1e-9 && (deviation - 1.0).abs() < 1e-9);
}

#[test]
fn s08_hybridnorms_feed_forward_path_starts_at_its_norm_and_the_stars_first_block_at_the_stream() {
    let end = |name: &str, last: &str| {
        let mut scheme = lookup(name).unwrap();
        // Shown as it is, without the norm before the head.
        scheme = Scheme::parse(name, &scheme.source.replace("head: norm(x)", last)).unwrap();
        Hand::new(&scheme, 1, 0.0, 0.0).result()
    };
    close(&end("hybridnorm", "head: x"), &layer_norm(&[1.0, 2.0, 3.0, 4.0]));
    close(&end("hybridnorm-star", "head: x"), &[1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn s11_the_factor_of_layernorm_scaling_is_in_no_file() {
    let config = ModelConfig { blocks: 4, width: 8, heads: 2, context: 4, vocabulary: 5, ..ModelConfig::default() };
    let (lns, device) = (Model::new(&lookup("lns").unwrap(), &config).unwrap(), device("flex").unwrap());
    let factor = |model: &Model| {
        let scales = model.plan().blocks[2].steps.iter().filter_map(|step| match step {
            addnorm_scheme::Step::Mix(mix) if mix.norm.is_some() => mix.scale.fixed(),
            _ => None,
        });
        let scales: Vec<f64> = scales.collect();
        assert_eq!(scales.len(), 2);
        assert!(scales.iter().all(|scale| (scale - 1.0 / 3f64.sqrt()).abs() < 1e-15), "{scales:?}");
    };
    factor(&lns);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tokens = Tokens { numbers: [0, 1, 2, 3].into(), shape: [1, 4] };
    let logits = |weights: &Weights| {
        statistics::to_f64(&lns.logits(weights, &tokens, ForwardOptions::default(), &mut NoObserver))
    };
    for seed in [1, 2] {
        // Drawn anew, written, read: the factor is the block's number's, whatever the file.
        let weights = lns.initialise(seed, &device, DType::F32);
        let before = logits(&weights);
        weights.save(lns.parameters(), BTreeMap::new(), &path).unwrap();
        factor(&lns);
        assert_eq!(before, logits(&Weights::load(lns.parameters(), &path, &device).unwrap()));
    }
    let gains = lns.parameters().iter().filter(|info| info.role == Role::Gain);
    assert!(gains.into_iter().all(|info| info.initial == InitialValue::Constant(1.0)), "no gain holds the factor");
}

#[test]
fn s19_output_norm_adds_an_increment_of_rms_one_whatever_the_sublayer_gives() {
    let scheme = lookup("output-norm").unwrap();
    let bare = scheme.source.replace("head: norm(x)", "head: x").replace("attn: norm q k full width\n", "");
    let scheme = Scheme::parse("output-norm", &bare).unwrap();
    for factor in [1.0, 1000.0] {
        let hand = Hand::new(&scheme, 1, factor, 1.0).set("blocks.1.ffn.output_norm.gain", vec![0.0; 4]);
        let increment: Vec<f64> = hand.result().iter().zip([1.0, 2.0, 3.0, 4.0]).map(|(x, e)| x - e).collect();
        let rms = (increment.iter().map(|x| x * x).sum::<f64>() / 4.0).sqrt();
        assert!((rms - 1.0).abs() < 1e-9, "{factor}: {rms}");
    }
}

#[test]
fn s22_output_projections_of_gpt_2_start_smaller_with_depth() {
    let config = ModelConfig { blocks: 12, width: 768, heads: 12, vocabulary: 65, ..ModelConfig::default() };
    let model = Model::new(&lookup("pre-scaled-init").unwrap(), &config).unwrap();
    let std = |name: &str| match model.parameters().iter().find(|info| info.name == name).unwrap().initial {
        InitialValue::Random(addnorm_scheme::Initializer::Normal { std }) => std,
        other => panic!("{other:?}"),
    };
    for block in [1, 12] {
        assert!((std(&format!("blocks.{block}.attn.wo")) - 0.02 / 24f64.sqrt()).abs() < 1e-12);
        assert!((std(&format!("blocks.{block}.ffn.w2")) - 0.00408).abs() < 1e-5);
        assert_eq!(std(&format!("blocks.{block}.attn.wq")), 0.02);
    }
    assert_eq!((std("embedding"), std("positions")), (0.02, 0.01));
}

#[test]
fn w12_norms_on_queries_are_over_a_head_or_over_all_as_was_said() {
    let config = |qk_norm| ModelConfig {
        qk_norm,
        blocks: 1,
        width: 4,
        heads: 2,
        vocabulary: 3,
        norm: addnorm_scheme::NormKind::Rmsnorm,
        ..ModelConfig::default()
    };
    for (qk_norm, size) in [(QkNorm::PerHead, 2), (QkNorm::FullWidth, 4)] {
        let model = Model::new(&lookup("pre").unwrap(), &config(qk_norm)).unwrap();
        let gain = model.parameters().iter().find(|info| info.name == "blocks.1.attn.query_norm.gain").unwrap();
        assert_eq!(gain.shape, [size]);
    }
    let norm =
        addnorm_kernels::Norm { centre: false, epsilon: 1e-30, scale: 1.0, gain_offset: 0.0, round_before_gain: false };
    let of = |shape: [usize; 3]| {
        let data = burn::tensor::TensorData::new(vec![3.0f64, 4.0, 0.3, 0.4], shape);
        let x = Tensor::from_data(data, (&device("flex").unwrap(), DType::F64));
        statistics::to_f64(&addnorm_kernels::norm(x, None, None, norm))
    };
    let near = |found: Vec<f64>, expected: [f64; 4]| found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(near(of([1, 1, 4]), [1.1940, 1.5921, 0.1194, 0.1592]));
    assert!(near(of([1, 2, 2]), [0.8485, 1.1314, 0.8485, 1.1314]));
}
