//! Counts of the transactions of a filesystem, by their end.

use warpfire_env::sync::atomic::{AtomicU64, Ordering};

/// Transactions since the filesystem was opened, by their end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransactionCounts {
    /// Commits that succeeded.
    pub commits: u64,
    /// Commits that made the calls of their transaction again, because something that it had read had
    /// changed.
    pub replays: u64,
    /// Commits that failed because a call would have had another answer, or a file not the expected version.
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
    /// The counts as of now. They are read one after the other, so a commit in between can be in one of them
    /// only.
    pub(crate) fn read(&self) -> TransactionCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TransactionCounts {
            commits: read(&self.commits),
            replays: read(&self.replays),
            conflicts: read(&self.conflicts),
        }
    }
}
