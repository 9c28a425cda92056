//! The engine's shards: the lock of one shard yields the memtable, the frozen memtable and the table set of
//! one moment.
//!
//! # Invariants
//! 1. `frozen` and `table_set` are the same in all shards. They change only while all shards are locked for
//!    writing (assert in `write_all`).
//! 2. Several shards are locked in rising order.

use std::collections::BTreeSet;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use warpfire_env::{LockPlace, RankedRawRwLock, RankedReadGuard, RankedRwLock, RankedWriteGuard};
use warpfire_log::LogStore;
use warpfire_units::SegmentId;

use crate::batch::SUMS;
use crate::lock_ranks::MEMTABLE_SHARDS;
use crate::memtable::{FrozenMemtable, MemtableShard, SHARDS};
use crate::table_set::TableSet;

/// The sources of one shard's keys, from the newest to the oldest, and its credit.
pub(crate) struct EngineShard<L: LogStore> {
    pub(crate) active: MemtableShard,
    pub(crate) frozen: Option<Arc<FrozenMemtable>>,
    pub(crate) table_set: Arc<TableSet<L>>,
    /// Bytes that may be committed here before room must be asked for again.
    pub(crate) credit: u64,
    /// Commits that may have freed space: those that were admitted to the reserve.
    pub(crate) deletions: u64,
    /// Additions to the running sums by the commits that were applied here since the last sync point.
    pub(crate) sums: [i64; SUMS],
}

/// A shard that is held for reading, and one that is held for writing.
pub(crate) type ShardReadGuard<'a, L> = RankedReadGuard<'a, MEMTABLE_SHARDS, EngineShard<L>>;
pub(crate) type ShardWriteGuard<'a, L> = RankedWriteGuard<'a, MEMTABLE_SHARDS, EngineShard<L>>;

/// All shards.
pub(crate) struct EngineShards<L: LogStore> {
    shards: Box<[CachePadded<RankedRwLock<MEMTABLE_SHARDS, EngineShard<L>>>]>,
}

impl<L: LogStore> EngineShards<L> {
    pub(crate) fn new(memtable: Vec<MemtableShard>, table_set: &Arc<TableSet<L>>) -> Self {
        assert_eq!(memtable.len(), SHARDS, "a memtable has all shards");
        let shard = |active| EngineShard {
            active,
            frozen: None,
            table_set: Arc::clone(table_set),
            credit: 0,
            deletions: 0,
            sums: [0; SUMS],
        };
        let lock = |place, shard| RankedRwLock::from_raw(RankedRawRwLock::of(LockPlace::at(place)), shard);
        EngineShards {
            shards: (0..).zip(memtable).map(|(place, m)| CachePadded::new(lock(place, shard(m)))).collect(),
        }
    }

    pub(crate) fn read(&self, shard: usize) -> ShardReadGuard<'_, L> {
        self.shards[shard].read()
    }

    pub(crate) fn write(&self, shard: usize) -> ShardWriteGuard<'_, L> {
        self.shards[shard].write()
    }

    /// Locks all shards for writing: then no commit is in progress.
    pub(crate) fn write_all(&self) -> Vec<ShardWriteGuard<'_, L>> {
        let guards: Vec<_> = self.shards.iter().map(|s| s.write()).collect();
        debug_assert!(
            guards.iter().all(|shard| Arc::ptr_eq(&shard.table_set, &guards[0].table_set)),
            "all shards have the same tables"
        );
        guards
    }

    pub(crate) fn read_all(&self) -> Vec<ShardReadGuard<'_, L>> {
        self.shards.iter().map(|s| s.read()).collect()
    }

    pub(crate) fn frozen(&self) -> Option<Arc<FrozenMemtable>> {
        self.read(0).frozen.clone()
    }

    pub(crate) fn table_set(&self) -> Arc<TableSet<L>> {
        Arc::clone(&self.read(0).table_set)
    }

    /// Whether values in a memtable name any of these segments.
    pub(crate) fn memory_names(&self, segments: &BTreeSet<SegmentId>) -> bool {
        let names = |m: &MemtableShard| m.references.keys().any(|s| segments.contains(s));
        self.shards.iter().any(|s| names(&s.read().active))
            || self.frozen().is_some_and(|f| f.shards.iter().any(names))
    }
}
