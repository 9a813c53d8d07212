//! Where tokens come from: a built-in language whose entropy is known, or the user's own text.
//!
//! A [`Corpus`] is two runs of tokens, one to train on and one to validate on, with what is known of them.
//! [`Windows`] hands the training tokens out in batches, in an order that a seed decides and a [`Cursor`]
//! resumes.

mod builtin;
mod corpus;
mod text;
mod windows;

pub use builtin::{Language, language};
pub use corpus::{Corpus, CorpusSummary, DataConfig, DataError, Vocabulary};
pub use text::{InvalidUtf8, Newlines, TextReport, read_texts};
pub use windows::{Cursor, Windows, validation_windows};
