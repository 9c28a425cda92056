//! The two outputs of a command: answers go to stdout; progress, warnings and summaries go to stderr.

use std::io::{self, Write};

use serde::Serialize;

use crate::Failure;
use crate::failure::without_errno;
use crate::json::{is_json, line};
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

/// Lines are printed in pieces of about this many bytes.
const PIECE_BYTES: usize = 1 << 16;

/// Writes one line to stderr: a sentence, or with [`is_json`] a document `note`. Characters that drive a
/// terminal are escaped: a message may hold any name.
pub fn note(text: impl std::fmt::Display) {
    let text = without_errno(text.to_string());
    if is_json() {
        return write_stderr(&line(&NoteDocument { note: Note { message: text } }));
    }
    write_stderr(&format!("warpfire: {}\n", for_message(&text, |c| c == '\n')));
}

/// Writes one document to stderr, for a command whose stdout belongs to another program.
///
/// # Panics
/// As [`print_json`](crate::print_json).
pub fn note_json(value: &impl Serialize) {
    write_stderr(&line(value));
}

/// A remark that is no failure.
#[derive(Serialize)]
struct NoteDocument {
    note: Note,
}

#[derive(Serialize)]
struct Note {
    message: String,
}

/// Writes lines to stderr, all of them in one call.
pub(crate) fn write_stderr(lines: &str) {
    // A failed write to stderr cannot be reported anywhere.
    let _ = io::stderr().lock().write_all(lines.as_bytes());
}
