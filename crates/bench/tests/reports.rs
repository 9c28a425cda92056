//! The real program on image files in a temporary directory.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

fn empty() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Runs the program in a directory and returns its output.
fn succeeds(inside: &Path, words: &str) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_warpfire-bench"));
    let output = program.args(words.split(' ')).current_dir(inside).output().expect("the program runs");
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a report is text")
}

#[test]
fn a_report_has_a_row_for_each_target_and_names_what_it_left_out() {
    let inside = empty();
    let words = "create --files 500 --runs 1 --capacity 64M --peers raw --json";
    let report: Value = serde_json::from_str(&succeeds(inside.path(), words)).expect("JSON");
    assert_eq!(report["rows"][0]["target"], "library");
    assert_eq!(report["rows"][0]["ops"], 500);
    assert!(report["rows"][0]["devices"]["writes"].as_u64().expect("counted") > 0);
    assert!(report["rows"][0]["write_amplification"].as_f64().expect("counted") > 1.0);
    assert_eq!(report["skipped"][0]["target"], "raw");
    let left: Vec<_> = std::fs::read_dir(inside.path()).expect("a directory").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_server_without_a_filesystem_takes_part_or_is_named() {
    let inside = empty();
    let words = "create --files 200 --dirs 2 --runs 2 --capacity 64M --peers empty,empty-shared --json";
    let report: Value = serde_json::from_str(&succeeds(inside.path(), words)).expect("JSON");
    let names = |list: &str| {
        let targets = report[list].as_array().expect("a list").iter();
        targets.map(|row| row["target"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let named = [names("rows"), names("skipped")].concat();
    assert_eq!(named, ["library", "empty", "empty-shared"], "{report}");
    let left: Vec<_> = std::fs::read_dir(inside.path()).expect("a directory").collect();
    assert!(left.is_empty(), "{left:?}");
    let words = "remove --files 200 --runs 1 --capacity 64M --peers empty --json";
    let report: Value = serde_json::from_str(&succeeds(inside.path(), words)).expect("JSON");
    assert_eq!(report["skipped"][0]["target"], "empty");
}

#[test]
fn the_library_with_snapshots_has_rows_of_its_own() {
    let inside = empty();
    for (workload, snapshots, rows) in [("lookup", 10, 4), ("randwrite", 4, 2), ("create", 200, 2)] {
        let words = format!(
            "{workload} --files 100 --large 8M --runs 1 --capacity 64M --snapshots {snapshots} --json"
        );
        let report: Value = serde_json::from_str(&succeeds(inside.path(), &words)).expect("JSON");
        let names: Vec<_> =
            report["rows"].as_array().expect("a list").iter().map(|row| row["target"].clone()).collect();
        assert_eq!(names.len(), rows, "{report}");
        // There is at most one snapshot for each write.
        let taken = format!("library, {} snapshots", snapshots.min(100));
        assert!(names[..rows / 2].iter().all(|name| name == "library"), "{names:?}");
        assert!(names[rows / 2..].iter().all(|name| *name == taken.as_str()), "{names:?}");
    }
    let report = succeeds(inside.path(), "meta --files 200 --runs 1 --capacity 64M --snapshots 3 --json");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["skipped"][0]["target"], "snapshots");
}

#[test]
fn every_workload_runs_on_the_library() {
    let inside = empty();
    for workload in ["create", "read", "stat", "remove", "sync", "randread", "randwrite", "seq", "meta"] {
        let words =
            format!("{workload} --files 200 --large 8M --threads 2 --dirs 2 --runs 1 --capacity 128M");
        let report = succeeds(inside.path(), &words);
        assert!(report.contains("library") || report.contains("engine scan"), "{workload}: {report}");
    }
}

#[test]
fn a_mount_without_the_product_command_says_how_to_build_it() {
    let inside = empty();
    let words = "create --files 10 --runs 1 --capacity 64M --peers mount --warpfire /nowhere/warpfire";
    let mut program = Command::new(env!("CARGO_BIN_EXE_warpfire-bench"));
    let output =
        program.args(words.split(' ')).current_dir(inside.path()).output().expect("the program runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("cargo build"), "{stderr}");
}
