//! Fresh models against what the papers derive: expected sizes of the stream within sampling error, and how the
//! first update's effect grows with depth.

use std::sync::Arc;

use addnorm_nn::*;
use addnorm_scheme::{Place, Scheme, Sublayer, lookup};

/// Mean squares of the streams after every block, and of the sublayers' outputs.
#[derive(Default)]
struct Sizes {
    streams: Vec<Vec<f64>>,
    feed_forward: Vec<f64>,
    attention: Vec<f64>,
}

fn mean_square(x: &Tensor<3>) -> f64 {
    statistics::rms(x).powi(2)
}

impl Observer for Sizes {
    fn stream(&mut self, _: Place, stream: usize, x: &mut Tensor<3>) {
        if stream == 0 {
            self.streams.push(Vec::new());
        }
        self.streams.last_mut().unwrap().push(mean_square(x));
    }

    fn sublayer_output(&mut self, _: Place, sublayer: Sublayer, x: &mut Tensor<3>) {
        match sublayer {
            Sublayer::FeedForward => self.feed_forward.push(mean_square(x)),
            _ => self.attention.push(mean_square(x)),
        }
    }
}

/// The setting of the paper's Lemma 2: one head, a feed-forward network as wide as the stream, ReLU, inputs of unit
/// variance, no biases.
fn setting(blocks: usize, width: usize) -> ModelConfig {
    ModelConfig {
        blocks,
        width,
        heads: 1,
        ffn_width: width,
        context: 32,
        vocabulary: 64,
        activation: ActivationKind::Relu,
        positions: Positions::None,
        bias: false,
        ..ModelConfig::default()
    }
}

/// Xavier matrices, and queries and keys at zero as the paper has them, so that attention averages.
const PAPERS_START: &str = "init matrices: xavier_normal\ninit wq wk: normal(0)\ninit embedding: normal(1)\n";

fn sizes(text: &str, config: &ModelConfig, seed: u64) -> Sizes {
    let scheme = Scheme::parse("theory", text).unwrap();
    let model = Model::new(&scheme, config).unwrap();
    let weights = model.initialise(seed, &device("flex").unwrap(), DType::F64);
    let numbers: Arc<[u32]> = (0..4 * 32).map(|at| (at * 37 % 64) as u32).collect();
    let mut sizes = Sizes::default();
    let tokens = Tokens { numbers, shape: [4, 32] };
    model.logits(&weights, &tokens, ForwardOptions::default(), &mut sizes);
    sizes
}

/// Mean and standard error over seeds.
fn over_seeds(seeds: u64, value: impl Fn(u64) -> f64) -> (f64, f64) {
    let values: Vec<f64> = (0..seeds).map(value).collect();
    let mean = values.iter().sum::<f64>() / seeds as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (seeds - 1) as f64;
    (mean, (variance / seeds as f64).sqrt())
}

/// arXiv:2002.04745, Lemma 2, for Pre-LN: (1 + l/2) d <= E|x_l|^2 <= (1 + 3l/2) d, the feed-forward network adding
/// d/2 a block and the attention between 0 and d.
#[test]
fn xiong_lemma_2_pre_ln_grows_by_half_to_three_halves_a_block() {
    let text = format!("{PAPERS_START}each f:\n    x = x + f(norm(x))\nhead: norm(x)\n");
    let config = setting(16, 192);
    let all: Vec<Sizes> = (0..6).map(|seed| sizes(&text, &config, seed)).collect();
    for block in 1..=16 {
        let (mean, error) = over_seeds(6, |seed| all[seed as usize].streams[block][0]);
        let l = block as f64;
        assert!(mean > 1.0 + l / 2.0 - 4.0 * error, "block {block}: {mean} ± {error}");
        assert!(mean < 1.0 + 1.5 * l + 4.0 * error, "block {block}: {mean} ± {error}");
        let (added, error) = over_seeds(6, |seed| all[seed as usize].feed_forward[block - 1]);
        assert!((added - 0.5).abs() < 4.0 * error + 0.01, "block {block}: the FFN adds {added} ± {error}");
        let (attention, _) = over_seeds(6, |seed| all[seed as usize].attention[block - 1]);
        assert!((0.0..1.1).contains(&attention), "block {block}: {attention}");
    }
}

/// The same lemma for Post-LN: what the block's last norm reads has 3d/2, at every block; what leaves it, d.
#[test]
fn xiong_lemma_2_post_ln_does_not_grow() {
    // The sum before the last norm, shown in a second stream that nothing reads.
    let text = format!(
        "streams x, s\n{PAPERS_START}block:\n    y = norm(x + attn(x))\n    s = y + ffn(y)\n    x = norm(s)\nhead: x\n"
    );
    let config = setting(16, 192);
    let all: Vec<Sizes> = (0..6).map(|seed| sizes(&text, &config, seed)).collect();
    for block in 1..=16 {
        let (leaves, _) = over_seeds(6, |seed| all[seed as usize].streams[block][0]);
        assert!((leaves - 1.0).abs() < 1e-3, "block {block}: {leaves}");
        let (mean, error) = over_seeds(6, |seed| all[seed as usize].streams[block][1]);
        assert!((mean - 1.5).abs() < 4.0 * error + 0.02, "block {block}: {mean} ± {error}");
    }
}

/// arXiv:2304.14802: of ResiDual's two streams the first stays normed and the second grows as Pre-LN's does.
#[test]
fn residual_has_one_stream_of_each_kind() {
    let text = format!(
        "streams u, r\n{PAPERS_START}each f:\n    o = f(u)\n    u = norm(u + o)\n    r = r + o\nhead: u + norm(r)\n"
    );
    let found = sizes(&text, &setting(24, 128), 1);
    let (first, last) = (&found.streams[6], &found.streams[24]);
    assert!((first[0] - 1.0).abs() < 1e-2 && (last[0] - 1.0).abs() < 1e-2);
    assert!(last[1] > 2.5 * first[1], "{first:?} and {last:?}");
}

/// How far one small step down the gradient moves the logits, RMS over everything.
fn update(name: &str, blocks: usize) -> f64 {
    let scheme = lookup(name).unwrap();
    let config = ModelConfig {
        blocks,
        width: 32,
        heads: 2,
        context: 16,
        vocabulary: 32,
        positions: Positions::None,
        ..ModelConfig::default()
    };
    let model = Model::new(&scheme, &config).unwrap();
    let device = device("flex").unwrap();
    let tokens = Tokens { numbers: (0..64).map(|at| (at * 13 % 32) as u32).collect(), shape: [4, 16] };
    let targets: Arc<[u32]> = (0..64).map(|at| (at * 29 % 32) as u32).collect();
    let options = ForwardOptions::default();
    let of_seed = |seed: u64| {
        let weights = model.initialise(seed, &device, DType::F64);
        let found =
            model.loss_and_gradients(&weights, &tokens, targets.clone(), 1.0 / 64.0, options, &mut NoObserver).unwrap();
        let moved =
            model.parameters().iter().zip(&weights.0).zip(&found.gradients).map(|((info, weight), gradient)| {
                // Blocks' matrices alone: the bounds are about them.
                let moves = info.block.is_some() && matches!(info.role, Role::Matrix(_));
                let rate = if moves { 1e-4 } else { 0.0 };
                let values = weight.to_values();
                let steps = gradient.to_values();
                let values = values.iter().zip(steps).map(|(w, g)| w - rate * g).collect();
                Weight::from_values(values, &info.shape, &device, DType::F64)
            });
        let moved = Weights(moved.collect());
        let logits = |weights: &Weights| statistics::to_f64(&model.logits(weights, &tokens, options, &mut NoObserver));
        let (before, after) = (logits(&weights), logits(&moved));
        let squares: f64 = before.iter().zip(&after).map(|(a, b)| (a - b).powi(2)).sum();
        (squares / before.len() as f64).sqrt()
    };
    (0..3).map(of_seed).sum::<f64>() / 3.0
}

/// arXiv:2203.00555, Theorem 4.2 and after: the update of plain Post-LN grows with depth, DeepNorm's is bounded by a
/// constant; arXiv:2210.06423: Pre-LN's grows, and Sub-LN's gain holds it down.
#[test]
fn updates_scale_with_depth_as_the_bounds_say() {
    let growth = |name: &str| update(name, 64) / update(name, 4);
    let (post, deepnorm) = (growth("post"), growth("deepnorm"));
    let (pre, sub_ln) = (growth("sub-ln(gamma=1)"), growth("sub-ln"));
    assert!((0.5..2.0).contains(&deepnorm), "deepnorm's update grows {deepnorm:.2} times from 4 to 64 blocks");
    assert!(post > 10.0, "post {post:.2}");
    assert!(sub_ln < 0.75 * pre, "without its gain {pre:.2}, with it {sub_ln:.2}");
}
