//! Locks whose waiting is a step of a `shuttle` schedule. They have the interface of `parking_lot`.
//!
//! # Invariants
//! 1. A mutex is a semaphore of one permit. A reader-writer lock has [`READERS_MAX`] permits: a reader takes
//!    one, a writer takes all. The end of a guard releases what its beginning took.
//! 2. No notification is lost: a waiter holds the condition's gate from before it releases the mutex until it
//!    waits, and a notifier takes the gate.
//! 3. Time does not pass: a wait with a limit never ends at its limit. A schedule in which only a limit would
//!    wake a thread fails, because all threads wait.

#![expect(
    unsafe_code,
    reason = "lock_api's raw traits are unsafe to implement; a semaphore keeps each promise"
)]

use std::num::NonZeroUsize;
use std::time::Duration;

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};

pub use parking_lot::lock_api;
pub use shuttle::sync::atomic;
pub use shuttle::{thread, thread_local};

/// Most readers of a lock at a time.
const READERS_MAX: usize = 1 << 20;

/// A mutex.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// What holding a [`Mutex`] is.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
/// A reader-writer lock.
pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;

/// The raw form of a [`Mutex`].
#[derive(Debug)]
pub struct RawMutex(BatchSemaphore);

/// The raw form of a [`RwLock`].
#[derive(Debug)]
pub struct RawRwLock(BatchSemaphore);

fn acquire(semaphore: &BatchSemaphore, permits: usize) {
    semaphore.acquire_blocking(permits).expect("a lock's semaphore is never closed");
}

// SAFETY: one permit exists, so one guard exists at a time (invariant 1).
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: Self = RawMutex(BatchSemaphore::const_new(1, Fairness::Unfair));
    type Guard = lock_api::GuardNoSend;

    fn lock(&self) -> Self::Guard {
        acquire(&self.0, 1);
        lock_api::GuardNoSend::new()
    }

    fn try_lock(&self) -> Option<Self::Guard> {
        self.0.try_acquire(1).ok().map(|()| lock_api::GuardNoSend::new())
    }

    unsafe fn unlock(&self, _: Self::Guard) {
        self.0.release(1);
    }

    fn is_locked(&self) -> bool {
        self.0.available_permits() == 0
    }
}

// SAFETY: a writer has all permits, so no reader has one (invariant 1).
unsafe impl lock_api::RawRwLock for RawRwLock {
    const INIT: Self = RawRwLock(BatchSemaphore::const_new(READERS_MAX, Fairness::StrictlyFair));
    type SharedGuard = lock_api::GuardNoSend;
    type ExclusiveGuard = lock_api::GuardNoSend;

    fn lock_shared(&self) -> Self::SharedGuard {
        acquire(&self.0, 1);
        lock_api::GuardNoSend::new()
    }

    fn try_lock_shared(&self) -> Option<Self::SharedGuard> {
        self.0.try_acquire(1).ok().map(|()| lock_api::GuardNoSend::new())
    }

    unsafe fn unlock_shared(&self, _: Self::SharedGuard) {
        self.0.release(1);
    }

    fn lock_exclusive(&self) -> Self::ExclusiveGuard {
        acquire(&self.0, READERS_MAX);
        lock_api::GuardNoSend::new()
    }

    fn try_lock_exclusive(&self) -> Option<Self::ExclusiveGuard> {
        self.0.try_acquire(READERS_MAX).ok().map(|()| lock_api::GuardNoSend::new())
    }

    unsafe fn unlock_exclusive(&self, _: Self::ExclusiveGuard) {
        self.0.release(READERS_MAX);
    }

    fn is_locked(&self) -> bool {
        self.0.available_permits() < READERS_MAX
    }

    fn is_locked_exclusive(&self) -> bool {
        self.0.available_permits() == 0
    }
}

/// The number of the running thread, for reentrant locks.
#[derive(Debug)]
pub struct RawThreadId;

// SAFETY: the number of a task is its own for as long as the schedule runs.
unsafe impl lock_api::GetThreadId for RawThreadId {
    const INIT: Self = RawThreadId;

    fn nonzero_thread_id(&self) -> NonZeroUsize {
        let task = usize::from(shuttle::current::me());
        NonZeroUsize::new(task + 1).expect("one more than a number is not zero")
    }
}

/// A condition that threads wait for.
#[derive(Debug, Default)]
pub struct Condvar {
    gate: shuttle::sync::Mutex<()>,
    waiters: shuttle::sync::Condvar,
}

/// Whether a wait ended at its limit: it never does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitTimeoutResult(());

impl WaitTimeoutResult {
    /// Whether the wait ended at its limit.
    #[must_use]
    pub fn timed_out(self) -> bool {
        false
    }
}

impl Condvar {
    /// A condition that nobody waits for.
    #[must_use]
    pub const fn new() -> Self {
        Condvar { gate: shuttle::sync::Mutex::new(()), waiters: shuttle::sync::Condvar::new() }
    }

    /// Releases the mutex, waits for a notification, and takes the mutex again.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        let gate = self.gate.lock().expect("no holder of the gate panics");
        MutexGuard::unlocked(guard, || drop(self.waiters.wait(gate)));
    }

    /// As [`wait`](Self::wait), for as long as a condition holds.
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut holds: impl FnMut(&mut T) -> bool,
        _limit: Duration,
    ) -> WaitTimeoutResult {
        while holds(guard) {
            self.wait(guard);
        }
        WaitTimeoutResult(())
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        let _gate = self.gate.lock().expect("no holder of the gate panics");
        self.waiters.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        let _gate = self.gate.lock().expect("no holder of the gate panics");
        self.waiters.notify_all();
    }
}
