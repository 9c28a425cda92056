//! The directory to mount on: checks before a mount, removal of dead mounts, unmounting and detaching.
//!
//! A *dead mount* is in the tree, but its server has ended: every request that reaches it fails with
//! `ENOTCONN`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::error::MountError;
use crate::mountinfo;

/// Most dead mounts on one directory that `prepare` detaches.
const DEAD_MOUNTS_MAX: usize = 16;

/// How far the kernel may read ahead, in KiB: one request of 1 MiB.
const READAHEAD_KIB: u32 = 1024;

/// Checks that `path` is a directory that can be mounted on, and returns its canonical path. Detaches dead
/// mounts.
pub(crate) fn prepare(path: &Path) -> Result<PathBuf, MountError> {
    if !Path::new("/dev/fuse").exists() {
        return Err(MountError::NoFuse);
    }
    for _ in 0..DEAD_MOUNTS_MAX {
        match inspect(path) {
            Ok(MountpointState::Directory(real)) => return Ok(real),
            Ok(MountpointState::FuseMount(real)) => return Err(MountError::AlreadyMounted(real)),
            Ok(MountpointState::SomethingElse) => return Err(MountError::NotADirectory(path.to_owned())),
            Err(e) if is_dead(&e) => {
                tracing::warn!(mountpoint = %path.display(), "dead mount detached");
                detach(path)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(MountError::Missing(path.to_owned()));
            }
            Err(e) => return Err(system_error(path, "inspect the mountpoint", e)),
        }
    }
    Err(system_error(path, "detach dead mounts", io::Error::from(Errno::BUSY)))
}

/// Takes a mount out of the tree at once. Files that are open in it stay open as long as its server runs.
pub(crate) fn detach(path: &Path) -> Result<(), MountError> {
    unmount_with(path, UnmountFlags::DETACH, &["-u", "-z"])
}

/// Unmounts a mount that no program uses. Fails with `InUse` if one does.
pub(crate) fn unmount(path: &Path) -> Result<(), MountError> {
    unmount_with(path, UnmountFlags::empty(), &["-u"])
}

/// Makes the kernel send the pages that programs changed through mappings.
///
/// # Errors
/// The error of syncfs(2). It includes errors of the filesystem while it writes these pages.
pub(crate) fn write_back(path: &Path) -> Result<(), MountError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let written = rustix::fs::open(path, flags, Mode::empty()).and_then(rustix::fs::syncfs);
    written.map_err(|e| system_error(path, "write back mapped pages", e.into()))
}

fn unmount_with(path: &Path, flags: UnmountFlags, helper: &[&str]) -> Result<(), MountError> {
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::InUse(path.to_owned())),
        // Other users than root unmount through the set-user-id helper.
        Err(Errno::PERM) => {
            let output_or_error = Command::new("fusermount3").args(helper).arg("--").arg(path).output();
            let output = output_or_error.map_err(|e| system_error(path, "run fusermount3", e))?;
            let text = String::from_utf8_lossy(&output.stderr);
            match () {
                () if output.status.success() => Ok(()),
                () if text.contains("busy") => Err(MountError::InUse(path.to_owned())),
                () => Err(helper_refused(path, &text)),
            }
        }
        Err(e) => Err(system_error(path, "unmount", e.into())),
    }
}

/// Lets the kernel read ahead as much as one request carries. The kernel's default is an eighth of that. Only
/// root can change it; the mount works without.
pub(crate) fn raise_readahead(mounted: &Path) {
    let raise = || {
        let device = fs::metadata(mounted)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READAHEAD_KIB.to_string())
    };
    if let Err(e) = raise() {
        tracing::debug!(mountpoint = %mounted.display(), error = %e, "readahead not raised");
    }
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

/// The state of a path to mount on. The paths are canonical.
enum MountpointState {
    Directory(PathBuf),
    FuseMount(PathBuf),
    SomethingElse,
}

fn inspect(path: &Path) -> io::Result<MountpointState> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(MountpointState::SomethingElse);
    }
    let real = path.canonicalize()?;
    let mounts = mountinfo::mounts().unwrap_or_default();
    if !mounts.iter().any(|mount| mount.is_fuse() && mount.mountpoint == real) {
        return Ok(MountpointState::Directory(real));
    }
    // `statvfs` always reaches the server. `stat` does not: the kernel may answer it from its cache long
    // after the server has died.
    rustix::fs::statvfs(&real)?;
    Ok(MountpointState::FuseMount(real))
}

/// Whether the error is that of a dead mount.
fn is_dead(e: &io::Error) -> bool {
    let dead = [Errno::NOTCONN, Errno::CONNABORTED];
    e.raw_os_error().is_some_and(|raw| dead.contains(&Errno::from_raw_os_error(raw)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_mountpoint_and_a_file_are_distinguished() {
        if !Path::new("/dev/fuse").exists() {
            return warpfire_test_needs::skip(warpfire_test_needs::Need::Fuse, "there is no /dev/fuse");
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(prepare(&dir.path().join("nowhere")), Err(MountError::Missing(_))));
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(matches!(prepare(&file), Err(MountError::NotADirectory(_))));
        assert_eq!(prepare(dir.path()).unwrap(), dir.path().canonicalize().unwrap());
    }
}
