//! A bulk stream: one open segment and the stripe that grows at its end.
//!
//! # Invariants
//! 1. Payload bytes of the open segment below `base_bytes` are in stripes that were launched; those from
//!    `base_bytes` on are in `buf`.
//! 2. `pushed_bytes`, readable without the lock, never exceeds `base_bytes`; `segment` names the open segment.
//!    A reader that saw the pointer of an append sees at least the `segment` that was current then.
//! 3. A segment is sealed when nothing more fits, when it has lost a column, or when its stripes have become too many to list.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use warpfire_format::segment::SegmentKind;
use warpfire_pool::{Pool, PoolError, SegmentWriter, StripeBuf};
use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

use crate::limits::{
    LOG_RESERVE_COLD_SEGMENTS, LOG_RESERVE_SEGMENTS, LOG_RESERVE_TABLE_SEGMENTS, SEGMENT_RUNS_MAX,
};
use crate::store::Stream;
use crate::write_queue::{QueuedStripe, WriteQueue};

/// The segment at a stream's end.
pub(crate) struct OpenSegment {
    id: SegmentId,
    writer: SegmentWriter,
    /// The stripe that grows; `None` until something is appended.
    buf: Option<StripeBuf>,
    base_bytes: u64,
    /// Payload bytes of all stripes from `base_bytes` on, if they are full ones.
    rest_bytes: u64,
    last_rows: u16,
    runs: usize,
}

impl OpenSegment {
    pub(crate) fn new(writer: SegmentWriter) -> Self {
        OpenSegment {
            id: writer.id(),
            buf: None,
            base_bytes: 0,
            rest_bytes: writer.remaining_bytes(),
            last_rows: 0,
            runs: 0,
            writer,
        }
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.id
    }

    /// Payload bytes so far.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.base_bytes + self.buf.as_ref().map_or(0, |buf| buf.len() as u64)
    }

    /// Payload bytes that still fit behind `start_bytes`, if all further stripes are full ones.
    fn room_bytes(&self, start_bytes: u64) -> u64 {
        (self.base_bytes + self.rest_bytes).saturating_sub(start_bytes)
    }

    /// Where the next append begins, if `wanted` bytes fit there.
    pub(crate) fn place(&self, on_block: bool, wanted: usize) -> Option<u64> {
        let end = self.len_bytes();
        let start = if on_block { end.next_multiple_of(BLOCK_BYTES as u64) } else { end };
        (self.room_bytes(start) >= wanted as u64).then_some(start)
    }

    /// Payload bytes that fit behind `start_bytes`, at most `len`.
    pub(crate) fn takes(&self, start_bytes: u64, len: usize) -> usize {
        usize::try_from(self.room_bytes(start_bytes)).unwrap_or(usize::MAX).min(len)
    }

    /// Appends at `start_bytes` (from `place`), launching stripes as they fill.
    pub(crate) fn append(
        &mut self,
        start_bytes: u64,
        bytes: &[u8],
        write_queue: &WriteQueue,
    ) -> Result<(), PoolError> {
        if start_bytes > self.len_bytes()
            && let Some(buf) = &mut self.buf
        {
            buf.pad_to_block();
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let buf = self.buf.get_or_insert_with(|| write_queue.buffer(&self.writer));
            let taken = buf.append(rest);
            rest = &rest[taken..];
            if buf.remaining() == 0 {
                self.push(write_queue)?;
            }
        }
        Ok(())
    }

    /// Launches what is in the buffer, if anything is, as a stripe of as many rows as it needs.
    pub(crate) fn push(&mut self, write_queue: &WriteQueue) -> Result<(), PoolError> {
        let Some(mut buf) = self.buf.take() else { return Ok(()) };
        assert_eq!(self.writer.next_offset_bytes(), self.base_bytes, "pool and log count payload alike");
        let stripe = self.writer.prepare(&mut buf, 0);
        let base_bytes = std::mem::replace(&mut self.base_bytes, self.writer.next_offset_bytes());
        self.rest_bytes = self.writer.remaining_bytes();
        self.runs += usize::from(stripe.rows() != self.last_rows);
        self.last_rows = stripe.rows();
        write_queue.push(QueuedStripe { segment: self.id, base_bytes, stripe, buf })
    }

    /// Whether the segment should be sealed though there is room.
    pub(crate) fn is_done(&self) -> bool {
        self.rest_bytes == 0 || self.runs >= SEGMENT_RUNS_MAX || self.writer.is_degraded()
    }

    /// Whether everything appended was launched, which it must be before the segment is sealed.
    pub(crate) fn is_pushed(&self) -> bool {
        self.buf.is_none()
    }

    fn read(&self, offset_bytes: u64, out: &mut [u8]) -> Result<(), PoolError> {
        let at = usize::try_from(offset_bytes - self.base_bytes).expect("a buffer fits memory");
        match self.buf.as_ref().filter(|buf| at + out.len() <= buf.len()) {
            Some(buf) => buf.read(at, out),
            None => {
                let len_bytes = u32::try_from(out.len()).expect("a slice is below 4 GiB");
                return Err(PoolError::BadSlice(SlicePtr { segment: self.id, offset_bytes, len_bytes }));
            }
        }
        Ok(())
    }
}

/// One stream.
pub(crate) struct BulkStream {
    segment: AtomicU64,
    pushed_bytes: AtomicU64,
    pub(crate) open: Mutex<Option<OpenSegment>>,
}

impl BulkStream {
    pub(crate) fn new() -> Self {
        BulkStream { segment: AtomicU64::new(0), pushed_bytes: AtomicU64::new(0), open: Mutex::new(None) }
    }

    /// Publishes a new open segment. The caller holds the lock.
    pub(crate) fn publish_open(&self, id: SegmentId) {
        // The bytes first: a reader that sees the new segment must not see the old one's length.
        self.pushed_bytes.store(0, Ordering::Release);
        self.segment.store(id.get(), Ordering::Release);
    }

    /// Publishes how much of the open segment was launched. The caller holds the lock.
    pub(crate) fn publish_pushed(&self, segment: &OpenSegment) {
        self.pushed_bytes.store(segment.base_bytes, Ordering::Release);
    }

    /// Reads what part of the slice is still in the buffer, and says how many bytes of it were launched.
    /// `None`: all were.
    pub(crate) fn read_buffered(&self, slice: SlicePtr, out: &mut [u8]) -> Result<Option<usize>, PoolError> {
        let end = slice.offset_bytes.saturating_add(u64::from(slice.len_bytes));
        if self.segment.load(Ordering::Acquire) != slice.segment.get()
            || end <= self.pushed_bytes.load(Ordering::Acquire)
        {
            return Ok(None);
        }
        let open = self.open.lock();
        let Some(open) = open.as_ref().filter(|o| o.id == slice.segment && end > o.base_bytes) else {
            return Ok(None);
        };
        let pushed = open.base_bytes.saturating_sub(slice.offset_bytes);
        let pushed = usize::try_from(pushed).expect("a slice fits memory");
        open.read(slice.offset_bytes + pushed as u64, &mut out[pushed..])?;
        Ok(Some(pushed))
    }
}

/// Zones of how many log segments a bulk segment takes, at most.
pub(crate) fn log_segments_in_bulk(pool: &Pool) -> u64 {
    let width = |kind| {
        let geometry = pool.geometry(kind);
        u64::from(geometry.data) + u64::from(geometry.parity)
    };
    width(SegmentKind::Bulk).div_ceil(width(SegmentKind::Mirror).max(1))
}

/// A new segment for a stream, unless the commit log may need the zones. It can do without, for a checkpoint needs none: so
/// the last ones go to what makes others free.
pub(crate) fn allocate_bulk(pool: &Pool, id: SegmentId, stream: Stream) -> Result<SegmentWriter, PoolError> {
    let kept = match stream {
        Stream::Large | Stream::Small => LOG_RESERVE_SEGMENTS,
        Stream::Cold => LOG_RESERVE_COLD_SEGMENTS,
        Stream::Table => LOG_RESERVE_TABLE_SEGMENTS,
    };
    if pool.free_segments(SegmentKind::Mirror) < kept + log_segments_in_bulk(pool) {
        return Err(PoolError::NoSpace);
    }
    pool.allocate(id, SegmentKind::Bulk)
}
