//! Text to tokens. Layout matters as in the paper's pseudo-code: a body is indented under its heading.

use crate::error::{SchemeError, Span};

/// Longest text accepted, in bytes. Published schemes need under 1 KiB.
pub const MAX_SOURCE_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Name(String),
    Number(f64),
    Text(String),
    Symbol(&'static str),
    Newline,
    Indent,
    Dedent,
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub kind: Kind,
    pub span: Span,
}

impl Kind {
    pub(crate) fn describe(&self) -> String {
        match self {
            Kind::Name(name) => format!("'{name}'"),
            Kind::Number(number) => format!("the number {number}"),
            Kind::Text(_) => "a quoted text".into(),
            Kind::Symbol(symbol) => format!("'{symbol}'"),
            Kind::Newline => "the end of the line".into(),
            Kind::Indent => "an indented line".into(),
            Kind::Dedent => "the end of the indented lines".into(),
            Kind::End => "the end of the text".into(),
        }
    }
}

// Longer symbols first, so that '<=' is not read as '<'.
const SYMBOLS: [&str; 19] =
    ["<=", ">=", "==", "!=", "<", ">", "=", "+", "-", "*", "/", "^", "(", ")", "[", "]", ",", ":", ";"];

pub(crate) fn lex(source: &str) -> Result<Vec<Token>, SchemeError> {
    let fail = |span, message: String, hint: Option<String>| Err(SchemeError::new(source, span, message, hint));
    if source.len() > MAX_SOURCE_BYTES {
        let message = format!("the text has {} bytes; a scheme may have {MAX_SOURCE_BYTES}", source.len());
        return fail(Span::new(0, 1), message, None);
    }
    let mut tokens = Vec::new();
    let mut indents = vec![0usize];
    let mut offset = 0;
    for raw in source.split_inclusive('\n') {
        let line_start = offset;
        offset += raw.len();
        let line = raw.trim_end_matches(['\n', '\r']);
        let content = line.trim_start_matches([' ', '\t', '\u{feff}']);
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let lead = &line[..line.len() - content.len()];
        if lead.contains('\t') {
            let span = Span::new(line_start, line_start + lead.len());
            return fail(span, "a tab indents this line".into(), Some("indent with spaces".into()));
        }
        let indent = lead.chars().filter(|&c| c == ' ').count();
        let at = Span::new(line_start + lead.len(), line_start + lead.len() + 1);
        if indent > *indents.last().unwrap_or(&0) {
            indents.push(indent);
            tokens.push(Token { kind: Kind::Indent, span: at });
        }
        while indent < *indents.last().unwrap_or(&0) {
            indents.pop();
            tokens.push(Token { kind: Kind::Dedent, span: at });
            if indent > *indents.last().unwrap_or(&0) {
                let hint = "line it up with the lines above".to_string();
                return fail(at, "this line's indentation matches no line above it".into(), Some(hint));
            }
        }
        lex_line(source, line_start + lead.len(), content, &mut tokens)?;
        let end = line_start + line.len();
        tokens.push(Token { kind: Kind::Newline, span: Span::new(end, end) });
    }
    let end = Span::new(source.len(), source.len());
    for _ in 1..indents.len() {
        tokens.push(Token { kind: Kind::Dedent, span: end });
    }
    tokens.push(Token { kind: Kind::End, span: end });
    Ok(tokens)
}

fn lex_line(source: &str, start: usize, content: &str, tokens: &mut Vec<Token>) -> Result<(), SchemeError> {
    let mut rest = content;
    while !rest.is_empty() {
        let at = start + content.len() - rest.len();
        let first = rest.chars().next().unwrap_or(' ');
        let (kind, length) = if first == '#' {
            return Ok(());
        } else if first.is_whitespace() {
            rest = &rest[first.len_utf8()..];
            continue;
        } else if first.is_alphabetic() || first == '_' {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            (Kind::Name(rest[..length].to_string()), length)
        } else if first.is_ascii_digit() || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
            let length = number_length(rest);
            match rest[..length].parse::<f64>() {
                Ok(number) if number.is_finite() => (Kind::Number(number), length),
                _ => {
                    let span = Span::new(at, at + length);
                    return Err(SchemeError::new(source, span, "this is not a finite number", None));
                }
            }
        } else if first == '"' {
            match rest[1..].find('"') {
                Some(length) => (Kind::Text(rest[1..=length].to_string()), length + 2),
                None => {
                    let hint = Some("close it with \" on the same line".into());
                    return Err(SchemeError::new(source, Span::new(at, at + 1), "this quote is not closed", hint));
                }
            }
        } else if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            (Kind::Symbol(symbol), symbol.len())
        } else {
            let span = Span::new(at, at + first.len_utf8());
            let message = format!("the character '{}' has no meaning here", first.escape_debug());
            return Err(SchemeError::new(source, span, message, None));
        };
        tokens.push(Token { kind, span: Span::new(at, at + length) });
        rest = &rest[length..];
    }
    Ok(())
}

fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() && (bytes[at].is_ascii_digit() || bytes[at] == b'.') {
        at += 1;
    }
    if at < bytes.len() && (bytes[at] == b'e' || bytes[at] == b'E') {
        let mut exponent = at + 1;
        if exponent < bytes.len() && (bytes[exponent] == b'+' || bytes[exponent] == b'-') {
            exponent += 1;
        }
        if exponent < bytes.len() && bytes[exponent].is_ascii_digit() {
            at = exponent;
            while at < bytes.len() && bytes[at].is_ascii_digit() {
                at += 1;
            }
        }
    }
    at
}
