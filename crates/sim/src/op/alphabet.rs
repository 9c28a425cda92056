//! The namespace and the operations of the small workloads: every one of one and two operations is tried.
//!
//! All known crash bugs of kernel filesystems showed with at most three operations on a handful of names
//! (Mohan and others, OSDI 2018). So the alphabet is operations on a few names, each able to disturb another.

use warpfire_fs::RenameMode;

use super::{Fill, Op, Span};
use crate::model::{PAGE, Path};

fn path(text: &str) -> Path {
    text.split('/').filter(|name| !name.is_empty()).map(|name| name.as_bytes().to_vec()).collect()
}

fn fill(len: usize, seed: u64) -> Fill {
    Fill { len, seed }
}

/// The operations that make the namespace, which is durable before each workload: a small file, one too large
/// to be inline, a second name, an empty directory and a full one.
#[must_use]
pub fn namespace() -> Vec<Op> {
    vec![
        Op::Put(path("/small"), fill(3_000, 1)),
        Op::Put(path("/large"), fill(70_000, 2)),
        Op::Mkdir(path("/empty")),
        Op::Mkdir(path("/full")),
        Op::Put(path("/full/x"), fill(100, 3)),
        Op::Link(path("/small"), path("/full/second")),
        Op::SetXattr(path("/small"), b"user.a".to_vec(), fill(40, 4)),
    ]
}

/// The operations of which the workloads are made.
#[must_use]
pub fn alphabet() -> Vec<Op> {
    let span = |offset, len| Span { offset, len };
    let replace = RenameMode::Replace;
    // Sizes lie on both sides of the inline limit, and names collide with those of the namespace.
    vec![
        Op::Create(path("/new")),
        Op::Put(path("/new"), fill(50_000, 5)),
        Op::Mkdir(path("/new")),
        Op::Symlink(path("/new"), b"small".to_vec()),
        Op::Write(path("/small"), 1_000, fill(6_000, 6)),
        Op::Write(path("/large"), 30_000, fill(40_000, 7)),
        Op::Append(path("/small"), fill(500, 8)),
        Op::Append(path("/large"), fill(35_000, 9)),
        Op::Truncate(path("/large"), 10),
        Op::Punch(path("/large"), span(PAGE, 3 * PAGE)),
        Op::Insert(path("/large"), span(PAGE, 2 * PAGE)),
        Op::Collapse(path("/large"), span(PAGE, 2 * PAGE)),
        Op::CopyRange(path("/large"), span(100, 40_000), path("/small"), 5_000),
        Op::Link(path("/large"), path("/full/new")),
        Op::Unlink(path("/small")),
        Op::Unlink(path("/large")),
        Op::Rmdir(path("/empty")),
        Op::Rename(path("/small"), path("/large"), replace),
        Op::Rename(path("/large"), path("/new"), replace),
        Op::Rename(path("/full"), path("/empty"), replace),
        Op::Rename(path("/small"), path("/empty"), RenameMode::Exchange),
        Op::SetMode(path("/small"), 0o600),
        Op::SetXattr(path("/large"), b"user.b".to_vec(), fill(2_000, 10)),
        Op::RemoveXattr(path("/small"), b"user.a".to_vec()),
        Op::Background(2),
    ]
}
