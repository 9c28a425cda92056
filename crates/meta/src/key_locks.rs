//! Locks on keys. A key belongs to the lock slot that its hash chooses; other keys may share the slot.
//!
//! # Invariants
//! 1. One call takes its slots in rising order, each once (assert in `lock`), so lockers cannot deadlock.
//! 2. Equal keys have the same slot.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

/// Number of lock slots: enough that threads on different keys seldom meet. 4 KiB of mutexes.
const SLOTS: usize = 1024;

/// Locked keys: only the holder of the guard changes them.
pub struct KeyLockGuard<'a> {
    _guards: SmallVec<[MutexGuard<'a, ()>; 4]>,
}

pub(crate) struct KeyLocks {
    slots: Box<[Mutex<()>]>,
    hasher: FixedState,
}

impl Default for KeyLocks {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| Mutex::new(())).collect();
        KeyLocks { slots, hasher: FixedState::with_seed(1) }
    }
}

impl KeyLocks {
    pub(crate) fn lock(&self, keys: &[&[u8]]) -> KeyLockGuard<'_> {
        let mut wanted: SmallVec<[usize; 4]> =
            keys.iter().map(|key| self.hasher.hash_one(*key) as usize % SLOTS).collect();
        wanted.sort_unstable();
        wanted.dedup();
        debug_assert!(wanted.is_sorted_by(|a, b| a < b), "lock slots are taken in rising order, each once");
        KeyLockGuard { _guards: wanted.into_iter().map(|slot| self.slots[slot].lock()).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_may_name_a_key_twice() {
        let locks = KeyLocks::default();
        drop(locks.lock(&[b"a", b"b", b"a"]));
        drop(locks.lock(&[]));
    }

    #[test]
    fn lockers_of_a_key_exclude_each_other_in_any_order() {
        let locks = KeyLocks::default();
        let shared = Mutex::new((0u32, 0u32));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (locks, shared) = (&locks, &shared);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let keys: [&[u8]; 2] = if thread % 2 == 0 { [b"a", b"b"] } else { [b"b", b"a"] };
                        let _guard = locks.lock(&keys);
                        shared.lock().0 += 1;
                        let (begun, done) = *shared.lock();
                        assert_eq!(begun, done + 1, "two threads hold the locks of one key");
                        shared.lock().1 += 1;
                    }
                });
            }
        });
        assert_eq!(*shared.lock(), (2000, 2000));
    }
}
