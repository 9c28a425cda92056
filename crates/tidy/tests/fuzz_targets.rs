//! Each decoder in fuzz/src/decoders.rs has a fuzz target, and each target is built.

use std::collections::BTreeSet;

use warpfire_tidy::root;

/// The quoted text after each `before` in a file of the directory `fuzz`.
fn quoted(file: &str, before: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("fuzz").join(file)).expect("the fuzz crate is there");
    let quoted = |rest: &str| rest.split('"').next().map(str::to_owned);
    text.split(&format!("{before}\"")).skip(1).filter_map(quoted).collect()
}

fn target_files() -> BTreeSet<String> {
    let directory = std::fs::read_dir(root().join("fuzz/fuzz_targets")).expect("the fuzz crate is there");
    let names = directory.map(|entry| entry.expect("a directory is read").file_name());
    names.map(|name| name.to_string_lossy().trim_end_matches(".rs").to_owned()).collect()
}

#[test]
fn every_target_is_built_and_every_decoder_has_one() {
    let files = target_files();
    let built: BTreeSet<String> = quoted("Cargo.toml", "path = ")
        .iter()
        .filter_map(|path| path.strip_prefix("fuzz_targets/")?.strip_suffix(".rs").map(str::to_owned))
        .collect();
    assert_eq!(built, files);
    let decoders = quoted("src/decoders.rs", "Decoder { name: ");
    assert!(decoders.len() > 10, "the list of decoders is not found: {decoders:?}");
    assert_eq!(decoders.difference(&files).collect::<Vec<_>>(), Vec::<&String>::new());
}
