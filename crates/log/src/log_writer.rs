//! The commit log's writer: takes records and edits, and writes stripes of frames.
//!
//! A *group* is the unit of a sync: records, then edits of the segment table, then one barrier. The log is a
//! *chain* of mirror segments: the past ones, the current one, and spares for later. A segment is *announced*
//! when a durable frame or root names it as the next of the chain, so that recovery can follow.
//!
//! # Invariants
//! 1. The next group is begun only after the flush after this one returned. So recovery knows that every
//!    group that it finds, except the last, was durable (`Log::write_group_of` flushes under the lock of the
//!    writer).
//! 2. Stripes are numbered by `sequence`, without gaps, across segments (recovery requires it: `cases`, S5).
//! 3. The segment after the current one is announced before the current one's last stripe is written (assert
//!    in `roll`).
//! 4. `starts[i]` of a chain segment names the first record that begins in stripe i or later (assert in
//!    `begin_stripe`: places never fall).
//! 5. `written_pos` is the place of the first record that no stripe holds (assert in `write_group`).
//! 6. Ids of the chain's segments rise (assert in `roll`).
//! 7. The writer leaves a mirror segment free that only a recovery takes, even if devices are lost within
//!    parity (`allocate_log`;
//!    `tests/full.rs: a_pool_whose_log_took_the_last_segment_opens_and_can_be_emptied`).
//! 8. After a sealed end, no group is written before a root names the next segment (assert in `roll`:
//!    announced).
//! 9. A copy of a root lies whole in a stripe of its own, behind the groups that the root has
//!    (`make_room_for_root` refuses a longer one). It is in no group: recovery passes over it
//!    (`recover/walk.rs`).

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::log_frame::{
    BARRIER_BYTES, FRAME_HEAD_BYTES, LogFrame, RECORD_HEAD_BYTES, RecordFragment,
};
use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentStream};
use warpfire_pool::{Pool, PoolError, SegmentWriter, StripeBuf};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, ZoneIndex};

use crate::limits::{EDIT_MAX_BYTES, LOG_RESERVE_SEGMENTS};
use crate::pending::RecordBuffer;
use crate::store::LogPos;
use crate::stream::log_segments_in_bulk;

/// Where a stripe of the log begins.
#[derive(Clone, Copy)]
pub(crate) struct StripeStart {
    /// The first record that begins in this stripe or later.
    pub(crate) pos: u64,
    /// Bytes of the segment's stripes before this one, in whole blocks.
    pub(crate) bytes_before: u64,
}

/// A log segment that takes no more stripes, and that recovery would still read.
pub(crate) struct PastSegment {
    pub(crate) descriptor: SegmentDescriptor,
    pub(crate) starts: Vec<StripeStart>,
    /// Bytes of all its stripes, in whole blocks.
    pub(crate) bytes: u64,
}

/// The part of a root that leads to the commit log.
pub(crate) struct LogChain {
    /// The stripe of the first segment where reading begins.
    pub(crate) first_stripe: u32,
    /// The segments to read, oldest first, and the announced one.
    pub(crate) chain: Vec<SegmentDescriptor>,
    /// Whether recovery would read no record: reading begins after the last stripe.
    is_read_up: bool,
}

/// The commit log: the segments that recovery would read, and the writer at its end.
pub(crate) struct LogWriter {
    past: VecDeque<PastSegment>,
    current: SegmentWriter,
    /// Where the stripes of `current` begin.
    starts: Vec<StripeStart>,
    /// Bytes of the stripes of `current`, in whole blocks.
    bytes: u64,
    /// Payload bytes of a whole segment.
    segment_bytes: u64,
    /// Bytes of the first segment's stripes that recovery would skip.
    skipped_bytes: u64,
    /// The stripe that fills.
    buf: StripeBuf,
    /// The next segments, in order.
    spares: VecDeque<SegmentWriter>,
    /// Whether the first of `spares` is announced.
    announced: bool,
    /// The next group leaves the current segment, which has lost a column, for a whole one.
    leaves_current: bool,
    sequence: u64,
    barrier: u64,
    checkpoint: u64,
    written_pos: u64,
    /// The bytes of one frame. Kept so that a frame allocates nothing.
    frame: Vec<u8>,
}

/// The numbers from which a writer goes on: those of the log before it, or those of a new pool.
#[derive(Clone, Copy)]
pub(crate) struct LogOrigin {
    pub(crate) sequence: u64,
    pub(crate) barrier: u64,
    pub(crate) checkpoint: u64,
    pub(crate) next: LogPos,
}

impl LogWriter {
    /// A writer that goes on in `current`, which is new.
    pub(crate) fn new(past: VecDeque<PastSegment>, current: SegmentWriter, origin: LogOrigin) -> Self {
        assert_eq!(current.stripe_count(), 0, "a log goes on in a new segment");
        let segment_bytes = current.remaining_bytes();
        Self::going_on(past, current, (Vec::new(), 0), segment_bytes, origin)
    }

    /// A writer for a pool without a free segment: `last`, which is sealed, stays the end of the chain until
    /// `make_room` finds a segment and a root names that one.
    pub(crate) fn without_room(
        past: VecDeque<PastSegment>,
        last: PastSegment,
        pool: &Pool,
        origin: LogOrigin,
    ) -> Result<Self, PoolError> {
        let current = pool.sealed_writer(last.descriptor.id)?;
        assert!(current.is_sealed(), "no group is written behind the accepted stripes of an old segment");
        let segment_bytes = pool.geometry(SegmentKind::Mirror).segment_payload_bytes;
        Ok(Self::going_on(past, current, (last.starts, last.bytes), segment_bytes, origin))
    }

    fn going_on(
        past: VecDeque<PastSegment>,
        current: SegmentWriter,
        (starts, bytes): (Vec<StripeStart>, u64),
        segment_bytes: u64,
        origin: LogOrigin,
    ) -> Self {
        LogWriter {
            segment_bytes,
            past,
            current,
            starts,
            bytes,
            skipped_bytes: 0,
            buf: StripeBuf::without_stripe(),
            spares: VecDeque::new(),
            announced: false,
            leaves_current: false,
            sequence: origin.sequence,
            barrier: origin.barrier,
            checkpoint: origin.checkpoint,
            written_pos: origin.next.0,
            frame: Vec::new(),
        }
    }

    pub(crate) fn barrier(&self) -> u64 {
        self.barrier
    }

    pub(crate) fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn written_pos(&self) -> LogPos {
        LogPos(self.written_pos)
    }

    /// Bytes that the next recovery would read, in whole blocks.
    pub(crate) fn bytes(&self) -> u64 {
        let chain_bytes = self.bytes + self.past.iter().map(|p| p.bytes).sum::<u64>();
        assert!(self.skipped_bytes <= chain_bytes, "recovery skips stripes of the chain only");
        chain_bytes - self.skipped_bytes
    }

    /// The places of the segments from which the next recovery would read records.
    pub(crate) fn places(&self) -> BTreeSet<(DeviceIndex, ZoneIndex)> {
        if self.bytes() == 0 {
            return BTreeSet::new();
        }
        let chain = self.past.iter().map(|p| p.descriptor.clone()).chain([self.current.descriptor()]);
        chain.flat_map(|descriptor| descriptor.columns.to_vec()).collect()
    }

    /// The segments from which the next recovery would read records.
    pub(crate) fn needed_segments(&self) -> Vec<SegmentId> {
        if self.bytes() == 0 {
            return Vec::new();
        }
        self.past.iter().map(|p| p.descriptor.id).chain([self.current.id()]).collect()
    }

    /// Whether new segments are better than the current one or a spare: groups without content are worth
    /// their writing until the log is in such a segment.
    pub(crate) fn is_outdated(&self) -> bool {
        let is_outdated = self.current.is_outdated() || self.spares.iter().any(SegmentWriter::is_outdated);
        is_outdated && !self.is_at_sealed_end()
    }

    /// Log segments in use, spares too.
    pub(crate) fn segments(&self) -> usize {
        self.past.len() + 1 + self.spares.len()
    }

    /// Whether the chain ends in a sealed segment. Nothing in the log can name the next segment then.
    pub(crate) fn is_at_sealed_end(&self) -> bool {
        self.current.is_sealed()
    }

    /// Whether a root must name the next segment before a group is written.
    pub(crate) fn needs_root(&self) -> bool {
        self.is_at_sealed_end() && !self.announced
    }

    /// Allocates segments until a group of `bytes` fits, with one left to announce after it. `NoSpace` leaves
    /// the log as it was; spares allocated before it stay for the next try. The last free segment stays free:
    /// the next recovery begins its log there (`limits::RECOVERY_RESERVE`).
    pub(crate) fn make_room(
        &mut self,
        pool: &Pool,
        bytes: usize,
        mut next_id: impl FnMut() -> SegmentId,
    ) -> Result<(), PoolError> {
        // Zones must be there before the first frame is written: a group that runs out of them half-way would
        // latch the store. A stripe may end with a frame's length unused; an eighth is far more than that.
        // The rest of the current segment is not counted.
        let leaving = self.is_outdated() && self.announced;
        let wanted = 1 + (bytes as u64 + bytes as u64 / 8) / self.segment_bytes + u64::from(leaving);
        while (self.spares.len() as u64) < wanted {
            match allocate_log(pool, &mut next_id) {
                Ok(writer) => self.spares.push_back(writer),
                // Without a spare, the current segment must hold the group and, later, an announcement. A
                // full pool can so still log the deletions that empty it.
                Err(PoolError::NoSpace) if self.fits_without_spare(bytes) => {
                    tracing::debug!(
                        name: "log_without_spare",
                        bytes,
                        "no segment is free for the commit log; the group fits its current one"
                    );
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        assert!(!self.spares.is_empty(), "a segment is left to announce");
        self.leaves_current = leaving;
        Ok(())
    }

    /// Whether the current segment takes a group of `bytes`, and an announcement later.
    fn fits_without_spare(&self, bytes: usize) -> bool {
        let stripe = self.current.next_stripe_capacity();
        self.current.remaining_bytes() > (bytes + bytes / 8 + EDIT_MAX_BYTES + stripe / 8) as u64
    }

    /// Writes one group. It is durable after the next flush. After an error the writer is unusable: the
    /// caller latches the log.
    pub(crate) fn write_group(
        &mut self,
        records: &RecordBuffer,
        edits: &[LogFrame<'static>],
    ) -> Result<(), PoolError> {
        assert_eq!(records.first(), self.written_pos(), "a group goes on where the log ends");
        if std::mem::take(&mut self.leaves_current) {
            self.roll();
        }
        self.begin_stripe()?;
        for record in records.iter() {
            self.push_record(record)?;
        }
        for edit in edits {
            self.push(edit)?;
        }
        // The barrier is the last frame: a group that a power cut tears has none, and recovery drops it.
        let barrier = LogFrame::Barrier { number: self.barrier + 1, checkpoint: self.checkpoint };
        self.push(&barrier)?;
        self.barrier += 1;
        assert_eq!(records.end(), self.written_pos(), "a group holds each of its records once");
        self.end_stripe()
    }

    /// Makes room for a copy of a root of at most `bytes`. `false` if no stripe holds so many, or if there is
    /// no room beside the segments that a full pool needs to free others.
    pub(crate) fn make_room_for_root(
        &mut self,
        pool: &Pool,
        bytes: usize,
        next_id: impl FnMut() -> SegmentId,
    ) -> Result<bool, PoolError> {
        let bytes = bytes + FRAME_HEAD_BYTES;
        let largest = pool.geometry(SegmentKind::Mirror).stripe_payload_bytes as u64;
        if self.is_at_sealed_end() || !fits_stripe(largest, bytes) {
            return Ok(false);
        }
        // On a nearly full pool the rest of the current segment is for the groups that free others.
        let kept = LOG_RESERVE_SEGMENTS + 2 * log_segments_in_bulk(pool, pool.geometry(SegmentKind::Bulk));
        if pool.free_segments(SegmentKind::Mirror) <= kept {
            return Ok(false);
        }
        if fits_stripe(self.current.next_stripe_capacity() as u64, bytes) && self.fits_without_spare(bytes) {
            return Ok(true);
        }
        match self.make_room(pool, bytes, next_id) {
            Err(PoolError::NoSpace) => Ok(false),
            other => other.map(|()| !self.spares.is_empty()),
        }
    }

    /// Writes a copy of a root behind the last group, in a stripe of its own. The caller made room for it.
    pub(crate) fn write_root_copy(&mut self, copy: &[u8]) -> Result<(), PoolError> {
        if !fits_stripe(self.current.next_stripe_capacity() as u64, copy.len() + FRAME_HEAD_BYTES) {
            if !self.announced {
                self.begin_stripe()?;
                self.end_stripe()?;
            }
            self.roll();
        }
        self.begin_stripe()?;
        self.push(&LogFrame::Root(copy))?;
        self.end_stripe()
    }

    /// Passes over records that the next root makes unnecessary.
    pub(crate) fn skip(&mut self, records: &RecordBuffer) {
        assert_eq!(records.first(), self.written_pos(), "a root absorbs the records after the log's end");
        self.written_pos = records.end().0;
    }

    /// Makes the buffer ready to take frames. The announcement of the next segment goes first, if it is due.
    fn begin_stripe(&mut self) -> Result<(), PoolError> {
        if self.current.next_stripe_capacity() == 0 {
            self.roll();
        }
        self.current.begin(&mut self.buf);
        debug_assert!(
            self.starts.last().is_none_or(|last| last.pos <= self.written_pos),
            "records are written in order"
        );
        self.starts.push(StripeStart { pos: self.written_pos, bytes_before: self.bytes });
        // Announced as soon as a spare is there: any later stripe may turn out to be the last one, when a
        // device fails and the next group leaves the segment.
        if let Some(next) = self.spares.front().filter(|_| !self.announced) {
            let announcement = LogFrame::LogNext(next.descriptor());
            self.announced = true;
            if !is_planted(PlantedBug::LogSegmentUnannounced) {
                self.push(&announcement)?;
            }
        }
        Ok(())
    }

    /// Goes on to the next segment of the chain.
    fn roll(&mut self) {
        assert!(self.announced, "the next log segment is announced before this one ends");
        let next = self.spares.pop_front().expect("the announced segment is the first spare");
        assert!(next.id() > self.current.id(), "log segments are allocated in the order of their ids");
        self.announced = false;
        let descriptor = std::mem::replace(&mut self.current, next).seal();
        let starts = std::mem::take(&mut self.starts);
        self.past.push_back(PastSegment { descriptor, starts, bytes: std::mem::take(&mut self.bytes) });
    }

    /// Writes the buffer as the next stripe.
    fn end_stripe(&mut self) -> Result<(), PoolError> {
        let len = self.buf.len();
        self.current.write_stripe(&mut self.buf, self.sequence + 1)?;
        self.sequence += 1;
        debug_assert_eq!(
            self.starts.len(),
            self.current.stripe_count() as usize,
            "each stripe has one start"
        );
        // Devices, and recovery, read whole blocks.
        self.bytes += len.next_multiple_of(BLOCK_BYTES) as u64;
        Ok(())
    }

    /// Appends a frame, in the next stripe if this one has no room for it.
    fn push(&mut self, frame: &LogFrame<'_>) -> Result<(), PoolError> {
        let mut bytes = std::mem::take(&mut self.frame);
        bytes.clear();
        frame.encode(&mut bytes);
        if bytes.len() > self.buf.remaining() {
            self.end_stripe()?;
            self.begin_stripe()?;
        }
        let taken = self.buf.append(&bytes);
        assert_eq!(taken, bytes.len(), "every frame but a record fits an empty stripe");
        self.frame = bytes;
        Ok(())
    }

    /// Appends a record, split into fragments where stripes end.
    fn push_record(&mut self, record: &[u8]) -> Result<(), PoolError> {
        let mut rest = record;
        let mut begun = false;
        loop {
            // A fragment shorter than a barrier is not worth its head: the rest of the stripe stays unused.
            if self.buf.remaining() < RECORD_HEAD_BYTES + rest.len().min(BARRIER_BYTES) {
                self.end_stripe()?;
                self.begin_stripe()?;
            }
            let room = self.buf.remaining() - RECORD_HEAD_BYTES;
            let (now, later) = rest.split_at(rest.len().min(room));
            let fragment = match (begun, later.is_empty()) {
                (false, true) => RecordFragment::Whole,
                (false, false) => RecordFragment::First,
                (true, false) => RecordFragment::Middle,
                (true, true) => RecordFragment::Last,
            };
            // The place counts as written from the first fragment on, so that a stripe that begins inside a
            // record names the record after it.
            let pos = if begun { self.written_pos - 1 } else { self.written_pos };
            if !begun {
                self.written_pos += 1;
            }
            self.push(&LogFrame::Record { fragment, pos, bytes: now })?;
            begun = true;
            rest = later;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// The chain from which recovery reads every record from `keep_from` on.
    pub(crate) fn log_chain(&self, keep_from: LogPos) -> LogChain {
        assert!(keep_from <= self.written_pos(), "a root keeps records from a place that was reached");
        let starts = self.past.iter().map(|p| &p.starts).chain([&self.starts]);
        let descriptors = self.past.iter().map(|p| p.descriptor.clone()).chain([self.current.descriptor()]);
        let mut log_chain = LogChain { first_stripe: 0, chain: Vec::new(), is_read_up: false };
        let mut begun = false;
        let last = self.past.len();
        for (n, (starts, descriptor)) in starts.zip(descriptors).enumerate() {
            // The record begins in the last stripe that starts at it or before it. An earlier segment that
            // the chain need not hold is skipped: the next one starts at the record or before it.
            let after = starts.partition_point(|start| start.pos <= keep_from.0);
            let next_begins_later = n == last || self.next_start(n + 1) > keep_from.0;
            if !begun && next_begins_later {
                begun = true;
                // With every record written and none to keep, reading begins after the last stripe.
                let all_written = n == last && keep_from.0 >= self.written_pos;
                log_chain.is_read_up = all_written;
                let stripe = if all_written { starts.len() } else { after.saturating_sub(1) };
                log_chain.first_stripe = u32::try_from(stripe).expect("a zone has fewer than 2^32 stripes");
            }
            if begun {
                log_chain.chain.push(descriptor);
            }
        }
        // The root announces the next segment, so that no frame has to.
        log_chain.chain.extend(self.spares.front().map(SegmentWriter::descriptor));
        assert!(begun, "the chain holds the current segment at least");
        log_chain
    }

    /// Most bytes that `log_chain` takes in a root, its fixed part included.
    pub(crate) fn root_bytes_max(&self) -> usize {
        let bytes = |d: &SegmentDescriptor| {
            SegmentDescriptor::encoded_bytes_max(d.columns.len(), d.lost.len(), d.stripes.len())
        };
        let past: usize = self.past.iter().map(|p| bytes(&p.descriptor)).sum();
        128 + past + bytes(&self.current.descriptor()) + EDIT_MAX_BYTES
    }

    /// The first record that begins in the n-th segment of the chain or later.
    fn next_start(&self, n: usize) -> u64 {
        let starts = self.past.get(n).map_or(&self.starts, |p| &p.starts);
        starts.first().map_or(self.written_pos, |start| start.pos)
    }

    /// Takes note that a root with `log_chain` is durable, as checkpoint `checkpoint`. Removes the segments
    /// that the root does not name, and returns them, oldest first.
    pub(crate) fn note_root(&mut self, checkpoint: u64, log_chain: &LogChain) -> Vec<SegmentId> {
        assert_eq!(checkpoint, self.checkpoint + 1, "checkpoints are numbered without gaps");
        self.checkpoint = checkpoint;
        let is_named = |spare: &SegmentWriter| log_chain.chain.iter().any(|d| d.id == spare.id());
        self.announced |= self.spares.front().is_some_and(is_named);
        let first = log_chain.chain.first().expect("a chain is never empty").id;
        let mut dropped = Vec::new();
        while self.past.front().is_some_and(|p| p.descriptor.id < first) {
            dropped.extend(self.past.pop_front().map(|p| p.descriptor.id));
        }
        let (starts, bytes) = self.past.front().map_or((&self.starts, self.bytes), |p| (&p.starts, p.bytes));
        self.skipped_bytes = starts.get(log_chain.first_stripe as usize).map_or(bytes, |s| s.bytes_before);
        if log_chain.is_read_up {
            // A copy of the root may follow, and no recovery from the root needs it.
            self.skipped_bytes = self.bytes + self.past.iter().map(|p| p.bytes).sum::<u64>();
        }
        dropped
    }
}

/// Whether a stripe of this capacity takes a frame of so many bytes, and before it the announcement of a
/// segment.
fn fits_stripe(capacity_bytes: u64, frame_bytes: usize) -> bool {
    capacity_bytes >= (frame_bytes + EDIT_MAX_BYTES) as u64
}

/// A new segment for the log, or `NoSpace` if it is the one that only a recovery may take.
fn allocate_log(pool: &Pool, mut next_id: impl FnMut() -> SegmentId) -> Result<SegmentWriter, PoolError> {
    if !pool.leaves_a_mirror() {
        return Err(PoolError::NoSpace);
    }
    pool.allocate(next_id(), SegmentStream::CommitLog)
}
