//! What a step costs, counted in work: operations, passes over memory, memory taken. Seconds differ from
//! machine to machine; these numbers do not, and a change that adds work shows here.
//!
//! One test in a process of its own: memory is counted for the whole process.

use addnorm_nn::{Positions, fresh_bytes, product_operations};
use addnorm_scheme::{Scheme, library};
use addnorm_train::bench::Workload;
use addnorm_train::{Recompute, RunConfig, RunSpec};

fn load(scheme: &str, recompute: Recompute, blocks: usize) -> Workload {
    let (_, text) = library().find(|(name, _)| *name == scheme).unwrap();
    let mut config = RunConfig { scheme: scheme.into(), ..RunConfig::default() };
    config.model.blocks = blocks;
    config.model.width = 32;
    config.model.heads = 2;
    config.model.context = 64;
    config.model.vocabulary = 50;
    config.model.positions = Positions::Learned;
    config.train.batch = 3;
    config.train.recompute = recompute;
    Workload::new(&RunSpec { label: scheme.into(), scheme: Scheme::parse(scheme, text).unwrap(), config }).unwrap()
}

/// Multiplications and additions in the products of one step.
fn operations(load: &mut Workload) -> u64 {
    let before = product_operations();
    load.train().unwrap();
    product_operations() - before
}

#[test]
fn a_step_takes_the_products_it_must_and_no_fresh_memory() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        let (width, hidden, vocabulary, time, batch) = (32u64, 128u64, 50u64, 64u64, 3u64);
        let tokens = time * batch;
        // Linear maps: forward, and backward by input and by weight.
        let linear = 3 * 2 * tokens * (4 * width * width + 2 * width * hidden);
        // Attention in blocks of 32 queries, of which the first sees 32 keys and the second 64: two products
        // forward, and five backward, of which one is the scores once more.
        let attention = 7 * 2 * batch * width * (32 * 32 + 32 * 64);
        let head = 3 * 2 * tokens * width * vocabulary;
        for scheme in ["pre", "post", "keel", "siamese", "normformer"] {
            let mut load = load(scheme, Recompute::None, 4);
            assert_eq!(operations(&mut load), 4 * (linear + attention) + head, "{scheme}");
            load.train().unwrap();
            // What a step needs the one before has given back.
            let before = fresh_bytes();
            load.train().unwrap();
            assert_eq!(fresh_bytes() - before, 0, "{scheme} takes fresh memory in every step");
            let before = fresh_bytes();
            let loss = load.evaluate();
            assert!(loss.is_finite());
            assert_eq!(fresh_bytes() - before, 0, "{scheme} takes fresh memory to evaluate what it trains on");
        }
        // Recomputation runs the forward pass of every block but those of the last segment once more.
        let forward = (linear / 3) + attention / 7 * 2;
        for (every, again) in [(1, 3), (2, 2), (4, 0)] {
            let mut load = load("pre", Recompute::Blocks(every), 4);
            let expected = 4 * (linear + attention) + head + again * forward;
            assert_eq!(operations(&mut load), expected, "{every} blocks at a time");
        }
        // Memory: linear in depth without recomputation, and a stream a block with it.
        let peak = |recompute: Recompute, blocks: usize| {
            let before = fresh_bytes();
            let mut load = load("pre", recompute, blocks);
            load.train().unwrap();
            (fresh_bytes() - before) as f64
        };
        // Weights and moments are not the kernels'. What remains is gradients and activations.
        let stream = (tokens * width * 4) as f64;
        let parameters = (4 * (4 * width * width + 2 * width * hidden)) as f64;
        let deep = |recompute: Recompute| {
            let (small, large) = (peak(recompute, 8), peak(recompute, 40));
            (large - small) / 32.0
        };
        let kept = deep(Recompute::None);
        assert!((13.0 * stream..15.0 * stream + parameters).contains(&(kept)), "{} streams a block", kept / stream);
        let again = deep(Recompute::Blocks(1));
        assert!(again < 1.6 * stream + 1.1 * parameters, "{} streams a block", again / stream);
    });
}
