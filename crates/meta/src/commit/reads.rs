//! Conflict detection: whether a newer version of any key in a read set exists.

use std::sync::Arc;

use warpfire_format::key_hash;
use warpfire_log::LogStore;

use crate::engine::{EngineInner, ShardWriteGuard};
use crate::memtable::{MemtableShard, shard_of};
use crate::schema::Schema;
use crate::store::{MetaError, ReadSet};
use crate::table::RunCursor;
use crate::table_set::TableSet;

/// The shards to lock for `memory_changed`: those of the keys, or all of them if a range was read.
pub(super) fn shards_of(reads: &ReadSet) -> u32 {
    if !reads.ranges.is_empty() {
        return u32::MAX;
    }
    reads.keys.iter().fold(0, |shards, key| shards | 1 << shard_of(key_hash(key)))
}

/// Whether a memtable has a newer version of a key in the read set. The guards are those of `shards`.
pub(super) fn memory_changed<L: LogStore>(
    guards: &[ShardWriteGuard<'_, L>],
    shards: u32,
    reads: &ReadSet,
) -> bool {
    debug_assert_eq!(guards.len(), shards.count_ones() as usize, "the guards are those of `shards`");
    debug_assert_eq!(shards_of(reads) & !shards, 0, "the shards of every key read are locked");
    let newer = |m: &MemtableShard, hash, key: &[u8]| {
        m.newest(hash, key).is_some_and(|slot| m.entry(slot).seq > reads.at)
    };
    let key_changed = reads.keys.iter().any(|key| {
        let hash = key_hash(key);
        let number = shard_of(hash);
        let shard = &guards[(shards & ((1 << number) - 1)).count_ones() as usize];
        newer(&shard.active, hash, key)
            || shard.frozen.as_ref().is_some_and(|f| newer(&f.shards[number], hash, key))
    });
    // Newer versions are the last slots of their shards and usually few, so they are compared without
    // sorting.
    let in_a_range = |m: &MemtableShard| {
        (m.first_after(reads.at)..m.len()).any(|slot| {
            let key = m.entry(slot).key;
            reads.ranges.iter().any(|(start, end)| {
                start.as_slice() <= key && end.as_ref().is_none_or(|end| key < end.as_slice())
            })
        })
    };
    key_changed
        || (!reads.ranges.is_empty()
            && (guards.iter().any(|s| in_a_range(&s.active))
                || guards[0].frozen.as_ref().is_some_and(|f| f.shards.iter().any(in_a_range))))
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Whether a table has a newer version of a key in the read set. Most transactions are younger than every
    /// table and read none.
    pub(super) fn tables_changed(
        &self,
        table_set: &Arc<TableSet<L>>,
        reads: &ReadSet,
    ) -> Result<bool, MetaError> {
        for run in &table_set.runs {
            if run.tables.iter().all(|t| t.entry().seq_max <= reads.at) {
                continue;
            }
            for key in reads.keys.iter() {
                let Some(table) = run.table_of(key).filter(|t| t.entry().seq_max > reads.at) else {
                    continue;
                };
                if let Some(found) = table.find(key, key_hash(key), &self.cache)?
                    && found.block.entry(found.start).seq > reads.at
                {
                    return Ok(true);
                }
            }
            // A delete counts as a change too, so ranges are compared version by version and not by a scan.
            for (start, end) in &reads.ranges {
                let mut cursor = RunCursor::first_from(&run.tables, &self.cache, start)?;
                while let Some(key) = cursor.key()
                    && end.as_ref().is_none_or(|end| key < end.as_slice())
                {
                    if cursor.versions().any(|e| e.seq > reads.at) {
                        return Ok(true);
                    }
                    cursor.next()?;
                }
            }
        }
        Ok(false)
    }
}
