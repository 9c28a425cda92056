//! Reading slices: the needed blocks only, in one batch of device reads; each block is verified, and
//! reconstructed if it is lost.
//!
//! Terms. A *piece* is the part of a slice that lies on one column of one stripe. A row of a piece is *lost*
//! if its block could not be read or did not verify. A *bounce buffer* is aligned memory that a device fills
//! and the piece copies from.
//!
//! # Invariants
//! 1. A read returns `Ok` only if every byte was verified, or reconstructed from verified blocks (assert in
//!    `read_batch`; test `random_stripes_read_back_in_random_pieces_with_random_rot`).
//! 2. The blocks of a piece, and its header if the CRC table is not cached, are read in the same batch (test
//!    `a_small_read_costs_two_reads_at_first_and_one_from_then_on`).
//! 3. Whole blocks are read straight into aligned memory of the caller; other pieces use a bounce buffer
//!    (`ReadPiece::split_off`).
//!
//! ```text
//!   split_off ──▶ fetch ──▶ verify_piece ──────────────── nothing lost ─────────▶ deliver
//!                               └── lost rows ──▶ reconstruct_pieces ──▶ filled ──┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use warpfire_env::{AlignedBuf, DeviceError, DeviceOp};
use warpfire_format::segment::SegmentKind;
use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

use crate::device::devices::Devices;
use crate::error::PoolError;
use crate::pool::{Inner, Pool};
use crate::read::checksums::CrcTable;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// Most bytes that one call reads in one batch, and so the most that its bounce buffers hold: four full
/// stripes.
const BATCH_BYTES_MAX: usize = 16 << 20;

impl Pool {
    /// Fills `buf` with the slice's bytes; both have the same length. A block that cannot be read or does not
    /// verify is reconstructed and counted, and its segment is listed as damaged. A read into memory aligned
    /// to 4096 bytes copies nothing.
    ///
    /// # Errors
    /// `Unreadable` if more is lost than parity covers; `BadSlice` if the slice is not inside the written
    /// payload, or in a mirror; `UnknownSegment`.
    pub fn read(&self, slice: SlicePtr, buf: &mut [u8]) -> Result<(), PoolError> {
        self.read_many(&mut [(slice, buf)])
    }

    /// As `read`, for many slices: the devices get their reads in common batches of up to 16 MiB.
    ///
    /// # Errors
    /// As `read`, for the first slice that fails; the content of all buffers is undefined then.
    ///
    /// # Panics
    /// If a buffer is not as long as its slice.
    pub fn read_many(&self, reads: &mut [(SlicePtr, &mut [u8])]) -> Result<(), PoolError> {
        let inner = &self.inner;
        let mut batch = Vec::new();
        let mut batch_bytes = 0;
        for (slice, buf) in reads {
            assert_eq!(slice.len_bytes as usize, buf.len(), "a buffer is as long as its slice");
            let segment = inner.segment(slice.segment)?;
            // The payload of a mirror begins in its header blocks; recovery alone reads it, by walking.
            if segment.kind != SegmentKind::Bulk {
                return Err(PoolError::BadSlice(*slice));
            }
            let mut at = slice.offset_bytes;
            let mut rest = &mut **buf;
            while !rest.is_empty() {
                let piece =
                    ReadPiece::split_off(&segment, at, &mut rest).ok_or(PoolError::BadSlice(*slice))?;
                at += piece.dest.len() as u64;
                batch_bytes += piece.dest.len();
                batch.push(piece);
                // The limit bounds memory: a read of unaligned buffers needs a bounce buffer for every piece.
                if batch_bytes >= BATCH_BYTES_MAX {
                    inner.read_batch(&mut batch)?;
                    batch.clear();
                    batch_bytes = 0;
                }
            }
        }
        inner.read_batch(&mut batch)
    }
}

/// The part of a slice that lies on one column of one stripe.
struct ReadPiece<'a> {
    segment: Arc<PoolSegment>,
    place: StripePlace,
    column: usize,
    first_row: u16,
    /// Number of blocks that hold the piece.
    rows: u16,
    /// Bytes of the first block before the piece.
    skip: usize,
    dest: &'a mut [u8],
    /// `None` if the device fills `dest` itself.
    bounce: Option<AlignedBuf>,
    /// Memory for the header block; `None` if the CRC table is cached.
    header: Option<AlignedBuf>,
    table: Option<CrcTable>,
    /// Whether every device read for this piece succeeded.
    reached: bool,
    /// Whether its device is known to be missing, failed or slow: that it was not reached is no damage.
    excused: bool,
    /// Rows that are lost and not reconstructed yet.
    lost: Vec<u16>,
}

impl<'a> ReadPiece<'a> {
    /// The piece at payload offset `at`. Takes its bytes from the front of `rest`. `None` if no stripe has
    /// the offset.
    fn split_off(segment: &Arc<PoolSegment>, at: u64, rest: &mut &'a mut [u8]) -> Option<ReadPiece<'a>> {
        let block = BLOCK_BYTES as u64;
        let data = u64::from(segment.data);
        // Within a stripe the payload runs down the first column, then down the second, and so on.
        let place = segment.stripes.read().find_row(at / (data * block))?;
        let within = usize::try_from(at - place.first_row * data * block).ok()?;
        let column_bytes = usize::from(place.rows) * BLOCK_BYTES;
        let (column, in_column) = (within / column_bytes, within % column_bytes);
        let skip = in_column % BLOCK_BYTES;
        let mut len = rest.len().min(column_bytes - in_column);
        let aligned = skip == 0 && (rest.as_ptr() as usize).is_multiple_of(BLOCK_BYTES);
        // Whole blocks go straight to the caller's memory. The rest of the last block becomes a piece of its
        // own, so that only this piece needs a bounce buffer.
        if aligned && len > BLOCK_BYTES {
            len -= len % BLOCK_BYTES;
        }
        let (dest, later) = std::mem::take(rest).split_at_mut(len);
        *rest = later;
        let rows = (skip + len).div_ceil(BLOCK_BYTES);
        debug_assert!(column < usize::from(segment.data), "payload lies on data columns only");
        debug_assert!(in_column / BLOCK_BYTES + rows <= usize::from(place.rows), "a piece is in one column");
        let in_place = aligned && len.is_multiple_of(BLOCK_BYTES);
        Some(ReadPiece {
            segment: Arc::clone(segment),
            place,
            column,
            first_row: u16::try_from(in_column / BLOCK_BYTES).ok()?,
            rows: u16::try_from(rows).ok()?,
            skip,
            dest,
            bounce: (!in_place).then(|| AlignedBuf::zeroed(rows * BLOCK_BYTES)),
            header: None,
            table: None,
            reached: true,
            excused: false,
            lost: Vec::new(),
        })
    }

    fn blocks(&self) -> &[u8] {
        match &self.bounce {
            Some(bounce) => bounce,
            None => self.dest,
        }
    }

    fn blocks_mut(&mut self) -> &mut [u8] {
        match &mut self.bounce {
            Some(bounce) => bounce,
            None => self.dest,
        }
    }

    /// Copies the piece out of the bounce buffer, if it has one.
    fn deliver(&mut self) {
        if let Some(bounce) = &self.bounce {
            self.dest.copy_from_slice(&bounce[self.skip..self.skip + self.dest.len()]);
        }
    }
}

impl Inner {
    fn read_batch(&self, batch: &mut [ReadPiece<'_>]) -> Result<(), PoolError> {
        self.fetch(batch);
        // Lost pieces are grouped by stripe: one reconstruction reads the other columns once for all of them.
        let mut incomplete: BTreeMap<(SegmentId, u32), Vec<usize>> = BTreeMap::new();
        for (n, piece) in batch.iter_mut().enumerate() {
            self.verify_piece(piece);
            if !piece.lost.is_empty() {
                incomplete.entry((piece.segment.id, piece.place.stripe)).or_default().push(n);
            }
        }
        for members in incomplete.into_values() {
            self.reconstruct_pieces(batch, &members)?;
        }
        for piece in batch {
            debug_assert!(piece.lost.is_empty(), "every row was verified or reconstructed");
            piece.deliver();
        }
        Ok(())
    }

    /// Reads the blocks of all pieces, and the headers of those without a cached table, in one batch.
    fn fetch(&self, batch: &mut [ReadPiece<'_>]) {
        // `owners[i]` is the piece that `ops[i]` reads for.
        let mut ops: Vec<DeviceOp<'_>> = Vec::with_capacity(batch.len());
        let mut owners = Vec::with_capacity(batch.len());
        let mut excused = Vec::new();
        for (n, piece) in batch.iter_mut().enumerate() {
            let (segment, place) = (&piece.segment, &piece.place);
            piece.table = self.checksums.get(segment, place.stripe, piece.column);
            let header_at = self.locate(segment, place, piece.column, None);
            let blocks_at = self.locate(segment, place, piece.column, Some(piece.first_row));
            // A missing or gone device has no read operation: the piece counts as unreached without any I/O.
            // So does one that failed a write or does not answer, where other columns can stand in.
            let read_op = if segment.parity == 0 { Devices::read_op } else { Devices::sound_read_op };
            if piece.table.is_none() {
                let header = piece.header.insert(AlignedBuf::zeroed(BLOCK_BYTES));
                match read_op(&self.devices, header_at, header) {
                    Some(op) => {
                        ops.push(op);
                        owners.push(n);
                    }
                    None => excused.push(n),
                }
            }
            let target = match &mut piece.bounce {
                Some(bounce) => &mut **bounce,
                None => &mut *piece.dest,
            };
            match read_op(&self.devices, blocks_at, target) {
                Some(op) => {
                    ops.push(op);
                    owners.push(n);
                }
                None => excused.push(n),
            }
        }
        self.devices.run(&mut ops);
        let mut failed = Vec::new();
        for (op, n) in ops.iter().zip(&owners) {
            match op.result {
                Ok(()) => {}
                Err(DeviceError::Late { .. }) => excused.push(*n),
                Err(_) => failed.push(*n),
            }
        }
        // Set only now: the operations borrow the pieces until here.
        for n in failed {
            batch[n].reached = false;
        }
        for n in excused {
            (batch[n].reached, batch[n].excused) = (false, true);
        }
    }

    /// Verifies the blocks of a piece and lists its lost rows.
    fn verify_piece(&self, piece: &mut ReadPiece<'_>) {
        let rows = piece.first_row..piece.first_row + piece.rows;
        debug_assert!(rows.end <= piece.place.rows, "a piece reads rows of its stripe");
        // Identity first: the checksums in another shard's header would accept another shard's blocks.
        if piece.reached
            && let Some(header) = &piece.header
        {
            piece.table = self.verify_crc_table(&piece.segment, &piece.place, piece.column, header);
        }
        piece.lost = match piece.table.as_ref().filter(|_| piece.reached) {
            None => rows.collect(),
            Some(table) => {
                let mut sound =
                    self.verify_blocks(&piece.segment, piece.column, table, rows.start, piece.blocks());
                // A row without a checksum is lost, like one with a wrong checksum.
                rows.filter(|_| sound.next() != Some(true)).collect()
            }
        };
    }

    /// Reconstructs the lost rows of the pieces `members`, which lie in one stripe.
    fn reconstruct_pieces(&self, batch: &mut [ReadPiece<'_>], members: &[usize]) -> Result<(), PoolError> {
        let pieces = || members.iter().map(|n| &batch[*n]);
        // The rows of all pieces together: they mostly lose the same rows, and each column is read once.
        let mut rows: Vec<u16> = pieces().flat_map(|p| p.lost.iter().copied()).collect();
        rows.sort_unstable();
        rows.dedup();
        let mut columns: Vec<usize> = pieces().map(|p| p.column).collect();
        columns.sort_unstable();
        columns.dedup();
        let segment = Arc::clone(&batch[members[0]].segment);
        let place = batch[members[0]].place;
        assert!(pieces().all(|p| p.segment.id == segment.id && p.place == place), "pieces of one stripe");
        // A device that is missing, failed or slow is known already. A lost block on another one is news.
        let is_news = |p: &ReadPiece<'_>| !p.excused && self.devices.writable(segment.columns[p.column].0);
        if pieces().any(is_news) {
            self.note_damage(segment.id);
        } else if !segment.is_degraded_read_reported.swap(true, Relaxed) {
            tracing::debug!(segment = segment.id.get(), "segment read without a device");
        }
        let reconstructed = self.reconstruct(&segment, &place, &columns, rows)?;
        for n in members {
            let piece = &mut batch[*n];
            for row in std::mem::take(&mut piece.lost) {
                // Only lost rows are copied: a verified block needs no second opinion.
                let block = reconstructed.block(piece.column, row);
                let at = usize::from(row - piece.first_row) * BLOCK_BYTES;
                piece.blocks_mut()[at..at + BLOCK_BYTES].copy_from_slice(block);
                self.rebuilt_blocks.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }
}
