//! Tests that need more than Rust: root, FUSE, a compiler.
//!
//! A test that finds a need missing calls [`skip`] and returns. Where the need was promised, the test fails.
//! Elsewhere it is counted as skipped and not as passed.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Write;

/// The environment variable with the promised needs, separated by commas: `root,fuse`.
const PROMISE: &str = "WARPFIRE_TESTS_PROMISE";
/// The environment variable with the path of the list of skipped tests.
const LIST: &str = "WARPFIRE_TESTS_SKIPPED";

/// Part of a machine that some tests need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// The tests run as root.
    Root,
    /// `/dev/fuse` can be opened.
    Fuse,
    /// An ordinary user can mount: `fusermount3` is installed.
    UserMounts,
    /// `unshare` can make user and mount namespaces.
    Namespaces,
    /// `cc` compiles C.
    CCompiler,
    /// `python3` is installed.
    Python,
    /// `script`, which runs a program on a terminal, is installed.
    Script,
    /// The directory for temporary files has extended attributes.
    Attributes,
    /// `systemd-analyze` is installed.
    Systemd,
    /// GNU `tar` is installed.
    Tar,
    /// The kernel drops inodes when a FUSE server asks: Linux 6.18 and later.
    FusePrune,
    /// The kernel sends FUSE requests over io_uring: Linux 6.14 and later, with `fuse.enable_uring` set.
    FuseQueues,
}

impl Need {
    /// Its name in `WARPFIRE_TESTS_PROMISE`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Need::Root => "root",
            Need::Fuse => "fuse",
            Need::UserMounts => "user-mounts",
            Need::Namespaces => "namespaces",
            Need::CCompiler => "cc",
            Need::Python => "python3",
            Need::Script => "script",
            Need::Attributes => "xattr",
            Need::Systemd => "systemd",
            Need::Tar => "tar",
            Need::FusePrune => "fuse-prune",
            Need::FuseQueues => "fuse-queues",
        }
    }
}

impl Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counts the calling test as skipped, because `need` is missing.
///
/// # Panics
/// The need was promised, or the list of skipped tests cannot be written.
pub fn skip(need: Need, why: impl Display) {
    let promise = std::env::var(PROMISE).unwrap_or_default();
    assert!(!is_promised(&promise, need), "{PROMISE} promises {need}, but it is missing: {why}");
    let test = std::thread::current().name().unwrap_or("unnamed").to_owned();
    eprintln!("skipped: {test} needs {need}: {why}");
    let Some(list) = std::env::var_os(LIST) else { return };
    let line = format!("{test}: needs {need}: {why}\n");
    // One write with O_APPEND: tests of several processes share the list.
    let written =
        File::options().append(true).create(true).open(list).and_then(|mut f| f.write_all(line.as_bytes()));
    written.expect("the list of skipped tests can be written");
}

fn is_promised(promise: &str, need: Need) -> bool {
    promise.split(',').any(|word| word.trim() == need.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_promised_by_its_whole_name() {
        assert!(is_promised("root, fuse", Need::Fuse));
        assert!(is_promised("xattr", Need::Attributes));
        assert!(!is_promised("", Need::Root));
        assert!(!is_promised("user-mounts,roots", Need::Root));
    }
}
