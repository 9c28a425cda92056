//! Locks with a declared order, which debug builds check.
//!
//! A *rank* is a number that a lock has by its type. A thread takes locks in the order of rising ranks. Two
//! threads that keep this order cannot wait for each other in a circle. Each room declares the ranks of its
//! locks in its file `lock_ranks.rs`. They lie in the bands of [`rank`], which follow the rooms from the top
//! down: an upper room may call a lower one while it holds its own locks, and never the other way round.
//!
//! Locks of one kind, for example those of all inodes, have one rank and make a *group*. A lock of a group
//! has a *place* in it ([`LockPlace`]), for example the inode number. A thread that holds several locks of a
//! group takes them by rising place.
//!
//! # Invariants
//! 1. In a debug build, a thread that takes a lock holds only locks of lower ranks, or of the same rank and
//!    lower places. Otherwise it panics and names both (assert in `note_taken`; the tests
//!    `a_lock_out_of_order_is_refused` and `a_group_is_taken_by_rising_place`).
//! 2. No thread waits for a lock that is [`LockPlace::UNCONTENDED`], so its rank is not checked (the assert
//!    in each lock function; the test `an_uncontended_lock_is_not_waited_for`).
//! 3. In a release build a ranked lock is a lock of [`crate::sync`], in size and in cost (`SAME_SIZE`).

// An implementation of `RawMutex` promises exclusion, which is an unsafe trait's promise. Each forwards to
// a lock of `sync`, which keeps it; the code around the call only notes the rank.
#![expect(unsafe_code, reason = "lock_api's raw traits are unsafe to implement; each call is forwarded")]

use crate::sync::{RawMutex, RawRwLock, RawThreadId, lock_api};

/// The bands of ranks, from first to last.
pub mod rank {
    /// Locks of the mount.
    pub const MOUNT: u16 = 500;
    /// Locks of the filesystem that a call takes before key locks.
    pub const FS: u16 = 1000;
    /// Key locks of the metadata engine, and after them the locks of the filesystem that a call takes under
    /// key locks. The engine takes key locks for its callers only.
    pub const KEYS: u16 = 1500;
    /// Locks of the metadata engine.
    pub const META: u16 = 2000;
    /// Locks of the log.
    pub const LOG: u16 = 3000;
    /// Locks of the pool.
    pub const POOL: u16 = 4000;
    /// Leaf locks of the filesystem: under them it calls no other room. The hook of a sync point takes them
    /// under locks of the engine.
    pub const LEAF: u16 = 5000;
}

/// The place of a lock in the order of the locks of its rank. In a release build it is empty.
#[derive(Clone, Copy, Debug)]
pub struct LockPlace(#[cfg(debug_assertions)] Option<u64>);

impl LockPlace {
    /// The place of a lock that nobody waits for: an outer lock lets in one thread at a time. Debug builds
    /// check that the lock is free when a thread takes it, and nothing else.
    pub const UNCONTENDED: Self = LockPlace(
        #[cfg(debug_assertions)]
        None,
    );

    /// The place of the only lock of its rank.
    const ONLY: Self = Self::at(0);

    /// A place in a group.
    #[must_use]
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "places are for debug builds"))]
    pub const fn at(place: u64) -> Self {
        LockPlace(
            #[cfg(debug_assertions)]
            Some(place),
        )
    }

    /// Whether no thread ever waits for the lock.
    #[inline]
    const fn is_uncontended(self) -> bool {
        #[cfg(debug_assertions)]
        return self.0.is_none();
        #[cfg(not(debug_assertions))]
        return false;
    }
}

/// A mutex of a rank.
pub type RankedMutex<const RANK: u16, T> = lock_api::Mutex<RankedRawMutex<RANK>, T>;
/// What holding a [`RankedMutex`] is.
pub type RankedMutexGuard<'a, const RANK: u16, T> = lock_api::MutexGuard<'a, RankedRawMutex<RANK>, T>;
/// A mutex of a rank that its holder may take again.
pub type RankedReentrantMutex<const RANK: u16, T> =
    lock_api::ReentrantMutex<RankedRawMutex<RANK>, RawThreadId, T>;
/// What holding a [`RankedReentrantMutex`] is.
pub type RankedReentrantMutexGuard<'a, const RANK: u16, T> =
    lock_api::ReentrantMutexGuard<'a, RankedRawMutex<RANK>, RawThreadId, T>;
/// A reader-writer lock of a rank.
pub type RankedRwLock<const RANK: u16, T> = lock_api::RwLock<RankedRawRwLock<RANK>, T>;
/// What holding a [`RankedRwLock`] for reading is.
pub type RankedReadGuard<'a, const RANK: u16, T> = lock_api::RwLockReadGuard<'a, RankedRawRwLock<RANK>, T>;
/// What holding a [`RankedRwLock`] for writing is.
pub type RankedWriteGuard<'a, const RANK: u16, T> = lock_api::RwLockWriteGuard<'a, RankedRawRwLock<RANK>, T>;

/// The raw form of a [`RankedMutex`].
pub struct RankedRawMutex<const RANK: u16> {
    raw: RawMutex,
    place: LockPlace,
}

/// The raw form of a [`RankedRwLock`].
pub struct RankedRawRwLock<const RANK: u16> {
    raw: RawRwLock,
    place: LockPlace,
}

/// In a release build the place takes no bytes.
const SAME_SIZE: () = assert!(
    cfg!(debug_assertions)
        || size_of::<RankedMutex<0, ()>>() == size_of::<crate::sync::Mutex<()>>()
            && size_of::<RankedRwLock<0, u64>>() == size_of::<crate::sync::RwLock<u64>>(),
);
const _: () = SAME_SIZE;

impl<const RANK: u16> RankedRawMutex<RANK> {
    /// A mutex with a place in the group of its rank, for `RankedMutex::from_raw`.
    #[must_use]
    pub const fn of(place: LockPlace) -> Self {
        RankedRawMutex { raw: lock_api::RawMutex::INIT, place }
    }
}

impl<const RANK: u16> RankedRawRwLock<RANK> {
    /// A lock with a place in the group of its rank, for `RankedRwLock::from_raw`.
    #[must_use]
    pub const fn of(place: LockPlace) -> Self {
        RankedRawRwLock { raw: lock_api::RawRwLock::INIT, place }
    }
}

/// Why a lock that is [`LockPlace::UNCONTENDED`] is free.
const FREE: &str = "the outer lock of an uncontended lock lets in one thread at a time";

// SAFETY: exclusion is the raw mutex's: each method calls the same method of it.
unsafe impl<const RANK: u16> lock_api::RawMutex for RankedRawMutex<RANK> {
    const INIT: Self = Self::of(LockPlace::ONLY);
    type Guard = <RawMutex as lock_api::RawMutex>::Guard;

    #[inline]
    fn lock(&self) -> Self::Guard {
        if self.place.is_uncontended() {
            return lock_api::RawMutex::try_lock(&self.raw).expect(FREE);
        }
        // Noted before the wait: a thread that would deadlock panics instead.
        note_taken(RANK, self.place);
        lock_api::RawMutex::lock(&self.raw)
    }

    #[inline]
    fn try_lock(&self) -> Option<Self::Guard> {
        // An attempt does not wait, so it may be out of order; success is noted all the same.
        lock_api::RawMutex::try_lock(&self.raw).inspect(|_| note_tried(RANK, self.place))
    }

    #[inline]
    unsafe fn unlock(&self, guard: Self::Guard) {
        note_released(RANK, self.place);
        // SAFETY: the guard is of a lock of this mutex, so of one of the mutex within.
        unsafe { lock_api::RawMutex::unlock(&self.raw, guard) }
    }

    fn is_locked(&self) -> bool {
        lock_api::RawMutex::is_locked(&self.raw)
    }
}

// SAFETY: exclusion is the raw lock's: each method calls the same method of it.
unsafe impl<const RANK: u16> lock_api::RawRwLock for RankedRawRwLock<RANK> {
    const INIT: Self = Self::of(LockPlace::ONLY);
    type SharedGuard = <RawRwLock as lock_api::RawRwLock>::SharedGuard;
    type ExclusiveGuard = <RawRwLock as lock_api::RawRwLock>::ExclusiveGuard;

    #[inline]
    fn lock_shared(&self) -> Self::SharedGuard {
        if self.place.is_uncontended() {
            return lock_api::RawRwLock::try_lock_shared(&self.raw).expect(FREE);
        }
        note_taken(RANK, self.place);
        lock_api::RawRwLock::lock_shared(&self.raw)
    }

    #[inline]
    fn try_lock_shared(&self) -> Option<Self::SharedGuard> {
        lock_api::RawRwLock::try_lock_shared(&self.raw).inspect(|_| note_tried(RANK, self.place))
    }

    #[inline]
    unsafe fn unlock_shared(&self, guard: Self::SharedGuard) {
        note_released(RANK, self.place);
        // SAFETY: the guard is of a shared lock of this lock, so of one of the lock within.
        unsafe { lock_api::RawRwLock::unlock_shared(&self.raw, guard) }
    }

    #[inline]
    fn lock_exclusive(&self) -> Self::ExclusiveGuard {
        if self.place.is_uncontended() {
            return lock_api::RawRwLock::try_lock_exclusive(&self.raw).expect(FREE);
        }
        note_taken(RANK, self.place);
        lock_api::RawRwLock::lock_exclusive(&self.raw)
    }

    #[inline]
    fn try_lock_exclusive(&self) -> Option<Self::ExclusiveGuard> {
        lock_api::RawRwLock::try_lock_exclusive(&self.raw).inspect(|_| note_tried(RANK, self.place))
    }

    #[inline]
    unsafe fn unlock_exclusive(&self, guard: Self::ExclusiveGuard) {
        note_released(RANK, self.place);
        // SAFETY: the guard is of an exclusive lock of this lock, so of one of the lock within.
        unsafe { lock_api::RawRwLock::unlock_exclusive(&self.raw, guard) }
    }

    fn is_locked(&self) -> bool {
        lock_api::RawRwLock::is_locked(&self.raw)
    }

    fn is_locked_exclusive(&self) -> bool {
        lock_api::RawRwLock::is_locked_exclusive(&self.raw)
    }
}

#[cfg(debug_assertions)]
crate::sync::thread_local! {
    /// Ranks and places of the locks that this thread holds, in the order in which it took them.
    static HELD: std::cell::RefCell<Vec<(u16, u64)>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Notes a lock that the thread is about to wait for.
#[cfg(debug_assertions)]
fn note_taken(rank: u16, place: LockPlace) {
    let Some(place) = place.0 else { return };
    HELD.with(|held| {
        let mut held = held.borrow_mut();
        if let Some(&highest) = held.iter().max() {
            assert!(
                highest < (rank, place),
                "a lock of rank {rank} (place {place}) is taken while one of rank {} (place {}) is held: see \
                 `warpfire_env::rank`",
                highest.0,
                highest.1
            );
        }
        held.push((rank, place));
    });
}

#[cfg(debug_assertions)]
fn note_tried(rank: u16, place: LockPlace) {
    let Some(place) = place.0 else { return };
    HELD.with(|held| held.borrow_mut().push((rank, place)));
}

#[cfg(debug_assertions)]
fn note_released(rank: u16, place: LockPlace) {
    let Some(place) = place.0 else { return };
    // Other locals of a thread may drop guards after this one is gone: nothing is left to check then.
    _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        let at = held.iter().rposition(|taken| *taken == (rank, place));
        held.remove(at.expect("a released lock was taken by this thread"));
    });
}

#[cfg(not(debug_assertions))]
#[inline(always)]
fn note_taken(_rank: u16, _place: LockPlace) {}
#[cfg(not(debug_assertions))]
#[inline(always)]
fn note_tried(_rank: u16, _place: LockPlace) {}
#[cfg(not(debug_assertions))]
#[inline(always)]
fn note_released(_rank: u16, _place: LockPlace) {}

#[cfg(test)]
mod tests {
    use super::*;

    const fn grouped(place: LockPlace) -> RankedMutex<30, ()> {
        RankedMutex::from_raw(RankedRawMutex::of(place), ())
    }

    static UPPER: RankedMutex<10, ()> = RankedMutex::new(());
    static LOWER: RankedRwLock<20, ()> = RankedRwLock::new(());
    static ONE: RankedMutex<30, ()> = grouped(LockPlace::at(1));
    static TWO: RankedMutex<30, ()> = grouped(LockPlace::at(2));

    /// Whether a thread of its own panics in `run`.
    #[cfg(debug_assertions)]
    fn panics(run: impl FnOnce() + Send + 'static) -> bool {
        std::thread::spawn(run).join().is_err()
    }

    #[test]
    fn rising_ranks_and_places_are_taken_and_released_in_any_order() {
        let upper = UPPER.lock();
        let lower = LOWER.read();
        let one = ONE.lock();
        let two = TWO.lock();
        drop(upper);
        drop(one);
        drop(two);
        drop(lower);
        drop(LOWER.write());
        drop(UPPER.lock());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_lock_out_of_order_is_refused() {
        static LOW: RankedRwLock<20, ()> = RankedRwLock::new(());
        static SAME: RankedMutex<40, ()> = RankedMutex::new(());
        static SAME_RANK: RankedMutex<40, ()> = RankedMutex::new(());
        assert!(
            panics(|| {
                let _lower = LOW.read();
                drop(UPPER.lock());
            }),
            "a lower rank after a higher one panics"
        );
        assert!(
            panics(|| {
                let _first = SAME.lock();
                drop(SAME_RANK.lock());
            }),
            "two locks of one rank without places panic"
        );
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_group_is_taken_by_rising_place() {
        static FIRST: RankedRwLock<31, ()> =
            RankedRwLock::from_raw(RankedRawRwLock::of(LockPlace::at(1)), ());
        static LAST: RankedRwLock<31, ()> = RankedRwLock::from_raw(RankedRawRwLock::of(LockPlace::at(9)), ());
        assert!(
            panics(|| {
                let _last = LAST.read();
                drop(FIRST.write());
            }),
            "a lower place after a higher one panics"
        );
        assert!(
            panics(|| {
                let _once = FIRST.read();
                drop(FIRST.read());
            }),
            "a second hold of one lock panics: a writer may wait between the two"
        );
        let _first = FIRST.read();
        drop(LAST.write());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn an_uncontended_lock_is_not_waited_for() {
        static FREE: RankedMutex<5, ()> =
            RankedMutex::from_raw(RankedRawMutex::of(LockPlace::UNCONTENDED), ());
        {
            let _upper = UPPER.lock();
            drop(FREE.lock());
        }
        let _free = FREE.lock();
        drop(UPPER.lock());
        assert!(panics(|| drop(FREE.lock())), "a lock that another thread holds is contended");
    }

    #[test]
    fn a_reentrant_lock_is_noted_once() {
        static AGAIN: RankedReentrantMutex<29, ()> = RankedReentrantMutex::new(());
        let first = AGAIN.lock();
        let second = AGAIN.lock();
        drop(first);
        drop(second);
        drop(ONE.lock());
    }
}
