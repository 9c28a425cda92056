//! The background sync: changes become durable after an interval even if no program asks for it.
//!
//! ```text
//!            a change                interval over
//!   clean ───────────────▶ dirty ───────────────────▶ syncing ──▶ clean
//!   (the thread sleeps)    (the thread waits)          (a change during the sync: dirty)
//! ```
//!
//! # Invariants
//! 1. A change is durable at most one interval and one sync after its `mark`. A caller marks after the
//!    change, not before it (`tests::a_change_during_a_sync_asks_for_another`).
//! 2. The thread sleeps while nothing changes (`tests::a_change_is_synced_and_silence_is_not`).
//! 3. No sync begins after `stop` (assert in `run`); `stop` does not wait for the interval
//!    (`tests::stopping_does_not_wait_for_the_interval`).

use std::io;
use std::sync::Arc;
use std::time::Duration;
use warpfire_env::sync::atomic::{AtomicBool, Ordering};
use warpfire_env::sync::thread::{self, JoinHandle};

use warpfire_env::sync::{Condvar, Mutex, MutexGuard};

/// The state that the thread and its users share.
struct IntervalSyncState {
    /// Whether a change is not synced yet.
    dirty: AtomicBool,
    /// Whether `dirty` stays set, because no caller marks changes.
    always_dirty: bool,
    stop: Mutex<bool>,
    wake: Condvar,
}

/// Marks changes for an [`IntervalSync`].
#[derive(Clone)]
pub struct ChangeSignal(Arc<IntervalSyncState>);

impl ChangeSignal {
    /// A signal without a thread, for a filesystem that needs no background sync.
    #[must_use]
    pub fn ignored() -> ChangeSignal {
        ChangeSignal(Arc::new(IntervalSyncState::new(true)))
    }

    /// Notes a change that is complete.
    pub fn mark(&self) {
        // The load alone is the common case: a write to the flag would move its cache line between
        // processors.
        if !self.0.dirty.load(Ordering::Relaxed) && !self.0.dirty.swap(true, Ordering::AcqRel) {
            // Under the lock the thread has not read the flag yet or is in its wait, so the wake is not lost.
            let _stop = self.0.stop.lock();
            self.0.wake.notify_one();
        }
    }
}

/// The thread that syncs, until it is stopped or dropped.
pub struct IntervalSync {
    shared: Arc<IntervalSyncState>,
    thread: Option<JoinHandle<()>>,
}

impl IntervalSync {
    /// Starts a thread that calls `sync` at every `interval`.
    ///
    /// # Errors
    /// The operating system's error if it starts no thread.
    pub fn always(interval: Duration, sync: impl Fn() + Send + 'static) -> io::Result<IntervalSync> {
        IntervalSync::start(Arc::new(IntervalSyncState::new(true)), interval, sync)
    }

    /// Starts a thread that calls `sync` one `interval` after the first marked change since the last sync.
    ///
    /// # Errors
    /// The operating system's error if it starts no thread.
    pub fn after_changes(
        interval: Duration,
        sync: impl Fn() + Send + 'static,
    ) -> io::Result<(IntervalSync, ChangeSignal)> {
        let shared = Arc::new(IntervalSyncState::new(false));
        Ok((IntervalSync::start(Arc::clone(&shared), interval, sync)?, ChangeSignal(shared)))
    }

    fn start(
        shared: Arc<IntervalSyncState>,
        interval: Duration,
        sync: impl Fn() + Send + 'static,
    ) -> io::Result<IntervalSync> {
        let mine = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("warpfire-commit".to_owned())
            .spawn(move || mine.run(interval, sync))?;
        Ok(IntervalSync { shared, thread: Some(thread) })
    }

    /// Ends the thread after the sync that it may be in. It does not sync the changes since then.
    ///
    /// # Panics
    /// If `sync` has panicked.
    pub fn stop(&mut self) {
        // Set under the lock of the wait, so that the thread cannot miss it.
        *self.shared.stop.lock() = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the thread that syncs does not panic");
        }
    }
}

impl Drop for IntervalSync {
    fn drop(&mut self) {
        self.stop();
    }
}

impl IntervalSyncState {
    fn new(always_dirty: bool) -> IntervalSyncState {
        IntervalSyncState {
            dirty: AtomicBool::new(always_dirty),
            always_dirty,
            stop: Mutex::new(false),
            wake: Condvar::new(),
        }
    }

    fn run(&self, interval: Duration, sync: impl Fn()) {
        let mut stop = self.stop.lock();
        loop {
            while !*stop && !self.dirty.load(Ordering::Acquire) {
                self.wake.wait(&mut stop);
            }
            // Changes of one interval share a sync.
            if !*stop {
                self.wake.wait_while_for(&mut stop, |stop| !*stop, interval);
            }
            if *stop {
                return;
            }
            assert!(!*stop, "no sync begins after the stop");
            // Cleared first: a change during the sync asks for another one.
            self.dirty.store(self.always_dirty, Ordering::Release);
            // Without the lock, so that `mark` and `stop` do not wait for devices.
            MutexGuard::unlocked(&mut stop, &sync);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SOON: Duration = Duration::from_millis(5);
    const LATE: Duration = Duration::from_secs(10);

    #[test]
    fn a_change_is_synced_and_silence_is_not() {
        let (send, synced) = mpsc::channel();
        let (mut syncs, changes) = IntervalSync::after_changes(SOON, move || send.send(()).unwrap()).unwrap();
        assert!(synced.recv_timeout(SOON * 4).is_err(), "nothing has changed yet");
        for _ in 0..3 {
            changes.mark();
            changes.mark();
            synced.recv_timeout(LATE).expect("a change is synced");
            assert!(synced.recv_timeout(SOON * 4).is_err(), "two changes in one interval are one sync");
        }
        syncs.stop();
    }

    #[test]
    fn a_change_during_a_sync_asks_for_another() {
        let (enter, entered) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel::<()>();
        let (mut syncs, changes) = IntervalSync::after_changes(SOON, move || {
            enter.send(()).unwrap();
            may_leave.recv().unwrap();
        })
        .unwrap();
        changes.mark();
        entered.recv_timeout(LATE).unwrap();
        changes.mark();
        leave.send(()).unwrap();
        entered.recv_timeout(LATE).expect("the second change is synced too");
        leave.send(()).unwrap();
        syncs.stop();
    }

    #[test]
    fn stopping_does_not_wait_for_the_interval() {
        let (mut syncs, changes) = IntervalSync::after_changes(LATE * 60, || ()).unwrap();
        changes.mark();
        syncs.stop();
    }

    #[test]
    fn without_marks_every_interval_ends_in_a_sync() {
        let (send, synced) = mpsc::channel();
        let mut syncs = IntervalSync::always(SOON, move || send.send(()).unwrap()).unwrap();
        for _ in 0..3 {
            synced.recv_timeout(LATE).expect("an interval ends in a sync");
        }
        syncs.stop();
    }
}
