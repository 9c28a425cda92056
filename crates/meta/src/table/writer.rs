//! The table writer: turns versions in key order into tables, from front to back.
//!
//! # Invariants
//! 1. A key's versions are in one block, a block in one partition, a partition in one table.
//! 2. Bytes of the open table are in `open.slices`, then in `buffer`, then in `block` (assert in
//!    `end_table`).
//! 3. Keys are pushed in rising order (assert in `begin_key`).
//! 4. A table ends before a gap in its keys that holds many other tables. Otherwise it would overlap all of
//!    them, and a merge would rewrite them all for the few keys at its ends
//!    (`tests::rewriting::keys_that_rise_are_not_rewritten_for_a_key_below_them`).
//! 5. A table ends behind a long group. The next keys of the group would lie between its last key and the
//!    key behind it, so a later table over them would overlap this one
//!    (`tests::rewriting::keys_that_rise_are_not_rewritten_for_keys_above_and_below_them`).

use std::sync::Arc;

use warpfire_format::key_hash;
use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{
    Bundle, DataBlockBuilder, KeyVersion, PartitionBuilder, TopBuilder, VersionKind,
};
use warpfire_log::{LogError, LogStore, Stream};
use warpfire_units::{Seq, SlicePtr};

/// Length at which a data block ends: one device block, less the usual length of one more version.
const BLOCK_BYTES_TARGET: usize = 4096 - 96;

/// Data blocks of a partition.
const PARTITION_BLOCKS: u32 = 64;

/// Bytes of one append to the log.
const PIECE_BYTES: usize = 256 * 1024;

/// Tables that a gap between two keys holds at least, when a table ends before the gap. A merge would rewrite
/// them: some 64 MiB. With fewer the gap is usual among keys at random, and tables stay large.
const GAP_TABLES_MIN: usize = 4;

/// The part of a table that a group is long with.
const LONG_GROUP_PART: usize = 4;

/// The tables that there were when a rewrite began, by their smallest keys.
struct OtherTables {
    tables: Vec<Arc<TableDescriptor>>,
    /// Tables before it begin at or before the last key that was asked about.
    next: usize,
}

impl OtherTables {
    fn new(mut tables: Vec<Arc<TableDescriptor>>) -> Self {
        tables.sort_unstable_by(|a, b| a.smallest.cmp(&b.smallest));
        OtherTables { tables, next: 0 }
    }

    /// Whether many whole tables lie between two keys that follow each other. Keys rise from call to call.
    fn are_between(&mut self, last: &[u8], key: &[u8]) -> bool {
        let mut between = 0;
        while let Some(table) = self.tables.get(self.next)
            && table.smallest.as_slice() <= key
        {
            between += usize::from(table.smallest.as_slice() > last && table.largest.as_slice() < key);
            self.next += 1;
        }
        between >= GAP_TABLES_MIN
    }
}

struct TableInProgress {
    smallest: Vec<u8>,
    entries: u64,
    deletes: u64,
    superseded: u64,
    seq_min: Seq,
    seq_max: Seq,
    written_bytes: u32,
    slices: Vec<SlicePtr>,
}

/// Turns sorted entries into tables of about `target_bytes`.
pub(crate) struct TableWriter<L: LogStore> {
    log: Arc<L>,
    target_bytes: usize,
    /// Keys with the same first bytes, so many, are a group.
    group_key_bytes: usize,
    /// Bytes of all tables that have ended, and of all tables before the last key's group.
    ended_bytes: usize,
    before_group_bytes: usize,
    block: DataBlockBuilder,
    partition: PartitionBuilder,
    top: TopBuilder,
    buffer: Vec<u8>,
    open: Option<TableInProgress>,
    last_key: Vec<u8>,
    /// Last key of the block before the one that is filling.
    block_before: Vec<u8>,
    block_first: Vec<u8>,
    finished: Vec<TableDescriptor>,
    others: OtherTables,
}

impl<L: LogStore> TableWriter<L> {
    /// A writer of versions with seqs of at least `seq_base`, or 0, beside the tables `others`.
    /// `group_key_bytes` as in `Schema`.
    pub(crate) fn new(
        log: Arc<L>,
        (target_bytes, group_key_bytes): (usize, usize),
        seq_base: Seq,
        others: Vec<Arc<TableDescriptor>>,
    ) -> Self {
        TableWriter {
            log,
            target_bytes,
            group_key_bytes,
            ended_bytes: 0,
            before_group_bytes: 0,
            block: DataBlockBuilder::new(seq_base),
            partition: PartitionBuilder::default(),
            top: TopBuilder::default(),
            buffer: Vec::with_capacity(PIECE_BYTES + 16 * 1024),
            open: None,
            last_key: Vec::new(),
            block_before: Vec::new(),
            block_first: Vec::new(),
            finished: Vec::new(),
            others: OtherTables::new(others),
        }
    }

    /// Adds a version: keys rise, and the versions of a key come from the newest to the oldest. Whether the
    /// table names its bundle: only the newest version of a key has one, because a reader finds it by the
    /// key.
    pub(crate) fn push(&mut self, entry: KeyVersion<'_>, bundle: Option<&Bundle>) -> Result<bool, LogError> {
        let is_superseded = self.open.is_some() && self.last_key == entry.key;
        if !is_superseded {
            self.begin_key(entry.key)?;
        }
        let open = self.open.as_mut().expect("begin_key opens a table");
        open.entries += 1;
        open.superseded += u64::from(is_superseded);
        open.deletes += u64::from(entry.kind == VersionKind::Delete);
        if entry.seq != Seq(0) {
            open.seq_max = open.seq_max.max(entry.seq);
            open.seq_min = if open.seq_min == Seq(0) { entry.seq } else { open.seq_min.min(entry.seq) };
        }
        let bundle = bundle.filter(|_| !is_superseded);
        if let Some(bundle) = bundle {
            self.partition.add_bundle(self.block.count(), key_hash(entry.key), bundle);
        }
        self.block.push(entry);
        Ok(bundle.is_some())
    }

    fn begin_key(&mut self, key: &[u8]) -> Result<(), LogError> {
        // Only here, between keys, do blocks and tables end (invariant 1).
        debug_assert!(
            self.open.is_none() || self.last_key.as_slice() < key,
            "keys are pushed in rising order"
        );
        if self.block.len() >= BLOCK_BYTES_TARGET {
            self.end_block()?;
        }
        let is_behind_gap = self.others.are_between(&self.last_key, key);
        let written_bytes = self.open.as_ref().map_or(0, |open| open.written_bytes as usize);
        let open_bytes = written_bytes + self.buffer.len() + self.block.len();
        let is_behind_long_group = self.begins_group(key, open_bytes);
        if is_behind_gap || is_behind_long_group || open_bytes >= self.target_bytes {
            self.end_table()?;
        }
        self.open.get_or_insert_with(|| TableInProgress {
            smallest: key.to_vec(),
            entries: 0,
            deletes: 0,
            superseded: 0,
            seq_min: Seq(0),
            seq_max: Seq(0),
            written_bytes: 0,
            slices: Vec::new(),
        });
        if self.block.is_empty() {
            std::mem::swap(&mut self.block_before, &mut self.last_key);
            self.block_first.clear();
            self.block_first.extend_from_slice(key);
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.partition.add_key(key_hash(key));
        Ok(())
    }

    /// Notes the group of a key. `true`: the group before it was long, over all tables that have a part of
    /// it.
    fn begins_group(&mut self, key: &[u8], open_bytes: usize) -> bool {
        let group = |key: &[u8]| key.len().min(self.group_key_bytes);
        if self.last_key[..group(&self.last_key)] == key[..group(key)] {
            return false;
        }
        let before_key = self.ended_bytes + open_bytes;
        let before_group = std::mem::replace(&mut self.before_group_bytes, before_key);
        // A block may be shorter when it has ended.
        let group_bytes = before_key.saturating_sub(before_group);
        group_bytes >= self.target_bytes / LONG_GROUP_PART
    }

    fn end_block(&mut self) -> Result<(), LogError> {
        if self.block.is_empty() {
            return Ok(());
        }
        let len = self.block.finish(&mut self.buffer);
        self.partition.add_block(&self.block_before, &self.block_first, len);
        if self.partition.blocks() >= PARTITION_BLOCKS {
            self.end_partition();
        }
        while self.buffer.len() >= PIECE_BYTES {
            self.append(PIECE_BYTES)?;
        }
        Ok(())
    }

    fn end_partition(&mut self) {
        if self.partition.blocks() > 0 {
            let written = self.open.as_ref().expect("a partition is in a table").written_bytes;
            self.partition.finish(&mut self.buffer, written, &mut self.top);
        }
    }

    fn append(&mut self, len: usize) -> Result<(), LogError> {
        let open = self.open.as_mut().expect("bytes belong to a table");
        super::append_joined(&mut open.slices, self.log.append(Stream::Table, &self.buffer[..len])?);
        open.written_bytes += u32::try_from(len).expect("a piece is small");
        self.buffer.drain(..len);
        Ok(())
    }

    /// Ends the table that is being written, if one is.
    pub(crate) fn end_table(&mut self) -> Result<(), LogError> {
        if self.open.is_none() {
            return Ok(());
        }
        self.end_block()?;
        self.end_partition();
        let top_len_bytes = self.top.finish(&mut self.buffer);
        while !self.buffer.is_empty() {
            self.append(self.buffer.len().min(PIECE_BYTES))?;
        }
        assert!(
            self.buffer.is_empty() && self.block.is_empty(),
            "an ended table has all its bytes in the log"
        );
        let open = self.open.take().expect("checked above");
        self.ended_bytes += open.written_bytes as usize;
        debug_assert_eq!(
            open.slices.iter().map(|slice| slice.len_bytes).sum::<u32>(),
            open.written_bytes,
            "the slices of a table hold its bytes"
        );
        self.finished.push(TableDescriptor {
            id: 0,
            run: 0,
            entries: open.entries,
            deletes: open.deletes,
            superseded: open.superseded,
            len_bytes: open.written_bytes,
            top_len_bytes,
            seq_min: open.seq_min,
            seq_max: open.seq_max,
            smallest: open.smallest,
            largest: self.last_key.clone(),
            slices: open.slices,
            references: Vec::new(),
        });
        self.last_key.clear();
        Ok(())
    }

    /// Number of finished tables: the index of the open one.
    pub(crate) fn finished(&self) -> usize {
        self.finished.len()
    }

    /// Ends the last table. The caller fills in ids, runs and references.
    pub(crate) fn finish(&mut self) -> Result<Vec<TableDescriptor>, LogError> {
        self.end_table()?;
        Ok(std::mem::take(&mut self.finished))
    }

    /// Releases everything that was appended.
    pub(crate) fn discard(&mut self) {
        let open = self.open.take().map_or_else(Vec::new, |open| open.slices);
        for slice in self.finished.drain(..).flat_map(|t| t.slices).chain(open) {
            self.log.release(slice.segment, u64::from(slice.len_bytes));
        }
    }
}
