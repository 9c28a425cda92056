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

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue};
use commands::mount::mount_helper;
use warpfire_terminal::{Failure, set_json};

fn main() -> ExitCode {
    let is_helper = mount_helper::is_helper(std::env::args_os().next().as_deref());
    let words = match mount_helper::words_of_process() {
        Ok(Some(words)) => words,
        Ok(None) => return ExitCode::SUCCESS,
        Err(failure) => return failure.exit_code(mount_helper::WRONG_CALL).report(),
    };
    let cli = match args::Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && asks_for_json(&words) => {
            set_json(true);
            return wrong_words(&error).report();
        }
        // Help and versions come this way too.
        Err(error) => error.exit(),
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

/// Whether words that could not be parsed ask for JSON.
fn asks_for_json(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// The parser's error as a failure with a hint.
fn wrong_words(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let first = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
    let failure = Failure::usage(first.strip_prefix("error: ").unwrap_or(&first));
    let suggested = error.context().find_map(|(kind, value)| match (kind, value) {
        (ContextKind::SuggestedArg | ContextKind::SuggestedSubcommand, ContextValue::String(word)) => {
            Some(word.clone())
        }
        (ContextKind::SuggestedArg | ContextKind::SuggestedSubcommand, ContextValue::Strings(words)) => {
            // The most similar one is the last.
            words.last().cloned()
        }
        _ => None,
    });
    match suggested {
        Some(word) => failure.hint(format_args!("did you mean '{word}'?")),
        None => failure.hint("'warpfire help' shows the commands, and 'warpfire help COMMAND' their words"),
    }
}
