//! `warpfire completions`: a completion script for a shell, from the table of arguments.

use clap::CommandFactory;
use clap_complete::{Shell, generate};
use serde::Serialize;
use warpfire_terminal::{Failure, is_json, print, print_json};

use crate::args::Cli;

const EXAMPLES: &str = "\
Examples:
  warpfire completions bash > /etc/bash_completion.d/warpfire
  warpfire completions zsh > ~/.zfunc/_warpfire";

/// A completion script, as JSON.
#[derive(Serialize)]
struct CompletionScript {
    /// The script.
    script: String,
}

// Arguments of `warpfire completions`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "warpfire", &mut script);
    if is_json() {
        let script = String::from_utf8(script).expect("a script of this program is text");
        return print_json(&CompletionScript { script });
    }
    print(script)
}
