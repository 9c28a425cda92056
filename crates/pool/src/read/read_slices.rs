//! Reading slices: the needed blocks only, in one batch of device reads; each block is verified, and
//! reconstructed if it is lost.
//!
//! Terms. A *piece* is the part of a slice that lies on one column of one stripe. A row of a piece is *lost*
//! if its block could not be read or did not verify. A *bounce buffer* is aligned memory that a device fills
//! and the piece copies from. Small pieces of a batch that lie side by side are *joined*: one device read
//! brings them all.
//!
//! # Invariants
//! 1. A read returns `Ok` only if every byte was verified, or reconstructed from verified blocks (assert in
//!    `read_batch`; test `random_stripes_read_back_in_random_pieces_with_random_rot`).
//! 2. The blocks of a piece, and its header if the CRC table is not cached, are read in the same batch (test
//!    `a_small_read_costs_two_reads_at_first_and_one_from_then_on`).
//! 3. Whole blocks are read straight into aligned memory of the caller; other pieces use a bounce buffer
//!    (`ReadPiece::split_off`).
//! 4. A block that cannot be read harms no piece but its own: if a joined read fails, its pieces are read one
//!    by one (`fetch`; test `a_block_that_cannot_be_read_harms_no_slice_beside_it`).
//!
//! ```text
//!   split_off ──▶ fetch ──▶ verify ──────────────── nothing lost ───────────────▶ deliver
//!                               └── lost rows ──▶ reconstruct_pieces ──▶ filled ──┘
//! ```

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use warpfire_env::{AlignedBuf, DeviceError, DeviceOp};
use warpfire_format::segment::SegmentKind;
use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

use crate::device::devices::{Devices, LIMITED_READ_BYTES_MAX, READ_LIMIT};
use crate::error::PoolError;
use crate::pool::{Inner, Pool};
use crate::read::checksums::CrcTable;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// Most bytes that one call reads in one batch, and so the most that its bounce buffers hold: four full
/// stripes.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// Most blocks of a piece that is joined with others. To read a longer one for itself costs little, nothing
/// is copied, and it has no time limit.
const JOINED_ROWS_MAX: u16 = (LIMITED_READ_BYTES_MAX / BLOCK_BYTES) as u16;

/// Most blocks between two joined pieces, which are read for nothing.
const GAP_ROWS_MAX: u16 = 2;

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
    /// As `read`, for one of the slices that fail; the content of all buffers is undefined then.
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
                batch_bytes += usize::from(piece.rows) * BLOCK_BYTES;
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
    /// Whether a device can fill `dest` itself.
    in_place: bool,
    /// Memory for the blocks, if `dest` cannot take them.
    bounce: Option<AlignedBuf>,
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
            in_place,
            bounce: None,
            excused: false,
            lost: Vec::new(),
        })
    }

    /// What pieces of one column have in common, and their order in it.
    fn position(&self) -> (SegmentId, u32, u32, usize, u16) {
        (self.segment.id, self.segment.epoch, self.place.stripe, self.column, self.first_row)
    }

    fn end_row(&self) -> u16 {
        self.first_row + self.rows
    }

    /// Whether one device read brings this piece and the next one in their order.
    fn joins(&self, next: &ReadPiece<'_>) -> bool {
        let column =
            |piece: &ReadPiece<'_>| (piece.segment.id, piece.segment.epoch, piece.place.stripe, piece.column);
        column(self) == column(next)
            && self.rows.max(next.rows) <= JOINED_ROWS_MAX
            && next.first_row <= self.end_row() + GAP_ROWS_MAX
    }

    fn blocks(&self) -> &[u8] {
        match &self.bounce {
            Some(bounce) => bounce,
            None => self.dest,
        }
    }

    /// The memory of the blocks, which is there from the first call on.
    fn blocks_mut(&mut self) -> &mut [u8] {
        if self.in_place {
            return self.dest;
        }
        let len = usize::from(self.rows) * BLOCK_BYTES;
        self.bounce.get_or_insert_with(|| AlignedBuf::zeroed(len))
    }

    /// Copies the piece out of the bounce buffer, if it has one.
    fn deliver(&mut self) {
        if let Some(bounce) = &self.bounce {
            self.dest.copy_from_slice(&bounce[self.skip..self.skip + self.dest.len()]);
        }
    }
}

/// Pieces of one column that one device read brings.
struct DeviceRead<'p, 'a> {
    pieces: &'p mut [ReadPiece<'a>],
    /// The blocks from those of the first piece to those of the last one; `None` if there is one piece alone.
    joined: Option<AlignedBuf>,
    /// The header block; `None` if the CRC table is cached.
    header: Option<AlignedBuf>,
    table: Option<CrcTable>,
    answer: ReadAnswer,
}

/// What became of the operations of a device read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadAnswer {
    Read,
    Failed,
    /// The device is known to be missing, failed or slow.
    Excused,
}

impl<'p, 'a> DeviceRead<'p, 'a> {
    fn new(pieces: &'p mut [ReadPiece<'a>], inner: &Inner) -> Self {
        let first = &pieces[0];
        let table = inner.checksums.get(&first.segment, first.place.stripe, first.column);
        let end_row = pieces.iter().map(ReadPiece::end_row).max().expect("a read has a piece");
        let rows = usize::from(end_row - first.first_row);
        DeviceRead {
            joined: (pieces.len() > 1).then(|| AlignedBuf::zeroed(rows * BLOCK_BYTES)),
            header: table.is_none().then(|| AlignedBuf::zeroed(BLOCK_BYTES)),
            table,
            pieces,
            answer: ReadAnswer::Read,
        }
    }

    /// Adds the operations, or notes that the device takes none.
    fn add_ops<'o>(&'o mut self, inner: &Inner, ops: &mut Vec<DeviceOp<'o>>) {
        let first = &mut self.pieces[0];
        let header_at = inner.locate(&first.segment, &first.place, first.column, None);
        let blocks_at = inner.locate(&first.segment, &first.place, first.column, Some(first.first_row));
        // A missing or gone device has no read operation: the pieces count as unreached without any I/O. So
        // does one that failed a write or does not answer, where other columns can stand in.
        let has_parity = first.segment.parity > 0;
        let read_op = if has_parity { Devices::sound_read_op } else { Devices::read_op };
        // A joined read has a time limit, as each of its pieces would for itself.
        let is_limited = has_parity && self.joined.is_some();
        let blocks = match &mut self.joined {
            Some(joined) => &mut **joined,
            None => first.blocks_mut(),
        };
        let header = self.header.as_mut().map(|header| (header_at, &mut **header));
        for (at, buf) in header.into_iter().chain([(blocks_at, blocks)]) {
            match read_op(&inner.devices, at, buf) {
                Some(op) if is_limited => ops.push(op.within(Some(READ_LIMIT))),
                Some(op) => ops.push(op),
                None => self.answer = ReadAnswer::Excused,
            }
        }
    }

    /// Verifies the blocks of all pieces, lists their lost rows, and delivers pieces of which none is lost
    /// from the joined blocks.
    fn verify(&mut self, inner: &Inner) {
        let reached = self.answer == ReadAnswer::Read;
        let first = &self.pieces[0];
        // Identity first: the checksums in another shard's header would accept another shard's blocks.
        if reached && let Some(header) = &self.header {
            self.table = inner.verify_crc_table(&first.segment, &first.place, first.column, header);
        }
        let first_row = first.first_row;
        let table = self.table.as_ref().filter(|_| reached);
        for piece in &mut *self.pieces {
            piece.excused = self.answer == ReadAnswer::Excused;
            let rows = piece.first_row..piece.end_row();
            debug_assert!(rows.end <= piece.place.rows, "a piece reads rows of its stripe");
            let Some(table) = table else {
                piece.lost = rows.collect();
                continue;
            };
            let joined = self.joined.as_ref().map(|joined| {
                let at = usize::from(piece.first_row - first_row) * BLOCK_BYTES;
                &joined[at..at + usize::from(piece.rows) * BLOCK_BYTES]
            });
            let blocks = joined.unwrap_or_else(|| piece.blocks());
            let mut sound = inner.verify_blocks(&piece.segment, piece.column, table, rows.start, blocks);
            // A row without a checksum is lost, like one with a wrong checksum.
            let lost: Vec<u16> = rows.filter(|_| sound.next() != Some(true)).collect();
            drop(sound);
            match joined {
                Some(joined) if lost.is_empty() => {
                    piece.dest.copy_from_slice(&joined[piece.skip..piece.skip + piece.dest.len()]);
                }
                // Reconstruction fills the rows between.
                Some(joined) => piece.blocks_mut().copy_from_slice(joined),
                None => {}
            }
            piece.lost = lost;
        }
    }
}

impl Inner {
    fn read_batch(&self, batch: &mut [ReadPiece<'_>]) -> Result<(), PoolError> {
        batch.sort_unstable_by_key(ReadPiece::position);
        self.fetch(batch);
        // Lost pieces are grouped by stripe: one reconstruction reads the other columns once for all of them.
        let mut incomplete: BTreeMap<(SegmentId, u32), Vec<usize>> = BTreeMap::new();
        for (n, piece) in batch.iter().enumerate().filter(|(_, piece)| !piece.lost.is_empty()) {
            incomplete.entry((piece.segment.id, piece.place.stripe)).or_default().push(n);
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

    /// Reads and verifies the blocks of all pieces, which are in their order, in one batch.
    fn fetch(&self, batch: &mut [ReadPiece<'_>]) {
        let parts = batch.chunk_by_mut(|piece, next| piece.joins(next));
        let mut reads: Vec<DeviceRead<'_, '_>> = parts.map(|pieces| DeviceRead::new(pieces, self)).collect();
        self.run_reads(&mut reads);
        for read in &mut reads {
            if read.answer == ReadAnswer::Failed && read.pieces.len() > 1 {
                let alone = read.pieces.iter_mut().map(slice::from_mut);
                let mut alone: Vec<DeviceRead<'_, '_>> =
                    alone.map(|piece| DeviceRead::new(piece, self)).collect();
                self.run_reads(&mut alone);
                alone.iter_mut().for_each(|read| read.verify(self));
            } else {
                read.verify(self);
            }
        }
    }

    /// Runs the operations of all reads together.
    fn run_reads(&self, reads: &mut [DeviceRead<'_, '_>]) {
        let (mut ops, mut owners) = (Vec::with_capacity(reads.len()), Vec::with_capacity(reads.len()));
        for (n, read) in reads.iter_mut().enumerate() {
            read.add_ops(self, &mut ops);
            owners.resize(ops.len(), n);
        }
        self.devices.run(&mut ops);
        let failures = ops.iter().zip(&owners).filter_map(|(op, n)| match op.result {
            Ok(()) => None,
            Err(DeviceError::Late { .. }) => Some((*n, ReadAnswer::Excused)),
            Err(_) => Some((*n, ReadAnswer::Failed)),
        });
        let failures: Vec<(usize, ReadAnswer)> = failures.collect();
        for (n, answer) in failures {
            if reads[n].answer != ReadAnswer::Excused {
                reads[n].answer = answer;
            }
        }
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
