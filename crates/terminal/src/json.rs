//! JSON on stdout and stderr: each line is one document, and each document begins with its version.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use serde::Serialize;

use crate::Failure;
use crate::print::{Lines, print};
use crate::shown_name::is_odd;

/// The version of the documents. It is raised when a field is removed or changes its meaning. New fields do
/// not raise it.
pub const JSON_VERSION: u32 = 1;

/// Whether this process answers and reports in JSON. Without a setting it does not.
static IS_JSON: OnceLock<bool> = OnceLock::new();

/// Decides how this process answers and reports. The first setting holds.
pub fn set_json(is_json: bool) {
    let _ = IS_JSON.set(is_json);
}

/// Whether this process answers and reports in JSON.
#[must_use]
pub fn is_json() -> bool {
    IS_JSON.get().copied().unwrap_or(false)
}

/// A value with the version before its fields.
#[derive(Serialize)]
struct Document<'a, T> {
    version: u32,
    #[serde(flatten)]
    fields: &'a T,
}

/// A document as one line.
pub(crate) fn line(fields: &impl Serialize) -> String {
    let document = Document { version: JSON_VERSION, fields };
    let mut text =
        serde_json::to_string(&document).expect("the answers of commands are structs with string keys");
    if text.bytes().any(|byte| !byte.is_ascii() || byte == 0x7f) {
        text = without_odd(&text);
    }
    text.push('\n');
    text
}

/// The same document without characters that drive a terminal. They can be inside of strings only.
fn without_odd(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_odd(c) {
            write!(safe, "\\u{:04x}", u32::from(c)).expect("a string takes everything");
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Writes one document to stdout.
///
/// # Errors
/// As [`print()`].
///
/// # Panics
/// The value is neither a struct nor a map with strings as keys.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(line(value))
}

/// A list on stdout: a document for each element, printed in large pieces while they come.
#[derive(Debug, Default)]
pub struct JsonLines(Lines);

impl JsonLines {
    /// Adds an element.
    ///
    /// # Errors
    /// As [`print()`].
    ///
    /// # Panics
    /// As [`print_json`].
    pub fn add(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.0.add(&[line(value).as_bytes()])
    }

    /// Prints the elements that are left.
    ///
    /// # Errors
    /// As [`print()`].
    pub fn finish(self) -> Result<(), Failure> {
        self.0.finish()
    }
}

/// A path as JSON has it: bytes that are no UTF-8 become U+FFFD, and [`path_bytes`] has them all.
#[must_use]
pub fn path_text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_string_lossy().into_owned()
}

/// The bytes of a path that is no UTF-8, in base64. JSON is text and cannot hold them otherwise.
#[must_use]
pub fn path_bytes(path: impl AsRef<OsStr>) -> Option<String> {
    let bytes = path.as_ref().as_bytes();
    std::str::from_utf8(bytes).is_err().then(|| base64(bytes))
}

/// Bytes as text, by RFC 4648 with padding.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at > group.len() { '=' } else { char::from(letter) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(b"\xff\xfe\xfd"), "//79");
        assert_eq!(path_bytes("text"), None);
    }

    #[test]
    fn a_document_is_one_line_that_begins_with_its_version() {
        #[derive(Serialize)]
        struct Answer {
            name: &'static str,
        }
        assert_eq!(line(&Answer { name: "a\nb" }), "{\"version\":1,\"name\":\"a\\nb\"}\n");
        let turned = line(&Answer { name: "\u{202e}\u{9b}2J\u{7f}\u{f6}" });
        assert_eq!(turned, "{\"version\":1,\"name\":\"\\u202e\\u009b2J\\u007f\u{f6}\"}\n");
    }
}
