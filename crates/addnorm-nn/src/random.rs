//! Separate random streams, so that one use of chance never shifts another.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::logits::likeliest;

/// What a random stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Initial weights.
    Initialisation,
    /// The order in which training data comes.
    DataOrder,
    /// Dropout masks.
    Dropout,
    /// Choices in evaluation and generation.
    Evaluation,
}

/// The seed of a stream: a function of the run's seed, the purpose, and a label, and of nothing else.
pub fn stream_seed(seed: u64, purpose: Purpose, label: &str) -> u64 {
    // FNV-1a over the parts, then a SplitMix64 finish so that near seeds give unrelated streams.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let parts = [&seed.to_le_bytes()[..], &[purpose as u8], label.as_bytes()];
    for byte in parts.into_iter().flatten() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let mut z = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A generator for the stream. ChaCha8 gives the same numbers on every platform and version.
pub fn stream(seed: u64, purpose: Purpose, label: &str) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(stream_seed(seed, purpose, label))
}

/// A token drawn from logits. At temperature 0 it is the likeliest one (the first of equals).
pub fn draw(logits: &[f64], temperature: f64, random: &mut ChaCha8Rng) -> u32 {
    let best = likeliest(logits);
    if temperature == 0.0 {
        return best as u32;
    }
    let powers: Vec<f64> = logits.iter().map(|logit| ((logit - logits[best]) / temperature).exp()).collect();
    let mut left = random.random::<f64>() * powers.iter().sum::<f64>();
    for (token, power) in powers.iter().enumerate() {
        left -= power;
        if left < 0.0 {
            return token as u32;
        }
    }
    best as u32
}
