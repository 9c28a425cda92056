//! A program in a view: its process sees the view in place of the mount and no other process does; signals are passed on to it.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{Pid, PidfdFlags, Signal, getegid, geteuid, pidfd_open, pidfd_send_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook_registry::register_sigaction;

/// Makes a mount namespace for the calling process and puts `view` over `mountpoint` in it. Programs that it starts see the same; when the last of them
/// has ended the namespace is gone. An ordinary user gets a user namespace with it, in which he is who he was.
///
/// The process's working directory stays what it was: change to it again to be in the view.
///
/// # Errors
/// What the system says: `EINVAL` if the process has several threads, `EPERM` or `ENOSPC` where users may not have namespaces.
pub fn enter_view(view: &Path, mountpoint: &Path) -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        unshare(UnshareFlags::NEWNS)?;
    } else {
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
        // A group may be mapped only by who cannot use that to leave one.
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
fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: namespaces only; the table of descriptors stays shared among all threads.
    Ok(unsafe { unshare_unsafe(namespaces) }?)
}

/// From now on INT, QUIT, TERM, HUP, USR1 and USR2 do not end this process but are passed on to another, as long as that lives. INT and QUIT of a
/// terminal are not: it sends them to both, if they are of one process group.
///
/// # Errors
/// What the system says.
pub fn forward_signals_to(program: Pid) -> io::Result<()> {
    // A handle, because the number may be another's once the program has ended.
    let program = Arc::new(pidfd_open(program, PidfdFlags::empty())?);
    for number in [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2] {
        let program = Arc::clone(&program);
        let signal = Signal::from_named_raw(number).expect("these have names");
        let pass = move |info: &libc::siginfo_t| {
            let by_terminal = info.si_code == libc::SI_KERNEL && [SIGINT, SIGQUIT].contains(&number);
            if !by_terminal {
                // It may have ended just now.
                let _ = pidfd_send_signal(&program, signal);
            }
        };
        register(number, pass)?;
    }
    Ok(())
}

#[expect(unsafe_code, reason = "a handler of signals may do little")]
fn register(number: i32, handle: impl Fn(&libc::siginfo_t) + Send + Sync + 'static) -> io::Result<()> {
    // SAFETY: `handle` compares numbers and makes one system call, without memory, locks or a panic.
    unsafe { register_sigaction(number, handle) }?;
    Ok(())
}
