//! Input and output that all commands of this project share, for a person at a terminal and for a script.
//!
//! Answers, notes, failures with a hint and an exit code, sizes, and columns. The product command and the
//! benchmarks use them, so both read and print alike.

#![forbid(unsafe_code)]

mod columns;
mod failure;
mod json;
mod print;
mod shown_name;
mod size;

pub use columns::Columns;
pub use failure::{Exit, Failure, RelayedFailure};
pub use json::{JSON_VERSION, JsonLines, base64, is_json, path_bytes, path_text, print_json, set_json};
pub use print::{Lines, note, note_json, print};
pub use shown_name::{name_for_stdout, quoted, shown};
pub use size::{Size, counted, duration, grouped, per_second};
