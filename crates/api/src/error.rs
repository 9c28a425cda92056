//! Errors in few kinds, each with what the caller can do. This file maps the errors of all lower crates.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use warpfire_env::{DeviceError, OpenError};
use warpfire_fs::FsError;
use warpfire_log::LogError;
use warpfire_meta::MetaError;
use warpfire_pool::{DeviceSetError, MembershipError, PoolError};

/// The result of a call of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. The text is one sentence without a full stop; [`hint`](Error::hint) says what to try.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    errno: i32,
    message: String,
    hint: Option<&'static str>,
    device: Option<PathBuf>,
}

/// The kinds of failure that a program can distinguish. Each names what the caller can do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such file or directory, extended attribute, or device. Check the path.
    NotFound,
    /// The name is taken, or a device holds data already. Choose another, or overwrite it knowingly.
    AlreadyExists,
    /// Part of the path is not a directory. Check the path.
    NotADirectory,
    /// The call works on files, and the path leads to a directory. Use the call for directories.
    IsADirectory,
    /// The directory still holds names. Remove them first, or use
    /// [`remove_dir_all`](crate::Warpfire::remove_dir_all).
    DirectoryNotEmpty,
    /// The identity of the handle may not do this. Use another identity, or change owner or permissions.
    PermissionDenied,
    /// The call itself is wrong: a name that is too long, an offset out of range, an impossible geometry.
    /// Repeating it fails again.
    InvalidInput,
    /// The pool is full. Remove something, which still works, or make a larger pool.
    NoSpace,
    /// The pool is open for reading; open it for writing to change it. Or it refuses changes after a failure
    /// that parity does not cover: close it, check its devices and open it again. Synced changes are safe;
    /// later ones may be lost.
    ReadOnly,
    /// The lease of the slice has ended, so its bytes may be gone. Yank it again.
    Expired,
    /// Bytes cannot be read or reconstructed, or contradict each other. Bring back missing devices, or
    /// restore the file from a backup. Other files are not affected.
    Damaged,
    /// Another process has the device open. Use the mount of that process, or wait until it ends. Any number
    /// of processes can have a pool open for reading at once, or one can for writing.
    InUse,
    /// The devices are not one whole pool: one belongs to no pool or to another, is a copy of another, or too
    /// many are missing. Name the right ones.
    NotAPool,
    /// A device failed. Check it and its cable, then try again; a pool with parity opens without it.
    Device,
    /// Another commit has changed something that the transaction read. Nothing has changed: run it again, or
    /// let [`transact`](crate::Warpfire::transact) do so.
    Conflict,
    /// The transaction has ended, or it was begun for reading only. Begin another.
    WrongTransaction,
    /// The transaction needs more memory than one may take. This call has changed nothing: commit the earlier
    /// calls and continue in another transaction.
    TransactionTooLarge,
    /// The open transactions have all the memory that they may take together. This call has changed nothing:
    /// commit or drop one of them, then repeat the call; or open the pool with more
    /// [`transaction_memory`](crate::PoolOptions::transaction_memory).
    NoMemory,
    /// This kind of file, or this filesystem, has no such operation; or another version of Warpfire made the
    /// pool, and this one cannot read it.
    Unsupported,
    /// The volume has a limit, which the call would exceed. Remove files, or raise the limit.
    LimitReached,
    /// The snapshot has holds. Release them first.
    Held,
    /// A stream of a snapshot cannot be written or read, was cut, or has changed on its way. Send its rest:
    /// everything up to the last mark is kept.
    StreamBroken,
    /// A stream of a snapshot does not fit the directory that shall receive it. The text says which one
    /// would.
    StreamRefused,
    /// None of the above, such as renaming the root, or a commit with an unknown outcome.
    /// [`errno`](Error::errno) and the text say more.
    Other,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, errno: i32, message: impl Into<String>) -> Self {
        Error { kind, errno, message: message.into(), hint: None, device: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidInput, Errno::INVAL.raw_os_error(), message)
    }

    /// Damage in the content of a file.
    pub(crate) fn lost_bytes(lost: &Range<u64>) -> Self {
        let message = format!(
            "damaged: bytes {}..{} ({} bytes) cannot be read or reconstructed",
            lost.start,
            lost.end,
            lost.end - lost.start
        );
        Error::new(ErrorKind::Damaged, Errno::IO.raw_os_error(), message).with_hint(SALVAGE)
    }

    pub(crate) fn with_hint(self, hint: &'static str) -> Self {
        Error { hint: Some(hint), ..self }
    }

    /// Names the device or image file that is the reason.
    pub(crate) fn of_device(self, device: impl Into<PathBuf>) -> Self {
        Error { device: Some(device.into()), ..self }
    }

    /// The error of a pool that is damaged so much that it does not open. The details are for the log.
    pub(crate) fn unopened(self) -> Self {
        if self.kind != ErrorKind::Damaged || self.hint == Some(SNAPSHOTS_UNKNOWN) {
            return self;
        }
        tracing::info!(reason = self.message, "the pool does not open");
        let message = "the metadata of the pool is damaged and cannot be rebuilt";
        Error { message: message.to_owned(), hint: Some(UNOPENED), ..self }
    }

    pub(crate) fn no_thread(error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(Errno::AGAIN.raw_os_error());
        Error::new(ErrorKind::Other, errno, format!("cannot start a thread: {error}")).with_hint(MORE_THREADS)
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

    /// The kind of the failure, for a program to match.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The errno of the operating system for it, such as `ENOENT`. Never 0.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// What to try, as a clause in lower case without a full stop; `None` if there is nothing to suggest.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.hint
    }

    /// The device or image file that is the reason, if it is one alone.
    #[must_use]
    pub fn device(&self) -> Option<&Path> {
        self.device.as_deref()
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
            FsError::NoSpace => (ErrorKind::NoSpace, Some("remove files, or copy them to a larger pool")),
            FsError::VolumeFull(_) => (ErrorKind::LimitReached, Some(RAISE_LIMIT)),
            FsError::ReadOnly(_) => (ErrorKind::ReadOnly, Some(REOPEN)),
            FsError::OpenForReading => (ErrorKind::ReadOnly, Some(OPEN_TO_WRITE)),
            FsError::Damaged { .. } => (ErrorKind::Damaged, Some(DAMAGED)),
            FsError::ForeignSlice => (
                ErrorKind::InvalidInput,
                Some("yank it again from a file of this pool while the pool is open"),
            ),
            FsError::ForeignFile => {
                (ErrorKind::InvalidInput, Some("open both files with one handle of the pool or transaction"))
            }
            FsError::LeaseExpired => (ErrorKind::Expired, Some("yank the slice again")),
            FsError::Unsupported => (ErrorKind::Unsupported, None),
            FsError::Busy => (
                ErrorKind::Other,
                Some(
                    "the root, '.' and '..' keep their names, and 'warpfire volume delete' deletes a volume",
                ),
            ),
            FsError::OtherVolume => {
                (ErrorKind::Other, Some("copy it: a clone and a volume have files of their own"))
            }
            FsError::Gone => (ErrorKind::NotFound, None),
            FsError::SnapshotHeld(_) => (ErrorKind::Held, Some("release its holds first")),
            FsError::Conflict { .. } => (ErrorKind::Conflict, Some("begin the transaction again")),
            FsError::Ended => (ErrorKind::WrongTransaction, Some("begin another transaction")),
            FsError::ReadOnlyTransaction => {
                (ErrorKind::WrongTransaction, Some("begin a transaction that writes"))
            }
            FsError::ReadOnlySnapshot => (ErrorKind::ReadOnly, Some("copy the files out of the snapshot")),
            FsError::TransactionTooLarge => (ErrorKind::TransactionTooLarge, Some(IN_PARTS)),
            FsError::Memory(_) => (ErrorKind::NoMemory, Some(END_ONE)),
            FsError::NoThread(_) => (ErrorKind::Other, Some(MORE_THREADS)),
            _ => (ErrorKind::Other, None),
        };
        Error { hint, ..Error::new(kind, error.errno(), error.to_string()) }
    }
}

const RAISE_LIMIT: &str = "remove files, or raise the limit with 'warpfire volume limit'";
const IN_PARTS: &str = "commit it and continue in another; about two million files fit in one";
const END_ONE: &str = "commit or drop a transaction, or open the pool with more memory for transactions";
const REOPEN: &str =
    "close the pool, check its devices and open it again; everything that was synced is safe";
const LEAVE_OUT: &str = "check the path; if the device is lost and parity covers it, leave it out";
const OPEN_TO_WRITE: &str = "open the pool for writing to change it";
const ONE_USER: &str =
    "one process at a time can have a pool open for writing: use its mount, or unmount it first";
const MORE_THREADS: &str = "raise the limit of processes ('ulimit -u', 'pids.max' of the control group)";
const READERS: &str = "wait until the processes that read the pool end, or open it for reading too";
const NO_MEMBER: &str = "it holds no pool; check the path, or leave it out if parity covers it";
const WRITABLE: &str = "make the devices writable for this user, or open the pool for reading only";
const SALVAGE: &str = "bring back missing devices, or copy the rest with 'warpfire cp --salvage'";
const UNOPENED: &str =
    "bring back missing devices, or restore the files from a backup; 'warpfire fsck' names the losses";
const SNAPSHOTS_UNKNOWN: &str =
    "bring back missing devices, or open the pool for reading: 'warpfire mount --read-only', 'warpfire cp'";
const DAMAGED: &str = "bring back missing devices, or restore the file from elsewhere";

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        FsError::from(error).into()
    }
}

impl From<MetaError> for Error {
    fn from(error: MetaError) -> Self {
        if error.is_of_snapshots() {
            let message =
                "the records of the snapshots cannot be read, and a change could drop what they show";
            return Error::new(ErrorKind::Damaged, Errno::IO.raw_os_error(), message)
                .with_hint(SNAPSHOTS_UNKNOWN);
        }
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
        Error::new(ErrorKind::Device, errno, error.to_string()).of_device(error.device())
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        let refused = match &error {
            OpenError::InUse { .. } => {
                Error::new(ErrorKind::InUse, Errno::BUSY.raw_os_error(), error.to_string())
                    .with_hint(ONE_USER)
            }
            OpenError::InUseByReaders { .. } => {
                Error::new(ErrorKind::InUse, Errno::BUSY.raw_os_error(), error.to_string()).with_hint(READERS)
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
            OpenError::TooSmall { .. } => Error::invalid(error.to_string()).with_hint(NO_MEMBER),
            OpenError::NotADevice { .. } => {
                Error::invalid(error.to_string()).with_hint("name an image file or a block device")
            }
            OpenError::Zones { .. } => Error::invalid(error.to_string()),
        };
        refused.of_device(error.path())
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
            PoolError::OpenForReading => {
                of(ErrorKind::ReadOnly, Errno::ROFS.raw_os_error()).with_hint(OPEN_TO_WRITE)
            }
            PoolError::Unreadable { .. }
            | PoolError::BadSlice(_)
            | PoolError::UnknownSegment(_)
            | PoolError::Misfit { .. } => of(ErrorKind::Damaged, Errno::IO.raw_os_error()).with_hint(DAMAGED),
            PoolError::Membership(refused) => refused_membership(&refused, message),
            PoolError::Device(error) => error.into(),
            PoolError::Devices(error) => error.into(),
        }
    }
}

fn refused_membership(refused: &MembershipError, message: String) -> Error {
    let error = Error::invalid(message);
    match refused {
        MembershipError::Needed { .. } => error.with_hint(
            "wait until 'warpfire status' shows all redundancy, bring other devices back, or move its data away with 'warpfire device remove'",
        ),
        MembershipError::LastDevices { .. } => error.with_hint("bring other devices back first"),
        MembershipError::NotMember { .. } => error.with_hint("'warpfire device add' makes it a new device of the pool"),
        MembershipError::OldCopy { .. } => error.with_hint(ADD_ANEW),
        MembershipError::OwesAnswer { .. } => {
            error.with_hint("wait until it answers, or open the pool again with it")
        }
        _ => error,
    }
}

/// What to do with a device that cannot be taken back.
pub(crate) const ADD_ANEW: &str =
    "remove it from the pool with 'warpfire device remove', then add it with 'warpfire device add --force'";

impl From<DeviceSetError> for Error {
    fn from(error: DeviceSetError) -> Self {
        let message = error.to_string();
        let not_a_pool = || Error::new(ErrorKind::NotAPool, Errno::INVAL.raw_os_error(), message.clone());
        let device = error.device().map(PathBuf::from);
        let refused = match error {
            DeviceSetError::Impossible(_) => Error::invalid(message),
            DeviceSetError::InUse { .. } => {
                Error::new(ErrorKind::AlreadyExists, Errno::EXIST.raw_os_error(), message)
                    .with_hint("choose another device, or force overwriting it")
            }
            DeviceSetError::NoPool { .. } => {
                not_a_pool().with_hint("name the devices of a pool; 'warpfire mkfs' makes one")
            }
            DeviceSetError::RootsLost { .. } => not_a_pool().with_hint(
                "'warpfire recover' finds the pool by what its data says; make no new pool here, because that destroys the data",
            ),
            DeviceSetError::Foreign { .. } => not_a_pool().with_hint("name the devices of one pool only"),
            DeviceSetError::Duplicate { .. } => {
                not_a_pool().with_hint("name each device once, and no copy of it")
            }
            DeviceSetError::Missing { offline, .. } if !offline.is_empty() => not_a_pool().with_hint(
                "'warpfire device online' takes back a device that is kept offline; name the missing devices too",
            ),
            DeviceSetError::Missing { old_copies, .. } if !old_copies.is_empty() => {
                not_a_pool().with_hint("name the devices themselves, or leave out all but the copies of one moment")
            }
            DeviceSetError::Missing { .. } => not_a_pool().with_hint(
                "name the missing devices too; 'warpfire inspect label' shows the devices of a pool",
            ),
            DeviceSetError::Uncovered { offline, .. } if !offline.is_empty() => not_a_pool().with_hint(
                "'warpfire device online' takes back a device that is kept offline; 'cp -r --salvage' copies the rest",
            ),
            DeviceSetError::Uncovered { .. } => not_a_pool().with_hint(
                "name the missing devices too; 'cp -r --salvage' copies the rest, and if they are lost, 'mount --degraded' goes on without them",
            ),
            DeviceSetError::Shrunk { .. } => {
                not_a_pool().with_hint("restore the size of the device, or leave it out")
            }
            DeviceSetError::Diverged { .. } => {
                not_a_pool().with_hint("open the pool with the devices of one part only")
            }
            DeviceSetError::MayBeOlder { .. } => not_a_pool().with_hint(
                "name these devices too; if they are lost, 'mount --degraded' or 'scrub --degraded' goes on without them for good",
            ),
            DeviceSetError::Unsupported { .. } => {
                Error::new(ErrorKind::Unsupported, Errno::OPNOTSUPP.raw_os_error(), message).with_hint(
                    "copy its files with the version of warpfire that made it, and make a new pool with this one",
                )
            }
            DeviceSetError::WriteFeatures { .. } => {
                not_a_pool().with_hint("open it to read only, or take a newer version of Warpfire")
            }
            DeviceSetError::NoRoot(_) => {
                Error::new(ErrorKind::Damaged, Errno::IO.raw_os_error(), message).with_hint(DAMAGED)
            }
        };
        Error { device, ..refused }
    }
}
