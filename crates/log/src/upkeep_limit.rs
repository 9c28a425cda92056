//! The limit of upkeep: whether the work that makes segments whole goes on by itself now, and how fast.
//!
//! The limit has no clock. Its owner grants bytes from time to time (`grant`), and each step of the work
//! spends the bytes that it has read and written (`spend`). A step may spend more than is left. The debt
//! delays the next step, so the mean rate is the granted one, whatever the length of a segment.
//!
//! # Invariants
//! 1. While upkeep is paused, or its credit is spent, no step begins by itself (`may_work`). A command that
//!    asks for the work goes on (`LogStore::mend` does not look here).
//! 2. The count of written bytes never falls, so the bytes done and the bytes left add up to the whole work.

use std::sync::atomic::Ordering::Relaxed;

use warpfire_env::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

/// Whether upkeep goes on by itself, and how fast.
#[derive(Debug, Default)]
pub struct UpkeepLimit {
    is_paused: AtomicBool,
    is_limited: AtomicBool,
    /// Bytes that may be read and written now; negative if a step has spent more than it had.
    credit_bytes: AtomicI64,
    moved_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl UpkeepLimit {
    /// Pauses the work, or lets it go on.
    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Relaxed);
    }

    /// Whether the work is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Relaxed)
    }

    /// Gives the work so many bytes more; what it has left over from before is no more than that. `None` ends
    /// the limit.
    pub fn grant(&self, bytes: Option<u64>) {
        self.is_limited.store(bytes.is_some(), Relaxed);
        let Some(bytes) = bytes else {
            self.credit_bytes.store(0, Relaxed);
            return;
        };
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let with = |credit: i64| Some(credit.min(0).saturating_add(bytes));
        // The closure always returns a value, so this cannot fail.
        let _ = self.credit_bytes.fetch_update(Relaxed, Relaxed, with);
    }

    /// Whether a step may begin by itself.
    #[must_use]
    pub fn may_work(&self) -> bool {
        !self.is_paused() && (!self.is_limited.load(Relaxed) || self.credit_bytes.load(Relaxed) > 0)
    }

    /// Takes note of a step that has read and written so many bytes of columns.
    pub(crate) fn spend(&self, read_bytes: u64, written_bytes: u64) {
        let moved_bytes = read_bytes.saturating_add(written_bytes);
        self.moved_bytes.fetch_add(moved_bytes, Relaxed);
        self.written_bytes.fetch_add(written_bytes, Relaxed);
        self.credit_bytes.fetch_sub(i64::try_from(moved_bytes).unwrap_or(i64::MAX), Relaxed);
    }

    /// Bytes that the work has read and written since the pool was opened.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Relaxed)
    }

    /// Bytes of columns that it has written.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_rate_is_the_granted_one_whatever_a_step_takes() {
        let limit = UpkeepLimit::default();
        assert!(limit.may_work(), "without a limit");
        let (mut steps, step_bytes, granted) = (0u64, 70, 10);
        for _ in 0..700 {
            limit.grant(Some(granted));
            while limit.may_work() {
                limit.spend(step_bytes - 1, 1);
                steps += 1;
            }
        }
        assert_eq!((steps, limit.moved_bytes(), limit.written_bytes()), (100, 7000, 100));
    }

    #[test]
    fn what_was_not_used_is_not_saved() {
        let limit = UpkeepLimit::default();
        (0..1000).for_each(|_| limit.grant(Some(10)));
        limit.spend(10, 0);
        assert!(!limit.may_work());
        limit.grant(None);
        assert!(limit.may_work(), "the limit has ended, and the debt with it");
        limit.pause(true);
        assert!(!limit.may_work());
        limit.pause(false);
        assert!(limit.may_work());
    }
}
