//! The writer of one open segment: appends stripes.
//!
//! A stripe is first *prepared* (laid out, checksummed, encoded: processor work) and then *submitted*
//! (written: waits for devices), so that a caller can prepare the next stripe while devices write this one.
//!
//! # Invariants
//! 1. Each stripe is one contiguous write on each column with a device that takes writes. It begins where the
//!    zone's last stripe ends: nothing is overwritten, nothing is read and modified (test
//!    `nothing_is_overwritten_that_was_not_discarded`).
//! 2. A stripe is in the segment's index only after it was written on all but at most m columns (`record`).
//! 3. Stripes are submitted once, in the order in which they were prepared (asserts in `submit` and
//!    `record`).
//! 4. After a stripe that failed on more than m columns, the ends of the zones are unknown: the segment is
//!    broken and takes no more writes (test `a_writer_that_failed_stays_failed`).
//!
//! ```text
//!   stripe:   (buffer) ──prepare──▶ prepared ──submit, record──▶ in the index
//!   segment:  open ──record fails──▶ broken
//! ```

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState};
use warpfire_format::stripe::payload_capacity;
use warpfire_units::{DeviceIndex, SegmentId, ZoneIndex};

use crate::device::devices::is_refused;
use crate::device::geometry::{Geometry, full_rows};
use crate::error::PoolError;
use crate::pool::{Inner, Pool};
use crate::read::checksums::CrcTable;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_buf::StripeBuf;
use crate::segment::stripe_index::{StripeIndex, StripePlace};

/// Appends stripes to one segment. Dropping the writer changes nothing: the segment's stripes stay readable.
pub struct SegmentWriter {
    pool: Arc<Inner>,
    segment: Arc<PoolSegment>,
    /// The places of all stripes that were prepared, whether submitted or not.
    prepared: StripeIndex,
    state: SegmentState,
    /// The number of changes of the devices at which the segment was found not to be outdated; 0 if it never
    /// was. Each append asks, and a pool may have 250 devices.
    current_at: AtomicU64,
}

/// A stripe with a place in its segment. Its buffer is laid out, checksummed and encoded.
pub struct PreparedStripe {
    pool: Arc<Inner>,
    segment: Arc<PoolSegment>,
    place: StripePlace,
    tables: Vec<CrcTable>,
}

impl Pool {
    /// The writer of a segment that is sealed: it takes no stripe and stands for the end of a series.
    ///
    /// # Errors
    /// `UnknownSegment`.
    pub fn sealed_writer(&self, id: SegmentId) -> Result<SegmentWriter, PoolError> {
        let segment = self.inner.segment(id)?;
        let prepared = segment.stripes.read().clone();
        let (pool, state) = (Arc::clone(&self.inner), SegmentState::Sealed);
        Ok(SegmentWriter { pool, segment, prepared, state, current_at: AtomicU64::new(0) })
    }
}

impl SegmentWriter {
    pub(crate) fn new(pool: Arc<Inner>, segment: Arc<PoolSegment>) -> Self {
        let (prepared, state) = (StripeIndex::default(), SegmentState::Open);
        SegmentWriter { pool, segment, prepared, state, current_at: AtomicU64::new(0) }
    }

    /// The segment's number.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.segment.id
    }

    /// The segment's descriptor with the stripes written so far.
    #[must_use]
    pub fn descriptor(&self) -> SegmentDescriptor {
        self.segment.descriptor(self.state)
    }

    /// Whether the segment was sealed before this writer was made.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.state == SegmentState::Sealed
    }

    /// Whether a device or zone of this segment has failed, a device leaves the pool, shrinks or has missed
    /// writes, or a new segment has more parity. Its stripes stay readable; a new segment is better.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        let (devices, segment) = (&self.pool.devices, &self.segment);
        // Before the look at the devices: a change during it is seen by the next call.
        let changes = devices.changes();
        if self.current_at.load(Relaxed) == changes {
            return false;
        }
        let allocatable = devices.all_allocatable();
        let takes_stripes = |(device, zone): &(DeviceIndex, ZoneIndex)| {
            allocatable.contains(device)
                && !devices.vacates(*device, *zone)
                && self.pool.takes_stripes((*device, *zone), segment.moment)
        };
        let (_, parity) = self.pool.shape(segment.kind, allocatable.len());
        let is_outdated = segment.parity < parity || !segment.columns.iter().all(takes_stripes);
        if !is_outdated {
            self.current_at.store(changes, Relaxed);
        }
        is_outdated
    }

    /// Number of stripes written.
    #[must_use]
    pub fn stripe_count(&self) -> u32 {
        self.segment.stripes.read().count()
    }

    /// The payload offset, in bytes, at which the next stripe begins.
    #[must_use]
    pub fn next_offset_bytes(&self) -> u64 {
        self.segment.row_offset(self.prepared.end_row())
    }

    fn blocks_left(&self) -> u32 {
        if self.is_sealed() { 0 } else { self.pool.zone_blocks - self.prepared.end_block() }
    }

    fn next_rows(&self) -> Option<u16> {
        full_rows(self.segment.kind, self.segment.data, self.blocks_left())
    }

    /// Payload bytes that the next stripe can hold; 0 when the segment is full.
    #[must_use]
    pub fn next_stripe_capacity(&self) -> usize {
        self.next_rows().map_or(0, |rows| payload_capacity(self.segment.kind, self.segment.data, rows))
    }

    /// Payload bytes that all further stripes together can hold, if every one is full.
    #[must_use]
    pub fn remaining_bytes(&self) -> u64 {
        let left = self.blocks_left();
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

    /// Empties `buf`, which may come from another segment, and lays it out for this segment's next stripe.
    ///
    /// # Panics
    /// If the segment is full.
    pub fn begin(&self, buf: &mut StripeBuf) {
        let rows = self.next_rows().expect("a full segment takes no more stripes");
        buf.reshape(self.segment.kind, self.segment.data, self.segment.parity, rows);
    }

    /// The half of writing that computes: makes the payload in `buf` the segment's next stripe. The caller
    /// must then submit it. A payload that does not fill the stripe makes a short stripe. `sequence` is the
    /// caller's number for the stripe, which a walk returns.
    ///
    /// # Panics
    /// If `buf` is empty, or was not begun for this stripe.
    pub fn prepare(&mut self, buf: &mut StripeBuf, sequence: u64) -> PreparedStripe {
        let identity = self.segment.identity(self.pool.uuid, self.prepared.count(), 0);
        let (rows, crcs) = buf.close(identity, sequence, &self.segment.code);
        assert!(Some(rows) <= self.next_rows(), "the buffer was begun for this stripe");
        assert_eq!(crcs.len(), usize::from(self.segment.data), "each data column has a CRC table");
        // The place is taken now, not at submission: stripes that are prepared later follow this one.
        PreparedStripe {
            pool: Arc::clone(&self.pool),
            segment: Arc::clone(&self.segment),
            place: self.prepared.push(rows),
            tables: crcs.into_iter().map(CrcTable::from).collect(),
        }
    }

    /// Both halves of writing: `prepare`, then `submit`. Returns the payload offset, in bytes, of the stripe.
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

    /// Ends the segment and returns its descriptor. Its stripes stay readable. No device is written.
    #[must_use]
    pub fn seal(self) -> SegmentDescriptor {
        self.end();
        self.segment.descriptor(SegmentState::Sealed)
    }

    /// Says that no stripe follows those that were prepared. When all of these are written, zones that are
    /// not full are finished on devices that limit their number.
    pub fn end(&self) {
        let written = {
            let stripes = self.segment.stripes.write();
            self.segment.ends_at.store(self.prepared.count(), Relaxed);
            stripes.count()
        };
        if written == self.prepared.count() || self.segment.broken.load(Acquire) {
            self.pool.finish_zones(&self.segment);
        }
    }
}

impl PreparedStripe {
    /// Blocks on each column, without the header.
    #[must_use]
    pub fn rows(&self) -> u16 {
        self.place.rows
    }

    /// The half of writing that waits for devices: writes all columns of all these stripes in one batch. The
    /// caller passes stripes of one segment in the order in which it prepared them. Not durable before
    /// `Pool::flush`.
    ///
    /// # Errors
    /// `Failed` if a segment has more lost columns than parity columns, or the host of a device is full. Its
    /// stripes are lost then; stripes of other segments may or may not be written.
    ///
    /// # Panics
    /// If a buffer is not the one that its stripe was prepared in, or an earlier stripe was left out.
    pub fn submit(batch: &[(&PreparedStripe, &StripeBuf)]) -> Result<(), PoolError> {
        let Some((first, _)) = batch.first() else { return Ok(()) };
        // A broken segment has a hole before this stripe. Writing behind the hole would make a stripe that a
        // walk finds and the index does not have.
        if let Some((stripe, _)) = batch.iter().find(|(stripe, _)| stripe.segment.broken.load(Acquire)) {
            return Err(stripe.pool.failed());
        }
        let devices = &first.pool.devices;
        let mut ops = Vec::with_capacity(batch.iter().map(|(stripe, _)| stripe.segment.width()).sum());
        let mut counts = Vec::with_capacity(batch.len());
        let mut before = 0;
        for (stripe, buf) in batch {
            assert!(buf.is_closed() && buf.rows() == stripe.place.rows, "a stripe comes with its own buffer");
            assert!(
                stripe.place.stripe >= stripe.segment.stripes.read().count(),
                "a stripe is submitted once: nothing is overwritten"
            );
            for (column, (device, zone)) in stripe.segment.columns.iter().enumerate() {
                let at = (*device, stripe.pool.zone_offset(*zone, stripe.place.block));
                // A device that takes no more writes, or has missed some, is left out: `record` counts its
                // column as lost.
                ops.extend(devices.write_op_since(stripe.segment.moment, at, buf.shard(column)));
            }
            counts.push(ops.len() - std::mem::replace(&mut before, ops.len()));
        }
        let _writing = first.pool.writing.read();
        devices.run(&mut ops);
        let mut rest = &ops[..];
        for ((stripe, buf), count) in batch.iter().zip(counts) {
            let (own, later) = rest.split_at(count);
            rest = later;
            stripe.record(buf, own.iter().any(is_refused))?;
        }
        Ok(())
    }

    /// Adds a written stripe to the index for readers, and its segment to `unflushed` for the next flush.
    fn record(&self, buf: &StripeBuf, is_refused: bool) -> Result<(), PoolError> {
        let segment = &self.segment;
        // A full host refuses every device on it sooner or later. Going on with less parity would hide that
        // until too little is left.
        let lost = self.pool.lost_columns(segment);
        if is_refused || lost > usize::from(segment.parity) {
            segment.broken.store(true, Release);
            return Err(self.pool.failed());
        }
        if lost > 0 {
            self.pool.note_lost(segment, self.place.stripe);
        }
        // `unflushed` first: a flush that starts after a reader saw the stripe must cover it.
        let mut unflushed = self.pool.unflushed.lock();
        unflushed.entry(segment.id).or_insert_with(|| (Arc::clone(segment), self.place.stripe));
        drop(unflushed);
        let (place, is_last) = {
            let mut stripes = segment.stripes.write();
            let place = stripes.push(self.place.rows);
            (place, stripes.count() == segment.ends_at.load(Relaxed))
        };
        assert_eq!(place, self.place, "stripes are submitted in the order in which they were prepared");
        if is_last {
            self.pool.finish_zones(segment);
        }
        // A first read of a stripe that was just written needs no header block. Mirrors are read by walks
        // only.
        if segment.kind == SegmentKind::Bulk {
            for (column, table) in self.tables.iter().enumerate() {
                self.pool.checksums.put(segment, place.stripe, column, Arc::clone(table));
            }
        }
        self.pool.stripes_written.fetch_add(1, Relaxed);
        self.pool.payload_bytes.fetch_add(buf.len() as u64, Relaxed);
        Ok(())
    }
}
