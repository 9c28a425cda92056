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
const STRIPES: usize = 1024;

/// Keys that only its holder changes.
pub struct KeyGuard<'a> {
    _held: SmallVec<[MutexGuard<'a, ()>; 4]>,
}

pub(crate) struct KeyLocks {
    stripes: Box<[Mutex<()>]>,
    hasher: FixedState,
}

impl Default for KeyLocks {
    fn default() -> Self {
        let stripes = (0..STRIPES).map(|_| Mutex::new(())).collect();
        KeyLocks { stripes, hasher: FixedState::with_seed(1) }
    }
}

impl KeyLocks {
    pub(crate) fn lock(&self, keys: &[&[u8]]) -> KeyGuard<'_> {
        let mut wanted: SmallVec<[usize; 4]> =
            keys.iter().map(|key| self.hasher.hash_one(*key) as usize % STRIPES).collect();
        wanted.sort_unstable();
        wanted.dedup();
        KeyGuard { _held: wanted.into_iter().map(|stripe| self.stripes[stripe].lock()).collect() }
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
            for turn in 0..4 {
                let (locks, shared) = (&locks, &shared);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let keys: [&[u8]; 2] = if turn % 2 == 0 { [b"a", b"b"] } else { [b"b", b"a"] };
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
