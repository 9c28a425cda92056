//! The repository as its own tests see it: crates, their dependencies, and their files.
//!
//! - `workspace`: crates and source files, as cargo and the disk list them.
//! - `text`: comments, literals and code of a source file.
//! - `census`: lengths, comments, asserts and type names as numbers.
//! - `json_types`: types that commands print as JSON, as tables.
//! - `words`: words that prose does not use.
//! - `modules`: modules of a crate that use each other.

#![forbid(unsafe_code)]

pub mod census;
pub mod json_types;
pub mod modules;
pub mod text;
pub mod words;
mod workspace;

pub use workspace::{Member, documents, is_for_tests, members, root, sources};
