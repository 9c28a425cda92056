//! Versions that are being read.
//!
//! # Invariants
//! 1. A version is in the registry as often as live snapshots hold it.
//! 2. What a snapshot can see is not dropped: whoever drops versions asks `visible_to` first.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use warpfire_units::Seq;

/// A version that stays readable while this lives.
pub struct EngineSnapshot {
    seq: Seq,
    registry: Arc<SnapshotRegistry>,
}

impl EngineSnapshot {
    /// The version that it shows.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }
}

impl Drop for EngineSnapshot {
    fn drop(&mut self) {
        let mut counts = self.registry.counts.lock();
        let count = counts.get_mut(&self.seq).expect("a live snapshot is registered");
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

/// Every version that a live snapshot holds.
#[derive(Default)]
pub(crate) struct SnapshotRegistry {
    counts: Mutex<BTreeMap<Seq, usize>>,
    /// Versions that ceased to be held.
    released: AtomicU64,
}

impl SnapshotRegistry {
    /// Registers the version that `newest` tells. It is asked under the registry's lock, so a list taken by
    /// `visible_to` misses no snapshot of an older version.
    pub(crate) fn acquire(self: &Arc<Self>, newest: impl FnOnce() -> Seq) -> EngineSnapshot {
        let mut counts = self.counts.lock();
        let seq = newest();
        *counts.entry(seq).or_insert(0) += 1;
        drop(counts);
        EngineSnapshot { seq, registry: Arc::clone(self) }
    }

    /// Versions that ceased to be held since the engine was opened.
    pub(crate) fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// The versions that must stay readable, oldest first: those held, and the newest (which `newest` tells).
    pub(crate) fn visible_to(&self, newest: impl FnOnce() -> Seq) -> Vec<Seq> {
        let counts = self.counts.lock();
        let newest = newest();
        let mut seqs: Vec<Seq> = counts.keys().copied().collect();
        if seqs.last() != Some(&newest) {
            seqs.push(newest);
        }
        seqs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_held_until_its_last_snapshot_goes() {
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
