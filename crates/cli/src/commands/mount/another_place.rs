//! A second place for a pool that is mounted already: a mount of the same filesystem in another directory.
//!
//! The kernel makes it of the first mount, as a bind mount is made, so one server and one cache serve both.
//! The server ends when the last of its mounts is unmounted.

use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_remount, move_mount, open_tree, unmount,
};
use warpfire::device_label;
use warpfire_terminal::{Failure, note};

use super::Mounting;
use super::control::ServerConnection;
use super::mount_words::MountWords;
use super::mounted_pool::{MountedPool, mounted_pools, pool_mounted_at};
use super::remount::{check_writable, flags_of};
use crate::location::PoolName;

/// The first mount of a pool that a server has open; `None` if no server does, or if this process does not
/// see its mount.
pub fn first_mount(pool: &PoolName) -> Option<MountedPool> {
    let devices = pool.devices().ok()?;
    let label = devices.iter().find_map(|device| device_label(device).ok().flatten())?;
    let server = ServerConnection::of_devices(&label.pool, &devices)?;
    let is_of_server = |mounted: &MountedPool| {
        // A mount of another ordinary user is never cloned: its content is that user's to choose.
        let is_trusted = mounted.owner == 0 || mounted.owner == rustix::process::geteuid().as_raw();
        mounted.id == label.pool
            && is_trusted
            && ServerConnection::of_mount(mounted).is_ok_and(|found| found.is_same_process(&server))
    };
    mounted_pools().into_iter().find(is_of_server)
}

/// Mounts the filesystem of `first` in another directory too.
///
/// # Errors
/// The directory cannot be mounted on; this user is not root; the mount is for writing, and the server has
/// the pool open for reading only.
pub fn mount_too(first: &MountedPool, directory: &Path, words: &MountWords) -> Result<Mounting, Failure> {
    if pool_mounted_at(directory).is_some_and(|there| there.device == first.device) {
        return Ok(Mounting::There);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(format_args!(
            "the pool is mounted at {} already",
            first.mountpoint.display()
        ))
        .hint("only root can mount it in a second directory"));
    }
    if !words.read_only {
        check_writable(first)?;
    }
    let failed = |error: rustix::io::Errno| Failure::local(directory, &error.into());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let target = rustix::fs::openat(CWD, directory, flags, Mode::empty()).map_err(failed)?;
    let tree_flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, &first.mountpoint, tree_flags).map_err(failed)?;
    let device = rustix::fs::fstat(&tree).map_err(failed)?.st_dev;
    if (rustix::fs::major(device), rustix::fs::minor(device)) != first.device {
        return Err(Failure::new(format_args!(
            "{} is another filesystem by now",
            first.mountpoint.display()
        ))
        .hint("run the command again"));
    }
    let both_open = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&tree, "", &target, "", both_open).map_err(failed)?;
    // The descriptor of the clone is the new mount, wherever its directory is by now.
    let mounted = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&tree));
    if let Err(error) = mount_remount(&*mounted, MountFlags::BIND | flags_of(words), "") {
        // Otherwise it would stay with the options of the first place.
        _ = unmount(&*mounted, UnmountFlags::DETACH);
        return Err(failed(error));
    }
    if !words.only_at_mount.is_empty() {
        let words = words.only_at_mount.join(",");
        note(format_args!("the options of the first mount hold, and not {words}"));
    }
    Ok(Mounting::New)
}
