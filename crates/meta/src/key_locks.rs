//! Locks on keys. A key belongs to the lock slot that its hash chooses; other keys may share the slot.
//!
//! # Invariants
//! 1. One call takes its slots in rising order, each once (their places in `lock_ranks`), so lockers cannot
//!    deadlock.
//! 2. Equal keys have the same slot.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use smallvec::{SmallVec, smallvec};
use warpfire_env::{LockPlace, RankedMutex, RankedMutexGuard, RankedRawMutex};

use crate::lock_ranks::KEY_LOCKS;

/// Number of lock slots: enough that threads on different keys seldom meet. 4 KiB of mutexes.
const SLOTS: usize = 1024;

/// Locked keys: only the holder of the guard changes them.
pub struct KeyLockGuard<'a> {
    _guards: SmallVec<[RankedMutexGuard<'a, KEY_LOCKS, ()>; 4]>,
}

pub(crate) struct KeyLocks {
    slots: Box<[RankedMutex<KEY_LOCKS, ()>]>,
    hasher: FixedState,
}

impl Default for KeyLocks {
    fn default() -> Self {
        let slot = |place| RankedMutex::from_raw(RankedRawMutex::of(LockPlace::at(place)), ());
        let slots = (0..SLOTS as u64).map(slot).collect();
        KeyLocks { slots, hasher: FixedState::with_seed(1) }
    }
}

impl KeyLocks {
    pub(crate) fn lock(&self, keys: &[&[u8]]) -> KeyLockGuard<'_> {
        let slot_of = |key: &[u8]| self.hasher.hash_one(key) as usize % SLOTS;
        // Most calls name one key.
        if let [key] = keys {
            return KeyLockGuard { _guards: smallvec![self.slots[slot_of(key)].lock()] };
        }
        let mut wanted: SmallVec<[usize; 4]> = keys.iter().map(|key| slot_of(key)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        KeyLockGuard { _guards: wanted.into_iter().map(|slot| self.slots[slot].lock()).collect() }
    }
}

#[cfg(test)]
mod tests {
    use warpfire_env::sync::Mutex;

    use super::*;

    #[test]
    fn one_thread_may_name_a_key_twice() {
        let locks = KeyLocks::default();
        drop(locks.lock(&[b"a", b"b", b"a"]));
        drop(locks.lock(&[]));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_second_call_for_a_lower_slot_is_refused() {
        let refused = |keys: [&'static [u8]; 2]| {
            let thread = warpfire_env::sync::thread::spawn(move || {
                let locks = KeyLocks::default();
                let _first = locks.lock(&keys[..1]);
                drop(locks.lock(&keys[1..]));
            });
            thread.join().is_err()
        };
        assert_ne!(refused([b"a", b"b"]), refused([b"b", b"a"]), "one of the two orders is rising");
    }

    #[test]
    fn lockers_of_a_key_exclude_each_other_in_any_order() {
        let locks = KeyLocks::default();
        let shared = Mutex::new((0u32, 0u32));
        warpfire_env::sync::thread::scope(|scope| {
            for thread in 0..4 {
                let (locks, shared) = (&locks, &shared);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let keys: &[&[u8]] = match thread {
                            0 => &[b"a", b"b"],
                            1 => &[b"b", b"a"],
                            _ => &[b"a"],
                        };
                        let _guard = locks.lock(keys);
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
