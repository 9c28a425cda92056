//! Corruption codes are permanent. Each number has one meaning for ever, and docs/FORMAT.md lists it.
//!
//! Product code defines a code in one form only: `const NAME: Corrupt = Corrupt::new(123, "…");`. This test
//! reads that form.

use std::collections::BTreeMap;
use std::path::Path;

use warpfire_tidy::{root, sources};

/// The range of codes: roots and stripes, segments and log, tables and manifest, filesystem values.
const CODES: std::ops::Range<u16> = 100..500;

/// The field of an error that holds a code.
const FIELD: &str = "code:";

/// The one call that defines a code, and the text before it.
const CALL: &str = "Corrupt::new(";
const NAMED: &str = ": Corrupt =";

/// The rows `| 123 | meaning |` of docs/FORMAT.md as pairs.
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

/// Whether a source file is a test as a whole. Tests may use codes that are not defined.
fn is_test(path: &Path) -> bool {
    let parts = path.components().filter_map(|part| part.as_os_str().to_str());
    path.file_name().is_some_and(|name| name == "tests.rs") || parts.into_iter().any(|part| part == "tests")
}

/// The product part of every source file with its path, without the test module at its end.
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

/// Every code that product text defines, with its file.
fn named_codes(files: &[(String, String)]) -> Vec<(u16, String)> {
    let mut found = Vec::new();
    for (path, text) in files {
        let codes = text.split(CALL).skip(1).filter_map(number).filter(|code| CODES.contains(code));
        found.extend(codes.map(|code| (code, path.clone())));
    }
    found
}

/// Uses of codes in any other form than a named constant, as sentences.
fn unnamed_codes(files: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files {
        for rest in text.split(FIELD).skip(1) {
            if let Some(code) = number(rest) {
                found.push(format!("{path} uses the literal {code} as a code"));
            }
        }
        let mut before = String::new();
        for (i, part) in text.split(CALL).enumerate() {
            if i > 0 && (!before.trim_end().ends_with(NAMED) || number(part).is_none()) {
                found.push(format!("{path} calls {CALL}…) outside of a constant"));
            }
            before = part.to_owned();
        }
    }
    found
}

/// Panics if a code comes twice.
fn once_each(codes: &[(u16, String)]) -> BTreeMap<u16, String> {
    let mut seen: BTreeMap<u16, String> = BTreeMap::new();
    for (code, at) in codes {
        if let Some(other) = seen.insert(*code, at.clone()) {
            panic!("corruption code {code} is defined twice: '{other}' and '{at}'");
        }
    }
    seen
}

#[test]
fn no_code_is_documented_twice() {
    assert!(once_each(&documented()).len() > 40, "docs/FORMAT.md has tables of corruption codes");
}

#[test]
fn no_code_is_defined_twice_and_each_is_documented() {
    let documented = once_each(&documented());
    let named = once_each(&named_codes(&product()));
    assert!(named.len() > 40, "the sources define codes");
    for (code, path) in &named {
        assert!(
            documented.contains_key(code),
            "{path} defines code {code}, which docs/FORMAT.md does not list"
        );
    }
    for (code, meaning) in &documented {
        assert!(
            named.contains_key(code),
            "docs/FORMAT.md lists code {code}, {meaning}, which nothing defines"
        );
    }
}

#[test]
fn every_code_has_a_name() {
    let unnamed = unnamed_codes(&product());
    assert!(unnamed.is_empty(), "a code has to be a named constant:\n{}", unnamed.join("\n"));
}

/// The test finds codes that are not named constants in a made-up file, and accepts the right form.
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
