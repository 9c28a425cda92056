//! What the command prints: for a person by default, as JSON where `--json` asks.
//!
//! Answers go to stdout, everything else (progress, warnings, summaries of what was done) to stderr.

use std::io::{self, Write};

use serde::Serialize;

mod entry;
mod size;
mod table;
mod time;

pub use entry::{Entry, mode_letters};
pub use size::{Size, duration, grouped, per_second};
pub use table::Table;
pub use time::{exact_moment, moment};

use crate::failure::Failure;

/// Writes text to stdout. A reader that went away (`| head`) ends the command quietly.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(Failure::from_stdout)
}

/// Writes one JSON document and a line end to stdout.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).expect("the command's answers have string keys only");
    text.push('\n');
    print(text)
}

/// Says something to the person at the terminal that is not the answer.
pub fn note(text: impl std::fmt::Display) {
    // Nobody is left to tell when stderr itself can not be written.
    let _ = writeln!(io::stderr(), "warpfire: {text}");
}
