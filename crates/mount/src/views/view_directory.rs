//! The directories that views are mounted in. Only the user that began the transaction, and root, can enter
//! one.
//!
//! ```text
//!   /run/warpfire     the base for root; for other users $XDG_RUNTIME_DIR/warpfire or /tmp/warpfire-UID
//!     6b1f…c2         one transaction: a random name, and a lock while its server lives
//!       view          the mountpoint
//! ```
//!
//! A server that dies leaves its directories behind, with dead mounts on them. The next server that starts
//! with the same base removes them (`sweep`).
//!
//! # Invariants
//! 1. The server alone owns the base and all directories in it, and no other user can write there: what the
//!    server mounts, unmounts and removes there cannot be replaced. The user of a transaction enters by an
//!    access control list, without owning anything (`admit`; test
//!    `two_users::the_user_who_began_it_cannot_change_the_place_of_a_view`).
//! 2. A directory is swept only by the process that holds its lock. A server holds the locks of its
//!    directories as long as it runs, in whatever namespace (test
//!    `directories_of_dead_servers_are_swept_and_those_of_live_ones_stay`).
//! 3. No symbolic link is followed here: every name is opened in an open directory, with `O_NOFOLLOW`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RawDir, XattrFlags};
use rustix::io::Errno;
use rustix::process::geteuid;
use warpfire_fs::acl::{Acl, AclEntry, AclTag, Perm, XATTR_ACCESS};

use crate::mountpoint::{Mountpoint, open_without_links};

/// Name of the mountpoint in a view's directory.
const VIEW: &str = "view";

/// Bytes of a random name: unique without a look at what other servers have.
const NAME_BYTES: usize = 16;

/// Most tries to make a directory and lock it before a server that sweeps has removed it.
const MAKE_TRIES_MAX: u32 = 16;

/// Most dead mounts on one view that are detached. A view has one mount.
const MOUNTS_MAX: u32 = 4;

/// An open directory whose names can be read and that can be locked.
const LISTABLE: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A view's directory.
#[derive(Debug)]
pub(super) struct ViewDirectory {
    base: OwnedFd,
    name: String,
    /// Holds the lock.
    directory: OwnedFd,
    path: PathBuf,
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
    open_base(base).map(drop)
}

/// Opens the base, and makes it if it does not exist.
///
/// # Errors
/// `PermissionDenied` if it is owned or writable by another user; errors of the system.
fn open_base(base: &Path) -> io::Result<OwnedFd> {
    let (Some(parent), Some(name)) = (base.parent(), base.file_name()) else {
        return Err(Errno::INVAL.into());
    };
    let parent = open_without_links(&parent.canonicalize()?)?;
    let made = match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(e) => return Err(e.into()),
    };
    let opened = rustix::fs::openat(&parent, name, LISTABLE, Mode::empty());
    if let Ok(opened) = opened
        && is_ours(&opened)?
    {
        if made && geteuid().is_root() {
            // Other users pass through the base of root to their own views.
            rustix::fs::fchmod(&opened, Mode::from_raw_mode(0o711))?;
        }
        return Ok(opened);
    }
    let base = base.display();
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{base} is not a directory that this user alone owns and can write; remove it"),
    ))
}

/// Whether this user alone can change a directory.
fn is_ours(directory: &OwnedFd) -> io::Result<bool> {
    let found = rustix::fs::fstat(directory)?;
    Ok(found.st_uid == geteuid().as_raw() && found.st_mode & 0o022 == 0)
}

/// Removes the directories of servers that have ended. A directory that cannot be removed stays; it does no
/// harm.
pub(super) fn sweep(base: &Path) {
    // Made if it does not exist: an error here is that of BEGIN later, which reports it.
    let Ok(opened) = open_base(base) else { return };
    for name in names_in(&opened) {
        let directory = rustix::fs::openat(&opened, name.as_str(), LISTABLE, Mode::empty());
        let Ok(directory) = directory else { continue };
        if is_ours(&directory).unwrap_or(false) && lock(&directory) {
            let Ok(base_of_one) = opened.try_clone() else { return };
            let path = base.join(&name);
            ViewDirectory { base: base_of_one, name, directory, path }.remove();
        }
    }
}

/// The names in a base that can be those of views.
fn names_in(base: &OwnedFd) -> Vec<String> {
    let mut buffer = Vec::with_capacity(8192);
    let mut entries = RawDir::new(base, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        names.extend(entry.file_name().to_str().ok().filter(|name| is_name(name)).map(str::to_owned));
    }
    names
}

fn is_name(name: &str) -> bool {
    name.len() == 2 * NAME_BYTES && name.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Whether a path is the mountpoint of a view, by its names.
#[must_use]
pub fn is_view_mountpoint(path: &Path) -> bool {
    let directory = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    path.file_name().is_some_and(|name| name == VIEW) && directory.is_some_and(is_name)
}

fn random_name() -> io::Result<String> {
    let mut bytes = [0; NAME_BYTES];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    assert_eq!(filled, NAME_BYTES, "the kernel gives up to 256 bytes at once");
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Locks a directory; false if its server lives.
fn lock(directory: &OwnedFd) -> bool {
    rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive).is_ok()
}

impl ViewDirectory {
    /// Makes the directory of a transaction that user `uid` begins.
    ///
    /// # Errors
    /// `Unsupported` if the base's filesystem has no access control lists; otherwise the error of the system.
    /// Then no directory is left.
    pub(super) fn make(base: &Path, uid: u32) -> io::Result<ViewDirectory> {
        let opened = open_base(base)?;
        for _ in 0..MAKE_TRIES_MAX {
            let name = random_name()?;
            rustix::fs::mkdirat(&opened, &name, Mode::RWXU)?;
            let Ok(directory) = rustix::fs::openat(&opened, &name, LISTABLE, Mode::empty()) else { continue };
            // A server that sweeps at this moment may hold the lock already, and removes the directory.
            if !lock(&directory) || rustix::fs::mkdirat(&directory, VIEW, Mode::RWXU).is_err() {
                continue;
            }
            let path = base.join(&name);
            let made = ViewDirectory { base: opened, name, directory, path };
            made.admit(uid).inspect_err(|_| made.remove())?;
            return Ok(made);
        }
        Err(Errno::AGAIN.into())
    }

    /// Lets a user pass through the directory, and no more: it stays the server's.
    fn admit(&self, uid: u32) -> io::Result<()> {
        if uid == geteuid().as_raw() || uid == 0 {
            return Ok(());
        }
        if !geteuid().is_root() {
            // The kernel keeps other users out of the mount, too.
            return Err(Errno::PERM.into());
        }
        let all = Perm::READ.or(Perm::WRITE).or(Perm::EXECUTE);
        let entries = [
            (AclTag::Owner, all),
            (AclTag::User(uid), Perm::EXECUTE),
            (AclTag::OwningGroup, Perm::NONE),
            (AclTag::Mask, Perm::EXECUTE),
            (AclTag::Other, Perm::NONE),
        ];
        let list = Acl::new(entries.map(|(tag, perm)| AclEntry { tag, perm })).expect("a list with a mask");
        let name = std::str::from_utf8(XATTR_ACCESS).expect("names of attributes are ASCII");
        rustix::fs::fsetxattr(&self.directory, name, &list.to_xattr(), XattrFlags::empty()).map_err(|e| {
            let text = "the directory of views has no access control lists; name another with views_at";
            if e == Errno::OPNOTSUPP { io::Error::new(io::ErrorKind::Unsupported, text) } else { e.into() }
        })
    }

    /// The path of the mountpoint.
    pub(super) fn view(&self) -> PathBuf {
        self.path.join(VIEW)
    }

    /// The mountpoint.
    pub(super) fn mountpoint(&self) -> io::Result<Mountpoint> {
        Ok(Mountpoint::inside(self.directory.try_clone()?, VIEW, self.view()))
    }

    /// Removes the directory. If the view is still mounted, it is detached first.
    pub(super) fn remove(&self) {
        if let Err(e) = self.remove_view() {
            tracing::warn!(view = %self.view().display(), error = e, "directory of an ended view not removed");
        }
        // Fails only if the view above could not be removed, which is logged.
        let _ = rustix::fs::unlinkat(&self.base, &self.name, AtFlags::REMOVEDIR);
    }

    fn remove_view(&self) -> Result<(), String> {
        for _ in 0..MOUNTS_MAX {
            match rustix::fs::unlinkat(&self.directory, VIEW, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::BUSY) => {
                    let mountpoint = self.mountpoint().map_err(|e| e.to_string())?;
                    mountpoint.detach_any().map_err(|e| e.to_string())?;
                }
                Err(e) => return Err(e.to_string()),
            }
        }
        Err(Errno::BUSY.to_string())
    }
}

impl Drop for ViewDirectory {
    fn drop(&mut self) {
        // The job that would remove it has panicked.
        if std::thread::panicking() {
            self.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_view_directory_is_private_and_leaves_no_trace() {
        let base = tempfile::tempdir().unwrap();
        let view_directory = ViewDirectory::make(base.path(), geteuid().as_raw()).unwrap();
        let directory = fs::metadata(view_directory.view().parent().unwrap()).unwrap();
        assert_eq!(directory.mode() & 0o777, 0o700);
        assert!(view_directory.view().is_dir());
        view_directory.remove();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn directories_of_dead_servers_are_swept_and_those_of_live_ones_stay() {
        let base = tempfile::tempdir().unwrap();
        let left = base.path().join("0123456789abcdef0123456789abcdef");
        fs::create_dir_all(left.join(VIEW)).unwrap();
        fs::create_dir(base.path().join("another's")).unwrap();
        // Two of one process, as those of two mounts.
        let own = [0, 1].map(|_| ViewDirectory::make(base.path(), geteuid().as_raw()).unwrap());
        sweep(base.path());
        assert!(!left.exists());
        assert!(base.path().join("another's").exists());
        assert!(own.iter().all(|own| own.view().exists()));
    }

    #[test]
    fn a_sweep_follows_no_link_and_leaves_what_others_own() {
        let base = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::create_dir(elsewhere.path().join(VIEW)).unwrap();
        let link = base.path().join("0123456789abcdef0123456789abcdef");
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
        let open_to_all = base.path().join("00000000000000000000000000000000");
        fs::create_dir_all(open_to_all.join(VIEW)).unwrap();
        fs::set_permissions(&open_to_all, Permissions::from_mode(0o777)).unwrap();
        sweep(base.path());
        assert!(elsewhere.path().join(VIEW).exists());
        assert!(open_to_all.join(VIEW).exists());
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_no_base() {
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), Permissions::from_mode(0o777)).unwrap();
        assert_eq!(open_base(base.path()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        open_base(&base.path().join("own")).unwrap();
        open_base(&base.path().join("own")).unwrap();
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path().join("own"), &link).unwrap();
        assert_eq!(open_base(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
