//! Locks, atomics and threads of the rooms below the mount.
//!
//! They are those of `parking_lot` and of the standard library. With the feature `schedules` they are
//! replaced by ones whose every step is a choice of the scheduler `shuttle`. A test then runs one schedule
//! after another in one thread, and a seed repeats a schedule. The package `schedules` has these tests.
//!
//! # Invariants
//! 1. A lock that is held while another operation of this module runs comes from this module. Otherwise a
//!    schedule could wait for a lock whose holder never runs. So `pool`, `log`, `slices`, `meta` and `fs`
//!    do not depend on `parking_lot`. The locks that remain in this crate are leaves.

#[cfg(feature = "schedules")]
mod scheduled;

#[cfg(not(feature = "schedules"))]
mod real {
    pub use std::sync::atomic;
    pub use std::{thread, thread_local};

    pub use parking_lot::{
        Condvar, Mutex, MutexGuard, RawMutex, RawRwLock, RawThreadId, RwLock, WaitTimeoutResult, lock_api,
    };
}

#[cfg(not(feature = "schedules"))]
pub use real::*;
#[cfg(feature = "schedules")]
pub use scheduled::*;
