//! Rules for every crate and every source file.

use warpfire_tidy::{members, root, sources};

/// A longer file is hard to hold in the head.
const LINES_MAX: usize = 700;

const HEADINGS: [&str; 5] = ["Owns", "Must not know", "Depends on", "Invariants", "How it is tested"];

/// File names that say nothing about the content.
const NAMES_BANNED: [&str; 8] =
    ["util", "utils", "helper", "helpers", "common", "misc", "stuff", "everything"];

#[test]
fn every_crate_has_a_readme_with_the_five_headings() {
    let mut wrong = Vec::new();
    for member in members() {
        let readme = std::fs::read_to_string(member.directory.join("README.md")).unwrap_or_default();
        let headings: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        if headings != HEADINGS {
            wrong.push(format!("{}: README.md has the headings {headings:?}", member.name));
        }
    }
    assert!(wrong.is_empty(), "{}\nexpected {HEADINGS:?}", wrong.join("\n"));
}

#[test]
fn no_source_file_is_too_long() {
    let mut wrong = Vec::new();
    for path in sources() {
        let lines = std::fs::read_to_string(&path).expect("a source file is text").lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{} has {lines} lines", path.display()));
        }
    }
    assert!(wrong.is_empty(), "more than {LINES_MAX} lines:\n{}", wrong.join("\n"));
}

#[test]
fn the_name_of_every_source_file_says_what_it_holds() {
    for path in sources() {
        let inside = path.strip_prefix(root()).expect("sources lie below the root");
        let mut parts = inside.iter().map(|part| part.to_string_lossy());
        assert!(
            !parts.any(|part| NAMES_BANNED.contains(&part.trim_end_matches(".rs"))),
            "the name of {} says nothing about its content",
            inside.display()
        );
    }
}

#[test]
fn every_document_that_the_map_names_exists() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the map exists");
    let links = map.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for link in links {
        assert!(root().join(link).exists(), "ARCHITECTURE.md names {link}, which does not exist");
    }
}
