//! Writing one stripe of columns to their new zones: what verifies on their own devices is copied, the rest
//! is reconstructed.
//!
//! # Invariants
//! 1. A stripe is read piece by piece, and then written piece by piece, from its header on: a zoned drive
//!    takes no other order, and the header has the checksum of each row.
//! 2. No piece reads or writes more bytes at once than `Turns::piece_bytes` allows when it begins, unless it
//!    is one row. A piece whose own copy does not verify reads twice.

use std::ops::{ControlFlow, Range};

use warpfire_env::{AlignedBuf, PlantedBug, is_planted};
use warpfire_format::crc32c;
use warpfire_format::segment::{LostColumn, SegmentKind};
use warpfire_format::stripe::{StripeHeader, inline_start};
use warpfire_units::BLOCK_BYTES;

use crate::device::devices::is_refused;
use crate::error::PoolError;
use crate::life::piece_work::{PieceWork, Turns, next_piece};
use crate::life::resilver::ColumnMove;
use crate::pool::Inner;
use crate::read::read_stripe::ColumnWait;
use crate::segment::header_readahead::HeaderReadahead;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// One stripe of the columns that move, as it is to be written: a shard of each, in the order of the moves.
pub(crate) struct FilledStripe(Vec<AlignedBuf>);

/// The bytes of some blocks of a shard, the header being block 0.
fn blocks_at(blocks: Range<u16>) -> Range<usize> {
    usize::from(blocks.start) * BLOCK_BYTES..usize::from(blocks.end) * BLOCK_BYTES
}

impl Inner {
    /// One stripe's shards of some columns: read or reconstructed, with their headers. `Break` if `turns`
    /// have ended the work.
    pub(crate) fn fill_stripe(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        moves: &[ColumnMove],
        turns: &mut dyn Turns,
    ) -> Result<ControlFlow<(), FilledStripe>, PoolError> {
        // Sequence, lengths and inline payload are in every header of the stripe: any one that verifies will
        // do.
        let found = self
            .headers_at(segment, place.stripe, place.block, Some(place.rows), &mut HeaderReadahead::default())
            .ok_or(PoolError::Unreadable {
                segment: segment.id,
                stripe: place.stripe,
                readable: 0,
                needed: segment.needed(),
            })?;
        let blank = |_: &ColumnMove| AlignedBuf::zeroed((usize::from(place.rows) + 1) * BLOCK_BYTES);
        let mut shards: Vec<AlignedBuf> = moves.iter().map(blank).collect();
        if self.fill_rows(segment, place, moves, &mut shards, turns)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        for (moved, shard) in moves.iter().zip(&mut shards) {
            let (header, rows) = shard.split_at_mut(BLOCK_BYTES);
            // The header block of a mirror holds payload too. It is copied, because reconstruction covers
            // rows only.
            if segment.kind == SegmentKind::Mirror {
                let start = inline_start(place.rows);
                header[start..start + found.inline.len()].copy_from_slice(&found.inline);
            }
            let crcs: Vec<u32> = rows.chunks_exact(BLOCK_BYTES).map(crc32c).collect();
            StripeHeader {
                identity: segment.identity(self.uuid, place.stripe, usize::from(moved.column)),
                sequence: found.sequence,
                rows: place.rows,
                payload_bytes: u32::try_from(found.payload_bytes)
                    .expect("the header's own field has 32 bits"),
            }
            .encode(header, &crcs);
            debug_assert!(StripeHeader::decode(header).is_ok(), "a written header decodes");
        }
        Ok(ControlFlow::Continue(FilledStripe(shards)))
    }

    /// Writes one stripe's shards of some columns to their new zones. A device that fails the write is
    /// dropped. `Break` if `turns` have ended the work.
    pub(crate) fn write_stripe(
        &self,
        place: &StripePlace,
        moves: &[ColumnMove],
        filled: &FilledStripe,
        moment: u64,
        turns: &mut dyn Turns,
    ) -> Result<ControlFlow<()>, PoolError> {
        let FilledStripe(shards) = filled;
        assert_eq!(shards.len(), moves.len(), "each column has a shard");
        let mut left = 0..place.rows + 1;
        while !left.is_empty() {
            let blocks = next_piece(turns, left.clone(), moves.len());
            let ops = moves.iter().zip(shards).filter_map(|(moved, shard)| {
                let at = self.zone_offset(moved.to.1, place.block + u32::from(blocks.start));
                let bytes = shard.lendable(blocks_at(blocks.clone()));
                self.devices.write_op_since(moment, (moved.to.0, at), bytes)
            });
            let mut ops: Vec<_> = ops.collect();
            self.devices.run(&mut ops);
            // A full host refuses a write and keeps its device.
            if ops.iter().any(is_refused) {
                return Err(self.failed());
            }
            let rows = blocks.len() - usize::from(blocks.start == 0);
            if turns.after_piece(PieceWork::of(rows, 0, moves.len())).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            left.start = blocks.end;
            if is_planted(PlantedBug::PieceTakenForWhole) {
                break;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Fills the rows of shards, in the order of `moves`: copied where they verify, reconstructed where they
    /// do not. `Break` if `turns` have ended the work.
    fn fill_rows(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        moves: &[ColumnMove],
        shards: &mut [AlignedBuf],
        turns: &mut dyn Turns,
    ) -> Result<ControlFlow<()>, PoolError> {
        let columns: Vec<usize> = moves.iter().map(|m| usize::from(m.column)).collect();
        // A column that missed this stripe is not read in vain.
        let missed = segment.lost.lock().clone();
        let has_stripe = |column: &usize| {
            let misses = |l: &LostColumn| usize::from(l.column) == *column && l.first_stripe <= place.stripe;
            self.devices.writable(segment.columns[*column].0) && !missed.iter().any(misses)
        };
        let with_stripe: Vec<usize> = columns.iter().copied().filter(has_stripe).collect();
        let mut left = 0..place.rows;
        while !left.is_empty() {
            let rows = next_piece(turns, left.clone(), segment.needed().max(columns.len()));
            let own = self.read_columns(segment, place, &with_stripe, rows.clone(), ColumnWait::Limited);
            let copy_of =
                |column: usize, row: u16| own.iter().find(|s| s.column == column).filter(|s| s.is_sound(row));
            let bad = |column: &usize| rows.clone().any(|row| copy_of(*column, row).is_none());
            let lost: Vec<usize> = columns.iter().copied().filter(bad).collect();
            let wanted: Vec<u16> =
                rows.clone().filter(|row| lost.iter().any(|c| copy_of(*c, *row).is_none())).collect();
            // Without parity the lost columns are read once more, and nothing else.
            let others = match (lost.is_empty(), segment.parity) {
                (true, _) => 0,
                (false, 0) => lost.len(),
                (false, _) => segment.needed(),
            };
            let reconstructed =
                if lost.is_empty() { None } else { Some(self.reconstruct(segment, place, &lost, wanted)?) };
            for (column, shard) in columns.iter().zip(&mut *shards) {
                for row in rows.clone() {
                    let block = match copy_of(*column, row) {
                        Some(shard) => shard.rows(row..row + 1),
                        None => reconstructed
                            .as_ref()
                            .expect("a row without a copy is reconstructed")
                            .block(*column, row),
                    };
                    shard[blocks_at(row + 1..row + 2)].copy_from_slice(block);
                }
            }
            let work = PieceWork::of(rows.len(), with_stripe.len() + others, 0);
            if turns.after_piece(work).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            left.start = rows.end;
        }
        Ok(ControlFlow::Continue(()))
    }
}
