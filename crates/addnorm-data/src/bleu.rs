//! Corpus BLEU (Papineni et al. 2002), computed as sacreBLEU does (arXiv:1804.08771).

use std::collections::HashMap;

/// Longest word sequence that counts.
const ORDER: usize = 4;

/// How text becomes words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BleuTokens {
    /// As they stand, parted by spaces.
    None,
    /// Every character that is no space.
    Char,
}

/// A score with what it is made of.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Bleu {
    /// From 0 to 100.
    pub score: f64,
    /// Precision of sequences of one to four words, in percent.
    pub precisions: [f64; ORDER],
    /// What a short output costs.
    pub brevity_penalty: f64,
    /// Words of the output.
    pub output_length: usize,
    /// Words of the reference.
    pub reference_length: usize,
}

fn words(text: &str, tokens: BleuTokens) -> Vec<String> {
    match tokens {
        BleuTokens::None => text.split_whitespace().map(String::from).collect(),
        BleuTokens::Char => text.chars().filter(|c| !c.is_whitespace()).map(String::from).collect(),
    }
}

fn sequences(words: &[String], length: usize) -> HashMap<&[String], usize> {
    let mut counts = HashMap::new();
    for sequence in words.windows(length) {
        *counts.entry(sequence).or_default() += 1;
    }
    counts
}

/// BLEU of outputs against one reference each, with exponential smoothing: a length of which nothing matches
/// counts as half a match, the next such length as a quarter, and so on.
pub fn bleu<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>, tokens: BleuTokens) -> Bleu {
    let (mut matches, mut totals) = ([0usize; ORDER], [0usize; ORDER]);
    let (mut output_length, mut reference_length) = (0, 0);
    for (output, reference) in pairs {
        let (output, reference) = (words(output, tokens), words(reference, tokens));
        output_length += output.len();
        reference_length += reference.len();
        for length in 1..=ORDER {
            let (found, wanted) = (sequences(&output, length), sequences(&reference, length));
            totals[length - 1] += output.len().saturating_sub(length - 1);
            let clipped = |(sequence, count): (&&[String], &usize)| *count.min(wanted.get(*sequence).unwrap_or(&0));
            matches[length - 1] += found.iter().map(clipped).sum::<usize>();
        }
    }
    let brevity_penalty = if output_length == 0 {
        0.0
    } else if output_length < reference_length {
        (1.0 - reference_length as f64 / output_length as f64).exp()
    } else {
        1.0
    };
    let mut precisions = [0.0; ORDER];
    let mut smoothing = 1.0;
    let mut lengths = 0;
    for length in 0..ORDER {
        if totals[length] == 0 {
            break;
        }
        lengths = length + 1;
        precisions[length] = if matches[length] == 0 {
            smoothing *= 2.0;
            100.0 / (smoothing * totals[length] as f64)
        } else {
            100.0 * matches[length] as f64 / totals[length] as f64
        };
    }
    // As in the reference implementation, an output with no sequence of four words at all scores nothing.
    let score = if matches[0] == 0 || lengths < ORDER {
        0.0
    } else {
        brevity_penalty * (precisions.iter().map(|precision| precision.ln()).sum::<f64>() / ORDER as f64).exp()
    };
    Bleu { score, precisions, brevity_penalty, output_length, reference_length }
}
