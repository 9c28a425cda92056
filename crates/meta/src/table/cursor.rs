//! A cursor over a run's keys, both ways, block by block through the cache.
//!
//! # Invariants
//! 1. A placed cursor is at the versions `start..end` of one block, all of one key. After `seek` and
//!    `enter_last` only, `start` may be the block's length: before the next step (asserts in `next` and
//!    `previous`).
//! 2. A cursor that passes damage meets every key that is in a readable block (`tests/past_damage.rs`).
//! 3. Blocks hold at least one version (the decoder checks it), and a key's versions are in one block.

use std::cell::Cell;
use std::sync::Arc;

use warpfire_format::table::{DataBlock, KeyVersion, Partition, TopIndex};
use warpfire_log::LogStore;

use super::cache::BlockUse;
use super::{BlockCache, Table};
use crate::store::{KeyRange, MetaError};

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

/// A part of a table or of a partition.
#[derive(Clone, Copy)]
enum Part<'k> {
    First,
    Last,
    Number(usize),
    /// The only one that may hold a key.
    Of(&'k [u8]),
}

impl Part<'_> {
    fn number(self, count: usize, find: impl FnOnce(&[u8]) -> usize) -> usize {
        match self {
            Part::First => 0,
            Part::Last => count - 1,
            Part::Number(number) => number,
            Part::Of(key) => find(key),
        }
    }
}

/// A block that cannot be read: a data block, or without its number the block of a partition, or without both
/// the top of a table.
struct LostBlock {
    table: usize,
    partition: Option<usize>,
    block: Option<usize>,
    error: MetaError,
}

/// A place in a run: the versions of one key, or past the run's end.
pub(crate) struct RunCursor<'a, L: LogStore> {
    tables: &'a [Arc<Table<L>>],
    cache: &'a BlockCache,
    at: Option<CursorPosition<'a>>,
    /// No key from here on is wanted: steps forward end before a block that has none below.
    end: Option<&'a [u8]>,
    /// Set once a step forward has passed a block that cannot be read. Without it such a block is an error.
    passed: Option<&'a Cell<bool>>,
    /// The run is of the past.
    pub(crate) is_past: bool,
}

impl<'a, L: LogStore> RunCursor<'a, L> {
    /// At the first key in the range. Once the cursor has left the range, it may be past its end. With
    /// `passed`, it goes on after blocks that cannot be read, and sets it then.
    pub(crate) fn first_in(
        tables: &'a [Arc<Table<L>>],
        cache: &'a BlockCache,
        range: KeyRange<'a>,
        passed: Option<&'a Cell<bool>>,
    ) -> Result<Self, MetaError> {
        let key = range.start;
        let mut cursor = RunCursor { tables, cache, at: None, end: range.end, passed, is_past: false };
        let table = tables.partition_point(|t| t.entry.largest.as_slice() < key);
        if table == tables.len() || cursor.is_behind(Some(&tables[table].entry.smallest)) {
            return Ok(cursor);
        }
        let mut at = match cursor.load(table, Part::Of(key), Part::Of(key), BlockUse::Lookup) {
            Ok(at) => at,
            Err(lost) => {
                cursor.go_on_after(lost)?;
                return Ok(cursor);
            }
        };
        at.start = at.block.find(key);
        // The block may end before `key`, which is in the distance between this block and the next.
        let is_before = at.start == at.block.len();
        at.end = if is_before { at.start } else { at.block.group_end(at.start) };
        cursor.at = Some(at);
        if is_before {
            cursor.next()?;
        }
        Ok(cursor)
    }

    /// At the last key before `key`, or at the last of all.
    pub(crate) fn last_before(
        tables: &'a [Arc<Table<L>>],
        cache: &'a BlockCache,
        key: Option<&[u8]>,
    ) -> Result<Self, MetaError> {
        let mut cursor = RunCursor { tables, cache, at: None, end: None, passed: None, is_past: false };
        let count =
            key.map_or(tables.len(), |key| tables.partition_point(|t| t.entry.smallest.as_slice() < key));
        if let Some(table) = count.checked_sub(1) {
            match key {
                Some(key) => cursor.seek(table, key)?,
                None => cursor.enter_last(table, BlockUse::Lookup)?,
            }
            cursor.previous()?;
        }
        Ok(cursor)
    }

    /// The first key of a block. A scan that ends in its first block is like a lookup.
    fn load(
        &self,
        table: usize,
        partition: Part<'_>,
        block: Part<'_>,
        used: BlockUse,
    ) -> Result<CursorPosition<'a>, LostBlock> {
        let t = &self.tables[table];
        let lost = |partition, block| move |error| LostBlock { table, partition, block, error };
        let top = t.top().map_err(lost(None, None))?;
        let partition_number = partition.number(top.partitions().len(), |key| top.find(key));
        // A scan that goes on from one partition to the next needs no more of the index than that.
        let used_index = if used == BlockUse::Scan { BlockUse::Scan } else { BlockUse::Index };
        let partition = t.partition(top.partitions()[partition_number], used_index, self.cache);
        let partition = partition.map_err(lost(Some(partition_number), None))?;
        let block_number = block.number(partition.blocks().len(), |key| partition.find(key));
        let block = t.data(partition.blocks()[block_number], used, self.cache);
        let block = block.map_err(lost(Some(partition_number), Some(block_number)))?;
        let (start, end) = (0, block.group_end(0));
        Ok(CursorPosition { table, top, partition_number, partition, block_number, block, start, end })
    }

    /// Whether no key of a block is wanted that begins at this key or after it.
    fn is_behind(&self, separator: Option<&[u8]>) -> bool {
        self.end.zip(separator).is_some_and(|(end, separator)| separator >= end)
    }

    /// The first key of the next block, of the next partition after it, or of the next table; `None` at the
    /// end of the run, and before a block in which no key is wanted.
    fn load_after(
        &self,
        table: usize,
        partition: Option<usize>,
        block: Option<usize>,
    ) -> Result<Option<CursorPosition<'a>>, LostBlock> {
        let t = &self.tables[table];
        // Parts with a number were reached through the parts above, so these are readable.
        if let (Some(partition), Ok(top)) = (partition, t.top()) {
            if let Some(block) = block
                && let Ok(found) = t.partition(top.partitions()[partition], BlockUse::Scan, self.cache)
                && block + 1 < found.blocks().len()
            {
                let is_behind = self.is_behind(found.separator(block + 1));
                let load =
                    || self.load(table, Part::Number(partition), Part::Number(block + 1), BlockUse::Scan);
                return (!is_behind).then(load).transpose();
            }
            if partition + 1 < top.partitions().len() {
                let is_behind = self.is_behind(top.separator(partition + 1));
                let load = || self.load(table, Part::Number(partition + 1), Part::First, BlockUse::Scan);
                return (!is_behind).then(load).transpose();
            }
        }
        match self.tables.get(table + 1) {
            Some(next) if !self.is_behind(Some(&next.entry.smallest)) => {
                self.load(table + 1, Part::First, Part::First, BlockUse::Scan).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Moves forward to the first block after a lost one that can be read, if the cursor passes damage.
    fn go_on_after(&mut self, mut lost: LostBlock) -> Result<(), MetaError> {
        loop {
            match self.passed {
                Some(passed) if lost.error.is_damage() => passed.set(true),
                _ => return Err(lost.error),
            }
            match self.load_after(lost.table, lost.partition, lost.block) {
                Ok(at) => {
                    self.at = at;
                    return Ok(());
                }
                Err(next) => lost = next,
            }
        }
    }

    /// Places the cursor in the one block that may hold `key`, for a step back: at the first key not below
    /// `key`, or at the block's end.
    fn seek(&mut self, table: usize, key: &[u8]) -> Result<(), MetaError> {
        let mut at =
            self.load(table, Part::Of(key), Part::Of(key), BlockUse::Lookup).map_err(|lost| lost.error)?;
        at.start = at.block.find(key);
        at.end = if at.start < at.block.len() { at.block.group_end(at.start) } else { at.start };
        self.at = Some(at);
        Ok(())
    }

    /// Places the cursor after the last key of a table, for a step back.
    fn enter_last(&mut self, table: usize, used: BlockUse) -> Result<(), MetaError> {
        let mut at = self.load(table, Part::Last, Part::Last, used).map_err(|lost| lost.error)?;
        at.start = at.block.len();
        at.end = at.start;
        self.at = Some(at);
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
        let Some(at) = &self.at else { return Ok(()) };
        let (table, partition) = (at.table, at.partition_number);
        let next = at.block_number + 1;
        if next < at.partition.blocks().len() && self.is_behind(at.partition.separator(next)) {
            self.at = None;
        }
        let Some(at) = &mut self.at else { return Ok(()) };
        let loaded = match at.partition.blocks().get(next) {
            // The usual case keeps the partition.
            Some(handle) => match self.tables[table].data(*handle, BlockUse::Scan, self.cache) {
                Ok(block) => {
                    (at.start, at.end) = (0, block.group_end(0));
                    (at.block_number, at.block) = (next, block);
                    return Ok(());
                }
                Err(error) => Err(LostBlock { table, partition: Some(partition), block: Some(next), error }),
            },
            None => self.load_after(table, Some(partition), None),
        };
        match loaded {
            Ok(at) => {
                self.at = at;
                Ok(())
            }
            Err(lost) => self.go_on_after(lost),
        }
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
            let own = at.top.partitions()[at.partition_number];
            at.partition = table.partition(own, BlockUse::Scan, self.cache)?;
            at.block_number = at.partition.blocks().len() - 1;
        } else if at.table > 0 {
            let before = at.table - 1;
            self.enter_last(before, BlockUse::Scan)?;
            return self.previous();
        } else {
            self.at = None;
            return Ok(());
        }
        at.block = table.data(at.partition.blocks()[at.block_number], BlockUse::Scan, self.cache)?;
        at.end = at.block.len();
        at.start = at.block.group_start(at.end - 1);
        Ok(())
    }
}
