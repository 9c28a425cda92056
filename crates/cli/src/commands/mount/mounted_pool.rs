//! Pools in the table of mounts.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use warpfire_mount::{MountEntry, mounts};
use warpfire_terminal::Failure;

/// Prefix of the source of a mounted pool in the mount table. The id of the pool follows.
pub const SOURCE_PREFIX: &str = "warpfire:";

/// A mounted pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountedPool {
    /// The id of the pool: digits, letters and dashes.
    pub id: String,
    /// The directory that it is mounted on.
    pub mountpoint: PathBuf,
    /// The major and minor number of the mounted filesystem.
    pub device: (u32, u32),
    /// The user that its server runs as. The kernel vouches for it.
    pub owner: u32,
    /// Whether the mount shows the whole filesystem, and not one directory of it.
    pub shows_all: bool,
}

/// All mounted pools that this process sees.
#[must_use]
pub fn mounted_pools() -> Vec<MountedPool> {
    mounts().unwrap_or_default().iter().filter_map(MountedPool::from_entry).collect()
}

/// The pool that is mounted at this directory; `None` if there is none.
#[must_use]
pub fn pool_mounted_at(directory: &Path) -> Option<MountedPool> {
    if directory.as_os_str().is_empty() {
        return None;
    }
    // The last component is not resolved: on a dead mount that would fail.
    let directory = match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            parent.canonicalize().ok()?.join(name)
        }
        _ => directory.canonicalize().ok()?,
    };
    topmost(&mounts().ok()?, &directory)
}

/// The pool at `directory`; `None` if there is none, or if another filesystem is mounted over it.
fn topmost(mounts: &[MountEntry], directory: &Path) -> Option<MountedPool> {
    mounts.iter().rev().find(|mount| mount.mountpoint == directory).and_then(MountedPool::from_entry)
}

/// The mountpoint of the pool that a directory is in; `None` if it is in none.
#[must_use]
pub fn mount_around(directory: &Path) -> Option<PathBuf> {
    mountpoint_around(&directory.canonicalize().ok()?)
}

/// The mountpoint of the pool that a whole path without links leads into; `None` if it leads into none.
#[must_use]
pub fn mountpoint_around(path: &Path) -> Option<PathBuf> {
    nearest_pool(&mounts().ok()?, path)
}

/// Checks that a mount shows all of its pool. The view of a transaction does, so a program that may see a
/// part of the pool gets no view. A transaction is a directory of its view, and 'tx run' mounts that one.
///
/// # Errors
/// The mount is a bind mount of a part.
pub fn check_whole(mountpoint: &Path) -> Result<(), Failure> {
    let root = std::fs::metadata(mountpoint);
    if root.is_ok_and(|root| root.ino() == warpfire_mount::VIEW_ROOT_NUMBER) {
        return Ok(());
    }
    // Without a table of mounts the server decides: it refuses transactions on any directory but its root.
    let Some(whole) = mounts().ok().and_then(|mounts| whole_of_part(&mounts, mountpoint)) else {
        return Ok(());
    };
    let part = format_args!("{} shows a part of a mounted pool", mountpoint.display()).to_string();
    let failure = Failure::new(format_args!("{part}, and a transaction needs all of it"));
    Err(match whole {
        Some(whole) => failure.hint(format_args!("use the same files below {}", whole.display())),
        None => failure.hint("mount the pool in a second directory, and use the same files there"),
    })
}

/// If the mount at a directory shows a part of its filesystem: the mountpoint that shows all of it, if there
/// is one.
fn whole_of_part(mounts: &[MountEntry], mountpoint: &Path) -> Option<Option<PathBuf>> {
    let is_whole = |mount: &&MountEntry| mount.shown == Path::new("/");
    let at = mounts.iter().rev().find(|mount| mount.mountpoint == mountpoint)?;
    if is_whole(&at) {
        return None;
    }
    let whole = mounts.iter().filter(is_whole).find(|mount| mount.device == at.device);
    Some(whole.map(|mount| mount.mountpoint.clone()))
}

/// The mountpoint of the filesystem that a directory is in, if that filesystem is a pool.
fn nearest_pool(mounts: &[MountEntry], directory: &Path) -> Option<PathBuf> {
    let around = mounts.iter().filter(|mount| directory.starts_with(&mount.mountpoint));
    // Of several mounts on one directory the last hides the others.
    let nearest = around.max_by_key(|mount| mount.mountpoint.as_os_str().len())?;
    MountedPool::from_entry(nearest).map(|pool| pool.mountpoint)
}

impl MountedPool {
    /// Whether it is mounted in the directory of a view: a transaction's, and not the pool itself.
    #[must_use]
    pub fn is_view(&self) -> bool {
        warpfire_mount::is_view_mountpoint(&self.mountpoint)
    }

    /// The pool of a mount; `None` for other filesystems. Any user can mount a FUSE filesystem with any
    /// source, so the id is checked: it becomes part of a path.
    fn from_entry(mount: &MountEntry) -> Option<MountedPool> {
        let id = mount.source.to_str()?.strip_prefix(SOURCE_PREFIX)?;
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return None;
        }
        let (device, owner, mountpoint) = (mount.device, mount.owner?, mount.mountpoint.clone());
        let shows_all = mount.shown == Path::new("/");
        Some(MountedPool { id: id.to_owned(), mountpoint, device, owner, shows_all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(at: &str, source: &str) -> MountEntry {
        MountEntry {
            mountpoint: at.into(),
            shown: "/".into(),
            filesystem: "any".into(),
            source: source.into(),
            device: (0, 7),
            owner: Some(3),
        }
    }

    #[test]
    fn a_mounted_pool_is_found_by_its_directory() {
        let pool = [mount("/mnt/my pool", "warpfire:0a1b")];
        let found = topmost(&pool, Path::new("/mnt/my pool")).expect("a pool");
        assert_eq!((found.id.as_str(), found.device, found.owner), ("0a1b", (0, 7), 3));
        assert_eq!(topmost(&pool, Path::new("/mnt")), None);
    }

    #[test]
    fn a_directory_is_in_the_pool_that_is_mounted_nearest_around_it() {
        let mounts = [
            mount("/", "/dev/vda"),
            mount("/mnt/my pool", "warpfire:0a1b"),
            mount("/mnt/my pool/usb", "/dev/sdb"),
        ];
        let pool = Some(PathBuf::from("/mnt/my pool"));
        assert_eq!(nearest_pool(&mounts, Path::new("/mnt/my pool")), pool);
        assert_eq!(nearest_pool(&mounts, Path::new("/mnt/my pool/a/b")), pool);
        for outside in ["/mnt/my pool 2", "/mnt/my pool/usb/x", "/mnt"] {
            assert_eq!(nearest_pool(&mounts, Path::new(outside)), None, "{outside}");
        }
    }

    #[test]
    fn a_part_of_a_pool_is_known_and_so_is_the_mount_of_all_of_it() {
        let part = MountEntry { shown: "/a/b".into(), ..mount("/part", "warpfire:0a1b") };
        let mounts = [mount("/mnt", "warpfire:0a1b"), part.clone()];
        assert_eq!(whole_of_part(&mounts, Path::new("/mnt")), None);
        assert_eq!(whole_of_part(&mounts, Path::new("/part")), Some(Some("/mnt".into())));
        assert_eq!(whole_of_part(&[part], Path::new("/part")), Some(None));
    }

    #[test]
    fn another_filesystem_is_no_pool() {
        for source in ["/dev/loop0", "warpfire:", "warpfire:../../etc/0a1b"] {
            assert_eq!(topmost(&[mount("/mnt", source)], Path::new("/mnt")), None, "{source}");
        }
        // A disk that is mounted over a pool hides it.
        let mounts = [mount("/mnt", "warpfire:0a1b"), mount("/mnt", "/dev/loop0")];
        assert_eq!(topmost(&mounts, Path::new("/mnt")), None);
    }
}
