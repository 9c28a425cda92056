//! The commit log: which of it counts, and what it says.

mod groups;
mod stripe;
mod walk;

pub(crate) use walk::replay;
