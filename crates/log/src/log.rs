//! `Log`: the log over a pool.
//!
//! A sync writes one *group* to the commit log: the pending records, the edits of the segment table, and a
//! *barrier*, which ends the group and requires every stripe that the edits list.
//!
//! # Invariants
//! 1. Locks are taken in this order: `sync_state`, one stream's `open`, the queue of `write_queue`,
//!    `segment_table`, `pending`. Device operations happen under the first two only, never under the others.
//! 2. A group takes the pending records before it looks at the streams. Bytes that one of these records needs
//!    are then in a buffer, in the write queue or in a stripe, and the streams know which buffers hold needed
//!    bytes. All of them are in stripes before the edits are taken, so the barrier requires them (order of
//!    `write_group`; `tests/crash.rs`).
//! 3. The zones of a segment are freed only after a barrier or root without it is durable (`free_zones`
//!    follows `write_group_of` or `write_root`; `tests/crash.rs` on append-only devices).
//! 4. After the latch has tripped nothing is written (`Latch::check` in each call that writes;
//!    `tests/faults.rs`). The latch of a pool that is open for reading is closed from the start
//!    (`tests/reading.rs`).
//! 5. A checkpoint keeps records from a place that was reached, and `keep_from` never falls (asserts in
//!    `checkpoint` and `write_root`).

mod append;
mod groups;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::RankedMutex;
use warpfire_env::sync::Mutex;
use warpfire_format::segment::SegmentKind;
use warpfire_pool::Pool;
use warpfire_units::{DeviceIndex, SegmentId, SlicePtr, ZoneIndex};

use self::append::Buffers;
use crate::latch::{Latch, on_read};
use crate::limits::{GROUP_BYTES_PER_COLUMN, PENDING_MAX_BYTES, kept_bytes};
use crate::lock_ranks::{PENDING, SEGMENT_TABLE, SYNC_STATE};
use crate::log_writer::LogWriter;
use crate::mend::Unmended;
use crate::pending::PendingRecords;
use crate::pins::{Pins, Retired};
use crate::recover::{LogEnd, LogParts};
use crate::segment_table::{SegmentEntry, SegmentStage, SegmentTable};
use crate::shape::Converting;
use crate::state_log::StateLog;
use crate::store::{
    Admit, CensusCandidate, CensusMark, CensusNeed, CountedSegment, LogError, LogPos, LogStore, Pin,
    ScrubStep, Slices, Space, Stream, WorkFor,
};
use crate::stream::{BulkStream, SPLIT_ABOVE_BYTES, STREAMS, UNSPLIT_MAX_BYTES};
use crate::upkeep_limit::UpkeepLimit;
use crate::write_queue::{WriteQueue, WriterThread};

/// The log over a pool.
pub struct Log {
    pub(crate) pool: Pool,
    pub(crate) segment_table: Arc<RankedMutex<SEGMENT_TABLE, SegmentTable>>,
    pub(crate) pins: Arc<Pins<Retired>>,
    /// Held while a segment is mended.
    pub(crate) mending: Mutex<()>,
    /// Segments that `mend` could not make whole.
    pub(crate) unmended: Mutex<Unmended>,
    /// Whether `mend` goes on by itself, and how fast.
    pub(crate) upkeep_limit: UpkeepLimit,
    /// Segments that a caller converts.
    pub(crate) converting: Mutex<Converting>,
    /// Devices whose columns are rebuilt on other devices while they take no writes.
    pub(crate) given_up: Mutex<BTreeSet<DeviceIndex>>,
    /// Segments that needed mending or cleaning for their redundancy when the log was opened.
    weak_at_open: u64,
    write_queue: Arc<WriteQueue>,
    writer_thread: Option<WriterThread>,
    streams: [BulkStream; STREAMS.len()],
    pending: RankedMutex<PENDING, PendingRecords>,
    /// `None` if the pool is open for reading: then there is nothing to write with.
    sync_state: RankedMutex<SYNC_STATE, Option<SyncState>>,
    pub(crate) latch: Latch,
    pub(crate) next_segment: AtomicU64,
    /// Counts appends and records, each after it took place. A sync that finds no new ones writes nothing.
    pub(crate) changes: AtomicU64,
    /// Bytes of the commit log, segments of both logs, and those of the state log alone, published for
    /// callers without `sync_state`.
    log_bytes: AtomicU64,
    log_segments: AtomicU64,
    state_segments: AtomicU64,
    /// Bytes that fit into free segments without the reserve, as of the last segment that was taken or freed.
    pub(crate) room_bytes: AtomicU64,
    /// Payload bytes of unlogged stripes between one group and the next, at most.
    group_bytes: u64,
    /// Unlogged bytes at which the next append writes a group: `group_bytes`, and more while the pool has no
    /// room for the group.
    group_due_bytes: AtomicU64,
}

/// The state that only a sync or a checkpoint changes.
struct SyncState {
    log_writer: LogWriter,
    /// `changes` as of the last durable group before which all buffers were written.
    synced_changes: u64,
    /// The first record that the last root keeps.
    keep_from: LogPos,
    /// The state that roots save.
    state_log: StateLog,
    /// The number of the pool's last root as of the last copy in the commit log.
    copied_root: u64,
}

impl Log {
    /// Puts the parts together and writes them as the pool's newest root. On a pool that is open for reading
    /// there is no writer, the latch is closed, and nothing is written.
    pub(crate) fn assemble(parts: LogParts) -> Result<Log, LogError> {
        let keep_from = parts.keep_from;
        let (sync_state, log_bytes, log_segments) = match parts.end {
            LogEnd::Writer(log_writer, state_log) => {
                assert_eq!(
                    log_writer.written_pos(),
                    parts.next_pos,
                    "the writer goes on with the next record"
                );
                let log_writer = *log_writer;
                (
                    Some(SyncState {
                        log_writer,
                        synced_changes: 0,
                        keep_from,
                        state_log: *state_log,
                        copied_root: 0,
                    }),
                    0,
                    0,
                )
            }
            LogEnd::Read { bytes, segments } => (None, bytes, segments),
        };
        let latch = if sync_state.is_some() { Latch::default() } else { Latch::for_reading() };
        let segment_table = Arc::new(RankedMutex::new(parts.segment_table));
        let pins = Arc::new(Pins::new());
        let columns = u64::from(parts.pool.geometry(SegmentKind::Bulk).data).max(1);
        let group_bytes = GROUP_BYTES_PER_COLUMN * columns;
        let mut log = Log {
            pool: parts.pool,
            write_queue: Arc::new(WriteQueue::new(Arc::clone(&segment_table), Arc::clone(&pins))),
            writer_thread: None,
            segment_table,
            pins,
            mending: Mutex::default(),
            unmended: Mutex::default(),
            given_up: Mutex::default(),
            upkeep_limit: UpkeepLimit::default(),
            converting: Mutex::default(),
            weak_at_open: 0,
            streams: std::array::from_fn(BulkStream::new),
            pending: RankedMutex::new(PendingRecords::new(parts.next_pos)),
            sync_state: RankedMutex::new(sync_state),
            latch,
            next_segment: AtomicU64::new(parts.next_segment.get()),
            changes: AtomicU64::new(0),
            log_bytes: AtomicU64::new(log_bytes),
            log_segments: AtomicU64::new(log_segments),
            state_segments: AtomicU64::new(0),
            room_bytes: AtomicU64::new(0),
            group_bytes,
            group_due_bytes: AtomicU64::new(group_bytes),
        };
        // Before any append: a crash from here on finds the recovered state as this root describes it, and
        // never reads the refused end of the old log again.
        if let Some(state) = &mut *log.sync_state.lock() {
            log.write_root(state, keep_from)?;
        }
        log.weak_at_open = (log.known_damaged().len() + log.misshapen().len()) as u64;
        Ok(log)
    }

    /// Writes a group whenever the stripes since the last one hold so many payload bytes. By default that is
    /// 128 MiB for each data column. The group also lists the stripes that wait in the write queue by then.
    /// The next recovery reads about as many bytes: at most 12 MiB more, and the parity of both.
    #[must_use]
    pub fn with_group_bytes(mut self, bytes: u64) -> Log {
        self.group_bytes = bytes;
        self.group_due_bytes = AtomicU64::new(bytes);
        self
    }

    /// Roots hold so many bytes of the saved state, at most, while the state log has room for the rest. By
    /// default that is 16 KiB.
    #[must_use]
    pub fn with_state_tail_bytes(self, bytes: usize) -> Log {
        if let Some(state) = &mut *self.sync_state.lock() {
            state.state_log.set_tail_bytes_max(bytes);
        }
        self
    }

    /// Starts a thread that writes full stripes while the next ones fill. Without it, or if the system starts
    /// no thread, the caller that fills a stripe writes it.
    #[must_use]
    pub fn with_writer_thread(mut self) -> Log {
        match WriterThread::start(&self.write_queue) {
            Ok(writer) => self.writer_thread = Some(writer),
            Err(e) => tracing::warn!(
                name: "log_writer_thread_refused",
                error = %e,
                "stripes are written without a thread of their own"
            ),
        }
        self
    }

    /// The pool below, for its status and counters.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    fn next_id(&self) -> SegmentId {
        SegmentId::new(self.next_segment.fetch_add(1, Ordering::Relaxed)).expect("ids count up from 1")
    }

    /// Segments of the commit log and the state log in use, for the space they take.
    pub(crate) fn log_segments(&self) -> u64 {
        self.log_segments.load(Ordering::Relaxed)
    }

    /// Segments of the state log alone. A checkpoint may replace them, and frees none of them without that.
    pub(crate) fn state_segments(&self) -> u64 {
        self.state_segments.load(Ordering::Relaxed)
    }

    /// The places of the log segments that the next recovery would read.
    pub(crate) fn log_places(&self) -> BTreeSet<(DeviceIndex, ZoneIndex)> {
        self.sync_state.lock().as_ref().map(|state| state.log_writer.places()).unwrap_or_default()
    }

    /// The segments of both logs that the next recovery would read.
    pub(crate) fn needed_log_segments(&self) -> Vec<SegmentId> {
        let state = self.sync_state.lock();
        let Some(state) = state.as_ref() else { return Vec::new() };
        let chain = state.state_log.chain().into_iter().map(|descriptor| descriptor.id);
        state.log_writer.needed_segments().into_iter().chain(chain).collect()
    }

    /// Goes on in a segment of the commit log with all the redundancy that the devices allow, after a device
    /// has left or returned. The records before it stay where they are until a checkpoint.
    ///
    /// # Errors
    /// As [`sync`](LogStore::sync).
    pub fn renew_log(&self) -> Result<(), LogError> {
        // The first group names the next segment, the second goes there. That one may have been made while
        // the device was away; the third names its successor, and the fourth goes there.
        for _ in 0..4 {
            let is_outdated = |state: &SyncState| state.log_writer.is_outdated();
            if !self.sync_state.lock().as_ref().is_some_and(is_outdated) {
                break;
            }
            self.changes.fetch_add(1, Ordering::Release);
            match self.sync() {
                // The checkpoint that follows may free some.
                Err(LogError::NoSpace) => break,
                synced => synced?,
            }
        }
        Ok(())
    }

    /// Queues a record for the next group.
    fn queue_record(&self, record: &[u8], needs_all_appends: bool) -> Result<LogPos, LogError> {
        self.latch.check()?;
        // Before the push: a record whose call fails must not reach the log later.
        if self.pending.lock().bytes() > PENDING_MAX_BYTES {
            self.sync_records()?;
        }
        let pos = self.pending.lock().push(record, needs_all_appends);
        self.changes.fetch_add(1, Ordering::Release);
        Ok(pos)
    }

    /// Reads the part of the slice that is in memory: its end. Returns the number of bytes before that part,
    /// which are on the devices.
    fn read_buffered(&self, slice: SlicePtr, buf: &mut [u8]) -> Result<usize, LogError> {
        assert_eq!(buf.len(), slice.len_bytes as usize, "a buffer has its slice's length");
        // In the order in which bytes move, stream buffer, write queue, devices, so that a read cannot miss
        // bytes that move on while it looks.
        let mut pushed = buf.len();
        for stream in &self.streams {
            let read = stream.read_buffered(slice, buf).map_err(|e| on_read(slice, &e))?;
            if let Some(before) = read {
                pushed = before;
                break;
            }
        }
        Ok(self.write_queue.read(slice, &mut buf[..pushed]))
    }

    /// Appends, a second time if that frees segments and there was no room.
    fn append_or_reclaim(
        &self,
        stream: Stream,
        bytes: &[u8],
        unsplit_max_bytes: usize,
    ) -> Result<Slices, LogError> {
        debug_assert!(unsplit_max_bytes <= UNSPLIT_MAX_BYTES, "a segment takes any append that is not split");
        let try_append = || self.try_append(stream, bytes, unsplit_max_bytes);
        let appended = match try_append() {
            Err(LogError::NoSpace) if self.reclaim()? => try_append(),
            other => other,
        };
        // After a failure too: it may have sealed a segment or left garbage, which a sync has to log.
        self.changes.fetch_add(1, Ordering::Release);
        appended
    }
}

impl LogStore for Log {
    fn append(&self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError> {
        self.append_or_reclaim(stream, bytes, UNSPLIT_MAX_BYTES)
    }

    fn append_split(&self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError> {
        self.append_or_reclaim(stream, bytes, SPLIT_ABOVE_BYTES)
    }

    fn read(&self, slice: SlicePtr, buf: &mut [u8]) -> Result<(), LogError> {
        self.read_many(&mut [(slice, buf)])
    }

    fn read_many(&self, reads: &mut [(SlicePtr, &mut [u8])]) -> Result<(), LogError> {
        let mut on_devices: Vec<(SlicePtr, &mut [u8])> = Vec::with_capacity(reads.len());
        for (slice, buf) in reads {
            let len = self.read_buffered(*slice, buf)?;
            if len > 0 {
                let len_bytes = u32::try_from(len).expect("no more than the slice");
                on_devices.push((slice.part(0, len_bytes), &mut buf[..len]));
            }
        }
        let Some(&(first, _)) = on_devices.first() else { return Ok(()) };
        self.pool.read_many(&mut on_devices).map_err(|e| on_read(first, &e))
    }

    fn may_share_batch(&self, len_bytes: usize) -> bool {
        self.pool.may_share_batch(len_bytes)
    }

    fn segment_bytes(&self) -> u64 {
        self.pool.geometry(SegmentKind::Bulk).segment_payload_bytes
    }

    fn readable_bytes(&self, segment: SegmentId) -> u64 {
        self.segment_table.lock().written_bytes(segment)
    }

    fn log(&self, record: &[u8]) -> Result<LogPos, LogError> {
        self.queue_record(record, true)
    }

    fn log_named(&self, record: &[u8]) -> Result<LogPos, LogError> {
        self.queue_record(record, false)
    }

    fn need(&self, slice: SlicePtr) {
        // All of them: on a full pool an append goes to the segment of another stream.
        self.streams.iter().for_each(|stream| stream.need(slice));
    }

    fn sync(&self) -> Result<(), LogError> {
        let changes = self.changes.load(Ordering::Acquire);
        let mut state = self.sync_state.lock();
        let state = state.as_mut().ok_or(LogError::OpenForReading)?;
        // While this thread waited for the lock, another sync may have written its changes too.
        if state.synced_changes >= changes {
            return self.latch.check();
        }
        self.write_group(state, Buffers::All)
    }

    fn sync_records(&self) -> Result<(), LogError> {
        let mut state = self.sync_state.lock();
        let state = state.as_mut().ok_or(LogError::OpenForReading)?;
        // A record that is no longer pending is in a group that was durable before this thread got the lock.
        if self.pending.lock().is_empty() {
            return self.latch.check();
        }
        self.write_group(state, Buffers::Needed)
    }

    fn checkpoint(&self, client: &[u8], keep_from: LogPos) -> Result<(), LogError> {
        self.seal_dead()?;
        let mut state = self.sync_state.lock();
        let state = state.as_mut().ok_or(LogError::OpenForReading)?;
        self.latch.check()?;
        // Before anything is written: a root that does not fit leaves the log as it was.
        self.check_root_fits(state, client)?;
        let mut keep_from = keep_from.max(state.keep_from);
        if !self.absorb_into_root(state, keep_from)? {
            match self.write_group(state, Buffers::All) {
                Err(LogError::NoSpace) => {
                    self.absorb_edits_into_root()?;
                    // A record that is still pending is in no stripe, so the root keeps all that follow it.
                    keep_from = keep_from.min(state.log_writer.written_pos());
                }
                written => written?,
            }
        }
        assert!(
            keep_from <= state.log_writer.written_pos(),
            "a checkpoint keeps records from a place that was reached"
        );
        state.state_log.put_client(client);
        self.write_root(state, keep_from)?;
        self.free_zones()
    }

    fn position(&self) -> LogPos {
        self.pending.lock().next()
    }

    fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed) + self.pending.lock().bytes() as u64
    }

    fn admit(&self, bytes: u64, caller: Admit) -> Result<(), LogError> {
        self.latch.check()?;
        // The usual answer, without counting. Log segments allocated since the number was stored are not in
        // it; the reserve has room for them.
        if bytes <= self.room_bytes.load(Ordering::Relaxed) {
            return Ok(());
        }
        let fits = || {
            let space = self.space();
            space.free_bytes >= kept_bytes(space.reserve_bytes, caller).saturating_add(bytes)
        };
        if fits() || (self.pool.find_free_zones() && fits()) { Ok(()) } else { Err(LogError::NoSpace) }
    }

    fn retain(&self, slice: SlicePtr) {
        let bytes = u64::from(slice.len_bytes);
        self.segment_table.lock().retain(slice.segment, |live| live.retain(bytes));
    }

    fn retain_again(&self, segment: SegmentId, bytes: u64) {
        self.segment_table.lock().retain(segment, |live| live.retain_again(bytes));
    }

    fn release(&self, segment: SegmentId, bytes: u64) {
        self.segment_table.lock().release(segment, &self.pins, |live| live.release(bytes));
    }

    fn let_go(&self, segment: SegmentId, bytes: u64) {
        self.segment_table.lock().release(segment, &self.pins, |live| live.let_go(bytes));
    }

    fn census_candidates(&self, need: CensusNeed) -> Vec<CensusCandidate> {
        self.segment_table.lock().census_candidates(need)
    }

    fn begin_census(&self, segments: &[SegmentId]) -> Vec<CensusMark> {
        self.segment_table.lock().census_marks(segments)
    }

    fn end_census(&self, counted: &[CountedSegment]) {
        self.segment_table.lock().note_census(counted);
    }

    fn set_live(&self, live: &HashMap<SegmentId, u64>) {
        self.segment_table.lock().set_live(live, &self.pins);
    }

    fn pin(&self) -> Pin {
        self.pins.pin()
    }

    fn victims(&self, max: usize) -> Vec<SegmentId> {
        self.choose_victims(max)
    }

    fn seal_victim(&self) -> Result<bool, LogError> {
        self.seal_worth_cleaning()
    }

    fn damage_seen(&self) -> u64 {
        // A device that returns lacks what it missed.
        self.pool.damage_seen() + self.weak_at_open + self.pool.returns()
    }

    fn mend(&self, work_for: WorkFor<'_>) -> Result<bool, LogError> {
        self.mend_one(work_for)
    }

    fn upkeep_may_work(&self) -> bool {
        self.upkeep_limit.may_work()
    }

    fn weak_segments(&self) -> usize {
        let known: Vec<SegmentId> = self.known_weak().into_iter().collect();
        let mut weak = 0;
        self.look_at_each(&known, |_, entry| weak += usize::from(entry.live_bytes() > 0));
        weak
    }

    fn damaged(&self) -> Result<Vec<SegmentId>, LogError> {
        let known = self.known_damaged();
        if known.is_empty() {
            return Ok(self.to_convert());
        }
        self.seal_open(|id| known.contains(&id))?;
        let segment_table = self.segment_table.lock();
        let is_live = |e: &SegmentEntry| e.state == SegmentStage::Sealed && e.live_bytes() > 0;
        Ok(known.into_iter().filter(|id| segment_table.entry(*id).is_some_and(is_live)).collect())
    }

    fn scrub(&self, after: Option<SegmentId>, work_for: WorkFor<'_>) -> Result<ScrubStep, LogError> {
        self.scrub_after(after, work_for)
    }

    fn space(&self) -> Space {
        self.measure_space()
    }

    fn has_unpinned(&self) -> bool {
        self.pins.has_unpinned()
    }

    fn has_retired(&self) -> bool {
        self.pins.has_retired()
    }
}
