//! Bodies of the engine's functions speak and assert, files stay small, and `fs` has no knot.

use std::path::PathBuf;

use warpfire_tidy::census::{Census, count, percentile};
use warpfire_tidy::modules::{arrows, mutual_pairs};
use warpfire_tidy::{is_for_tests, root, sources};

/// Crates on the path of every byte.
const ENGINE: [&str; 5] = ["pool", "log", "slices", "meta", "fs"];
const COMMENTS_PER_100_BODY_LINES_MIN: f64 = 4.0;
const ASSERTS_PER_FUNCTION_MIN: f64 = 0.15;
/// A file longer than this holds more than one thought.
const FILE_LINES_MAX: usize = 700;
const FILE_LINES_MEDIAN_MAX: usize = 250;

fn read(path: PathBuf) -> (PathBuf, String) {
    let text = std::fs::read_to_string(&path).expect("a source file is text");
    (path, text)
}

fn census(of_crate: &str) -> Census {
    let src = root().join("crates").join(of_crate).join("src");
    let files = sources().into_iter().filter(|path| path.starts_with(&src) && !is_for_tests(path)).map(read);
    Census::of(files.map(|(path, text)| count(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))))
}

#[test]
fn bodies_of_the_engine_have_comments_and_asserts() {
    let mut wrong = Vec::new();
    for name in ENGINE {
        let census = census(name);
        let (comments, asserts) = (census.comments_per_100_body_lines(), census.asserts_per_function());
        if comments < COMMENTS_PER_100_BODY_LINES_MIN || asserts < ASSERTS_PER_FUNCTION_MIN {
            wrong.push(format!(
                "{name}: {comments:.1} comments per 100 body lines, {asserts:.2} asserts per function"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_source_file_holds_more_than_one_thought() {
    let mut lines = Vec::new();
    for (path, text) in sources().into_iter().map(read) {
        let count = text.lines().count();
        assert!(count <= FILE_LINES_MAX, "{} has {count} lines, {FILE_LINES_MAX} at most", path.display());
        lines.push(count);
    }
    lines.sort_unstable();
    assert!(percentile(&lines, 50) < FILE_LINES_MEDIAN_MAX);
}

#[test]
fn no_module_of_fs_is_knotted_with_transactions() {
    let src = root().join("crates/fs/src");
    let files: Vec<_> = sources()
        .into_iter()
        .filter(|path| path.starts_with(&src) && !is_for_tests(path))
        .map(read)
        .collect();
    let knots = mutual_pairs(&arrows(&src, &files));
    assert!(!knots.iter().any(|(a, b)| a == "tx" || b == "tx"), "modules that use each other: {knots:?}");
}
