//! The seam between the filesystem and the metadata engine: a transactional ordered map.

use std::sync::Arc;

use warpfire_log::LogError;
use warpfire_slices::{Admit, SliceError, SliceStore};
use warpfire_units::Seq;

use crate::batch::{Batch, SUMS};
use crate::domain::{DomainId, RollbackRecord};
use crate::memory::MemoryRefused;
use crate::read_set::ReadSet;
use crate::schema::SchemaError;
use crate::snapshot_bytes::SnapshotBytes;

/// The reason why a read or a sync failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MetaError {
    /// The log or the pool below failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The slice store failed.
    #[error(transparent)]
    Slices(#[from] SliceError),
    /// A value does not decode.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A table or manifest does not decode; `code` as in docs/FORMAT.md "Corruption codes".
    #[error("corrupt metadata ({code}): {reason}")]
    Corrupt {
        /// Permanent number of this kind of corruption.
        code: u16,
        /// The place and the finding.
        reason: Arc<str>,
    },
    /// The transaction has been committed or aborted.
    #[error("the transaction has ended")]
    Ended,
    /// The call changes something, and the transaction is read-only.
    #[error("the transaction is read-only")]
    ReadOnlyTransaction,
    /// The call changes something, and the store shows a snapshot.
    #[error("a snapshot is read-only")]
    ReadOnlySnapshot,
    /// The system gives the process no thread for background work.
    #[error("no thread for background work: {0}")]
    NoThread(Arc<str>),
    /// The changes of the transaction exceed their bound in memory. The changes before this call can be
    /// committed.
    #[error("the transaction changes too much")]
    TooLarge,
    /// The memory budget refuses a change. The changes before this call can be committed.
    #[error(transparent)]
    Memory(#[from] MemoryRefused),
}

impl MetaError {
    /// Whether the only reason is a lack of space.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, MetaError::Log(LogError::NoSpace) | MetaError::Slices(SliceError::NoSpace))
    }

    /// Whether bytes of a table cannot be read, or do not decode.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self,
            MetaError::Corrupt { .. }
                | MetaError::Log(LogError::Damaged(_) | LogError::Corrupt { .. } | LogError::BadPointer(_))
                | MetaError::Slices(SliceError::Damaged { .. })
        )
    }
}

/// The reason why a commit did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// Something in the read set has changed; nothing was written. Read again and retry.
    #[error("conflict on a key that was read")]
    Conflict,
    /// The engine cannot say whether the commit took place (a remote engine that went away). Read the keys
    /// back to find out.
    #[error("the outcome of the commit is unknown: {0}")]
    Unknown(Arc<str>),
    /// Nothing was written.
    #[error(transparent)]
    Failed(#[from] MetaError),
}

impl From<LogError> for CommitError {
    fn from(e: LogError) -> Self {
        CommitError::Failed(MetaError::Log(e))
    }
}

impl From<SliceError> for CommitError {
    fn from(e: SliceError) -> Self {
        CommitError::Failed(MetaError::Slices(e))
    }
}

/// When a caller of [`Store::get_with_bytes`] wants the bytes of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WantedBytes {
    /// Now, with the record.
    Now,
    /// Now, and perhaps again: the store keeps them as it keeps the records that it has looked up.
    Again,
    /// Now or by another call soon: the store keeps a few of those that it read last.
    Soon,
    /// A part of them now, and the others by other calls soon: as `Soon`, also if the record is in memory.
    InParts,
    /// Only if the store has kept them: the caller wants few of them.
    IfKept,
}

/// Keys from `start` (included) to `end` (not included).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRange<'a> {
    /// First key of the range.
    pub start: &'a [u8],
    /// First key past the range; `None` runs to the end of the map.
    pub end: Option<&'a [u8]>,
}

/// Which way a scan runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the start of the range.
    Forward,
    /// From its end.
    Backward,
}

/// The commits after one version, up to and with another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeqRange {
    /// The older version: its commits are not in the range.
    pub after: Seq,
    /// The newer version.
    pub upto: Seq,
}

impl SeqRange {
    pub(crate) fn contains(self, seq: Seq) -> bool {
        self.after < seq && seq <= self.upto
    }
}

/// A part of the keys of a domain, for [`SnapshotStore::scan_part`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DomainPart {
    /// The keys that the domain itself settles: by a put of its own, with or without operands above it, or
    /// because reads of them never go on (`Schema::reads_on`).
    Settled,
    /// The keys with a value that comes from the origin, as it is there or below operands of the domain.
    ReadOn,
}

/// One page of a scan's result, in a flat buffer that is reused from page to page.
#[derive(Clone, Debug, Default)]
pub struct ScanPage {
    pub(crate) bytes: Vec<u8>,
    pub(crate) entries: Vec<(u32, u32, u32)>,
    /// Whether keys may remain beyond the last entry. A page that is full may say so though none do.
    pub more: bool,
    pub(crate) passes_damage: bool,
    /// Whether the scan has passed such a block. Entries may then be missing, and others may be older than
    /// those that the block held.
    pub has_passed_damage: bool,
}

/// One key and its folded value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanEntry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its value at the scan's version.
    pub value: &'a [u8],
}

impl ScanPage {
    /// A page for which a forward scan of the engine goes on after blocks that cannot be read. Scans of other
    /// stores fail there.
    #[must_use]
    pub fn past_damage() -> ScanPage {
        ScanPage { passes_damage: true, ..ScanPage::default() }
    }

    /// Empties the page and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.more = false;
        self.has_passed_damage = false;
    }

    /// Adds an entry: for engines that implement `Store`.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let narrow = |n: usize| u32::try_from(n).expect("a page stays below 4 GiB");
        self.entries.push((narrow(self.bytes.len()), narrow(key.len()), narrow(value.len())));
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        debug_assert!(!key.is_empty(), "keys have at least one byte");
    }

    /// Adds an entry of which the value begins with a tag.
    pub(crate) fn push_tagged(&mut self, key: &[u8], tag: u8, value: &[u8]) {
        self.push(key, &[tag]);
        let last = self.entries.last_mut().expect("an entry was pushed");
        last.2 += u32::try_from(value.len()).expect("a page stays below 4 GiB");
        self.bytes.extend_from_slice(value);
    }

    /// The entry at a place.
    pub(crate) fn entry(&self, place: usize) -> ScanEntry<'_> {
        let (start, key_len, value_len) = self.entries[place];
        let (key, rest) = self.bytes[start as usize..].split_at(key_len as usize);
        ScanEntry { key, value: &rest[..value_len as usize] }
    }

    /// The entries in the scan's order.
    pub fn iter(
        &self,
    ) -> impl DoubleEndedIterator<Item = ScanEntry<'_>> + ExactSizeIterator<Item = ScanEntry<'_>> {
        (0..self.entries.len()).map(|place| self.entry(place))
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the page holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of keys and values held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// The function that runs at each sync point: see `Store::set_sync_point_hook`.
pub type SyncPointHook = Box<dyn Fn(&[i64; SUMS], &mut Batch) + Send + Sync>;

/// A transactional ordered map with versions.
///
/// A commit is atomic, also across a crash, and has one place in the order of commits. After a crash the
/// map is as it was after some commit no older than the last `sync` that returned.
///
/// # Locks
/// `lock` serialises the short internal operations of one process on the keys they change. Inside it,
/// reading at `Seq::MAX` and committing without a read set is a read-modify-write.
pub trait Store: Send + Sync + 'static {
    /// A version that stays readable while this lives.
    type Snapshot: Send + Sync;
    /// Locked keys: only the holder of the guard changes them.
    type KeyGuard<'a>
    where
        Self: 'a;

    /// The newest version of which every commit is visible.
    fn snapshot(&self) -> Self::Snapshot;

    /// The version that a snapshot shows.
    fn seq(&self, snapshot: &Self::Snapshot) -> Seq;

    /// The key's value at a version (`Seq::MAX`: the newest), into `out` (cleared first). `false` if it has
    /// none. A version other than `Seq::MAX` must be held by a live snapshot.
    fn get(&self, key: &[u8], at: Seq, out: &mut Vec<u8>) -> Result<bool, MetaError>;

    /// The newest value of a key, for a caller that wants its bytes too: bytes that the stored value names by
    /// a pointer may be inline in it. The caller holds a pin.
    fn get_with_bytes(&self, key: &[u8], _wanted: WantedBytes, out: &mut Vec<u8>) -> Result<bool, MetaError> {
        self.get(key, Seq::MAX, out)
    }

    /// A page of the range at a version held by a live snapshot: at most `max_entries` entries and, past the
    /// first, about `max_bytes` bytes. Continue after the last key while `page.more`.
    fn scan(
        &self,
        range: KeyRange<'_>,
        at: Seq,
        direction: Direction,
        max_entries: usize,
        max_bytes: usize,
        page: &mut ScanPage,
    ) -> Result<(), MetaError>;

    /// Locks keys against other lockers, in an order that cannot deadlock. One lock per thread at a time.
    fn lock<'a>(&'a self, keys: &[&[u8]]) -> Self::KeyGuard<'a>;

    /// Commits a batch: visible on return, durable after `sync`. With `reads`, fails with `Conflict` if a key
    /// or range of the read set has changed. `admit` decides whether the commit may use the reserve.
    fn commit(&self, batch: &Batch, reads: Option<&ReadSet>, admit: Admit) -> Result<Seq, CommitError>;

    /// Changes the number of bytes for which room is kept, outside of a commit: at the open of a filesystem
    /// by the sum in its records; by a write, which claims its reserved bytes before it asks for room, and
    /// returns them if it fails. A commit with `Admit::Reserved` returns the claim itself when it succeeds. A
    /// commit that adds to the sum `RESERVED` fails with `NoSpace` if there is no room for that.
    fn add_reserved(&self, bytes: i64);

    /// Whether new bytes would be admitted at once, without any work to make room.
    fn has_room(&self, bytes: u64, admit: Admit) -> bool;

    /// Reclaims, if a commit of so many bytes would have to. A caller that pins the slices of its commit
    /// calls this first: later its own pin would keep the segments that reclaim empties. Nothing is promised:
    /// the commit itself has the error.
    fn find_room(&self, bytes: u64, admit: Admit);

    /// Whether reclaim has emptied segments that no pin keeps any more. A call that found no room while its
    /// own pin kept them finds it now.
    fn has_unpinned(&self) -> bool {
        false
    }

    /// The keys of the read set that have changed since `reads.at`, each once; `None` if there are more than
    /// `max`. It has every change that a snapshot taken before the call sees. Changes that are made during
    /// the call may be in the answer or not.
    fn changed_keys(&self, reads: &ReadSet, max: usize) -> Result<Option<Vec<Box<[u8]>>>, MetaError>;

    /// Whether `len` bytes may be inline in a value, if the schema allows that. A transaction that already
    /// holds many inline bytes in memory returns `false`.
    fn may_inline(&self, _len: usize) -> bool {
        true
    }

    /// The part of the live bytes that are the store's own tables.
    fn table_bytes(&self) -> u64;

    /// Makes every commit up to `upto` durable, with the slices that it names. Callers at the same time share
    /// the work.
    fn sync(&self, upto: Seq) -> Result<(), MetaError>;

    /// Sets the hook that the engine calls at each sync point (before it collects commits for the commit log,
    /// or freezes its memtable), while no commit is in progress. The hook receives the additions to the
    /// running sums since the last sync point, and adds changes to the batch. These belong to the sync point.
    /// The hook is for changes that fold in memory between sync points, such as counters and parent times. It
    /// must not call the store.
    fn set_sync_point_hook(&self, hook: SyncPointHook);

    /// Does one piece of background work (flush, compaction, cleaning), if there is any, on this thread.
    /// `true` if it did something. For callers that run without background threads.
    fn background_step(&self) -> Result<bool, MetaError>;

    /// Finishes background work, makes everything durable and stops. Further calls fail.
    fn close(&self) -> Result<(), MetaError>;
}

/// A store with persistent snapshots: versions that stay readable until they are dropped, also in later
/// openings. The records that name them are ordinary values of the map, which the schema knows
/// (`Schema::snapshot_range`). They change by these calls only. *Bookmarks* (`Schema::bookmark_range`) are
/// such versions of which the slices may go. The same holds for *domains*: keys that show
/// the version of other keys where they have no changes of their own (`Schema::domain_range`).
pub trait SnapshotStore: Store {
    /// Makes persistent snapshots of the newest version, makes domains and removes domains. While no commit
    /// is in progress, runs the hook of sync points, calls `build` with the newest seq, and commits the batch
    /// that it fills. The batch has the records. A snapshot names that seq; the origin of a new domain names
    /// it, or the seq of a persistent snapshot that the caller holds until the return; a domain
    /// that is removed names it as the last one, and an origin that is released as the first at which nobody
    /// reads on. The caller has checked that the domain settles each key that anybody reads from there on.
    /// The commit is durable after the next sync, as every commit is. Then the versions of a domain that it
    /// removes may go.
    fn commit_at_newest(
        &self,
        admit: Admit,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError>;

    /// Forgets a domain that is in the answer of `unneeded_domains`: commits `batch`, which removes its
    /// record. It stays in that answer until a sync has made the commit durable.
    fn forget_domain(&self, domain: DomainId, batch: &Batch) -> Result<(), CommitError>;

    /// The removed domains of which no version is left, that are no domain's origin and that no snapshot
    /// shows.
    fn unneeded_domains(&self) -> Result<Vec<DomainId>, MetaError>;

    /// The live domains that may lose their origin: it is released, and nobody reads on in it any more.
    fn unneeded_origins(&self) -> Vec<DomainId>;

    /// Forgets the origin of a domain that is in the answer of `unneeded_origins`: commits `batch`, which
    /// takes it out of the record. The domain stays in that answer until a sync has made the commit durable.
    fn forget_origin(&self, domain: DomainId, batch: &Batch) -> Result<(), CommitError>;

    /// Rolls a domain back: while no commit is in progress, runs the hook of sync points, calls `build` with
    /// the newest seq, commits the batch that it fills, and then `changes`. The batch has the record of the
    /// rollback, which names that seq, and as its aim the seq of a persistent snapshot that the caller holds.
    /// Later readers see what the snapshot shows of the domain, and `changes`. A crash keeps both commits or
    /// neither. `reserved` is what the room that is kept for reserved bytes changes by: it is claimed before.
    /// The commits are admitted to the reserve, as deletions are: a full pool can go back.
    ///
    /// A rollback ends with a commit of `commit_at_newest` that puts its record again, with the newest seq as
    /// its end. The caller has put or deleted each key with a version in `seqs_to_settle` since
    /// (`changed_between` lists them).
    fn commit_rollback(
        &self,
        changes: &Batch,
        reserved: i64,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError>;

    /// Every rollback with a record, by domain and seq.
    fn rollbacks(&self) -> Vec<RollbackRecord>;

    /// The seqs of the versions of which the keys are put or deleted again before a rollback ends: those that
    /// it hides, and those that an older one hides from readers of the version that it shows.
    fn seqs_to_settle(&self, rollback: &RollbackRecord) -> SeqRange;

    /// The rollbacks that have ended and that no held version knows of.
    fn unneeded_rollbacks(&self) -> Vec<RollbackRecord>;

    /// Forgets a rollback that is in the answer of `unneeded_rollbacks`: merges the tables with versions
    /// since it was made, and commits `batch`, which removes its record. It stays in that answer until a sync
    /// has made the commit durable. `false`: one of these tables is unreadable, and the rollback is not
    /// forgotten.
    fn forget_rollback(&self, rollback: &RollbackRecord, batch: &Batch) -> Result<bool, CommitError>;

    /// A page of the keys of one part of a domain, with their values at a version held by a live snapshot.
    /// The range lies in the domain. Limits and the continuation are those of [`Store::scan`] forward. It
    /// passes the keys of the other part without an end in between.
    ///
    /// # Errors
    /// The errors of `scan`.
    fn scan_part(
        &self,
        range: KeyRange<'_>,
        at: Seq,
        part: DomainPart,
        limits: (usize, usize),
        page: &mut ScanPage,
    ) -> Result<(), MetaError>;

    /// Commits changes, and makes a persistent snapshot that shows them and nothing later. A crash keeps both
    /// or neither. `changes` have no read set: the caller has checked them.
    fn commit_with_snapshot(
        &self,
        changes: &Batch,
        admit: Admit,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError>;

    /// Drops a persistent snapshot: commits `batch`, which removes its record. Once a sync has made that
    /// durable, its versions may go.
    fn drop_snapshot(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError>;

    /// Makes a bookmark of a persistent snapshot, which the caller keeps until the return: commits `batch`,
    /// which has its record. The bookmark is durable after the next sync, as every commit is.
    fn keep_bookmark(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError>;

    /// Drops a bookmark: commits `batch`, which removes its record. It is held until a sync has made that
    /// durable.
    fn drop_bookmark(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError>;

    /// The version of a bookmark; `None` if there is none with this seq. Values at it may be what
    /// `Schema::fade` leaves of them.
    fn bookmark_at(&self, seq: Seq) -> Option<Self::Snapshot>;

    /// The version of a persistent snapshot; `None` if there is none with this seq.
    fn snapshot_at(&self, seq: Seq) -> Option<Self::Snapshot>;

    /// The first keys of a range that readers of the two ends of `commits` may see differently, in order: at
    /// most `max`. Each has a commit in that range, or one that a rollback between hides. The value of such
    /// a key may be the same before and after. The caller holds the versions of both ends. Tables without
    /// such a commit are not read.
    ///
    /// # Errors
    /// The errors of `get`.
    fn changed_between(
        &self,
        range: KeyRange<'_>,
        commits: SeqRange,
        max: usize,
    ) -> Result<Vec<Box<[u8]>>, MetaError>;

    /// The bytes of slices that some persistent snapshots need and nothing else does: what deleting them
    /// frees, once compaction has met their versions. `snapshots` rises. It reads all metadata twice, or
    /// more often if much is needed by snapshots alone.
    ///
    /// # Errors
    /// The errors of `get`.
    fn snapshot_bytes(&self, snapshots: &[Seq]) -> Result<SnapshotBytes, MetaError>;
}

/// A metadata store together with the slices that its values name. A filesystem needs both.
pub trait Storage: Store + SliceStore {}

impl<E: Store + SliceStore> Storage for E {}
