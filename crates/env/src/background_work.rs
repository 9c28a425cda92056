//! Whether a thread works for programs or for the pool itself.
//!
//! Work for the pool itself is *background work*: flushes, merges, cleaning, upkeep, scrubs. No program waits
//! for its device operations. A thread is in the background from `begin_background_work` until the guard is
//! dropped.
//!
//! # Invariants
//! 1. A guard ends on the thread that began it, because it cannot be sent to another one. Guards of one
//!    thread nest: the last one ends the background work.

use std::cell::Cell;
use std::marker::PhantomData;

crate::sync::thread_local! {
    static GUARDS: Cell<u32> = const { Cell::new(0) };
}

/// Background work of this thread. Dropping it ends the work.
#[derive(Debug)]
#[must_use = "the background work ends when this is dropped"]
pub struct BackgroundWork(PhantomData<*const ()>);

/// Begins background work of this thread.
pub fn begin_background_work() -> BackgroundWork {
    GUARDS.with(|guards| guards.set(guards.get() + 1));
    BackgroundWork(PhantomData)
}

/// Whether this thread does background work.
#[must_use]
pub fn is_background_work() -> bool {
    GUARDS.with(|guards| guards.get() > 0)
}

impl Drop for BackgroundWork {
    fn drop(&mut self) {
        GUARDS.with(|guards| guards.set(guards.get() - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_in_the_background_until_its_last_guard_is_dropped() {
        assert!(!is_background_work());
        let outer = begin_background_work();
        let inner = begin_background_work();
        drop(outer);
        assert!(is_background_work());
        let elsewhere = std::thread::spawn(is_background_work).join().expect("it only looks");
        assert!(!elsewhere, "each thread for itself");
        drop(inner);
        assert!(!is_background_work());
    }
}
