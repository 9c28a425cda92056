//! Failures of a command that goes on after them.

use std::cell::Cell;

use warpfire_terminal::{Failure, note};

/// Counts the files that a command could not work on. Each is reported on stderr when it fails.
#[derive(Debug, Default)]
pub struct Tally {
    failed: Cell<u64>,
}

impl Tally {
    /// Reports a failure.
    pub fn report(&self, failure: &Failure) {
        note(failure.whole());
        self.failed.set(self.failed.get() + 1);
    }

    /// The value of a step, or `None` after its failure was reported.
    ///
    /// # Errors
    /// Nobody reads stdout any more, or every later step would fail too: the command ends.
    pub fn take<T>(&self, step: Result<T, impl Into<Failure>>) -> Result<Option<T>, Failure> {
        match step.map_err(Into::into) {
            Ok(value) => Ok(Some(value)),
            Err(failure) if failure.is_end_of_command() => Err(failure),
            Err(failure) => {
                self.report(&failure);
                Ok(None)
            }
        }
    }

    /// The end of the command.
    ///
    /// # Errors
    /// Something failed. The failure is silent, because the reasons are already printed.
    pub fn finish(self) -> Result<(), Failure> {
        if self.failed.get() == 0 { Ok(()) } else { Err(Failure::silent()) }
    }

    /// The end of the steps of a transaction, before its commit.
    ///
    /// # Errors
    /// Something failed, so nothing may be committed.
    pub fn finish_whole(self, verb: &str) -> Result<(), Failure> {
        if self.failed.get() == 0 { Ok(()) } else { Err(Failure::new(format_args!("nothing was {verb}"))) }
    }
}
