//! The workspace as its own tests see it: crates, what they depend on, and the files they are made of.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// One crate of the workspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Package name.
    pub name: String,
    /// The folder that holds its `Cargo.toml`.
    pub folder: PathBuf,
    /// Packages that it needs to build: neither for tests only nor for its build script.
    pub normal_dependencies: Vec<String>,
}

/// The root of the workspace.
///
/// # Panics
/// If this crate was moved away from `crates/house`.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate lies two folders below the root").to_path_buf()
}

/// All crates of the workspace, by name.
///
/// # Panics
/// If `cargo metadata` can not be run or prints something else than it is documented to print.
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
    let normal_dependencies = list(package, "dependencies")
        .iter()
        .filter(|dependency| dependency["kind"].is_null())
        .map(|dependency| text(dependency, "name"))
        .collect();
    Member {
        name: text(package, "name"),
        folder: manifest.parent().expect("a manifest lies in a folder").to_path_buf(),
        normal_dependencies,
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().expect("cargo metadata documents this key as a list")
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().expect("cargo metadata documents this key as a string").to_owned()
}

/// Every Rust source file of the workspace.
///
/// # Panics
/// If a folder can not be read.
#[must_use]
pub fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the source tree can be read") {
            let path = entry.expect("the source tree can be read").path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
