//! Input and output that all commands of this project share, for a person at a terminal and for a script.
//!
//! Answers, notes, failures with a hint and an exit code, sizes, and columns. The product command and the
//! benchmarks use them, so both read and print alike.

#![forbid(unsafe_code)]

mod columns;
mod failure;
mod print;
mod shown_name;
mod size;

pub use columns::Columns;
pub use failure::{Exit, Failure};
pub use print::{JsonList, Lines, note, print, print_json};
pub use shown_name::{name_for_stdout, quoted, shown};
pub use size::{Size, counted, duration, grouped, per_second};
