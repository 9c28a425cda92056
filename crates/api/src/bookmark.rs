//! Bookmarks: the moments of snapshots that may be deleted.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use warpfire_env::Timestamp;

use crate::{Result, Warpfire};

/// A bookmark in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BookmarkInfo {
    /// Its name: 1 to 255 bytes.
    pub name: OsString,
    /// The name of its snapshot when the bookmark was made.
    pub snapshot: OsString,
    /// The time at which the snapshot was made.
    pub made: Timestamp,
    /// The number of the snapshot in this pool. Later snapshots have higher ones.
    pub number: u64,
}

impl From<warpfire_fs::BookmarkInfo> for BookmarkInfo {
    fn from(info: warpfire_fs::BookmarkInfo) -> Self {
        BookmarkInfo {
            name: OsString::from_vec(info.name),
            snapshot: OsString::from_vec(info.snapshot),
            made: info.made,
            number: info.seq.0,
        }
    }
}

impl Warpfire {
    /// Makes a bookmark of a snapshot. The changes since then can be [sent](Warpfire::send) when the snapshot
    /// is deleted. A bookmark keeps the old names and attributes of files that have changed since, and no
    /// bytes of files. It is durable after the next sync.
    ///
    /// ```
    /// use warpfire::{Pool, SendOptions};
    ///
    /// let (fs, backup) = (Pool::options().in_memory()?, Pool::options().in_memory()?);
    /// fs.write("/plan", b"first")?;
    /// fs.create_snapshot("monday")?;
    /// let mut stream = Vec::new();
    /// fs.send("monday", &SendOptions::default(), &mut stream)?;
    /// backup.receive("/copy", None, &mut stream.as_slice())?;
    ///
    /// fs.create_bookmark("monday", "sent")?;
    /// fs.delete_snapshot("monday")?;
    /// fs.write("/plan", b"second")?;
    /// fs.create_snapshot("tuesday")?;
    /// let since = SendOptions { since: Some("sent".into()), below: None };
    /// let mut changes = Vec::new();
    /// fs.send("tuesday", &since, &mut changes)?;
    /// backup.receive("/copy", None, &mut changes.as_slice())?;
    /// assert_eq!(backup.read("/copy/plan")?, b"second");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` without such a snapshot; `AlreadyExists` if a snapshot or a bookmark has the name;
    /// `InvalidInput` for a name that no snapshot can have; `NoSpace`, also with 4,096 bookmarks in the pool;
    /// `ReadOnly`.
    pub fn create_bookmark(
        &self,
        snapshot: impl AsRef<OsStr>,
        name: impl AsRef<OsStr>,
    ) -> Result<BookmarkInfo> {
        let (snapshot, name) = (snapshot.as_ref().as_bytes(), name.as_ref().as_bytes());
        Ok(self.fs().create_bookmark(snapshot, name)?.into())
    }

    /// The bookmarks of the pool, from the oldest to the newest.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn bookmarks(&self) -> Result<Vec<BookmarkInfo>> {
        Ok(self.fs().bookmarks()?.into_iter().map(BookmarkInfo::from).collect())
    }

    /// Deletes a bookmark and returns what it was. The deletion is durable on return. A stream that is being
    /// sent since it goes on.
    ///
    /// # Errors
    /// `NotFound`; `ReadOnly`.
    pub fn delete_bookmark(&self, name: impl AsRef<OsStr>) -> Result<BookmarkInfo> {
        Ok(self.fs().delete_bookmark(name.as_ref().as_bytes())?.into())
    }
}
