//! A stream of a run's versions from front to back, for rewrite jobs. It reads a partition (about 256 KiB) at
//! a time, and not through the cache, which would lose the blocks that readers need.

use std::sync::Arc;
use warpfire_env::sync::atomic::Ordering;

use warpfire_format::table::{
    BlockHandle, Bundle, BundleEntry, BundleIndex, DataBlock, KeyVersion, Partition,
};
use warpfire_log::LogStore;

use super::{BLOCK_OUTSIDE, Table};
use crate::store::MetaError;

struct TablePosition {
    next_partition: usize,
    /// Offset of the next partition's data in the table.
    offset: u32,
}

/// The versions in tables that follow each other.
pub(crate) struct RunStream<L: LogStore> {
    tables: std::vec::IntoIter<Arc<Table<L>>>,
    open: Option<(Arc<Table<L>>, TablePosition)>,
    bytes: Vec<u8>,
    bytes_offset: u32,
    blocks: std::iter::Enumerate<std::vec::IntoIter<BlockHandle>>,
    block: Option<DataBlock>,
    at: usize,
    /// The bundles of the partition's records.
    bundle_index: Option<BundleIndex>,
    /// Those of the block's records, from the last to the first; behind the position so far.
    bundles: Vec<BundleEntry>,
}

impl<L: LogStore> RunStream<L> {
    /// A stream at the first version of `tables`, which are in key order and do not overlap.
    pub(crate) fn new(tables: Vec<Arc<Table<L>>>) -> Result<Self, MetaError> {
        assert!(
            tables.windows(2).all(|pair| pair[0].entry().largest < pair[1].entry().smallest),
            "the tables of a run are in key order and do not overlap"
        );
        let mut stream = RunStream {
            tables: tables.into_iter(),
            open: None,
            bytes: Vec::new(),
            bytes_offset: 0,
            blocks: Vec::new().into_iter().enumerate(),
            block: None,
            at: 0,
            bundle_index: None,
            bundles: Vec::new(),
        };
        stream.next_block()?;
        Ok(stream)
    }

    /// The version at the stream's position; `None` past the end.
    #[inline]
    pub(crate) fn entry(&self) -> Option<KeyVersion<'_>> {
        self.block.as_ref().map(|block| block.entry(self.at))
    }

    /// The bundle of the version at the stream's position.
    pub(crate) fn bundle(&self) -> Option<&Bundle> {
        self.bundles.last().filter(|bundle| bundle.entry == self.at).map(|bundle| &bundle.bundle)
    }

    /// Moves to the next version.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<(), MetaError> {
        if self.bundle().is_some() {
            self.bundles.pop();
        }
        self.at += 1;
        if self.block.as_ref().is_some_and(|block| self.at < block.len()) {
            return Ok(());
        }
        self.next_block()
    }

    fn next_block(&mut self) -> Result<(), MetaError> {
        let result = self.decode_next_block();
        // Later jobs avoid the table: without this, compaction would fail on it for ever.
        if let (Err(_), Some((table, _))) = (&result, &self.open) {
            table.unreadable.store(true, Ordering::Release);
        }
        result
    }

    fn decode_next_block(&mut self) -> Result<(), MetaError> {
        self.at = 0;
        loop {
            if let Some((number, handle)) = self.blocks.next() {
                let start = handle.offset.checked_sub(self.bytes_offset).map(|s| s as usize);
                let bytes = start.and_then(|s| self.bytes.get(s..s.checked_add(handle.len as usize)?));
                let bytes = bytes.ok_or(BLOCK_OUTSIDE)?;
                self.block = Some(DataBlock::decode_in_order(bytes)?);
                self.bundles.clear();
                self.bundles.extend(self.bundle_index.iter().flat_map(|index| index.of_block(number)));
                self.bundles.reverse();
                return Ok(());
            }
            if !self.next_partition()? {
                self.block = None;
                return Ok(());
            }
        }
    }

    fn next_partition(&mut self) -> Result<bool, MetaError> {
        loop {
            if let Some((table, open)) = &mut self.open
                && let Some(handle) = table.top()?.partitions().get(open.next_partition).copied()
            {
                let len = handle.offset - open.offset + handle.len;
                self.bytes = table.read(BlockHandle { offset: open.offset, len })?;
                self.bytes_offset = open.offset;
                let data_len = (handle.offset - open.offset) as usize;
                let partition = Partition::decode(self.bytes.get(data_len..).unwrap_or(&[]))?;
                let bundles = partition.bundle_block(handle).map(|bundles| {
                    let start = bundles.offset.checked_sub(open.offset).map(|start| start as usize);
                    let bytes = start.and_then(|start| self.bytes.get(start..data_len)).unwrap_or_default();
                    BundleIndex::decode(bytes)
                });
                self.bundle_index = bundles.transpose()?;
                self.blocks = partition.blocks().to_vec().into_iter().enumerate();
                open.next_partition += 1;
                open.offset = handle.offset + handle.len;
                return Ok(true);
            }
            let Some(table) = self.tables.next() else { return Ok(false) };
            self.open = Some((table, TablePosition { next_partition: 0, offset: 0 }));
        }
    }
}
