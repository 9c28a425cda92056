//! `warpfire tx run`: a program in a transaction.
//!
//! ```text
//!   begin ──▶ start the program in the view ──▶ it ends ──▶ what it left behind ends ──▶ code 0: commit
//!                                                  │                │                       other: abort
//!                                                  │                └── not in time: abort
//!                                                  └── we are killed: the server sees it and aborts
//! ```
//!
//! Signals that would end us go to the program instead, and how it ends decides.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, wait};
use warpfire_mount::forward_signals_to;
use warpfire_terminal::{Failure, note};

use super::MountedPool;

/// `tx run` itself failed.
pub const RUN_FAILED: u8 = 125;
/// The program cannot be run.
pub const CANNOT_RUN: u8 = 126;
/// There is no such program.
pub const NO_PROGRAM: u8 = 127;

/// How often, and how long each time, processes that the program left behind are waited for: five seconds.
const LEFT_TRIES_MAX: u32 = 100;
const LEFT_PAUSE: Duration = Duration::from_millis(50);

/// Names the transaction to the program.
const ID_VARIABLE: &str = "WARPFIRE_TX";

/// Runs a program in a transaction, and gives the code to end with.
pub fn run(mounted: &MountedPool, program: &[OsString], durable: bool) -> Result<ExitCode, Failure> {
    let failed = |failure: Failure| failure.exit_code(RUN_FAILED);
    let begun = mounted.control.begin(true).map_err(|error| failed(mounted.not_begun(&error)))?;
    let abort = |failure: Failure| {
        // If the server is gone, so is the transaction.
        let _ = mounted.control.abort(begun.id);
        failed(failure)
    };
    let start = || {
        // Whose parent ends is ours then, so that none is left behind unseen.
        set_child_subreaper(Some(getpid()))?;
        let mut own = Command::new(std::env::current_exe()?);
        own.args(["tx", "enter"]).arg(&begun.path).arg(&mounted.directory).arg("--").args(program);
        let child = own.env(ID_VARIABLE, begun.id.to_string()).spawn()?;
        forward_signals_to(Pid::from_child(&child))?;
        Ok(child)
    };
    let started: std::io::Result<Child> = start();
    let mut child =
        started.map_err(|error| abort(Failure::new(format_args!("cannot start a process: {error}"))))?;
    let ended = child.wait().map_err(|error| abort(Failure::new(error)))?;
    let code = code_of(ended);
    if code != 0 {
        // As above.
        let _ = mounted.control.abort(begun.id);
        note(format_args!("transaction {} is aborted: the program ended with {code}", begun.id));
        return Ok(ExitCode::from(code));
    }
    if !all_have_ended() {
        let failure = Failure::new("the program left processes behind that go on; nothing has changed");
        return Err(abort(failure.hint("wait for them in the program, or end them there")));
    }
    match mounted.commit(begun.id, durable) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) if failure.is_conflict() => Err(failure),
        Err(failure) => Err(abort(failure)),
    }
}

/// The code that a shell would give.
fn code_of(ended: ExitStatus) -> u8 {
    let code = ended.code().or_else(|| ended.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(RUN_FAILED)
}

/// Waits until all descendants have ended; says so while it takes long. `false` if they do not.
fn all_have_ended() -> bool {
    for tries in 0..LEFT_TRIES_MAX {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => continue,
            Ok(None) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return true,
        }
        if tries == LEFT_TRIES_MAX / 5 {
            note("waiting for processes that the program left behind");
        }
        thread::park_timeout(LEFT_PAUSE);
    }
    false
}
