//! How the transactions of a filesystem have ended.

use std::sync::atomic::{AtomicU64, Ordering};

/// How transactions have ended since the filesystem was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransactionCounts {
    /// Committed.
    pub commits: u64,
    /// Whose calls were made again because something that they had read had changed.
    pub replays: u64,
    /// Not committed because a call would have answered otherwise, or a version was not the expected one.
    pub conflicts: u64,
}

/// The counters behind [`TransactionCounts`].
#[derive(Default)]
pub(crate) struct TransactionCounters {
    pub(crate) commits: AtomicU64,
    pub(crate) replays: AtomicU64,
    pub(crate) conflicts: AtomicU64,
}

impl TransactionCounters {
    /// The counts as of now.
    pub(crate) fn read(&self) -> TransactionCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TransactionCounts {
            commits: read(&self.commits),
            replays: read(&self.replays),
            conflicts: read(&self.conflicts),
        }
    }
}
