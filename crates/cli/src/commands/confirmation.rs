//! The question before a command destroys data.

use std::io::{IsTerminal, Write};

use warpfire_terminal::{Failure, note};

/// Asks on the terminal whether to go on.
///
/// # Errors
/// The answer is not yes; or there is no terminal to ask on, and `--yes` is needed.
pub fn confirm(destroys: &str) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format_args!("this {destroys}, and there is no terminal to ask on"))
            .hint("confirm with --yes"));
    }
    note(format_args!("this {destroys}; continue? [y/N]"));
    let mut answer = String::new();
    let read = std::io::stderr().flush().and_then(|()| std::io::stdin().read_line(&mut answer));
    match (read, answer.trim()) {
        (Ok(_), "y" | "Y" | "yes") => Ok(()),
        _ => Err(Failure::new("nothing was changed")),
    }
}
