//! The process that becomes the program of `tx run`: it enters the view, changes to the same directory there,
//! and executes the program.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};
use warpfire_terminal::Failure;

use super::run::{CANNOT_RUN, NO_PROGRAM, RUN_FAILED};

// Arguments from `run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The view of the transaction.
    view: PathBuf,
    /// The mountpoint of the pool: the program sees the view there.
    over: PathBuf,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Executes the program; returns only if that fails.
pub fn enter(args: &Args) -> Failure {
    let failed = |failure: Failure| failure.exit_code(RUN_FAILED);
    let here = match std::env::current_dir() {
        Ok(here) => here,
        Err(error) => {
            return failed(
                Failure::new(format_args!("cannot find the current directory: {error}"))
                    .hint("change to an existing directory"),
            );
        }
    };
    if let Err(error) = warpfire_mount::enter_view(&args.view, &args.over) {
        let failure =
            Failure::new(format_args!("cannot show the transaction at {}: {error}", args.over.display()));
        return failed(failure.hint("use 'warpfire tx begin', which prints a directory to work in"));
    }
    // The same path again, which now leads into the view.
    if let Err(error) = std::env::set_current_dir(&here) {
        return failed(Failure::local(&here, &error));
    }
    // After `enter_view`, because a new user namespace clears this setting. If the parent has ended already,
    // the server aborts the transaction and removes the view.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(Failure::new(format_args!("cannot tie the program to 'tx run': {error}")));
    }
    let (program, arguments) = args.program.split_first().expect("the parser requires a program");
    let error = Command::new(program).args(arguments).exec();
    let code = if error.kind() == ErrorKind::NotFound { NO_PROGRAM } else { CANNOT_RUN };
    Failure::local(program.as_ref(), &error).exit_code(code)
}
