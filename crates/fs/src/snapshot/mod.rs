//! Snapshots: the filesystem as it was at a moment, kept under a name until it is deleted.
//!
//! A snapshot is a seq that the engine keeps readable, and two records: one by its seq, one by its name.
//! Making one copies nothing and writes only these records, however many files there are.
//!
//! # Invariants
//! 1. Both records of a snapshot are made and removed in one commit (`create_snapshot`, `delete_snapshot`).
//!    The names of a volume are unique, those of bookmarks among them: a name is locked from the look-up
//!    until the commit.
//! 2. A snapshot shows every call whole or not at all: it is made while no call runs.
//! 3. A snapshot with holds is not deleted: its name is locked from the look at them until the commit
//!    (`tests::snapshot_holds`).
//! 4. `SnapshotSums` counts the snapshots and the bookmarks of the store (`tests::snapshots`).

mod bookmark;
mod directory;
mod gmt_name;
mod rule;
mod space;

pub use bookmark::BookmarkInfo;
pub use gmt_name::{gmt_name, gmt_second};
pub use space::SnapshotSpace;

use std::sync::Arc;

use warpfire_env::sync::Mutex;
use warpfire_env::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use warpfire_env::{LockPlace, RankedMutex, RankedRawMutex, Timestamp};
use warpfire_format::fs::{
    CounterId, Inode, InodeTime, Key, SNAPSHOT_HOLDS_MAX, SnapshotName, SnapshotRecord, VolumeId,
    decode_counter, snapshot_range,
};
use warpfire_meta::{
    Admit, Batch, CommitError, Direction, KeyRange, ScanPage, SnapshotStore, SnapshotView, Storage, Store,
};
use warpfire_units::Seq;

use crate::damage::{NO_ROOT_INODE, SNAPSHOT_RECORDS_DIFFER};
use crate::deferred::{BYTES, Deferred, INODES};
use crate::error::FsError;
use crate::fs::{AtimeMode, Doors, Fs, FsOptions, ROOT_INO};
use crate::inode_numbers::InodeNumbers;
use crate::keys::inode_key;
use crate::limits::{PAGE_ENTRIES, SNAPSHOTS_MAX};
use crate::node::{InodeCache, NodeLookup, NodeState, RecordLocation, VersionCounters, check_name};
use crate::op::{CallGate, TransactionCounters};
use crate::rollback::Settling;
use crate::stamp::{stamp, timestamp};
use crate::volume::LimitedVolumes;

/// The filesystem as a snapshot shows it. It has all calls of [`Fs`]; those that change something fail with
/// `ReadOnlySnapshot`. The snapshot may be deleted while this lives, and stays readable here.
pub type SnapshotFs<E> = Fs<SnapshotView<E>>;

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// Its name: 1 to 255 bytes.
    pub name: Vec<u8>,
    /// The time at which it was made.
    pub made: Timestamp,
    /// Inodes that it shows.
    pub inodes: u64,
    /// Bytes of its files without their holes. Shared bytes count once for each file.
    pub file_bytes: u64,
    /// The rule that made it, if one did.
    pub rule: Option<Vec<u8>>,
    /// Why it must stay: at most [`SNAPSHOT_HOLDS_MAX`], in ascending order.
    pub holds: Vec<Vec<u8>>,
    /// Its seq. Later snapshots have higher ones.
    pub seq: Seq,
}

impl SnapshotInfo {
    fn of(seq: Seq, record: &SnapshotRecord<'_>) -> SnapshotInfo {
        SnapshotInfo {
            name: record.name.to_vec(),
            made: timestamp(record.made),
            inodes: record.inodes,
            file_bytes: record.bytes,
            rule: record.rule.map(<[u8]>::to_vec),
            holds: record.holds.iter().map(|hold| hold.to_vec()).collect(),
            seq,
        }
    }
}

/// The number of all snapshots and bookmarks, and the sum of the bytes of the files of snapshots.
#[derive(Debug, Default)]
pub(crate) struct SnapshotSums {
    count: AtomicU64,
    /// 2^20 records of the largest sizes fit, also forged ones.
    bytes: Mutex<u128>,
    bookmarks: AtomicU64,
    /// Whether there was a bookmark: then the filesystem record says so.
    had_bookmarks: AtomicBool,
    /// As `had_bookmarks`, of rollbacks.
    had_rollbacks: AtomicBool,
}

impl SnapshotSums {
    /// Reads the records of all snapshots.
    pub(crate) fn read(store: &impl Store) -> Result<SnapshotSums, FsError> {
        let sums = SnapshotSums::default();
        each_snapshot(store, Seq(0), Direction::Forward, &mut |_, record| {
            sums.add(record.bytes);
            true
        })?;
        sums.bookmarks.store(bookmark::all(store, VolumeId::FIRST)?.len() as u64, Ordering::Relaxed);
        Ok(sums)
    }

    /// Whether there was a bookmark in this pool.
    pub(crate) fn has_bookmarks(&self) -> bool {
        self.had_bookmarks.load(Ordering::Relaxed)
    }

    /// Notes whether there was a bookmark. It changes while no call runs.
    pub(crate) fn note_bookmarks(&self, had: bool) {
        self.had_bookmarks.store(had, Ordering::Relaxed);
    }

    /// Whether a volume of this pool was rolled back.
    pub(crate) fn has_rollbacks(&self) -> bool {
        self.had_rollbacks.load(Ordering::Relaxed)
    }

    /// Notes whether a volume was rolled back. It changes while no call runs.
    pub(crate) fn note_rollbacks(&self, had: bool) {
        self.had_rollbacks.store(had, Ordering::Relaxed);
    }

    fn add(&self, bytes: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        *self.bytes.lock() += u128::from(bytes);
    }

    fn subtract(&self, bytes: u64) {
        let before = self.count.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a snapshot that is deleted was counted");
        *self.bytes.lock() -= u128::from(bytes);
    }

    /// The sum of the bytes of the files of all snapshots: snapshots hold at most as many.
    pub(crate) fn bytes(&self) -> u64 {
        u64::try_from(*self.bytes.lock()).unwrap_or(u64::MAX)
    }
}

/// The call of the engine that commits changes and makes a snapshot of them.
type CommitWithSnapshot<E> =
    fn(&E, &Batch, Admit, &mut dyn FnMut(Seq, &mut Batch)) -> Result<Seq, CommitError>;

/// A snapshot that the commit of a transaction makes of its own changes.
pub(crate) struct CommitSnapshot<E> {
    name: Box<[u8]>,
    made: InodeTime,
    commit: CommitWithSnapshot<E>,
}

impl<E: SnapshotStore> CommitSnapshot<E> {
    /// A snapshot with this name and time.
    ///
    /// # Errors
    /// `Invalid` and `NameTooLong` for a name that none can have.
    pub(crate) fn named(name: &[u8], made: InodeTime) -> Result<CommitSnapshot<E>, FsError> {
        check_snapshot_name(name)?;
        let commit: CommitWithSnapshot<E> =
            |engine, batch, admit, build| engine.commit_with_snapshot(batch, admit, build);
        Ok(CommitSnapshot { name: name.into(), made, commit })
    }
}

impl<E: Storage> Fs<E> {
    /// Commits changes and makes a snapshot that shows them. The caller is alone in the base.
    ///
    /// # Errors
    /// As `create_snapshot`; nothing is committed then.
    pub(crate) fn commit_with_snapshot(
        &self,
        wanted: &CommitSnapshot<E>,
        changes: &Batch,
        admit: Admit,
    ) -> Result<SnapshotInfo, FsError> {
        assert!(self.call_gate.is_entered(), "a snapshot is made while no call runs");
        let made = wanted.made;
        let name_key = Key::SnapshotName(self.volume, &wanted.name).encode();
        let _locked = self.engine.lock(&[&name_key, &Key::Bookmark(self.volume, &wanted.name).encode()]);
        self.check_new_snapshot(&wanted.name)?;
        let sums = self.deferred.sums();
        let sum = |n: usize| (sums[n] + changes.sums()[n]).max(0).cast_unsigned();
        let (inodes, bytes) = (sum(INODES), sum(BYTES));
        let record =
            SnapshotRecord { made, inodes, bytes, rule: None, holds: Vec::new(), name: &wanted.name };
        let seq = (wanted.commit)(&self.engine, changes, admit, &mut |seq, batch| {
            put_records(seq, &record, self.volume, &name_key, batch);
        })?;
        self.snapshots.add(bytes);
        Ok(SnapshotInfo::of(seq, &record))
    }

    /// Checks that no snapshot or bookmark has this name, and that there is room for one more snapshot.
    fn check_new_snapshot(&self, name: &[u8]) -> Result<(), FsError> {
        self.check_vacant_name(name)?;
        if self.snapshots.count.load(Ordering::Relaxed) >= SNAPSHOTS_MAX {
            return Err(FsError::NoSpace);
        }
        Ok(())
    }
}

/// Puts both records of a snapshot into a batch.
fn put_records(seq: Seq, record: &SnapshotRecord<'_>, volume: VolumeId, name_key: &[u8], batch: &mut Batch) {
    let mut value = Vec::new();
    record.encode(&mut value);
    batch.put(&Key::Snapshot(seq, volume).encode(), &value);
    value.clear();
    SnapshotName { seq }.encode(&mut value);
    batch.put(name_key, &value);
}

/// Calls `visit` with each snapshot after `after` until it returns `false`: forward by rising seq, backward
/// from the newest one.
fn each_snapshot(
    store: &impl Store,
    after: Seq,
    direction: Direction,
    visit: &mut dyn FnMut(Seq, &SnapshotRecord<'_>) -> bool,
) -> Result<(), FsError> {
    let (_, mut end) = snapshot_range();
    let mut from = Key::Snapshot(Seq(after.0.saturating_add(1)), VolumeId::POOL).encode();
    let held = store.snapshot();
    let at = store.seq(&held);
    let mut page = ScanPage::default();
    loop {
        let range = KeyRange { start: &from, end: Some(&end) };
        store.scan(range, at, direction, PAGE_ENTRIES, usize::MAX, &mut page)?;
        for entry in page.iter() {
            if let Key::Snapshot(seq, VolumeId::FIRST) = Key::decode(entry.key)?
                && !visit(seq, &SnapshotRecord::decode(entry.value)?)
            {
                return Ok(());
            }
        }
        let Some(last) = page.iter().next_back().filter(|_| page.more) else { return Ok(()) };
        let bound = if direction == Direction::Forward { &mut from } else { &mut end };
        bound.clear();
        bound.extend_from_slice(last.key);
        if direction == Direction::Forward {
            // The smallest key past the last one.
            bound.push(0);
        }
    }
}

/// Checks a name for a new snapshot. Names that begin with '@' are times.
fn check_snapshot_name(name: &[u8]) -> Result<(), FsError> {
    check_name(name)?;
    if name.starts_with(b"@") {
        return Err(FsError::Invalid("the name of a snapshot does not begin with '@'"));
    }
    Ok(())
}

impl<E: Storage> Fs<E> {
    /// The first `max` snapshots after `after`, from the oldest to the newest. Before the first one is
    /// `Seq(0)`.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn snapshots_after(&self, after: Seq, max: usize) -> Result<Vec<SnapshotInfo>, FsError> {
        let mut found = Vec::new();
        each_snapshot(&*self.engine, after, Direction::Forward, &mut |seq, record| {
            found.push(SnapshotInfo::of(seq, record));
            found.len() < max
        })?;
        Ok(found)
    }

    /// All snapshots, from the oldest to the newest.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>, FsError> {
        self.snapshots_after(Seq(0), usize::MAX)
    }

    /// The snapshot with this name.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`.
    pub fn snapshot(&self, name: &[u8]) -> Result<SnapshotInfo, FsError> {
        check_name(name)?;
        let mut value = Vec::new();
        if !self.engine.get(&Key::SnapshotName(self.volume, name).encode(), Seq::MAX, &mut value)? {
            return Err(FsError::NotFound);
        }
        let seq = SnapshotName::decode(&value)?.seq;
        // The two reads are of two moments: without the record, the snapshot has just been deleted.
        if !self.engine.get(&Key::Snapshot(seq, self.volume).encode(), Seq::MAX, &mut value)? {
            return Err(FsError::NotFound);
        }
        let record = SnapshotRecord::decode(&value)?;
        if record.name != name {
            return Err(SNAPSHOT_RECORDS_DIFFER.into());
        }
        Ok(SnapshotInfo::of(seq, &record))
    }

    /// The newest snapshot that was made at this moment or before. Its cost follows the number of newer
    /// snapshots.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`.
    pub fn snapshot_at(&self, moment: Timestamp) -> Result<SnapshotInfo, FsError> {
        // In the order in which they were made, whatever the clock said.
        self.newest_snapshot(&|made| made <= moment)
    }

    /// The newest snapshot that was made in this second since 1970.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`.
    pub fn snapshot_in_second(&self, second: i64) -> Result<SnapshotInfo, FsError> {
        self.newest_snapshot(&|made| made.seconds == second)
    }

    /// The newest snapshot with a time of which `is_wanted` is true.
    fn newest_snapshot(&self, is_wanted: &dyn Fn(Timestamp) -> bool) -> Result<SnapshotInfo, FsError> {
        let mut found = None;
        each_snapshot(&*self.engine, Seq(0), Direction::Backward, &mut |seq, record| {
            found = is_wanted(timestamp(record.made)).then(|| SnapshotInfo::of(seq, record));
            found.is_none()
        })?;
        found.ok_or(FsError::NotFound)
    }
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Makes a snapshot of everything as it is now. It is durable after the next sync.
    ///
    /// # Errors
    /// `Exists`; `Invalid` and `NameTooLong` for a name that none can have; `NoSpace`, also for more than
    /// `SNAPSHOTS_MAX` snapshots; `ReadOnly`.
    pub fn create_snapshot(&self, name: &[u8]) -> Result<SnapshotInfo, FsError> {
        self.create_snapshot_of_rule(name, None)
    }

    /// As `create_snapshot`, by a rule, which may delete it again.
    ///
    /// # Errors
    /// As `create_snapshot`.
    pub fn create_snapshot_of_rule(&self, name: &[u8], rule: Option<&[u8]>) -> Result<SnapshotInfo, FsError> {
        self.create_snapshot_admitted(name, rule, Admit::User)
    }

    /// As `create_snapshot_of_rule`, from the room that `admit` names.
    pub(crate) fn create_snapshot_admitted(
        &self,
        name: &[u8],
        rule: Option<&[u8]>,
        admit: Admit,
    ) -> Result<SnapshotInfo, FsError> {
        check_snapshot_name(name)?;
        rule.map(check_name).transpose()?;
        let made = stamp(self.clock.now());
        // Alone: no call has made a part of its changes.
        let _exclusive = self.call_gate.enter_exclusive();
        let name_key = Key::SnapshotName(self.volume, name).encode();
        let _locked = self.engine.lock(&[&name_key, &Key::Bookmark(self.volume, name).encode()]);
        self.check_new_snapshot(name)?;
        let [inodes, bytes, _] = self.deferred.sums().map(|sum| sum.max(0).cast_unsigned());
        let record = SnapshotRecord { made, inodes, bytes, rule, holds: Vec::new(), name };
        let seq = self.engine.commit_at_newest(admit, &mut |seq, batch| {
            put_records(seq, &record, self.volume, &name_key, batch);
        })?;
        self.snapshots.add(bytes);
        Ok(SnapshotInfo::of(seq, &record))
    }

    /// Deletes a snapshot. The deletion is durable on return. Bytes that only this snapshot needed become
    /// free when compaction meets them. While somebody has the snapshot open, they stay.
    ///
    /// # Errors
    /// `NotFound`; `SnapshotHeld`; `ReadOnly`; `NoSpace`. If a sync is refused room, the snapshot is gone,
    /// and the next sync makes that durable.
    pub fn delete_snapshot(&self, name: &[u8]) -> Result<SnapshotInfo, FsError> {
        let deleted = self.drop_snapshot(name)?;
        // The snapshot is gone, so an error here is not the answer: the next call that looks tries again.
        let _ = self.forget_origins();
        Ok(deleted)
    }

    fn drop_snapshot(&self, name: &[u8]) -> Result<SnapshotInfo, FsError> {
        let _guard = self.enter_unrecorded();
        let name_key = Key::SnapshotName(self.volume, name).encode();
        let _locked = self.engine.lock(&[&name_key]);
        let snapshot = self.snapshot(name)?;
        if !snapshot.holds.is_empty() {
            let holds = snapshot.holds.iter().map(|hold| String::from_utf8_lossy(hold));
            return Err(FsError::SnapshotHeld(holds.collect::<Vec<_>>().join(", ").into()));
        }
        let mut batch = Batch::new();
        batch.delete(&name_key);
        batch.delete(&Key::Snapshot(snapshot.seq, self.volume).encode());
        self.engine.drop_snapshot(snapshot.seq, &batch)?;
        self.snapshots.subtract(snapshot.file_bytes);
        self.engine.sync(Seq::MAX)?;
        Ok(snapshot)
    }

    /// Adds a hold: until it is released, the snapshot cannot be deleted. Durable after the next sync.
    ///
    /// # Errors
    /// `NotFound`; `Exists` if the snapshot has this hold; `Invalid`, also for more than
    /// [`SNAPSHOT_HOLDS_MAX`] holds; `ReadOnly`.
    pub fn hold_snapshot(&self, name: &[u8], hold: &[u8]) -> Result<SnapshotInfo, FsError> {
        check_name(hold)?;
        self.change_holds(name, |holds| match holds.binary_search_by(|held| held[..].cmp(hold)) {
            Ok(_) => Err(FsError::Exists),
            Err(_) if holds.len() >= SNAPSHOT_HOLDS_MAX => {
                Err(FsError::Invalid("a snapshot has 16 holds at most"))
            }
            Err(at) => {
                holds.insert(at, hold.to_vec());
                Ok(())
            }
        })
    }

    /// Takes a hold away. Durable after the next sync.
    ///
    /// # Errors
    /// `NotFound` without such a snapshot or such a hold; `ReadOnly`.
    pub fn release_snapshot(&self, name: &[u8], hold: &[u8]) -> Result<SnapshotInfo, FsError> {
        self.change_holds(name, |holds| {
            let at = holds.iter().position(|held| held == hold).ok_or(FsError::NotFound)?;
            holds.remove(at);
            Ok(())
        })
    }

    fn change_holds(
        &self,
        name: &[u8],
        change: impl FnOnce(&mut Vec<Vec<u8>>) -> Result<(), FsError>,
    ) -> Result<SnapshotInfo, FsError> {
        let _guard = self.enter_unrecorded();
        let name_key = Key::SnapshotName(self.volume, name).encode();
        let _locked = self.engine.lock(&[&name_key]);
        let mut snapshot = self.snapshot(name)?;
        change(&mut snapshot.holds)?;
        let record = SnapshotRecord {
            made: stamp(snapshot.made),
            inodes: snapshot.inodes,
            bytes: snapshot.file_bytes,
            rule: snapshot.rule.as_deref(),
            holds: snapshot.holds.iter().map(Vec::as_slice).collect(),
            name,
        };
        let mut value = Vec::new();
        record.encode(&mut value);
        let mut batch = Batch::new();
        batch.put(&Key::Snapshot(snapshot.seq, self.volume).encode(), &value);
        self.commit(&batch, Admit::Reserve)?;
        Ok(snapshot)
    }

    /// The filesystem as a snapshot shows it.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`.
    pub fn open_snapshot(&self, name: &[u8]) -> Result<Arc<SnapshotFs<E>>, FsError> {
        self.open_found_snapshot(&self.snapshot(name)?)
    }

    /// As `open_snapshot`, for a snapshot that a look-up has found.
    ///
    /// # Errors
    /// As `open_snapshot`.
    pub fn open_found_snapshot(&self, snapshot: &SnapshotInfo) -> Result<Arc<SnapshotFs<E>>, FsError> {
        self.open_with_doors(snapshot, Doors::Shown)
    }

    /// As `open_found_snapshot`. The doors of volumes are left out, so all inode numbers are local.
    ///
    /// # Errors
    /// As `open_snapshot`.
    pub fn open_snapshot_without_doors(
        &self,
        snapshot: &SnapshotInfo,
    ) -> Result<Arc<SnapshotFs<E>>, FsError> {
        self.open_with_doors(snapshot, Doors::LeftOut)
    }

    fn open_with_doors(&self, snapshot: &SnapshotInfo, doors: Doors) -> Result<Arc<SnapshotFs<E>>, FsError> {
        // Without a view, the snapshot has just been deleted.
        let view = Arc::new(SnapshotView::open(&self.engine, snapshot.seq).ok_or(FsError::NotFound)?);
        let mut value = Vec::new();
        if !view.get(&inode_key(ROOT_INO), snapshot.seq, &mut value)? {
            return Err(NO_ROOT_INODE.into());
        }
        let inode = Inode::decode(&value)?;
        let inode_cache = InodeCache::new();
        let found =
            inode_cache.insert_made(ROOT_INO, || true, || NodeState::new(&inode, RecordLocation::Own));
        let NodeLookup::Node(root) = found else { unreachable!("a new cache holds no other node") };
        let mut sum = |id| -> Result<i64, FsError> {
            let there = view.get(&Key::Counter(self.volume, id).encode(), snapshot.seq, &mut value)?;
            if there { Ok(decode_counter(&value)?) } else { Ok(0) }
        };
        let sums = [sum(CounterId::Inodes)?, sum(CounterId::Bytes)?, sum(CounterId::Reserved)?];
        Ok(Arc::new(Fs {
            engine: view,
            clock: Arc::clone(&self.clock),
            volume: self.volume,
            doors,
            options: FsOptions { atime: AtimeMode::Never, read_only: true, ..self.options },
            inode_cache,
            version_counters: VersionCounters::default(),
            deferred: Arc::new(Deferred::new(self.volume, sums)),
            leases: Arc::clone(&self.leases),
            fragmentation: Arc::default(),
            rename: RankedMutex::from_raw(RankedRawMutex::of(LockPlace::UNCONTENDED), ()),
            numbers: InodeNumbers::Snapshot,
            next_volume: AtomicU32::new(self.next_volume.load(Ordering::Relaxed)),
            call_gate: CallGate::base(),
            transactions: TransactionCounters::default(),
            memory: self.memory.clone(),
            root,
            snapshots: Arc::clone(&self.snapshots),
            limited_volumes: LimitedVolumes::default(),
            settling: Settling::default(),
        }))
    }
}
