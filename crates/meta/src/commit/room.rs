//! Room for commits, asked for in portions, and what happens when there is none: work is done, or waited for.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use warpfire_log::{Admit, LogError, LogStore};

use crate::engine::{EngineInner, RUNS_MAX};
use crate::memtable::SHARDS;
use crate::schema::Schema;
use crate::store::MetaError;

/// Memtables' worth of deletions that memory takes when tables can not be written.
const OVERDRAFT: u64 = 4;

/// How much is where.
#[derive(Debug, Default)]
pub(crate) struct EngineUsage {
    /// Bytes granted to commits since the memtable was last frozen.
    pub(crate) active_bytes: AtomicU64,
    /// The same of the frozen memtable.
    pub(crate) frozen_bytes: AtomicU64,
    /// Runs in the newest version.
    pub(crate) runs: AtomicUsize,
}

impl EngineUsage {
    /// Bytes granted to commits that are in no table yet.
    pub(crate) fn in_memory_bytes(&self) -> u64 {
        self.active_bytes.load(Ordering::Relaxed) + self.frozen_bytes.load(Ordering::Relaxed)
    }
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// A shard's portion: all shards' together are an eighth of the memtable.
    fn portion(&self) -> u64 {
        (self.options.memtable_bytes / (8 * SHARDS) as u64).clamp(512, 256 * 1024)
    }

    /// Grants at least `bytes` to a commit, when the pool and the memtable have room for them.
    pub(super) fn make_room(&self, bytes: u64, admit: Admit) -> Result<u64, MetaError> {
        self.latch.check()?;
        let grant = bytes + self.portion();
        let in_memory = || self.usage.in_memory_bytes();
        let budget = self.options.memtable_bytes;
        // Deletion must go on when there is no room for tables: that is how space comes back.
        let goes_on = |e: &MetaError| {
            e.is_no_space() && admit == Admit::Reserve && in_memory() + grant <= OVERDRAFT * budget
        };
        match self.admit(in_memory() + grant, admit) {
            Err(e) if !goes_on(&e) => return Err(e),
            _ => {}
        }
        let mut full = self.usage.active_bytes.load(Ordering::Relaxed) + grant > budget;
        while full {
            let freed = match self.freeze() {
                Ok(true) => break,
                // Nothing is in memory: a commit may be larger than a memtable is meant to be.
                Ok(false) if self.shards.frozen().is_none() => break,
                Ok(false) => self.flush_or_reclaim(),
                Err(e) => Err(e),
            };
            match freed {
                Ok(()) => full = self.usage.active_bytes.load(Ordering::Relaxed) + grant > budget,
                Err(e) if goes_on(&e) => break,
                Err(e) => return Err(e),
            }
        }
        while self.usage.runs.load(Ordering::Relaxed) > RUNS_MAX {
            match self.compact_step() {
                Ok(true) => {}
                Ok(false) | Err(MetaError::Log(LogError::NoSpace)) => break,
                Err(e) => return Err(e),
            }
        }
        self.usage.active_bytes.fetch_add(grant, Ordering::Relaxed);
        Ok(grant)
    }

    /// Writes the frozen memtable; if there is no space for it, makes some and tries again.
    pub(crate) fn flush_or_reclaim(&self) -> Result<(), MetaError> {
        self.reclaim(|| self.flush_frozen().map(|_| ()))
    }
}
