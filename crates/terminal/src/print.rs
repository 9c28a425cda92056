//! The two outputs of a command: answers go to stdout; progress, warnings and summaries go to stderr.

use std::io::{self, Write};

use serde::Serialize;

use crate::Failure;
use crate::failure::without_errno;
use crate::shown_name::for_message;

/// Writes text to stdout. If the reader is gone (`| head`), the failure is silent and its
/// exit code is 0.
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

/// Lines on stdout, printed in large pieces while they come.
#[derive(Debug, Default)]
pub struct Lines {
    waiting: Vec<u8>,
}

impl Lines {
    /// Adds bytes, with their line end.
    ///
    /// # Errors
    /// As [`print()`].
    pub fn add(&mut self, parts: &[&[u8]]) -> Result<(), Failure> {
        for part in parts {
            self.waiting.extend_from_slice(part);
        }
        if self.waiting.len() < PIECE_BYTES {
            return Ok(());
        }
        let printed = print(&self.waiting);
        self.waiting.clear();
        printed
    }

    /// Prints the lines that are left.
    ///
    /// # Errors
    /// As [`print()`].
    pub fn finish(self) -> Result<(), Failure> {
        print(self.waiting)
    }
}

/// A JSON list on stdout, printed while its elements come.
#[derive(Debug, Default)]
pub struct JsonList {
    waiting: String,
    has_elements: bool,
}

/// Lines and lists are printed in pieces of about this many bytes.
const PIECE_BYTES: usize = 1 << 16;

impl JsonList {
    /// Adds an element.
    ///
    /// # Errors
    /// As [`print()`].
    ///
    /// # Panics
    /// The value contains a map with keys that are not strings.
    pub fn add(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text =
            serde_json::to_string_pretty(value).expect("the answers of commands have string keys only");
        self.waiting.push_str(if self.has_elements { ",\n  " } else { "[\n  " });
        self.waiting.push_str(&text.replace('\n', "\n  "));
        self.has_elements = true;
        if self.waiting.len() < PIECE_BYTES {
            return Ok(());
        }
        print(std::mem::take(&mut self.waiting))
    }

    /// Ends the list.
    ///
    /// # Errors
    /// As [`print()`].
    pub fn finish(mut self) -> Result<(), Failure> {
        self.waiting.push_str(if self.has_elements { "\n]\n" } else { "[]\n" });
        print(self.waiting)
    }
}

/// Writes one line to stderr. Characters that drive a terminal are escaped: a message may hold any name.
pub fn note(text: impl std::fmt::Display) {
    let text = for_message(&without_errno(text.to_string()), |c| c == '\n');
    // A failed write to stderr cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "warpfire: {text}");
}
