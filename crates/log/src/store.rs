//! The seam between the log and the metadata engine.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use warpfire_env::Clock;
use warpfire_format::Corrupt;
use warpfire_units::{SegmentId, SlicePtr};

/// The slices of one append, in order. One, unless the append crosses a segment's end.
pub type Slices = SmallVec<[SlicePtr; 1]>;

/// The kind of bytes in an append. Bytes of different lifetimes go to different segments, so that a segment
/// becomes garbage as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stream {
    /// Small file data, packed byte by byte.
    Small,
    /// Large file data; each append starts on a block.
    Large,
    /// Metadata tables; each append starts on a block.
    Table,
    /// Bytes that cleaning moves. They have outlived their segment, so they are cold.
    Cold,
}

/// For whom upkeep works.
#[derive(Clone, Copy)]
pub enum WorkFor<'a> {
    /// For a caller that waits: as fast as the devices allow.
    Caller,
    /// For the pool itself, at the rate of upkeep.
    Pool(&'a dyn Waiter),
}

/// Waits on behalf of background work.
pub trait Waiter {
    /// The time in which it waits, in monotonic nanoseconds.
    fn now_nanos(&self) -> u64;

    /// Waits for that long, and returns whether the work goes on.
    fn goes_on_after(&self, wait: Duration) -> bool;
}

/// A function that waits, with the clock in whose time it does.
pub struct WaitBy<'a, F>(pub &'a dyn Clock, pub F);

impl<F: Fn(Duration) -> bool> Waiter for WaitBy<'_, F> {
    fn now_nanos(&self) -> u64 {
        self.0.monotonic_nanos()
    }

    fn goes_on_after(&self, wait: Duration) -> bool {
        (self.1)(wait)
    }
}

/// A place in the commit log. Later appends have larger places.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogPos(pub u64);

/// The kind of caller that asks for room. The reserve is free space that keeps deletion and cleaning working
/// on a full pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admit {
    /// New user bytes or names. Refused once only the reserve is left.
    User,
    /// A write of bytes that are reserved, so many of them. Its caller has taken these out of the room that
    /// is kept for reserved bytes. It may use as much of the reserve as a deletion: it ends a reservation.
    Reserved(u64),
    /// Deletion. It may use the reserve except the part for upkeep: writing tables, compaction and cleaning,
    /// which turn deletions into free segments and ask for no admission.
    Reserve,
    /// Work that lets deletions free something, and that nobody waits for. It may use half of what a deletion
    /// may use.
    Settling,
}

/// Why a call of the log failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// No free segment is left for this kind of caller. Delete something, or add a device.
    #[error("no space left in the pool")]
    NoSpace,
    /// A write or flush failed beyond what parity covers. The store has latched read-only until it is
    /// reopened. Everything synced is safe.
    #[error("the pool is read-only until it is reopened: {0}")]
    ReadOnly(Arc<str>),
    /// The pool is open for reading. Open it for writing to change it.
    #[error("the pool is open for reading only")]
    OpenForReading,
    /// Some of the bytes cannot be read or rebuilt. They are lost unless a device returns.
    #[error("unreadable data: {0}")]
    Damaged(Arc<str>),
    /// The caller named bytes that do not exist (a pointer outside its segment).
    #[error("bad slice pointer {0}")]
    BadPointer(SlicePtr),
    /// The bytes on flash do not decode.
    #[error("corrupt log ({code}): {reason}")]
    Corrupt {
        /// Permanent number of this kind of corruption, see docs/FORMAT.md "Corruption codes".
        code: u16,
        /// The contradiction, and its place.
        reason: Arc<str>,
    },
}

impl LogError {
    /// The corruption code of [`LogError::Damaged`].
    pub const UNREADABLE: Corrupt = Corrupt::new(264, "unreadable data");
    /// The corruption code of [`LogError::BadPointer`], for a pointer from flash.
    pub const BAD_POINTER: Corrupt = Corrupt::new(265, "bad slice pointer");
}

/// Space in the pool, in payload bytes: without parity and headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// All payload bytes the pool can hold with its present devices and geometry.
    pub total_bytes: u64,
    /// Payload bytes with a reference, at most: those of a segment in which references share bytes are
    /// counted by a census only.
    pub live_bytes: u64,
    /// Bytes that the further references to live bytes would take without sharing, at least.
    pub shared_bytes: u64,
    /// Part of `live_bytes` that a census may find to be garbage that is worth cleaning.
    pub unsure_bytes: u64,
    /// Payload bytes of written segments without a reference: cleaning can free them.
    pub garbage_bytes: u64,
    /// Part of `garbage_bytes` in segments that are too full to be worth cleaning: it comes back only when
    /// more of their bytes lose their references.
    pub stuck_bytes: u64,
    /// Part of `garbage_bytes` that the logs themselves always take: no checkpoint frees it.
    pub log_bytes: u64,
    /// Part of `free_bytes` that the logs take as well, once they have grown to what they always take.
    pub log_growth_bytes: u64,
    /// Payload bytes in free segments and in the unwritten rest of open ones.
    pub free_bytes: u64,
    /// Part of `free_bytes` kept for deletion and upkeep.
    pub reserve_bytes: u64,
}

/// What a census is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CensusNeed {
    /// Garbage of which the log knows that it may be there.
    Gain,
    /// All garbage that there may be: also in segments that were not counted since the opening.
    Room,
    /// The count itself, of every segment.
    Everything,
}

/// A segment in which a census may find garbage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CensusCandidate {
    /// The segment.
    pub segment: SegmentId,
    /// Bytes of it that count as live and may be garbage.
    pub unsure_bytes: u64,
}

/// The counts of a segment at the moment at which a census began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CensusMark {
    /// The segment.
    pub segment: SegmentId,
    /// Its length then.
    pub written_bytes: u64,
    /// The bytes of all references to it then.
    pub references: u64,
    pub(crate) most: u64,
    pub(crate) dropped: u64,
}

/// The result of a census for one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountedSegment {
    /// The segment, as it was when the census began.
    pub mark: CensusMark,
    /// The bytes of all references that the census has met.
    pub named_bytes: u64,
    /// The bytes that these references name, each once.
    pub live_bytes: u64,
}

/// Keeps every segment that was live when the pin was taken from being reused, until it is dropped. A reader
/// takes one before it reads a pointer from metadata, and drops it after reading the bytes.
#[derive(Clone)]
pub struct Pin(#[expect(dead_code, reason = "held for its drop")] Arc<dyn Send + Sync>);

impl Pin {
    /// A pin that holds `token` until it is dropped. The log frees a segment once all older tokens are
    /// dropped.
    #[must_use]
    pub fn new(token: Arc<dyn Send + Sync>) -> Self {
        Pin(token)
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pin")
    }
}

/// Records of the commit log, oldest first.
pub type RecordIter = Box<dyn Iterator<Item = Result<(LogPos, Vec<u8>), LogError>> + Send>;

/// The state that recovery hands to the metadata engine.
pub struct RecoveredLog {
    /// The state of the last durable `checkpoint`; empty for a new pool.
    pub state: Vec<u8>,
    /// The records since then, oldest first and each whole: a prefix of the logged records that reaches at
    /// least to the last sync that returned.
    pub records: RecordIter,
}

impl RecoveredLog {
    /// The recovery of a new log: no state and no records.
    #[must_use]
    pub fn empty() -> Self {
        RecoveredLog { state: Vec::new(), records: Box::new(std::iter::empty()) }
    }
}

/// The result of a scrub of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubbedSegment {
    /// The segment that was read.
    pub segment: SegmentId,
    /// Whether every block on a working device verifies.
    pub is_whole: bool,
    /// Bytes of its stripes on working devices, headers and parity included.
    pub read_bytes: u64,
    /// Segments after it that are still to be read.
    pub left: u64,
}

/// One step of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScrubStep {
    /// A segment was read.
    Verified(ScrubbedSegment),
    /// The caller, or a pause of upkeep, has ended the step before its segment was read whole. The scrub goes
    /// on with the same segment.
    Interrupted {
        /// Segments that are still to be read, with this one.
        left: u64,
    },
    /// No segment is left.
    AtEnd,
}

impl ScrubStep {
    /// The segment that was read, if one was.
    #[must_use]
    pub fn verified(self) -> Option<ScrubbedSegment> {
        if let ScrubStep::Verified(segment) = self { Some(segment) } else { None }
    }
}

/// Immutable byte ranges and one commit log, over a pool or in memory.
///
/// # Order
/// An append or record is durable once a `sync` that began after it has returned. A record is recovered only
/// with the bytes that it *needs*: every byte appended before it, or only the slices that `need` named.
///
/// # Errors
/// `NoSpace` if no segment is free, `ReadOnly` after a failure beyond parity, `OpenForReading` on a pool that
/// is open for reading, from every call that writes.
pub trait LogStore: Send + Sync + 'static {
    /// Appends bytes to a stream. They count as referenced once, until `release`. Up to 64 KiB are never
    /// split. Readable at once, durable after `sync`.
    fn append(&self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError>;

    /// As `append`, but splits all that is longer than a block at the end of a segment, and so fills it.
    fn append_split(&self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError>;

    /// Fills `buf`, of the slice's length, with the slice's verified bytes. `Damaged` if they cannot be
    /// rebuilt, `BadPointer` if there are none.
    fn read(&self, slice: SlicePtr, buf: &mut [u8]) -> Result<(), LogError>;

    /// As `read`, for many slices that the devices read together.
    fn read_many(&self, reads: &mut [(SlicePtr, &mut [u8])]) -> Result<(), LogError>;

    /// Whether reads of so many bytes by different callers may be made together: none of them waits for a
    /// device that another one needs and that does not answer.
    fn may_share_batch(&self, len_bytes: usize) -> bool;

    /// Payload bytes of the next segment that a stream begins.
    fn segment_bytes(&self) -> u64;

    /// Payload bytes of a segment that can be read now, from its beginning on; 0 if there is no such segment.
    fn readable_bytes(&self, segment: SegmentId) -> u64;

    /// Appends a record to the commit log. It needs every byte appended before it. Records are recovered in
    /// this order. A call that fails appends nothing.
    fn log(&self, record: &[u8]) -> Result<LogPos, LogError>;

    /// As `log`, but of the bytes appended before it, the record needs only those that `need` has named.
    fn log_named(&self, record: &[u8]) -> Result<LogPos, LogError>;

    /// Every record that is logged after this call needs the bytes of the slice.
    fn need(&self, slice: SlicePtr);

    /// Makes everything appended and logged before this call durable, with one flush of each device that was
    /// written. `NoSpace` if the commit log has no room for the records: they wait for a sync after the next
    /// `checkpoint`, and nothing else has changed.
    fn sync(&self) -> Result<(), LogError>;

    /// Makes every record logged before this call durable, with the bytes that it needs. Other bytes that
    /// wait in memory may stay there: a sync of a short record writes no stripe that a table or another file
    /// is filling. Otherwise as `sync`.
    fn sync_records(&self) -> Result<(), LogError>;

    /// Makes `state` the start of the next recovery, durable on return, and drops the records before
    /// `keep_from`. Every append before the call is durable then. So are the records, unless the commit log
    /// has no room for them: then they wait for the next sync. A checkpoint itself needs no room in the
    /// commit log, so it makes room when `sync` on a full pool returns `NoSpace`.
    fn checkpoint(&self, state: &[u8], keep_from: LogPos) -> Result<(), LogError>;

    /// The place of the next record.
    fn position(&self) -> LogPos;

    /// Commit-log bytes that the next recovery would read.
    fn log_bytes(&self) -> u64;

    /// Checks that this kind of caller can append `bytes` more. It reserves nothing.
    fn admit(&self, bytes: u64, caller: Admit) -> Result<(), LogError>;

    /// Counts one more reference to the slice's bytes. The caller refers to them already, or holds a pin that
    /// is older than the release of the last reference.
    fn retain(&self, slice: SlicePtr);

    /// Counts `bytes` of more references to bytes of a segment that others refer to now, and after the call.
    fn retain_again(&self, segment: SegmentId, bytes: u64);

    /// Counts `bytes` of a segment as no longer referenced. The record that drops the reference must be
    /// durable already. A sealed segment without references is freed once no older pin is left.
    fn release(&self, segment: SegmentId, bytes: u64);

    /// As `release`, for references that a caller had beside metadata: those of a writer or a hold. The log
    /// expects that metadata names these bytes, so they are no reason for a census.
    fn let_go(&self, segment: SegmentId, bytes: u64);

    /// Segments in which a census may serve the need, those with the most unsure bytes first.
    fn census_candidates(&self, need: CensusNeed) -> Vec<CensusCandidate>;

    /// Begins a census of some segments. The caller counts the references of exactly this moment, as far as
    /// it can find them, and ends the census with `end_census`. References may come and go in between.
    fn begin_census(&self, segments: &[SegmentId]) -> Vec<CensusMark>;

    /// Takes the results of a census. It changes what counts as live, and frees nothing.
    fn end_census(&self, counted: &[CountedSegment]);

    /// Sets the references after replay, exactly. Segments not named have none.
    fn set_live(&self, live: &HashMap<SegmentId, u64>);

    /// Keeps segments from being reused until the pin is dropped.
    fn pin(&self) -> Pin;

    /// Up to `max` sealed segments worth cleaning: damaged ones first, then the best by cost and benefit.
    /// Empty when cleaning gains nothing. The caller moves the live bytes and releases them.
    fn victims(&self, max: usize) -> Vec<SegmentId>;

    /// Seals an open segment, if enough of its bytes are garbage for it to be a victim. `false`: there is no
    /// such segment. Its unwritten rest is lost until it is cleaned, so callers do this only without victims
    /// and for space that somebody waits for.
    fn seal_victim(&self) -> Result<bool, LogError>;

    /// A number that rises with every segment found damaged. Cheap enough to compare after every read.
    fn damage_seen(&self) -> u64;

    /// Rewrites the columns of one segment that are lost or do not verify, if their devices take writes.
    /// `true` if a column was rewritten, and another call may find more. Durable on return, or with the next
    /// checkpoint if the commit log has no room.
    fn mend(&self, work_for: WorkFor<'_>) -> Result<bool, LogError>;

    /// Whether background threads may mend now: upkeep is not paused.
    fn upkeep_may_work(&self) -> bool {
        true
    }

    /// Number of segments with live bytes and with less redundancy than the devices that take writes allow.
    /// Nothing is read.
    fn weak_segments(&self) -> usize;

    /// Segments with live bytes and with less redundancy than the pool's devices allow, oldest first: those
    /// with a column that does not verify or is lost on a device that takes writes, and those with fewer
    /// parity columns than a new segment gets. An open one is sealed, so that the caller can move its live
    /// bytes as for `victims`.
    fn damaged(&self) -> Result<Vec<SegmentId>, LogError>;

    /// Verifies every block, parity too, of the first sealed segment with live bytes after `after`. Damage
    /// found counts in `damage_seen`. A scrub begins with `after` of `None`, which seals the open segments.
    /// Work for a caller is never interrupted.
    fn scrub(&self, after: Option<SegmentId>, work_for: WorkFor<'_>) -> Result<ScrubStep, LogError>;

    /// The space of the pool as of now, counted exactly.
    fn space(&self) -> Space;

    /// Whether the next sync frees something that only pins have kept so far: nothing refers to it, and the
    /// pins are gone.
    fn has_unpinned(&self) -> bool;

    /// Whether something to which nothing refers waits for pins to go, or for a sync after them.
    fn has_retired(&self) -> bool;
}
