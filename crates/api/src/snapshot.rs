//! Snapshots: the pool as it was at a moment, kept under a name.

use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use warpfire_env::Timestamp;
use warpfire_meta::SnapshotView;
use warpfire_units::Seq;

use crate::{Engine, Result, Warpfire};

/// The store that the calls on a [`Snapshot`] work on.
pub type SnapshotEngine = SnapshotView<Engine>;

/// A snapshot in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// Its name: 1 to 255 bytes.
    pub name: OsString,
    /// The time at which it was made.
    pub made: Timestamp,
    /// Inodes that it shows: files, directories and the root.
    pub inodes: u64,
    /// Bytes of its files without their holes. Shared bytes count once for each file.
    pub file_bytes: u64,
    /// Its number in this pool. Later snapshots have higher ones.
    pub number: u64,
    /// The rule that made it, if one did.
    pub rule: Option<OsString>,
    /// Why it must stay, in the order of their bytes.
    pub holds: Vec<OsString>,
}

impl From<warpfire_fs::SnapshotInfo> for SnapshotInfo {
    fn from(info: warpfire_fs::SnapshotInfo) -> Self {
        SnapshotInfo {
            name: OsString::from_vec(info.name),
            made: info.made,
            inodes: info.inodes,
            file_bytes: info.file_bytes,
            number: info.seq.0,
            rule: info.rule.map(OsString::from_vec),
            holds: info.holds.into_iter().map(OsString::from_vec).collect(),
        }
    }
}

/// The bytes of files that deleting a snapshot frees. Metadata and parity do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotSpace {
    /// The number of the snapshot.
    pub number: u64,
    /// Bytes that nothing else needs: they are free without this snapshot.
    pub alone_bytes: u64,
    /// Bytes that are free without this snapshot and all older ones.
    pub with_older_bytes: u64,
}

/// What a rollback has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotRollback {
    /// The snapshot that the tree shows now.
    pub to: SnapshotInfo,
    /// The snapshot of the tree as it was before.
    pub kept: SnapshotInfo,
}

impl From<warpfire_fs::Rollback> for SnapshotRollback {
    fn from(done: warpfire_fs::Rollback) -> Self {
        SnapshotRollback { to: done.to.into(), kept: done.kept.into() }
    }
}

/// An open snapshot. It has all calls of [`Warpfire`] that read; calls that change something fail with
/// `ReadOnly`. If the snapshot is deleted, it stays readable here until the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Snapshot(Warpfire<SnapshotEngine>);

impl Deref for Snapshot {
    type Target = Warpfire<SnapshotEngine>;

    fn deref(&self) -> &Warpfire<SnapshotEngine> {
        &self.0
    }
}

impl Warpfire {
    /// Makes a snapshot of the whole pool as it is now. It copies nothing, and takes as long for a billion
    /// files as for one. It is durable after the next sync, with everything that it shows.
    ///
    /// Bytes that are removed or overwritten later stay in the pool while a snapshot shows them.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/plan", b"first")?;
    /// fs.create_snapshot("monday")?;
    /// fs.write("/plan", b"second")?;
    /// let monday = fs.open_snapshot("monday")?;
    /// assert_eq!((monday.read("/plan")?, fs.read("/plan")?), (b"first".to_vec(), b"second".to_vec()));
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists`; `InvalidInput` for a name that is empty, longer than 255 bytes, `.` or `..`, that
    /// holds `/` or NUL, or begins with `@`; `NoSpace`, also with 2^20 snapshots in the pool; `ReadOnly`.
    pub fn create_snapshot(&self, name: impl AsRef<OsStr>) -> Result<SnapshotInfo> {
        Ok(self.fs().create_snapshot(name.as_ref().as_bytes())?.into())
    }

    /// The first `max` snapshots after the one with this number, from the oldest to the newest. The first of
    /// all is after 0.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn snapshots_after(&self, number: u64, max: usize) -> Result<Vec<SnapshotInfo>> {
        let found = self.fs().snapshots_after(Seq(number), max)?;
        Ok(found.into_iter().map(SnapshotInfo::from).collect())
    }

    /// The snapshots of the pool, from the oldest to the newest.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        Ok(self.fs().snapshots()?.into_iter().map(SnapshotInfo::from).collect())
    }

    /// What deleting each snapshot frees, from the oldest to the newest. Bytes that several files, snapshots
    /// or clones need count once. The bytes come back when compaction meets what named them.
    ///
    /// All metadata is read twice for it, and the metadata in memory is written first. Changes that are made
    /// during the call do not count.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/film", vec![1; 300_000])?;
    /// fs.create_snapshot("monday")?;
    /// fs.create_snapshot("tuesday")?;
    /// fs.remove_file("/film")?;
    /// let space = fs.snapshot_space()?;
    /// assert_eq!((space[0].alone_bytes, space[0].with_older_bytes), (0, 0));
    /// assert_eq!((space[1].alone_bytes, space[1].with_older_bytes), (0, 300_000));
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Damaged`.
    pub fn snapshot_space(&self) -> Result<Vec<SnapshotSpace>> {
        let of = |space: warpfire_fs::SnapshotSpace| SnapshotSpace {
            number: space.seq.0,
            alone_bytes: space.alone_bytes,
            with_older_bytes: space.with_older_bytes,
        };
        Ok(self.fs().snapshot_space()?.into_iter().map(of).collect())
    }

    /// The bytes of files that are free once all snapshots are deleted of whose number `is_gone` is true. It
    /// costs as much as [`snapshot_space`](Self::snapshot_space).
    ///
    /// # Errors
    /// `Damaged`.
    pub fn bytes_freed_without(&self, is_gone: impl Fn(u64) -> bool) -> Result<u64> {
        Ok(self.fs().bytes_freed_without(|seq| is_gone(seq.0))?)
    }

    /// The newest snapshot that was made at this moment or before.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`.
    pub fn snapshot_at(&self, moment: Timestamp) -> Result<SnapshotInfo> {
        Ok(self.fs().snapshot_at(moment)?.into())
    }

    /// The newest snapshot that was made in this second since 1970.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`.
    pub fn snapshot_in_second(&self, second: i64) -> Result<SnapshotInfo> {
        Ok(self.fs().snapshot_in_second(second)?.into())
    }

    /// Deletes a snapshot and returns what it was. The deletion is durable on return. Bytes that nothing else
    /// needs become free in the background, and at once when a writer needs them.
    ///
    /// ```
    /// use warpfire::{ErrorKind, Pool};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.create_snapshot("monday")?;
    /// fs.delete_snapshot("monday")?;
    /// assert!(fs.snapshots()?.is_empty());
    /// assert_eq!(fs.open_snapshot("monday").unwrap_err().kind(), ErrorKind::NotFound);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `Held`; `ReadOnly`.
    pub fn delete_snapshot(&self, name: impl AsRef<OsStr>) -> Result<SnapshotInfo> {
        Ok(self.fs().delete_snapshot(name.as_ref().as_bytes())?.into())
    }

    /// Adds a hold to a snapshot: until it is released, nobody can delete the snapshot. A hold has a name, so
    /// that several programs can hold one snapshot. It is durable after the next sync.
    ///
    /// ```
    /// use warpfire::{ErrorKind, Pool};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.create_snapshot("monday")?;
    /// fs.hold_snapshot("monday", "backup")?;
    /// assert_eq!(fs.delete_snapshot("monday").unwrap_err().kind(), ErrorKind::Held);
    /// fs.release_snapshot("monday", "backup")?;
    /// fs.delete_snapshot("monday")?;
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `AlreadyExists` if the snapshot has this hold; `InvalidInput` for a name that no file can
    /// have, or if the snapshot has 16 holds; `ReadOnly`.
    pub fn hold_snapshot(&self, name: impl AsRef<OsStr>, hold: impl AsRef<OsStr>) -> Result<SnapshotInfo> {
        Ok(self.fs().hold_snapshot(name.as_ref().as_bytes(), hold.as_ref().as_bytes())?.into())
    }

    /// Takes a hold away. This is durable after the next sync.
    ///
    /// # Errors
    /// `NotFound` without such a snapshot or such a hold; `ReadOnly`.
    pub fn release_snapshot(&self, name: impl AsRef<OsStr>, hold: impl AsRef<OsStr>) -> Result<SnapshotInfo> {
        Ok(self.fs().release_snapshot(name.as_ref().as_bytes(), hold.as_ref().as_bytes())?.into())
    }

    /// Makes the tree what a snapshot shows, in one commit, and keeps what it was as the snapshot `kept_as`.
    /// Both are durable on return. No snapshot goes, so a rollback to `kept_as` undoes this one. It is one
    /// record, however many files have changed. The changed records are written again in the background
    /// afterwards. Until then reads of these files are a little slower.
    ///
    /// A file that is open and that the snapshot does not have stays without a name until it is closed. A
    /// transaction that has read what goes back ends as a conflict.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/file", b"good")?;
    /// fs.create_snapshot("monday")?;
    /// fs.remove_file("/file")?;
    /// fs.roll_back_to_snapshot("monday", "before")?;
    /// assert_eq!(fs.read("/file")?, b"good");
    /// fs.roll_back_to_snapshot("before", "again")?;
    /// assert!(!fs.exists("/file"));
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `AlreadyExists` if there is a snapshot `kept_as`; `Conflict` if another thread changes
    /// something during the rollback; `InvalidInput` for a name that no snapshot can have, if a volume was
    /// made, moved or deleted since, or if the metadata of open files that the snapshot does not have is more
    /// than the memory for transactions; `NoMemory` if transactions have the rest of that; `NoSpace`;
    /// `ReadOnly`. Then the tree is as it was.
    pub fn roll_back_to_snapshot(
        &self,
        name: impl AsRef<OsStr>,
        kept_as: impl AsRef<OsStr>,
    ) -> Result<SnapshotRollback> {
        let (name, kept_as) = (name.as_ref().as_bytes(), kept_as.as_ref().as_bytes());
        Ok(self.fs().roll_back(name, kept_as, &mut |_| ())?.into())
    }

    /// Opens a snapshot for reading.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`.
    pub fn open_snapshot(&self, name: impl AsRef<OsStr>) -> Result<Snapshot> {
        Ok(Snapshot(self.over(&self.fs().open_snapshot(name.as_ref().as_bytes())?)))
    }
}
