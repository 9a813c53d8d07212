//! Hiding tokens that a model is to say from those around them (arXiv:1810.04805).

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::dataset::IGNORED;

/// The share of positions whose token is asked for.
pub const MASKED_SHARE: f64 = 0.15;

/// Hides some tokens: of the positions asked for, 80% show `mask`, 10% a token drawn from all below
/// `vocabulary`, and 10% the token itself. At least one position is asked for. Gives what is shown, and the
/// targets, [`IGNORED`] where nothing is asked.
pub fn hide(tokens: &[u32], mask: u32, vocabulary: u32, seed: u64) -> (Vec<u32>, Vec<u32>) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut asked: Vec<bool> = tokens.iter().map(|_| random.random::<f64>() < MASKED_SHARE).collect();
    if !asked.contains(&true) && !asked.is_empty() {
        let one = random.random_range(0..asked.len());
        asked[one] = true;
    }
    let shown = tokens.iter().zip(&asked).map(|(&token, &asked)| {
        if !asked {
            return token;
        }
        match random.random::<f64>() {
            chance if chance < 0.8 => mask,
            chance if chance < 0.9 => random.random_range(0..vocabulary),
            _ => token,
        }
    });
    let shown = shown.collect();
    let targets = tokens.iter().zip(&asked).map(|(&token, &asked)| if asked { token } else { IGNORED }).collect();
    (shown, targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_those_of_the_paper() {
        let tokens: Vec<u32> = (0..200_000).map(|at| at % 50).collect();
        let (shown, targets) = hide(&tokens, 50, 50, 7);
        let asked: Vec<usize> = (0..tokens.len()).filter(|&at| targets[at] != IGNORED).collect();
        let share = |count: usize, of: usize| count as f64 / of as f64;
        assert!((share(asked.len(), tokens.len()) - 0.15).abs() < 0.003);
        let masked = asked.iter().filter(|&&at| shown[at] == 50).count();
        let same = asked.iter().filter(|&&at| shown[at] == tokens[at]).count();
        assert!((share(masked, asked.len()) - 0.8).abs() < 0.01);
        // One in fifty of the drawn tokens is the true one.
        assert!((share(same, asked.len()) - 0.102).abs() < 0.01);
        assert!(asked.iter().all(|&at| targets[at] == tokens[at]));
        assert!((0..tokens.len()).all(|at| targets[at] != IGNORED || shown[at] == tokens[at]));
        assert_eq!(hide(&tokens, 50, 50, 7), (shown, targets), "the same seed, the same mask");
    }

    #[test]
    fn something_is_always_asked() {
        for seed in 0..100 {
            let (_, targets) = hide(&[3], 9, 9, seed);
            assert_eq!(targets, [3]);
        }
    }
}
