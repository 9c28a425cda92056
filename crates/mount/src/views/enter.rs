//! Entering a view: the calling process sees it in place of the mount, and nobody else does.

use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Makes a mount namespace for the calling process and puts `view` over `mountpoint` in it. Programs that it starts see the same; when the last of them
/// has ended the namespace is gone. An ordinary user gets a user namespace with it, in which he is who he was.
///
/// The process's working directory stays what it was: change to it again to be in the view.
///
/// # Errors
/// What the system says: `EINVAL` if the process has several threads, `EPERM` or `ENOSPC` where users may not have namespaces.
pub fn enter(view: &Path, mountpoint: &Path) -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        unshare(UnshareFlags::NEWNS)?;
    } else {
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
        // A group may be mapped only by who can not use that to leave one.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    // What is unmounted outside goes here too; what is mounted here stays here.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    mount_bind(view, mountpoint)?;
    Ok(())
}

#[expect(unsafe_code, reason = "unsharing descriptors would be unsafe")]
fn unshare(what: UnshareFlags) -> io::Result<()> {
    // SAFETY: namespaces only; the table of descriptors stays shared among all threads.
    Ok(unsafe { unshare_unsafe(what) }?)
}
