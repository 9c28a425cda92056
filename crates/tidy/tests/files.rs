//! What every source file has in common, and what the map names.

use warpfire_tidy::{root, sources};

/// Names that say nothing of the content.
const NAMES_BANNED: [&str; 8] =
    ["util", "utils", "helper", "helpers", "common", "misc", "stuff", "everything"];

/// Whether a path, relative to the root, is named for its content.
fn says_its_content(inside: &std::path::Path) -> bool {
    let mut parts = inside.iter().map(|part| part.to_string_lossy());
    !parts.any(|part| NAMES_BANNED.contains(&part.trim_end_matches(".rs")))
}

#[test]
fn every_source_file_is_named_for_its_content() {
    for path in sources() {
        let inside = path.strip_prefix(root()).expect("sources lie below the root");
        assert!(says_its_content(inside), "{} is not named for its content", inside.display());
    }
}

#[test]
fn a_planted_name_is_noticed() {
    assert!(!says_its_content("crates/log/src/util.rs".as_ref()));
    assert!(!says_its_content("crates/log/src/misc/log.rs".as_ref()));
    assert!(says_its_content("crates/log/src/log.rs".as_ref()));
}

#[test]
fn every_document_that_the_map_names_exists() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the map exists");
    let links = map.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for link in links.filter(|link| !link.contains("://") && !link.starts_with('#')) {
        assert!(root().join(link).exists(), "ARCHITECTURE.md names {link}, which does not exist");
    }
}
