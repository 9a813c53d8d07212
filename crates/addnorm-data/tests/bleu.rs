//! BLEU against what sacreBLEU 2.6.0 gives (`corpus_bleu` with its defaults and the tokenisation named).

use addnorm_data::{BleuTokens, bleu};

fn check(outputs: &[&str], references: &[&str], tokens: BleuTokens, score: f64, brevity: f64, lengths: (usize, usize)) {
    let found = bleu(outputs.iter().copied().zip(references.iter().copied()), tokens);
    assert!((found.score - score).abs() < 1e-9, "{found:?}, not {score}");
    assert!((found.brevity_penalty - brevity).abs() < 1e-12, "{found:?}");
    assert_eq!((found.output_length, found.reference_length), lengths);
}

#[test]
fn scores_are_those_of_the_reference_implementation() {
    check(
        &["the cat sat on the mat today", "a quick brown fox jumps over the dog", "he said it was fine"],
        &["the cat sat on the mat", "the quick brown fox jumps over the lazy dog", "he said that it was fine"],
        BleuTokens::None,
        66.6711230544521,
        0.951229424500714,
        (20, 21),
    );
    check(
        &["the cat", "a dog runs in the park now"],
        &["the cat sat on the mat today", "a dog runs through the park now"],
        BleuTokens::None,
        24.218522766731315,
        0.5737534207374327,
        (9, 14),
    );
    check(&["x y z w v"], &["a b c d e"], BleuTokens::None, 0.0, 1.0, (5, 5));
    check(
        &["a b c q r s", "d e f t u"],
        &["a b c d e f", "d e f g h i"],
        BleuTokens::None,
        26.34181432072045,
        0.9131007162822624,
        (11, 12),
    );
}

#[test]
fn characters_are_words_where_a_script_has_no_spaces() {
    check(
        &["创建新的模块。", "不会显示任何错误栏", "数据库表格公司"],
        &["创建一个新模块。", "不显示任何错误栏。", "数据库.表格.公司"],
        BleuTokens::Char,
        45.11795077468947,
        0.8777137332821824,
        (23, 26),
    );
}

#[test]
fn nothing_written_scores_nothing() {
    check(&["", ""], &["a b c d", "e f"], BleuTokens::None, 0.0, 0.0, (0, 6));
}
