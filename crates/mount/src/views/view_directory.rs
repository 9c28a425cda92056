//! Where views are mounted: each in a directory of its own, which only who began the transaction can enter.
//!
//! ```text
//!   /run/warpfire                  root's; $XDG_RUNTIME_DIR/warpfire, or /tmp/warpfire-UID, of a user who mounts
//!     4711.1                       server 4711, transaction 1: mode 0700, of who began it
//!       view                       the mountpoint
//! ```
//!
//! A server that dies leaves its directories behind, with dead mounts on them. The next one to start takes them away.

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

/// Where this user's servers have their views, unless the mount was told otherwise.
pub(super) fn default_base() -> PathBuf {
    let user = geteuid();
    if user.is_root() {
        return PathBuf::from("/run/warpfire");
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    own.map_or_else(|| format!("/tmp/warpfire-{user}").into(), |dir| Path::new(&dir).join("warpfire"))
}

/// Makes the directory that all views of this user are in.
///
/// # Errors
/// What the system says; `PermissionDenied` if the directory is another's.
pub(super) fn prepare_base(base: &Path) -> io::Result<()> {
    // Others pass through root's to their own.
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(base) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let there = fs::symlink_metadata(base)?;
    if there.is_dir() && there.uid() == geteuid().as_raw() && there.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} is not ours alone", base.display())))
}

/// Takes away what servers that are gone have left. What cannot be taken away stays, and harms no one.
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
    /// Makes the place of a transaction that `uid` begins.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn make(base: &Path, id: u64, uid: u32) -> io::Result<ViewDirectory> {
        let view_directory = ViewDirectory { directory: base.join(format!("{}.{id}", std::process::id())) };
        DirBuilder::new().mode(0o700).create(&view_directory.directory)?;
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

    /// Takes the place away, and what is mounted there out of the tree.
    pub(super) fn remove(&self) {
        let view = self.view();
        if let Err(e) = fs::remove_dir(&view)
            && e.kind() != io::ErrorKind::NotFound
        {
            // Something is mounted.
            let gone = mountpoint::detach(&view).map_err(|e| e.to_string());
            let gone = gone.and_then(|()| fs::remove_dir(&view).map_err(|e| e.to_string()));
            if let Err(e) = gone {
                tracing::warn!(view = %view.display(), "a view that ended stays: {e}");
            }
        }
        // Nothing else was ever in it.
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
        // Larger than any process number that a kernel gives.
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
        assert_eq!(prepare_base(base.path()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        prepare_base(&base.path().join("own")).unwrap();
        prepare_base(&base.path().join("own")).unwrap();
    }
}
