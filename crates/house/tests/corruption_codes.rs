//! Corruption codes are permanent: each number means one thing, for ever.

use std::collections::BTreeMap;

use warpfire_house::root;

/// The rows of the tables in docs/FORMAT.md, section "Corruption codes", as (code, meaning).
fn documented_codes() -> Vec<(u16, String)> {
    let format = std::fs::read_to_string(root().join("docs/FORMAT.md")).expect("docs/FORMAT.md exists");
    let mut inside = false;
    let mut codes = Vec::new();
    for line in format.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            inside = heading.starts_with("Corruption codes");
        }
        let mut cells = line.trim().trim_matches('|').split('|').map(str::trim);
        let code = cells.next().and_then(|cell| cell.parse::<u16>().ok());
        if let (true, true, Some(code)) = (inside, line.starts_with('|'), code) {
            codes.push((code, cells.collect::<Vec<_>>().join(" | ")));
        }
    }
    codes
}

#[test]
fn no_code_is_given_twice() {
    let codes = documented_codes();
    assert!(!codes.is_empty(), "docs/FORMAT.md has a table of corruption codes");
    let mut seen: BTreeMap<u16, String> = BTreeMap::new();
    for (code, meaning) in codes {
        if let Some(other) = seen.insert(code, meaning.clone()) {
            panic!("corruption code {code} means both '{other}' and '{meaning}'");
        }
    }
}

#[test]
fn every_code_lies_in_a_range_that_a_room_owns() {
    for (code, meaning) in documented_codes() {
        assert!((100..500).contains(&code), "corruption code {code} ('{meaning}') is in no room's range");
    }
}
