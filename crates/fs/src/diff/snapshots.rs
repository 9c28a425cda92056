//! Two versions of a store as the sides of a diff: a snapshot, and a later snapshot or the present.

use std::sync::Arc;

use warpfire_format::fs::{FilesystemRecord, Key, PoolRecordId, VolumeId};
use warpfire_meta::{
    Direction, KeyRange, MemoryAccount, MetaError, ScanPage, SeqRange, SnapshotStore, Storage,
};
use warpfire_units::Seq;

use super::Diff;
use super::sides::{DiffSide, DiffSides};
use crate::error::FsError;
use crate::fs::Fs;
use crate::snapshot::{BookmarkInfo, SnapshotInfo};

/// Looks up the first changed keys of a range.
type ChangedKeys = Box<dyn Fn(KeyRange<'_>, usize) -> Result<Vec<Box<[u8]>>, MetaError> + Send + Sync>;

/// Two versions, and what holds them.
pub(crate) struct SnapshotPair<E: Storage> {
    pub(crate) engine: Arc<E>,
    pub(crate) memory: MemoryAccount,
    /// Inode numbers from here on were not in use before.
    pub(crate) next_ino_before: u64,
    /// As `next_ino_before`, of volumes.
    pub(crate) next_volume_before: VolumeId,
    pub(crate) changed: ChangedKeys,
    /// Whether before is a bookmark: the content of its files is not known.
    pub(crate) is_bookmark: bool,
    commits: SeqRange,
    _held: [E::Snapshot; 2],
}

impl<E: Storage> SnapshotPair<E> {
    fn seq(&self, side: DiffSide) -> Seq {
        match side {
            DiffSide::Before => self.commits.after,
            DiffSide::After => self.commits.upto,
        }
    }

    pub(crate) fn get(&self, side: DiffSide, key: &[u8], out: &mut Vec<u8>) -> Result<bool, MetaError> {
        self.engine.get(key, self.seq(side), out)
    }

    pub(crate) fn page(
        &self,
        side: DiffSide,
        range: KeyRange<'_>,
        max_entries: usize,
        max_bytes: usize,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        self.engine.scan(range, self.seq(side), Direction::Forward, max_entries, max_bytes, page)
    }
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// The changes between a snapshot and a later one, or with `None` up to now. The present lacks times of
    /// directories that are not yet written. Times of access are not compared.
    ///
    /// The cost follows the changes: tables without a commit after the older snapshot are not read. A
    /// changed file of several names, none of which has changed, costs a search of all names.
    ///
    /// # Errors
    /// `NotFound` if a snapshot has just been deleted; `Invalid` if the second is the older one; `Memory`;
    /// `Damaged`.
    pub fn diff_snapshots(
        &self,
        before: &SnapshotInfo,
        after: Option<&SnapshotInfo>,
    ) -> Result<Diff<E>, FsError> {
        Diff::of_sides(self.snapshot_sides(before, after)?)
    }

    /// A snapshot and a later one, or the present, for reading.
    ///
    /// # Errors
    /// As `diff_snapshots`.
    pub(crate) fn snapshot_sides(
        &self,
        before: &SnapshotInfo,
        after: Option<&SnapshotInfo>,
    ) -> Result<DiffSides<E>, FsError> {
        let held_before = self.engine.snapshot_at(before.seq).ok_or(FsError::NotFound)?;
        let held_after = match after {
            Some(after) => self.engine.snapshot_at(after.seq).ok_or(FsError::NotFound)?,
            None => self.engine.snapshot(),
        };
        self.sides_of([held_before, held_after], false)
    }

    /// A version that is held, and the present, for reading.
    ///
    /// # Errors
    /// As `diff_snapshots`.
    pub(crate) fn sides_since(&self, held: E::Snapshot) -> Result<DiffSides<E>, FsError> {
        let now = self.engine.snapshot();
        self.sides_of([held, now], false)
    }

    /// A bookmark and a later snapshot, for reading.
    ///
    /// # Errors
    /// As `diff_snapshots`.
    pub(crate) fn bookmark_sides(
        &self,
        before: &BookmarkInfo,
        after: &SnapshotInfo,
    ) -> Result<DiffSides<E>, FsError> {
        let held_before = self.engine.bookmark_at(before.seq).ok_or(FsError::NotFound)?;
        let held_after = self.engine.snapshot_at(after.seq).ok_or(FsError::NotFound)?;
        self.sides_of([held_before, held_after], true)
    }

    fn sides_of(&self, held: [E::Snapshot; 2], is_bookmark: bool) -> Result<DiffSides<E>, FsError> {
        let [before, upto] = held.each_ref().map(|held| self.engine.seq(held));
        let commits = SeqRange { after: before, upto };
        if commits.upto < commits.after {
            return Err(FsError::Invalid("the first snapshot of a diff is the older one"));
        }
        let mut value = Vec::new();
        if !self.engine.get(&Key::Pool(PoolRecordId::Filesystem).encode(), before, &mut value)? {
            return Err(FsError::NotFound);
        }
        let FilesystemRecord { next_ino, next_volume, .. } = FilesystemRecord::decode(&value)?;
        let engine = Arc::clone(&self.engine);
        Ok(DiffSides::Snapshots(Box::new(SnapshotPair {
            engine: Arc::clone(&self.engine),
            memory: self.memory.clone(),
            next_ino_before: next_ino,
            next_volume_before: next_volume,
            changed: Box::new(move |range, max| engine.changed_between(range, commits, max)),
            is_bookmark,
            commits,
            _held: held,
        })))
    }
}
