//! `warpfire`: makes, mounts, checks and inspects pools, and copies files into and out of them.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod found_pool;
mod interrupt;
mod location;
mod output;
mod progress;
mod tree;
mod verbose;
mod wrong_words;

use std::process::ExitCode;

use clap::Parser;
use commands::mount::mount_helper;
use warpfire_terminal::set_json;
use wrong_words::{asks_for_json, wrong_words};

/// Without any word, the help is printed to stderr.
const HELP_FOR_NO_WORDS: clap::error::ErrorKind =
    clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;

fn main() -> ExitCode {
    let is_helper = mount_helper::is_helper(std::env::args_os().next().as_deref());
    let words = match mount_helper::words_of_process() {
        Ok(Some(words)) => words,
        Ok(None) => return ExitCode::SUCCESS,
        Err(failure) => return failure.exit_code(mount_helper::WRONG_CALL).report(),
    };
    let cli = match args::Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        // Help and versions come this way too.
        Err(error) if !error.use_stderr() || error.kind() == HELP_FOR_NO_WORDS => error.exit(),
        Err(error) => {
            set_json(asks_for_json(&words));
            return wrong_words(&words, &error).report();
        }
    };
    set_json(cli.json);
    found_pool::search_in(&cli.search);
    if cli.utc {
        output::use_utc();
    }
    // A server has a log of its own.
    if !matches!(cli.command, args::Command::Mount(_)) {
        verbose::start(cli.verbose);
    }
    match commands::run(cli) {
        Ok(exit) => exit,
        Err(failure) if is_helper => failure.exit_code(mount_helper::MOUNT_FAILED).report(),
        Err(failure) => failure.report(),
    }
}
