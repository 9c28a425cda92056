//! What a transaction was asked and what it answered.
//!
//! # Invariants
//! 1. While it has no gap, `entries` are all calls, in order. A journal with a gap keeps none: they could not be made again.

use warpfire_format::fs::Stamp;

use super::call::Call;

/// Calls that a journal keeps: at some 250 bytes each, 400 MB.
const CALLS_MAX: usize = 1_600_000;

/// The calls of a transaction, in order.
#[derive(Default)]
pub(crate) struct Journal {
    entries: Vec<Entry>,
    /// A call was made that is not written down: then a conflict can not be looked into.
    has_gap: bool,
    last: Option<u64>,
}

/// One call.
pub(crate) struct Entry {
    pub(crate) call: Call,
    /// What it answered.
    pub(crate) digest: u64,
    /// The time it went by.
    pub(crate) at: Stamp,
}

impl Journal {
    /// Of a repetition, which is not repeated itself.
    pub(super) fn of_repetition() -> Journal {
        Journal { has_gap: true, ..Journal::default() }
    }

    /// Writes down a call and its answer.
    pub(super) fn note(&mut self, call: impl FnOnce() -> Call, digest: u64, at: Stamp) {
        self.last = Some(digest);
        if self.entries.len() == CALLS_MAX {
            self.leave_gap();
        }
        if !self.has_gap {
            self.entries.push(Entry { call: call(), digest, at });
        }
    }

    /// A call is not written down.
    pub(super) fn leave_gap(&mut self) {
        self.has_gap = true;
        self.entries = Vec::new();
    }

    /// All calls, if all were written down.
    pub(super) fn entries(&self) -> Option<&[Entry]> {
        (!self.has_gap).then_some(&self.entries)
    }

    /// What the last call answered, once.
    pub(super) fn take_last(&mut self) -> Option<u64> {
        self.last.take()
    }
}
