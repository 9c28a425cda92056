//! The directory to mount on: checks before a mount, removal of dead mounts, unmounting and detaching.
//!
//! A *dead mount* is in the tree, but its server has ended: every request that reaches it fails with
//! `ENOTCONN`.
//!
//! # Invariants
//! A server of root must not be led to another place: other users may own directories on the way to the
//! mountpoint, and can rename them or put symbolic links in their place at any moment.
//! 1. After `Mountpoint::find` has resolved the name once, root uses no path: the parent directory is held by
//!    a descriptor, and the last name in it is never followed (`open`, test
//!    `a_link_in_the_place_of_a_parent_is_not_followed`).
//! 2. Only the mount that this process made is unmounted: its device number is compared first
//!    (`Mounted::open_own`, test `a_mount_that_covers_it_is_not_unmounted`). A lazy unmount names the very
//!    descriptor that was compared.
//! 3. Ordinary users mount and unmount through the set-user-id helper, which makes its own checks.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::error::MountError;
use crate::mountinfo;

/// Most dead mounts on one directory that `find` detaches.
const DEAD_MOUNTS_MAX: usize = 16;

/// How far the kernel may read ahead on the main mount, in KiB: four requests of 1 MiB. They are in the queue
/// together, so they are read side by side while a program takes the pages of those before.
pub(crate) const READAHEAD_KIB: u32 = 4096;

/// How far the kernel may read ahead in a view, in KiB: one request. A view answers one request after the
/// other, and what it has read ahead counts as read by the transaction.
pub(crate) const VIEW_READAHEAD_KIB: u32 = 1024;

/// A directory without its content: enough to name things in it.
const PATH_ONLY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory to mount on.
#[derive(Debug)]
pub(crate) struct Mountpoint {
    /// For messages, and for the helper of ordinary users.
    path: PathBuf,
    parent: OwnedFd,
    name: OsString,
}

impl Mountpoint {
    /// Finds a directory that can be mounted on. Detaches dead mounts on it.
    ///
    /// # Errors
    /// `Missing`, `NotADirectory`, `AlreadyMounted`, `NoFuse`; `System` also if a name on the way changes at
    /// the same moment.
    pub(crate) fn find(path: &Path) -> Result<Mountpoint, MountError> {
        if !Path::new("/dev/fuse").exists() {
            return Err(MountError::NoFuse);
        }
        let at = Mountpoint::resolve(path)?;
        for _ in 0..DEAD_MOUNTS_MAX {
            let top = at.open().map_err(|e| at.open_error(e))?;
            let mounts = mountinfo::mounts().unwrap_or_default();
            if !mounts.iter().any(|mount| mount.is_fuse() && mount.mountpoint == at.path) {
                return Ok(at);
            }
            // `statfs` always reaches the server. `stat` does not: the kernel may answer it from its cache
            // long after the server has died.
            match rustix::fs::fstatfs(&top) {
                Ok(_) => return Err(MountError::AlreadyMounted(at.path)),
                Err(e) if is_dead(e) => {
                    tracing::warn!(mountpoint = %at.path.display(), "dead mount detached");
                    at.detach_descriptor(&top)?;
                }
                Err(e) => return Err(system_error(path, "inspect the mountpoint", e.into())),
            }
        }
        Err(system_error(path, "detach dead mounts", io::Error::from(Errno::BUSY)))
    }

    /// Resolves a path, once: what others do to its names from now on has no effect.
    fn resolve(path: &Path) -> Result<Mountpoint, MountError> {
        let real = path.canonicalize().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => MountError::Missing(path.to_owned()),
            io::ErrorKind::NotADirectory => MountError::NotADirectory(path.to_owned()),
            _ => system_error(path, "resolve the mountpoint", e),
        })?;
        Mountpoint::of_real_path(&real)
    }

    /// A directory by its absolute path without symbolic links.
    fn of_real_path(path: &Path) -> Result<Mountpoint, MountError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(system_error(path, "mount over the root directory", Errno::BUSY.into()));
        };
        let parent = open_without_links(parent).map_err(|e| system_error(path, "open the parent", e))?;
        Ok(Mountpoint { path: path.to_owned(), parent, name: name.to_owned() })
    }

    /// The directory `name` in a directory that only this server can change.
    pub(crate) fn inside(parent: OwnedFd, name: &str, path: PathBuf) -> Mountpoint {
        Mountpoint { path, parent, name: name.into() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory; if there are mounts on it, the root of the topmost. The descriptor keeps a mount in
    /// use.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        open_child(&self.parent, &self.name)
    }

    /// Detaches the topmost mount on it, whichever it is.
    pub(crate) fn detach_any(&self) -> Result<(), MountError> {
        match self.open() {
            Ok(top) => self.detach_descriptor(&top),
            Err(e) => Err(self.open_error(e)),
        }
    }

    fn detach_descriptor(&self, top: &OwnedFd) -> Result<(), MountError> {
        // The link in /proc leads to the opened directory itself, not to a name.
        let unmounted = rustix::mount::unmount(descriptor_path(top), UnmountFlags::DETACH);
        self.or_by_helper(unmounted, &["-u", "-z"])
    }

    /// The outcome of an unmount, or that of the helper: ordinary users cannot unmount themselves.
    fn or_by_helper(&self, unmounted: Result<(), Errno>, helper: &[&str]) -> Result<(), MountError> {
        let path = &self.path;
        match unmounted {
            Ok(()) => Ok(()),
            Err(Errno::BUSY) => Err(MountError::InUse(path.clone())),
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {
                let output = Command::new("fusermount3").args(helper).arg("--").arg(path).output();
                let output = output.map_err(|e| system_error(path, "run fusermount3", e))?;
                let text = String::from_utf8_lossy(&output.stderr);
                match () {
                    () if output.status.success() => Ok(()),
                    () if text.contains("busy") => Err(MountError::InUse(path.clone())),
                    () => Err(helper_refused(path, &text)),
                }
            }
            Err(e) => Err(system_error(path, "unmount", e.into())),
        }
    }

    fn open_error(&self, e: io::Error) -> MountError {
        match e.kind() {
            io::ErrorKind::NotADirectory => MountError::NotADirectory(self.path.clone()),
            _ => system_error(&self.path, "open the mountpoint", e),
        }
    }
}

/// A mount that this process made or found.
#[derive(Debug)]
pub(crate) struct Mounted {
    at: Mountpoint,
    /// The major and minor number of the filesystem.
    device: (u32, u32),
}

impl Mounted {
    /// The topmost mount on a mountpoint. Called right after the mount was made.
    pub(crate) fn topmost(at: Mountpoint) -> Result<Mounted, MountError> {
        let device = at.open().and_then(|top| device_of(&top)).map_err(|e| at.open_error(e))?;
        Ok(Mounted { at, device })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.at.path
    }

    /// All mounts of this filesystem that this process sees, the latest first: further directories and bind
    /// mounts.
    pub(crate) fn everywhere(&self) -> Vec<Mounted> {
        let mounts = mountinfo::mounts().unwrap_or_default().into_iter().rev();
        let own = mounts.filter(|mount| mount.device == self.device);
        let found = own.filter_map(|mount| Mountpoint::of_real_path(&mount.mountpoint).ok());
        found.map(|at| Mounted { at, device: self.device }).collect()
    }

    /// Takes the mount out of the tree at once. Files that are open in it stay open as long as its server
    /// runs.
    pub(crate) fn detach(&self) -> Result<(), MountError> {
        self.at.detach_descriptor(&self.open_own()?)
    }

    /// Unmounts a mount that no program uses. Fails with `InUse` if one does.
    pub(crate) fn unmount(&self) -> Result<(), MountError> {
        // Closed at once: while it is open, the mount is in use.
        drop(self.open_own()?);
        let mut path = PathBuf::from(descriptor_path(&self.at.parent));
        path.push(&self.at.name);
        self.at.or_by_helper(rustix::mount::unmount(path, UnmountFlags::NOFOLLOW), &["-u"])
    }

    /// Makes the kernel send the pages that programs changed through mappings.
    ///
    /// # Errors
    /// The error of syncfs(2). It includes errors of the filesystem while it writes these pages.
    pub(crate) fn write_back(&self) -> Result<(), MountError> {
        let root = self.open_own()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let written =
            rustix::fs::openat(root, ".", flags, Mode::empty()).and_then(|root| rustix::fs::syncfs(&root));
        written.map_err(|e| system_error(self.path(), "write back mapped pages", e.into()))
    }

    /// Lets the kernel read ahead as far as this, in KiB. Its default is an eighth of what one request
    /// carries. Only root can change it; the mount works without.
    pub(crate) fn raise_readahead(&self, kib: u32) {
        let (major, minor) = self.device;
        let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(e) = fs::write(setting, kib.to_string()) {
            tracing::debug!(mountpoint = %self.path().display(), error = %e, "readahead not raised");
        }
    }

    /// Opens a file in the root directory, and closes it.
    pub(crate) fn open_once(&self, name: &[u8]) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = self.open_own().and_then(|root| {
            rustix::fs::openat(root, name, flags, Mode::empty())
                .map_err(|e| system_error(self.path(), "open a file", e.into()))
        });
        if let Err(e) = opened {
            tracing::debug!(error = %e, "a file was not opened once");
        }
    }

    /// The root directory of this mount.
    ///
    /// # Errors
    /// `System` with `EINVAL` if this mount is not the topmost on its mountpoint.
    fn open_own(&self) -> Result<OwnedFd, MountError> {
        let top = self.at.open().map_err(|e| self.at.open_error(e))?;
        match device_of(&top) {
            Ok(device) if device == self.device => Ok(top),
            Ok(_) => {
                let other =
                    io::Error::new(io::ErrorKind::InvalidInput, "it is unmounted or covered by another");
                Err(system_error(self.path(), "find the mount", other))
            }
            Err(e) => Err(system_error(self.path(), "inspect the mount", e)),
        }
    }
}

/// The device of an open directory, without a request to its server.
fn device_of(directory: &OwnedFd) -> io::Result<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(directory, "", flags, StatxFlags::empty())?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// A path to an open directory that leads to it whatever its name is.
pub(crate) fn descriptor_path(directory: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", directory.as_raw_fd())
}

/// Opens a directory by an absolute path without symbolic links.
///
/// # Errors
/// The error of open(2): `ENOTDIR` for a name that is a symbolic link now.
pub(crate) fn open_without_links(path: &Path) -> io::Result<OwnedFd> {
    let mut directory = rustix::fs::openat(CWD, "/", PATH_ONLY, Mode::empty())?;
    for component in path.components() {
        if let Component::Normal(name) = component {
            directory = open_child(&directory, name)?;
        }
    }
    Ok(directory)
}

fn open_child(directory: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(directory, name, PATH_ONLY, Mode::empty())?)
}

/// Unmounts the filesystem with this device number from a mountpoint, as the mount table names both.
///
/// # Errors
/// `InUse` while a program uses it; `System` if another filesystem is at its place now.
pub fn unmount(mountpoint: &Path, device: (u32, u32)) -> Result<(), MountError> {
    Mounted { at: Mountpoint::of_real_path(mountpoint)?, device }.unmount()
}

pub(crate) fn system_error(path: &Path, action: &'static str, source: io::Error) -> MountError {
    MountError::System { path: path.to_owned(), action, source }
}

pub(crate) fn not_permitted(path: &Path, reason: String) -> MountError {
    MountError::NotPermitted { path: path.to_owned(), reason }
}

/// The error of a helper that failed: the last line that it printed.
pub(crate) fn helper_refused(path: &Path, output: &str) -> MountError {
    let last = output.lines().last().unwrap_or("fusermount3 failed without a message");
    not_permitted(path, last.trim().to_owned())
}

/// Whether the error is that of a dead mount.
fn is_dead(e: Errno) -> bool {
    matches!(e, Errno::NOTCONN | Errno::CONNABORTED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_missing_mountpoint_and_a_file_are_distinguished() {
        if !Path::new("/dev/fuse").exists() {
            return warpfire_test_needs::skip(warpfire_test_needs::Need::Fuse, "there is no /dev/fuse");
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Mountpoint::find(&dir.path().join("nowhere")), Err(MountError::Missing(_))));
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(matches!(Mountpoint::find(&file), Err(MountError::NotADirectory(_))));
        assert_eq!(Mountpoint::find(dir.path()).unwrap().path(), dir.path().canonicalize().unwrap());
    }

    /// A tmpfs on a directory; `None`, with a message, where that is not permitted.
    fn mount_tmpfs(at: &Path) -> Option<()> {
        let flags = rustix::mount::MountFlags::empty();
        let mounted = rustix::mount::mount("none", at, "tmpfs", flags, None);
        mounted.inspect_err(|e| warpfire_test_needs::skip(warpfire_test_needs::Need::Root, e)).ok()
    }

    #[test]
    fn a_link_in_the_place_of_a_parent_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for name in ["users/own", "others/own"] {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        let Some(()) = mount_tmpfs(&base.join("others/own")) else { return };
        let Some(()) = mount_tmpfs(&base.join("users/own")) else { return };
        let own = Mounted::topmost(Mountpoint::resolve(&base.join("users/own")).unwrap()).unwrap();
        fs::rename(base.join("users"), base.join("moved")).unwrap();
        symlink(base.join("others"), base.join("users")).unwrap();
        assert!(open_without_links(&base.join("users")).is_err());
        own.unmount().unwrap();
        let mounts: Vec<PathBuf> = mountinfo::mounts().unwrap().into_iter().map(|m| m.mountpoint).collect();
        assert!(mounts.contains(&base.join("others/own")), "the mount behind the link stays");
        assert!(!mounts.contains(&base.join("moved/own")), "the own mount is found by its directory");
        let other = Mountpoint::resolve(&base.join("others/own")).unwrap();
        other.detach_any().unwrap();
    }

    #[test]
    fn a_mount_that_covers_it_is_not_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        let Some(()) = mount_tmpfs(dir.path()) else { return };
        let own = Mounted::topmost(Mountpoint::resolve(dir.path()).unwrap()).unwrap();
        mount_tmpfs(dir.path()).unwrap();
        assert!(own.unmount().is_err());
        assert!(own.detach().is_err());
        own.at.detach_any().unwrap();
        own.unmount().unwrap();
        assert!(own.unmount().is_err(), "it is unmounted already");
    }
}
