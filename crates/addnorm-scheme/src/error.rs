//! What can be wrong with a scheme's text, and where.

use std::fmt;

/// A half-open range of bytes in a scheme's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The span from `start` up to `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// The smallest span that covers both.
    pub fn to(self, other: Span) -> Span {
        Span::new(self.start.min(other.start), self.end.max(other.end))
    }
}

/// An error in a scheme's text: what is wrong, where, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemeError {
    /// What is wrong, one sentence without a full stop.
    pub message: String,
    /// Where it is.
    pub span: Span,
    /// What to do about it, when that is known.
    pub hint: Option<String>,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The text of that line.
    pub text: String,
}

impl SchemeError {
    /// Locates `span` in `source`.
    pub(crate) fn new(source: &str, span: Span, message: impl Into<String>, hint: Option<String>) -> Self {
        let start = source.floor_char_boundary(span.start);
        let before = &source[..start];
        let line = before.matches('\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let text = source[line_start..].lines().next().unwrap_or("").to_string();
        let column = source[line_start..start].chars().count() + 1;
        Self { message: message.into(), span, hint, line, column, text }
    }
}

impl fmt::Display for SchemeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (line {}, column {})", self.message, self.line, self.column)?;
        writeln!(f, "    {}", self.text.replace('\t', " "))?;
        let width = (self.span.end.saturating_sub(self.span.start)).clamp(1, 60);
        let room = self.text.chars().count().saturating_sub(self.column - 1).max(1);
        write!(f, "    {}{}", " ".repeat(self.column - 1), "^".repeat(width.min(room)))?;
        if let Some(hint) = &self.hint {
            write!(f, "\n    {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SchemeError {}

/// Something legal but suspicious.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Lint {
    /// A short stable name, such as `no-final-norm`.
    pub code: &'static str,
    /// What is suspicious and why.
    pub message: String,
    /// The line it is about, from 1; none when it is about the whole file.
    pub line: Option<usize>,
}

/// The name in `known` nearest to `name`, when one is near enough to be a likely slip.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| {
            let short = name.len().min(candidate.len());
            // A word that goes on, or breaks off: 'warmup_step' for 'warmup'.
            let extends = short >= 4 && (name.starts_with(candidate) || candidate.starts_with(name));
            (if extends { 1 } else { edit_distance(name, candidate) }, candidate)
        })
        // Any one-letter name is near to any other; that would be no advice.
        .filter(|&(distance, candidate)| {
            let length = name.chars().count().min(candidate.chars().count());
            distance <= if length < 2 { 0 } else { 1 + length / 3 }
        })
        .min()
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance: insertions, deletions, changes, and swaps of neighbours.
fn edit_distance(a: &str, b: &str) -> usize {
    // Names beyond this length are never a slip of the pen, and the work stays small.
    let head = |text: &str| text.chars().take(64).collect::<String>();
    strsim::osa_distance(&head(a), &head(b))
}
