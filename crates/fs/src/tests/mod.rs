//! Shared parts of this crate's tests: a filesystem over the naive engine, and a clock that only tests move.

mod bad_days;
mod bookmarks;
mod check;
mod conflicts;
mod defragment;
mod detach;
mod diff;
mod engine;
mod file_model;
mod full;
mod histories;
mod holds;
mod listed;
mod memory;
mod moved_slices;
mod names;
mod orphans;
mod recorded;
mod refused_syncs;
mod remove_files;
mod reserved;
mod rollback;
mod serial;
mod settling;
mod slice_model;
mod slices;
mod slow_reads;
mod snapshot_holds;
mod snapshots;
mod threads;
mod times;
mod transaction_model;
mod transactions;
mod transfer;
mod tree_model;
mod volume_limits;
mod volumes;

use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicI64, Ordering};

use warpfire_env::{Clock, Timestamp};
use warpfire_meta::MapStore;

use crate::{Fs, FsOptions, FsSchema};

pub(crate) type Engine = MapStore<FsSchema>;
pub(crate) type TestFs = Fs<Engine>;

/// A clock that moves on by a microsecond at each call.
#[derive(Default)]
pub(crate) struct Ticking(AtomicI64);

impl Ticking {
    pub(crate) const START_SECONDS: i64 = 1_000_000;

    pub(crate) fn skip_seconds(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1_000_000, Ordering::Relaxed);
    }
}

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        let micros = self.0.fetch_add(1, Ordering::Relaxed);
        let nanos = u32::try_from(micros % 1_000_000).unwrap() * 1000;
        Timestamp { seconds: Self::START_SECONDS + micros / 1_000_000, nanos }
    }

    fn monotonic_nanos(&self) -> u64 {
        u64::try_from(self.0.fetch_add(1, Ordering::Relaxed)).unwrap() * 1000
    }
}

/// An engine with an empty filesystem, and its clock.
pub(crate) fn world_with() -> (Arc<Engine>, Arc<Ticking>) {
    let clock = Arc::new(Ticking::default());
    let engine = Arc::new(MapStore::new(FsSchema));
    Fs::format(&*engine, &*clock, 0, 0).unwrap();
    (engine, clock)
}

/// An empty filesystem.
pub(crate) fn world() -> TestFs {
    let (engine, clock) = world_with();
    Fs::open(engine, clock, FsOptions::default()).unwrap()
}

/// Random numbers from a seed: the same seed, the same numbers.
pub(crate) struct TestRandom(pub(crate) u64);

impl TestRandom {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
