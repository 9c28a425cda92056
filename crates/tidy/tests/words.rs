//! Prose: no banned word in comments, messages and documents, and comments no wider than the code.

use warpfire_tidy::words::WordRules;
use warpfire_tidy::{documents, root, sources, text};

/// Columns of a comment line at most: `max_width` in rustfmt.toml, which formats code only.
const COMMENT_COLUMNS_MAX: usize = 110;

/// Files that have to hold the banned words: the rules themselves.
fn holds_the_rules(path: &std::path::Path) -> bool {
    path.starts_with(root().join("crates/tidy"))
}

#[test]
fn no_banned_word_stands_in_comments_messages_and_documents() {
    let rules = WordRules::default();
    let mut problems = Vec::new();
    for path in sources().into_iter().filter(|path| !holds_the_rules(path)) {
        let source = std::fs::read_to_string(&path).expect("a source file is text");
        let found = rules.in_rust(&source);
        problems.extend(
            found.iter().map(|f| format!("{}:{}: '{}': {}", path.display(), f.line, f.word, f.advice)),
        );
    }
    for path in documents() {
        let text = std::fs::read_to_string(&path).expect("a document is text");
        let found = rules.in_prose(&text);
        problems.extend(
            found.iter().map(|f| format!("{}:{}: '{}': {}", path.display(), f.line, f.word, f.advice)),
        );
    }
    assert!(problems.is_empty(), "{} banned words:\n{}", problems.len(), problems.join("\n"));
}

/// Numbers of the lines whose comment passes the width.
fn wide_comments(source: &str) -> Vec<usize> {
    let lines = text::lines(source);
    let wide = source.lines().zip(&lines).enumerate().filter(|(_, (line, parts))| {
        // A link does not break.
        !parts.comment.is_empty() && line.chars().count() > COMMENT_COLUMNS_MAX && !line.contains("://")
    });
    wide.map(|(index, _)| index + 1).collect()
}

#[test]
fn comments_are_as_wide_as_code_at_most() {
    let mut problems = Vec::new();
    for path in sources() {
        let source = std::fs::read_to_string(&path).expect("a source file is text");
        problems.extend(wide_comments(&source).iter().map(|line| format!("{}:{line}", path.display())));
    }
    assert!(
        problems.is_empty(),
        "{} comments pass column {COMMENT_COLUMNS_MAX}:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

#[test]
fn a_planted_wide_comment_is_noticed() {
    let wide = format!("// {}\n// short\nlet a = \"{}\";\n", "x".repeat(110), "x".repeat(110));
    assert_eq!(wide_comments(&wide), [1]);
}
