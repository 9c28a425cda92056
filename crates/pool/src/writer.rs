//! Appending stripes to one open segment.
//!
//! Invariants
//! 1. Each stripe is one contiguous write on each column whose device still takes writes, at the end of what
//!    the zone holds: nothing is overwritten, nothing read and modified.
//! 2. A stripe is in the segment's index only once it is written on all but at most m columns.
//! 3. After a stripe that failed on more, the zones' ends are unknown and nothing more is written.
//!
//! ```text
//!          prepare             submit ok
//!   open ───────────▶ prepared ──────────▶ open        (next_stripe_capacity 0: full)
//!                        └──── submit fails ──▶ broken
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState};
use warpfire_format::stripe::payload_capacity;
use warpfire_units::{BLOCK_BYTES, SegmentId};

use crate::checksums::CrcTable;
use crate::error::PoolError;
use crate::geometry::{Geometry, full_rows};
use crate::pool::Inner;
use crate::segment::Segment;
use crate::stripe_buf::StripeBuf;

/// Appends to one segment. Dropping it leaves the segment as it is: its stripes stay readable.
pub struct SegmentWriter {
    pool: Arc<Inner>,
    segment: Arc<Segment>,
    prepared: Option<Vec<CrcTable>>,
    broken: bool,
}

impl SegmentWriter {
    pub(crate) fn new(pool: Arc<Inner>, segment: Arc<Segment>) -> Self {
        SegmentWriter { pool, segment, prepared: None, broken: false }
    }

    /// The segment's number.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.segment.id
    }

    /// The segment as of now, open.
    #[must_use]
    pub fn descriptor(&self) -> SegmentDescriptor {
        self.segment.descriptor(SegmentState::Open)
    }

    /// Whether a device of this segment has failed. What is written still reads back; a new segment
    /// would have full parity.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.pool.lost_columns(&self.segment) > 0
    }

    /// Stripes written.
    #[must_use]
    pub fn stripe_count(&self) -> u32 {
        self.segment.stripes.read().count()
    }

    /// The payload offset at which the next stripe begins.
    #[must_use]
    pub fn next_offset_bytes(&self) -> u64 {
        self.row_offset(self.segment.stripes.read().end_row())
    }

    fn row_offset(&self, row: u64) -> u64 {
        row * u64::from(self.segment.data) * BLOCK_BYTES as u64
    }

    fn next_rows(&self) -> Option<u16> {
        let used = self.segment.stripes.read().end_block();
        full_rows(self.segment.kind, self.segment.data, self.pool.zone_blocks - used)
    }

    /// Payload bytes that the next stripe can hold; 0 when the segment is full.
    #[must_use]
    pub fn next_stripe_capacity(&self) -> usize {
        self.next_rows().map_or(0, |rows| payload_capacity(self.segment.kind, self.segment.data, rows))
    }

    /// Payload bytes that all further stripes together can hold, if they are full ones.
    #[must_use]
    pub fn remaining_bytes(&self) -> u64 {
        let left = self.pool.zone_blocks - self.segment.stripes.read().end_block();
        Geometry::new(self.segment.kind, self.segment.data, self.segment.parity, left).segment_payload_bytes
    }

    /// A new buffer, laid out for the next stripe.
    ///
    /// # Panics
    /// If the segment is full.
    #[must_use]
    pub fn buffer(&self) -> StripeBuf {
        let rows = self.next_rows().expect("a full segment takes no more stripes");
        StripeBuf::new(self.segment.kind, self.segment.data, self.segment.parity, rows)
    }

    /// Empties `buf`, whatever it was used for, and lays it out for this segment's next stripe.
    ///
    /// # Panics
    /// If the segment is full.
    pub fn begin(&self, buf: &mut StripeBuf) {
        let rows = self.next_rows().expect("a full segment takes no more stripes");
        buf.reshape(self.segment.kind, self.segment.data, self.segment.parity, rows);
    }

    /// The half of writing that computes: lays out, checksums and encodes what `buf` holds as the segment's next
    /// stripe, which must then be submitted. A payload that does not fill it makes a short stripe.
    ///
    /// # Panics
    /// If `buf` is empty, or was not begun for this stripe.
    pub fn prepare(&mut self, buf: &mut StripeBuf, sequence: u64) {
        assert!(self.prepared.is_none(), "a prepared stripe is submitted before the next");
        let stripe = self.stripe_count();
        let identity = self.segment.identity(self.pool.uuid, stripe, 0);
        let (rows, crcs) = buf.close(identity, sequence, &self.segment.code);
        assert!(Some(rows) <= self.next_rows(), "the buffer was begun for this stripe");
        self.prepared = Some(crcs.into_iter().map(CrcTable::from).collect());
    }

    /// The half that waits for devices: writes all columns of the prepared stripe at once, and says at which
    /// payload offset it begins. Not durable before `Pool::flush`.
    ///
    /// # Errors
    /// `Failed` when more devices of this segment have failed than it has parity columns; the stripe and the writer
    /// are lost then.
    ///
    /// # Panics
    /// If `buf` was not prepared.
    pub fn submit(&mut self, buf: &StripeBuf) -> Result<u64, PoolError> {
        assert!(buf.is_closed(), "a stripe is prepared before it is submitted");
        let tables = self.prepared.take().expect("a stripe is prepared before it is submitted");
        if self.broken {
            return Err(self.pool.failed());
        }
        let block = self.segment.stripes.read().end_block();
        let mut ops = Vec::with_capacity(self.segment.width());
        for (column, (device, zone)) in self.segment.columns.iter().enumerate() {
            let at = (*device, self.pool.zone_offset(*zone, block));
            ops.extend(self.pool.devices.write_op(at, buf.shard(column)));
        }
        self.pool.devices.run(&mut ops);
        if self.pool.lost_columns(&self.segment) > usize::from(self.segment.parity) {
            self.broken = true;
            return Err(self.pool.failed());
        }
        Ok(self.record(buf, tables))
    }

    /// Makes a stripe that was written known to readers and to the next flush.
    fn record(&self, buf: &StripeBuf, tables: Vec<CrcTable>) -> u64 {
        let segment = &self.segment;
        self.pool.unflushed.lock().insert(segment.id, Arc::clone(segment));
        let place = segment.stripes.write().push(buf.rows());
        if segment.kind == SegmentKind::Bulk {
            for (column, table) in tables.into_iter().enumerate() {
                self.pool.checksums.put(segment.id, place.stripe, column, table);
            }
        }
        self.pool.stripes_written.fetch_add(1, Relaxed);
        self.pool.payload_bytes.fetch_add(buf.len() as u64, Relaxed);
        self.row_offset(place.first_row)
    }

    /// Both halves of writing: `prepare`, then `submit`.
    ///
    /// # Errors
    /// As `submit`.
    ///
    /// # Panics
    /// As `prepare`.
    pub fn write_stripe(&mut self, buf: &mut StripeBuf, sequence: u64) -> Result<u64, PoolError> {
        self.prepare(buf, sequence);
        self.submit(buf)
    }

    /// Ends the segment; what was written stays readable. Nothing is written for it.
    #[must_use]
    pub fn seal(self) -> SegmentDescriptor {
        self.segment.descriptor(SegmentState::Sealed)
    }
}
