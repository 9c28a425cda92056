//! The read-only latch, and the translation of the pool's errors into the log's.
//!
//! ```text
//!   writable ──on_write: any error but `NoSpace`──▶ read-only, until the pool is reopened
//! ```
//!
//! # Invariants
//! 1. The latch never opens again: after a failed write or flush the devices may hold any part of it, and
//!    a second try could report success over lost bytes (`OnceLock` is set once;
//!    `tests/faults.rs: writes_that_fail_beyond_parity_latch_and_lose_nothing_that_was_synced`).
//! 2. The first failure is the reason that every later call reports, and it is logged once, as `log_latched`.

use std::sync::{Arc, OnceLock};

use warpfire_pool::PoolError;
use warpfire_units::SlicePtr;

use crate::store::LogError;

/// Holds the first failure of a write, if there was one.
#[derive(Default)]
pub(crate) struct Latch {
    reason: OnceLock<Arc<str>>,
}

impl Latch {
    /// `ReadOnly` once a write has failed beyond parity.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.reason.get().map_or(Ok(()), |why| Err(LogError::ReadOnly(why.clone())))
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
            error.to_string().into()
        });
        if first {
            tracing::error!(name: "log_latched", error = %why, "the pool is read-only until it is reopened");
        }
        assert!(self.check().is_err(), "a latched log refuses writes");
        LogError::ReadOnly(why.clone())
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
