//! The work of a server of which one piece runs at a time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use warpfire_terminal::Failure;

/// The piece of work that runs.
#[derive(Default)]
pub(super) struct Work {
    /// Its name; `None` if none runs.
    running: Mutex<Option<&'static str>>,
    ended: Condvar,
}

/// A piece of work. It ends when this is dropped, also by a panic.
pub(super) struct Working<'w>(&'w Work);

impl Work {
    fn running(&self) -> MutexGuard<'_, Option<&'static str>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins work of this name.
    ///
    /// # Errors
    /// Other work runs. The failure names it.
    pub(super) fn begin(&self, name: &'static str) -> Result<Working<'_>, Failure> {
        let mut running = self.running();
        if let Some(other) = *running {
            return Err(Failure::new(format_args!("the pool is busy with {other}"))
                .hint("wait for its end, or cancel it with Ctrl-C where it was started"));
        }
        *running = Some(name);
        Ok(Working(self))
    }

    /// Waits until no work runs.
    pub(super) fn await_end(&self) {
        let idle = self.ended.wait_while(self.running(), |running| running.is_some());
        drop(idle.unwrap_or_else(PoisonError::into_inner));
    }

    #[cfg(test)]
    pub(super) fn is_running(&self) -> bool {
        self.running().is_some()
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        *self.0.running() = None;
        self.0.ended.notify_all();
    }
}
