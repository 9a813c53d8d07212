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

/// Judges a run: from its ending, its last validation loss in nats, the unigram entropy of the data in nats,
/// and what was measured of its layers at the start and at the end.
pub fn judge(
    ending: &Ending,
    validation_loss: Number,
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
    let loss = validation_loss.0;
    let reasons = reasons(start, end);
    let because = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
    if loss.is_nan() || loss > unigram_entropy * (1.0 + AT_UNIGRAM) {
        let words = format!("ends above the unigram entropy{because}");
        return Judgement { verdict: Verdict::AboveUnigram, words };
    }
    if loss > unigram_entropy * (1.0 - AT_UNIGRAM) {
        return Judgement { verdict: Verdict::StaysAtUnigram, words: format!("stays at unigram{because}") };
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
