//! The built-in language: short stories of two people, whose entropy rate is known exactly.
//!
//! A story names two people, says a few things of them, and ends by recalling the first object:
//!
//! ```text
//! Anna and Boris met . she sees the red kite . they keep the lamp . finally Boris found the kite . ¶
//! ```
//!
//! What is free in a story, and with which probability:
//!
//! - the two names: uniform over 24, and over the 23 others;
//! - the subject of a sentence: first name, second name, `they`, or the first person's pronoun, each 1/4;
//! - the verb: uniform over 10; its form follows the subject's number;
//! - an adjective stands with probability 1/3: uniform over 8;
//! - the noun: one of 16, number k with probability in proportion to 1/k;
//! - after each sentence the story ends with probability 1/4.
//!
//! All else follows: who `he` or `she` is (look the first name up), the verb's ending (look at the subject),
//! which names may come at all, and the whole last sentence, whose noun is the story's first. Each choice
//! can be read off the text, and stories are independent, so the entropy rate is the entropy of a story
//! over its mean length, [`Language::floor`]. No model can have a lower expected loss; one whose context
//! starts inside a story cannot quite reach it.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SHE: [&str; 12] =
    ["Anna", "Clara", "Dora", "Emma", "Freya", "Greta", "Hanna", "Irma", "Julia", "Klara", "Lena", "Maria"];
const HE: [&str; 12] =
    ["Boris", "Carl", "David", "Emil", "Fritz", "Georg", "Henrik", "Ivan", "Jakob", "Konrad", "Lars", "Martin"];
const VERBS: [[&str; 2]; 10] = [
    ["sees", "see"],
    ["keeps", "keep"],
    ["paints", "paint"],
    ["wants", "want"],
    ["hides", "hide"],
    ["sells", "sell"],
    ["finds", "find"],
    ["cleans", "clean"],
    ["carries", "carry"],
    ["repairs", "repair"],
];
const ADJECTIVES: [&str; 8] = ["red", "old", "small", "heavy", "broken", "golden", "strange", "quiet"];
const NOUNS: [&str; 16] = [
    "lamp", "kite", "book", "boat", "clock", "chair", "door", "stone", "letter", "mirror", "basket", "violin", "wheel",
    "ladder", "candle", "bell",
];
const WORDS: [&str; 11] = ["¶", ".", "and", "met", "the", "they", "he", "she", "finally", "found", "?"];

const END_OF_STORY: f64 = 0.25;
const ADJECTIVE: f64 = 1.0 / 3.0;

/// The language with its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Language {
    /// The words, by token number.
    pub words: Vec<&'static str>,
    /// Entropy rate in nats per token.
    pub floor: f64,
    /// Mean length of a story in tokens.
    pub mean_length: f64,
}

/// The built-in language.
pub fn language() -> Language {
    let mut words: Vec<&'static str> = WORDS.to_vec();
    words.extend(SHE.iter().chain(&HE));
    words.extend(VERBS.iter().flatten());
    words.extend(ADJECTIVES);
    words.extend(NOUNS);
    let names = (SHE.len() + HE.len()) as f64;
    let coin = |p: f64| -(p * p.ln() + (1.0 - p) * (1.0 - p).ln());
    let nouns: f64 = noun_probabilities().iter().map(|p| -p * p.ln()).sum();
    let sentence = 4f64.ln()
        + (VERBS.len() as f64).ln()
        + coin(ADJECTIVE)
        + ADJECTIVE * (ADJECTIVES.len() as f64).ln()
        + nouns
        + coin(END_OF_STORY);
    let sentences = 1.0 / END_OF_STORY;
    let story = names.ln() + (names - 1.0).ln() + sentences * sentence;
    let mean_length = 5.0 + sentences * (5.0 + ADJECTIVE) + 7.0;
    Language { words, floor: story / mean_length, mean_length }
}

fn noun_probabilities() -> [f64; 16] {
    let total: f64 = (1..=NOUNS.len()).map(|k| 1.0 / k as f64).sum();
    std::array::from_fn(|k| 1.0 / (k + 1) as f64 / total)
}

impl Language {
    fn word(&self, word: &str) -> u32 {
        self.words.iter().position(|known| *known == word).map_or(0, |at| at as u32)
    }

    /// At least `count` tokens of stories, whole ones.
    pub fn tokens(&self, count: usize, seed: u64) -> Vec<u32> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut tokens = Vec::with_capacity(count + 128);
        while tokens.len() < count {
            self.story(&mut random, &mut tokens);
        }
        tokens
    }

    fn story(&self, random: &mut ChaCha8Rng, tokens: &mut Vec<u32>) {
        let names: Vec<&str> = SHE.iter().chain(&HE).copied().collect();
        let first = random.random_range(0..names.len());
        let second = (first + 1 + random.random_range(0..names.len() - 1)) % names.len();
        let say = |tokens: &mut Vec<u32>, words: &[&str]| tokens.extend(words.iter().map(|word| self.word(word)));
        say(tokens, &[names[first], "and", names[second], "met", "."]);
        let mut recalled = None;
        loop {
            let (subject, plural) = match random.random_range(0..4) {
                0 => (names[first], false),
                1 => (names[second], false),
                2 => ("they", true),
                _ => (if first < SHE.len() { "she" } else { "he" }, false),
            };
            let verb = VERBS[random.random_range(0..VERBS.len())][usize::from(plural)];
            say(tokens, &[subject, verb, "the"]);
            if random.random_bool(ADJECTIVE) {
                say(tokens, &[ADJECTIVES[random.random_range(0..ADJECTIVES.len())]]);
            }
            let noun = self.noun(random);
            say(tokens, &[noun, "."]);
            let noun = *recalled.get_or_insert(noun);
            if random.random_bool(END_OF_STORY) {
                say(tokens, &["finally", names[second], "found", "the", noun, ".", "¶"]);
                return;
            }
        }
    }

    fn noun(&self, random: &mut ChaCha8Rng) -> &'static str {
        let mut left: f64 = random.random();
        for (noun, probability) in NOUNS.iter().zip(noun_probabilities()) {
            left -= probability;
            if left < 0.0 {
                return noun;
            }
        }
        NOUNS[NOUNS.len() - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The floor is not a formula taken on trust: an estimate of the story's entropy from its own choices,
    /// read back off the text, agrees with it.
    #[test]
    fn the_floor_is_the_mean_information_of_the_text() {
        let language = language();
        let tokens = language.tokens(2_000_000, 7);
        let word = |token: u32| language.words[token as usize];
        let is_name = |word: &str| SHE.contains(&word) || HE.contains(&word);
        let probabilities: HashMap<&str, f64> = NOUNS.iter().copied().zip(noun_probabilities()).collect();
        let mut information = 0.0;
        for story in tokens.split_inclusive(|&token| token == 0) {
            let words: Vec<&str> = story.iter().map(|&token| word(token)).collect();
            information += 24f64.ln() + 23f64.ln();
            assert!(is_name(words[0]) && is_name(words[2]) && words[0] != words[2]);
            let mut at = 5;
            let mut first_noun = None;
            while words[at] != "finally" {
                let subject = words[at];
                let known = [words[0], words[2], "they", if SHE.contains(&words[0]) { "she" } else { "he" }];
                assert!(known.contains(&subject), "{subject} in {words:?}");
                let verb = VERBS.iter().flatten().position(|verb| *verb == words[at + 1]).unwrap();
                assert_eq!(verb % 2 == 1, subject == "they");
                information += 4f64.ln() + 10f64.ln();
                at += 3;
                if ADJECTIVES.contains(&words[at]) {
                    information += -(1f64 / 3.0).ln() + 8f64.ln();
                    at += 1;
                } else {
                    information += -(2f64 / 3.0).ln();
                }
                information += -probabilities[words[at]].ln();
                first_noun.get_or_insert(words[at]);
                at += 2;
                information += if words[at] == "finally" { -0.25f64.ln() } else { -0.75f64.ln() };
            }
            assert_eq!(words[at + 1..], [words[2], "found", "the", first_noun.unwrap(), ".", "¶"]);
        }
        let measured = information / tokens.len() as f64;
        assert!((measured - language.floor).abs() < 0.003, "{measured} against {}", language.floor);
    }

    #[test]
    fn the_same_seed_gives_the_same_stories() {
        let language = language();
        assert_eq!(language.tokens(1000, 3), language.tokens(1000, 3));
        assert_ne!(language.tokens(1000, 3), language.tokens(1000, 4));
    }
}
