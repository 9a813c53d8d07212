//! Finding schemes: the published ones that come with addnorm, files, and text given inline.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::{SchemeError, nearest};
use crate::lexer::MAX_SOURCE_BYTES;
use crate::parser;
use crate::scheme::Scheme;

/// Name and text of every published scheme, in order of name.
static LIBRARY: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/schemes.rs"));

/// Name and text of every scheme that comes with addnorm, in order of name.
pub fn library() -> impl Iterator<Item = (&'static str, &'static str)> {
    LIBRARY.iter().copied()
}

/// Why no scheme was found.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The name is none of the library's and no file has it.
    #[error("there is no scheme '{name}'")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What to do instead.
        hint: String,
    },
    /// The file cannot be read.
    #[error("the scheme file '{path}' cannot be read: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// A constant is set that the scheme does not have.
    #[error("the scheme '{name}' has no constant '{constant}'")]
    Constant {
        /// The scheme.
        name: String,
        /// What was to be set.
        constant: String,
        /// What to do instead.
        hint: String,
    },
    /// The text is wrong. The name is the file's, the scheme's, or `inline`.
    #[error("{name}: {error}")]
    Wrong {
        /// Whose text it is.
        name: String,
        /// The whole text.
        source_text: String,
        /// What is wrong with it.
        error: Box<SchemeError>,
    },
}

/// What commas part, but not those inside parentheses.
fn settings(constants: &str) -> Vec<&str> {
    let (mut depth, mut start) = (0usize, 0);
    let mut found = Vec::new();
    for (at, c) in constants.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.push(&constants[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&constants[start..]);
    found.retain(|setting| !setting.trim().is_empty());
    found
}

/// The text with other definitions of some constants: `ratio=1/2, c=3`.
fn with_constants(name: &str, text: &str, constants: &str) -> Result<String, LookupError> {
    let wrong =
        |error| LookupError::Wrong { name: name.to_string(), source_text: text.to_string(), error: Box::new(error) };
    let mut text = text.to_string();
    for setting in settings(constants) {
        let file = parser::parse(&text).map_err(wrong)?;
        let known: BTreeSet<&str> = file.lets.iter().map(|rule| rule.definition.name.as_str()).collect();
        let (constant, value) = setting.split_once('=').unwrap_or((setting, ""));
        let (constant, value) = (constant.trim(), value.trim());
        if !known.contains(constant) || value.is_empty() {
            let hint = match (known.is_empty(), known.contains(constant)) {
                (_, true) => format!("give it a value: {name}({constant}=...)"),
                (true, _) => "it has none".to_string(),
                _ => format!("it has {}", known.into_iter().collect::<Vec<_>>().join(", ")),
            };
            return Err(LookupError::Constant { name: name.to_string(), constant: constant.to_string(), hint });
        }
        let of_that_name = file.lets.iter().rev().filter(|rule| rule.definition.name == constant);
        for span in of_that_name.map(|rule| rule.definition.value.span) {
            text.replace_range(span.start..span.end, &format!("({value})"));
        }
    }
    Ok(text)
}

/// A scheme by what a user may say: a name of the library, the same with constants set as in
/// `mix-ln(ratio=1/2)`, a path to a file, or the text itself.
///
/// # Errors
/// If nothing is found or the text is wrong.
pub fn lookup(said: &str) -> Result<Scheme, LookupError> {
    let parse = |name: &str, text: &str| {
        Scheme::parse(name, text).map_err(|error| LookupError::Wrong {
            name: name.to_string(),
            source_text: text.to_string(),
            error: Box::new(error),
        })
    };
    if let Some((name, text)) = library().find(|(name, _)| *name == said) {
        return parse(name, text);
    }
    // `mix-ln(ratio=1/2)`: one of the library with other constants.
    let called = said.strip_suffix(')').and_then(|said| said.split_once('('));
    if let Some((name, constants)) = called
        && let Some((_, text)) = library().find(|(known, _)| *known == name.trim())
    {
        let compact: String = said.split_whitespace().collect();
        return parse(&compact, &with_constants(name.trim(), text, constants)?);
    }
    // An equation sign or a colon with a body is no file name that anyone uses for a scheme.
    if said.contains('\n') || said.contains("head:") || (said.contains('=') && said.contains(':')) {
        return parse("inline", said);
    }
    let path = Path::new(said);
    if path.is_file() {
        let unreadable = |reason: String| LookupError::Unreadable { path: said.to_string(), reason };
        let size = path.metadata().map_err(|error| unreadable(error.to_string()))?.len();
        if size > MAX_SOURCE_BYTES as u64 {
            return Err(unreadable(format!("it has {size} bytes; a scheme may have {MAX_SOURCE_BYTES}")));
        }
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let text = String::from_utf8(bytes)
            .map_err(|error| unreadable(format!("it is not UTF-8 text (byte {})", error.utf8_error().valid_up_to())))?;
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or(said);
        return parse(name, &text);
    }
    let hint = match nearest(said, library().map(|(name, _)| name)) {
        Some(name) => format!("did you mean '{name}'? 'addnorm schemes' lists them all"),
        None => "'addnorm schemes' lists them all; a path to a .scheme file or the text itself works too".to_string(),
    };
    Err(LookupError::Unknown { name: said.to_string(), hint })
}
