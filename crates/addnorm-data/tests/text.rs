//! The user's text: cases C01 to C05 of the public reports.

use std::path::PathBuf;

use addnorm_data::{Corpus, DataConfig, DataError, InvalidUtf8, Newlines, read_texts};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn write(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

fn read(path: &PathBuf, invalid: InvalidUtf8) -> Result<(String, addnorm_data::TextReport), DataError> {
    read_texts(std::slice::from_ref(path), &[], invalid, Newlines::Keep)
}

#[test]
fn c01_a_bad_byte_is_named_or_replaced_and_nothing_after_it_is_lost() {
    let folder = folder();
    let mut bytes = b"aaaa\n".repeat(100);
    bytes.push(0x92);
    bytes.extend(b"bbbb\n".repeat(100));
    let path = write(&folder, "bad.txt", &bytes);
    let error = read(&path, InvalidUtf8::Error).unwrap_err().to_string();
    assert!(error.contains("bad.txt") && error.contains("offset 500") && error.contains("line 101"), "{error}");
    assert!(error.contains("0x92"), "{error}");
    let (text, report) = read(&path, InvalidUtf8::Replace).unwrap();
    assert_eq!(report.replaced, 1);
    assert_eq!(text.matches("bbbb").count(), 100);
    let (_, report) = read_texts(&[folder.path().into()], &[], InvalidUtf8::Skip, Newlines::Keep).unwrap();
    assert_eq!((report.files, report.skipped.len()), (0, 1));
    // A character across any buffer edge is whole.
    for lead in 8185..8195 {
        let text = format!("{}é\n", "a".repeat(lead));
        let path = write(&folder, "edge.txt", text.as_bytes());
        assert_eq!(read(&path, InvalidUtf8::Error).unwrap().0, text);
    }
}

#[test]
fn c02_utf16_is_recognised_with_and_without_its_mark() {
    let folder = folder();
    let encode = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let mut marked = vec![0xff, 0xfe];
    marked.extend(encode("the cat sat on the mat"));
    for bytes in
        [marked, encode("the cat sat on the mat"), "the cat".encode_utf16().flat_map(u16::to_be_bytes).collect()]
    {
        let path = write(&folder, "wide.txt", &bytes);
        let error = read(&path, InvalidUtf8::Replace).unwrap_err();
        assert!(error.to_string().contains("looks like UTF-16"), "{error}");
        assert!(error.hint().unwrap().contains("convert it to UTF-8"));
    }
}

#[test]
fn c03_a_text_shorter_than_the_context_is_refused_with_the_counts() {
    let folder = folder();
    let load = |bytes: &[u8], validation: f64| {
        let path = write(&folder, "short.txt", bytes);
        Corpus::load(&DataConfig { paths: vec![path], validation, ..DataConfig::default() }, 64, 1000)
    };
    for length in [1, 64, 65, 129] {
        let error = load(&vec![b'a'; length], 0.5).unwrap_err();
        assert!(error.to_string().contains("at least 65"), "{length}: {error}");
    }
    assert!(load(&[], 0.5).unwrap_err().to_string().contains("empty"));
    assert!(load(b"   \n \n", 0.5).unwrap_err().to_string().contains("empty"));
    let error = load(&[b'a'; 200], 0.1).unwrap_err().to_string();
    assert!(error.contains("validation part has 20 tokens"), "{error}");
    let exact = load(&[b'a'; 130], 0.5).unwrap();
    assert_eq!((exact.training.len(), exact.validation.len()), (65, 65));
}

#[test]
fn c04_a_byte_order_mark_at_the_start_is_taken_off_and_one_inside_stays() {
    let folder = folder();
    let plain = write(&folder, "plain.txt", "the cat".as_bytes());
    let marked = write(&folder, "marked.txt", "\u{feff}the cat".as_bytes());
    let inside = write(&folder, "inside.txt", "the \u{feff}cat".as_bytes());
    assert_eq!(read(&plain, InvalidUtf8::Error).unwrap().0, read(&marked, InvalidUtf8::Error).unwrap().0);
    assert_eq!(read(&marked, InvalidUtf8::Error).unwrap().1.byte_order_marks, 1);
    assert_eq!(read(&inside, InvalidUtf8::Error).unwrap().0, "the \u{feff}cat");
}

#[test]
fn c05_line_ends_are_kept_or_made_equal_as_asked_and_counted() {
    let folder = folder();
    let path = write(&folder, "mixed.txt", b"a\r\nb\nc\rd\r\n");
    let (kept, report) = read(&path, InvalidUtf8::Error).unwrap();
    assert_eq!((kept.as_str(), report.crlf, report.lone_cr), ("a\r\nb\nc\rd\r\n", 2, 1));
    let (equal, _) = read_texts(&[path], &[], InvalidUtf8::Error, Newlines::Lf).unwrap();
    assert_eq!(equal, "a\nb\nc\nd\n");
    let hash = |bytes: &[u8], newlines| {
        let path = write(&folder, "hashed.txt", bytes);
        let config = DataConfig { paths: vec![path], newlines, validation: 0.5, ..DataConfig::default() };
        Corpus::load(&config, 4, 1000).unwrap().summary.sha256
    };
    let (unix, windows) = (b"line\nline\nline\n".as_slice(), b"line\r\nline\r\nline\r\n".as_slice());
    assert_ne!(hash(unix, Newlines::Keep), hash(windows, Newlines::Keep));
    assert_eq!(hash(unix, Newlines::Lf), hash(windows, Newlines::Lf));
}

#[test]
fn a_folder_is_read_in_order_without_binaries_and_hidden_files() {
    let folder = folder();
    write(&folder, "b/two.txt", b"two");
    write(&folder, "a.py", b"one");
    write(&folder, "c.bin", &[1, 2, 0, 4]);
    write(&folder, ".hidden", b"no");
    let (text, report) = read_texts(&[folder.path().into()], &[], InvalidUtf8::Error, Newlines::Keep).unwrap();
    assert_eq!((text.as_str(), report.files, report.binary_files), ("one\ntwo", 2, 1));
    // A link to a folder or file that is read already adds nothing, and a loop of links ends.
    #[cfg(unix)]
    for (target, link) in [(".", "self"), ("b", "again"), ("b/two.txt", "copy.txt")] {
        std::os::unix::fs::symlink(folder.path().join(target), folder.path().join(link)).unwrap();
    }
    let (again, report) = read_texts(&[folder.path().into()], &[], InvalidUtf8::Error, Newlines::Keep).unwrap();
    assert_eq!(report.files, 2, "{again}");
    let (text, _) = read_texts(&[folder.path().into()], &["py".into()], InvalidUtf8::Error, Newlines::Keep).unwrap();
    assert_eq!(text, "one");
    let error = read_texts(&[folder.path().into()], &["md".into()], InvalidUtf8::Error, Newlines::Keep).unwrap_err();
    assert!(error.to_string().contains(".md"), "{error}");
    let error = read(&folder.path().join("none"), InvalidUtf8::Error).unwrap_err();
    assert!(error.to_string().contains("cannot be read"), "{error}");
}

/// A tokenizer file of three words, as Hugging Face's library writes them.
const TOKENIZER: &str = r#"{
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
  "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
  "model": { "type": "WordLevel", "vocab": { "[UNK]": 0, "the": 1, "cat": 2 }, "unk_token": "[UNK]" }
}"#;

#[test]
fn a_tokenizer_file_makes_the_tokens_and_bytes_per_token_stay_known() {
    let folder = folder();
    let tokenizer = write(&folder, "tokenizer.json", TOKENIZER.as_bytes());
    let path = write(&folder, "text.txt", "the cat the dog ".repeat(40).as_bytes());
    let config =
        DataConfig { paths: vec![path], tokenizer: Some(tokenizer.clone()), validation: 0.25, ..DataConfig::default() };
    let corpus = Corpus::load(&config, 8, 1000).unwrap();
    assert_eq!(corpus.training[..5], [1, 2, 1, 0, 1]);
    assert_eq!((corpus.training.len(), corpus.validation.len(), corpus.vocabulary.size()), (120, 40, 3));
    assert_eq!(corpus.summary.bytes_per_token, Some(4.0));
    assert_eq!(corpus.vocabulary.decode(&[1, 2]), "the cat");
    // Limits that the file sets for single sentences do not cut the corpus; a byte-order mark does no harm;
    // numbers with gaps are within the vocabulary.
    let limited = TOKENIZER
        .replace(
            "\"truncation\": null",
            r#""truncation": {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}"#,
        )
        .replace("\"cat\": 2", "\"cat\": 9");
    std::fs::write(&tokenizer, format!("\u{feff}{limited}")).unwrap();
    let corpus = Corpus::load(&config, 8, 1000).unwrap();
    assert_eq!((corpus.training.len(), corpus.training[1], corpus.vocabulary.size()), (120, 9, 10));
    std::fs::write(&tokenizer, "{").unwrap();
    let error = Corpus::load(&config, 8, 1000).unwrap_err();
    assert!(error.to_string().contains("tokenizer.json cannot be used"), "{error}");
    assert!(error.hint().unwrap().contains("tokenizer.json"));
}
