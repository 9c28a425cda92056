//! The commit log: its accepted groups, their changes of the segment table, and their records.

mod groups;
mod stripe;
mod walk;

pub(crate) use walk::replay;
