//! A bulk stream: one open segment, the stripe that grows at its end, and the places where appends begin.
//!
//! A stripe is *pushed* when it goes into the write queue.
//!
//! # Invariants
//! 1. Payload bytes of the open segment below `base_bytes` are in stripes that were pushed; those from
//!    `base_bytes` on are in `buf` (assert in `push`: pool and log count alike).
//! 2. `pushed_bytes`, readable without the lock, never exceeds `base_bytes`, and `segment` names the open
//!    segment (assert in `publish_pushed`). A reader that has the pointer of an append sees at least the
//!    `segment` of that append.
//! 3. A segment is sealed when nothing more fits, when it has lost a column, or when it has too many stripe
//!    runs to list (`is_done`), after all of it was pushed (assert in `Log::seal`).
//! 4. `needed_bytes` is at least the end of each slice of the open segment that was needed and is not pushed
//!    (`need`; `tests/needed.rs`).
//! 5. An append that must not be split begins where all of it fits (assert in `append`: it ends in the
//!    segment).

use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::{LockPlace, RankedMutex, RankedRawMutex};
use warpfire_format::segment::{SegmentKind, SegmentStream};
use warpfire_pool::{Geometry, Pool, PoolError, SegmentWriter, StripeBuf};
use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

use crate::limits::{
    LOG_RESERVE_COLD_SEGMENTS, LOG_RESERVE_SEGMENTS, LOG_RESERVE_TABLE_SEGMENTS, SEGMENT_RUNS_MAX,
};
use crate::lock_ranks::STREAM;
use crate::store::Stream;
use crate::write_queue::{QueuedStripe, WriteQueue};

/// Appends of this many bytes to the cold stream start on a block; smaller ones are packed.
const COLD_ALIGN_FROM_BYTES: usize = 4 * BLOCK_BYTES;

/// `append` never splits up to this many bytes over two segments.
pub(crate) const UNSPLIT_MAX_BYTES: usize = 64 << 10;

/// `append_split` never splits up to this many bytes: a rest this short is not worth a second slice.
pub(crate) const SPLIT_ABOVE_BYTES: usize = BLOCK_BYTES;

/// The longest slice of an append; a longer append makes several slices, even in one segment. A slice
/// pointer counts its bytes with 32 bits.
const SLICE_BYTES_MAX: u64 = 1 << 30;

/// All streams, in the order of `slot`.
pub(crate) const STREAMS: [Stream; 4] = [Stream::Small, Stream::Large, Stream::Table, Stream::Cold];

/// A stream's index in an array of all streams.
pub(crate) fn slot(stream: Stream) -> usize {
    match stream {
        Stream::Small => 0,
        Stream::Large => 1,
        Stream::Table => 2,
        Stream::Cold => 3,
    }
}

/// Whether an append of `len_bytes` to `stream` starts on a block.
pub(crate) fn starts_on_block(stream: Stream, len_bytes: usize) -> bool {
    match stream {
        Stream::Small => false,
        Stream::Large | Stream::Table => true,
        Stream::Cold => len_bytes >= COLD_ALIGN_FROM_BYTES,
    }
}

/// Bytes that the next part of an append needs in its segment, with `left` of `whole` bytes still to append:
/// all of an append of up to `unsplit_max_bytes`, one block of a longer one.
pub(crate) fn room_wanted_bytes(whole: usize, left: usize, unsplit_max_bytes: usize) -> usize {
    debug_assert!(left <= whole, "a part is no longer than the whole");
    if whole <= unsplit_max_bytes { left } else { left.min(BLOCK_BYTES) }
}

/// Bytes of the next slice of an append that has `left` bytes to go, in a segment with room for `room_bytes`.
fn slice_bytes(room_bytes: u64, left: usize) -> u32 {
    let bytes = room_bytes.min(left as u64).min(SLICE_BYTES_MAX);
    u32::try_from(bytes).expect("the longest slice is below 4 GiB")
}

/// The segment at a stream's end.
pub(crate) struct OpenSegment {
    id: SegmentId,
    writer: SegmentWriter,
    /// The stripe that grows; `None` until something is appended.
    buf: Option<StripeBuf>,
    /// Payload bytes of the stripes that were pushed.
    base_bytes: u64,
    /// Payload bytes of all stripes from `base_bytes` on, if they are full ones.
    rest_bytes: u64,
    last_rows: u16,
    /// Runs of stripes of equal rows.
    runs: usize,
    /// Whether its bytes come from background work.
    is_background: bool,
}

impl OpenSegment {
    pub(crate) fn new(writer: SegmentWriter, stream: Stream) -> Self {
        OpenSegment {
            id: writer.id(),
            buf: None,
            base_bytes: 0,
            rest_bytes: writer.remaining_bytes(),
            last_rows: 0,
            runs: 0,
            is_background: matches!(stream, Stream::Table | Stream::Cold),
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

    /// Payload bytes that still fit from `start_bytes` on, if all further stripes are full ones.
    fn room_bytes(&self, start_bytes: u64) -> u64 {
        (self.base_bytes + self.rest_bytes).saturating_sub(start_bytes)
    }

    /// Where the next append begins, if `wanted` bytes fit there.
    pub(crate) fn place(&self, on_block: bool, wanted: usize) -> Option<u64> {
        let end = self.len_bytes();
        let start = if on_block { end.next_multiple_of(BLOCK_BYTES as u64) } else { end };
        (self.room_bytes(start) >= wanted as u64).then_some(start)
    }

    /// Payload bytes of an append of `len` bytes that go into one slice from `start_bytes` on.
    pub(crate) fn takes(&self, start_bytes: u64, len: usize) -> u32 {
        slice_bytes(self.room_bytes(start_bytes), len)
    }

    /// Appends at `start_bytes` (from `place`), and pushes stripes as they fill.
    pub(crate) fn append(
        &mut self,
        start_bytes: u64,
        bytes: &[u8],
        write_queue: &WriteQueue,
    ) -> Result<(), PoolError> {
        debug_assert!(start_bytes >= self.len_bytes(), "an append overwrites nothing");
        debug_assert!(self.room_bytes(start_bytes) >= bytes.len() as u64, "an append ends in its segment");
        // Without a buffer the segment ends with a whole stripe, and so on a block.
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
        debug_assert_eq!(
            self.len_bytes(),
            start_bytes + bytes.len() as u64,
            "the segment ends with the append"
        );
        Ok(())
    }

    /// Pushes the buffer, if it holds bytes, as a stripe of as many rows as they need.
    pub(crate) fn push(&mut self, write_queue: &WriteQueue) -> Result<(), PoolError> {
        let Some(mut buf) = self.buf.take() else { return Ok(()) };
        assert_eq!(self.writer.next_offset_bytes(), self.base_bytes, "pool and log count payload alike");
        let stripe = self.writer.prepare(&mut buf, 0);
        let base_bytes = std::mem::replace(&mut self.base_bytes, self.writer.next_offset_bytes());
        assert!(self.base_bytes >= base_bytes + buf.len() as u64, "a stripe holds the whole buffer");
        // A short stripe wastes the rest of its rows, so the room is counted anew.
        self.rest_bytes = self.writer.remaining_bytes();
        self.runs += usize::from(stripe.rows() != self.last_rows);
        self.last_rows = stripe.rows();
        let is_background = self.is_background;
        write_queue.push(QueuedStripe { segment: self.id, base_bytes, stripe, buf, is_background })
    }

    /// Whether the segment is to be sealed: it is full, has too many runs, or has lost a column. New bytes
    /// get full parity in another segment.
    pub(crate) fn is_done(&self) -> bool {
        self.rest_bytes == 0 || self.runs >= SEGMENT_RUNS_MAX || self.writer.is_outdated()
    }

    /// Says that no stripe follows those that were pushed.
    pub(crate) fn end(&self) {
        self.writer.end();
    }

    /// Whether everything appended was pushed, which must be so before the segment is sealed.
    pub(crate) fn is_pushed(&self) -> bool {
        self.buf.is_none()
    }

    /// Reads from the buffer. Bytes past its end are a bad slice, not a broken invariant: the pointer may
    /// come from damaged metadata.
    fn read(&self, offset_bytes: u64, out: &mut [u8]) -> Result<(), PoolError> {
        assert!(offset_bytes >= self.base_bytes, "the buffer holds bytes from its base on");
        let at = usize::try_from(offset_bytes - self.base_bytes).expect("a buffer fits memory");
        let is_inside = |buf: &&StripeBuf| at.checked_add(out.len()).is_some_and(|end| end <= buf.len());
        match self.buf.as_ref().filter(is_inside) {
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
    /// The id of the open segment, 0 before the first. Readers look at these two without the lock.
    segment: AtomicU64,
    pushed_bytes: AtomicU64,
    /// Payload bytes of the open segment that records need. Those beyond `pushed_bytes` are in the buffer.
    needed_bytes: AtomicU64,
    pub(crate) open: RankedMutex<STREAM, Option<OpenSegment>>,
}

impl BulkStream {
    /// The stream of a slot.
    pub(crate) fn new(slot: usize) -> Self {
        let place = LockPlace::at(slot as u64);
        BulkStream {
            segment: AtomicU64::new(0),
            pushed_bytes: AtomicU64::new(0),
            needed_bytes: AtomicU64::new(0),
            open: RankedMutex::from_raw(RankedRawMutex::of(place), None),
        }
    }

    /// Publishes a new open segment. The caller holds the lock.
    pub(crate) fn publish_open(&self, id: SegmentId) {
        // The bytes first: a reader that sees the new segment must not see the old one's length.
        self.pushed_bytes.store(0, Ordering::Release);
        // All of the old segment was pushed, so nothing of it is needed any more. A slice of the new one
        // cannot have been needed yet: its append waits for the lock.
        self.needed_bytes.store(0, Ordering::Release);
        self.segment.store(id.get(), Ordering::Release);
    }

    /// Publishes how much of the open segment was pushed. The caller holds the lock.
    pub(crate) fn publish_pushed(&self, segment: &OpenSegment) {
        debug_assert_eq!(
            self.segment.load(Ordering::Relaxed),
            segment.id.get(),
            "the open segment is published"
        );
        debug_assert!(
            self.pushed_bytes.load(Ordering::Relaxed) <= segment.base_bytes,
            "pushed bytes never become fewer"
        );
        self.pushed_bytes.store(segment.base_bytes, Ordering::Release);
    }

    /// Notes that a record needs the slice, if its end may be in the buffer. A segment that closes in the
    /// same moment may leave a note about its successor: then one sync writes more than it has to.
    pub(crate) fn need(&self, slice: SlicePtr) {
        let end = slice.offset_bytes.saturating_add(u64::from(slice.len_bytes));
        if self.segment.load(Ordering::Acquire) == slice.segment.get()
            && end > self.pushed_bytes.load(Ordering::Acquire)
        {
            self.needed_bytes.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Whether the buffer may hold bytes that a record needs. The caller has taken the record, so the notes
    /// about its slices are there.
    pub(crate) fn holds_needed(&self) -> bool {
        // In this order: if the stream goes on to its next segment in between, the needed bytes were pushed.
        let needed_bytes = self.needed_bytes.load(Ordering::Acquire);
        needed_bytes > self.pushed_bytes.load(Ordering::Acquire)
    }

    /// Reads the part of the slice that is in the buffer: its end. Returns the number of bytes before that
    /// part, or `None` if the buffer holds nothing of the slice.
    pub(crate) fn read_buffered(&self, slice: SlicePtr, out: &mut [u8]) -> Result<Option<usize>, PoolError> {
        let end = slice.offset_bytes.saturating_add(u64::from(slice.len_bytes));
        // Most reads are of older bytes: they pass without the lock, which an append holds while it copies.
        if self.segment.load(Ordering::Acquire) != slice.segment.get()
            || end <= self.pushed_bytes.load(Ordering::Acquire)
        {
            return Ok(None);
        }
        // Looked at again under the lock: the buffer may have been pushed since.
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

/// The number of log segments that the zones of one bulk segment of this geometry would make, rounded up.
pub(crate) fn log_segments_in_bulk(pool: &Pool, bulk: Geometry) -> u64 {
    bulk.width().div_ceil(pool.geometry(SegmentKind::Mirror).width().max(1))
}

/// A new segment for a stream, or `NoSpace` if its zones are kept for the commit log. A checkpoint needs no
/// log segment, so under pressure the last zones go to the streams that free others: tables and cleaning.
pub(crate) fn allocate_bulk(pool: &Pool, id: SegmentId, stream: Stream) -> Result<SegmentWriter, PoolError> {
    let (stream, kept) = match stream {
        Stream::Small => (SegmentStream::Small, LOG_RESERVE_SEGMENTS),
        Stream::Large => (SegmentStream::Large, LOG_RESERVE_SEGMENTS),
        Stream::Cold => (SegmentStream::Cold, LOG_RESERVE_COLD_SEGMENTS),
        Stream::Table => (SegmentStream::Table, LOG_RESERVE_TABLE_SEGMENTS),
    };
    let in_bulk = log_segments_in_bulk(pool, pool.geometry(SegmentKind::Bulk));
    let enough = pool.free_segments(SegmentKind::Mirror) >= kept + in_bulk;
    // The zones that only a recovery takes are left by the pool: no bulk segment takes a device's last one.
    if enough { pool.allocate(id, stream) } else { Err(PoolError::NoSpace) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_append_of_any_length_makes_slices_that_a_pointer_can_name() {
        assert_eq!(slice_bytes(1 << 20, 5000), 5000);
        assert_eq!(slice_bytes(4096, 5000), 4096);
        for left in [4usize << 30, (5 << 30) + 7, usize::MAX] {
            assert_eq!(slice_bytes(62 << 30, left), 1 << 30);
        }
    }
}
