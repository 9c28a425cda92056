//! Counters that say whether records may have changed.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;

const STRIPES: usize = 1024;

/// A counter for each of many groups of keys; it moves on when a record at one of them changes.
pub(crate) struct Stripes(Box<[AtomicU64]>);

/// Where all counters stood.
pub(crate) struct Stood(Box<[u64]>);

impl Stood {
    /// Where the key's counter stood.
    pub(crate) fn at(&self, key: &[u8]) -> u64 {
        *self.0.get(index(key)).expect("the remainder is below the count")
    }
}

/// Which counter is the key's.
fn index(key: &[u8]) -> usize {
    FixedState::default().hash_one(key) as usize % STRIPES
}

impl Default for Stripes {
    fn default() -> Self {
        Stripes((0..STRIPES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Stripes {
    fn of(&self, key: &[u8]) -> &AtomicU64 {
        self.0.get(index(key)).expect("the remainder is below the count")
    }

    /// Where the key's counter stands: read it before the record.
    pub(crate) fn at(&self, key: &[u8]) -> u64 {
        self.of(key).load(Ordering::Acquire)
    }

    /// Where all counters stand: read them before many records.
    pub(crate) fn all(&self) -> Stood {
        Stood(self.0.iter().map(|counter| counter.load(Ordering::Acquire)).collect())
    }

    /// Moves the key's counter on: after the record has changed, before its node is let go.
    pub(crate) fn moved(&self, key: &[u8]) {
        self.of(key).fetch_add(1, Ordering::AcqRel);
    }
}
