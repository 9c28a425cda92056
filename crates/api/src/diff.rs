//! The changes that a transaction would make, or that lie between snapshots, path by path.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub use warpfire_fs::{Aspect, ChangeKind, ChangedRanges};

use crate::{Engine, Metadata, Result, Tx, Warpfire};

/// One path that a commit would change, or that differs between snapshots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change(warpfire_fs::PathChange);

impl Change {
    /// The path: of a name that is removed, the old one, otherwise the one after the commit.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// What happens to the name.
    #[must_use]
    pub fn kind(&self) -> &ChangeKind {
        &self.0.kind
    }

    /// The attributes before; `None` if the file is new.
    #[must_use]
    pub fn before(&self) -> Option<Metadata> {
        self.0.before.map(Metadata::from)
    }

    /// The attributes after; `None` if the name is removed.
    #[must_use]
    pub fn after(&self) -> Option<Metadata> {
        self.0.after.map(Metadata::from)
    }

    /// The properties that differ between [`before`](Change::before) and [`after`](Change::after). For a file
    /// with several names only one of the changes lists them. The times of a directory, which the filesystem
    /// keeps itself, do not count.
    #[must_use]
    pub fn aspects(&self) -> Vec<Aspect> {
        self.0.aspects()
    }

    /// The ranges of the content that differ.
    #[must_use]
    pub fn data(&self) -> &ChangedRanges {
        &self.0.data
    }

    /// How many extended attributes are added, removed or changed, and the names of the first of them.
    #[must_use]
    pub fn xattrs(&self) -> (u64, &[OsString]) {
        (self.0.xattrs.0, &self.0.xattrs.1)
    }
}

impl From<Change> for warpfire_fs::PathChange {
    fn from(change: Change) -> Self {
        change.0
    }
}

/// Changes, as an iterator. From [`Tx::diff`] and [`Warpfire::diff_snapshots`].
#[derive(Debug)]
pub struct Diff(warpfire_fs::Diff<Engine>);

impl Iterator for Diff {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(Change).map_err(Into::into))
    }
}

impl Tx {
    /// Lists the changes that a commit would make now, ordered by path: a directory before the names in it,
    /// names in the order of their bytes. The list compares with the pool as of the beginning of the
    /// transaction. It ignores later commits of others, so it does not predict a conflict. It shows every
    /// change, whatever the permissions of the directories. A moved directory is one change; the names in it
    /// are not listed.
    ///
    /// ```
    /// use warpfire::{ChangeKind, Pool};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/draft", b"one")?;
    /// let tx = fs.begin()?;
    /// tx.rename("/draft", "/letter")?;
    /// tx.write("/copy", b"one")?;
    /// for change in tx.diff()? {
    ///     let change = change?;
    ///     match change.kind() {
    ///         ChangeKind::Renamed(from) => println!("{} -> {}", from.display(), change.path().display()),
    ///         kind => println!("{kind:?} {} {:?}", change.path().display(), change.aspects()),
    ///     }
    /// }
    /// # let paths =
    /// #     tx.diff()?.map(|change| Ok(change?.path().to_owned())).collect::<warpfire::Result<Vec<_>>>()?;
    /// # assert_eq!(paths, [std::path::Path::new("/copy"), std::path::Path::new("/letter")]);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Damaged`, here and from the iterator.
    pub fn diff(&self) -> Result<Diff> {
        Ok(Diff(self.transaction().diff()?))
    }
}

impl Warpfire {
    /// Lists the changes from a snapshot to a later one, or with `None` to now, in the order of
    /// [`Tx::diff`]. Times of access are not compared. No content is read, but where a file has changed in a
    /// few short ranges.
    ///
    /// The cost follows the changes and not the number of files: tables without a change since the older
    /// snapshot are not read. A changed file of several names, none of which has changed, costs a search of
    /// all names.
    ///
    /// ```
    /// use warpfire::{Aspect, ChangeKind, Pool};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/plan", b"first")?;
    /// fs.create_snapshot("monday")?;
    /// fs.write("/plan", b"fifth")?;
    /// fs.write("/new", b"")?;
    /// let mut diff = fs.diff_snapshots("monday", None)?;
    /// let (new, plan) = (diff.next().unwrap()?, diff.next().unwrap()?);
    /// assert_eq!((new.path().to_str(), new.kind()), (Some("/new"), &ChangeKind::Created));
    /// assert_eq!((plan.aspects()[0], &plan.data().ranges[..]), (Aspect::Data, &[2..5][..]));
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` if the second snapshot is the older one; `NoMemory`; `Damaged`, also from
    /// the iterator.
    pub fn diff_snapshots(&self, before: impl AsRef<OsStr>, after: Option<&OsStr>) -> Result<Diff> {
        let fs = self.fs();
        let before = fs.snapshot(before.as_ref().as_bytes())?;
        let after = after.map(|name| fs.snapshot(name.as_bytes())).transpose()?;
        Ok(Diff(fs.diff_snapshots(&before, after.as_ref())?))
    }
}
