//! A program in a view: its process sees the view in place of the mount, and gets the signals of its parent.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{Pid, PidfdFlags, Signal, getegid, geteuid, pidfd_open, pidfd_send_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook_registry::register_sigaction;

/// Makes a mount namespace for the calling process and puts `view` over `mountpoint` in it. Programs that the
/// process starts see the same; other processes do not. The namespace ends with the last of its processes. An
/// ordinary user also gets a user namespace that maps the user's own uid and gid.
///
/// The working directory of the process stays outside the view. Change to the same path again to be in the
/// view.
///
/// # Errors
/// The error of the system: `EINVAL` if the process has several threads, `EPERM` or `ENOSPC` if users may not
/// make namespaces.
pub fn enter_view(view: &Path, mountpoint: &Path) -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        unshare(UnshareFlags::NEWNS)?;
    } else {
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
        // The kernel lets a user map a group only if setgroups(2), by which one could leave a group, is
        // denied.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    // An unmount outside takes effect here too; a mount here stays here.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    mount_bind(view, mountpoint)?;
    Ok(())
}

#[expect(unsafe_code, reason = "to unshare the descriptor table would be unsafe")]
fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: callers pass namespaces only, so all threads go on sharing the descriptor table.
    Ok(unsafe { unshare_unsafe(namespaces) }?)
}

/// From now on INT, QUIT, TERM, HUP, USR1 and USR2 do not end this process. It forwards them to `program` as
/// long as that runs. It does not forward INT and QUIT from a terminal: the terminal sends them to the whole
/// process group, and so to both.
///
/// # Errors
/// The error of pidfd_open(2) or sigaction(2).
pub fn forward_signals_to(program: Pid) -> io::Result<()> {
    // A descriptor, because the system may use the number for another process once the program has ended.
    let program = Arc::new(pidfd_open(program, PidfdFlags::empty())?);
    for number in [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2] {
        let program = Arc::clone(&program);
        let signal = Signal::from_named_raw(number).expect("these have names");
        let pass = move |info: &libc::siginfo_t| {
            let by_terminal = info.si_code == libc::SI_KERNEL && [SIGINT, SIGQUIT].contains(&number);
            if !by_terminal {
                // Fails if the program has just ended.
                let _ = pidfd_send_signal(&program, signal);
            }
        };
        register(number, pass)?;
    }
    Ok(())
}

#[expect(unsafe_code, reason = "a signal handler may call only async-signal-safe functions")]
fn register(number: i32, handle: impl Fn(&libc::siginfo_t) + Send + Sync + 'static) -> io::Result<()> {
    // SAFETY: `handle` compares numbers and makes one system call; it does not allocate, lock or panic.
    unsafe { register_sigaction(number, handle) }?;
    Ok(())
}
