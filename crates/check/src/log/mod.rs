//! The two logs. The state log: the segment table and the client's state of the root. The commit log: its
//! accepted groups, their changes of the segment table, and their records.

mod groups;
mod saved;
mod stripe;
mod walk;

pub(crate) use saved::read_saved;
pub(crate) use walk::replay;
