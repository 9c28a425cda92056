//! What can go wrong, in few kinds, each with what to do about it.

use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use warpfire_env::{DeviceError, OpenError};
use warpfire_fs::FsError;
use warpfire_log::LogError;
use warpfire_meta::MetaError;
use warpfire_pool::{DeviceSetError, PoolError};

/// What a call of this library gives.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. Its text is one sentence without a full stop; [`hint`](Error::hint) says what to do.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    errno: i32,
    message: String,
    hint: Option<&'static str>,
}

/// The kinds of failure that a program can tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such file or folder, or no such device.
    NotFound,
    /// The name is taken, or a device holds something already.
    AlreadyExists,
    /// A folder was needed.
    NotADirectory,
    /// A folder will not do.
    IsADirectory,
    /// The folder still holds names.
    DirectoryNotEmpty,
    /// The caller's identity may not do this.
    PermissionDenied,
    /// The call itself is wrong: a name too long, an offset out of range, a geometry that can not be.
    InvalidInput,
    /// The pool is full. Removing files still works.
    NoSpace,
    /// The pool went read-only after a failure; reopen it. What was synced is safe.
    ReadOnly,
    /// The slice is kept no more: its lease has ended.
    Expired,
    /// Bytes can not be read or rebuilt, or do not mean anything.
    Damaged,
    /// A device is in use by another process.
    InUse,
    /// These devices are not one whole pool: one is foreign, doubled, of another pool, or too many are missing.
    NotAPool,
    /// A device failed.
    Device,
    /// A transaction could not be committed because something that it had read has changed. Nothing of it took place; begin again.
    Conflict,
    /// The transaction has ended, or was begun for reading only.
    WrongTransaction,
    /// The transaction would change more than fits in the memory that one may take. What was done before can be committed.
    TransactionTooLarge,
    /// This kind of file, or this filesystem, does not do that.
    Unsupported,
    /// Anything else; the operating system's number says what.
    Other,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, errno: i32, message: impl Into<String>) -> Self {
        Error { kind, errno, message: message.into(), hint: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidInput, Errno::INVAL.raw_os_error(), message)
    }

    pub(crate) fn with_hint(self, hint: &'static str) -> Self {
        Error { hint: Some(hint), ..self }
    }

    pub(crate) fn no_thread(error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(Errno::AGAIN.raw_os_error());
        Error::new(ErrorKind::Other, errno, format!("cannot start a thread: {error}"))
    }

    pub(crate) fn of_path(path: &Path, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
            io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::Other,
        };
        let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        Error::new(kind, errno, format!("{}: {error}", path.display()))
    }

    /// What kind of failure this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operating system's number for it (`ENOENT` …).
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// What to do about it, where that can be said.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.hint
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = io::Error::from_raw_os_error(error.errno).kind();
        io::Error::new(kind, error)
    }
}

impl From<FsError> for Error {
    fn from(error: FsError) -> Self {
        let (kind, hint) = match &error {
            FsError::NotFound | FsError::NoAttribute | FsError::NoSuchOffset => (ErrorKind::NotFound, None),
            FsError::Exists => (ErrorKind::AlreadyExists, None),
            FsError::NotDirectory => (ErrorKind::NotADirectory, None),
            FsError::IsDirectory => (ErrorKind::IsADirectory, None),
            FsError::NotEmpty => (ErrorKind::DirectoryNotEmpty, None),
            FsError::AccessDenied | FsError::NotPermitted => (ErrorKind::PermissionDenied, None),
            FsError::Invalid(_)
            | FsError::NameTooLong
            | FsError::TooManyLinks
            | FsError::SymlinkLoop
            | FsError::FileTooLarge
            | FsError::Range(_)
            | FsError::ValueTooLarge => (ErrorKind::InvalidInput, None),
            FsError::NoSpace => (ErrorKind::NoSpace, Some("remove something, or add a device")),
            FsError::ReadOnly(_) => (ErrorKind::ReadOnly, Some(REOPEN)),
            FsError::Damaged { .. } => (ErrorKind::Damaged, Some(DAMAGED)),
            FsError::ForeignSlice => {
                (ErrorKind::InvalidInput, Some("take it from a file of this pool, since it was opened"))
            }
            FsError::LeaseExpired => (ErrorKind::Expired, Some("take the slice again")),
            FsError::Unsupported => (ErrorKind::Unsupported, None),
            FsError::Conflict { .. } => (ErrorKind::Conflict, Some("begin the transaction again")),
            FsError::Ended => (ErrorKind::WrongTransaction, Some("begin another")),
            FsError::ReadOnlyTransaction => (ErrorKind::WrongTransaction, Some("begin one that writes")),
            FsError::TransactionTooLarge => (ErrorKind::TransactionTooLarge, Some(IN_PARTS)),
            _ => (ErrorKind::Other, None),
        };
        Error { kind, errno: error.errno(), message: error.to_string(), hint }
    }
}

const IN_PARTS: &str = "commit it and go on in another; some two million files fit in one";
const REOPEN: &str = "close the pool, see to its devices and open it again; what was synced is safe";
const LEAVE_OUT: &str = "find it, or leave it out: as many devices may be missing as the pool has parity";
const WRITABLE: &str = "a pool is opened for writing: use a place and a user that may write to its devices";
const DAMAGED: &str = "bring back missing devices, or restore the file from elsewhere";

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        FsError::from(error).into()
    }
}

impl From<MetaError> for Error {
    fn from(error: MetaError) -> Self {
        FsError::from(error).into()
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        let errno = if matches!(error, DeviceError::NoSpace { .. }) {
            Errno::NOSPC.raw_os_error()
        } else {
            Errno::IO.raw_os_error()
        };
        Error::new(ErrorKind::Device, errno, error.to_string())
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match &error {
            OpenError::InUse { .. } => {
                Error::new(ErrorKind::InUse, Errno::BUSY.raw_os_error(), error.to_string())
                    .with_hint("a pool is used by one process at a time: use its mount, or unmount it first")
            }
            OpenError::System { path, source } => {
                let found = Error::of_path(path, source);
                match source.kind() {
                    io::ErrorKind::NotFound => found.with_hint(LEAVE_OUT),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                        found.with_hint(WRITABLE)
                    }
                    _ => found,
                }
            }
            OpenError::TooSmall { .. } => Error::invalid(error.to_string()).with_hint(LEAVE_OUT),
            OpenError::NotADevice { .. } => {
                Error::invalid(error.to_string()).with_hint("name image files and block devices")
            }
            OpenError::Zones { .. } => Error::invalid(error.to_string()),
        }
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        let message = error.to_string();
        let of = |kind, errno| Error::new(kind, errno, message.clone());
        match error {
            PoolError::NoSpace | PoolError::RootTooLarge { .. } => {
                of(ErrorKind::NoSpace, Errno::NOSPC.raw_os_error())
            }
            PoolError::Failed { .. } => of(ErrorKind::ReadOnly, Errno::ROFS.raw_os_error()).with_hint(REOPEN),
            PoolError::Unreadable { .. }
            | PoolError::BadSlice(_)
            | PoolError::UnknownSegment(_)
            | PoolError::Misfit { .. } => of(ErrorKind::Damaged, Errno::IO.raw_os_error()).with_hint(DAMAGED),
            PoolError::Device(error) => error.into(),
            PoolError::Devices(error) => error.into(),
        }
    }
}

impl From<DeviceSetError> for Error {
    fn from(error: DeviceSetError) -> Self {
        let message = error.to_string();
        let not_a_pool = || Error::new(ErrorKind::NotAPool, Errno::INVAL.raw_os_error(), message.clone());
        match error {
            DeviceSetError::Impossible(_) => Error::invalid(message),
            DeviceSetError::InUse { .. } => {
                Error::new(ErrorKind::AlreadyExists, Errno::EXIST.raw_os_error(), message)
                    .with_hint("choose another device, or force it to be overwritten")
            }
            DeviceSetError::NoPool { .. } => {
                not_a_pool().with_hint("name the devices of a pool; 'warpfire mkfs' makes one")
            }
            DeviceSetError::Foreign { .. } => not_a_pool().with_hint("name the devices of one pool only"),
            DeviceSetError::Duplicate { .. } => {
                not_a_pool().with_hint("name each device once, and no copy of it")
            }
            DeviceSetError::Missing { .. } => not_a_pool()
                .with_hint("name the missing devices too; 'warpfire inspect label' tells which is which"),
            DeviceSetError::Shrunk { .. } => {
                not_a_pool().with_hint("give the device its size back, or leave it out")
            }
            DeviceSetError::Diverged { .. } => {
                not_a_pool().with_hint("open the pool with one part of its devices only")
            }
            DeviceSetError::NoRoot(_) => {
                Error::new(ErrorKind::Damaged, Errno::IO.raw_os_error(), message).with_hint(DAMAGED)
            }
        }
    }
}
