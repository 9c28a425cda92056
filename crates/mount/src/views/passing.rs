//! Passing signals on to the program that works in a view.

use std::io;
use std::sync::Arc;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook_registry::register_sigaction;

/// From now on INT, QUIT, TERM, HUP, USR1 and USR2 do not end this process but are passed on to another, as long as that lives. INT and QUIT of a
/// terminal are not: it sends them to both, if they are of one process group.
///
/// # Errors
/// What the system says.
pub fn pass_signals_to(program: Pid) -> io::Result<()> {
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
