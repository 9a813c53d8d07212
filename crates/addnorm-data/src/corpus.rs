//! Tokens to train on and tokens to validate on.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

use crate::builtin::language;
use crate::text::{InvalidUtf8, Newlines, TextReport, read_texts};
use crate::windows::validation_windows;

/// Most tokens that the built-in language is asked for: 4 GiB of them.
const MAX_BUILTIN_TOKENS: usize = 1 << 30;

/// Where tokens come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// Files and folders of text; none for the built-in language.
    pub paths: Vec<PathBuf>,
    /// In folders, only files that end so; none for all.
    pub extensions: Vec<String>,
    /// A `tokenizer.json`; none for bytes as tokens.
    pub tokenizer: Option<PathBuf>,
    /// The share of the tokens, at the end, that is kept for validation.
    pub validation: f64,
    /// What to do with bytes that are not UTF-8.
    pub invalid: InvalidUtf8,
    /// What to do with line ends.
    pub newlines: Newlines,
    /// Tokens that the built-in language makes.
    pub builtin_tokens: usize,
    /// Seed of the built-in language; 0 stands for the run's. Runs of a comparison share it.
    pub builtin_seed: u64,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            extensions: Vec::new(),
            tokenizer: None,
            validation: 0.1,
            invalid: InvalidUtf8::Error,
            newlines: Newlines::Keep,
            builtin_tokens: 1_000_000,
            builtin_seed: 0,
        }
    }
}

impl DataConfig {
    /// Checks what does not depend on files.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        if !(self.validation > 0.0 && self.validation < 1.0) {
            let message = format!("{} is not between 0 and 1", self.validation);
            return Err(DataError::Setting { key: "validation", message });
        }
        if self.builtin_tokens > MAX_BUILTIN_TOKENS {
            let message = format!("{} is more than {MAX_BUILTIN_TOKENS}", self.builtin_tokens);
            return Err(DataError::Setting { key: "builtin_tokens", message });
        }
        if let Some(path) = self.paths.iter().chain(&self.tokenizer).find(|path| path.to_str().is_none()) {
            let message = format!("the path {} is not UTF-8, which a run's record needs", path.display());
            return Err(DataError::Setting { key: "paths", message });
        }
        if self.paths.is_empty() && self.tokenizer.is_some() {
            let message = "a tokenizer needs text to work on; give '--data'".to_string();
            return Err(DataError::Setting { key: "tokenizer", message });
        }
        Ok(())
    }
}

/// Why there is no corpus.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file system's word.
    #[error("{path} cannot be read: {reason}")]
    Unreadable {
        /// The path.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// The text is not UTF-8.
    #[error("{path}: {message}")]
    Encoding {
        /// The file.
        path: String,
        /// What is wrong and where.
        message: String,
        /// What to do.
        hint: String,
    },
    /// There is not enough of it.
    #[error("{0}")]
    Empty(String),
    /// A split is shorter than one sequence with its target.
    #[error("the {part} part has {tokens} tokens; a context of {context} needs at least {needed}")]
    TooShort {
        /// Which part.
        part: &'static str,
        /// What there is.
        tokens: usize,
        /// The context asked for.
        context: usize,
        /// What it takes.
        needed: usize,
    },
    /// The tokenizer cannot be used.
    #[error("the tokenizer {path} cannot be used: {reason}")]
    Tokenizer {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// A setting is wrong.
    #[error("[data] {key}: {message}")]
    Setting {
        /// The key.
        key: &'static str,
        /// What is wrong.
        message: String,
    },
}

impl DataError {
    pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        DataError::Unreadable { path: path.display().to_string(), reason: error.to_string() }
    }

    /// What to do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            DataError::Encoding { hint, .. } => Some(hint.clone()),
            DataError::TooShort { .. } => Some("give more text, or a smaller '--context'".into()),
            DataError::Tokenizer { .. } => Some("a 'tokenizer.json' in Hugging Face's format is wanted".into()),
            _ => None,
        }
    }
}

/// How tokens and text correspond.
#[derive(Debug, Clone)]
pub enum Vocabulary {
    /// The words of the built-in language.
    Words(Vec<&'static str>),
    /// One token a byte.
    Bytes,
    /// A tokenizer's own.
    Tokenizer(Box<Tokenizer>),
}

impl Vocabulary {
    /// Reads the tokenizer, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(config: &DataConfig) -> Result<Self, DataError> {
        match &config.tokenizer {
            Some(path) => {
                let fail = |reason: String| DataError::Tokenizer { path: path.display().to_string(), reason };
                let bytes = std::fs::read(path).map_err(|error| DataError::unreadable(path, &error))?;
                let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
                let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| fail(error.to_string()))?;
                // These are for single sentences; a corpus is read whole.
                tokenizer.with_truncation(None).map_err(|error| fail(error.to_string()))?;
                tokenizer.with_padding(None);
                Ok(Vocabulary::Tokenizer(Box::new(tokenizer)))
            }
            None if config.paths.is_empty() => Ok(Vocabulary::Words(language().words)),
            None => Ok(Vocabulary::Bytes),
        }
    }

    /// How many different tokens there are.
    pub fn size(&self) -> usize {
        match self {
            Vocabulary::Words(words) => words.len(),
            Vocabulary::Bytes => 256,
            // Numbers may have gaps, so the largest one counts.
            Vocabulary::Tokenizer(tokenizer) => {
                tokenizer.get_vocab(true).values().max().map_or(0, |&largest| largest as usize + 1)
            }
        }
    }

    /// Text to tokens. Words that the built-in language lacks are an error that names the first.
    ///
    /// # Errors
    /// If a word is unknown or the tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        match self {
            Vocabulary::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Vocabulary::Words(words) => text
                .split_whitespace()
                .map(|word| {
                    let found = words.iter().position(|known| *known == word);
                    found.map(|at| at as u32).ok_or_else(|| format!("the built-in language has no word '{word}'"))
                })
                .collect(),
            Vocabulary::Tokenizer(tokenizer) => tokenizer
                .encode(text, false)
                .map(|encoding| encoding.get_ids().to_vec())
                .map_err(|error| error.to_string()),
        }
    }

    /// Tokens to text. Bytes that are no UTF-8 together become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Vocabulary::Bytes => {
                // A vocabulary may be made larger than the bytes; what is beyond them is no text.
                let bytes = tokens.iter().map(|&token| u8::try_from(token).unwrap_or(0xff));
                String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
            }
            Vocabulary::Words(words) => {
                let words: Vec<&str> = tokens.iter().filter_map(|&token| words.get(token as usize).copied()).collect();
                words.join(" ")
            }
            Vocabulary::Tokenizer(tokenizer) => tokenizer.decode(tokens, false).unwrap_or_default(),
        }
    }
}

/// What is known of a corpus, for the record of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CorpusSummary {
    /// In words.
    pub description: String,
    /// SHA-256 over all tokens, in hexadecimal: equal hashes, equal corpora.
    pub sha256: String,
    /// Tokens to train on.
    pub training_tokens: usize,
    /// Tokens to validate on.
    pub validation_tokens: usize,
    /// Different tokens that there may be.
    pub vocabulary: usize,
    /// Loss in nats of the best guess that ignores context: the validation targets that are used, under the
    /// training tokens' frequencies.
    pub unigram_entropy: f64,
    /// Loss in nats that no model can beat; known for the built-in language only.
    pub floor: Option<f64>,
    /// Bytes of text per token; none where tokens are words of the built-in language.
    pub bytes_per_token: Option<f64>,
    /// What reading found; none for the built-in language.
    pub text: Option<TextReport>,
}

/// Tokens, parted.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// To train on.
    pub training: Vec<u32>,
    /// To validate on.
    pub validation: Vec<u32>,
    /// How they read.
    pub vocabulary: Vocabulary,
    /// What is known.
    pub summary: CorpusSummary,
}

impl Corpus {
    /// Reads or makes the tokens, and parts them: the last share is for validation, of which windows with
    /// `eval_tokens` tokens in all are used.
    ///
    /// # Errors
    /// If something cannot be read or a part is too short for the context.
    pub fn load(config: &DataConfig, context: usize, eval_tokens: usize) -> Result<Self, DataError> {
        config.check()?;
        let vocabulary = Vocabulary::of(config)?;
        let (tokens, description, floor, bytes_per_token, text) = if config.paths.is_empty() {
            let language = language();
            let tokens = language.tokens(config.builtin_tokens.max(1), config.builtin_seed);
            (tokens, "the built-in language".to_string(), Some(language.floor), None, None)
        } else {
            let (text, report) = read_texts(&config.paths, &config.extensions, config.invalid, config.newlines)?;
            if text.trim().is_empty() {
                return Err(DataError::Empty("the text is empty".into()));
            }
            let (tokens, bytes_before) = encode_text(&vocabulary, &text).map_err(|reason| DataError::Tokenizer {
                path: config.tokenizer.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
                reason,
            })?;
            let mut names: Vec<String> = config.paths.iter().take(3).map(|path| path.display().to_string()).collect();
            if config.paths.len() > 3 {
                names.truncate(1);
                names.push(format!("{} more", config.paths.len() - 1));
            }
            // Of the part that losses are measured on.
            let validation = validation_count(tokens.len(), config.validation).max(1);
            let start = bytes_before(tokens.len() - validation.min(tokens.len()));
            let bytes_per_token = (text.len() - start) as f64 / validation as f64;
            let description = format!("{} ({} files, {} bytes)", names.join(", "), report.files, report.bytes);
            (tokens, description, None, Some(bytes_per_token), Some(report))
        };
        let validation_count = validation_count(tokens.len(), config.validation);
        let (training, validation) = tokens.split_at(tokens.len() - validation_count);
        for (part, tokens) in [("training", training), ("validation", validation)] {
            if tokens.len() < context + 1 {
                return Err(DataError::TooShort { part, tokens: tokens.len(), context, needed: context + 1 });
            }
        }
        let mut hasher = Sha256::new();
        for token in &tokens {
            hasher.update(token.to_le_bytes());
        }
        let sha256 = hexadecimal(hasher);
        // Of the very targets that losses are compared with it on.
        let windows = validation_windows(validation, context, eval_tokens.div_ceil(context));
        let targets: Vec<u32> = windows.iter().flat_map(|(_, targets)| targets.iter().copied()).collect();
        let summary = CorpusSummary {
            description,
            sha256,
            training_tokens: training.len(),
            validation_tokens: validation.len(),
            vocabulary: vocabulary.size(),
            unigram_entropy: unigram_entropy(training, &targets, vocabulary.size()),
            floor,
            bytes_per_token,
            text,
        };
        Ok(Self { training: training.to_vec(), validation: validation.to_vec(), vocabulary, summary })
    }
}

/// A hash as text.
pub(crate) fn hexadecimal(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn validation_count(tokens: usize, share: f64) -> usize {
    ((tokens as f64 * share).round() as usize).min(tokens)
}

/// Text that a tokenizer is given at once, at least: long enough that the joints do not matter, short enough
/// that what it keeps of each token besides its number stays small.
const CHUNK: usize = 1 << 20;

/// The tokens of a text, and a function that says how many bytes of text stand before a token. Long texts are
/// encoded in chunks that end with a line.
fn encode_text<'a>(
    vocabulary: &'a Vocabulary,
    text: &'a str,
) -> Result<(Vec<u32>, impl Fn(usize) -> usize + 'a), String> {
    let mut tokens = Vec::new();
    // First token and first byte of every chunk.
    let mut starts = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let aim = text.ceil_char_boundary(at + CHUNK);
        let end = text[aim..].find('\n').map_or(text.len(), |line_end| aim + line_end + 1);
        starts.push((tokens.len(), at));
        tokens.extend(vocabulary.encode(&text[at..end])?);
        at = end;
    }
    let total = tokens.len();
    let bytes_before = move |token: usize| {
        if token >= total {
            return text.len();
        }
        let chunk = starts.partition_point(|&(first, _)| first <= token) - 1;
        let (first, start) = starts[chunk];
        match vocabulary {
            Vocabulary::Tokenizer(tokenizer) => {
                let end = starts.get(chunk + 1).map_or(text.len(), |next| next.1);
                let offset = tokenizer.encode(&text[start..end], false).ok();
                let offset = offset.and_then(|encoding| encoding.get_offsets().get(token - first).map(|span| span.0));
                start + offset.unwrap_or(0)
            }
            _ => start + token - first,
        }
    };
    Ok((tokens, bytes_before))
}

/// Cross-entropy of `targets` under the frequencies of `training`, each count raised by one half so that a
/// token which only the targets have costs something finite.
pub(crate) fn unigram_entropy(training: &[u32], targets: &[u32], vocabulary: usize) -> f64 {
    let mut counts = vec![0.5f64; vocabulary];
    for &token in training {
        counts[token as usize] += 1.0;
    }
    // Tokens that never occur at all get no share.
    let mut seen = vec![false; vocabulary];
    for &token in training.iter().chain(targets) {
        seen[token as usize] = true;
    }
    let total: f64 = counts.iter().zip(&seen).filter(|(_, seen)| **seen).map(|(count, _)| count).sum();
    let loss: f64 = targets.iter().map(|&token| -(counts[token as usize] / total).ln()).sum();
    loss / targets.len() as f64
}
