//! Room for commits. A shard asks for it in portions, its *credit*, so that most commits ask nobody.
//!
//! While a memtable is written, commits keep its pace (`pace`).
//!
//! A commit that finds no room freezes the memtable and flushes it. Reclaim and compaction are the work of
//! the background threads, for which it waits a moment; without threads it does that work itself.
//!
//! The bytes in memory count as if tables got all of them. Tables get fewer: of each key only the newest
//! version. So in a pool that is nearly full, memory is flushed before a write is refused, and portions are
//! short.
//!
//! # Invariants
//! 1. `active_bytes` and `frozen_bytes` are at least the bytes of the memtables, less one portion for each
//!    shard: a grant counts before its commit, and credit outlives the memtable with which it is counted. In
//!    a pool that is nearly full it does not (`freeze`).
//! 2. A deletion (`Admit::Reserve`) gets room until memory holds `OVERDRAFT` memtables, even if no table can
//!    be written (`tests::full`).

use std::time::Duration;

use warpfire_env::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use warpfire_log::{Admit, LogError, LogStore};

use super::pace::{FlushPace, PARTS};
use crate::engine::{EngineInner, RUNS_MAX};
use crate::memtable::SHARDS;
use crate::schema::Schema;
use crate::store::MetaError;

/// How long one portion waits at most for each run above `RUNS_MAX`, and for how many of these runs. A merge
/// of everything takes minutes, and only its end leaves fewer runs.
const RUN_WAIT: Duration = Duration::from_millis(2);
const WAITED_RUNS_MAX: u32 = 16;

/// Most memtables' worth of bytes in memory, when deletions go on although no table can be written.
const OVERDRAFT: u64 = 4;

/// The shortest portion. Each is as short in a pool that is nearly full: the shards take little room from
/// each other.
const PORTION_BYTES_MIN: u64 = 512;

/// A table of fewer bytes is not written only to find room for a write.
const FLUSH_BYTES_MIN: u64 = 256 << 10;

/// Counts of bytes in memory, and of runs.
#[derive(Debug, Default)]
pub(crate) struct EngineUsage {
    /// Bytes granted to commits since the memtable was last frozen.
    pub(crate) active_bytes: AtomicU64,
    /// Bytes granted to the commits in the frozen memtable.
    pub(crate) frozen_bytes: AtomicU64,
    /// Bytes that callers have written as slices or been granted for commits since the engine was opened.
    written_bytes: AtomicU64,
    /// Runs in the newest table set.
    pub(crate) runs: AtomicUsize,
    /// How far the flush of the frozen memtable is.
    pub(crate) pace: FlushPace,
}

impl EngineUsage {
    /// Bytes granted to commits that are in no table yet.
    pub(crate) fn in_memory_bytes(&self) -> u64 {
        self.active_bytes.load(Ordering::Relaxed) + self.frozen_bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes that a caller has taken from the free ones, after it has taken them.
    pub(crate) fn note_written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that callers have taken from the free ones since the engine was opened.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Bytes of one portion where there is room: all shards' portions together are an eighth of the memtable.
    fn portion(&self) -> u64 {
        (self.options.memtable_bytes / (8 * SHARDS) as u64).clamp(PORTION_BYTES_MIN, 256 << 10)
    }

    /// Whether a commit of `bytes` leaves hardly more room than all shards' portions take.
    pub(super) fn is_nearly_full(&self, bytes: u64) -> bool {
        self.left_bytes(self.usage.in_memory_bytes()) < bytes + 2 * self.portion() * SHARDS as u64
    }

    /// Bytes that the pool has room for beside its reserve, those reserved for writes, and those in memory.
    fn left_bytes(&self, in_memory_bytes: u64) -> u64 {
        let space = self.log.space();
        let taken_bytes = in_memory_bytes.saturating_add(self.reserved.room());
        space.free_bytes.saturating_sub(space.reserve_bytes.saturating_add(taken_bytes))
    }

    /// Flushes memory if it alone takes the room that a user's write of `bytes` needs.
    pub(crate) fn flush_for_room(&self, bytes: u64) -> Result<(), MetaError> {
        let in_memory_bytes = self.usage.in_memory_bytes();
        let left_bytes = self.left_bytes(0);
        if in_memory_bytes < FLUSH_BYTES_MIN || left_bytes < bytes + FLUSH_BYTES_MIN {
            return Ok(());
        }
        tracing::debug!(
            name: "memory_flushed_for_room",
            in_memory_bytes,
            left_bytes,
            "a write needs the room that memory takes"
        );
        let unless_full = |flushed: Result<bool, MetaError>| match flushed {
            Err(e) if e.is_no_space() => Ok(false),
            other => other,
        };
        debug_assert!(left_bytes > 0, "no flush takes the reserve for a write");
        unless_full(self.flush_frozen())?;
        if self.freeze()? {
            unless_full(self.flush_frozen())?;
        }
        Ok(())
    }

    /// Grants at least `bytes` to a commit, once the pool and the memtable have room for them.
    pub(super) fn make_room(&self, bytes: u64, admit: Admit) -> Result<u64, MetaError> {
        self.latch.check()?;
        let grant = bytes + if self.is_nearly_full(bytes) { PORTION_BYTES_MIN } else { self.portion() };
        let in_memory = || self.usage.in_memory_bytes();
        let budget = self.options.memtable_bytes;
        // Deletions go on without room for tables: they are the way to get space back. A write of reserved
        // bytes goes on because it was promised.
        let goes_on = |e: &MetaError| {
            e.is_no_space() && admit != Admit::User && in_memory() + grant <= OVERDRAFT * budget
        };
        match self.admit(grant, admit) {
            Err(e) if !goes_on(&e) => return Err(e),
            _ => {}
        }
        let mut full = self.usage.active_bytes.load(Ordering::Relaxed) + grant > budget;
        while full {
            let freed = match self.freeze() {
                Ok(true) => break,
                // Memory is empty, so the commit alone is larger than a memtable: it is granted all the same.
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
        self.wait_for_fewer_runs()?;
        if self.has_threads() {
            let active_parts = self.usage.active_bytes.load(Ordering::Relaxed) * PARTS as u64 / budget.max(1);
            self.usage.pace.keep(usize::try_from(active_parts).unwrap_or(usize::MAX));
        }
        assert!(grant >= bytes, "a grant covers its commit");
        self.usage.active_bytes.fetch_add(grant, Ordering::Relaxed);
        self.usage.note_written(grant);
        Ok(grant)
    }

    /// Makes room as for a commit, and returns the grant at once.
    pub(crate) fn find_room(&self, bytes: u64, admit: Admit) {
        if let Ok(grant) = self.make_room(bytes, admit) {
            let written_bytes = self.usage.written_bytes.fetch_sub(grant, Ordering::Relaxed);
            debug_assert!(written_bytes >= grant, "a grant is counted until it is returned");
            self.usage.active_bytes.fetch_sub(grant, Ordering::Relaxed);
        }
    }

    /// Slows commits down that outrun compaction: every run costs each read a lookup. With threads the commit
    /// waits a moment for the next table, longer the more runs there are; one portion in that time lets runs
    /// become more only slowly. Without threads it compacts.
    fn wait_for_fewer_runs(&self) -> Result<(), MetaError> {
        let runs = self.usage.runs.load(Ordering::Relaxed);
        if runs <= RUNS_MAX {
            return Ok(());
        }
        tracing::warn!(
            name: "commit_stalled_by_compaction",
            runs,
            runs_max = RUNS_MAX,
            "a commit waits until fewer runs are left"
        );
        if self.has_threads() {
            self.wake_background();
            let over = u32::try_from(runs - RUNS_MAX).unwrap_or(u32::MAX).min(WAITED_RUNS_MAX);
            self.reclaim.wait_for_gain(self.reclaim.gains(), RUN_WAIT * over);
            return Ok(());
        }
        while self.usage.runs.load(Ordering::Relaxed) > RUNS_MAX {
            match self.compact_step() {
                Ok(true) => {}
                Ok(false) | Err(MetaError::Log(LogError::NoSpace)) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Flushes the frozen memtable. If there is no space for it, reclaims some and tries again.
    pub(crate) fn flush_or_reclaim(&self) -> Result<(), MetaError> {
        self.reclaim(self.usage.frozen_bytes.load(Ordering::Relaxed), || self.flush_frozen().map(|_| ()))
    }
}
