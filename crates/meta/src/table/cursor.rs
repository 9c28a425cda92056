//! A cursor over a run's keys, both ways, block by block through the cache.
//!
//! # Invariants
//! 1. A placed cursor is at the versions `start..end` of one block, all of one key. After `seek` and
//!    `enter_last` only, `start` may be the block's length: before the next step (asserts in `next` and
//!    `previous`).
//! 2. Blocks hold at least one version (the decoder checks it), and a key's versions are in one block.

use std::sync::Arc;

use warpfire_format::table::{DataBlock, KeyVersion, Partition, TopIndex};
use warpfire_log::LogStore;

use super::{BlockCache, Table};
use crate::store::MetaError;

struct CursorPosition<'a> {
    table: usize,
    top: &'a TopIndex,
    partition_number: usize,
    partition: Arc<Partition>,
    block_number: usize,
    block: Arc<DataBlock>,
    start: usize,
    end: usize,
}

/// A place in a run: the versions of one key, or past the run's end.
pub(crate) struct RunCursor<'a, L: LogStore> {
    tables: &'a [Arc<Table<L>>],
    cache: &'a BlockCache,
    at: Option<CursorPosition<'a>>,
}

impl<'a, L: LogStore> RunCursor<'a, L> {
    /// At the first key at or after `key`.
    pub(crate) fn first_from(
        tables: &'a [Arc<Table<L>>],
        cache: &'a BlockCache,
        key: &[u8],
    ) -> Result<Self, MetaError> {
        let mut cursor = RunCursor { tables, cache, at: None };
        let table = tables.partition_point(|t| t.entry.largest.as_slice() < key);
        if table < tables.len() {
            cursor.seek(table, key)?;
            // The block may end before `key`, which is in the distance between this block and the next.
            let at = cursor.at.as_mut().expect("seek has placed it");
            if at.start == at.block.len() {
                at.end = at.start;
                cursor.next()?;
            }
        }
        Ok(cursor)
    }

    /// At the last key before `key`, or at the last of all.
    pub(crate) fn last_before(
        tables: &'a [Arc<Table<L>>],
        cache: &'a BlockCache,
        key: Option<&[u8]>,
    ) -> Result<Self, MetaError> {
        let mut cursor = RunCursor { tables, cache, at: None };
        let count =
            key.map_or(tables.len(), |key| tables.partition_point(|t| t.entry.smallest.as_slice() < key));
        if let Some(table) = count.checked_sub(1) {
            match key {
                Some(key) => cursor.seek(table, key)?,
                None => cursor.enter_last(table)?,
            }
            cursor.previous()?;
        }
        Ok(cursor)
    }

    /// Places the cursor in the one block that may hold `key`: at the first key not below `key`, or at the
    /// block's end.
    fn seek(&mut self, table: usize, key: &[u8]) -> Result<(), MetaError> {
        let t = &self.tables[table];
        let top = t.top()?;
        let partition_number = top.find(key);
        let partition = t.partition(top.partitions()[partition_number], self.cache)?;
        let block_number = partition.find(key);
        let block = t.data(partition.blocks()[block_number], self.cache)?;
        let start = block.find(key);
        let end = if start < block.len() { block.group_end(start) } else { start };
        self.at =
            Some(CursorPosition { table, top, partition_number, partition, block_number, block, start, end });
        Ok(())
    }

    /// Places the cursor after the last key of a table, for a step back.
    fn enter_last(&mut self, table: usize) -> Result<(), MetaError> {
        let t = &self.tables[table];
        let top = t.top()?;
        let partition_number = top.partitions().len() - 1;
        let partition = t.partition(top.partitions()[partition_number], self.cache)?;
        let block_number = partition.blocks().len() - 1;
        let block = t.data(partition.blocks()[block_number], self.cache)?;
        let start = block.len();
        self.at = Some(CursorPosition {
            table,
            top,
            partition_number,
            partition,
            block_number,
            block,
            start,
            end: start,
        });
        Ok(())
    }

    /// Places the cursor at the first key of a table.
    fn enter_first(&mut self, table: usize) -> Result<(), MetaError> {
        let t = &self.tables[table];
        let top = t.top()?;
        let partition = t.partition(top.partitions()[0], self.cache)?;
        let block = t.data(partition.blocks()[0], self.cache)?;
        let end = block.group_end(0);
        let (partition_number, block_number, start) = (0, 0, 0);
        self.at =
            Some(CursorPosition { table, top, partition_number, partition, block_number, block, start, end });
        Ok(())
    }

    /// The key at the cursor; `None` past the end.
    #[inline]
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.at.as_ref().map(|at| at.block.key(at.start))
    }

    /// The key's newest version.
    #[inline]
    pub(crate) fn newest(&self) -> Option<KeyVersion<'_>> {
        self.at.as_ref().map(|at| at.block.entry(at.start))
    }

    /// The key's versions, newest first.
    #[inline]
    pub(crate) fn versions(&self) -> impl Iterator<Item = KeyVersion<'_>> {
        self.at.iter().flat_map(|at| (at.start..at.end).map(|i| at.block.entry(i)))
    }

    /// Moves to the next key.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<(), MetaError> {
        let Some(at) = &mut self.at else { return Ok(()) };
        debug_assert!(at.start <= at.end && at.end <= at.block.len(), "the cursor is inside its block");
        if at.end < at.block.len() {
            at.start = at.end;
            at.end = at.block.group_end(at.start);
            return Ok(());
        }
        self.next_block()
    }

    fn next_block(&mut self) -> Result<(), MetaError> {
        let Some(at) = &mut self.at else { return Ok(()) };
        let table = &self.tables[at.table];
        // The next block is in this partition, in the next one, or in the next table.
        if at.block_number + 1 < at.partition.blocks().len() {
            at.block_number += 1;
        } else if at.partition_number + 1 < at.top.partitions().len() {
            at.partition_number += 1;
            at.partition = table.partition(at.top.partitions()[at.partition_number], self.cache)?;
            at.block_number = 0;
        } else if at.table + 1 < self.tables.len() {
            let next = at.table + 1;
            return self.enter_first(next);
        } else {
            self.at = None;
            return Ok(());
        }
        at.block = table.data(at.partition.blocks()[at.block_number], self.cache)?;
        at.start = 0;
        at.end = at.block.group_end(0);
        Ok(())
    }

    /// Moves to the previous key.
    pub(crate) fn previous(&mut self) -> Result<(), MetaError> {
        let Some(at) = &mut self.at else { return Ok(()) };
        debug_assert!(at.start <= at.block.len(), "the cursor is inside its block");
        if at.start > 0 {
            at.end = at.start;
            at.start = at.block.group_start(at.end - 1);
            return Ok(());
        }
        let table = &self.tables[at.table];
        if at.block_number > 0 {
            at.block_number -= 1;
        } else if at.partition_number > 0 {
            at.partition_number -= 1;
            at.partition = table.partition(at.top.partitions()[at.partition_number], self.cache)?;
            at.block_number = at.partition.blocks().len() - 1;
        } else if at.table > 0 {
            let before = at.table - 1;
            self.enter_last(before)?;
            return self.previous();
        } else {
            self.at = None;
            return Ok(());
        }
        at.block = table.data(at.partition.blocks()[at.block_number], self.cache)?;
        at.end = at.block.len();
        at.start = at.block.group_start(at.end - 1);
        Ok(())
    }
}
