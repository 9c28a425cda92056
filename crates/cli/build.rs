//! Gives `warpfire version` the commit that a release is built from.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A build for development would be made again after every commit.
    if std::env::var("PROFILE").is_ok_and(|profile| profile != "release") {
        return;
    }
    // Without git, or outside of a repository, the release has no commit.
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    println!("cargo:rustc-env=WARPFIRE_COMMIT={commit}");
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in [Some("HEAD".to_owned()), branch].into_iter().flatten() {
        if let Some(path) = git(&["rev-parse", "--git-path", &name])
            && Path::new(&path).exists()
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

fn git(words: &[&str]) -> Option<String> {
    let ran = Command::new("git").args(words).output().ok().filter(|ran| ran.status.success())?;
    Some(String::from_utf8(ran.stdout).ok()?.trim().to_owned())
}
