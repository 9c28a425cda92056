//! `warpfire tx run`: a program in a transaction.
//!
//! ```text
//!   begin ──▶ start the program in the view ──▶ it ends ──▶ code 0: its descendants end ──▶ commit
//!                                  │               │                      └── not in time: abort
//!                                  │               └── other code: abort
//!                                  └── this process is killed: the server aborts
//! ```
//!
//! Signals that would end this process are forwarded to the program. Its exit code decides.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, wait};
use serde::Serialize;
use warpfire_mount::{TransactionState, forward_signals_to};
use warpfire_terminal::{Failure, is_json, note, note_json};

use super::{MountedPool, TransactionEnd, state};

/// `tx run` itself failed.
pub const RUN_FAILED: u8 = 125;
/// The program cannot be executed.
pub const CANNOT_RUN: u8 = 126;
/// The program does not exist.
pub const NO_PROGRAM: u8 = 127;

/// Tries to find all descendants of the program ended: five seconds in all.
const LEFT_TRIES_MAX: u32 = 100;
/// Pause between two tries.
const LEFT_PAUSE: Duration = Duration::from_millis(50);

/// Environment variable with the id of the transaction, for the program.
const ID_VARIABLE: &str = "WARPFIRE_TX";

/// Runs a program in a transaction, and returns the exit code.
pub fn run(mounted: &MountedPool, program: &[OsString], durable: bool) -> Result<ExitCode, Failure> {
    let failed = |failure: Failure| failure.exit_code(RUN_FAILED);
    let begun = mounted.control.begin(true).map_err(|error| failed(mounted.not_begun(&error)))?;
    let abort = |failure: Failure| {
        // Fails if the server has ended; then the transaction has ended too.
        let _ = mounted.control.abort(begun.id);
        failed(failure)
    };
    let start = || {
        // Orphaned descendants of the program become children of this process, so it can wait for them.
        set_child_subreaper(Some(getpid()))?;
        let mut own = Command::new(std::env::current_exe()?);
        own.args(is_json().then_some("--json"));
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
        // Fails only if the server has ended, as above.
        let _ = mounted.control.abort(begun.id);
        if is_json() {
            show_end(begun.id, TransactionState::Aborted);
        }
        note(format_args!("transaction {} is aborted, because the program ended with {code}", begun.id));
        return Ok(ExitCode::from(code));
    }
    // A descendant that still runs could write after the commit has begun, or keep the view in use.
    if !all_have_ended() {
        let failure = Failure::new("the program left processes behind that still run; nothing has changed");
        return Err(abort(failure.hint("make the program wait for them, or end them")));
    }
    match mounted.commit(begun.id, durable) {
        Ok(()) => {
            if is_json() {
                show_end(begun.id, TransactionState::Committed);
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) if failure.is_conflict() => Err(failure),
        Err(failure) => Err(abort(failure)),
    }
}

/// Prints the end of the transaction on stderr: stdout belongs to the program.
fn show_end(id: u64, ended: TransactionState) {
    note_json(&EndOfRun { transaction: TransactionEnd { id, state: state(ended) } });
}

/// The end of the transaction of `tx run` on stderr, as JSON.
#[derive(Serialize)]
struct EndOfRun {
    /// The transaction.
    transaction: TransactionEnd,
}

/// The exit code that a shell would report.
fn code_of(ended: ExitStatus) -> u8 {
    let code = ended.code().or_else(|| ended.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(RUN_FAILED)
}

/// Waits until all descendants have ended; prints a note after a second. `false` if they do not end in time.
fn all_have_ended() -> bool {
    for tries in 0..LEFT_TRIES_MAX {
        match wait(WaitOptions::NOHANG) {
            // One has ended; the error below means that there is none left.
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
