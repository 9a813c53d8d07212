//! Pairs of texts, the second of which is to be said from the first.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::corpus::{CorpusSummary, DataConfig, DataError, Vocabulary, hexadecimal, unigram_entropy, validation_count};
use crate::dataset::IGNORED;
use crate::order::spread;

/// Sentences that the built-in language of pairs makes at most.
const MOST_BUILTIN: usize = 1 << 22;

/// Lengths of a batch are multiples of it, so that few different ones arise.
const GRANULE: usize = 8;

/// One pair as tokens, without any mark of beginning or end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// What is read.
    pub source: Vec<u32>,
    /// What is to be written.
    pub target: Vec<u32>,
}

/// Pairs to train on and pairs to validate on.
#[derive(Debug, Clone)]
pub struct Pairs {
    /// To train on.
    pub training: Vec<Pair>,
    /// To validate on.
    pub validation: Vec<Pair>,
    /// How tokens read. The numbers of [`Marks`] follow it.
    pub vocabulary: Vocabulary,
    /// What is known.
    pub summary: CorpusSummary,
    /// Texts that were cut to the context.
    pub cut: usize,
    /// Tokens of one text with its mark, at most.
    pub context: usize,
}

/// A batch of pairs, padded to one length on each side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairBatch {
    /// `batch * source time` tokens, with the end mark.
    pub source: Vec<u32>,
    /// `[batch, source time]`.
    pub source_shape: [usize; 2],
    /// Which of the source's tokens are no padding.
    pub visible: Vec<bool>,
    /// `batch * target time` tokens that the decoder reads: the start mark and the text.
    pub target: Vec<u32>,
    /// `[batch, target time]`.
    pub target_shape: [usize; 2],
    /// What it is to say: the text and the end mark, [`IGNORED`] for padding.
    pub said: Vec<u32>,
}

/// The tokens that follow a vocabulary's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// What every target begins with.
    pub start: u32,
    /// What every text ends with.
    pub end: u32,
    /// What fills a row after its end.
    pub padding: u32,
}

impl Marks {
    /// How many there are.
    const COUNT: usize = 3;

    /// Those that follow a vocabulary.
    pub fn of(vocabulary: &Vocabulary) -> Self {
        let start = vocabulary.size() as u32;
        Marks { start, end: start + 1, padding: start + 2 }
    }
}

impl Pairs {
    /// Numbers of tokens, marks and padding included.
    pub fn size(&self) -> usize {
        self.vocabulary.size() + Marks::COUNT
    }

    /// Reads or makes pairs: of one or more `.tsv` files with source and target in the first two columns, of two
    /// files with as many lines, or of the built-in language.
    ///
    /// # Errors
    /// If something cannot be read, the files do not match, or too little is there.
    pub fn load(config: &DataConfig, context: usize, eval_tokens: usize) -> Result<Self, DataError> {
        config.check()?;
        let vocabulary = Self::vocabulary_of(config)?;
        let (pairs, description, floor, bytes) = if config.paths.is_empty() {
            let count = (config.builtin_tokens / 10).clamp(1, MOST_BUILTIN);
            // The target follows from the source.
            (builtin(count, config.builtin_seed), "the built-in pairs".to_string(), Some(0.0), None)
        } else {
            let texts = read(&config.paths)?;
            let encode = |text: &str| {
                vocabulary.encode(text).map_err(|reason| DataError::Tokenizer {
                    path: config.tokenizer.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
                    reason,
                })
            };
            let pairs = texts
                .iter()
                .map(|(source, target)| Ok(Pair { source: encode(source)?, target: encode(target)? }))
                .collect::<Result<Vec<_>, DataError>>()?;
            let names: Vec<String> = config.paths.iter().map(|path| path.display().to_string()).collect();
            let bytes: usize = texts.iter().map(|(_, target)| target.len()).sum();
            (pairs, format!("{} ({} pairs)", names.join(", "), texts.len()), None, Some(bytes))
        };
        if context < 2 {
            let message = "a text of a pair needs a context of two tokens at least: one, and the mark that ends it";
            return Err(DataError::Empty(message.to_string()));
        }
        let most = context - 1;
        let mut cut = 0;
        let mut shortened = |mut tokens: Vec<u32>| {
            cut += usize::from(tokens.len() > most);
            tokens.truncate(most);
            tokens
        };
        let pairs: Vec<Pair> = pairs
            .into_iter()
            .map(|pair| Pair { source: shortened(pair.source), target: shortened(pair.target) })
            .filter(|pair| !pair.source.is_empty() && !pair.target.is_empty())
            .collect();
        let validation = validation_count(pairs.len(), config.validation);
        let (training, validation) = pairs.split_at(pairs.len() - validation);
        for (part, pairs) in [("training", training), ("validation", validation)] {
            if pairs.is_empty() {
                return Err(DataError::Empty(format!("the {part} part has no pair")));
            }
        }
        let end = Marks::of(&vocabulary).end;
        let size = vocabulary.size() + Marks::COUNT;
        let said = |pairs: &[Pair]| -> Vec<u32> {
            pairs.iter().flat_map(|pair| pair.target.iter().copied().chain([end])).collect()
        };
        let (training_targets, validation_targets) = (said(training), said(validation));
        let used: Vec<Pair> = validation_used(validation, eval_tokens).cloned().collect();
        let mut hasher = Sha256::new();
        for token in pairs.iter().flat_map(|pair| pair.source.iter().chain([&end]).chain(&pair.target).chain([&end])) {
            hasher.update(token.to_le_bytes());
        }
        let all = (training_targets.len() + validation_targets.len()) as f64;
        let summary = CorpusSummary {
            description,
            sha256: hexadecimal(hasher),
            training_tokens: training_targets.len(),
            validation_tokens: validation_targets.len(),
            vocabulary: size,
            unigram_entropy: unigram_entropy(&training_targets, &said(&used), size),
            floor,
            // Of whole texts only: the bytes of what was cut off are no token's.
            bytes_per_token: bytes.filter(|_| cut == 0).map(|bytes| bytes as f64 / all),
            text: None,
        };
        Ok(Pairs { training: training.to_vec(), validation: validation.to_vec(), vocabulary, summary, cut, context })
    }

    /// How tokens read.
    ///
    /// # Errors
    /// If a tokenizer cannot be read.
    pub fn vocabulary_of(config: &DataConfig) -> Result<Vocabulary, DataError> {
        if config.paths.is_empty() {
            return Ok(Vocabulary::Words(WORDS.iter().map(String::as_str).collect()));
        }
        Vocabulary::of(config)
    }

    /// The pairs as a batch.
    pub fn batch<'a>(&self, pairs: impl IntoIterator<Item = &'a Pair>) -> PairBatch {
        let pairs: Vec<&Pair> = pairs.into_iter().collect();
        let Marks { start, end, padding } = Marks::of(&self.vocabulary);
        let length = |longest: Option<usize>| (longest.unwrap_or(0) + 1).next_multiple_of(GRANULE).min(self.context);
        let source_time = length(pairs.iter().map(|pair| pair.source.len()).max());
        let target_time = length(pairs.iter().map(|pair| pair.target.len()).max());
        let mut batch = PairBatch {
            source: Vec::new(),
            source_shape: [pairs.len(), source_time],
            visible: Vec::new(),
            target: Vec::new(),
            target_shape: [pairs.len(), target_time],
            said: Vec::new(),
        };
        for pair in pairs {
            let fill = |row: &mut Vec<u32>, tokens: &mut dyn Iterator<Item = u32>, time: usize, rest: u32| {
                let before = row.len();
                row.extend(tokens);
                row.resize(before + time, rest);
            };
            let source = pair.source.iter().copied();
            fill(&mut batch.source, &mut source.chain([end]), source_time, padding);
            batch.visible.extend((0..source_time).map(|at| at <= pair.source.len()));
            let target = pair.target.iter().copied();
            fill(&mut batch.target, &mut [start].into_iter().chain(target.clone()), target_time, padding);
            fill(&mut batch.said, &mut target.chain([end]), target_time, IGNORED);
        }
        batch
    }
}

/// The validation pairs that are used: spread over all, with about `tokens` target tokens together.
pub(crate) fn validation_used(pairs: &[Pair], tokens: usize) -> impl Iterator<Item = &Pair> {
    let all: usize = pairs.iter().map(|pair| pair.target.len() + 1).sum();
    let limit = (tokens * pairs.len()).div_ceil(all.max(1));
    spread(pairs.len(), limit).map(|number| &pairs[number])
}

fn read_text(path: &Path) -> Result<String, DataError> {
    let bytes = std::fs::read(path).map_err(|error| DataError::unreadable(path, &error))?;
    let text = String::from_utf8(bytes).map_err(|error| DataError::Encoding {
        path: path.display().to_string(),
        message: format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()),
        hint: "pairs are read as UTF-8 only, for a replaced byte would shift what belongs together".into(),
    })?;
    Ok(text.strip_prefix('\u{feff}').map(String::from).unwrap_or(text))
}

/// Source and target texts.
fn read(paths: &[PathBuf]) -> Result<Vec<(String, String)>, DataError> {
    let is_table = |path: &PathBuf| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("tsv"));
    if paths.iter().all(is_table) {
        let mut pairs = Vec::new();
        for path in paths {
            for (number, line) in read_text(path)?.lines().enumerate() {
                if line.trim().is_empty() {
                    continue;
                }
                let mut columns = line.split('\t');
                let (Some(source), Some(target)) = (columns.next(), columns.next()) else {
                    let message =
                        format!("{} line {}: no tab parts a source from a target", path.display(), number + 1);
                    return Err(DataError::Empty(message));
                };
                pairs.push((source.trim().to_string(), target.trim().to_string()));
            }
        }
        return Ok(pairs);
    }
    let [source_path, target_path] = paths else {
        let message =
            format!("pairs are .tsv files, or two files with a line for each text, not {} files", paths.len());
        return Err(DataError::Empty(message));
    };
    let (source, target) = (read_text(source_path)?, read_text(target_path)?);
    let (lines, others) = (source.lines().count(), target.lines().count());
    if lines != others {
        let (source, target) = (source_path.display(), target_path.display());
        return Err(DataError::Empty(format!(
            "{source} has {lines} lines and {target} has {others}: they are no pairs"
        )));
    }
    let both = source.lines().zip(target.lines());
    Ok(both
        .map(|(source, target)| (source.trim().to_string(), target.trim().to_string()))
        .filter(|(source, target)| !source.is_empty() && !target.is_empty())
        .collect())
}

const NOUNS: [&str; 24] = [
    "lamp", "kite", "book", "boat", "clock", "chair", "door", "stone", "letter", "mirror", "basket", "violin", "wheel",
    "ladder", "candle", "bell", "child", "baker", "sailor", "painter", "doctor", "farmer", "miller", "singer",
];
const ADJECTIVES: [&str; 8] = ["red", "old", "small", "heavy", "broken", "golden", "strange", "quiet"];
const VERBS: [&str; 10] =
    ["sees", "keeps", "paints", "wants", "hides", "sells", "finds", "cleans", "carries", "repairs"];

/// The words of both built-in languages; every word of the second is one of the first read backwards.
static WORDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let first = ["the", "and"].into_iter().chain(NOUNS).chain(ADJECTIVES).chain(VERBS);
    let first: Vec<String> = first.map(String::from).collect();
    let second = first.iter().map(|word| word.chars().rev().collect()).collect::<Vec<String>>();
    first.into_iter().chain(second).collect()
});

/// Sentences of one to three clauses, each "the [adjective] noun verb the [adjective] noun", and the same in a
/// language that says the last clause first, the object before its subject, the verb last, and the adjective
/// after its noun. The second follows from the first wholly: no loss is the floor.
fn builtin(count: usize, seed: u64) -> Vec<Pair> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let half = (WORDS.len() / 2) as u32;
    let (the, and) = (0u32, 1u32);
    let first_noun = 2u32;
    let first_adjective = first_noun + NOUNS.len() as u32;
    let first_verb = first_adjective + ADJECTIVES.len() as u32;
    let turned = |words: &[u32]| words.iter().map(|word| word + half).collect::<Vec<u32>>();
    (0..count)
        .map(|_| {
            let clauses = random.random_range(1..=3);
            let (mut source, mut target) = (Vec::new(), Vec::new());
            for clause in 0..clauses {
                let mut phrase = || {
                    let noun = first_noun + random.random_range(0..NOUNS.len() as u32);
                    let adjective = (random.random::<f64>() < 0.5)
                        .then(|| first_adjective + random.random_range(0..ADJECTIVES.len() as u32));
                    let here: Vec<u32> = [the].into_iter().chain(adjective).chain([noun]).collect();
                    let there: Vec<u32> = [the, noun].into_iter().chain(adjective).collect();
                    (here, turned(&there))
                };
                let (subject, turned_subject) = phrase();
                let (object, turned_object) = phrase();
                let verb = first_verb + random.random_range(0..VERBS.len() as u32);
                if clause > 0 {
                    source.push(and);
                    target.splice(0..0, [and + half]);
                }
                source.extend(subject);
                source.push(verb);
                source.extend(object);
                let clause: Vec<u32> = turned_object.into_iter().chain(turned_subject).chain([verb + half]).collect();
                target.splice(0..0, clause);
            }
            Pair { source, target }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_built_in_language_follows_from_the_first() {
        let pairs = builtin(50, 3);
        let vocabulary = Vocabulary::Words(WORDS.iter().map(String::as_str).collect());
        let text = vocabulary.decode(&[&pairs[0].source[..], &pairs[0].target[..]].concat());
        assert!(text.starts_with("the "), "{text}");
        for pair in &pairs {
            assert_eq!(pair.source.len(), pair.target.len());
            let half = WORDS.len() as u32 / 2;
            let mut back: Vec<u32> = pair.target.iter().map(|word| word - half).collect();
            let mut source = pair.source.clone();
            back.sort_unstable();
            source.sort_unstable();
            assert_eq!(back, source, "the same words in another order");
        }
        assert_eq!(pairs, builtin(50, 3));
    }

    #[test]
    fn no_batch_is_longer_than_the_context() {
        for context in [2, 4, 20] {
            let config = DataConfig { builtin_tokens: 1000, ..DataConfig::default() };
            let pairs = Pairs::load(&config, context, 1000).unwrap();
            let batch = pairs.batch(&pairs.training);
            assert!(batch.source_shape[1] <= context && batch.target_shape[1] <= context, "{context}");
            assert!(pairs.cut > 0);
        }
        let error = Pairs::load(&DataConfig::default(), 1, 1000).unwrap_err().to_string();
        assert!(error.contains("a context of two tokens"), "{error}");
    }

    #[test]
    fn a_batch_is_padded_and_padding_is_neither_seen_nor_asked() {
        let config = DataConfig { builtin_tokens: 1000, ..DataConfig::default() };
        let mut pairs = Pairs::load(&config, 64, 1000).unwrap();
        pairs.vocabulary = Vocabulary::Bytes;
        let (start, end) = (256, 257);
        let two = [Pair { source: vec![1, 2], target: vec![3] }, Pair { source: vec![4; 8], target: vec![5, 6] }];
        let batch = pairs.batch(&two);
        assert_eq!((batch.source_shape, batch.target_shape), ([2, 16], [2, 8]));
        assert_eq!(batch.source[..4], [1, 2, end, end + 1]);
        assert_eq!(batch.visible.iter().filter(|seen| **seen).count(), 3 + 9);
        assert_eq!(batch.target[..3], [start, 3, end + 1]);
        assert_eq!(batch.said[..3], [3, end, IGNORED]);
        assert_eq!(batch.said[8..12], [5, 6, end, IGNORED]);
    }
}
