//! Appending stripes to one open segment.
//!
//! Invariants
//! 1. Each stripe is one contiguous write on each column whose device still takes writes, at the end of what
//!    the zone holds: nothing is overwritten, nothing read and modified.
//! 2. A stripe is in the segment's index only once it is written on all but at most m columns.
//! 3. Stripes are submitted in the order in which they were prepared. After one that failed on more columns, the
//!    zones' ends are unknown and nothing more of the segment is written.
//!
//! ```text
//!   stripe:   (buffer) ──prepare──▶ prepared ──submit──▶ in the index
//!   segment:  open ──submit fails──▶ broken
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState};
use warpfire_format::stripe::payload_capacity;
use warpfire_units::SegmentId;

use crate::device::geometry::{Geometry, full_rows};
use crate::error::PoolError;
use crate::pool::Inner;
use crate::read::checksums::CrcTable;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_buf::StripeBuf;
use crate::segment::stripe_index::{StripeIndex, StripePlace};

/// Appends to one segment. Dropping it leaves the segment as it is: its stripes stay readable.
pub struct SegmentWriter {
    pool: Arc<Inner>,
    segment: Arc<PoolSegment>,
    /// Stripes that were prepared, submitted or not.
    prepared: StripeIndex,
}

/// A stripe that is laid out, checksummed and encoded in its buffer, and has its place in the segment.
pub struct PreparedStripe {
    pool: Arc<Inner>,
    segment: Arc<PoolSegment>,
    place: StripePlace,
    tables: Vec<CrcTable>,
}

impl SegmentWriter {
    pub(crate) fn new(pool: Arc<Inner>, segment: Arc<PoolSegment>) -> Self {
        SegmentWriter { pool, segment, prepared: StripeIndex::default() }
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
        self.segment.row_offset(self.prepared.end_row())
    }

    fn next_rows(&self) -> Option<u16> {
        let used = self.prepared.end_block();
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
        let left = self.pool.zone_blocks - self.prepared.end_block();
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
    pub fn prepare(&mut self, buf: &mut StripeBuf, sequence: u64) -> PreparedStripe {
        let identity = self.segment.identity(self.pool.uuid, self.prepared.count(), 0);
        let (rows, crcs) = buf.close(identity, sequence, &self.segment.code);
        assert!(Some(rows) <= self.next_rows(), "the buffer was begun for this stripe");
        PreparedStripe {
            pool: Arc::clone(&self.pool),
            segment: Arc::clone(&self.segment),
            place: self.prepared.push(rows),
            tables: crcs.into_iter().map(CrcTable::from).collect(),
        }
    }

    /// Both halves of writing: `prepare`, then `submit`. Says at which payload offset the stripe begins.
    ///
    /// # Errors
    /// As `submit`.
    ///
    /// # Panics
    /// As `prepare`.
    pub fn write_stripe(&mut self, buf: &mut StripeBuf, sequence: u64) -> Result<u64, PoolError> {
        let stripe = self.prepare(buf, sequence);
        PreparedStripe::submit(&[(&stripe, buf)])?;
        Ok(self.segment.row_offset(stripe.place.first_row))
    }

    /// Ends the segment; what was written stays readable. Nothing is written for it.
    #[must_use]
    pub fn seal(self) -> SegmentDescriptor {
        self.segment.descriptor(SegmentState::Sealed)
    }
}

impl PreparedStripe {
    /// Blocks on each column, the header left out.
    #[must_use]
    pub fn rows(&self) -> u16 {
        self.place.rows
    }

    /// The half of writing that waits for devices: writes all columns of all these stripes at once. Stripes of
    /// one segment come in their order. Not durable before `Pool::flush`.
    ///
    /// # Errors
    /// `Failed` when more devices of a segment have failed than it has parity columns; its stripes are lost then,
    /// those of other segments may or may not be written.
    ///
    /// # Panics
    /// If a buffer is not the one that its stripe was prepared in, or an earlier stripe was left out.
    pub fn submit(batch: &[(&PreparedStripe, &StripeBuf)]) -> Result<(), PoolError> {
        let Some((first, _)) = batch.first() else { return Ok(()) };
        if let Some((stripe, _)) = batch.iter().find(|(stripe, _)| stripe.segment.broken.load(Acquire)) {
            return Err(stripe.pool.failed());
        }
        let devices = &first.pool.devices;
        let mut ops = Vec::with_capacity(batch.iter().map(|(stripe, _)| stripe.segment.width()).sum());
        for (stripe, buf) in batch {
            assert!(buf.is_closed() && buf.rows() == stripe.place.rows, "a stripe comes with its own buffer");
            for (column, (device, zone)) in stripe.segment.columns.iter().enumerate() {
                let at = (*device, stripe.pool.zone_offset(*zone, stripe.place.block));
                ops.extend(devices.write_op(at, buf.shard(column)));
            }
        }
        devices.run(&mut ops);
        for (stripe, buf) in batch {
            stripe.record(buf)?;
        }
        Ok(())
    }

    /// Makes a stripe that was written known to readers and to the next flush.
    fn record(&self, buf: &StripeBuf) -> Result<(), PoolError> {
        let segment = &self.segment;
        if self.pool.lost_columns(segment) > usize::from(segment.parity) {
            segment.broken.store(true, Release);
            return Err(self.pool.failed());
        }
        self.pool.unflushed.lock().insert(segment.id, Arc::clone(segment));
        let place = segment.stripes.write().push(self.place.rows);
        assert_eq!(place, self.place, "stripes are submitted in the order in which they were prepared");
        if segment.kind == SegmentKind::Bulk {
            for (column, table) in self.tables.iter().enumerate() {
                self.pool.checksums.put(segment.id, place.stripe, column, Arc::clone(table));
            }
        }
        self.pool.stripes_written.fetch_add(1, Relaxed);
        self.pool.payload_bytes.fetch_add(buf.len() as u64, Relaxed);
        Ok(())
    }
}
