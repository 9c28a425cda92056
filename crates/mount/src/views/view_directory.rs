//! The directories that views are mounted in. Only the user that began the transaction, and root, can enter
//! one.
//!
//! ```text
//!   /run/warpfire     the base for root; for other users $XDG_RUNTIME_DIR/warpfire or /tmp/warpfire-UID
//!     4711.1          process 4711, transaction 1; mode 0700, owned by the user that began it
//!       view          the mountpoint
//! ```
//!
//! A server that dies leaves its directories behind, with dead mounts on them. The next server that starts
//! with the same base removes them (`sweep`).

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::mountpoint;

/// Name of the mountpoint in a view's directory.
const VIEW: &str = "view";

/// A view's directory.
#[derive(Debug)]
pub(super) struct ViewDirectory {
    directory: PathBuf,
}

/// The directory in which servers of this user keep what belongs to a running server: views, unless the
/// options of a mount name another base, and sockets. Only this user can write in it.
#[must_use]
pub fn runtime_directory() -> PathBuf {
    let user = geteuid();
    if user.is_root() {
        return PathBuf::from("/run/warpfire");
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    own.map_or_else(|| format!("/tmp/warpfire-{user}").into(), |dir| Path::new(&dir).join("warpfire"))
}

/// Makes a runtime directory if it does not exist.
///
/// # Errors
/// `PermissionDenied` if it is owned or writable by another user; errors of the system.
pub fn prepare_runtime_directory(base: &Path) -> io::Result<()> {
    // Other users pass through the base of root to their own views.
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(base) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let there = fs::symlink_metadata(base)?;
    if there.is_dir() && there.uid() == geteuid().as_raw() && there.mode() & 0o022 == 0 {
        return Ok(());
    }
    let base = base.display();
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{base} is not a directory that this user alone owns and can write; remove it"),
    ))
}

/// Removes the directories of servers that have ended. A directory that cannot be removed stays; it does no
/// harm.
pub(super) fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let server = name.to_str().and_then(|name| name.split_once('.')?.0.parse::<u32>().ok());
        if server.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            ViewDirectory { directory: entry.path() }.remove();
        }
    }
}

impl ViewDirectory {
    /// Makes the directory of a transaction that user `uid` begins.
    ///
    /// # Errors
    /// The error of the system. Then no directory is left.
    pub(super) fn make(base: &Path, id: u64, uid: u32) -> io::Result<ViewDirectory> {
        let view_directory = ViewDirectory { directory: base.join(format!("{}.{id}", std::process::id())) };
        DirBuilder::new().mode(0o700).create(&view_directory.directory)?;
        // The mode is 0700 from the first moment, so no other user gets in before the owner is right.
        let finish = || {
            fs::create_dir(view_directory.view())?;
            if geteuid().is_root() {
                std::os::unix::fs::chown(&view_directory.directory, Some(uid), None)?;
            }
            fs::set_permissions(&view_directory.directory, Permissions::from_mode(0o700))
        };
        finish().inspect_err(|_| view_directory.remove())?;
        Ok(view_directory)
    }

    /// The mountpoint.
    pub(super) fn view(&self) -> PathBuf {
        self.directory.join(VIEW)
    }

    /// Removes the directory. If the view is still mounted, it is detached first.
    pub(super) fn remove(&self) {
        let view = self.view();
        if let Err(e) = fs::remove_dir(&view)
            && e.kind() != io::ErrorKind::NotFound
        {
            // The directory is busy: the view is mounted on it.
            let detached = mountpoint::detach(&view).map_err(|e| e.to_string());
            let removed = detached.and_then(|()| fs::remove_dir(&view).map_err(|e| e.to_string()));
            if let Err(e) = removed {
                tracing::warn!(view = %view.display(), error = e, "directory of an ended view not removed");
            }
        }
        // Fails only if the view above could not be removed, which is logged.
        let _ = fs::remove_dir(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_directory_is_private_and_leaves_no_trace() {
        let base = tempfile::tempdir().unwrap();
        let view_directory = ViewDirectory::make(base.path(), 3, geteuid().as_raw()).unwrap();
        let directory = fs::metadata(view_directory.view().parent().unwrap()).unwrap();
        assert_eq!(directory.mode() & 0o777, 0o700);
        assert!(view_directory.view().is_dir());
        view_directory.remove();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn directories_of_dead_servers_are_swept_and_those_of_live_ones_stay() {
        let base = tempfile::tempdir().unwrap();
        // Larger than any process number of the kernel.
        let left = base.path().join("4194305.1");
        fs::create_dir_all(left.join(VIEW)).unwrap();
        fs::create_dir(base.path().join("another's")).unwrap();
        let own = ViewDirectory::make(base.path(), 1, geteuid().as_raw()).unwrap();
        sweep(base.path());
        assert!(!left.exists());
        assert!(base.path().join("another's").exists());
        assert!(own.view().exists());
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_no_base() {
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), Permissions::from_mode(0o777)).unwrap();
        assert_eq!(
            prepare_runtime_directory(base.path()).unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
        prepare_runtime_directory(&base.path().join("own")).unwrap();
        prepare_runtime_directory(&base.path().join("own")).unwrap();
    }
}
