//! Locks with a declared order, which debug builds check.
//!
//! A *rank* is a number that a lock has by its type. A thread takes locks in the order of rising ranks. Two
//! threads that keep this order cannot wait for each other in a circle. Each room declares the ranks of its
//! locks in its file `lock_ranks.rs`. They lie in the bands of [`rank`], which follow the rooms from the top
//! down: an upper room may call a lower one while it holds its own locks, and never the other way round.
//!
//! # Invariants
//! 1. In a debug build, a thread that takes a lock holds only locks of lower ranks, or of the same rank if
//!    that rank is a [`rank::group`]. Otherwise it panics and names both (assert in `note_taken`; the test
//!    `a_lock_out_of_order_is_refused`).
//! 2. In a release build a ranked lock is a `parking_lot` lock, in size and in cost.

// An implementation of `RawMutex` promises exclusion, which is an unsafe trait's promise. Each forwards to
// `parking_lot`, which keeps it; the code around the call only notes the rank.
#![expect(unsafe_code, reason = "lock_api's raw traits are unsafe to implement; each call is forwarded")]

use parking_lot::lock_api;

/// The bands of ranks, one for each room, and the form of a rank.
pub mod rank {
    /// Locks of the filesystem.
    pub const FS: u16 = 1000;
    /// Locks of the metadata engine.
    pub const META: u16 = 2000;
    /// Locks of the log.
    pub const LOG: u16 = 3000;
    /// Locks of the pool.
    pub const POOL: u16 = 4000;

    /// The rank of several locks of one kind, for example those of all inodes. A thread may hold some of them
    /// together; their room declares in which order it takes them. A plain rank is even, a group's is odd.
    #[must_use]
    pub const fn group(rank: u16) -> u16 {
        rank | 1
    }
}

/// A mutex of a rank.
pub type RankedMutex<const RANK: u16, T> = lock_api::Mutex<RankedRawMutex<RANK>, T>;
/// What holding a [`RankedMutex`] is.
pub type RankedMutexGuard<'a, const RANK: u16, T> = lock_api::MutexGuard<'a, RankedRawMutex<RANK>, T>;
/// A mutex of a rank that its holder may take again.
pub type RankedReentrantMutex<const RANK: u16, T> =
    lock_api::ReentrantMutex<RankedRawMutex<RANK>, parking_lot::RawThreadId, T>;
/// What holding a [`RankedReentrantMutex`] is.
pub type RankedReentrantMutexGuard<'a, const RANK: u16, T> =
    lock_api::ReentrantMutexGuard<'a, RankedRawMutex<RANK>, parking_lot::RawThreadId, T>;
/// A reader-writer lock of a rank.
pub type RankedRwLock<const RANK: u16, T> = lock_api::RwLock<RankedRawRwLock<RANK>, T>;
/// What holding a [`RankedRwLock`] for reading is.
pub type RankedReadGuard<'a, const RANK: u16, T> = lock_api::RwLockReadGuard<'a, RankedRawRwLock<RANK>, T>;
/// What holding a [`RankedRwLock`] for writing is.
pub type RankedWriteGuard<'a, const RANK: u16, T> = lock_api::RwLockWriteGuard<'a, RankedRawRwLock<RANK>, T>;

/// The raw form of a [`RankedMutex`].
pub struct RankedRawMutex<const RANK: u16>(parking_lot::RawMutex);

/// The raw form of a [`RankedRwLock`].
pub struct RankedRawRwLock<const RANK: u16>(parking_lot::RawRwLock);

// SAFETY: exclusion is `parking_lot::RawMutex`'s: each method calls the same method of it.
unsafe impl<const RANK: u16> lock_api::RawMutex for RankedRawMutex<RANK> {
    const INIT: Self = RankedRawMutex(lock_api::RawMutex::INIT);
    type Guard = <parking_lot::RawMutex as lock_api::RawMutex>::Guard;

    #[inline]
    fn lock(&self) -> Self::Guard {
        // Noted before the wait: a thread that would deadlock panics instead.
        note_taken(RANK);
        lock_api::RawMutex::lock(&self.0)
    }

    #[inline]
    fn try_lock(&self) -> Option<Self::Guard> {
        // An attempt does not wait, so it may be out of order; success is noted all the same.
        lock_api::RawMutex::try_lock(&self.0).inspect(|_| note_tried(RANK))
    }

    #[inline]
    unsafe fn unlock(&self, guard: Self::Guard) {
        note_released(RANK);
        // SAFETY: the guard is of a lock of this mutex, so of one of the mutex within.
        unsafe { lock_api::RawMutex::unlock(&self.0, guard) }
    }

    fn is_locked(&self) -> bool {
        lock_api::RawMutex::is_locked(&self.0)
    }
}

// SAFETY: exclusion is `parking_lot::RawRwLock`'s: each method calls the same method of it.
unsafe impl<const RANK: u16> lock_api::RawRwLock for RankedRawRwLock<RANK> {
    const INIT: Self = RankedRawRwLock(lock_api::RawRwLock::INIT);
    type SharedGuard = <parking_lot::RawRwLock as lock_api::RawRwLock>::SharedGuard;
    type ExclusiveGuard = <parking_lot::RawRwLock as lock_api::RawRwLock>::ExclusiveGuard;

    #[inline]
    fn lock_shared(&self) -> Self::SharedGuard {
        note_taken(RANK);
        lock_api::RawRwLock::lock_shared(&self.0)
    }

    #[inline]
    fn try_lock_shared(&self) -> Option<Self::SharedGuard> {
        lock_api::RawRwLock::try_lock_shared(&self.0).inspect(|_| note_tried(RANK))
    }

    #[inline]
    unsafe fn unlock_shared(&self, guard: Self::SharedGuard) {
        note_released(RANK);
        // SAFETY: the guard is of a shared lock of this lock, so of one of the lock within.
        unsafe { lock_api::RawRwLock::unlock_shared(&self.0, guard) }
    }

    #[inline]
    fn lock_exclusive(&self) -> Self::ExclusiveGuard {
        note_taken(RANK);
        lock_api::RawRwLock::lock_exclusive(&self.0)
    }

    #[inline]
    fn try_lock_exclusive(&self) -> Option<Self::ExclusiveGuard> {
        lock_api::RawRwLock::try_lock_exclusive(&self.0).inspect(|_| note_tried(RANK))
    }

    #[inline]
    unsafe fn unlock_exclusive(&self, guard: Self::ExclusiveGuard) {
        note_released(RANK);
        // SAFETY: the guard is of an exclusive lock of this lock, so of one of the lock within.
        unsafe { lock_api::RawRwLock::unlock_exclusive(&self.0, guard) }
    }

    fn is_locked(&self) -> bool {
        lock_api::RawRwLock::is_locked(&self.0)
    }

    fn is_locked_exclusive(&self) -> bool {
        lock_api::RawRwLock::is_locked_exclusive(&self.0)
    }
}

#[cfg(debug_assertions)]
thread_local! {
    /// Ranks of the locks that this thread holds, in the order in which it took them.
    static HELD: std::cell::RefCell<Vec<u16>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Notes a lock that the thread is about to wait for.
#[cfg(debug_assertions)]
fn note_taken(rank: u16) {
    HELD.with_borrow_mut(|held| {
        let is_group = rank % 2 == 1;
        if let Some(&highest) = held.iter().max() {
            assert!(
                highest < rank || (highest == rank && is_group),
                "a lock of rank {rank} is taken while one of rank {highest} is held: see `warpfire_env::rank`"
            );
        }
        held.push(rank);
    });
}

#[cfg(debug_assertions)]
fn note_tried(rank: u16) {
    HELD.with_borrow_mut(|held| held.push(rank));
}

#[cfg(debug_assertions)]
fn note_released(rank: u16) {
    // Other locals of a thread may drop guards after this one is gone: nothing is left to check then.
    _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        let place =
            held.iter().rposition(|taken| *taken == rank).expect("a released lock was taken by this thread");
        held.remove(place);
    });
}

#[cfg(not(debug_assertions))]
#[inline(always)]
fn note_taken(_rank: u16) {}
#[cfg(not(debug_assertions))]
#[inline(always)]
fn note_tried(_rank: u16) {}
#[cfg(not(debug_assertions))]
#[inline(always)]
fn note_released(_rank: u16) {}

#[cfg(test)]
mod tests {
    use super::*;

    static UPPER: RankedMutex<10, ()> = RankedMutex::new(());
    static LOWER: RankedRwLock<20, ()> = RankedRwLock::new(());
    static ONE: RankedMutex<{ rank::group(30) }, ()> = RankedMutex::new(());
    static OTHER: RankedMutex<{ rank::group(30) }, ()> = RankedMutex::new(());

    #[test]
    fn rising_ranks_and_groups_are_taken_in_any_order_of_release() {
        let upper = UPPER.lock();
        let lower = LOWER.read();
        let one = ONE.lock();
        let other = OTHER.lock();
        drop(upper);
        drop(one);
        drop(other);
        drop(lower);
        drop(LOWER.write());
        drop(UPPER.lock());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_lock_out_of_order_is_refused() {
        let thread = std::thread::spawn(|| {
            let _lower = LOWER.read();
            drop(UPPER.lock());
        });
        assert!(thread.join().is_err(), "a lower rank after a higher one panics");
        let thread = std::thread::spawn(|| {
            let _first: RankedMutexGuard<'_, 40, ()> = {
                static SAME: RankedMutex<40, ()> = RankedMutex::new(());
                SAME.lock()
            };
            static SAME_RANK: RankedMutex<40, ()> = RankedMutex::new(());
            drop(SAME_RANK.lock());
        });
        assert!(thread.join().is_err(), "two locks of one plain rank panic");
    }

    #[test]
    fn a_reentrant_lock_is_noted_once() {
        static AGAIN: RankedReentrantMutex<50, ()> = RankedReentrantMutex::new(());
        let first = AGAIN.lock();
        let second = AGAIN.lock();
        drop(first);
        drop(second);
        drop(ONE.lock());
    }
}
