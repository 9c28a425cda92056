//! Errors of slices, one for each thing that a caller can do about it.

use std::sync::Arc;

use warpfire_log::LogError;

/// The reason why a call on slices failed. The failed call has changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SliceError {
    /// The pool has no room for this kind of caller: delete something, or add a device.
    #[error("no space left in the pool")]
    NoSpace,
    /// Nothing can be written any more: reopen the pool. Synced data is safe, and reads go on.
    #[error("the pool is read-only until it is reopened: {0}")]
    ReadOnly(Arc<str>),
    /// The pool is open for reading. Open it for writing to change it.
    #[error("the pool is open for reading only")]
    OpenForReading,
    /// These bytes can be neither read nor reconstructed: reattach a missing device, or use another copy.
    /// Other bytes can be read.
    #[error("damaged ({code}): {reason}")]
    Damaged {
        /// A code of docs/FORMAT.md "Corruption codes".
        code: u16,
        /// The place and the finding.
        reason: Arc<str>,
    },
}

impl From<LogError> for SliceError {
    fn from(e: LogError) -> Self {
        match e {
            LogError::NoSpace => SliceError::NoSpace,
            LogError::ReadOnly(why) => SliceError::ReadOnly(why),
            LogError::OpenForReading => SliceError::OpenForReading,
            LogError::Damaged(reason) => SliceError::Damaged { code: LogError::UNREADABLE.code, reason },
            LogError::BadPointer(slice) => {
                let reason = format!("{} {slice}", LogError::BAD_POINTER.reason).into();
                SliceError::Damaged { code: LogError::BAD_POINTER.code, reason }
            }
            LogError::Corrupt { code, reason } => SliceError::Damaged { code, reason },
        }
    }
}
