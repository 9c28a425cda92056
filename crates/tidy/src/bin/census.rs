//! Prints the census of the product and of the engine. `scripts/census` runs it.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use warpfire_tidy::census::{Census, FileCensus, count, percentile};
use warpfire_tidy::modules::{arrows, mutual_pairs};
use warpfire_tidy::words::WordRules;
use warpfire_tidy::{documents, is_for_tests, members, root, sources};

/// The engine: crates that handle every byte.
const ENGINE: [&str; 5] = ["pool", "log", "slices", "meta", "fs"];
/// Crates that are not part of the product.
const BESIDE_THE_PRODUCT: [&str; 4] = ["tidy", "sim", "sim-env", "bench"];

fn main() {
    let crates: Vec<String> = members()
        .iter()
        .filter_map(|member| member.directory.file_name().map(|name| name.to_string_lossy().into_owned()))
        .collect();
    let product: Vec<&str> =
        crates.iter().map(String::as_str).filter(|name| !BESIDE_THE_PRODUCT.contains(name)).collect();
    print_row(
        "",
        &[
            "files",
            "median",
            "p90",
            "max",
            "functions",
            "median",
            "p90",
            "p99",
            "max",
            "comments",
            "long with",
            "asserts",
        ],
    );
    print_row("", &["", "lines", "", "", "", "lines", "", "", "", "per 100", "comment %", "per fn"]);
    print_census("product", &of(&product));
    print_census("engine", &of(&ENGINE));
    for name in &crates {
        print_census(name, &of(&[name]));
    }
    let census = of(&product);
    let often: Vec<String> =
        census.types_defined_often().map(|(name, count)| format!("{name} {count}")).collect();
    println!("\ntype names of the product that are defined three times and more: {}", often.len());
    if !often.is_empty() {
        println!("  {}", often.join(", "));
    }
    print_words();
    print_knots();
}

fn read(path: &PathBuf) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn of(crates: &[&str]) -> Census {
    let directories: Vec<PathBuf> =
        crates.iter().map(|name| root().join("crates").join(name).join("src")).collect();
    let files = sources().into_iter().filter(|path| {
        !is_for_tests(path) && directories.iter().any(|directory| path.starts_with(directory))
    });
    let counted = files.map(|path| -> FileCensus {
        count(&read(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    });
    Census::of(counted)
}

fn print_census(name: &str, census: &Census) {
    let functions = census.function_lines();
    let number = |n: usize| n.to_string();
    let row = [
        number(census.file_lines.len()),
        number(percentile(&census.file_lines, 50)),
        number(percentile(&census.file_lines, 90)),
        number(percentile(&census.file_lines, 100)),
        number(functions.len()),
        number(percentile(&functions, 50)),
        number(percentile(&functions, 90)),
        number(percentile(&functions, 99)),
        number(percentile(&functions, 100)),
        format!("{:.1}", census.comments_per_100_body_lines()),
        format!("{:.0}", 100.0 * census.long_functions_with_comment()),
        format!("{:.2}", census.asserts_per_function()),
    ];
    print_row(name, &row.each_ref().map(String::as_str));
}

fn print_row(name: &str, cells: &[&str]) {
    let cells: String = cells.iter().map(|cell| format!(" {cell:>9}")).collect();
    println!("{name:10}{cells}");
}

fn print_words() {
    let rules = WordRules::default();
    let beside = root().join("crates/tidy");
    let rust = sources().into_iter().filter(|path| !path.starts_with(&beside));
    let in_rust: usize = rust.map(|path| rules.in_rust(&read(&path)).len()).sum();
    let in_documents: usize = documents().iter().map(|path| rules.in_prose(&read(path)).len()).sum();
    println!("banned words: {in_rust} in comments and messages, {in_documents} in documents");
}

fn print_knots() {
    let src = root().join("crates/fs/src");
    let is_source = |path: &PathBuf| path.starts_with(&src) && !is_for_tests(path);
    let files: Vec<(PathBuf, String)> = sources()
        .into_iter()
        .filter(is_source)
        .map(|path| {
            let text = read(&path);
            (path, text)
        })
        .collect();
    let knots = mutual_pairs(&arrows(&src, &files));
    let knots: Vec<String> = knots.iter().map(|(a, b)| format!("{a}-{b}")).collect();
    println!("modules of fs that use each other: {} ({})", knots.len(), knots.join(", "));
}
