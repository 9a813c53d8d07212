//! Writing the second text of a pair.

use std::sync::Arc;

use addnorm_data::{Bleu, BleuTokens, Marks, Pair, Pairs, Vocabulary, bleu};
use addnorm_nn::{ForwardOptions, Model, Tokens, Weights, log_total, statistics};

/// Sentences that are written at one time.
const GROUP: usize = 16;

/// How to search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// Outputs that are kept at every step; 1 always takes the likeliest token.
    pub beam: usize,
    /// Exponent of the length by which scores are divided, `((5 + length)/6)^penalty` (arXiv:1609.08144).
    pub length_penalty: f64,
    /// The training step that the weights come from, for schemes that change with it.
    pub step: u64,
}

/// One output that is not yet whole.
#[derive(Debug, Clone)]
struct Hypothesis {
    tokens: Vec<u32>,
    log_probability: f64,
}

impl Hypothesis {
    fn score(&self, search: Search) -> f64 {
        let length = self.tokens.len() as f64;
        self.log_probability / ((5.0 + length) / 6.0).powf(search.length_penalty)
    }
}

/// Writes the targets of some sources, without marks.
pub fn translate(
    model: &Model,
    weights: &Weights,
    sources: &[Vec<u32>],
    marks: Marks,
    search: Search,
) -> Vec<Vec<u32>> {
    let group = (GROUP / search.beam.max(1)).max(1);
    sources.chunks(group).flat_map(|sources| translate_group(model, weights, sources, marks, search)).collect()
}

fn translate_group(
    model: &Model,
    weights: &Weights,
    sources: &[Vec<u32>],
    marks: Marks,
    search: Search,
) -> Vec<Vec<u32>> {
    let most = model.config().context;
    let answers = model.config().answers();
    let longest = sources.iter().map(Vec::len).max().unwrap_or(0).min(most - 1) + 1;
    let mut alive: Vec<Vec<Hypothesis>> =
        vec![vec![Hypothesis { tokens: Vec::new(), log_probability: 0.0 }]; sources.len()];
    let mut done: Vec<Vec<Hypothesis>> = vec![Vec::new(); sources.len()];
    let options = ForwardOptions { step: search.step, ..ForwardOptions::default() };
    // Each source once; the rows of its hypotheses repeat it.
    let row = |source: &Vec<u32>| -> (Vec<u32>, Vec<bool>) {
        let mut tokens: Vec<u32> = source.iter().take(longest - 1).copied().chain([marks.end]).collect();
        let seen = tokens.len();
        tokens.resize(longest, marks.padding);
        (tokens, (0..longest).map(|at| at < seen).collect())
    };
    let rows: Vec<_> = sources.iter().map(row).collect();
    let encoded = {
        let numbers = rows.iter().flat_map(|(tokens, _)| tokens.iter().copied()).collect();
        let visible = rows.iter().flat_map(|(_, seen)| seen.iter().copied()).collect();
        model.encode(weights, &Tokens { numbers, shape: [sources.len(), longest] }, visible, options)
    };
    for length in 1..=most {
        let open: Vec<(usize, &Hypothesis)> = alive
            .iter()
            .enumerate()
            .flat_map(|(source, hypotheses)| hypotheses.iter().map(move |hypothesis| (source, hypothesis)))
            .collect();
        if open.is_empty() {
            break;
        }
        let numbers: Vec<u32> = open
            .iter()
            .flat_map(|(_, hypothesis)| [marks.start].into_iter().chain(hypothesis.tokens.iter().copied()))
            .collect();
        let which: Vec<usize> = open.iter().map(|(source, _)| *source).collect();
        let visible: Arc<[bool]> = which.iter().flat_map(|&source| rows[source].1.iter().copied()).collect();
        let target = Tokens { numbers: numbers.into(), shape: [open.len(), length] };
        let logits = model.decode(weights, encoded.clone(), &which, visible, &target, options);
        let values = statistics::to_f64(&logits.slice_dim(1, length - 1..length));
        let mut next: Vec<Vec<Hypothesis>> = vec![Vec::new(); sources.len()];
        for ((source, hypothesis), logits) in open.iter().zip(values.chunks(answers)) {
            let total = log_total(logits);
            let mut order: Vec<usize> = (0..answers).collect();
            let keep = search.beam.max(1).min(answers);
            order.select_nth_unstable_by(keep - 1, |&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            for &token in &order[..keep] {
                let mut longer = (*hypothesis).clone();
                longer.log_probability += logits[token] - total;
                longer.tokens.push(token as u32);
                next[*source].push(longer);
            }
        }
        for (source, mut candidates) in next.into_iter().enumerate() {
            candidates.sort_by(|a, b| b.log_probability.total_cmp(&a.log_probability));
            candidates.truncate(search.beam.max(1));
            let (ended, going): (Vec<_>, Vec<_>) =
                candidates.into_iter().partition(|hypothesis| hypothesis.tokens.last() == Some(&marks.end));
            done[source].extend(ended);
            // As soon as as many are whole as are kept, the best of them is the answer.
            alive[source] =
                if done[source].len() >= search.beam.max(1) || length == most { Vec::new() } else { going.clone() };
            if length == most {
                done[source].extend(going);
            }
        }
    }
    let best = |hypotheses: Vec<Hypothesis>| -> Vec<u32> {
        let best = hypotheses.into_iter().max_by(|a, b| a.score(search).total_cmp(&b.score(search)));
        let tokens = best.map(|best| best.tokens).unwrap_or_default();
        // Marks are no text.
        tokens.into_iter().filter(|&token| token < marks.start).collect()
    };
    done.into_iter().map(best).collect()
}

/// BLEU of what the model writes for some pairs. Words are what spaces part, or single characters where the
/// references have hardly a space.
pub fn translation_score(
    model: &Model,
    weights: &Weights,
    vocabulary: &Vocabulary,
    pairs: &[&Pair],
    search: Search,
) -> (Bleu, BleuTokens) {
    let sources: Vec<Vec<u32>> = pairs.iter().map(|pair| pair.source.clone()).collect();
    let outputs = translate(model, weights, &sources, Marks::of(vocabulary), search);
    let outputs: Vec<String> = outputs.iter().map(|tokens| vocabulary.decode(tokens)).collect();
    let references: Vec<String> = pairs.iter().map(|pair| vocabulary.decode(&pair.target)).collect();
    let tokens = bleu_tokens(&references);
    let both = outputs.iter().map(String::as_str).zip(references.iter().map(String::as_str));
    (bleu(both, tokens), tokens)
}

/// Characters for scripts that put no spaces between words.
pub fn bleu_tokens(references: &[String]) -> BleuTokens {
    let (mut spaces, mut letters) = (0usize, 0usize);
    for c in references.iter().flat_map(|text| text.chars()) {
        if c.is_whitespace() {
            spaces += 1;
        } else {
            letters += 1;
        }
    }
    if spaces * 15 < letters { BleuTokens::Char } else { BleuTokens::None }
}

/// Some of the validation pairs, evenly spread.
pub fn sample(pairs: &Pairs, count: usize) -> Vec<&Pair> {
    let shown = pairs.validation.len().min(count.max(1));
    (0..shown).map(|number| &pairs.validation[number * pairs.validation.len() / shown]).collect()
}
