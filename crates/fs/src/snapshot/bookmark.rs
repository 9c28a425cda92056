//! Bookmarks: the moment of a snapshot that may be deleted, so that the changes since can be sent.
//!
//! A bookmark is one record, by its name. Names, attributes and extended attributes of the files of its
//! moment stay in the map, and no bytes of files do (`warpfire_format::fs::fade`).
//!
//! # Invariants
//! 1. No bookmark and snapshot of a pool have one name at one time, and a bookmark is made of a snapshot
//!    only. So no bookmark ever has both the name and the seq of a snapshot: the base of a stream names one
//!    of them (`tests::bookmarks::a_name_is_of_a_snapshot_or_of_a_bookmark`).
//! 2. The name of the snapshot is locked while a bookmark of it is made, so it is not deleted before the
//!    commit.
//! 3. The commit of a bookmark also writes a filesystem record that versions without bookmarks refuse.

use warpfire_env::Timestamp;
use warpfire_env::sync::atomic::Ordering;
use warpfire_format::fs::{BookmarkRecord, FilesystemRecord, Key, PoolRecordId, VolumeId, bookmark_range};
use warpfire_meta::{Batch, Direction, KeyRange, ScanPage, SnapshotStore, Storage, Store};
use warpfire_units::Seq;

use super::check_snapshot_name;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::{BOOKMARKS_MAX, PAGE_BYTES, PAGE_ENTRIES};
use crate::node::check_name;
use crate::stamp::{stamp, timestamp};

/// A bookmark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BookmarkInfo {
    /// Its name: 1 to 255 bytes.
    pub name: Vec<u8>,
    /// The name of the snapshot when the bookmark was made.
    pub snapshot: Vec<u8>,
    /// The time at which the snapshot was made.
    pub made: Timestamp,
    /// The seq of the snapshot.
    pub seq: Seq,
}

impl BookmarkInfo {
    fn of(name: &[u8], record: &BookmarkRecord<'_>) -> BookmarkInfo {
        let made = timestamp(record.made);
        BookmarkInfo { name: name.to_vec(), snapshot: record.snapshot.to_vec(), made, seq: record.seq }
    }
}

/// All bookmarks of a volume, by name.
pub(super) fn all(store: &impl Store, volume: VolumeId) -> Result<Vec<BookmarkInfo>, FsError> {
    let (mut from, end) = bookmark_range(volume);
    let held = store.snapshot();
    let (mut page, mut found) = (ScanPage::default(), Vec::new());
    loop {
        let range = KeyRange { start: &from, end: Some(&end) };
        store.scan(range, store.seq(&held), Direction::Forward, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
        for entry in page.iter() {
            if let Key::Bookmark(_, name) = Key::decode(entry.key)? {
                found.push(BookmarkInfo::of(name, &BookmarkRecord::decode(entry.value)?));
            }
        }
        let Some(last) = page.iter().next_back().filter(|_| page.more) else { return Ok(found) };
        from.clear();
        from.extend_from_slice(last.key);
        // The smallest key past the last one.
        from.push(0);
    }
}

impl<E: Storage> Fs<E> {
    /// All bookmarks, from the oldest to the newest.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn bookmarks(&self) -> Result<Vec<BookmarkInfo>, FsError> {
        let mut found = all(&*self.engine, self.volume)?;
        found.sort_by(|a, b| (a.seq, &a.name).cmp(&(b.seq, &b.name)));
        Ok(found)
    }

    /// The bookmark with this name.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`.
    pub fn bookmark(&self, name: &[u8]) -> Result<BookmarkInfo, FsError> {
        check_name(name)?;
        let mut value = Vec::new();
        if !self.engine.get(&Key::Bookmark(self.volume, name).encode(), Seq::MAX, &mut value)? {
            return Err(FsError::NotFound);
        }
        Ok(BookmarkInfo::of(name, &BookmarkRecord::decode(&value)?))
    }

    /// Checks that no snapshot or bookmark has this name.
    ///
    /// # Errors
    /// `Exists`; `Damaged`.
    pub(crate) fn check_vacant_name(&self, name: &[u8]) -> Result<(), FsError> {
        for key in [Key::SnapshotName(self.volume, name), Key::Bookmark(self.volume, name)] {
            if self.engine.get(&key.encode(), Seq::MAX, &mut Vec::new())? {
                return Err(FsError::Exists);
            }
        }
        Ok(())
    }
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Makes a bookmark of a snapshot. It is durable after the next sync.
    ///
    /// # Errors
    /// `NotFound` without such a snapshot; `Exists` if a snapshot or a bookmark has the name; `Invalid` and
    /// `NameTooLong` for a name that no snapshot can have; `NoSpace`, also for more than `BOOKMARKS_MAX`
    /// bookmarks; `ReadOnly`.
    pub fn create_bookmark(&self, snapshot: &[u8], name: &[u8]) -> Result<BookmarkInfo, FsError> {
        check_snapshot_name(name)?;
        // Alone: no call reserves inode numbers, which are in the filesystem record.
        let _exclusive = self.call_gate.enter_exclusive();
        let key = Key::Bookmark(self.volume, name).encode();
        let _locked = self.engine.lock(&[
            &Key::SnapshotName(self.volume, snapshot).encode(),
            &Key::SnapshotName(self.volume, name).encode(),
            &key,
        ]);
        let of = self.snapshot(snapshot)?;
        self.check_vacant_name(name)?;
        if self.snapshots.bookmarks.load(Ordering::Relaxed) >= BOOKMARKS_MAX {
            return Err(FsError::NoSpace);
        }
        let record = BookmarkRecord { seq: of.seq, made: stamp(of.made), snapshot };
        let (mut value, mut batch) = (Vec::new(), Batch::new());
        record.encode(&mut value);
        batch.put(&key, &value);
        self.put_first_bookmark(&mut batch)?;
        self.engine.keep_bookmark(of.seq, &batch)?;
        self.snapshots.note_bookmarks(true);
        self.snapshots.bookmarks.fetch_add(1, Ordering::Relaxed);
        Ok(BookmarkInfo::of(name, &record))
    }

    /// Puts the filesystem record of a pool with bookmarks, if this is the first one.
    fn put_first_bookmark(&self, batch: &mut Batch) -> Result<(), FsError> {
        if self.snapshots.has_bookmarks() {
            return Ok(());
        }
        let next_ino = self.numbers.first_unreserved().ok_or(FsError::ReadOnlySnapshot)?;
        let mut value = Vec::new();
        FilesystemRecord { has_bookmarks: true, ..self.filesystem_record(next_ino) }.encode(&mut value);
        batch.put(&Key::Pool(PoolRecordId::Filesystem).encode(), &value);
        Ok(())
    }

    /// Deletes a bookmark. The deletion is durable on return. A stream that is being sent from it goes on.
    ///
    /// # Errors
    /// `NotFound`; `ReadOnly`; `NoSpace`. If a sync is refused room, the bookmark is gone, and the next sync
    /// makes that durable.
    pub fn delete_bookmark(&self, name: &[u8]) -> Result<BookmarkInfo, FsError> {
        let _guard = self.enter_unrecorded();
        let key = Key::Bookmark(self.volume, name).encode();
        let _locked = self.engine.lock(&[&key]);
        let bookmark = self.bookmark(name)?;
        let mut batch = Batch::new();
        batch.delete(&key);
        self.engine.drop_bookmark(bookmark.seq, &batch)?;
        self.snapshots.bookmarks.fetch_sub(1, Ordering::Relaxed);
        self.engine.sync(Seq::MAX)?;
        Ok(bookmark)
    }
}
