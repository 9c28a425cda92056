//! Diffs: the changes between two states of the filesystem, path by path.
//!
//! The diff of a transaction has the changes that its commit would make: commits of others since the
//! transaction began are in neither state, and the diff adds nothing to the read set. The diff of two
//! snapshots has the changes from the older to the newer one, or to the present. A diff looks only at keys
//! that have been changed in between.
//!
//! # Terms
//! The two *sides* are *before* and *after*: the base when a transaction began and its view of it now, or the
//! older and the newer snapshot. A name is *removed* if it refers to a file before and not to that file
//! after, and *added* the other way round. A file that existed before, with a removed name and an added name,
//! is *renamed*. When a directory is renamed, the names in it are neither removed nor added.
//!
//! # Invariants
//! 1. Two walks, one of each side, visit changed names and the names on the way to them: directories before
//!    their names, and names in the order of their bytes (assert in `SideWalk::step`). So each walk lists its
//!    changes in the order of their paths, and the diff merges the two lists.
//! 2. The walk of the before side lists removed names by their old path. The walk of the after side lists
//!    everything else by its new path (`tests::diff::model`).
//! 3. A file of several names is compared once: where the walk meets it first (`Survey::reported`).
//! 4. The memory that a diff takes depends on changed directories, moved files and files of several names
//!    (`survey.rs`), never on the number of files that were made or removed. It is charged to the
//!    account of the filesystem.
//!
//! ```text
//!   changed keys ──► Survey ─┬─► before: deleted ───────────────────────────┬──► PathChange, by path
//!                            └─► after: created, renamed, linked, changed ──┘
//! ```
//!
//! A change that the transaction makes while its diff is read may be missing from the diff.

pub(crate) mod content;
pub(crate) mod sides;
pub(crate) mod snapshots;
pub(crate) mod survey;
mod walk;

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use warpfire_meta::Storage;

use crate::attrs::Attr;
use crate::error::FsError;
use crate::tx::{Transaction, TxFs};
use sides::{DiffSide, DiffSides};
use survey::Survey;
use walk::{DiffContext, SideWalk};

/// Most ranges of a file that a [`PathChange`] lists; it counts all.
pub const RANGES_LISTED_MAX: usize = 16;

/// Most extended attributes of a file that a [`PathChange`] lists; it counts all.
pub const XATTRS_LISTED_MAX: usize = 16;

/// One path that is changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathChange {
    /// The path from the root: the old one of a name that is removed, else the new one.
    pub path: PathBuf,
    /// The change of the name.
    pub kind: ChangeKind,
    /// The old attributes; `None` if the file is made. Of a directory's times only those that a call has set
    /// are current.
    pub before: Option<Attr>,
    /// The new attributes; `None` if the name is removed. A directory's times are as in `before`.
    pub after: Option<Attr>,
    /// The ranges in which its content changes.
    pub data: ChangedRanges,
    /// Extended attributes that are added, removed or changed: how many, and the names of the first.
    pub xattrs: (u64, Vec<OsString>),
}

/// The change of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// A new file, or directory, or anything else.
    Created,
    /// The name is removed, and the file with it if the name was its last.
    Deleted,
    /// The name is added, and this old name of the same file is removed.
    Renamed(PathBuf),
    /// One more name of a file, and another name of it, if one is known.
    Linked(Option<PathBuf>),
    /// The name stays; the file is changed.
    Changed,
}

/// Ranges of a file that differ, in bytes of its new content. Up to 64 KiB in up to [`RANGES_LISTED_MAX`]
/// ranges are compared byte by byte. In larger changes every byte that was written counts, also one with the
/// same value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChangedRanges {
    /// Number of bytes in all ranges.
    pub bytes: u64,
    /// Number of ranges.
    pub count: u64,
    /// The first ranges.
    pub ranges: Vec<Range<u64>>,
}

/// A property of a file that a diff compares.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Aspect {
    /// Content.
    Data,
    /// Length.
    Size,
    /// Permissions.
    Mode,
    /// Owner or group.
    Owner,
    /// Time of the last change of content; of a directory, only a time that a call has set.
    ModifiedTime,
    /// Time of the last access: only one that a call has set.
    AccessTime,
    /// Extended attributes.
    Xattrs,
}

impl PathChange {
    /// The properties that differ between `before` and `after`; none for a file that is made or a name that
    /// is removed.
    #[must_use]
    pub fn aspects(&self) -> Vec<Aspect> {
        let (Some(before), Some(after)) = (&self.before, &self.after) else { return Vec::new() };
        let all = [
            (Aspect::Data, self.data.count > 0),
            (Aspect::Size, before.size_bytes != after.size_bytes),
            (Aspect::Mode, before.mode != after.mode),
            (Aspect::Owner, (before.uid, before.gid) != (after.uid, after.gid)),
            (Aspect::ModifiedTime, before.mtime != after.mtime),
            (Aspect::AccessTime, before.atime != after.atime),
            (Aspect::Xattrs, self.xattrs.0 > 0),
        ];
        all.into_iter().filter(|(_, differs)| *differs).map(|(aspect, _)| aspect).collect()
    }
}

/// The changes of a transaction, or between snapshots, in the order of their paths: directories before their
/// names, names in the order of their bytes. Of one path, the file that is removed comes before the file that
/// takes its name. After an error the iterator ends.
pub struct Diff<E: Storage> {
    sides: DiffSides<E>,
    survey: Survey,
    before: SideCursor,
    after: SideCursor,
    failed: bool,
}

/// A walk and the next change of its side.
struct SideCursor {
    walk: SideWalk,
    next: Option<PathChange>,
}

impl SideCursor {
    fn step<E: Storage>(&mut self, pair: &mut DiffContext<'_, E>) -> Result<(), FsError> {
        self.next = self.walk.step(pair)?;
        Ok(())
    }
}

impl<E: Storage> Transaction<E> {
    /// The changes that a commit would make now. The diff does not check whether the commit would conflict.
    /// This call reads all changed names; the iterator reads the rest.
    ///
    /// # Errors
    /// `Damaged` if a record does not decode; `Ended`.
    pub fn diff(&self) -> Result<Diff<E>, FsError> {
        Diff::of(Arc::clone(self.files()))
    }
}

impl<E: Storage> Diff<E> {
    /// As [`Transaction::diff`], for a caller that has only [`Transaction::files`].
    ///
    /// # Errors
    /// As there.
    pub fn of(tx_fs: Arc<TxFs<E>>) -> Result<Diff<E>, FsError> {
        Diff::of_sides(DiffSides::Transaction(tx_fs))
    }

    pub(crate) fn of_sides(sides: DiffSides<E>) -> Result<Diff<E>, FsError> {
        let survey = Survey::make(&sides)?;
        let root = sides.root();
        let cursor = |side| SideCursor { walk: SideWalk::new(side, root), next: None };
        let mut diff = Diff {
            sides,
            survey,
            before: cursor(DiffSide::Before),
            after: cursor(DiffSide::After),
            failed: false,
        };
        // The root has no name, so no walk visits it. Its own change comes first.
        let mut pair = DiffContext { sides: &diff.sides, survey: &mut diff.survey };
        diff.before.step(&mut pair)?;
        diff.after.next = pair.root()?;
        if diff.after.next.is_none() {
            diff.after.step(&mut pair)?;
        }
        Ok(diff)
    }
}

impl<E: Storage> Iterator for Diff<E> {
    type Item = Result<PathChange, FsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        // At equal paths before is first: a name is removed and then taken by another file.
        let goes_first = match (&self.before.next, &self.after.next) {
            (Some(before), Some(after)) => !walk::is_after(&before.path, &after.path),
            (before, _) => before.is_some(),
        };
        let cursor = if goes_first { &mut self.before } else { &mut self.after };
        let change = cursor.next.take()?;
        let mut pair = DiffContext { sides: &self.sides, survey: &mut self.survey };
        if let Err(e) = cursor.step(&mut pair) {
            self.failed = true;
            return Some(Err(e));
        }
        Some(Ok(change))
    }
}

impl<E: Storage> std::fmt::Debug for Diff<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Diff").finish_non_exhaustive()
    }
}
