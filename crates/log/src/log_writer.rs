//! The commit log's writer: records and edits in, stripes of frames out.
//!
//! # Invariants
//! 1. A *group* is what one `write_group` writes: records, then edits, then one barrier. The next group is
//!    begun only after the flush behind this one returned, so any group but the last one found was durable.
//! 2. Stripes are numbered by `sequence`, without gaps, across segments.
//! 3. The segment after the current one is announced (in a frame, or by a root) before the current one's last
//!    stripe is written. (`roll` asserts it.)
//! 4. `starts[i]` of a chain segment names the first record that begins in stripe i or later.
//! 5. `written_pos` is the number of the first record that no stripe holds yet.

use std::collections::VecDeque;

use warpfire_format::log_frame::{BARRIER_BYTES, LogFrame, RECORD_HEAD_BYTES, RecordFragment};
use warpfire_format::segment::{SegmentDescriptor, SegmentKind};
use warpfire_pool::{Pool, PoolError, SegmentWriter, StripeBuf};
use warpfire_units::{BLOCK_BYTES, SegmentId};

use crate::limits::EDIT_MAX_BYTES;
use crate::pending::RecordBuffer;
use crate::store::LogPos;

/// Where a stripe of the log begins.
#[derive(Clone, Copy)]
pub(crate) struct StripeStart {
    /// The first record that begins in this stripe or later.
    pub(crate) pos: u64,
    /// Bytes of the segment's stripes before this one, in whole blocks.
    pub(crate) bytes_before: u64,
}

/// A log segment that is written no more, and that recovery would still read.
pub(crate) struct PastSegment {
    pub(crate) descriptor: SegmentDescriptor,
    pub(crate) starts: Vec<StripeStart>,
    /// Bytes of all its stripes, in whole blocks.
    pub(crate) bytes: u64,
}

/// What a root says of the commit log.
pub(crate) struct LogChain {
    pub(crate) first_stripe: u32,
    pub(crate) chain: Vec<SegmentDescriptor>,
}

/// The commit log: the segments that recovery would read, and the writer at its end.
pub(crate) struct LogWriter {
    past: VecDeque<PastSegment>,
    current: SegmentWriter,
    starts: Vec<StripeStart>,
    bytes: u64,
    /// Payload bytes of a whole segment.
    segment_bytes: u64,
    /// Bytes of the first segment's stripes that recovery would skip.
    skipped_bytes: u64,
    buf: StripeBuf,
    /// Segments to come, in order; the first may be announced already.
    spares: VecDeque<SegmentWriter>,
    announced: bool,
    /// The next group leaves the current segment, which has lost a column, for a whole one.
    leaves_current: bool,
    sequence: u64,
    barrier: u64,
    checkpoint: u64,
    written_pos: u64,
    frame: Vec<u8>,
}

/// Where a log begins that continues an older one, or none.
#[derive(Clone, Copy)]
pub(crate) struct LogOrigin {
    pub(crate) sequence: u64,
    pub(crate) barrier: u64,
    pub(crate) checkpoint: u64,
    pub(crate) next: LogPos,
}

impl LogWriter {
    pub(crate) fn new(past: VecDeque<PastSegment>, current: SegmentWriter, origin: LogOrigin) -> Self {
        let buf = current.buffer();
        LogWriter {
            segment_bytes: current.remaining_bytes(),
            past,
            current,
            starts: Vec::new(),
            bytes: 0,
            skipped_bytes: 0,
            buf,
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
        self.bytes + self.past.iter().map(|p| p.bytes).sum::<u64>() - self.skipped_bytes
    }

    /// Log segments held, spares too.
    pub(crate) fn segments(&self) -> usize {
        self.past.len() + 1 + self.spares.len()
    }

    /// Holds enough segments for a group of `bytes`, and one to announce after it.
    /// `NoSpace` leaves everything as it was.
    pub(crate) fn make_room(
        &mut self,
        pool: &Pool,
        bytes: usize,
        mut next_id: impl FnMut() -> SegmentId,
    ) -> Result<(), PoolError> {
        // A stripe may end with a frame's length unused; an eighth is far more than that. The current segment's
        // rest is not counted, nor the one that is left early.
        let leaving = self.current.is_degraded() && self.announced;
        let wanted = 1 + (bytes as u64 + bytes as u64 / 8) / self.segment_bytes + u64::from(leaving);
        while (self.spares.len() as u64) < wanted {
            match pool.allocate(next_id(), SegmentKind::Mirror) {
                Ok(writer) => self.spares.push_back(writer),
                // With no spare to take, the current segment must hold the group and, later, an announcement.
                Err(PoolError::NoSpace) if self.fits_without_spare(bytes) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        self.leaves_current = leaving;
        Ok(())
    }

    fn fits_without_spare(&self, bytes: usize) -> bool {
        let stripe = self.current.next_stripe_capacity();
        self.current.remaining_bytes() > (bytes + bytes / 8 + EDIT_MAX_BYTES + stripe / 8) as u64
    }

    /// Writes one group. Not durable before a flush; on an error nothing may be written any more.
    pub(crate) fn write_group(
        &mut self,
        records: &RecordBuffer,
        edits: &[LogFrame<'static>],
    ) -> Result<(), PoolError> {
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
        let barrier = LogFrame::Barrier { number: self.barrier + 1, checkpoint: self.checkpoint };
        self.push(&barrier)?;
        self.barrier += 1;
        self.end_stripe()
    }

    /// Passes over records that the next root makes unnecessary.
    pub(crate) fn skip(&mut self, records: &RecordBuffer) {
        self.written_pos += records.len() as u64;
    }

    /// Makes the current segment ready to take frames, with the announcement first if one is due.
    fn begin_stripe(&mut self) -> Result<(), PoolError> {
        if self.current.next_stripe_capacity() == 0 {
            self.roll();
        }
        self.current.begin(&mut self.buf);
        self.starts.push(StripeStart { pos: self.written_pos, bytes_before: self.bytes });
        if let Some(next) = self.spares.front().filter(|_| !self.announced) {
            let announcement = LogFrame::LogNext(next.descriptor());
            self.announced = true;
            self.push(&announcement)?;
        }
        Ok(())
    }

    fn roll(&mut self) {
        assert!(self.announced, "the next log segment is announced before this one ends");
        let next = self.spares.pop_front().expect("what is announced is held");
        self.announced = false;
        let descriptor = std::mem::replace(&mut self.current, next).seal();
        let starts = std::mem::take(&mut self.starts);
        self.past.push_back(PastSegment { descriptor, starts, bytes: std::mem::take(&mut self.bytes) });
    }

    fn end_stripe(&mut self) -> Result<(), PoolError> {
        let len = self.buf.len();
        self.current.write_stripe(&mut self.buf, self.sequence + 1)?;
        self.sequence += 1;
        // The device, and recovery, know only blocks.
        self.bytes += len.next_multiple_of(BLOCK_BYTES) as u64;
        Ok(())
    }

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

    /// Writes a record, in fragments where stripes end.
    fn push_record(&mut self, record: &[u8]) -> Result<(), PoolError> {
        let mut rest = record;
        let mut begun = false;
        loop {
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

    /// What a root has to say so that records from `keep_from` on are found.
    pub(crate) fn log_chain(&self, keep_from: LogPos) -> LogChain {
        let starts = self.past.iter().map(|p| &p.starts).chain([&self.starts]);
        let descriptors = self.past.iter().map(|p| p.descriptor.clone()).chain([self.current.descriptor()]);
        let mut log_chain = LogChain { first_stripe: 0, chain: Vec::new() };
        let mut begun = false;
        let last = self.past.len();
        for (n, (starts, descriptor)) in starts.zip(descriptors).enumerate() {
            // The record begins in the last stripe whose start is not behind it.
            let after = starts.partition_point(|start| start.pos <= keep_from.0);
            let next_begins_later = n == last || self.next_start(n + 1) > keep_from.0;
            if !begun && next_begins_later {
                begun = true;
                let all_written = n == last && keep_from.0 >= self.written_pos;
                let stripe = if all_written { starts.len() } else { after.saturating_sub(1) };
                log_chain.first_stripe = u32::try_from(stripe).expect("a zone has fewer than 2^32 stripes");
            }
            if begun {
                log_chain.chain.push(descriptor);
            }
        }
        log_chain.chain.extend(self.spares.front().map(SegmentWriter::descriptor));
        log_chain
    }

    /// Most bytes that `log_chain` takes in a root, its fixed part included.
    pub(crate) fn root_bytes_max(&self) -> usize {
        let bytes = |d: &SegmentDescriptor| 24 + 6 * d.columns.len() + 8 * d.stripes.len();
        let past: usize = self.past.iter().map(|p| bytes(&p.descriptor)).sum();
        128 + past + bytes(&self.current.descriptor()) + EDIT_MAX_BYTES
    }

    /// The first record that begins in the n-th segment of the chain or later.
    fn next_start(&self, n: usize) -> u64 {
        let starts = self.past.get(n).map_or(&self.starts, |p| &p.starts);
        starts.first().map_or(self.written_pos, |start| start.pos)
    }

    /// The root that `log_chain` went into is durable as checkpoint `checkpoint`: forgets and returns the segments
    /// that it does not name, oldest first.
    pub(crate) fn note_root(&mut self, checkpoint: u64, log_chain: &LogChain) -> Vec<SegmentId> {
        self.checkpoint = checkpoint;
        self.announced = !self.spares.is_empty();
        let first = log_chain.chain.first().expect("a chain is never empty").id;
        let mut dropped = Vec::new();
        while self.past.front().is_some_and(|p| p.descriptor.id < first) {
            dropped.extend(self.past.pop_front().map(|p| p.descriptor.id));
        }
        let (starts, bytes) = self.past.front().map_or((&self.starts, self.bytes), |p| (&p.starts, p.bytes));
        self.skipped_bytes = starts.get(log_chain.first_stripe as usize).map_or(bytes, |s| s.bytes_before);
        dropped
    }
}
