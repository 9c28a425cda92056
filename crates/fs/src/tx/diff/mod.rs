//! What a commit would change, path by path.
//!
//! What the transaction sees is compared with what was there when it began; what others have committed since is in neither. Only what the transaction has
//! changed is looked at, and nothing of that counts as read.
//!
//! # Terms
//! The two *sides* are before and inside. A name *goes* if it leads to a file before and not to that file inside, and *comes* the other way round.
//! A file that was there before and of which a name goes and one comes is *renamed*; a directory's names do not go with it.
//!
//! # Invariants
//! 1. Two walks, one of each side, visit changed names and those on the way to them, directories before what they hold and names in the order of
//!    their bytes. So each gives its changes in the order of their paths, and the diff is the merge of both.
//! 2. A name that goes is told of by the walk of before, by the path that it had; all else by the walk of inside, by the path that it will have.
//! 3. A file of several names is compared where the walk meets it first.
//! 4. In memory are the ways to directories that have changed, names of files that were moved and files of several names (`survey.rs`): never what is made
//!    or deleted.
//!
//! What is changed inside while a diff is read may be in it or not.

mod content;
mod sides;
mod survey;
mod walk;

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use warpfire_meta::Storage;

use super::begin::{Transaction, TxFs};
use crate::attrs::Attr;
use crate::error::FsError;
use sides::{DiffSide, DiffSides};
use survey::Survey;
use walk::{DiffContext, SideWalk};

/// Ranges of a file that a [`PathChange`] tells; it counts all.
pub const RANGES_LISTED_MAX: usize = 16;

/// Extended attributes of a file that a [`PathChange`] names; it counts all.
pub const XATTRS_LISTED_MAX: usize = 16;

/// One path that a commit would change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathChange {
    /// Where, from the root: of a name that goes where it was, else where it will be.
    pub path: PathBuf,
    /// What happens to the name.
    pub kind: ChangeKind,
    /// What the file was; `None` if it is made. A directory's times are as far as someone has set them.
    pub before: Option<Attr>,
    /// What it will be; `None` if its name goes.
    pub after: Option<Attr>,
    /// Where its content will be another one.
    pub data: ChangedRanges,
    /// Extended attributes that come, go, or get another value: how many, and the names of the first.
    pub xattrs: (u64, Vec<OsString>),
}

/// What happens to a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// A new file, or directory, or anything else.
    Created,
    /// The name goes, and the file with it if it was the last.
    Deleted,
    /// The name comes, and this one of the same file goes.
    Renamed(PathBuf),
    /// One more name of a file, of which another is this, if one is known.
    Linked(Option<PathBuf>),
    /// The name stays; the file is changed.
    Changed,
}

/// Parts of a file that differ, in bytes of what it will be. Up to 64 KiB in few ranges are compared byte by byte; of more, what was written anew differs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChangedRanges {
    /// How many bytes.
    pub bytes: u64,
    /// In how many ranges.
    pub count: u64,
    /// The first of them.
    pub ranges: Vec<Range<u64>>,
}

/// Something that is said of a file.
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
    /// When content was changed; of a directory, when someone has set it.
    ModifiedTime,
    /// When it was read, when someone has set it.
    AccessTime,
    /// Extended attributes.
    Xattrs,
}

impl PathChange {
    /// What differs between `before` and `after`; nothing of a file that is made, and of a name that goes.
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

/// The changes of a transaction, in the order of their paths: directories before what they hold, names in the order of their bytes. Of one path the file that
/// goes is before the one that comes. After an error there is nothing.
pub struct Diff<E: Storage> {
    sides: DiffSides<E>,
    survey: Survey,
    before: SideCursor,
    after: SideCursor,
    failed: bool,
}

/// A walk and the change that it has come to.
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
    /// What a commit would change now; whether it would conflict is not looked at. All changed names are looked at first, the rest as the diff is read.
    ///
    /// # Errors
    /// `Damaged` if a record does not decode; `Ended`.
    pub fn diff(&self) -> Result<Diff<E>, FsError> {
        Diff::of(Arc::clone(&self.tx_fs))
    }
}

impl<E: Storage> Diff<E> {
    /// As [`Transaction::diff`], for who has only what [`Transaction::files`] gives.
    ///
    /// # Errors
    /// As there.
    pub fn of(tx_fs: Arc<TxFs<E>>) -> Result<Diff<E>, FsError> {
        let sides = DiffSides::new(tx_fs);
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
