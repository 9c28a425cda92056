//! Reasons why a mount cannot be made or unmounted.

use std::io;
use std::path::PathBuf;

use warpfire_fs::FsError;

/// A mount or an unmount that failed. The text names the mountpoint, the failure and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// `/dev/fuse` does not exist.
    #[error(
        "/dev/fuse does not exist: load the kernel module with 'modprobe fuse', or start the container with the device"
    )]
    NoFuse,
    /// The directory to mount on does not exist.
    #[error("{0}: the mountpoint does not exist; make it with mkdir")]
    Missing(PathBuf),
    /// The mountpoint exists and is no directory.
    #[error("{0}: the mountpoint is not a directory; name a directory")]
    NotADirectory(PathBuf),
    /// A FUSE filesystem is mounted there and answers.
    #[error("{0}: a filesystem is already mounted here; unmount it first")]
    AlreadyMounted(PathBuf),
    /// A program has a file open or its working directory in the mount.
    #[error("{0}: the mount is in use; end the programs that 'fuser -m' shows, then unmount it again")]
    InUse(PathBuf),
    /// Transactions are open. An unmount would abort them.
    #[error(
        "{path}: the mount is in use: {count} transactions are open; commit or abort them, then unmount it again"
    )]
    TransactionsOpen {
        /// The mountpoint.
        path: PathBuf,
        /// How many there are.
        count: usize,
    },
    /// The system does not let this user mount there.
    #[error("{path}: not permitted to mount: {reason}")]
    NotPermitted {
        /// The mountpoint.
        path: PathBuf,
        /// The reason, and where there is one the remedy.
        reason: String,
    },
    /// Any other error of the system.
    #[error("{path}: cannot {action}: {source}")]
    System {
        /// The mountpoint.
        path: PathBuf,
        /// The step that failed: an infinitive.
        action: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The filesystem could not make its last changes durable when it was closed.
    #[error("cannot close the filesystem: {0}; its last changes may be lost")]
    Close(#[from] FsError),
}
