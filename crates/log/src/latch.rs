//! The read-only latch, and the translation of the pool's errors into the log's.
//!
//! ```text
//!   writable ──on_write: any error but `NoSpace`──▶ read-only, until the pool is reopened
//!   opened for reading: closed from the start
//! ```
//!
//! # Invariants
//! 1. The latch never opens again: after a failed write or flush the devices may hold any part of it, and
//!    a second try could report success over lost bytes (`OnceLock` is set once;
//!    `tests/faults.rs: writes_that_fail_beyond_parity_latch_and_lose_nothing_that_was_synced`).
//! 2. The first failure is the reason that every later call reports, and it is logged once, as `log_latched`.

use std::sync::OnceLock;

use warpfire_pool::PoolError;
use warpfire_units::SlicePtr;

use crate::store::LogError;

/// Holds the reason why nothing is written, if there is one: the first failure of a write, or that the pool
/// is open for reading.
#[derive(Default)]
pub(crate) struct Latch {
    reason: OnceLock<LogError>,
}

impl Latch {
    /// The latch of a log over a pool that is open for reading.
    pub(crate) fn for_reading() -> Latch {
        Latch { reason: OnceLock::from(LogError::OpenForReading) }
    }

    /// `ReadOnly` once a write has failed beyond parity; `OpenForReading`.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.reason.get().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// Translates a failed write, flush or allocation. Every error but `NoSpace` trips the latch: an
    /// allocation that finds no room has written nothing.
    pub(crate) fn on_write(&self, error: PoolError) -> LogError {
        if matches!(error, PoolError::NoSpace) {
            return LogError::NoSpace;
        }
        let mut first = false;
        let why = self.reason.get_or_init(|| {
            first = true;
            LogError::ReadOnly(error.to_string().into())
        });
        if first {
            tracing::error!(name: "log_latched", %error, "the pool is read-only until it is reopened");
        }
        assert!(self.check().is_err(), "a latched log refuses writes");
        why.clone()
    }
}

/// Translates a failed read. A read trips no latch: it changes nothing.
pub(crate) fn on_read(slice: SlicePtr, error: &PoolError) -> LogError {
    match error {
        PoolError::BadSlice(bad) => LogError::BadPointer(*bad),
        // The segment was freed: nothing has referred to the slice since.
        PoolError::UnknownSegment(_) => LogError::BadPointer(slice),
        other => LogError::Damaged(format!("{slice}: {other}").into()),
    }
}
