//! Options of a mounted pool, changed by `mount -o remount`.

use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, fstat, fstatvfs, major, minor, openat};
use rustix::mount::{MountFlags, mount_remount};
use warpfire_terminal::{Failure, note};

use super::control::ServerConnection;
use super::mount_words::MountWords;
use super::mounted_pool::{MountedPool, pool_mounted_at};

/// Words that mount(8) repeats from the mount table: nobody asked for a change of them.
const REPEATED: [&str; 2] = ["allow_other", "relatime"];

/// Changes what the kernel can change in a mounted filesystem. The other options take effect at the next
/// mount; a note says so.
///
/// # Errors
/// No pool is mounted there; it is to be written, and its server has it open for reading only.
pub fn run(directory: &Path, options: &[String]) -> Result<(), Failure> {
    let mounted = pool_mounted_at(directory).ok_or_else(|| {
        Failure::new(format_args!("no pool is mounted at {}", directory.display()))
            .hint("mount it without 'remount'")
    })?;
    let failed = |error: rustix::io::Errno| Failure::local(directory, &error.into());
    // By descriptor from here on: others may own a directory on the way and swap it.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = openat(CWD, &mounted.mountpoint, flags, Mode::empty()).map_err(failed)?;
    let device = fstat(&place).map_err(failed)?.st_dev;
    if (major(device), minor(device)) != mounted.device {
        return Err(Failure::new(format_args!("{} is another filesystem by now", directory.display()))
            .hint("run the command again"));
    }
    let now = fstatvfs(&place).map_err(failed)?.f_flag;
    let words = MountWords {
        read_only: now.contains(StatVfsMountFlags::RDONLY),
        suid: !now.contains(StatVfsMountFlags::NOSUID),
        dev: !now.contains(StatVfsMountFlags::NODEV),
        exec: !now.contains(StatVfsMountFlags::NOEXEC),
        ..MountWords::default()
    };
    let words = words.parse(options.iter().map(String::as_str))?;
    if !words.read_only {
        check_writable(&mounted)?;
    }
    // `BIND`: the options of this place, and not of other places of the same pool.
    let place = format!("/proc/self/fd/{}", place.as_raw_fd());
    mount_remount(place, MountFlags::BIND | flags_of(&words), "").map_err(failed)?;
    let later: Vec<&str> =
        words.only_at_mount.iter().map(String::as_str).filter(|word| !REPEATED.contains(word)).collect();
    if !later.is_empty() {
        note(format_args!("these options take effect at the next mount: {}", later.join(",")));
    }
    Ok(())
}

/// Whether a mount of the pool for writing can work.
///
/// # Errors
/// The server has the pool open for reading only, or does not answer.
pub fn check_writable(mounted: &MountedPool) -> Result<(), Failure> {
    let server = ServerConnection::of_mount(mounted);
    let status = server.map_err(|reason| reason.failure(&mounted.mountpoint))?.status()?;
    if !status.read_only {
        return Ok(());
    }
    let server = format_args!("the server of {}", mounted.mountpoint.display());
    Err(Failure::new(format_args!("{server} has the pool open for reading only"))
        .hint("mount it with 'ro' here too, or unmount the pool and mount it without 'ro'"))
}

/// The flags of mount(2) for these words.
pub fn flags_of(words: &MountWords) -> MountFlags {
    let flags = [
        (words.read_only, MountFlags::RDONLY),
        (!words.suid, MountFlags::NOSUID),
        (!words.dev, MountFlags::NODEV),
        (!words.exec, MountFlags::NOEXEC),
    ];
    flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
}
