//! Corruption codes are permanent: each number means one thing, for ever, and docs/FORMAT.md says what.

use std::collections::BTreeMap;

use warpfire_house::{root, sources};

/// Numbers that rooms own: roots and stripes, segments and log, tables and manifest, filesystem values.
const CODES: std::ops::Range<u16> = 100..500;

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

/// Every code that a source file gives to `Corrupt::new`, with the file.
fn in_sources() -> Vec<(u16, String)> {
    let mut found = Vec::new();
    for path in sources() {
        let text = std::fs::read_to_string(&path).expect("a source file is text");
        for rest in text.split("Corrupt::new(").skip(1) {
            let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
            // What tests make up has a number that no room owns.
            if let Some(code) = digits.parse().ok().filter(|code| CODES.contains(code)) {
                found.push((code, path.display().to_string()));
            }
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
    for (code, path) in once_each(&in_sources()) {
        assert!(
            documented.contains_key(&code),
            "{path} gives code {code}, which docs/FORMAT.md does not explain"
        );
    }
}
