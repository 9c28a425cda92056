//! The work of a server of which one piece runs at a time.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use warpfire_terminal::Failure;

/// The piece of work that runs.
#[derive(Default)]
pub(super) struct Work {
    /// Held while it runs.
    running: Mutex<()>,
    /// The name of the work that has begun last.
    name: Mutex<&'static str>,
}

impl Work {
    /// Begins work of this name, which ends when the answer is dropped.
    ///
    /// # Errors
    /// Other work runs. The failure names it.
    pub(super) fn begin(&self, name: &'static str) -> Result<MutexGuard<'_, ()>, Failure> {
        let running = match self.running.try_lock() {
            Ok(running) => running,
            // Work that has panicked has left nothing behind here.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let other = *self.name.lock().unwrap_or_else(PoisonError::into_inner);
                return Err(Failure::new(format_args!("the pool is busy with {other}"))
                    .hint("wait for its end, or cancel it with Ctrl-C where it was started"));
            }
        };
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = name;
        Ok(running)
    }

    /// Waits until no work runs.
    pub(super) fn await_end(&self) {
        drop(self.running.lock().unwrap_or_else(PoisonError::into_inner));
    }

    #[cfg(test)]
    pub(super) fn is_running(&self) -> bool {
        self.running.try_lock().is_err()
    }
}
