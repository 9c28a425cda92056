//! `MemLog`: the log in memory, as naive as the trait allows.
//!
//! It is the oracle beside the real log, and the store for tests of the crates above. It is stricter than
//! flash: a segment that is released, sealed and unpinned is freed at once, so that a reference released too
//! early shows as a failed read.
//!
//! # Invariants
//! 1. Every append and every record has a *tick*, counted up by one; `synced` is the last tick that a sync
//!    covers.
//! 2. A crash keeps exactly the records up to one tick, `synced` or that of a later record, and of the
//!    appends no more than a sync covered and than these records need
//!    (`tests::a_seeded_crash_keeps_a_prefix_and_the_bytes_before_it`, `tests::named_bytes_survive`).
//! 3. Every crash after a checkpoint keeps it (`tests::a_checkpoint_replaces_the_records_before_it`).
//! 4. Each segment's references are the sum of bytes appended and retained, less those released
//!    (`tests::space_adds_up`).

mod crash;
mod segments;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use warpfire_env::sync::Mutex;
use warpfire_units::{SegmentId, SlicePtr};

use crate::limits::kept_bytes;
use crate::pins::Pins;
use crate::store::{
    Admit, CensusCandidate, CensusMark, CensusNeed, CountedSegment, LogError, LogPos, LogStore, Pin,
    ScrubStep, Slices, Space, Stream, WorkFor,
};
use crate::stream::{SPLIT_ABOVE_BYTES, UNSPLIT_MAX_BYTES};
use segments::MemSegments;

/// The size of a `MemLog`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemLogOptions {
    /// Payload bytes of all segments together; an append that does not fit returns `NoSpace`.
    pub capacity_bytes: u64,
    /// Payload bytes of one segment; at least 64 KiB.
    pub segment_bytes: u64,
}

impl Default for MemLogOptions {
    /// 1 TiB in segments of 4 MiB: no test meets the end by accident.
    fn default() -> Self {
        MemLogOptions { capacity_bytes: 1 << 40, segment_bytes: 4 << 20 }
    }
}

/// The work of a `MemLog` since it was made or recovered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemLogCounters {
    /// Calls of `sync` and `sync_records`, those inside `checkpoint` too.
    pub syncs: u64,
    /// Calls of `checkpoint`.
    pub checkpoints: u64,
    /// Calls of `append`.
    pub appends: u64,
    /// Bytes given to `append`.
    pub appended_bytes: u64,
    /// Calls of `log`.
    pub records: u64,
    /// Bytes given to `log`.
    pub record_bytes: u64,
    /// Slices read.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Segments freed.
    pub segments_freed: u64,
}

#[derive(Clone)]
struct MemRecord {
    pos: LogPos,
    tick: u64,
    needs_all_appends: bool,
    bytes: Vec<u8>,
}

#[derive(Clone)]
struct MemState {
    segments: MemSegments,
    checkpoint: Vec<u8>,
    records: VecDeque<MemRecord>,
    next: LogPos,
    next_at_checkpoint: LogPos,
    tick: u64,
    synced: u64,
    syncs_until_failure: Option<u64>,
    syncs_without_room: u64,
    records_without_room: u64,
    latched: Option<Arc<str>>,
    counters: MemLogCounters,
}

impl MemState {
    fn writable(&self) -> Result<(), LogError> {
        self.latched.clone().map_or(Ok(()), |why| Err(LogError::ReadOnly(why)))
    }

    /// A sync of all appends, or only of those that records need.
    fn sync(&mut self, all_appends: bool) -> Result<(), LogError> {
        self.writable()?;
        if let Some(left) = &mut self.syncs_until_failure {
            if *left == 0 {
                let why: Arc<str> = "a flush failed, as the test asked".into();
                self.latched = Some(why.clone());
                return Err(LogError::ReadOnly(why));
            }
            *left -= 1;
        }
        let needs_all = |r: &MemRecord| r.tick > self.synced && r.needs_all_appends;
        if all_appends || self.records.iter().any(needs_all) {
            self.segments.mark_synced();
        } else {
            self.segments.mark_needed_synced();
        }
        self.synced = self.tick;
        self.counters.syncs += 1;
        Ok(())
    }
}

/// The log in memory.
pub struct MemLog {
    state: Mutex<MemState>,
    pins: Pins<SegmentId>,
}

impl Default for MemLog {
    fn default() -> Self {
        Self::new()
    }
}

impl MemLog {
    /// An empty log with room for everything. It recovers `RecoveredLog::empty()`.
    #[must_use]
    pub fn new() -> Self {
        Self::with_options(MemLogOptions::default())
    }

    /// An empty log of a given size.
    ///
    /// # Panics
    /// If a segment could not hold an append that must not be split.
    #[must_use]
    pub fn with_options(options: MemLogOptions) -> Self {
        assert!(
            options.segment_bytes >= UNSPLIT_MAX_BYTES as u64,
            "a segment holds any append that is not split"
        );
        Self::from_state(MemState {
            segments: MemSegments::new(options),
            checkpoint: Vec::new(),
            records: VecDeque::new(),
            next: LogPos(1),
            next_at_checkpoint: LogPos(1),
            tick: 0,
            synced: 0,
            syncs_until_failure: None,
            syncs_without_room: 0,
            records_without_room: 0,
            latched: None,
            counters: MemLogCounters::default(),
        })
    }

    fn from_state(state: MemState) -> Self {
        MemLog { state: Mutex::new(state), pins: Pins::new() }
    }

    /// The log's work since it was made or recovered.
    #[must_use]
    pub fn counters(&self) -> MemLogCounters {
        self.state.lock().counters
    }

    /// Lets `more` syncs succeed and fails the one after, which latches the log read-only as a lost device
    /// would.
    pub fn fail_sync_after(&self, more: u64) {
        self.state.lock().syncs_until_failure = Some(more);
    }

    /// Fails the next `count` calls of `sync` with `NoSpace`, as a commit log without room does. A checkpoint
    /// needs no such room.
    pub fn refuse_syncs(&self, count: u64) {
        self.state.lock().syncs_without_room = count;
    }

    /// Fails the next `count` calls of `log` with `NoSpace`, as a commit log without room does while many
    /// records wait for it.
    pub fn refuse_records(&self, count: u64) {
        self.state.lock().records_without_room = count;
    }

    fn retire(&self, emptied: impl IntoIterator<Item = SegmentId>) {
        for segment in emptied {
            self.pins.retire(segment);
        }
        self.free_unpinned(&mut self.state.lock());
    }

    fn append_parts(
        &self,
        stream: Stream,
        bytes: &[u8],
        unsplit_max_bytes: usize,
    ) -> Result<Slices, LogError> {
        let mut state = self.state.lock();
        state.writable()?;
        self.free_unpinned(&mut state);
        let tick = state.tick + 1;
        let (slices, emptied) = state.segments.append(stream, bytes, unsplit_max_bytes, tick)?;
        state.tick = tick;
        state.counters.appends += 1;
        state.counters.appended_bytes += bytes.len() as u64;
        drop(state);
        self.retire(emptied);
        Ok(slices)
    }

    fn push_record(&self, record: &[u8], needs_all_appends: bool) -> Result<LogPos, LogError> {
        let mut state = self.state.lock();
        state.writable()?;
        if let Some(left) = state.records_without_room.checked_sub(1) {
            state.records_without_room = left;
            return Err(LogError::NoSpace);
        }
        state.tick += 1;
        let (pos, tick) = (state.next, state.tick);
        state.next = LogPos(pos.0 + 1);
        state.counters.records += 1;
        state.counters.record_bytes += record.len() as u64;
        state.records.push_back(MemRecord { pos, tick, needs_all_appends, bytes: record.to_vec() });
        Ok(pos)
    }

    fn sync_some(&self, all_appends: bool) -> Result<(), LogError> {
        let mut state = self.state.lock();
        if let Some(left) = state.syncs_without_room.checked_sub(1) {
            state.syncs_without_room = left;
            return Err(LogError::NoSpace);
        }
        self.free_unpinned(&mut state);
        state.sync(all_appends)
    }

    fn free_unpinned(&self, state: &mut MemState) {
        while let Some(segment) = self.pins.take_unpinned() {
            state.counters.segments_freed += u64::from(state.segments.free(segment));
        }
    }
}

impl LogStore for MemLog {
    fn append(&self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError> {
        self.append_parts(stream, bytes, UNSPLIT_MAX_BYTES)
    }

    fn append_split(&self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError> {
        self.append_parts(stream, bytes, SPLIT_ABOVE_BYTES)
    }

    fn read(&self, slice: SlicePtr, buf: &mut [u8]) -> Result<(), LogError> {
        let mut state = self.state.lock();
        state.counters.reads += 1;
        state.counters.read_bytes += u64::from(slice.len_bytes);
        state.segments.read(slice, buf)
    }

    fn read_many(&self, reads: &mut [(SlicePtr, &mut [u8])]) -> Result<(), LogError> {
        reads.iter_mut().try_for_each(|(slice, buf)| self.read(*slice, buf))
    }

    fn may_share_batch(&self, _len_bytes: usize) -> bool {
        true
    }

    fn segment_bytes(&self) -> u64 {
        self.state.lock().segments.segment_bytes()
    }

    fn readable_bytes(&self, segment: SegmentId) -> u64 {
        self.state.lock().segments.len_bytes(segment)
    }

    fn log(&self, record: &[u8]) -> Result<LogPos, LogError> {
        self.push_record(record, true)
    }

    fn log_named(&self, record: &[u8]) -> Result<LogPos, LogError> {
        self.push_record(record, false)
    }

    fn need(&self, slice: SlicePtr) {
        let mut state = self.state.lock();
        let tick = state.tick;
        state.segments.need(slice, tick);
    }

    fn sync(&self) -> Result<(), LogError> {
        self.sync_some(true)
    }

    fn sync_records(&self) -> Result<(), LogError> {
        self.sync_some(false)
    }

    fn checkpoint(&self, checkpoint: &[u8], keep_from: LogPos) -> Result<(), LogError> {
        let mut state = self.state.lock();
        assert!(keep_from <= state.next, "a checkpoint keeps from a place that records have reached");
        self.free_unpinned(&mut state);
        state.sync(true)?;
        state.checkpoint = checkpoint.to_vec();
        state.next_at_checkpoint = state.next;
        while state.records.front().is_some_and(|r| r.pos < keep_from) {
            state.records.pop_front();
        }
        state.counters.checkpoints += 1;
        Ok(())
    }

    fn position(&self) -> LogPos {
        self.state.lock().next
    }

    fn log_bytes(&self) -> u64 {
        self.state.lock().records.iter().map(|r| r.bytes.len() as u64).sum()
    }

    fn admit(&self, bytes: u64, caller: Admit) -> Result<(), LogError> {
        let mut state = self.state.lock();
        self.free_unpinned(&mut state);
        let space = state.segments.space();
        let kept_bytes = kept_bytes(space.reserve_bytes, caller);
        if space.free_bytes < kept_bytes.saturating_add(bytes) { Err(LogError::NoSpace) } else { Ok(()) }
    }

    fn retain(&self, slice: SlicePtr) {
        let bytes = u64::from(slice.len_bytes);
        self.state.lock().segments.retain(slice.segment, |live| live.retain(bytes));
    }

    fn retain_again(&self, segment: SegmentId, bytes: u64) {
        self.state.lock().segments.retain(segment, |live| live.retain_again(bytes));
    }

    fn release(&self, segment: SegmentId, bytes: u64) {
        let emptied = self.state.lock().segments.release(segment, |live| live.release(bytes));
        self.retire(emptied);
    }

    fn let_go(&self, segment: SegmentId, bytes: u64) {
        let emptied = self.state.lock().segments.release(segment, |live| live.let_go(bytes));
        self.retire(emptied);
    }

    fn census_candidates(&self, need: CensusNeed) -> Vec<CensusCandidate> {
        self.state.lock().segments.census_candidates(need)
    }

    fn begin_census(&self, segments: &[SegmentId]) -> Vec<CensusMark> {
        self.state.lock().segments.census_marks(segments)
    }

    fn end_census(&self, counted: &[CountedSegment]) {
        self.state.lock().segments.note_census(counted);
    }

    fn set_live(&self, live: &HashMap<SegmentId, u64>) {
        let emptied = self.state.lock().segments.set_live(live);
        self.retire(emptied);
    }

    fn pin(&self) -> Pin {
        self.pins.pin()
    }

    fn victims(&self, max: usize) -> Vec<SegmentId> {
        self.state.lock().segments.victims(max)
    }

    fn seal_victim(&self) -> Result<bool, LogError> {
        let Some(emptied) = self.state.lock().segments.seal_victim() else { return Ok(false) };
        self.retire(emptied);
        Ok(true)
    }

    fn damage_seen(&self) -> u64 {
        0
    }

    fn mend(&self, _work_for: WorkFor<'_>) -> Result<bool, LogError> {
        Ok(false)
    }

    fn weak_segments(&self) -> usize {
        0
    }

    fn damaged(&self) -> Result<Vec<SegmentId>, LogError> {
        Ok(Vec::new())
    }

    fn scrub(&self, _after: Option<SegmentId>, _work_for: WorkFor<'_>) -> Result<ScrubStep, LogError> {
        // Memory does not rot.
        Ok(ScrubStep::AtEnd)
    }

    fn space(&self) -> Space {
        let mut state = self.state.lock();
        self.free_unpinned(&mut state);
        state.segments.space()
    }

    fn has_unpinned(&self) -> bool {
        self.pins.has_unpinned()
    }

    fn has_retired(&self) -> bool {
        self.pins.has_retired()
    }
}
