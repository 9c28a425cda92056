//! Dropping the versions that newer ones hide, while callers write little.
//!
//! Tiered compaction merges runs of one size class. A value of a few bytes may point to many more, so small
//! runs can hide most of what an old run points to. Until these are merged, the hidden bytes are live. When a
//! caller needs room, reclaim merges them. This step does it before, when it disturbs nobody.
//!
//! A pass writes memory as a table first: versions in memory hide others too. They would be written later
//! anyway, except those that callers replace before.
//!
//! # Invariants
//! 1. A pass begins only after callers have written little for `QUIET_LOOKS` looks. The tables that it
//!    rewrites have at most a `COST_PART` of the bytes that callers have written since the pass before
//!    (`tests::hidden`).
//! 2. What callers have overwritten stays live only while it is less than two segments, or than `COST_PART`
//!    times the tables, or while they go on writing (`tests::hidden`).

use warpfire_env::sync::atomic::{AtomicU64, Ordering};
use warpfire_log::LogStore;

use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table_set::Run;

/// Callers write little, if it is at most this much between two looks.
const QUIET_BYTES: u64 = 1 << 20;

/// Looks in a row, a second apart, that must see little written.
pub(crate) const QUIET_LOOKS: u64 = 3;

/// Callers must have written this many times the bytes of the tables.
const COST_PART: u64 = 8;

/// A pass for less than this would not empty a segment.
const SEGMENTS_MIN: u64 = 2;

/// What this step knows of the bytes that callers write.
#[derive(Debug, Default)]
pub(crate) struct HiddenBytes {
    /// Bytes written until the last look.
    seen: AtomicU64,
    /// Bytes written until the last pass.
    passed: AtomicU64,
    /// Looks in a row that saw little written and found that a pass pays.
    quiet_looks: AtomicU64,
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Looks how much callers have written since the last look. If it was little for a while, and a pass
    /// pays, wakes the thread that makes it.
    pub(crate) fn look_for_quiet(&self) {
        let written = self.usage.written_bytes();
        let before = self.hidden.seen.swap(written, Ordering::Relaxed);

        // A grant that found room without a commit is counted for a moment.
        if written.saturating_sub(before) > QUIET_BYTES || !self.hidden_pays(written) {
            self.hidden.quiet_looks.store(0, Ordering::Relaxed);
        } else if self.hidden.quiet_looks.fetch_add(1, Ordering::Relaxed) + 1 >= QUIET_LOOKS {
            self.wake_background();
        }
    }

    /// Whether so much may be hidden that a pass pays.
    fn hidden_pays(&self, written: u64) -> bool {
        let written = written.saturating_sub(self.hidden.passed.load(Ordering::Relaxed));
        if written < SEGMENTS_MIN * self.log.segment_bytes() {
            return false;
        }
        let in_tables: u64 = self.table_set().runs.iter().map(Run::bytes).sum();
        written / COST_PART >= in_tables
    }

    /// Makes a pass, if enough looks have asked for one. `false`: they have not, nothing was hidden, or there
    /// is no room to write the tables.
    pub(crate) fn drop_hidden_step(&self) -> Result<bool, MetaError> {
        if self.hidden.quiet_looks.load(Ordering::Relaxed) < QUIET_LOOKS {
            return Ok(false);
        }
        self.hidden.quiet_looks.store(0, Ordering::Relaxed);
        // Also if it fails: where there is no room, reclaim does this and more.
        self.hidden.passed.store(self.usage.written_bytes(), Ordering::Relaxed);
        let in_memory_bytes = self.usage.in_memory_bytes();
        tracing::debug!(name: "quiet_pass_begun", in_memory_bytes, "what newer versions hide is dropped");
        // A memtable may be frozen already, and then the active one has its turn after it.
        let flushed = self.flush_frozen().and_then(|_| self.freeze()).and_then(|_| self.flush_frozen());
        match flushed.and_then(|_| self.compact_present()) {
            Err(e) if e.is_no_space() => Ok(false),
            compacted => compacted,
        }
    }
}
