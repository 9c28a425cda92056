//! Crates and files of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// One crate of the workspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Package name.
    pub name: String,
    /// The directory that holds its `Cargo.toml`.
    pub directory: PathBuf,
    /// Packages that it needs in a normal build: not those for tests or for its build script.
    pub normal_dependencies: Vec<String>,
}

/// The root of the workspace.
///
/// # Panics
/// This crate is not two directories below the root.
#[must_use]
pub fn root() -> PathBuf {
    // Cargo sets it at run time too. Two checkouts with one target directory share compiled programs.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).ancestors().nth(2).expect("this crate lies two directories below the root").to_path_buf()
}

/// All crates of the workspace, by name.
///
/// # Panics
/// `cargo metadata` fails, or prints something else than it documents.
#[must_use]
pub fn members() -> Vec<Member> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs: it is running this test");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let mut members: Vec<Member> = list(&metadata, "packages").iter().map(member).collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    members
}

fn member(package: &Value) -> Member {
    let manifest = PathBuf::from(text(package, "manifest_path"));
    let mut normal_dependencies: Vec<String> = list(package, "dependencies")
        .iter()
        .filter(|dependency| dependency["kind"].is_null())
        .map(|dependency| text(dependency, "name"))
        .collect();
    normal_dependencies.dedup();
    Member {
        name: text(package, "name"),
        directory: manifest.parent().expect("a manifest lies in a directory").to_path_buf(),
        normal_dependencies,
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().expect("cargo metadata documents this key as a list")
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().expect("cargo metadata documents this key as a string").to_owned()
}

/// Every Rust source file of the workspace, of the fuzz targets and of the schedules.
///
/// # Panics
/// A directory cannot be read.
#[must_use]
pub fn sources() -> Vec<PathBuf> {
    files_below(&["crates", "fuzz/src", "fuzz/fuzz_targets", "schedules/src", "schedules/tests"], "rs")
}

/// Every Markdown document: in the root, in `docs`, and in the crates.
///
/// # Panics
/// A directory cannot be read.
#[must_use]
pub fn documents() -> Vec<PathBuf> {
    let mut found = files_below(&["crates", "docs"], "md");
    let top = std::fs::read_dir(root()).expect("the root can be read");
    let top = top.map(|entry| entry.expect("the root can be read").path());
    found.extend(top.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    found.sort();
    found
}

/// Whether a file belongs to tests only: by its name, or by a directory such as `tests` or `benches` on its
/// path.
#[must_use]
pub fn is_for_tests(path: &Path) -> bool {
    let inside = path.strip_prefix(root()).unwrap_or(path);
    let mut parts = inside.iter().map(|part| part.to_string_lossy());
    parts.any(|part| {
        matches!(
            &*part,
            "tests" | "tests.rs" | "test_rig" | "testing.rs" | "benches" | "examples" | "fuzz" | "build.rs"
        )
    })
}

fn files_below(directories: &[&str], extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = directories.iter().map(|directory| root().join(directory)).collect();
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).expect("the source tree can be read") {
            let path = entry.expect("the source tree can be read").path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target") {
                    left.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
