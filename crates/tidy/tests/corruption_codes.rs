//! Corruption codes are permanent: each number means one thing, for ever, and docs/FORMAT.md says what.
//!
//! Product code gives a code in one way only: `const NAME: Corrupt = Corrupt::new(123, "…");`. So this test
//! sees all of them.

use std::collections::BTreeMap;
use std::path::Path;

use warpfire_tidy::{root, sources};

/// Numbers that rooms own: roots and stripes, segments and log, tables and manifest, filesystem values.
const CODES: std::ops::Range<u16> = 100..500;

/// What a code is called where an error holds it.
const FIELD: &str = "code:";

/// The one call that makes a code, and what precedes it.
const CALL: &str = "Corrupt::new(";
const NAMED: &str = ": Corrupt =";

/// The rows `| 123 | meaning |` of docs/FORMAT.md, as (code, meaning).
fn documented() -> Vec<(u16, String)> {
    let format = std::fs::read_to_string(root().join("docs/FORMAT.md")).expect("docs/FORMAT.md exists");
    let row = |line: &str| {
        let (code, meaning) = line.strip_prefix("| ")?.split_once(" | ")?;
        let is_code = code.len() == 3 && !meaning.contains(" | ");
        let code = code.parse().ok().filter(|code| is_code && CODES.contains(code))?;
        Some((code, meaning.trim_end_matches(" |").to_owned()))
    };
    format.lines().filter_map(row).collect()
}

/// Whether a source file is a test as a whole. Tests may make up codes that no room owns.
fn is_test(path: &Path) -> bool {
    let parts = path.components().filter_map(|part| part.as_os_str().to_str());
    path.file_name().is_some_and(|name| name == "tests.rs") || parts.into_iter().any(|part| part == "tests")
}

/// The product part of every source file, with the file: tests at the end of a file are left out.
fn product() -> Vec<(String, String)> {
    let files = sources().into_iter().filter(|path| !is_test(path));
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a source file is text");
        let product = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
        (path.display().to_string(), product)
    };
    files.map(read).collect()
}

/// The number at the front of a text.
fn number(text: &str) -> Option<u16> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

/// Every code that product text names, with its file.
fn named_codes(files: &[(String, String)]) -> Vec<(u16, String)> {
    let mut found = Vec::new();
    for (path, text) in files {
        let codes = text.split(CALL).skip(1).filter_map(number).filter(|code| CODES.contains(code));
        found.extend(codes.map(|code| (code, path.clone())));
    }
    found
}

/// Codes that product text gives in another way than by a named constant, as sentences.
fn unnamed_codes(files: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files {
        for rest in text.split(FIELD).skip(1) {
            if let Some(code) = number(rest) {
                found.push(format!("{path} gives the literal {code} as a code"));
            }
        }
        let mut before = String::new();
        for (i, part) in text.split(CALL).enumerate() {
            if i > 0 && (!before.trim_end().ends_with(NAMED) || number(part).is_none()) {
                found.push(format!("{path} calls {CALL}…) elsewhere than for a constant"));
            }
            before = part.to_owned();
        }
    }
    found
}

/// Panics if a code is there twice.
fn once_each(codes: &[(u16, String)]) -> BTreeMap<u16, String> {
    let mut seen: BTreeMap<u16, String> = BTreeMap::new();
    for (code, at) in codes {
        if let Some(other) = seen.insert(*code, at.clone()) {
            panic!("corruption code {code} is given twice: '{other}' and '{at}'");
        }
    }
    seen
}

#[test]
fn no_code_is_documented_twice() {
    assert!(once_each(&documented()).len() > 40, "docs/FORMAT.md has tables of corruption codes");
}

#[test]
fn no_code_is_given_twice_and_each_is_documented() {
    let documented = once_each(&documented());
    let named = once_each(&named_codes(&product()));
    assert!(named.len() > 40, "the sources name codes");
    for (code, path) in &named {
        assert!(
            documented.contains_key(code),
            "{path} gives code {code}, which docs/FORMAT.md does not explain"
        );
    }
    for (code, meaning) in &documented {
        assert!(named.contains_key(code), "docs/FORMAT.md has code {code}, {meaning}, which nothing gives");
    }
}

#[test]
fn every_code_has_a_name() {
    let unnamed = unnamed_codes(&product());
    assert!(unnamed.is_empty(), "a code is given as a named constant:\n{}", unnamed.join("\n"));
}

/// The three ways that a code could be given unseen are found in a made-up file, and the right way is not.
#[test]
fn codes_without_a_name_are_found() {
    let unnamed = |text: &str| unnamed_codes(&[("made_up.rs".to_owned(), text.to_owned())]).len();
    assert_eq!(unnamed("const BAD: Corrupt = Corrupt::new(100, \"bad\");"), 0);
    assert_eq!(unnamed("const BAD: Corrupt =\n    Corrupt::new(100, \"bad\");"), 0);
    assert_eq!(unnamed("Damaged { code: BAD.code, reason }"), 0);
    assert_eq!(unnamed("Damaged { code: 0, reason }"), 1);
    assert_eq!(unnamed("Corrupt {\n    code:\n        306,\n    reason }"), 1);
    assert_eq!(unnamed("return Err(Corrupt::new(100, \"bad\"));"), 1);
    assert_eq!(unnamed("const BAD: Corrupt = Corrupt::new(CODE, \"bad\");"), 1);
}
