//! What a transaction was asked and what it answered.

use warpfire_format::fs::Stamp;

use super::call::Call;

/// The calls of a transaction, in order.
#[derive(Default)]
pub(crate) struct Journal {
    pub(crate) entries: Vec<Entry>,
    /// A change was made, or something was read, by a call that is not written down: then a conflict can not be looked into.
    pub(crate) has_gaps: bool,
}

/// One call.
pub(crate) struct Entry {
    pub(crate) call: Call,
    /// What it answered.
    pub(crate) digest: u64,
    /// The time it went by.
    pub(crate) at: Stamp,
}
