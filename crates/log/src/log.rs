//! `Log`: the log over a pool.
//!
//! A sync writes one *group* to the commit log: the pending records, the edits of the segment table, and a
//! *barrier*, which ends the group and requires every stripe that the edits list.
//!
//! # Invariants
//! 1. Locks are taken in this order: `sync_state`, one stream's `open`, the queue of `write_queue`,
//!    `segment_table`, `pending`. Device operations happen under the first two only, never under the others.
//! 2. A group takes the pending records before it looks at the streams. Bytes appended before a record was
//!    queued are then in a buffer, in the write queue or in a stripe. All of them are in stripes before the
//!    edits are taken, so the barrier requires them (order of `write_group`; `tests/crash.rs`).
//! 3. The zones of a segment are freed only after a barrier or root without it is durable (`free_zones`
//!    follows `write_group_of` or `write_root`; `tests/crash.rs` on append-only devices).
//! 4. After the latch has tripped nothing is written (`Latch::check` in each call that writes;
//!    `tests/faults.rs`). The latch of a pool that is open for reading is closed from the start
//!    (`tests/reading.rs`).
//! 5. A checkpoint keeps records from a place that was reached, and `keep_from` never falls (asserts in
//!    `checkpoint` and `write_root`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::{PlantedBug, RankedMutex, is_planted};
use warpfire_format::log_state::LogState;
use warpfire_format::segment::SegmentKind;
use warpfire_pool::{Pool, PoolError};
use warpfire_units::{SegmentId, SlicePtr};

use crate::latch::{Latch, on_read};
use crate::limits::{EDIT_MAX_BYTES, GROUP_BYTES_PER_COLUMN, PENDING_MAX_BYTES, upkeep_bytes};
use crate::lock_ranks::{PENDING, SEGMENT_TABLE, SYNC_STATE};
use crate::log_writer::LogWriter;
use crate::pending::{PendingRecords, RecordBuffer};
use crate::pins::Pins;
use crate::recover::{LogEnd, LogParts};
use crate::segment_table::SegmentTable;
use crate::store::{Admit, LogError, LogPos, LogStore, Pin, ScrubbedSegment, Slices, Space, Stream};
use crate::stream::{
    BulkStream, OpenSegment, STREAMS, allocate_bulk, room_wanted_bytes, slot, starts_on_block,
};
use crate::write_queue::{WriteQueue, WriterThread};

/// The log over a pool.
pub struct Log {
    pub(crate) pool: Pool,
    pub(crate) segment_table: Arc<RankedMutex<SEGMENT_TABLE, SegmentTable>>,
    pub(crate) damaged: BTreeSet<SegmentId>,
    pub(crate) pins: Arc<Pins>,
    write_queue: Arc<WriteQueue>,
    writer_thread: Option<WriterThread>,
    streams: [BulkStream; STREAMS.len()],
    pending: RankedMutex<PENDING, PendingRecords>,
    /// `None` if the pool is open for reading: then there is nothing to write with.
    sync_state: RankedMutex<SYNC_STATE, Option<SyncState>>,
    pub(crate) latch: Latch,
    next_segment: AtomicU64,
    /// Counts appends and records, each after it took place. A sync that finds no new ones writes nothing.
    changes: AtomicU64,
    /// Bytes and segments of the commit log, published for callers without `sync_state`.
    log_bytes: AtomicU64,
    log_segments: AtomicU64,
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
    /// `changes` as of the last group that became durable.
    synced_changes: u64,
    /// The first record that the last root keeps.
    keep_from: LogPos,
    /// The client's state in the last root, while a sync may have to write that root again.
    client: Option<Vec<u8>>,
}

impl Log {
    /// Puts the parts together and writes them as the pool's newest root, with `client` as the client's
    /// state. On a pool that is open for reading there is no writer, the latch is closed, and nothing is
    /// written.
    pub(crate) fn assemble(parts: LogParts, client: &[u8]) -> Result<Log, LogError> {
        let keep_from = parts.keep_from;
        let (sync_state, log_bytes, log_segments) = match parts.end {
            LogEnd::Writer(log_writer) => {
                assert_eq!(
                    log_writer.written_pos(),
                    parts.next_pos,
                    "the writer goes on with the next record"
                );
                let log_writer = *log_writer;
                (Some(SyncState { log_writer, synced_changes: 0, keep_from, client: None }), 0, 0)
            }
            LogEnd::Read { bytes, segments } => (None, bytes, segments),
        };
        let latch = if sync_state.is_some() { Latch::default() } else { Latch::for_reading() };
        let segment_table = Arc::new(RankedMutex::new(parts.segment_table));
        let pins = Arc::new(Pins::new());
        let columns = u64::from(parts.pool.geometry(SegmentKind::Bulk).data).max(1);
        let group_bytes = GROUP_BYTES_PER_COLUMN * columns;
        let log = Log {
            pool: parts.pool,
            write_queue: Arc::new(WriteQueue::new(Arc::clone(&segment_table), Arc::clone(&pins))),
            writer_thread: None,
            segment_table,
            damaged: parts.damaged,
            pins,
            streams: std::array::from_fn(BulkStream::new),
            pending: RankedMutex::new(PendingRecords::new(parts.next_pos)),
            sync_state: RankedMutex::new(sync_state),
            latch,
            next_segment: AtomicU64::new(parts.next_segment.get()),
            changes: AtomicU64::new(0),
            log_bytes: AtomicU64::new(log_bytes),
            log_segments: AtomicU64::new(log_segments),
            room_bytes: AtomicU64::new(0),
            group_bytes,
            group_due_bytes: AtomicU64::new(group_bytes),
        };
        // Before any append: a crash from here on finds the recovered state as this root describes it, and
        // never reads the refused end of the old log again.
        if let Some(state) = &mut *log.sync_state.lock() {
            log.write_root(state, client, keep_from)?;
        }
        Ok(log)
    }

    /// Writes a group whenever the stripes since the last one hold so many payload bytes. By default that is
    /// 128 MiB for each data column. The next recovery reads about as many bytes, and not more.
    #[must_use]
    pub fn with_group_bytes(mut self, bytes: u64) -> Log {
        self.group_bytes = bytes;
        self.group_due_bytes = AtomicU64::new(bytes);
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

    /// Log segments in use, for the space they take.
    pub(crate) fn log_segments(&self) -> u64 {
        self.log_segments.load(Ordering::Relaxed)
    }

    /// Pushes the stream's buffer. Seals the segment if it takes no more appends.
    fn write_out(&self, stream: &BulkStream, open: &mut Option<OpenSegment>) -> Result<(), PoolError> {
        let Some(segment) = open.as_mut() else { return Ok(()) };
        let pushed = segment.push(&self.write_queue);
        // After a failure too: the stripe is in the queue, where readers find it.
        stream.publish_pushed(segment);
        pushed?;
        if segment.is_done() {
            self.seal(open);
        }
        Ok(())
    }

    /// Writes every buffer to the devices, and waits for all stripes pushed before.
    fn write_all_out(&self) -> Result<(), PoolError> {
        for stream in &self.streams {
            self.write_out(stream, &mut stream.open.lock())?;
        }
        self.write_queue.drain()
    }

    /// Seals the stream's open segment, if there is one.
    fn seal(&self, open: &mut Option<OpenSegment>) {
        if let Some(segment) = open.take() {
            assert!(segment.is_pushed(), "a segment is sealed when all of it was pushed");
            self.write_queue.seal(segment.id());
        }
    }

    /// Seals the wanted ones of the open segments. A segment may have got bytes since the caller chose it.
    pub(crate) fn seal_open(&self, wanted: impl Fn(SegmentId) -> bool) -> Result<(), LogError> {
        let mut any = false;
        for stream in &self.streams {
            let mut open = stream.open.lock();
            if open.as_ref().is_some_and(|o| wanted(o.id())) {
                self.latch.check()?;
                self.write_out(stream, &mut open).map_err(|e| self.latch.on_write(e))?;
                self.seal(&mut open);
                any = true;
            }
        }
        // Sealing waits for the last stripe, and the caller needs the segments sealed on return.
        if any { self.write_queue.drain().map_err(|e| self.latch.on_write(e)) } else { Ok(()) }
    }

    /// Returns where in the stream's open segment `wanted` bytes fit. Opens a new segment if they do not.
    fn place(
        &self,
        kind: Stream,
        open: &mut Option<OpenSegment>,
        on_block: bool,
        wanted: usize,
    ) -> Result<u64, PoolError> {
        if let Some(at) = open.as_ref().and_then(|o| o.place(on_block, wanted)) {
            return Ok(at);
        }
        // A new segment would be sealed empty, and the next one too.
        if wanted as u64 > self.segment_bytes() {
            return Err(PoolError::NoSpace);
        }
        // The new segment first: when there is none, the rest of this one still takes shorter appends.
        let stream = &self.streams[slot(kind)];
        let writer = allocate_bulk(&self.pool, self.next_id(), kind)?;
        self.write_out(stream, open)?;
        self.seal(open);
        assert!(open.is_none(), "a stream has one open segment");
        // In the table before any stripe of it can complete, which looks it up there.
        self.segment_table.lock().open(writer.descriptor());
        stream.publish_open(writer.id());
        *open = Some(OpenSegment::new(writer));
        self.note_room();
        open.as_ref().and_then(|o| o.place(on_block, wanted)).ok_or(PoolError::NoSpace)
    }

    /// Appends bytes, in as many slices as segments take them. Leaves no reference behind if it fails.
    fn try_append(&self, kind: Stream, bytes: &[u8]) -> Result<Slices, LogError> {
        self.latch.check()?;
        let stream = &self.streams[slot(kind)];
        let on_block = starts_on_block(kind, bytes.len());
        let mut open = stream.open.lock();
        let mut slices = Slices::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let wanted = room_wanted_bytes(bytes.len(), rest.len());
            let mut part = self.append_part(kind, &mut open, on_block, wanted, rest);
            if matches!(part, Err(PoolError::NoSpace)) {
                // The lock of one stream at a time: two appends that search each other's streams would
                // otherwise wait for each other.
                drop(open);
                part = self.append_to_any_stream(on_block, wanted, rest);
                open = stream.open.lock();
            }
            match part {
                Ok((slice, unlogged_bytes)) => {
                    rest = &rest[slice.len_bytes as usize..];
                    slices.push(slice);
                    if unlogged_bytes < self.group_due_bytes.load(Ordering::Relaxed) {
                        continue;
                    }
                    drop(open);
                    if let Err(e) = self.write_due_group() {
                        self.release_all(slices);
                        return Err(e);
                    }
                    open = stream.open.lock();
                }
                Err(e) => {
                    drop(open);
                    // The parts before the failure are garbage: no caller has a pointer to them.
                    self.release_all(slices);
                    return Err(self.latch.on_write(e));
                }
            }
        }
        debug_assert_eq!(
            slices.iter().map(|slice| slice.len_bytes as usize).sum::<usize>(),
            bytes.len(),
            "the slices hold the whole append"
        );
        Ok(slices)
    }

    fn release_all(&self, slices: Slices) {
        for slice in slices {
            self.release(slice.segment, u64::from(slice.len_bytes));
        }
    }

    /// Writes a group because of the bytes since the last one, so that the next recovery has no more of them
    /// to verify. Without room for a group it waits for as many bytes again: the caller's append stands.
    fn write_due_group(&self) -> Result<(), LogError> {
        let mut state = self.sync_state.lock();
        let state = state.as_mut().ok_or(LogError::OpenForReading)?;
        // While this thread waited for the lock, another one may have written the group.
        let unlogged_bytes = self.segment_table.lock().unlogged_bytes();
        if unlogged_bytes < self.group_due_bytes.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.write_group(state) {
            Err(LogError::NoSpace) => {
                self.group_due_bytes.store(unlogged_bytes + self.group_bytes, Ordering::Relaxed);
                Ok(())
            }
            other => other,
        }
    }

    /// Appends as many bytes as the open segment takes, at least `wanted`. Returns them, and the bytes of
    /// unlogged stripes.
    fn append_part(
        &self,
        kind: Stream,
        open: &mut Option<OpenSegment>,
        on_block: bool,
        wanted: usize,
        bytes: &[u8],
    ) -> Result<(SlicePtr, u64), PoolError> {
        let stream = &self.streams[slot(kind)];
        let offset_bytes = self.place(kind, open, on_block, wanted)?;
        let segment = open.as_mut().expect("a place lies in the open segment");
        let len_bytes = segment.takes(offset_bytes, bytes.len());
        let taken = len_bytes as usize;
        debug_assert!(taken >= wanted.min(bytes.len()), "a place has the wanted room");
        let id = segment.id();
        let appended = segment.append(offset_bytes, &bytes[..taken], &self.write_queue);
        stream.publish_pushed(segment);
        appended?;
        // Counted before the stream's lock is dropped, so that no sync finds the segment dead and seals it.
        let unlogged_bytes = self.segment_table.lock().note_append(id, taken as u64, segment.len_bytes());
        if segment.is_done() {
            self.write_out(stream, open)?;
        }
        Ok((SlicePtr { segment: id, offset_bytes, len_bytes }, unlogged_bytes))
    }

    /// Appends to the first stream with room in its open segment. Without a free segment, to use all space
    /// that counts as free matters more than to keep lifetimes apart.
    fn append_to_any_stream(
        &self,
        on_block: bool,
        wanted: usize,
        bytes: &[u8],
    ) -> Result<(SlicePtr, u64), PoolError> {
        for kind in STREAMS {
            let mut open = self.streams[slot(kind)].open.lock();
            if open.as_ref().is_some_and(|o| o.place(on_block, wanted).is_some()) {
                return self.append_part(kind, &mut open, on_block, wanted, bytes);
            }
        }
        Err(PoolError::NoSpace)
    }

    /// Seals the open segments without references, so that they can be freed.
    fn seal_dead(&self) -> Result<(), LogError> {
        let dead = self.segment_table.lock().open_and_dead();
        if dead.is_empty() { Ok(()) } else { self.seal_open(|id| dead.contains(&id)) }
    }

    /// Frees the retired segments that no pin holds. Their zones follow when the next group is durable.
    fn collect_unpinned(&self) {
        while let Some(id) = self.pins.take_unpinned() {
            self.segment_table.lock().free(id);
        }
    }

    /// Frees zones by a sync, for an append that found none. `true` if the append is worth another try.
    fn reclaim(&self) -> Result<bool, LogError> {
        let before = self.pool.free_segments(SegmentKind::Mirror);
        self.seal_dead()?;
        let mut state = self.sync_state.lock();
        self.write_group(state.as_mut().ok_or(LogError::OpenForReading)?)?;
        let _freed_some = self.pool.retry_retired_zones();
        let now = self.pool.free_segments(SegmentKind::Mirror);
        tracing::debug!(
            name: "log_reclaimed",
            free_before = before,
            free_now = now,
            "an append found no free segment and synced to free some"
        );
        Ok(now > before)
    }

    /// Makes everything durable that was appended and logged before the call.
    fn write_group(&self, state: &mut SyncState) -> Result<(), LogError> {
        self.latch.check()?;
        // Read before the records are taken: a change that comes later only makes the next sync write again.
        let changes = self.changes.load(Ordering::Acquire);
        // Records before streams (invariant 2).
        let records = self.pending.lock().take();
        match self.write_group_of(state, &records) {
            Ok(()) => {
                state.synced_changes = changes;
                self.group_due_bytes.store(self.group_bytes, Ordering::Relaxed);
            }
            Err(e) => {
                // A full pool may take them later, after a checkpoint.
                self.pending.lock().put_back(records);
                return Err(e);
            }
        }
        self.free_zones()
    }

    /// Frees the zones of segments that a durable barrier or root has freed.
    fn free_zones(&self) -> Result<(), LogError> {
        let freed = self.segment_table.lock().take_freed();
        for id in &freed {
            tracing::trace!(name: "segment_freed", segment = %id, "the zones of a segment are free");
            self.pool.free(*id).map_err(|e| self.latch.on_write(e))?;
        }
        if !freed.is_empty() {
            self.note_room();
        }
        Ok(())
    }

    /// The sync of a checkpoint that keeps no pending record. The root holds the records' effect and the
    /// edits, so nothing is logged, and a full pool can still make a checkpoint. `false` if a pending record
    /// is kept.
    fn absorb_into_root(&self, state: &mut SyncState, keep_from: LogPos) -> Result<bool, LogError> {
        let changes = self.changes.load(Ordering::Acquire);
        {
            let mut pending = self.pending.lock();
            if pending.next() > keep_from && !pending.is_empty() {
                return Ok(false);
            }
            state.log_writer.skip(&pending.take());
        }
        self.write_all_out().map_err(|e| self.latch.on_write(e))?;
        self.collect_unpinned();
        // The root lists the segments as these edits leave them, so the frames are not written.
        let _edits_in_the_root = self.segment_table.lock().edits();
        state.synced_changes = changes;
        Ok(true)
    }

    /// The sync of a checkpoint on a full pool: the commit log has no room for a group. The root holds the
    /// edits, so they are not written as frames. The records stay pending for the next sync.
    fn absorb_edits_into_root(&self) -> Result<(), LogError> {
        self.write_all_out().map_err(|e| self.latch.on_write(e))?;
        self.collect_unpinned();
        let _edits_in_the_root = self.segment_table.lock().edits();
        Ok(())
    }

    /// Checks that a root with this client state and all edits that wait fits its zone.
    fn check_root_fits(&self, state: &SyncState, client: &[u8]) -> Result<(), LogError> {
        let bytes =
            client.len() + state.log_writer.root_bytes_max() + self.segment_table.lock().root_bytes_max();
        if bytes as u64 > self.pool.root_payload_bytes_max() { Err(LogError::NoSpace) } else { Ok(()) }
    }

    /// Writes a group with these records, durable on return.
    fn write_group_of(&self, state: &mut SyncState, records: &RecordBuffer) -> Result<(), LogError> {
        let failed = |e| self.latch.on_write(e);
        // A crash from here to the flush leaves stripes that no group lists, or a torn group. Recovery drops
        // both: the sync has not returned.
        self.write_all_out().map_err(failed)?;
        self.collect_unpinned();
        let bytes =
            records.bytes() + records.len() * 64 + self.segment_table.lock().dirty_count() * EDIT_MAX_BYTES;
        // Room first: once the edits are taken the table counts them as logged, and `NoSpace` would lose
        // them.
        state.log_writer.make_room(&self.pool, bytes, || self.next_id()).map_err(failed)?;
        if state.log_writer.needs_root() {
            let client = state.client.take().expect("the state of a root at a sealed end is kept");
            self.write_root(state, &client, state.keep_from)?;
        }
        let log_writer = &mut state.log_writer;
        let edits = self.segment_table.lock().edits();
        if records.is_empty() && edits.is_empty() {
            return Ok(());
        }
        if is_planted(PlantedBug::FreeBeforeBarrier) {
            self.free_zones()?;
        }
        log_writer.write_group(records, &edits).map_err(failed)?;
        // One flush for bulk stripes and log stripes: the barrier makes recovery verify the stripes of the
        // last group, so their order on the devices does not matter.
        self.pool.flush().map_err(failed)?;
        self.publish_log_size(log_writer);
        Ok(())
    }

    /// Publishes the size of the commit log for readers without the lock.
    fn publish_log_size(&self, log_writer: &LogWriter) {
        self.log_bytes.store(log_writer.bytes(), Ordering::Relaxed);
        self.log_segments.store(log_writer.segments() as u64, Ordering::Relaxed);
    }

    /// Writes a root with the state as of the last group, and frees the log segments that it does not need.
    fn write_root(&self, state: &mut SyncState, client: &[u8], keep_from: LogPos) -> Result<(), LogError> {
        assert!(keep_from >= state.keep_from, "records that a root has dropped stay dropped");
        let log_writer = &mut state.log_writer;
        let log_chain = log_writer.log_chain(keep_from);
        let root = LogState {
            next_segment: SegmentId::new(self.next_segment.load(Ordering::Relaxed)).expect("ids count up"),
            next_pos: log_writer.written_pos().0,
            keep_from: keep_from.0,
            barrier: log_writer.barrier(),
            sequence: log_writer.sequence(),
            checkpoint: log_writer.checkpoint() + 1,
            first_stripe: log_chain.first_stripe,
            chain: log_chain.chain.clone(),
            segments: self.segment_table.lock().logged(),
        };
        self.pool.write_root(&root.encode(client)).map_err(|e| self.latch.on_write(e))?;
        state.keep_from = keep_from;
        // The root has the edits: the next group is due after as many bytes as ever.
        self.group_due_bytes.store(self.group_bytes, Ordering::Relaxed);
        state.client = log_writer.is_at_sealed_end().then(|| client.to_vec());
        // Only now: until the root was durable, recovery would have read these segments from the root before.
        for id in log_writer.note_root(root.checkpoint, &log_chain) {
            self.pool.free(id).map_err(|e| self.latch.on_write(e))?;
        }
        self.publish_log_size(log_writer);
        self.note_room();
        Ok(())
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
}

impl LogStore for Log {
    fn append(&self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError> {
        let appended = match self.try_append(stream, bytes) {
            Err(LogError::NoSpace) if self.reclaim()? => self.try_append(stream, bytes),
            other => other,
        };
        // After a failure too: it may have sealed a segment or left garbage, which a sync has to log.
        self.changes.fetch_add(1, Ordering::Release);
        appended
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

    fn segment_bytes(&self) -> u64 {
        self.pool.geometry(SegmentKind::Bulk).segment_payload_bytes
    }

    fn readable_bytes(&self, segment: SegmentId) -> u64 {
        self.segment_table.lock().written_bytes(segment)
    }

    fn log(&self, record: &[u8]) -> Result<LogPos, LogError> {
        self.latch.check()?;
        // Before the push: a record whose call fails must not reach the log later.
        if self.pending.lock().bytes() > PENDING_MAX_BYTES {
            self.sync()?;
        }
        let pos = self.pending.lock().push(record);
        self.changes.fetch_add(1, Ordering::Release);
        Ok(pos)
    }

    fn sync(&self) -> Result<(), LogError> {
        let changes = self.changes.load(Ordering::Acquire);
        let mut state = self.sync_state.lock();
        let state = state.as_mut().ok_or(LogError::OpenForReading)?;
        // While this thread waited for the lock, another sync may have written its changes too.
        if state.synced_changes >= changes {
            return self.latch.check();
        }
        self.write_group(state)
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
            match self.write_group(state) {
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
        self.write_root(state, client, keep_from)?;
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
            let kept = match caller {
                Admit::User => space.reserve_bytes,
                Admit::Reserve | Admit::Reserved(_) => upkeep_bytes(space.reserve_bytes),
            };
            space.free_bytes >= kept.saturating_add(bytes)
        };
        if fits() || (self.pool.retry_retired_zones() && fits()) { Ok(()) } else { Err(LogError::NoSpace) }
    }

    fn retain(&self, slice: SlicePtr) {
        self.segment_table.lock().retain(slice.segment, u64::from(slice.len_bytes));
    }

    fn release(&self, segment: SegmentId, bytes: u64) {
        self.segment_table.lock().release(segment, bytes, &self.pins);
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

    fn damage_seen(&self) -> u64 {
        self.pool.damage_seen() + self.damaged.len() as u64
    }

    fn damaged(&self) -> Result<Vec<SegmentId>, LogError> {
        let known = self.known_damaged();
        if known.is_empty() {
            return Ok(Vec::new());
        }
        self.seal_open(|id| known.contains(&id))?;
        Ok(self.live_sealed().into_iter().filter(|id| known.contains(id)).collect())
    }

    fn scrub(&self, after: Option<SegmentId>) -> Result<Option<ScrubbedSegment>, LogError> {
        self.scrub_after(after)
    }

    fn space(&self) -> Space {
        self.measure_space()
    }
}
