//! Locks on keys, by stripes.
//!
//! # Invariants
//! 1. Stripes are taken in rising order, each once: lockers can not wait for each other in a circle.
//! 2. Equal keys have equal stripes.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

/// Stripes: enough that threads on different keys seldom meet, 4 KiB of mutexes.
const SLOTS: usize = 1024;

/// Keys that only its holder changes.
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
                        assert_eq!(begun, done + 1, "another holder is inside");
                        shared.lock().1 += 1;
                    }
                });
            }
        });
        assert_eq!(*shared.lock(), (2000, 2000));
    }
}
