//! Local files by descriptors, so that other users of a directory cannot redirect a copy.
//!
//! Invariants
//! 1. Below the paths that the command line names, no symbolic link is followed: each step opens one name in
//!    an open directory, without following (`LocalDir::open`, `LocalDir::pin`, `LocalDir::open_file`).
//!    In a mounted pool the paths of the command line lead to files of that pool too, whatever links are on
//!    the way, and no other filesystem is entered (`LocalDir::in_mount`, `tree/mounted.rs`).
//! 2. Only a regular file is read, and opening never waits: for a pipe that is planted in its place
//!    (`LocalDir::open_file`).
//!
//! `new_local.rs` says how files are made. `tests/cli/copy_planted.rs` plants links and pipes and holds both.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};
use rustix::io::Errno;
use warpfire_terminal::Failure;

use crate::tree::{self, MountedTree};

/// Mode of a new file or directory until it is complete.
pub const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
pub const PRIVATE_DIR: Mode = Mode::RWXU;

/// An open local directory.
pub struct LocalDir {
    fd: OwnedFd,
    path: PathBuf,
    /// Where the pool is mounted that it is in, if the command line names that pool.
    mountpoint: Option<Arc<Path>>,
}

/// A local path that the command line names: a directory, and the name in it. Links on the way to the
/// directory are followed; the name itself is not.
pub struct NamedPath {
    pub dir: LocalDir,
    /// `None` if the path names the directory itself: `.`, `..`, `/`, or a path that ends with a slash.
    pub name: Option<OsString>,
}

impl NamedPath {
    pub fn open(path: &Path) -> Result<NamedPath, Failure> {
        let named = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let Some(name) = named else { return Ok(NamedPath { dir: LocalDir::named(path)?, name: None }) };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let dir = LocalDir::named(parent.unwrap_or(Path::new(".")))?;
        Ok(NamedPath { dir, name: Some(name.to_owned()) })
    }

    /// A path in a mounted pool. Links on the way to the directory lead to directories of the pool.
    pub fn in_mount(mount: &MountedTree, path: &Path) -> Result<NamedPath, Failure> {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                Ok(NamedPath { dir: LocalDir::in_mount(mount, parent)?, name: Some(name.to_owned()) })
            }
            _ => Ok(NamedPath { dir: LocalDir::in_mount(mount, path)?, name: None }),
        }
    }
}

impl LocalDir {
    /// Opens a directory that the command line names; links are followed.
    pub fn named(path: &Path) -> Result<LocalDir, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(|e| Failure::local(path, &e.into()))?;
        Ok(LocalDir { fd, path: path.to_path_buf(), mountpoint: None })
    }

    /// Opens a directory of a mounted pool. Messages name it by its path in the pool.
    pub fn in_mount(mount: &MountedTree, path: &Path) -> Result<LocalDir, Failure> {
        let fd = mount.open_dir(path).map_err(|errno| mount.error(errno).at(path))?;
        Ok(LocalDir { fd, path: path.to_path_buf(), mountpoint: Some(mount.mountpoint().into()) })
    }

    /// Whether it is in a mounted pool that the command line names.
    pub fn is_in_mount(&self) -> bool {
        self.mountpoint.is_some()
    }

    /// The failure of a call on a file in this directory.
    pub fn failure(&self, path: &Path, error: &io::Error) -> Failure {
        match (&self.mountpoint, Errno::from_io_error(error)) {
            (Some(mountpoint), Some(errno)) => tree::of_mount(errno, mountpoint, path),
            _ => Failure::local(path, error),
        }
    }

    fn open_name(&self, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match self.mountpoint {
            Some(_) => tree::open_in(&self.fd, name, flags),
            None => openat(&self.fd, name, flags, Mode::empty()),
        }
    }

    /// Opens a directory in this one.
    pub fn open(&self, name: &OsStr) -> io::Result<LocalDir> {
        let fd = self.open_name(name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(LocalDir { fd, path: self.shown(name), mountpoint: self.mountpoint.clone() })
    }

    /// Opens a directory in this one; makes it, for this user alone, if it does not exist.
    pub fn open_or_make(&self, name: &OsStr) -> io::Result<LocalDir> {
        match rustix::fs::mkdirat(&self.fd, name, PRIVATE_DIR) {
            Ok(()) | Err(Errno::EXIST) => self.open(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a directory below this one, by its path from here.
    pub fn open_below(&self, path: &Path) -> io::Result<LocalDir> {
        let (fd, mountpoint) = (self.fd.try_clone()?, self.mountpoint.clone());
        let mut dir = LocalDir { fd, path: self.path.clone(), mountpoint };
        for name in path {
            dir = dir.open(name)?;
        }
        Ok(dir)
    }

    /// A descriptor of anything in this directory, a link too. It can neither be read nor written.
    pub fn pin(&self, name: &OsStr) -> io::Result<File> {
        Ok(File::from(self.open_name(name, OFlags::PATH)?))
    }

    /// Opens a regular file for reading, with its metadata.
    ///
    /// # Errors
    /// `InvalidInput` if anything else is there by now.
    pub fn open_file(&self, name: &OsStr) -> io::Result<(File, Metadata)> {
        let file = File::from(self.open_name(name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?);
        let metadata = file.metadata()?;
        if metadata.is_file() {
            return Ok((file, metadata));
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "was replaced during the copy; copy it again"))
    }

    /// All names but `.` and `..`, in order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let name = OsStr::from_bytes(CStr::to_bytes(entry?.file_name())).to_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        File::from(self.fd.try_clone()?).metadata()
    }

    /// The path for messages.
    pub fn shown(&self, name: &OsStr) -> PathBuf {
        if self.path == Path::new(".") { PathBuf::from(name) } else { self.path.join(name) }
    }
}

impl AsFd for LocalDir {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A path to the open file itself, whatever its name is by now, for calls that take no descriptor.
pub fn magic_path(file: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}
