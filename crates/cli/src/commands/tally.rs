//! Failures of a command that goes on after them.

use std::cell::Cell;

use warpfire_terminal::{Failure, is_json, print_json};

use crate::output::ChangeSummary;

/// Counts the files that a command has changed, and those that it could not work on. Each of the latter is
/// reported on stderr when it fails.
#[derive(Debug, Default)]
pub struct Tally {
    changed: Cell<u64>,
    failed: Cell<u64>,
    is_quiet: bool,
}

impl Tally {
    /// A tally that prints nothing, for a look ahead: the work itself meets the same failures.
    pub fn quiet() -> Tally {
        Tally { is_quiet: true, ..Tally::default() }
    }

    /// Reports a failure.
    pub fn report(&self, failure: &Failure) {
        if !self.is_quiet {
            failure.print();
        }
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

    /// Counts a file that the command has changed.
    pub fn count_change(&self) {
        self.changed.set(self.changed.get() + 1);
    }

    /// Counts the file that this step has changed, or reports its failure.
    ///
    /// # Errors
    /// As [`take`](Tally::take).
    pub fn change(&self, step: Result<(), impl Into<Failure>>) -> Result<(), Failure> {
        if self.take(step)?.is_some() {
            self.count_change();
        }
        Ok(())
    }

    /// The end of a command that changes files. With `--json` it prints a summary.
    ///
    /// # Errors
    /// As [`finish`](Tally::finish); stdout cannot be written.
    pub fn finish_changes(self) -> Result<(), Failure> {
        if is_json() {
            print_json(&ChangeSummary { changed: self.changed.get(), failed: self.failed.get() })?;
        }
        self.finish()
    }

    /// The end of the command.
    ///
    /// # Errors
    /// Something failed. The failure is silent, because the reasons are already printed.
    pub fn finish(self) -> Result<(), Failure> {
        if self.failed.get() == 0 { Ok(()) } else { Err(Failure::silent()) }
    }

    /// Checks the steps of a transaction before its commit.
    ///
    /// # Errors
    /// Something failed, so nothing may be committed.
    pub fn check_whole(&self, verb: &str) -> Result<(), Failure> {
        if self.failed.get() == 0 { Ok(()) } else { Err(Failure::new(format_args!("nothing was {verb}"))) }
    }
}
