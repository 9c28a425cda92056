//! The directory that is mounted on: what may be wrong with it, and how it comes back from a dead server.

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

/// Dead mounts that may lie on top of each other on one directory and are all taken away.
const DEAD_MOUNTS_MAX: usize = 16;

/// How far the kernel may read ahead: one request of 1 MiB.
const READAHEAD_KIB: u32 = 1024;

/// Makes sure that `path` is a directory that can be mounted on, and returns its real name. Mounts whose server
/// has died are detached.
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
                tracing::warn!(mountpoint = %path.display(), "detaching a mount whose server has died");
                detach(path)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(MountError::Missing(path.to_owned()));
            }
            Err(e) => return Err(system_error(path, "look at the mountpoint", e)),
        }
    }
    Err(system_error(path, "detach dead mounts", io::Error::from(Errno::BUSY)))
}

/// Takes a mount away from the tree at once; what is open in it stays open as long as its server lives.
pub(crate) fn detach(path: &Path) -> Result<(), MountError> {
    unmount_with(path, UnmountFlags::DETACH, &["-u", "-z"])
}

/// Takes a mount away that nobody uses.
pub(crate) fn unmount(path: &Path) -> Result<(), MountError> {
    unmount_with(path, UnmountFlags::empty(), &["-u"])
}

/// Has the kernel hand over what programs wrote through mappings.
///
/// # Errors
/// What the system says, or the filesystem of what was handed over.
pub(crate) fn write_back(path: &Path) -> Result<(), MountError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let written = rustix::fs::open(path, flags, Mode::empty()).and_then(rustix::fs::syncfs);
    written.map_err(|e| system_error(path, "write back", e.into()))
}

fn unmount_with(path: &Path, flags: UnmountFlags, helper: &[&str]) -> Result<(), MountError> {
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::InUse(path.to_owned())),
        // A user who is not root asks the helper that is.
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

/// Lets the kernel read ahead as much as one request carries; it begins with an eighth of that. Root alone may, and
/// a mount works without.
pub(crate) fn raise_readahead(mounted: &Path) {
    let raise = || {
        let device = fs::metadata(mounted)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READAHEAD_KIB.to_string())
    };
    if let Err(e) = raise() {
        tracing::debug!(mountpoint = %mounted.display(), "readahead stays as it is: {e}");
    }
}

pub(crate) fn system_error(path: &Path, action: &'static str, source: io::Error) -> MountError {
    MountError::System { path: path.to_owned(), action, source }
}

pub(crate) fn not_permitted(path: &Path, reason: String) -> MountError {
    MountError::NotPermitted { path: path.to_owned(), reason }
}

/// What the helper said when it did not do what it was asked.
pub(crate) fn helper_refused(path: &Path, output: &str) -> MountError {
    let last = output.lines().last().unwrap_or("fusermount3 failed and did not say why");
    not_permitted(path, last.trim().to_owned())
}

/// What is at a path that is to be mounted on; paths are their real names.
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
    // Attributes may come from the kernel's cache, long after the server died. This question never does.
    rustix::fs::statvfs(&real)?;
    Ok(MountpointState::FuseMount(real))
}

/// A mount whose server is gone answers everything that the kernel does not know itself with "not connected".
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
            eprintln!("skipped: no /dev/fuse here");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(prepare(&dir.path().join("nowhere")), Err(MountError::Missing(_))));
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(matches!(prepare(&file), Err(MountError::NotADirectory(_))));
        assert_eq!(prepare(dir.path()).unwrap(), dir.path().canonicalize().unwrap());
    }
}
