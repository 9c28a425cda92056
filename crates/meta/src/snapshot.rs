//! Snapshots: the seqs that live readers hold.
//!
//! # Invariants
//! 1. The registry counts the live snapshots of each seq (assert in `drop`).
//! 2. A version that a snapshot can see is not dropped: each rewrite job lists the seqs with `visible_to`
//!    first.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::sync::Mutex;
use warpfire_units::Seq;

/// A seq that stays readable while the snapshot lives.
pub struct EngineSnapshot {
    seq: Seq,
    registry: Arc<SnapshotRegistry>,
}

impl EngineSnapshot {
    /// The seq that it shows.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }
}

impl Drop for EngineSnapshot {
    fn drop(&mut self) {
        let mut counts = self.registry.counts.lock();
        let count = counts.get_mut(&self.seq).expect("a live snapshot is registered");
        assert!(*count > 0, "a registered seq has a live snapshot");
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.seq);
            self.registry.released.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for EngineSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", self.seq.0)
    }
}

/// Every seq that a live snapshot holds.
#[derive(Default)]
pub(crate) struct SnapshotRegistry {
    counts: Mutex<BTreeMap<Seq, usize>>,
    /// Number of times that the last snapshot of a seq was dropped.
    released: AtomicU64,
}

impl SnapshotRegistry {
    /// Registers a snapshot of the seq that `newest` returns. The call runs under the registry's lock, so a
    /// list of `visible_to` misses no snapshot of an older seq.
    pub(crate) fn acquire(self: &Arc<Self>, newest: impl FnOnce() -> Seq) -> EngineSnapshot {
        let mut counts = self.counts.lock();
        let seq = newest();
        *counts.entry(seq).or_insert(0) += 1;
        drop(counts);
        EngineSnapshot { seq, registry: Arc::clone(self) }
    }

    /// Number of times that the last snapshot of a seq was dropped since the engine was opened.
    pub(crate) fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// The seqs that must stay readable, rising: those of live snapshots, and the newest (which `newest`
    /// returns).
    pub(crate) fn visible_to(&self, newest: impl FnOnce() -> Seq) -> Vec<Seq> {
        let counts = self.counts.lock();
        let newest = newest();
        let mut seqs: Vec<Seq> = counts.keys().copied().collect();
        if seqs.last() != Some(&newest) {
            seqs.push(newest);
        }
        debug_assert!(seqs.is_sorted_by(|a, b| a < b), "no snapshot is newer than the newest commit");
        seqs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seq_is_held_until_its_last_snapshot_is_dropped() {
        let registry = Arc::new(SnapshotRegistry::default());
        let a = registry.acquire(|| Seq(3));
        let b = registry.acquire(|| Seq(3));
        let c = registry.acquire(|| Seq(7));
        assert_eq!(registry.visible_to(|| Seq(9)), [Seq(3), Seq(7), Seq(9)]);
        drop(a);
        assert_eq!(registry.visible_to(|| Seq(7)), [Seq(3), Seq(7)]);
        drop(b);
        assert_eq!(registry.visible_to(|| Seq(9)), [Seq(7), Seq(9)]);
        assert_eq!(c.seq(), Seq(7));
    }
}
