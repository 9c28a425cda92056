//! What a transaction would change.

use std::ffi::OsString;
use std::path::Path;

pub use warpfire_fs::{Aspect, ChangeKind, ChangedRanges};

use crate::{Engine, Metadata, Result, Tx};

/// One path that a commit would change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change(warpfire_fs::PathChange);

impl Change {
    /// Where: of a name that goes where it was, else where it will be.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// What happens to the name.
    #[must_use]
    pub fn kind(&self) -> &ChangeKind {
        &self.0.kind
    }

    /// What the file was; `None` if it is made.
    #[must_use]
    pub fn before(&self) -> Option<Metadata> {
        self.0.before.map(Metadata::from)
    }

    /// What it will be; `None` if its name goes.
    #[must_use]
    pub fn after(&self) -> Option<Metadata> {
        self.0.after.map(Metadata::from)
    }

    /// What differs between `before` and `after`. Of a file of several names it is told once; times that the filesystem keeps for a folder by itself
    /// do not count.
    #[must_use]
    pub fn aspects(&self) -> Vec<Aspect> {
        self.0.aspects()
    }

    /// Where the content will be another one.
    #[must_use]
    pub fn data(&self) -> &ChangedRanges {
        &self.0.data
    }

    /// How many extended attributes come, go, or get another value, and the names of the first.
    #[must_use]
    pub fn xattrs(&self) -> (u64, &[OsString]) {
        (self.0.xattrs.0, &self.0.xattrs.1)
    }
}

/// The changes of a transaction, from [`Tx::diff`].
#[derive(Debug)]
pub struct Diff(warpfire_fs::Diff<Engine>);

impl Iterator for Diff {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(Change).map_err(Into::into))
    }
}

impl Tx {
    /// What a commit would change now, in the order of the paths: folders before what they hold, names in the order of their bytes. It is against what was there
    /// when the transaction began; what others have changed since, and whether that conflicts, it does not say. Whoever asks sees all of it, whatever the
    /// permissions of the folders. A folder that was moved is one change; what is in it, none.
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
    /// # let told = tx.diff()?.map(|change| Ok(change?.path().to_owned())).collect::<warpfire::Result<Vec<_>>>()?;
    /// # assert_eq!(told, [std::path::Path::new("/copy"), std::path::Path::new("/letter")]);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Damaged`, here and from the iterator.
    pub fn diff(&self) -> Result<Diff> {
        Ok(Diff(self.transaction().diff()?))
    }
}
