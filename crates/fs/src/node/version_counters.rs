//! Version counters: a reader of a record learns from them whether the record has changed since.
//!
//! A record's key selects one counter of many by its hash. Keys that share a counter cost a needless second
//! read at most.
//!
//! # Invariants
//! 1. A counter moves after each change of a record at one of its keys, and before the lock of the record's
//!    node is released (the callers of `bump`; the tests `threads`).
//! 2. A reader reads the counter before the record. If the counter is unmoved afterwards, the record is
//!    current.

use std::hash::BuildHasher;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;

/// Counters of a base: 8 KiB, few enough to copy for a listing.
const COUNTERS: usize = 1024;

/// Counters of a transaction. Its calls run one by one, so one counter is enough.
const COUNTERS_IN_TRANSACTION: usize = 1;

/// The version counters of one filesystem. Their number is a power of two.
pub(crate) struct VersionCounters(Box<[AtomicU64]>);

/// A look at the counter of a record's key, taken before the record is read.
#[derive(Clone, Copy)]
pub(crate) struct RecordWatch<'a> {
    counter: &'a AtomicU64,
    before: u64,
}

impl RecordWatch<'_> {
    /// Whether the counter is unmoved since the watch began: the record that was read since is current.
    pub(crate) fn is_unmoved(&self) -> bool {
        self.counter.load(Ordering::Acquire) == self.before
    }
}

/// The values of all counters at one time.
pub(crate) struct CounterSnapshot(Box<[u64]>);

impl CounterSnapshot {
    /// The value of the key's counter.
    pub(crate) fn at(&self, key: &[u8]) -> u64 {
        *self.0.get(index(key, self.0.len())).expect("the remainder is below the count")
    }
}

/// The index of the key's counter among `counters`, a power of two.
fn index(key: &[u8], counters: usize) -> usize {
    debug_assert!(counters.is_power_of_two(), "the mask below selects a counter");
    // A transaction saves the hash.
    if counters == 1 { 0 } else { FixedState::default().hash_one(key) as usize & (counters - 1) }
}

impl Default for VersionCounters {
    fn default() -> Self {
        VersionCounters::of_count(COUNTERS)
    }
}

impl VersionCounters {
    fn of_count(counters: usize) -> VersionCounters {
        assert!(counters.is_power_of_two(), "a mask of the hash selects a counter");
        VersionCounters((0..counters).map(|_| AtomicU64::new(0)).collect())
    }

    /// The counters of a transaction.
    pub(crate) fn for_transaction() -> VersionCounters {
        VersionCounters::of_count(COUNTERS_IN_TRANSACTION)
    }

    fn of(&self, key: &[u8]) -> &AtomicU64 {
        self.0.get(index(key, self.0.len())).expect("the remainder is below the count")
    }

    /// The value of the key's counter. Read it before the record.
    pub(crate) fn at(&self, key: &[u8]) -> u64 {
        self.of(key).load(Ordering::Acquire)
    }

    /// Watches the key's counter. Begin it before the record is read. The key is hashed once.
    pub(crate) fn watch(&self, key: &[u8]) -> RecordWatch<'_> {
        let counter = self.of(key);
        RecordWatch { counter, before: counter.load(Ordering::Acquire) }
    }

    /// The values of all counters. Read them before many records.
    pub(crate) fn snapshot(&self) -> CounterSnapshot {
        CounterSnapshot(self.0.iter().map(|counter| counter.load(Ordering::Acquire)).collect())
    }

    /// Moves all counters: any record may have changed.
    pub(crate) fn bump_all(&self) {
        self.0.iter().for_each(|counter| _ = counter.fetch_add(1, Ordering::AcqRel));
    }

    /// Moves the key's counter: after the change of the record, before the release of its node's state.
    pub(crate) fn bump(&self, key: &[u8]) {
        self.of(key).fetch_add(1, Ordering::AcqRel);
    }
}
