//! Conflict detection: the keys of a read set with a newer version.
//!
//! A memtable can be asked from either side. The versions that are newer than a read set are the last slots
//! of its shards, and usually few, while a transaction may have read millions of keys. So the shorter side is
//! walked: the new slots, each looked up in the read set; or the keys of the read set, each looked up in the
//! memtable.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use warpfire_format::key_hash;
use warpfire_log::LogStore;
use warpfire_units::Seq;

use crate::engine::{EngineInner, EngineShard, ShardWriteGuard};
use crate::memtable::{MemtableShard, SHARDS, shard_of};
use crate::read_set::ReadSet;
use crate::schema::Schema;
use crate::store::{KeyRange, MetaError};
use crate::table::{RunCursor, Table};
use crate::table_set::{Run, TableSet};

/// Keys of a read set beyond which all shards are locked: to find the shards of the keys takes longer.
const KEYS_BY_SHARD_MAX: usize = 1024;

/// The visitor of changed keys: it breaks once it has seen enough.
type Visit<'v> = &'v mut dyn FnMut(&[u8]) -> ControlFlow<()>;

/// The shards to lock for `memory_changed`: those of the keys, or all of them if a range or very many keys
/// were read.
pub(super) fn shards_of(reads: &ReadSet) -> u32 {
    if !reads.ranges().is_empty() || reads.key_count() > KEYS_BY_SHARD_MAX {
        return u32::MAX;
    }
    reads.keys().fold(0, |shards, key| shards | 1 << shard_of(key_hash(key)))
}

/// The memtables of one shard: the active one, and the frozen one if there is one.
fn memtables<L: LogStore>(shard: &EngineShard<L>, number: usize) -> impl Iterator<Item = &MemtableShard> {
    [Some(&shard.active), shard.frozen.as_ref().map(|frozen| &frozen.shards[number])].into_iter().flatten()
}

/// The number of versions in these memtables that are newer than `at`.
fn newer_slots<'m>(memtables: impl Iterator<Item = &'m MemtableShard>, at: Seq) -> usize {
    memtables.map(|m| m.len() - m.first_after(at)).sum()
}

/// Visits the keys of the read set that have a new version in the shard, version by version.
fn visit_new_slots<L: LogStore>(
    shard: &EngineShard<L>,
    number: usize,
    reads: &ReadSet,
    visit: Visit<'_>,
) -> ControlFlow<()> {
    memtables(shard, number).try_for_each(|m| {
        (m.first_after(reads.at)..m.len()).try_for_each(|slot| {
            let key = m.entry(slot).key;
            if reads.covers(key_hash(key), key) { visit(key) } else { ControlFlow::Continue(()) }
        })
    })
}

/// Whether the key has a version newer than `at` in the shard.
fn is_newer<L: LogStore>(shard: &EngineShard<L>, number: usize, at: Seq, hash: u64, key: &[u8]) -> bool {
    memtables(shard, number).any(|m| m.newest(hash, key).is_some_and(|slot| m.entry(slot).seq > at))
}

/// Whether a memtable has a newer version of a key in the read set. The guards are those of `shards`.
pub(super) fn memory_changed<L: LogStore>(
    guards: &[ShardWriteGuard<'_, L>],
    shards: u32,
    reads: &ReadSet,
) -> bool {
    debug_assert_eq!(guards.len(), shards.count_ones() as usize, "the guards are those of `shards`");
    debug_assert_eq!(shards_of(reads) & !shards, 0, "the shards of every key read are locked");
    let numbers = || (0..SHARDS).filter(|number| shards & (1 << number) != 0);
    let newer: usize =
        guards.iter().zip(numbers()).map(|(s, number)| newer_slots(memtables(s, number), reads.at)).sum();
    if reads.ranges().is_empty() && reads.key_count() < newer {
        return reads.keys().any(|key| {
            let hash = key_hash(key);
            let number = shard_of(hash);
            is_newer(
                &guards[(shards & ((1 << number) - 1)).count_ones() as usize],
                number,
                reads.at,
                hash,
                key,
            )
        });
    }
    let mut stop = |_: &[u8]| ControlFlow::Break(());
    guards
        .iter()
        .zip(numbers())
        .any(|(shard, number)| visit_new_slots(shard, number, reads, &mut stop).is_break())
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// The keys of the read set with a version newer than its seq; `None` if there are more than `max`. It
    /// holds one shard at a time, so commits go on. Those that end during the call may be in the answer
    /// or not.
    pub(crate) fn changed_keys(
        &self,
        reads: &ReadSet,
        max: usize,
    ) -> Result<Option<Vec<Box<[u8]>>>, MetaError> {
        // A rollback changes keys without a new version of them: those with a version that it hides.
        if self.domains.is_rolled_back_since(reads.at)
            && let Some(table) = self.domains.get()
        {
            let since = table.any_changed_after(reads.at, Seq::MAX);
            if since < reads.at {
                return self.changed_keys_since(&reads.as_of(since), max, true);
            }
        }
        self.changed_keys_since(reads, max, false)
    }

    /// `with_past`: nobody may hold the seq of the read set, so versions after it may be in the past.
    fn changed_keys_since(
        &self,
        reads: &ReadSet,
        max: usize,
        with_past: bool,
    ) -> Result<Option<Vec<Box<[u8]>>>, MetaError> {
        let mut changed = BTreeSet::<Box<[u8]>>::new();
        let mut add = |key: &[u8]| {
            if !changed.contains(key) {
                changed.insert(key.into());
            }
            if changed.len() > max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        // Memory before tables: a version that a flush moves in between is found in the tables.
        let newer: usize = (0..SHARDS)
            .map(|number| newer_slots(memtables(&*self.shards.read(number), number), reads.at))
            .sum();
        let memory = if reads.ranges().is_empty() && reads.key_count() < newer {
            reads.keys().try_for_each(|key| {
                let hash = key_hash(key);
                let number = shard_of(hash);
                let newer = is_newer(&self.shards.read(number), number, reads.at, hash, key);
                if newer { add(key) } else { ControlFlow::Continue(()) }
            })
        } else {
            (0..SHARDS)
                .try_for_each(|number| visit_new_slots(&self.shards.read(number), number, reads, &mut add))
        };
        if memory.is_break() {
            return Ok(None);
        }
        let table_set = self.table_set();
        let past = if with_past { &table_set.past[..] } else { &[] };
        if self.visit_tables(table_set.runs.iter().chain(past), reads, reads.at, &mut add)?.is_break() {
            return Ok(None);
        }
        Ok(Some(changed.into_iter().collect()))
    }

    /// Whether a table has a newer version of a key in the read set. Tables without versions after `checked`
    /// have been compared before.
    pub(super) fn tables_changed(
        &self,
        table_set: &TableSet<L>,
        reads: &ReadSet,
        checked: Seq,
    ) -> Result<bool, MetaError> {
        debug_assert!(reads.at <= checked, "tables without newer versions are not compared");
        let mut stop = |_: &[u8]| ControlFlow::Break(());
        Ok(self.visit_tables(table_set.runs.iter(), reads, checked, &mut stop)?.is_break())
    }

    /// Visits the keys of the read set that have a newer version in a table of these runs. Tables without
    /// versions after `checked` are not read: most transactions are younger than every table and read none.
    fn visit_tables<'r>(
        &self,
        runs: impl Iterator<Item = &'r Run<L>>,
        reads: &ReadSet,
        checked: Seq,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<()>, MetaError> {
        for run in runs {
            let newer = |t: &Table<L>| t.entry().seq_max > checked;
            let tables: Vec<_> = run.tables.iter().filter(|t| newer(t)).map(Arc::clone).collect();
            if tables.is_empty() {
                continue;
            }
            for key in reads.keys() {
                let Some(table) = run.table_of(key).filter(|t| newer(t)) else {
                    continue;
                };
                if let Some(found) = table.find(key, key_hash(key), &self.cache)?
                    && found.block.entry(found.start).seq > reads.at
                    && visit(key).is_break()
                {
                    return Ok(ControlFlow::Break(()));
                }
            }
            // A delete counts as a change too, so ranges are compared version by version and not by a scan.
            for (start, end) in reads.ranges() {
                let range = KeyRange { start, end: end.as_deref() };
                let mut cursor = RunCursor::first_in(&tables, &self.cache, range, None)?;
                while let Some(key) = cursor.key()
                    && end.as_ref().is_none_or(|end| key < end.as_slice())
                {
                    if cursor.versions().any(|e| e.seq > reads.at) && visit(key).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    cursor.next()?;
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
