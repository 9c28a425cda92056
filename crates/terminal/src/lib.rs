//! How the commands of this project talk to a person at a terminal and to a script.
//!
//! Answers, notes, failures with a hint and an exit code, sizes, and tables: the product command and the benchmarks
//! share them, so that both read and print alike.

#![forbid(unsafe_code)]

mod columns;
mod failure;
mod print;
mod size;

pub use columns::Columns;
pub use failure::{Exit, Failure};
pub use print::{note, print, print_json};
pub use size::{Size, duration, grouped, per_second};
