//! Names of types: one name stands for one thing.

use std::collections::BTreeMap;
use std::path::PathBuf;

use warpfire_tidy::census::{Census, count};
use warpfire_tidy::{is_for_tests, root, sources};

/// Crates that are not part of the product: rules, simulators, benchmarks.
const BESIDE_THE_PRODUCT: [&str; 4] = ["crates/tidy", "crates/sim", "crates/sim-env", "crates/bench"];

/// Type names that do not say what a type is: participles, pronouns, and names of the prelude.
const TYPES_BANNED: &[&str] = &[
    "Accepted",
    "Again",
    "Alone",
    "Announced",
    "Asked",
    "Collected",
    "Drawn",
    "Filling",
    "Found",
    "Given",
    "Held",
    "How",
    "In",
    "Into",
    "Kept",
    "Known",
    "Lent",
    "Made",
    "Noted",
    "One",
    "Past",
    "Seen",
    "Shown",
    "Skipped",
    "Spent",
    "Standing",
    "Stood",
    "Strained",
    "Taken",
    "Told",
    "What",
    "Who",
    "From",
    "Iterator",
    "Option",
    "Some",
    "Vec",
];

fn product_sources() -> Vec<(PathBuf, String)> {
    let is_product = |path: &PathBuf| {
        let inside = path.strip_prefix(root()).expect("sources lie below the root");
        !is_for_tests(path) && !BESIDE_THE_PRODUCT.iter().any(|beside| inside.starts_with(beside))
    };
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a source file is text");
        (path, text)
    };
    sources().into_iter().filter(is_product).map(read).collect()
}

/// The problems with the type names of some files, as sentences.
fn problems(files: &[(PathBuf, String)]) -> Vec<String> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut counted = Vec::new();
    for (path, text) in files {
        let file = count(text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for name in &file.types {
            places.entry(name.clone()).or_default().push(path.display().to_string());
        }
        counted.push(file);
    }
    let census = Census::of(counted);
    let often = census
        .types_defined_often()
        .map(|(name, count)| format!("{name} is defined {count} times:\n  {}", places[name].join("\n  ")));
    let banned = places.iter().filter(|(name, _)| TYPES_BANNED.contains(&name.as_str()));
    often
        .chain(banned.map(|(name, at)| format!("{name} does not say what it is: {}", at.join(", "))))
        .collect()
}

#[test]
fn no_type_name_is_defined_three_times_and_each_says_what_it_is() {
    let problems = problems(&product_sources());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn planted_names_are_found() {
    let file = |name: &str, text: &str| (PathBuf::from(name), text.to_owned());
    let planted = [
        file("a.rs", "struct Entry; enum Told {}"),
        file("b.rs", "trait Entry {}"),
        file("c.rs", "type Entry = u8;"),
    ];
    assert_eq!(problems(&planted).len(), 2);
    assert_eq!(problems(&planted[1..]).len(), 0);
}
