//! The seam between the log and what is built on it.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use warpfire_format::Corrupt;
use warpfire_units::{SegmentId, SlicePtr};

/// Slices that together hold one run of bytes, in order. One, except at a segment's end.
pub type Slices = SmallVec<[SlicePtr; 1]>;

/// Bytes of different lifetimes go to different segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stream {
    /// Small file data, packed byte by byte.
    Small,
    /// Large file data; each append starts on a block.
    Large,
    /// Metadata tables; each append starts on a block.
    Table,
    /// What cleaning moves: it has proved to be cold.
    Cold,
}

/// A place in the commit log. Later appends have larger places.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogPos(pub u64);

/// Who asks for room. The reserve is what lets deletion and cleaning work on a full pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admit {
    /// New user bytes or names: refused once only the reserve is left.
    User,
    /// Deletion: may use the reserve but for the part that upkeep (writing tables, merging, cleaning, which do not ask)
    /// needs to turn deletions into free segments.
    Reserve,
}

/// Why the log could not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// No free segment is left for this kind of caller. Delete something, or add a device.
    #[error("no space left in the pool")]
    NoSpace,
    /// A write or flush failed beyond what parity covers; the store has latched read-only and only
    /// reopening recovers. What had been synced is safe.
    #[error("the pool is read-only until it is reopened: {0}")]
    ReadOnly(Arc<str>),
    /// Bytes that were asked for can not be read or rebuilt. They are lost unless a device returns.
    #[error("unreadable data: {0}")]
    Damaged(Arc<str>),
    /// The caller named bytes that do not exist (a pointer outside its segment).
    #[error("bad slice pointer {0}")]
    BadPointer(SlicePtr),
    /// What is on flash does not decode; `code` is permanent, see docs/FORMAT.md "Corruption codes".
    #[error("corrupt log ({code}): {reason}")]
    Corrupt {
        /// Permanent number of this kind of corruption.
        code: u16,
        /// What was found where.
        reason: Arc<str>,
    },
}

impl LogError {
    /// What [`LogError::Damaged`] is, among the corruption codes.
    pub const UNREADABLE: Corrupt = Corrupt::new(264, "unreadable data");
    /// What [`LogError::BadPointer`] is, if the pointer comes from flash.
    pub const BAD_POINTER: Corrupt = Corrupt::new(265, "bad slice pointer");
}

/// Space in the pool, in payload bytes (parity and headers already taken off).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// All payload bytes the pool can hold with its present devices and geometry.
    pub total_bytes: u64,
    /// Payload bytes that something refers to.
    pub live_bytes: u64,
    /// Payload bytes written, unreferenced, not yet cleaned.
    pub garbage_bytes: u64,
    /// Payload bytes in free segments and in the unwritten rest of open ones.
    pub free_bytes: u64,
    /// Part of `free_bytes` kept for deletion and cleaning.
    pub reserve_bytes: u64,
}

/// While it lives, no segment that was live when it was taken is reused. Take one before reading a
/// pointer from metadata, drop it after reading the bytes.
#[derive(Clone)]
pub struct Pin(#[expect(dead_code, reason = "held for its drop")] Arc<dyn Send + Sync>);

impl Pin {
    /// A pin that holds `token` until dropped; the log frees segments once older tokens are gone.
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

/// What recovery hands to the metadata engine.
pub struct RecoveredLog {
    /// The state given to the last durable `checkpoint`; empty for a new pool.
    pub state: Vec<u8>,
    /// The records since then, oldest first: a prefix of what was logged, at least up to the last sync
    /// that returned, and each whole.
    pub records: RecordIter,
}

impl RecoveredLog {
    /// What a new log recovers: nothing.
    #[must_use]
    pub fn empty() -> Self {
        RecoveredLog { state: Vec::new(), records: Box::new(std::iter::empty()) }
    }
}

/// One segment after a scrub read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubbedSegment {
    /// Which.
    pub segment: SegmentId,
    /// Whether every block on a device that works verifies.
    pub is_whole: bool,
    /// Segments behind it that are still to be read.
    pub left: u64,
}

/// Immutable byte ranges and one commit log, over a pool or in memory.
///
/// # Order
/// Nothing is durable before a `sync` that began after it returned. A record is recovered only if every
/// byte appended before it (by `append`) is there too.
pub trait LogStore: Send + Sync + 'static {
    /// Appends bytes to a stream. The bytes count as referenced once, until `release`.
    /// Up to 64 KiB are never split. Readable at once, durable after `sync`.
    fn append(&self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError>;

    /// Fills `buf` (whose length is the slice's) with the slice's bytes, verified.
    fn read(&self, slice: SlicePtr, buf: &mut [u8]) -> Result<(), LogError>;

    /// As `read`, for many slices at once: the device sees them together.
    fn read_many(&self, reads: &mut [(SlicePtr, &mut [u8])]) -> Result<(), LogError>;

    /// Payload bytes of the next segment that a stream begins.
    fn segment_bytes(&self) -> u64;

    /// Payload bytes of a segment that can be read now, from its beginning on; 0 if there is no such segment.
    fn readable_bytes(&self, segment: SegmentId) -> u64;

    /// Appends a record to the commit log. Records are recovered in this order.
    fn log(&self, record: &[u8]) -> Result<LogPos, LogError>;

    /// Makes all that was appended and logged before this call durable, with one flush of each device
    /// that was written.
    fn sync(&self) -> Result<(), LogError>;

    /// Makes `state` the start of the next recovery, durable on return; records before `keep_from` are
    /// not needed any more. Implies `sync`. With `keep_from` at `position()` it needs no room in the log, so it is what
    /// makes room when a `sync` on a full pool says `NoSpace`.
    fn checkpoint(&self, state: &[u8], keep_from: LogPos) -> Result<(), LogError>;

    /// The place the next record will get.
    fn position(&self) -> LogPos;

    /// Commit-log bytes that the next recovery would read.
    fn log_bytes(&self) -> u64;

    /// Checks that `bytes` more could be appended by this kind of caller; promises nothing to others.
    fn admit(&self, bytes: u64, caller: Admit) -> Result<(), LogError>;

    /// Counts one more reference to the slice's bytes (a clone). The caller refers to them already, or has held a pin since
    /// something did.
    fn retain(&self, slice: SlicePtr);

    /// As `retain`, for bytes that someone keeps without metadata saying so: they can not be moved, so their segment is not worth
    /// cleaning until `release_hold`.
    fn hold(&self, slice: SlicePtr);

    /// Ends a `hold` of the same slice.
    fn release_hold(&self, slice: SlicePtr);

    /// Counts `bytes` of a segment as no longer referenced. Call it only after the record that drops
    /// the reference is durable. A sealed segment without references is freed once no pin is older.
    fn release(&self, segment: SegmentId, bytes: u64);

    /// After replay: the references that exist, exactly. Segments not named have none.
    fn set_live(&self, live: &HashMap<SegmentId, u64>);

    /// Keeps segments from being reused.
    fn pin(&self) -> Pin;

    /// Up to `max` sealed segments worth cleaning, best first by cost and benefit; damaged ones first of all.
    /// Empty when there is nothing to gain. The caller moves what is live and releases it.
    fn victims(&self, max: usize) -> Vec<SegmentId>;

    /// Counts up with every segment in which damage is met: cheap to ask after every read.
    fn damage_seen(&self) -> u64;

    /// Segments with live bytes in which damage is known, oldest first. One that was being written is sealed for
    /// it, so that the caller can move what is live, as for `victims`.
    fn damaged(&self) -> Result<Vec<SegmentId>, LogError>;

    /// Verifies every block, parity too, of the first sealed segment with live bytes behind `after`, and says what it found;
    /// `None` behind the last. Damage that it meets counts as seen. `after` is `None` at first: then what is being written is sealed.
    fn scrub(&self, after: Option<SegmentId>) -> Result<Option<ScrubbedSegment>, LogError>;

    /// Space, exactly, as of now.
    fn space(&self) -> Space;
}
