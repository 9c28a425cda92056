//! Counters that say whether records may have changed.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;

const COUNTERS: usize = 1024;

/// Inside a transaction calls follow each other: any change can count as a change of all.
const COUNTERS_IN_TRANSACTION: usize = 1;

/// A counter for each of many groups of keys; it moves on when a record at one of them changes.
pub(crate) struct VersionCounters(Box<[AtomicU64]>);

/// Where all counters stood.
pub(crate) struct CounterSnapshot(Box<[u64]>);

impl CounterSnapshot {
    /// Where the key's counter stood.
    pub(crate) fn at(&self, key: &[u8]) -> u64 {
        *self.0.get(index(key, self.0.len())).expect("the remainder is below the count")
    }
}

/// Which of so many counters is the key's; a power of two.
fn index(key: &[u8], counters: usize) -> usize {
    if counters == 1 { 0 } else { FixedState::default().hash_one(key) as usize & (counters - 1) }
}

impl Default for VersionCounters {
    fn default() -> Self {
        VersionCounters::of_count(COUNTERS)
    }
}

impl VersionCounters {
    fn of_count(counters: usize) -> VersionCounters {
        VersionCounters((0..counters).map(|_| AtomicU64::new(0)).collect())
    }

    /// Those of a transaction's inside.
    pub(crate) fn for_transaction() -> VersionCounters {
        VersionCounters::of_count(COUNTERS_IN_TRANSACTION)
    }

    fn of(&self, key: &[u8]) -> &AtomicU64 {
        self.0.get(index(key, self.0.len())).expect("the remainder is below the count")
    }

    /// Where the key's counter stands: read it before the record.
    pub(crate) fn at(&self, key: &[u8]) -> u64 {
        self.of(key).load(Ordering::Acquire)
    }

    /// Where all counters stand: read them before many records.
    pub(crate) fn snapshot(&self) -> CounterSnapshot {
        CounterSnapshot(self.0.iter().map(|counter| counter.load(Ordering::Acquire)).collect())
    }

    /// Moves the key's counter on: after the record has changed, before its node is let go.
    pub(crate) fn bump(&self, key: &[u8]) {
        self.of(key).fetch_add(1, Ordering::AcqRel);
    }
}
