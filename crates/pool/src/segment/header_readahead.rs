//! Header readahead: header blocks of a segment, and the rows of short stripes, read before a walk needs
//! them.
//!
//! A commit log of small syncs has a stripe in every block or every few blocks. Without readahead, a walk
//! over 64 MiB of it costs 16,384 reads, one after the other. With readahead it costs about 260.
//!
//! The *window* is a range of zone blocks that was read on every column.
//!
//! # Invariants
//! 1. The window contains the block that the walk asked for (assert in `read`).
//! 2. A column has that block whenever its device can read the block alone: if a read of several blocks fails
//!    on some column, the window shrinks to one block (test
//!    `blocks_that_cannot_be_read_together_are_read_alone`).
//! 3. The window doubles while the walk stays near it, and starts again at one block after a long stripe. So
//!    at most about half of the blocks are read in vain (`wanted`).

use warpfire_env::{AlignedBuf, DeviceOp};
use warpfire_units::BLOCK_BYTES;

use crate::pool::Inner;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// Most blocks of each column that are read at once: 256 KiB; 2.3 MiB for the 9 columns of the widest mirror.
const AHEAD_BLOCKS_MAX: u32 = 64;

/// A stripe of at most this many blocks is short, however small the window is.
const SHORT_BLOCKS: u32 = 8;

/// The window: blocks `first..first + len` of every column.
#[derive(Default)]
pub(crate) struct HeaderReadahead {
    first: u32,
    len: u32,
    columns: Vec<Option<AlignedBuf>>,
}

/// Blocks that were read on some columns.
pub(crate) struct HeaderBlocks {
    /// In the order of the request; `None` if the device is missing or its read failed.
    pub(crate) columns: Vec<Option<AlignedBuf>>,
    /// Whether a read of a present device failed.
    pub(crate) has_failed_reads: bool,
}

impl HeaderReadahead {
    fn end(&self) -> u32 {
        self.first + self.len
    }

    /// How many blocks to read from `block` on, which is not in the window.
    fn wanted(&self, block: u32) -> u32 {
        // The walk skipped the rows of the last stripe. A long skip means long stripes: reading ahead does
        // not pay.
        match block.checked_sub(self.end()) {
            Some(skipped) if skipped <= self.len.max(SHORT_BLOCKS) => {
                (2 * self.len).clamp(1, AHEAD_BLOCKS_MAX)
            }
            _ => 1,
        }
    }

    /// Zone block `block` of each column on which it can be read, as (column, bytes). Reads the window if
    /// necessary.
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

    /// The rows of a stripe on each column on which they can be read, as (column, bytes). `None` if the
    /// window does not contain all rows.
    pub(crate) fn rows(&self, place: &StripePlace) -> Option<impl Iterator<Item = (usize, &[u8])>> {
        let (first, rows) = (place.block + 1, u32::from(place.rows));
        (self.first <= first && first + rows <= self.end()).then(|| self.slice(first, rows))
    }

    fn slice(&self, block: u32, count: u32) -> impl Iterator<Item = (usize, &[u8])> {
        debug_assert!(self.first <= block && block + count <= self.end(), "the blocks are in the window");
        let bytes = |blocks: u32| blocks as usize * BLOCK_BYTES;
        let range = bytes(block - self.first)..bytes(block - self.first + count);
        let columns = self.columns.iter().enumerate();
        columns.filter_map(move |(column, read)| Some((column, read.as_ref()?.get(range.clone())?)))
    }

    fn read(&mut self, pool: &Inner, segment: &PoolSegment, block: u32) {
        assert!(block < pool.zone_blocks, "a walk stays inside the zone");
        let columns: Vec<usize> = (0..segment.width()).collect();
        let wanted = self.wanted(block).min(pool.zone_blocks - block);
        let mut read = pool.read_headers(segment, &columns, block, wanted);
        (self.first, self.len) = (block, wanted);
        // One bad block fails the whole read. It must not hide good header blocks before it.
        if read.has_failed_reads && wanted > 1 {
            read = pool.read_headers(segment, &columns, block, 1);
            self.len = 1;
        }
        self.columns = read.columns;
        assert!(self.first <= block && block < self.end(), "the window contains the block");
    }
}

impl Inner {
    /// Reads `count` blocks, from zone block `block` on, of each of the `columns`, in one batch.
    pub(crate) fn read_headers(
        &self,
        segment: &PoolSegment,
        columns: &[usize],
        block: u32,
        count: u32,
    ) -> HeaderBlocks {
        assert!(count <= self.zone_blocks - block, "blocks of one zone are read");
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
        // A missing device has no operation here: it is no reason to read a smaller window.
        let has_failed_reads = ops.iter().any(|op| op.result.is_err());
        let good: Vec<usize> =
            ops.iter().zip(owners).filter(|(op, _)| op.result.is_ok()).map(|(_, n)| n).collect();
        let columns = blocks.into_iter().enumerate().map(|(n, b)| good.contains(&n).then_some(b)).collect();
        HeaderBlocks { columns, has_failed_reads }
    }
}
