//! Header blocks of a segment, and the rows of short stripes, read ahead of a walk over them.
//!
//! In a commit log of small syncs every block is a stripe, or every few. One by one, 64 MiB of it would be 16,384 reads, each as long
//! as the device takes to answer; with this they are some 260.
//!
//! # Invariants
//! 1. A block that can be read alone is in the window: where reading several blocks fails on some column, one is read.
//! 2. The window grows while the walk stays near it, and begins small again when stripes are long: at most half of what is read
//!    is read in vain.

use warpfire_env::{AlignedBuf, DeviceOp};
use warpfire_units::BLOCK_BYTES;

use crate::pool::Inner;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// Most blocks of each column that are read at once: 256 KiB, of at most 9 columns of a mirror 2.3 MiB.
const AHEAD_BLOCKS_MAX: u32 = 64;

/// Stripes of so many blocks are short however few blocks were read before.
const SHORT_BLOCKS: u32 = 8;

/// The blocks from one on, of every column.
#[derive(Default)]
pub(crate) struct HeaderReadahead {
    first: u32,
    len: u32,
    columns: Vec<Option<AlignedBuf>>,
}

/// What was read of some columns.
pub(crate) struct HeaderBlocks {
    /// `None` where the device is missing or failed.
    pub(crate) columns: Vec<Option<AlignedBuf>>,
    /// Whether a device that is there failed.
    pub(crate) has_failed_reads: bool,
}

impl HeaderReadahead {
    fn end(&self) -> u32 {
        self.first + self.len
    }

    /// How many blocks to read at `block`, which is not in the window.
    fn wanted(&self, block: u32) -> u32 {
        match block.checked_sub(self.end()) {
            Some(skipped) if skipped <= self.len.max(SHORT_BLOCKS) => {
                (2 * self.len).clamp(1, AHEAD_BLOCKS_MAX)
            }
            _ => 1,
        }
    }

    /// Block number `block` of each column's zone, of columns where it can be read.
    pub(crate) fn blocks<'w>(
        &'w mut self,
        pool: &Inner,
        segment: &PoolSegment,
        block: u32,
    ) -> impl Iterator<Item = (usize, &'w [u8])> {
        if !(self.first..self.end()).contains(&block) {
            self.read(pool, segment, block);
        }
        self.slice(block, 1)
    }

    /// The rows of a stripe, of columns where they can be read, if the window has got them all.
    pub(crate) fn rows(&self, place: &StripePlace) -> Option<impl Iterator<Item = (usize, &[u8])>> {
        let (first, rows) = (place.block + 1, u32::from(place.rows));
        (self.first <= first && first + rows <= self.end()).then(|| self.slice(first, rows))
    }

    fn slice(&self, block: u32, count: u32) -> impl Iterator<Item = (usize, &[u8])> {
        let bytes = |blocks: u32| blocks as usize * BLOCK_BYTES;
        let range = bytes(block - self.first)..bytes(block - self.first + count);
        let columns = self.columns.iter().enumerate();
        columns.filter_map(move |(column, read)| Some((column, read.as_ref()?.get(range.clone())?)))
    }

    fn read(&mut self, pool: &Inner, segment: &PoolSegment, block: u32) {
        let columns: Vec<usize> = (0..segment.width()).collect();
        let wanted = self.wanted(block).min(pool.zone_blocks - block);
        let mut read = pool.read_headers(segment, &columns, block, wanted);
        (self.first, self.len) = (block, wanted);
        if read.has_failed_reads && wanted > 1 {
            read = pool.read_headers(segment, &columns, block, 1);
            self.len = 1;
        }
        self.columns = read.columns;
    }
}

impl Inner {
    /// Reads `count` blocks from zone block `block` on, of each of the columns, all at once.
    pub(crate) fn read_headers(
        &self,
        segment: &PoolSegment,
        columns: &[usize],
        block: u32,
        count: u32,
    ) -> HeaderBlocks {
        let place = StripePlace { stripe: 0, block, first_row: 0, rows: 0 };
        let blank = |_: &usize| AlignedBuf::zeroed(count as usize * BLOCK_BYTES);
        let mut blocks: Vec<AlignedBuf> = columns.iter().map(blank).collect();
        let mut ops: Vec<DeviceOp<'_>> = Vec::with_capacity(columns.len());
        let mut owners = Vec::with_capacity(columns.len());
        for (n, (column, block)) in columns.iter().zip(&mut blocks).enumerate() {
            if let Some(op) = self.devices.read_op(self.locate(segment, &place, *column, None), block) {
                ops.push(op);
                owners.push(n);
            }
        }
        self.devices.run(&mut ops);
        let has_failed_reads = ops.iter().any(|op| op.result.is_err());
        let good: Vec<usize> =
            ops.iter().zip(owners).filter(|(op, _)| op.result.is_ok()).map(|(_, n)| n).collect();
        let columns = blocks.into_iter().enumerate().map(|(n, b)| good.contains(&n).then_some(b)).collect();
        HeaderBlocks { columns, has_failed_reads }
    }
}
