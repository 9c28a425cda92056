//! The read-only latch, and what the pool's errors mean to a caller of the log.
//!
//! Once tripped it stays: no write is tried again before the pool is reopened, because after a failed
//! flush nobody knows what the devices hold.

use std::sync::{Arc, OnceLock};

use warpfire_pool::PoolError;
use warpfire_units::SlicePtr;

use crate::store::LogError;

#[derive(Default)]
pub(crate) struct Latch {
    reason: OnceLock<Arc<str>>,
}

impl Latch {
    /// `ReadOnly` once a write has failed beyond parity.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.reason.get().map_or(Ok(()), |why| Err(LogError::ReadOnly(why.clone())))
    }

    /// What a failed write, flush or allocation means: no room is no harm, everything else trips the latch.
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
            tracing::error!("the pool is read-only until it is reopened: {why}");
        }
        LogError::ReadOnly(why.clone())
    }
}

/// What a failed read means.
pub(crate) fn on_read(slice: SlicePtr, error: &PoolError) -> LogError {
    match error {
        PoolError::BadSlice(bad) => LogError::BadPointer(*bad),
        PoolError::UnknownSegment(_) => LogError::BadPointer(slice),
        other => LogError::Damaged(format!("{slice}: {other}").into()),
    }
}
