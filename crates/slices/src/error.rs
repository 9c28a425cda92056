//! What can go wrong with slices, by what the caller can do.

use std::sync::Arc;

use warpfire_log::LogError;

/// Why a call on slices failed. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SliceError {
    /// The pool is full for this kind of caller: delete something, or add a device.
    #[error("no space left in the pool")]
    NoSpace,
    /// Nothing can be written any more: reopen the pool. What was synced is safe, and reads go on.
    #[error("the pool is read-only until it is reopened: {0}")]
    ReadOnly(Arc<str>),
    /// These bytes cannot be read or rebuilt: bring back a missing device, or use another copy. Other bytes
    /// can be read.
    #[error("damaged ({code}): {reason}")]
    Damaged {
        /// As in docs/FORMAT.md "Corruption codes".
        code: u16,
        /// What was found where.
        reason: Arc<str>,
    },
}

impl From<LogError> for SliceError {
    fn from(e: LogError) -> Self {
        match e {
            LogError::NoSpace => SliceError::NoSpace,
            LogError::ReadOnly(why) => SliceError::ReadOnly(why),
            LogError::Damaged(reason) => SliceError::Damaged { code: LogError::UNREADABLE.code, reason },
            LogError::BadPointer(slice) => {
                let reason = format!("{} {slice}", LogError::BAD_POINTER.reason).into();
                SliceError::Damaged { code: LogError::BAD_POINTER.code, reason }
            }
            LogError::Corrupt { code, reason } => SliceError::Damaged { code, reason },
        }
    }
}
