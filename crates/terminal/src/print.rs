//! The two outputs of a command: answers go to stdout; progress, warnings and summaries go to stderr.

use std::io::{self, Write};

use serde::Serialize;

use crate::Failure;

/// Writes text to stdout. If the reader is gone (`| head`), the failure is a silent one.
///
/// # Errors
/// stdout cannot be written.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(Failure::from_stdout)
}

/// Writes one JSON document and a newline to stdout.
///
/// # Errors
/// As [`print()`].
///
/// # Panics
/// The value contains a map with keys that are not strings.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text =
        serde_json::to_string_pretty(value).expect("the answers of commands have string keys only");
    text.push('\n');
    print(text)
}

/// Writes one line to stderr.
pub fn note(text: impl std::fmt::Display) {
    // A failed write to stderr cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "warpfire: {text}");
}
