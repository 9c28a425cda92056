//! The errors of calls, and the errno of each. Only this file gives errors of the filesystem their errno.

use std::sync::Arc;

use rustix::io::Errno;
use warpfire_format::Corrupt;
use warpfire_meta::{CommitError, LogError, MemoryRefused, MetaError};
use warpfire_slices::SliceError;

use crate::damage::report_damage;

/// Why a call failed. The call has changed nothing unless its documentation says otherwise.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FsError {
    /// No such name, or the directory is gone.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// The call needs a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The call cannot work on a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still holds names.
    #[error("directory not empty")]
    NotEmpty,
    /// Permissions refuse the caller.
    #[error("permission denied")]
    AccessDenied,
    /// Only the owner, or only root, may do this.
    #[error("operation not permitted")]
    NotPermitted,
    /// An argument has a value that the call never accepts.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A name has more than 255 bytes, or a path more than 4095.
    #[error("name too long")]
    NameTooLong,
    /// The file has as many names as a file can have: 2^31 - 1.
    #[error("too many links")]
    TooManyLinks,
    /// A path leads through more than 40 symbolic links.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// The file would end beyond 2^63 - 1 bytes, or the change touches more regions than one commit holds.
    #[error("file too large")]
    FileTooLarge,
    /// The pool is full: delete something, or add a device.
    #[error("no space left in the pool")]
    NoSpace,
    /// The volume has a limit of bytes or of files, which the call would exceed: delete something, or raise
    /// the limit.
    #[error("the volume has reached its limit of {0}")]
    VolumeFull(&'static str),
    /// No such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The buffer is too small for the answer, or a name is empty or too long. The number is the length.
    #[error("result does not fit: it has {0} bytes")]
    Range(usize),
    /// An extended attribute's value is longer than 64 KiB.
    #[error("value too large")]
    ValueTooLarge,
    /// This kind of file, or this filesystem, does not support the call.
    #[error("not supported")]
    Unsupported,
    /// There is no data, or no hole, at or after the offset.
    #[error("no such offset")]
    NoSuchOffset,
    /// The slice belongs to another pool, or to an earlier open of this one.
    #[error("the slice belongs to another pool")]
    ForeignSlice,
    /// The file belongs to another pool, to an earlier open of this one, or to another transaction. So does
    /// the version of a file.
    #[error("the file belongs to another pool or transaction")]
    ForeignFile,
    /// The slice's lease has ended, and its bytes may be gone. Yank it again.
    #[error("the slice's lease has ended")]
    LeaseExpired,
    /// The root directory, `.` or `..` cannot be renamed or removed, nor the door of an empty volume be
    /// removed like a directory; or the call runs inside another call.
    #[error("busy")]
    Busy,
    /// A name cannot be moved to another volume, and a file has all its names in one volume.
    #[error("the names are in two volumes")]
    OtherVolume,
    /// An open file is gone: its volume has been deleted, or the part of a transaction that made it was
    /// undone.
    #[error("the file is gone")]
    Gone,
    /// The pool has latched read-only after a failure. Synced changes are safe. Only a reopen makes the pool
    /// writable again.
    #[error("the pool is read-only until it is reopened: {0}")]
    ReadOnly(Arc<str>),
    /// The pool is open for reading. Open it for writing to change it.
    #[error("the pool is open for reading only")]
    OpenForReading,
    /// Bytes cannot be read or reconstructed, do not decode, or contradict other bytes. Every kind of damage
    /// has a permanent code, which is never 0. Bytes that could not be read at all have code 264.
    #[error("damaged ({code}): {reason}")]
    Damaged {
        /// See docs/FORMAT.md, "Corruption codes".
        code: u16,
        /// The damage in words.
        reason: Arc<str>,
    },
    /// The engine cannot say whether the change took place. Read the file to find out.
    #[error("outcome unknown: {0}")]
    Unknown(Arc<str>),
    /// A transaction could not be committed, because this call of it would now have another answer. Nothing
    /// has changed; begin again.
    #[error("conflict: after another commit, '{call}' of {path} would answer differently")]
    Conflict {
        /// The name of the call.
        call: &'static str,
        /// The path that the call was about.
        path: Arc<str>,
    },
    /// The transaction that this belongs to has been committed or aborted.
    #[error("the transaction has ended")]
    Ended,
    /// The transaction was begun for reading only.
    #[error("the transaction is read-only")]
    ReadOnlyTransaction,
    /// The file is in a snapshot, which does not change.
    #[error("a snapshot is read-only")]
    ReadOnlySnapshot,
    /// The snapshot has holds, which keep it from being deleted.
    #[error("the snapshot is held: {0}")]
    SnapshotHeld(Arc<str>),
    /// The system gives the process no thread for background work, so the filesystem is not opened.
    #[error("cannot start a thread: {0}")]
    NoThread(Arc<str>),
    /// The changes of the transaction exceed the memory that a transaction may take. This call has changed
    /// nothing; the changes before it can be committed.
    #[error("the transaction changes too many files")]
    TransactionTooLarge,
    /// The memory budget refuses the call to this user, or to everyone: see [`MemoryRefused`]. The call has
    /// changed nothing; the changes before it can be committed.
    #[error(transparent)]
    Memory(#[from] MemoryRefused),
}

impl FsError {
    /// The errno of this error: a positive number.
    #[must_use]
    pub fn errno(&self) -> i32 {
        // Where Linux has a number for the same case, it is that number; programs branch on it.
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
            FsError::ForeignSlice | FsError::ForeignFile | FsError::OtherVolume => Errno::XDEV,
            FsError::LeaseExpired | FsError::Gone => Errno::STALE,
            FsError::Busy | FsError::SnapshotHeld(_) => Errno::BUSY,
            FsError::ReadOnly(_)
            | FsError::OpenForReading
            | FsError::ReadOnlyTransaction
            | FsError::ReadOnlySnapshot => Errno::ROFS,
            FsError::Ended => Errno::BADF,
            FsError::VolumeFull(_) | FsError::Memory(MemoryRefused::Share) => Errno::DQUOT,
            FsError::TransactionTooLarge | FsError::Memory(MemoryRefused::Total) => Errno::NOMEM,
            FsError::Conflict { .. } | FsError::NoThread(_) => Errno::AGAIN,
            FsError::Damaged { .. } | FsError::Unknown(_) => Errno::IO,
        };
        let number = errno.raw_os_error();
        debug_assert!(number > 0, "an errno is positive");
        number
    }
}

impl From<Corrupt> for FsError {
    fn from(e: Corrupt) -> Self {
        report_damage(e.code, e.reason);
        FsError::Damaged { code: e.code, reason: e.reason.into() }
    }
}

impl From<SliceError> for FsError {
    fn from(e: SliceError) -> Self {
        match e {
            SliceError::NoSpace => FsError::NoSpace,
            SliceError::ReadOnly(why) => FsError::ReadOnly(why),
            SliceError::OpenForReading => FsError::OpenForReading,
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
            MetaError::Schema(e) => {
                // The engine folds records and does not know what they mean, so this room reports them.
                report_damage(e.code, &e.reason);
                FsError::Damaged { code: e.code, reason: e.reason.into() }
            }
            MetaError::Corrupt { code, reason } => FsError::Damaged { code, reason },
            MetaError::Ended => FsError::Ended,
            MetaError::ReadOnlyTransaction => FsError::ReadOnlyTransaction,
            MetaError::ReadOnlySnapshot => FsError::ReadOnlySnapshot,
            MetaError::NoThread(why) => FsError::NoThread(why),
            MetaError::TooLarge => FsError::TransactionTooLarge,
            MetaError::Memory(e) => e.into(),
        }
    }
}

impl From<CommitError> for FsError {
    fn from(e: CommitError) -> Self {
        match e {
            CommitError::Conflict => FsError::Unknown("a commit without reads cannot conflict".into()),
            CommitError::Unknown(why) => FsError::Unknown(why),
            CommitError::Failed(e) => e.into(),
        }
    }
}
