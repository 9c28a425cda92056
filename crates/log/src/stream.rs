//! A bulk stream: one open segment and the stripe that grows at its end.
//!
//! # Invariants
//! 1. Payload bytes of the open segment below `base_bytes` are in stripes that were handed to the devices; those from
//!    `base_bytes` on are in `buf`.
//! 2. `written_bytes`, readable without the lock, never exceeds `base_bytes`; `segment` names the open segment.
//!    A reader that saw the pointer of an append sees at least the `segment` that was current then.
//! 3. A segment is sealed when nothing more fits, when it has lost a column, or when its stripes have become too many to list.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use warpfire_format::segment::SegmentKind;
use warpfire_pool::{Pool, PoolError, SegmentWriter, StripeBuf};
use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

use crate::limits::{LOG_RESERVE_SEGMENTS, SEGMENT_RUNS_MAX};

/// The segment at a stream's end.
pub(crate) struct OpenSegment {
    id: SegmentId,
    writer: SegmentWriter,
    buf: StripeBuf,
    base_bytes: u64,
    /// Payload bytes of all stripes from `base_bytes` on, if they are full ones.
    rest_bytes: u64,
    row_bytes: u64,
    last_rows: u16,
    runs: usize,
}

/// A stripe that was handed to the devices.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    pub(crate) segment: SegmentId,
    pub(crate) rows: u16,
    /// Payload bytes of the segment in stripes now, padding counted.
    pub(crate) written_bytes: u64,
}

impl OpenSegment {
    pub(crate) fn new(writer: SegmentWriter) -> Self {
        let row_bytes = u64::from(writer.descriptor().data) * BLOCK_BYTES as u64;
        OpenSegment {
            id: writer.id(),
            buf: writer.buffer(),
            base_bytes: 0,
            rest_bytes: writer.remaining_bytes(),
            row_bytes,
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
        self.base_bytes + if self.rest_bytes == 0 { 0 } else { self.buf.len() as u64 }
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

    /// Appends at `start_bytes` (from `place`), writing stripes as they fill.
    pub(crate) fn append(
        &mut self,
        start_bytes: u64,
        bytes: &[u8],
        mut written: impl FnMut(Written),
    ) -> Result<(), PoolError> {
        if start_bytes > self.len_bytes() {
            self.buf.pad_to_block();
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = self.buf.append(rest);
            rest = &rest[taken..];
            if self.buf.remaining() == 0 {
                written(self.write_stripe()?);
            }
        }
        Ok(())
    }

    /// Writes what is in the buffer, if anything is, as a stripe of as many rows as it needs.
    pub(crate) fn write_out(&mut self) -> Result<Option<Written>, PoolError> {
        if self.is_written_out() { Ok(None) } else { self.write_stripe().map(Some) }
    }

    fn write_stripe(&mut self) -> Result<Written, PoolError> {
        let at = self.writer.write_stripe(&mut self.buf, 0)?;
        assert_eq!(at, self.base_bytes, "pool and log count payload alike");
        let rows = (self.writer.next_offset_bytes() - at) / self.row_bytes;
        let rows = u16::try_from(rows).expect("a stripe has at most 255 rows");
        self.base_bytes = self.writer.next_offset_bytes();
        self.rest_bytes = self.writer.remaining_bytes();
        self.runs += usize::from(rows != self.last_rows);
        self.last_rows = rows;
        if self.rest_bytes > 0 {
            self.writer.begin(&mut self.buf);
        }
        Ok(Written { segment: self.id, rows, written_bytes: self.base_bytes })
    }

    /// Whether the segment should be sealed though there is room.
    pub(crate) fn is_done(&self) -> bool {
        self.rest_bytes == 0 || self.runs >= SEGMENT_RUNS_MAX || self.writer.is_degraded()
    }

    /// Whether everything appended is in stripes, which it must be before the segment is sealed.
    pub(crate) fn is_written_out(&self) -> bool {
        self.rest_bytes == 0 || self.buf.is_empty()
    }

    fn read(&self, offset_bytes: u64, out: &mut [u8]) -> Result<(), PoolError> {
        let at = usize::try_from(offset_bytes - self.base_bytes).expect("a buffer fits memory");
        if at + out.len() > self.buf.len() {
            let len_bytes = u32::try_from(out.len()).expect("a slice is below 4 GiB");
            return Err(PoolError::BadSlice(SlicePtr { segment: self.id, offset_bytes, len_bytes }));
        }
        self.buf.read(at, out);
        Ok(())
    }
}

/// One stream.
pub(crate) struct BulkStream {
    segment: AtomicU64,
    written_bytes: AtomicU64,
    pub(crate) open: Mutex<Option<OpenSegment>>,
}

impl BulkStream {
    pub(crate) fn new() -> Self {
        BulkStream { segment: AtomicU64::new(0), written_bytes: AtomicU64::new(0), open: Mutex::new(None) }
    }

    /// Publishes a new open segment. The caller holds the lock.
    pub(crate) fn publish_open(&self, id: SegmentId) {
        // The bytes first: a reader that sees the new segment must not see the old one's length.
        self.written_bytes.store(0, Ordering::Release);
        self.segment.store(id.get(), Ordering::Release);
    }

    /// Publishes that a stripe was written. The caller holds the lock.
    pub(crate) fn publish_written(&self, written: Written) {
        self.written_bytes.store(written.written_bytes, Ordering::Release);
    }

    /// Reads what part of the slice is still in the buffer, and says how many bytes of it are on the devices.
    /// `None`: all are.
    pub(crate) fn read_buffered(&self, slice: SlicePtr, out: &mut [u8]) -> Result<Option<usize>, PoolError> {
        let end = slice.offset_bytes.saturating_add(u64::from(slice.len_bytes));
        if self.segment.load(Ordering::Acquire) != slice.segment.get()
            || end <= self.written_bytes.load(Ordering::Acquire)
        {
            return Ok(None);
        }
        let open = self.open.lock();
        let Some(open) = open.as_ref().filter(|o| o.id == slice.segment && end > o.base_bytes) else {
            return Ok(None);
        };
        let on_devices = open.base_bytes.saturating_sub(slice.offset_bytes);
        let on_devices = usize::try_from(on_devices).expect("a slice fits memory");
        open.read(slice.offset_bytes + on_devices as u64, &mut out[on_devices..])?;
        Ok(Some(on_devices))
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

/// A new segment for a stream, unless the commit log may need the zones.
pub(crate) fn allocate_bulk(pool: &Pool, id: SegmentId) -> Result<SegmentWriter, PoolError> {
    if pool.free_segments(SegmentKind::Mirror) < LOG_RESERVE_SEGMENTS + log_segments_in_bulk(pool) {
        return Err(PoolError::NoSpace);
    }
    pool.allocate(id, SegmentKind::Bulk)
}
