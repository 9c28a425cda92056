//! The tables of docs/JSON.md are those of the types that commands serialise.

use warpfire_tidy::json_types::JsonTypes;
use warpfire_tidy::{is_for_tests, root, sources};

/// The line before the tables. The text above it is written by hand.
const MARK: &str = "<!-- The tables below are made from the types: WARPFIRE_WRITE_DOCS=1 cargo test -p warpfire-tidy --test json -->\n";

/// Crates whose types commands print.
const CRATES: [&str; 4] = ["cli", "check", "terminal", "api"];

/// The types that the text refers to: each link of the form `[Name](#name)`.
fn linked(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for link in text.split('[').skip(1) {
        let Some((name, rest)) = link.split_once(']') else { continue };
        if rest.starts_with(&format!("(#{})", name.to_lowercase())) {
            names.push(name.to_owned());
        }
    }
    names
}

#[test]
fn the_tables_of_json_documents_are_those_of_the_types() {
    let path = root().join("docs/JSON.md");
    let written = std::fs::read_to_string(&path).expect("the document is there");
    let (text, tables) = written.split_once(MARK).expect("the document has the mark");
    let mut types = JsonTypes::default();
    let crates = CRATES.map(|name| root().join("crates").join(name).join("src"));
    for source in sources() {
        if crates.iter().any(|within| source.starts_with(within)) && !is_for_tests(&source) {
            types.add(&std::fs::read_to_string(&source).expect("readable")).expect("it compiles");
        }
    }
    let made = types.tables(&linked(text)).unwrap_or_else(|reason| panic!("{reason}"));
    if std::env::var_os("WARPFIRE_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{text}{MARK}{made}")).expect("writable");
    } else {
        assert!(
            made == tables,
            "docs/JSON.md is not what the types say; write it: \
             WARPFIRE_WRITE_DOCS=1 cargo test -p warpfire-tidy --test json"
        );
    }
}
