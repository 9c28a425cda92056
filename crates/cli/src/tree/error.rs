//! Errors of calls on files of a pool, whether it is open in this process or mounted.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use warpfire::ErrorKind;
use warpfire_terminal::{Exit, Failure, shown};

/// The result of a call.
pub type TreeResult<T> = Result<T, TreeError>;

/// Why a call on a file failed.
#[derive(Debug)]
pub enum TreeError {
    /// The library says so.
    Library(warpfire::Error),
    /// The path is in a snapshot, and the call would change it.
    Snapshot,
    /// The server of a mounted pool says so, by the kernel.
    Mounted {
        errno: Errno,
        /// Where the pool is mounted.
        mountpoint: Arc<Path>,
        /// Whether messages name files by their paths below the mountpoint, as the command line does.
        is_plain: bool,
    },
}

impl TreeError {
    pub fn is_not_found(&self) -> bool {
        match self {
            TreeError::Library(error) => error.kind() == ErrorKind::NotFound,
            TreeError::Snapshot => false,
            TreeError::Mounted { errno, .. } => *errno == Errno::NOENT,
        }
    }

    pub fn is_already_exists(&self) -> bool {
        match self {
            TreeError::Library(error) => error.kind() == ErrorKind::AlreadyExists,
            TreeError::Snapshot => false,
            TreeError::Mounted { errno, .. } => *errno == Errno::EXIST,
        }
    }

    pub fn is_busy(&self) -> bool {
        match self {
            TreeError::Library(error) => error.errno() == Errno::BUSY.raw_os_error(),
            TreeError::Snapshot => false,
            TreeError::Mounted { errno, .. } => *errno == Errno::BUSY,
        }
    }

    /// The failure of an operation on this file.
    pub fn at(&self, path: &Path) -> Failure {
        match self {
            TreeError::Library(error) => Failure::at(path, error),
            TreeError::Snapshot => {
                Failure::local_as(path, &io::Error::from(Errno::ROFS), "a snapshot does not change")
                    .hint("copy the file out of the snapshot")
            }
            TreeError::Mounted { errno, mountpoint, is_plain } => {
                let path = if *is_plain { below(mountpoint, path) } else { path.to_path_buf() };
                of_mount(*errno, mountpoint, &path)
            }
        }
    }
}

impl From<warpfire::Error> for TreeError {
    fn from(error: warpfire::Error) -> Self {
        TreeError::Library(error)
    }
}

/// The path on this system of a file of a mounted pool.
pub fn below(mountpoint: &Path, path: &Path) -> PathBuf {
    mountpoint.join(path.strip_prefix("/").unwrap_or(path))
}

/// The failure of a call on a file of a mounted pool.
pub fn of_mount(errno: Errno, mountpoint: &Path, path: &Path) -> Failure {
    let file = |words: &dyn fmt::Display| Failure::local_as(path, &io::Error::from(errno), words);
    match errno {
        Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => no_server(mountpoint),
        Errno::XDEV => file(&"another filesystem is mounted there, or the files are on different mounts")
            .hint("use its own path with a program of the system, or unmount it"),
        Errno::ROFS => file(&format_args!("the pool is mounted read-only at {}", shown(mountpoint)))
            .hint("mount it without 'ro' to change it"),
        Errno::NOSPC => {
            file(&"no space left in the pool").hint("remove files, or copy them to a larger pool")
        }
        Errno::IO => file(&"input/output error").hint("'warpfire status' and the log of the server say more"),
        errno => Failure::local(path, &io::Error::from(errno)),
    }
}

/// The failure of a command whose server is gone.
pub fn no_server(mountpoint: &Path) -> Failure {
    Failure::new(format_args!("the server of {} is not running", shown(mountpoint)))
        .hint(format_args!("run 'warpfire umount {}', then mount the pool again", shown(mountpoint)))
        .exit_code(Exit::Pool as u8)
        .ends_command()
}
