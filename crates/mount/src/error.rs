//! Why a mount cannot be made, or not be taken away.

use std::io;
use std::path::PathBuf;

use warpfire_fs::FsError;

/// What stands in the way of a mount, said so that a person can do something about it.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE, or keeps its device away.
    #[error(
        "/dev/fuse is not there: load the kernel's module with 'modprobe fuse', or give the container the device"
    )]
    NoFuse,
    /// The directory to mount on does not exist.
    #[error("{0}: mountpoint does not exist; make it with mkdir")]
    Missing(PathBuf),
    /// What is to be mounted on is something else.
    #[error("{0}: mountpoint is not a directory")]
    NotADirectory(PathBuf),
    /// A FUSE filesystem is mounted there and answers.
    #[error("{0}: a filesystem is mounted here already; unmount it first")]
    AlreadyMounted(PathBuf),
    /// A program has files open or its working directory in the mount.
    #[error("{0}: in use; close what has files open there (see 'fuser -m'), or detach it")]
    InUse(PathBuf),
    /// The system does not let this user mount there.
    #[error("{path}: not permitted to mount: {reason}")]
    NotPermitted {
        /// The mountpoint.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Anything else that the system said.
    #[error("{path}: cannot {action}: {source}")]
    System {
        /// The mountpoint.
        path: PathBuf,
        /// What was to be done.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The filesystem could not make its last changes durable when it was closed.
    #[error("closing the filesystem: {0}")]
    Close(#[from] FsError),
}
