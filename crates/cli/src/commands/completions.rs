//! `warpfire completions`: a completion script for a shell, from the table of arguments.

use clap::CommandFactory;
use clap_complete::{Shell, generate};
use warpfire_terminal::{Failure, print};

use crate::args::Cli;

/// Arguments of `warpfire completions`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "warpfire", &mut script);
    print(script)
}
