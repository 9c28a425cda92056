//! The pace of commits while a memtable is written.
//!
//! Commits that fill the active memtable faster than the frozen one is written would run into its end, and
//! one of them would wait for the rest of the flush. Instead each portion waits a little, so that the active
//! memtable fills as the frozen one is written.
//!
//! # Invariants
//! 1. A portion waits for `WAIT` at most, and only while a flush makes tables. So a flush that stands still
//!    for want of space slows nobody down here.
//! 2. A commit that waits holds no lock of the engine: `make_room` calls this, and it holds none.

use std::time::Duration;

use warpfire_env::sync::atomic::{AtomicUsize, Ordering};
use warpfire_env::sync::{Condvar, Mutex};

/// Parts of a flush, and of the active memtable.
pub(crate) const PARTS: usize = 256;

/// Parts of the active memtable that commits may fill before the flush has written anything.
const AHEAD_PARTS: usize = 8;

/// Parts that are left when all keys are written: the tables have still to be made durable then.
const SPARE_PARTS: usize = 16;

/// The longest wait of one portion.
const WAIT: Duration = Duration::from_millis(10);

/// Part of a flush that stands for "no flush runs".
const IDLE: usize = usize::MAX;

/// How far the flush of the frozen memtable is.
#[derive(Debug)]
pub(crate) struct FlushPace {
    /// The parts that are written; `IDLE` if no flush runs. It changes under `lock`.
    written_parts: AtomicUsize,
    lock: Mutex<()>,
    moved: Condvar,
}

impl Default for FlushPace {
    fn default() -> Self {
        FlushPace { written_parts: AtomicUsize::new(IDLE), lock: Mutex::default(), moved: Condvar::default() }
    }
}

impl FlushPace {
    /// Notes that a flush has begun. It has ended when the guard is dropped.
    pub(crate) fn begin(&self) -> FlushProgress<'_> {
        self.set(0);
        FlushProgress(self)
    }

    fn set(&self, parts: usize) {
        // Under the lock: a commit that has looked and not yet waited is not missed.
        let _guard = self.lock.lock();
        self.written_parts.store(parts, Ordering::Relaxed);
        self.moved.notify_all();
    }

    /// Waits until the flush is nearly as far as the active memtable, of which `active_parts` are in use.
    pub(crate) fn keep(&self, active_parts: usize) {
        let is_ahead = || match self.written_parts.load(Ordering::Relaxed) {
            IDLE => false,
            written => active_parts > AHEAD_PARTS + written * (PARTS - AHEAD_PARTS - SPARE_PARTS) / PARTS,
        };
        if is_ahead() {
            let mut guard = self.lock.lock();
            self.moved.wait_while_for(&mut guard, |()| is_ahead(), WAIT);
        }
    }
}

/// A flush that runs.
pub(crate) struct FlushProgress<'p>(&'p FlushPace);

impl FlushProgress<'_> {
    /// Notes that `done` of `all` keys are written.
    pub(crate) fn note(&self, done: usize, all: usize) {
        let parts = done * PARTS / all.max(1);
        if parts != self.0.written_parts.load(Ordering::Relaxed) {
            self.0.set(parts);
        }
    }
}

impl Drop for FlushProgress<'_> {
    fn drop(&mut self) {
        self.0.set(IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_waits_for_a_flush_that_is_behind_and_for_no_other() {
        let pace = FlushPace::default();
        // Without a flush, and beside one that is ahead, the calls return at once.
        pace.keep(PARTS);
        let flush = pace.begin();
        pace.keep(AHEAD_PARTS);
        flush.note(1000, 1000);
        pace.keep(PARTS - SPARE_PARTS);
        // A flush that stands still costs one wait.
        flush.note(0, 1000);
        pace.keep(PARTS);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| (0..100).for_each(|_| pace.keep(AHEAD_PARTS + 100)));
            flush.note(500, 1000);
            waits.join().expect("the thread does not panic");
        });
        drop(flush);
        pace.keep(PARTS);
    }
}
