//! A run's end in words.

use serde::{Deserialize, Serialize};

use crate::layers::LayerStatistics;
use crate::number::Number;
use crate::trouble::Trouble;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ending", rename_all = "snake_case")]
pub enum Ending {
    /// All steps were made.
    Finished,
    /// A loss or gradient was not finite; that step was not applied.
    Diverged {
        /// The step, from 1.
        step: u64,
        /// Where it appeared first, when it could be found again.
        trouble: Option<Trouble>,
    },
}

/// The kinds of ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The loss is clearly below what ignoring context gives.
    Trains,
    /// No better than token frequencies.
    StaysAtUnigram,
    /// Worse than token frequencies at the end.
    AboveUnigram,
    /// Stopped by a non-finite number.
    Diverged,
}

/// A verdict with its reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Which.
    pub verdict: Verdict,
    /// In words, with the numbers that it stands on.
    pub words: String,
}

/// Within this share of the unigram entropy a model has learned frequencies and nothing else.
const AT_UNIGRAM: f64 = 0.03;

/// A gradient that shrinks by more than this over the depth has all but vanished.
const VANISHED: f64 = 1e-2;

/// A stream whose tokens have at least this mean cosine cannot tell them apart.
const COLLAPSED: f64 = 0.95;

/// Judges a run: from its ending, its validation losses in nats with the steps they were measured at, the
/// unigram entropy of the data in nats, and what was measured of its layers at the start and at the end.
pub fn judge(
    ending: &Ending,
    validation: &[(u64, Number)],
    unigram_entropy: f64,
    start: &[LayerStatistics],
    end: &[LayerStatistics],
) -> Judgement {
    if let Ending::Diverged { step, trouble } = ending {
        let place = match trouble {
            Some(Trouble { block: Some(block), gradient: true, .. }) => format!(" in the gradient of block {block}"),
            Some(Trouble { block: Some(block), .. }) => format!(" in block {block}"),
            Some(Trouble { site, .. }) => format!(" in {site}"),
            None => String::new(),
        };
        return Judgement { verdict: Verdict::Diverged, words: format!("diverged at step {step}{place}") };
    }
    let loss = validation.last().map_or(f64::NAN, |(_, loss)| loss.0);
    let best = validation.iter().filter(|(_, loss)| loss.0.is_finite()).min_by(|a, b| a.1.0.total_cmp(&b.1.0));
    // It had learned more than frequencies, and lost it again.
    let fallen = best.filter(|(_, best)| {
        best.0 < unigram_entropy * (1.0 - AT_UNIGRAM) && loss > unigram_entropy * (1.0 - AT_UNIGRAM)
    });
    let reasons = reasons(start, end);
    let because = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
    if loss.is_nan() || loss > unigram_entropy * (1.0 + AT_UNIGRAM) {
        let words = match fallen {
            Some((step, best)) => {
                format!("rises above the unigram entropy after {:.2} at step {step}{because}", best.0)
            }
            None => format!("ends above the unigram entropy{because}"),
        };
        return Judgement { verdict: Verdict::AboveUnigram, words };
    }
    if loss > unigram_entropy * (1.0 - AT_UNIGRAM) {
        let words = match fallen {
            Some((step, best)) => format!("falls back to unigram after {:.2} at step {step}{because}", best.0),
            None => format!("stays at unigram{because}"),
        };
        return Judgement { verdict: Verdict::StaysAtUnigram, words };
    }
    Judgement { verdict: Verdict::Trains, words: "trains".to_string() }
}

/// What the layers show that keeps a model from learning.
fn reasons(start: &[LayerStatistics], end: &[LayerStatistics]) -> Vec<String> {
    let mut reasons = Vec::new();
    let blocks = start.len().saturating_sub(1);
    let ratio = gradient_ratio(end);
    if ratio < VANISHED {
        let since = if gradient_ratio(start) < VANISHED { " from the start" } else { "" };
        reasons.push(format!("gradient at block 1 is {ratio:.0e} of block {blocks}{since}"));
    } else if ratio > 1.0 / VANISHED {
        reasons.push(format!("gradient at block 1 is {ratio:.0e} times that of block {blocks}"));
    }
    let cosine = |layers: &[LayerStatistics]| layers.last().map_or(f64::NAN, |layer| layer.token_cosine.0);
    let (first, last) = (cosine(start), cosine(end));
    if last > COLLAPSED {
        let since = if first > COLLAPSED { " from the start" } else { "" };
        reasons.push(format!("every token is alike at block {blocks}{since} (cosine {last:.2})"));
    }
    reasons
}

/// Norm of the stream gradient at the first block over that at the last.
pub fn gradient_ratio(layers: &[LayerStatistics]) -> f64 {
    let gradient = |layer: Option<&LayerStatistics>| {
        layer.and_then(|layer| layer.streams.first()).map_or(f64::NAN, |stream| stream.gradient_norm.0)
    };
    gradient(layers.get(1)) / gradient(layers.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(ending: &Ending, losses: &[f64]) -> (Verdict, String) {
        let validation: Vec<(u64, Number)> =
            losses.iter().enumerate().map(|(at, &loss)| (at as u64 * 10, loss.into())).collect();
        let judgement = judge(ending, &validation, 3.0, &[], &[]);
        (judgement.verdict, judgement.words)
    }

    #[test]
    fn a_run_is_judged_by_where_it_ends_and_where_it_has_been() {
        let finished = |losses: &[f64]| words(&Ending::Finished, losses);
        assert_eq!(finished(&[4.0, 3.0, 2.0]), (Verdict::Trains, "trains".into()));
        assert_eq!(finished(&[4.0, 3.05, 2.95]), (Verdict::StaysAtUnigram, "stays at unigram".into()));
        assert_eq!(
            finished(&[4.0, 2.0, 3.0]),
            (Verdict::StaysAtUnigram, "falls back to unigram after 2.00 at step 10".into())
        );
        assert_eq!(finished(&[4.0, 3.5]), (Verdict::AboveUnigram, "ends above the unigram entropy".into()));
        assert_eq!(finished(&[4.0, 2.0, 9.0]).1, "rises above the unigram entropy after 2.00 at step 10");
        assert_eq!(finished(&[4.0, f64::NAN]).0, Verdict::AboveUnigram);
        let trouble =
            Trouble { block: Some(3), site: "blocks.3.attn.out".into(), gradient: false, largest_rms_before: None };
        let diverged = Ending::Diverged { step: 41, trouble: Some(trouble) };
        assert_eq!(words(&diverged, &[4.0, 2.0]), (Verdict::Diverged, "diverged at step 41 in block 3".into()));
    }
}
