//! Reading the user's text, with every byte accounted for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::corpus::DataError;

/// What to do with bytes that are not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InvalidUtf8 {
    /// Stop, and say where the first one is.
    #[default]
    Error,
    /// Put U+FFFD in their place, and say how many.
    Replace,
    /// Leave the whole file out, and say which.
    Skip,
}

/// What to do with line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Newlines {
    /// Keep every byte as it is.
    #[default]
    Keep,
    /// Make `\r\n` and lone `\r` into `\n`.
    Lf,
}

/// What reading found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextReport {
    /// Files read.
    pub files: usize,
    /// Bytes of text.
    pub bytes: usize,
    /// Byte-order marks taken off.
    pub byte_order_marks: usize,
    /// `\r\n` line ends found.
    pub crlf: usize,
    /// `\r` line ends without `\n` found.
    pub lone_cr: usize,
    /// Invalid sequences that became U+FFFD.
    pub replaced: usize,
    /// Binary files in folders, left out: they hold a zero byte near the start.
    pub binary_files: usize,
    /// Files left out as not UTF-8 (by option).
    pub skipped: Vec<String>,
}

/// Reads files, and all files in folders in the order of their paths, into one text. Files are parted by a
/// line end where they do not end in one.
///
/// In folders, hidden entries are left out, and so are binary files, which the report counts; with
/// `extensions` given only files that end so are read. A file that is named itself is always read.
///
/// # Errors
/// If a path cannot be read, is not text, or holds invalid UTF-8 and the option is to stop.
pub fn read_texts(
    paths: &[PathBuf],
    extensions: &[String],
    invalid: InvalidUtf8,
    newlines: Newlines,
) -> Result<(String, TextReport), DataError> {
    let mut text = String::new();
    let mut report = TextReport::default();
    let mut seen = BTreeSet::new();
    for path in paths {
        let metadata = std::fs::metadata(path).map_err(|error| DataError::unreadable(path, &error))?;
        let mut files = Vec::new();
        if metadata.is_dir() {
            seen.extend(std::fs::canonicalize(path));
            list(path, extensions, &mut seen, &mut files)?;
            if files.is_empty() {
                let wanted = if extensions.is_empty() {
                    String::new()
                } else {
                    format!(" that ends in .{}", extensions.join(" or ."))
                };
                return Err(DataError::Empty(format!("the folder '{}' holds no file{wanted}", path.display())));
            }
        } else {
            files.push(path.clone());
        }
        for file in files {
            let bytes = std::fs::read(&file).map_err(|error| DataError::unreadable(&file, &error))?;
            if metadata.is_dir() && bytes[..bytes.len().min(8192)].contains(&0) && !has_utf16_mark(&bytes) {
                report.binary_files += 1;
                continue;
            }
            let Some(read) = decode(&file, &bytes, invalid, &mut report)? else {
                report.skipped.push(file.display().to_string());
                continue;
            };
            report.files += 1;
            let crlf = read.matches("\r\n").count();
            report.crlf += crlf;
            report.lone_cr += read.matches('\r').count() - crlf;
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            match newlines {
                Newlines::Keep => text.push_str(&read),
                Newlines::Lf => text.push_str(&read.replace("\r\n", "\n").replace('\r', "\n")),
            }
        }
    }
    report.bytes = text.len();
    Ok((text, report))
}

/// Lists a folder's files. Links are followed, but no folder or file is read twice: its text would stand in the
/// training part and in the validation part.
fn list(
    folder: &Path,
    extensions: &[String],
    seen: &mut BTreeSet<PathBuf>,
    files: &mut Vec<PathBuf>,
) -> Result<(), DataError> {
    let entries = std::fs::read_dir(folder).map_err(|error| DataError::unreadable(folder, &error))?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(|error| DataError::unreadable(folder, &error))?;
    paths.sort();
    for path in paths {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
            continue;
        }
        // A link that leads nowhere is no text.
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if !std::fs::canonicalize(&path).is_ok_and(|real| seen.insert(real)) {
            continue;
        }
        if metadata.is_dir() {
            list(&path, extensions, seen, files)?;
        } else if metadata.is_file() {
            let extension = path.extension().map(|extension| extension.to_string_lossy().to_string());
            if extensions.is_empty() || extension.is_some_and(|extension| extensions.contains(&extension)) {
                files.push(path);
            }
        }
    }
    Ok(())
}

fn has_utf16_mark(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff])
}

/// UTF-16 with its mark, or text in which every second byte is zero.
fn looks_like_utf16(bytes: &[u8]) -> bool {
    if has_utf16_mark(bytes) {
        return true;
    }
    let start = &bytes[..bytes.len().min(1024) & !1];
    let zeros = |offset: usize| start.iter().skip(offset).step_by(2).filter(|&&byte| byte == 0).count();
    let pairs = start.len() / 2;
    pairs >= 4 && (zeros(0) * 10 > pairs * 8) != (zeros(1) * 10 > pairs * 8)
}

fn decode(
    path: &Path,
    bytes: &[u8],
    invalid: InvalidUtf8,
    report: &mut TextReport,
) -> Result<Option<String>, DataError> {
    if looks_like_utf16(bytes) && invalid == InvalidUtf8::Skip {
        return Ok(None);
    }
    if looks_like_utf16(bytes) {
        return Err(DataError::Encoding {
            path: path.display().to_string(),
            message: "it looks like UTF-16".into(),
            hint: "convert it to UTF-8, for example with 'iconv -f UTF-16 -t UTF-8'".into(),
        });
    }
    let bytes = match bytes.strip_prefix(b"\xef\xbb\xbf") {
        Some(rest) => {
            report.byte_order_marks += 1;
            rest
        }
        None => bytes,
    };
    let error = match std::str::from_utf8(bytes) {
        Ok(text) => return Ok(Some(text.to_string())),
        Err(error) => error,
    };
    match invalid {
        InvalidUtf8::Skip => Ok(None),
        InvalidUtf8::Replace => {
            report.replaced += bytes.utf8_chunks().filter(|chunk| !chunk.invalid().is_empty()).count();
            Ok(Some(String::from_utf8_lossy(bytes).into_owned()))
        }
        InvalidUtf8::Error => {
            let at = error.valid_up_to();
            let line = bytes[..at].iter().filter(|&&byte| byte == b'\n').count() + 1;
            Err(DataError::Encoding {
                path: path.display().to_string(),
                message: format!("the byte 0x{:02x} at offset {at}, line {line}, is not UTF-8", bytes[at]),
                hint: "'--invalid replace' puts U+FFFD in its place, '--invalid skip' leaves the file out".into(),
            })
        }
    }
}
