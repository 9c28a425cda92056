//! A stream of a run's versions from front to back, for rewrite jobs. It reads a partition (about 256 KiB) at
//! a time, and not through the cache, which would lose the blocks that readers need.

use std::sync::Arc;
use warpfire_env::sync::atomic::Ordering;

use warpfire_format::table::{BlockHandle, DataBlock, KeyVersion, Partition};
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
    blocks: std::vec::IntoIter<BlockHandle>,
    block: Option<DataBlock>,
    at: usize,
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
            blocks: Vec::new().into_iter(),
            block: None,
            at: 0,
        };
        stream.next_block()?;
        Ok(stream)
    }

    /// The version at the stream's position; `None` past the end.
    #[inline]
    pub(crate) fn entry(&self) -> Option<KeyVersion<'_>> {
        self.block.as_ref().map(|block| block.entry(self.at))
    }

    /// Moves to the next version.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<(), MetaError> {
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
            if let Some(handle) = self.blocks.next() {
                let start = handle.offset.checked_sub(self.bytes_offset).map(|s| s as usize);
                let bytes = start.and_then(|s| self.bytes.get(s..s.checked_add(handle.len as usize)?));
                let bytes = bytes.ok_or(BLOCK_OUTSIDE)?;
                self.block = Some(DataBlock::decode_in_order(bytes)?);
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
                self.blocks = partition.blocks().to_vec().into_iter();
                open.next_partition += 1;
                open.offset = handle.offset + handle.len;
                return Ok(true);
            }
            let Some(table) = self.tables.next() else { return Ok(false) };
            self.open = Some((table, TablePosition { next_partition: 0, offset: 0 }));
        }
    }
}
