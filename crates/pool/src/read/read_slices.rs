//! Reading slices: only the blocks that are needed, all at once, verified; and rebuilt where that fails.
//!
//! Invariants
//! 1. Not one byte reaches the caller as read that was not verified, or rebuilt from what was.
//! 2. A column's blocks and, at the first touch, its header are read in the same batch.
//! 3. Whole blocks that go to aligned memory are read in place; the others pass through a bounce buffer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use warpfire_env::{AlignedBuf, DeviceOp};
use warpfire_format::segment::SegmentKind;
use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

use crate::error::PoolError;
use crate::pool::{Inner, Pool};
use crate::read::checksums::CrcTable;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// Most bytes in flight for one call: what the bounce buffers may take. Four full stripes.
const BATCH_BYTES_MAX: usize = 16 << 20;

impl Pool {
    /// Fills `buf`, whose length is the slice's, with the slice's bytes. What can not be read or does not verify
    /// is rebuilt, counted, and its segment listed as damaged. Reading into 4096-aligned memory copies nothing.
    ///
    /// # Errors
    /// `Unreadable` beyond parity; `BadSlice` outside what was written, or in a mirror; `UnknownSegment`.
    pub fn read(&self, slice: SlicePtr, buf: &mut [u8]) -> Result<(), PoolError> {
        self.read_many(&mut [(slice, buf)])
    }

    /// As `read`, for many slices at once: the devices see them together.
    ///
    /// # Errors
    /// As `read`, for the first slice that fails; the other buffers may or may not have been filled.
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

/// A part of a slice that lies on one column of one stripe without a gap.
struct ReadPiece<'a> {
    segment: Arc<PoolSegment>,
    place: StripePlace,
    column: usize,
    first_row: u16,
    /// Blocks that hold it.
    rows: u16,
    /// Bytes of the first block that are not wanted.
    skip: usize,
    dest: &'a mut [u8],
    /// `None` when the blocks go straight to `dest`.
    bounce: Option<AlignedBuf>,
    /// The header block, when the CRC table is not cached.
    header: Option<AlignedBuf>,
    table: Option<CrcTable>,
    reached: bool,
    /// Rows that did not come or did not verify.
    lost: Vec<u16>,
}

impl<'a> ReadPiece<'a> {
    /// The piece at payload offset `at` that fills as much of the front of `rest` as lies in one run of blocks.
    fn split_off(segment: &Arc<PoolSegment>, at: u64, rest: &mut &'a mut [u8]) -> Option<ReadPiece<'a>> {
        let block = BLOCK_BYTES as u64;
        let data = u64::from(segment.data);
        let place = segment.stripes.read().find_row(at / (data * block))?;
        let within = usize::try_from(at - place.first_row * data * block).ok()?;
        let column_bytes = usize::from(place.rows) * BLOCK_BYTES;
        let (column, in_column) = (within / column_bytes, within % column_bytes);
        let skip = in_column % BLOCK_BYTES;
        let mut len = rest.len().min(column_bytes - in_column);
        let aligned = skip == 0 && (rest.as_ptr() as usize).is_multiple_of(BLOCK_BYTES);
        if aligned && len > BLOCK_BYTES {
            len -= len % BLOCK_BYTES;
        }
        let (dest, later) = std::mem::take(rest).split_at_mut(len);
        *rest = later;
        let rows = (skip + len).div_ceil(BLOCK_BYTES);
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

    /// Hands over what passed through the bounce buffer.
    fn deliver(&mut self) {
        if let Some(bounce) = &self.bounce {
            self.dest.copy_from_slice(&bounce[self.skip..self.skip + self.dest.len()]);
        }
    }
}

impl Inner {
    fn read_batch(&self, batch: &mut [ReadPiece<'_>]) -> Result<(), PoolError> {
        self.fetch(batch);
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
            piece.deliver();
        }
        Ok(())
    }

    /// Reads the blocks of all pieces, and the headers of those whose table is not cached.
    fn fetch(&self, batch: &mut [ReadPiece<'_>]) {
        let mut ops: Vec<DeviceOp<'_>> = Vec::with_capacity(batch.len());
        let mut owners = Vec::with_capacity(batch.len());
        let mut unreached = Vec::new();
        for (n, piece) in batch.iter_mut().enumerate() {
            let (segment, place) = (&piece.segment, &piece.place);
            piece.table = self.checksums.get(segment.id, place.stripe, piece.column);
            let header_at = self.locate(segment, place, piece.column, None);
            let blocks_at = self.locate(segment, place, piece.column, Some(piece.first_row));
            if piece.table.is_none() {
                let header = piece.header.insert(AlignedBuf::zeroed(BLOCK_BYTES));
                match self.devices.read_op(header_at, header) {
                    Some(op) => {
                        ops.push(op);
                        owners.push(n);
                    }
                    None => unreached.push(n),
                }
            }
            let target = match &mut piece.bounce {
                Some(bounce) => &mut **bounce,
                None => &mut *piece.dest,
            };
            match self.devices.read_op(blocks_at, target) {
                Some(op) => {
                    ops.push(op);
                    owners.push(n);
                }
                None => unreached.push(n),
            }
        }
        self.devices.run(&mut ops);
        let failed = ops.iter().zip(&owners).filter(|(op, _)| op.result.is_err()).map(|(_, n)| *n);
        unreached.extend(failed);
        for n in unreached {
            batch[n].reached = false;
        }
    }

    /// Verifies what came, and lists the rows that are lost.
    fn verify_piece(&self, piece: &mut ReadPiece<'_>) {
        let rows = piece.first_row..piece.first_row + piece.rows;
        if piece.reached
            && let Some(header) = &piece.header
        {
            piece.table = self.verify_crc_table(&piece.segment, &piece.place, piece.column, header);
        }
        piece.lost = match piece.table.as_ref().filter(|_| piece.reached) {
            None => rows.collect(),
            Some(table) => {
                let sound =
                    self.verify_blocks(&piece.segment, piece.column, table, rows.start, piece.blocks());
                rows.zip(sound).filter(|(_, sound)| !sound).map(|(row, _)| row).collect()
            }
        };
    }

    /// Rebuilds the lost rows of pieces that lie in one stripe.
    fn reconstruct_pieces(&self, batch: &mut [ReadPiece<'_>], members: &[usize]) -> Result<(), PoolError> {
        let pieces = || members.iter().map(|n| &batch[*n]);
        let first = pieces().filter_map(|p| p.lost.first()).min().copied();
        let last = pieces().filter_map(|p| p.lost.last()).max().copied();
        let (Some(first), Some(last)) = (first, last) else { return Ok(()) };
        let mut columns: Vec<usize> = pieces().map(|p| p.column).collect();
        columns.sort_unstable();
        columns.dedup();
        let segment = Arc::clone(&batch[members[0]].segment);
        let place = batch[members[0]].place;
        if columns.iter().any(|c| self.devices.state(segment.columns[*c].0).is_readable()) {
            self.note_damage(segment.id);
        }
        let reconstructed = self.reconstruct(&segment, &place, &columns, first..last + 1)?;
        for n in members {
            let piece = &mut batch[*n];
            for row in std::mem::take(&mut piece.lost) {
                let block = reconstructed.block(piece.column, row);
                let at = usize::from(row - piece.first_row) * BLOCK_BYTES;
                piece.blocks_mut()[at..at + BLOCK_BYTES].copy_from_slice(block);
                self.rebuilt_blocks.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }
}
