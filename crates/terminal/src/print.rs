//! The two channels of a command: answers go to stdout, everything else (progress, warnings, summaries) to stderr.

use std::io::{self, Write};

use serde::Serialize;

use crate::Failure;

/// Writes text to stdout. A reader that went away (`| head`) ends the command quietly.
///
/// # Errors
/// What the system says.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(Failure::from_stdout)
}

/// Writes one JSON document and a line end to stdout.
///
/// # Errors
/// As [`print`].
///
/// # Panics
/// If the value has a map whose keys are not strings.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text =
        serde_json::to_string_pretty(value).expect("the answers of commands have string keys only");
    text.push('\n');
    print(text)
}

/// Writes one line to stderr.
pub fn note(text: impl std::fmt::Display) {
    // A failure to write to stderr has no channel left to be reported on.
    let _ = writeln!(io::stderr(), "warpfire: {text}");
}
