//! The process that becomes the program of `tx run`: it enters the view, goes back to where it was, and is replaced.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};
use warpfire_terminal::Failure;

use super::run::{CANNOT_RUN, NO_PROGRAM, RUN_FAILED};

/// What `run` passes.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The transaction's view.
    view: PathBuf,
    /// Where the program is to see it.
    over: PathBuf,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Becomes the program; returns if it could not.
pub fn enter(args: &Args) -> Failure {
    let failed = |failure: Failure| failure.exit_code(RUN_FAILED);
    let here = match std::env::current_dir() {
        Ok(here) => here,
        Err(error) => {
            return failed(Failure::new(format_args!("the current directory is not there: {error}")));
        }
    };
    if let Err(error) = warpfire_mount::enter_view(&args.view, &args.over) {
        let failure =
            Failure::new(format_args!("cannot show the transaction at {}: {error}", args.over.display()));
        return failed(failure.hint("'warpfire tx begin' gives a directory to work under instead"));
    }
    if let Err(error) = std::env::set_current_dir(&here) {
        return failed(Failure::local(&here, &error));
    }
    // Not before: a new user namespace takes it back. If the parent is gone already, the view is about to go too.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(Failure::new(format_args!("cannot end with 'tx run': {error}")));
    }
    let (program, arguments) = args.program.split_first().expect("the parser asks for a program");
    let error = Command::new(program).args(arguments).exec();
    let code = if error.kind() == ErrorKind::NotFound { NO_PROGRAM } else { CANNOT_RUN };
    Failure::local(program.as_ref(), &error).exit_code(code)
}
