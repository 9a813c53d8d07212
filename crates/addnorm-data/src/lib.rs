//! Where examples come from: built-in languages and images, or the user's own.
//!
//! A [`Dataset`] is examples for one [`Task`], some to train on and some to validate on, with what is known of
//! them. A [`Feed`] hands the former out in batches, in an order that a seed decides and a [`Cursor`] resumes.

mod bleu;
mod builtin;
mod corpus;
mod dataset;
mod images;
mod masked;
mod order;
mod pairs;
mod text;
mod windows;

pub use bleu::{Bleu, BleuTokens, bleu};
pub use builtin::{Language, language};
pub use corpus::{Corpus, CorpusSummary, DataConfig, DataError, Vocabulary};
pub use dataset::{Dataset, Examples, Feed, IGNORED, Numbers, Task};
pub use images::{ImageSet, Images};
pub use masked::{MASKED_SHARE, hide};
pub use pairs::{Marks, Pair, PairBatch, Pairs};
pub use text::{InvalidUtf8, Newlines, TextReport, read_texts};
pub use windows::{Cursor, Windows, validation_windows};
