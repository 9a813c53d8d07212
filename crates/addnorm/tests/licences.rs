//! Every dependency may be used: its licence is on the list in `deny.toml`.

use std::path::Path;
use std::process::Command;

/// Whether a licence expression can be met from the list: one side of an `OR`, every side of an `AND`.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.trim().replace('/', " OR ");
    let mut depth = 0;
    let bytes = expression.as_bytes();
    for word in [" OR ", " AND "] {
        for at in 0..bytes.len() {
            match bytes[at] {
                b'(' => depth += 1,
                b')' => depth -= 1,
                _ => {}
            }
            if depth == 0 && expression[at..].starts_with(word) {
                let (left, right) = (&expression[..at], &expression[at + word.len()..]);
                return match word {
                    " OR " => is_met(left, allowed) || is_met(right, allowed),
                    _ => is_met(left, allowed) && is_met(right, allowed),
                };
            }
        }
    }
    match expression.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => is_met(inner, allowed),
        None => allowed.contains(&expression),
    }
}

#[test]
fn every_dependency_has_a_licence_on_the_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let deny: toml::Table = std::fs::read_to_string(root.join("deny.toml")).unwrap().parse().unwrap();
    let allowed: Vec<String> = deny["licenses"]["allow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|licence| licence.as_str().unwrap().to_string())
        .collect();
    // Only what is built: optional parts of dependencies that no feature of ours turns on do not count.
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--locked", "--offline", "--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p}\t{l}"])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let text = String::from_utf8(tree.stdout).unwrap();
    let mut refused: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .filter(|line| !is_met(line.split('\t').nth(1).unwrap_or("").trim_end_matches(" (*)"), &allowed))
        .collect();
    refused.sort_unstable();
    refused.dedup();
    assert_eq!(refused, [""; 0]);
    assert!(text.lines().count() > 100, "the tree was read");
}

#[test]
fn licence_expressions() {
    let allowed = ["MIT".to_string(), "Zlib".to_string()];
    for met in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "MIT AND Zlib", "(GPL-3.0 OR MIT) AND Zlib", "((MIT))"] {
        assert!(is_met(met, &allowed), "{met}");
    }
    for unmet in ["", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 AND MIT) OR GPL-2.0"] {
        assert!(!is_met(unmet, &allowed), "{unmet}");
    }
}
