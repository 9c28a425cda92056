//! The work of a server for its clients: status and trim.

use std::ops::ControlFlow;
use std::sync::Arc;

use warpfire::Warpfire;
use warpfire_env::{Clock, SystemClock};
use warpfire_mount::FailedRequests;
use warpfire_terminal::Failure;

use super::socket::{Client, stopped};
use super::wire::{Answer, Request};
use crate::commands::status::{ErrorReport, StatusReport};
use crate::commands::trim::TrimOutput;

/// A pool that is mounted by this process.
pub struct ServedPool {
    pub pool: Warpfire,
    /// The directory, in words.
    pub mountpoint: String,
    pub read_only: bool,
    pub failures: Arc<FailedRequests>,
}

impl ServedPool {
    /// The answer to a request without work: the status.
    pub fn short_answer(&self) -> Answer {
        Answer::Status(Box::new(StatusReport {
            read_only: self.read_only,
            errors: self.failures.listed().iter().map(ErrorReport::from).collect(),
            ..StatusReport::new(&self.pool, Some(self.mountpoint.clone()))
        }))
    }

    /// Does what a request asks for, and returns the result.
    ///
    /// # Errors
    /// The pool is mounted for reading only, or has failed; the mount ends.
    pub fn work(&self, request: Request, client: &mut Client<'_>) -> Result<Answer, Failure> {
        if self.read_only {
            return Err(Failure::new(format_args!("the pool is mounted read-only at {}", self.mountpoint))
                .hint("unmount it and mount it without 'ro', or run the command when it is unmounted"));
        }
        let answer = match request {
            Request::Status => self.short_answer(),
            Request::Trim => self.trim(client)?,
        };
        // The answer of work that was broken off is not whole.
        if client.is_stopping() { Err(stopped()) } else { Ok(answer) }
    }

    fn trim(&self, client: &mut Client<'_>) -> Result<Answer, Failure> {
        let started_nanos = SystemClock.monotonic_nanos();
        let trimmed = self.pool.trim(|so_far| -> ControlFlow<()> {
            client.progress(&Answer::Trimming(so_far.discarded_bytes));
            client.goes_on(0)
        });
        let trimmed = trimmed.map_err(|error| Failure::pool(&error))?;
        let nanos = SystemClock.monotonic_nanos() - started_nanos;
        Ok(Answer::Trimmed(TrimOutput::new(&trimmed, &self.pool, nanos)))
    }
}
