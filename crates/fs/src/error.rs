//! What can go wrong, and the number that the operating system has for it. Nothing else maps errors.

use std::sync::Arc;

use rustix::io::Errno;
use warpfire_format::Corrupt;
use warpfire_meta::{CommitError, LogError, MetaError};
use warpfire_slices::SliceError;

/// Why a call failed. Nothing has changed unless the call says otherwise.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FsError {
    /// No such name, or the directory is gone.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory will not do.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still holds names.
    #[error("directory not empty")]
    NotEmpty,
    /// Permissions refuse the caller.
    #[error("permission denied")]
    AccessDenied,
    /// Only the owner, or only root, may.
    #[error("operation not permitted")]
    NotPermitted,
    /// The request makes no sense.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A name has more than 255 bytes, or a path more than 4095.
    #[error("name too long")]
    NameTooLong,
    /// The file has as many names as one can have.
    #[error("too many links")]
    TooManyLinks,
    /// More than 40 symbolic links on one path.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// The file would end beyond 2^63 - 1 bytes, or the change touches more regions than one commit holds.
    #[error("file too large")]
    FileTooLarge,
    /// The pool is full: delete something, or add a device.
    #[error("no space left in the pool")]
    NoSpace,
    /// No such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The buffer is too small for the answer, or a value too long for its place.
    #[error("result does not fit: it has {0} bytes")]
    Range(usize),
    /// An extended attribute's value is longer than 64 KiB.
    #[error("value too large")]
    ValueTooLarge,
    /// Not a thing that this kind of file, or this filesystem, does.
    #[error("not supported")]
    Unsupported,
    /// No data, or no hole, at or after the offset.
    #[error("no such offset")]
    NoSuchOffset,
    /// A slice of another pool, or of one that has been closed since.
    #[error("the slice is of another pool")]
    ForeignSlice,
    /// The slice's lease has ended, and its bytes are kept no more: yank it again.
    #[error("the slice's lease has ended")]
    LeaseExpired,
    /// The root directory, or a directory that is being moved into itself.
    #[error("busy")]
    Busy,
    /// The pool has latched read-only after a failure; only reopening recovers. What was synced is safe.
    #[error("the pool is read-only until it is reopened: {0}")]
    ReadOnly(Arc<str>),
    /// Bytes that cannot be read or rebuilt, that do not decode, or that contradict other bytes. Every kind
    /// of damage has a permanent code of its own, which is never 0; bytes that could not be read at all have
    /// code 264.
    #[error("damaged ({code}): {reason}")]
    Damaged {
        /// See docs/FORMAT.md, "Corruption codes".
        code: u16,
        /// What was found.
        reason: Arc<str>,
    },
    /// The engine can not say whether the change took place; look.
    #[error("outcome unknown: {0}")]
    Unknown(Arc<str>),
    /// A transaction could not be committed: this call would answer otherwise now than it did. Nothing has
    /// changed; begin again.
    #[error("conflict: another change came between: '{call}' of {path} would answer otherwise now")]
    Conflict {
        /// What was called.
        call: &'static str,
        /// The path whose answer has changed.
        path: Arc<str>,
    },
    /// The transaction that this belongs to has been committed or aborted.
    #[error("the transaction has ended")]
    Ended,
    /// The transaction was begun for reading only.
    #[error("the transaction only reads")]
    ReadOnlyTransaction,
    /// The transaction changes more than fits in the memory that one may take. This call has changed nothing;
    /// what was done before can be committed.
    #[error("the transaction changes too many files")]
    TransactionTooLarge,
}

impl FsError {
    /// The operating system's number for this.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let errno = match self {
            FsError::NotFound => Errno::NOENT,
            FsError::Exists => Errno::EXIST,
            FsError::NotDirectory => Errno::NOTDIR,
            FsError::IsDirectory => Errno::ISDIR,
            FsError::NotEmpty => Errno::NOTEMPTY,
            FsError::AccessDenied => Errno::ACCESS,
            FsError::NotPermitted => Errno::PERM,
            FsError::Invalid(_) => Errno::INVAL,
            FsError::NameTooLong => Errno::NAMETOOLONG,
            FsError::TooManyLinks => Errno::MLINK,
            FsError::SymlinkLoop => Errno::LOOP,
            FsError::FileTooLarge => Errno::FBIG,
            FsError::NoSpace => Errno::NOSPC,
            FsError::NoAttribute => Errno::NODATA,
            FsError::Range(_) => Errno::RANGE,
            FsError::ValueTooLarge => Errno::TOOBIG,
            FsError::Unsupported => Errno::OPNOTSUPP,
            FsError::NoSuchOffset => Errno::NXIO,
            FsError::ForeignSlice => Errno::XDEV,
            FsError::LeaseExpired => Errno::STALE,
            FsError::Busy => Errno::BUSY,
            FsError::ReadOnly(_) | FsError::ReadOnlyTransaction => Errno::ROFS,
            FsError::Ended => Errno::BADF,
            FsError::TransactionTooLarge => Errno::NOMEM,
            FsError::Conflict { .. } => Errno::AGAIN,
            FsError::Damaged { .. } | FsError::Unknown(_) => Errno::IO,
        };
        errno.raw_os_error()
    }
}

impl From<Corrupt> for FsError {
    fn from(e: Corrupt) -> Self {
        FsError::Damaged { code: e.code, reason: e.reason.into() }
    }
}

impl From<SliceError> for FsError {
    fn from(e: SliceError) -> Self {
        match e {
            SliceError::NoSpace => FsError::NoSpace,
            SliceError::ReadOnly(why) => FsError::ReadOnly(why),
            SliceError::Damaged { code, reason } => FsError::Damaged { code, reason },
        }
    }
}

impl From<LogError> for FsError {
    fn from(e: LogError) -> Self {
        SliceError::from(e).into()
    }
}

impl From<MetaError> for FsError {
    fn from(e: MetaError) -> Self {
        match e {
            MetaError::Log(e) => e.into(),
            MetaError::Slices(e) => e.into(),
            MetaError::Schema(e) => FsError::Damaged { code: e.code, reason: e.reason.into() },
            MetaError::Corrupt { code, reason } => FsError::Damaged { code, reason },
            MetaError::Ended => FsError::Ended,
            MetaError::ReadOnlyTransaction => FsError::ReadOnlyTransaction,
            MetaError::TooLarge => FsError::TransactionTooLarge,
        }
    }
}

impl From<CommitError> for FsError {
    fn from(e: CommitError) -> Self {
        match e {
            CommitError::Conflict => FsError::Unknown("a commit without reads can not conflict".into()),
            CommitError::Unknown(why) => FsError::Unknown(why),
            CommitError::Failed(e) => e.into(),
        }
    }
}
