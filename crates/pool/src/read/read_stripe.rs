//! Reading columns of one stripe and verifying them: identity first, then each block's checksum.
//!
//! A shard is used only if its header carries the expected identity (pool, segment, epoch, stripe, column).
//! So a stale, misdirected or lost write counts as a lost shard (test
//! `a_shard_of_another_stripe_segment_or_column_is_not_taken_for_the_right_one`).

use std::ops::Range;
use std::sync::Arc;

use warpfire_env::{AlignedBuf, DeviceOp, PlantedBug, is_planted};
use warpfire_format::crc32c;
use warpfire_format::stripe::{StripeBlock, StripeHeader, StripeIdentity};
use warpfire_units::{BLOCK_BYTES, DeviceIndex};

use crate::device::devices::Devices;
use crate::pool::Inner;
use crate::read::checksums::CrcTable;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// Consecutive rows of one column of a stripe, with the result of verification.
pub(crate) struct Shard {
    pub column: usize,
    /// The first row that was read.
    first_row: u16,
    blocks: AlignedBuf,
    /// For each row that was read, whether it verified.
    sound: Vec<bool>,
}

impl Shard {
    /// Whether the block of this row was read and verified.
    pub(crate) fn is_sound(&self, row: u16) -> bool {
        row.checked_sub(self.first_row).and_then(|n| self.sound.get(usize::from(n))).copied() == Some(true)
    }

    /// The blocks of these rows, verified or not.
    pub(crate) fn rows(&self, rows: Range<u16>) -> &[u8] {
        debug_assert!(self.first_row <= rows.start, "only rows that were read are used");
        let at = |row: u16| usize::from(row - self.first_row) * BLOCK_BYTES;
        &self.blocks[at(rows.start)..at(rows.end)]
    }
}

/// How long a read of columns waits for their devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ColumnWait {
    /// Until they answer.
    Patient,
    /// Until other columns are the faster way. Devices that owe an answer are left out.
    Limited,
}

impl Inner {
    /// Device and byte offset of a row of a column; row `None` is the header.
    pub(crate) fn locate(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        column: usize,
        row: Option<u16>,
    ) -> (DeviceIndex, u64) {
        debug_assert!(row.is_none_or(|row| row <= place.rows), "a row is one of its stripe's, or their end");
        let (device, zone) = segment.columns[column];
        let block = place.block + row.map_or(0, |r| u32::from(r) + 1);
        (device, self.zone_offset(zone, block))
    }

    /// The shard's header, if `block` is a header with the shard's identity.
    pub(crate) fn verify_header<'a>(
        &self,
        segment: &PoolSegment,
        stripe: u32,
        column: usize,
        block: &'a [u8],
    ) -> Option<StripeBlock<'a>> {
        let expected = segment.identity(self.uuid, stripe, column);
        StripeHeader::decode(block).ok().filter(|h| {
            let epoch =
                if is_planted(PlantedBug::EpochUnchecked) { h.header.identity.epoch } else { expected.epoch };
            h.header.identity == StripeIdentity { epoch, ..expected }
        })
    }

    /// The CRC table in a header block. `None` if the block is not the shard's header; the device's identity
    /// errors then grow by one.
    pub(crate) fn verify_crc_table(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        column: usize,
        block: &[u8],
    ) -> Option<CrcTable> {
        let header = self.verify_header(segment, place.stripe, column, block);
        let Some(header) = header.filter(|h| h.header.rows == place.rows) else {
            self.devices.count_identity_error(segment.columns[column].0);
            return None;
        };
        let table: CrcTable = header.crcs().collect();
        assert_eq!(table.len(), usize::from(place.rows), "a header has one checksum for each row");
        self.checksums.put(segment, place.stripe, column, Arc::clone(&table));
        Some(table)
    }

    /// For each block, from row `first_row` on, whether it verifies. Blocks that do not are counted.
    pub(crate) fn verify_blocks<'a>(
        &'a self,
        segment: &'a PoolSegment,
        column: usize,
        table: &'a [u32],
        first_row: u16,
        blocks: &'a [u8],
    ) -> impl Iterator<Item = bool> + 'a {
        let expected = table.get(usize::from(first_row)..).unwrap_or_default();
        blocks.chunks_exact(BLOCK_BYTES).zip(expected).map(move |(block, crc)| {
            let sound = crc32c(block) == *crc || is_planted(PlantedBug::ChecksumsUnread);
            if !sound {
                self.devices.count_checksum_error(segment.columns[column].0);
            }
            sound
        })
    }

    /// Verifies all rows of one column, which the caller has read; `None` if the CRC table is not cached.
    pub(crate) fn verify_shard(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        column: usize,
        read: &[u8],
    ) -> Option<Shard> {
        let table = self.checksums.get(segment, place.stripe, column)?;
        let mut blocks = AlignedBuf::zeroed(read.len());
        blocks.copy_from_slice(read);
        let sound = self.verify_blocks(segment, column, &table, 0, read).collect();
        Some(Shard { column, first_row: 0, blocks, sound })
    }

    /// Reads `rows` of each of the `columns` in one batch, with the headers of those without a cached table.
    /// The result leaves out columns on missing devices, columns with a failed or late read, and columns
    /// without the expected identity.
    pub(crate) fn read_columns(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        columns: &[usize],
        rows: Range<u16>,
        wait: ColumnWait,
    ) -> Vec<Shard> {
        debug_assert!(rows.end <= place.rows, "only rows of the stripe are read");
        let mut fetches: Vec<ShardFetch> = columns
            .iter()
            .map(|column| ShardFetch {
                column: *column,
                table: self.checksums.get(segment, place.stripe, *column),
                header: AlignedBuf::zeroed(BLOCK_BYTES),
                blocks: AlignedBuf::zeroed(rows.len() * BLOCK_BYTES),
                failed: false,
            })
            .collect();
        self.run_shard_fetches(segment, place, &mut fetches, &rows, wait);
        let verified = fetches.into_iter().filter(|f| !f.failed).filter_map(|f| {
            let known = f.table.or_else(|| self.verify_crc_table(segment, place, f.column, &f.header));
            let table = known?;
            // A buffer is at least one block long, also for a stripe without rows.
            let read = &f.blocks[..rows.len() * BLOCK_BYTES];
            let sound = self.verify_blocks(segment, f.column, &table, rows.start, read).collect();
            Some(Shard { column: f.column, first_row: rows.start, blocks: f.blocks, sound })
        });
        verified.collect()
    }

    fn run_shard_fetches(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        fetches: &mut [ShardFetch],
        rows: &Range<u16>,
        wait: ColumnWait,
    ) {
        let read_op = match wait {
            ColumnWait::Patient => Devices::read_op,
            ColumnWait::Limited => Devices::limited_read_op,
        };
        // `owners[i]` is the fetch that `ops[i]` reads for.
        let mut owners = Vec::with_capacity(2 * fetches.len());
        let mut ops: Vec<DeviceOp<'_>> = Vec::with_capacity(2 * fetches.len());
        let mut unreachable = Vec::new();
        for (n, f) in fetches.iter_mut().enumerate() {
            let blocks_at = self.locate(segment, place, f.column, Some(rows.start));
            let header_at = self.locate(segment, place, f.column, None);
            let blocks = (!rows.is_empty())
                .then(|| read_op(&self.devices, blocks_at, &mut f.blocks[..rows.len() * BLOCK_BYTES]));
            let header = f.table.is_none().then(|| read_op(&self.devices, header_at, &mut f.header));
            // The outer `Option` says whether a read is needed, the inner one whether the device takes reads.
            for op in [blocks, header].into_iter().flatten() {
                match op {
                    Some(op) => {
                        ops.push(op);
                        owners.push(n);
                    }
                    None => unreachable.push(n),
                }
            }
        }
        self.devices.run(&mut ops);
        let failed = ops.iter().zip(&owners).filter(|(op, _)| op.result.is_err()).map(|(_, n)| *n);
        let failed: Vec<usize> = failed.chain(unreachable).collect();
        for n in failed {
            fetches[n].failed = true;
        }
    }
}

/// The reads of one column: its rows, and its header if the CRC table is not cached.
struct ShardFetch {
    column: usize,
    table: Option<CrcTable>,
    header: AlignedBuf,
    blocks: AlignedBuf,
    failed: bool,
}
