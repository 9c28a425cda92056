//! Cuts: the moments at which no commit is in progress. What came before a cut goes to the commit log or into
//! a frozen memtable.
//!
//! # Invariants
//! 1. `sync_point` is locked from the moment of a cut until what it gathered is logged, so records are in the order of
//!    their seqs and a memtable that is being gathered is not frozen.
//! 2. Versions below the marks are in the commit log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;
use warpfire_format::commit::CommitRecordBuilder;
use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::PreparedCommit;
use crate::batch::{Batch, SUMS};
use crate::engine::{EngineInner, EngineShard};
use crate::memtable::{FrozenMemtable, MemtableShard, SHARDS};
use crate::schema::Schema;
use crate::store::MetaError;

/// What sync gathers for the commit log at most; more than this is written as a table instead.
const COLLECT_BYTES_MAX: usize = 4 << 20;

/// How far each shard has been gathered.
#[derive(Debug, Default)]
pub(crate) struct SyncPoint {
    active: [usize; SHARDS],
    frozen: [usize; SHARDS],
}

impl SyncPoint {
    /// As after a recovery: all of the memtable came from the commit log.
    pub(crate) fn all_of(memtable: &[MemtableShard]) -> Self {
        let mut sync_point = SyncPoint::default();
        sync_point.active.iter_mut().zip(memtable).for_each(|(mark, shard)| *mark = shard.len());
        sync_point
    }
}

/// What a sync found to do.
pub(super) enum CollectOutcome {
    /// Everything up to the seq is in the commit log.
    Logged(Seq),
    /// There is too much of it; it has to become a table.
    TooMuch(Seq),
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Lets the hook add what it kept back. All shards are locked.
    fn run_hook(&self, shards: &mut [RwLockWriteGuard<'_, EngineShard<L>>]) -> Result<(), MetaError> {
        let hook = self.hook.lock();
        let Some(hook) = &*hook else { return Ok(()) };
        let mut sums = [0; SUMS];
        for shard in shards.iter_mut() {
            for (sum, added) in sums.iter_mut().zip(std::mem::take(&mut shard.sums)) {
                *sum = added.wrapping_add(*sum);
            }
        }
        let mut batch = Batch::new();
        hook(&sums, &mut batch);
        if !batch.is_empty() {
            let prepared = PreparedCommit::new(&batch, &self.schema)?;
            self.usage.active_bytes.fetch_add(prepared.bytes, Ordering::Relaxed);
            self.apply(&prepared, u32::MAX, shards);
        }
        Ok(())
    }

    /// Makes the memtable a frozen one and starts another. `false` if it is empty, or if one is frozen already.
    pub(crate) fn freeze(&self) -> Result<bool, MetaError> {
        let mut sync_point = self.sync_point.lock();
        let mut shards = self.shards.write_all();
        if shards[0].frozen.is_some() {
            return Ok(false);
        }
        self.run_hook(&mut shards)?;
        if shards.iter().all(|s| s.active.len() == 0) {
            return Ok(false);
        }
        let fresh = self.spare.lock().take();
        let fresh = fresh.unwrap_or_else(|| {
            let bytes = self.options.memtable_bytes as usize / SHARDS;
            (0..SHARDS).map(|_| MemtableShard::with_capacity(bytes)).collect()
        });
        let full = shards.iter_mut().zip(fresh).map(|(s, f)| std::mem::replace(&mut s.active, f)).collect();
        let frozen = Arc::new(FrozenMemtable::new(full, self.newest()));
        for shard in &mut shards {
            shard.frozen = Some(Arc::clone(&frozen));
        }
        sync_point.frozen = std::mem::take(&mut sync_point.active);
        self.order.lock().clear();
        let bytes = self.usage.active_bytes.swap(0, Ordering::Relaxed);
        self.usage.frozen_bytes.store(bytes, Ordering::Relaxed);
        drop(shards);
        self.wake_background();
        Ok(true)
    }

    /// Appends what no record holds yet to the commit log, as one record.
    pub(super) fn collect_commits(&self) -> Result<CollectOutcome, MetaError> {
        let mut sync_point = self.sync_point.lock();
        let mut shards = self.shards.write_all();
        self.run_hook(&mut shards)?;
        let newest = self.newest();
        let frozen = shards[0].frozen.clone().filter(|_| !cfg!(feature = "planted-bug-sync-skips-frozen"));
        let frozen_bytes = frozen.iter().flat_map(|f| f.shards.iter().zip(sync_point.frozen));
        let active_bytes = shards.iter().map(|s| &s.active).zip(sync_point.active);
        let bytes: usize = frozen_bytes.chain(active_bytes).map(|(m, from)| m.bytes_since(from)).sum();
        if bytes > COLLECT_BYTES_MAX {
            return Ok(CollectOutcome::TooMuch(newest));
        }
        let to: Vec<usize> = shards.iter().map(|s| s.active.len()).collect();
        drop(shards);
        // Commits go on while the record is written: they come after `to`.
        let mut first = None;
        if let Some(frozen) = &frozen {
            first =
                first_seq(frozen.shards.iter().zip(sync_point.frozen).map(|(m, from)| (m, from, m.len())));
        }
        let first = first.or_else(|| {
            let seq = |n: usize| {
                let shard = self.shards.read(n);
                (sync_point.active[n] < to[n]).then(|| shard.active.entry(sync_point.active[n]).seq)
            };
            (0..SHARDS).filter_map(seq).min()
        });
        let Some(first) = first else { return Ok(CollectOutcome::Logged(newest)) };
        let mut record = CommitRecordBuilder::new(first, newest);
        if let Some(frozen) = &frozen {
            for (shard, from) in frozen.shards.iter().zip(sync_point.frozen) {
                (from..shard.len()).for_each(|slot| record.push(shard.entry(slot)));
            }
        }
        for (n, end) in to.iter().enumerate() {
            let shard = self.shards.read(n);
            (sync_point.active[n]..*end).for_each(|slot| record.push(shard.active.entry(slot)));
        }
        self.log_commits(&record.finish(), newest)?;
        sync_point.active.copy_from_slice(&to);
        if let Some(frozen) = &frozen {
            sync_point.frozen.iter_mut().zip(&frozen.shards).for_each(|(from, shard)| *from = shard.len());
        }
        Ok(CollectOutcome::Logged(newest))
    }
}

fn first_seq<'m>(ranges: impl Iterator<Item = (&'m MemtableShard, usize, usize)>) -> Option<Seq> {
    ranges.filter(|(_, from, to)| from < to).map(|(m, from, _)| m.entry(from).seq).min()
}
