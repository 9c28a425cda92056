//! The table set: all tables at one time, grouped in runs.
//!
//! # Terms
//! The runs of the *present* have what a reader of the newest version, or of a live snapshot, needs. The runs
//! of the *past* have old versions that only persistent snapshots and the origins of domains show. What a run
//! of the past has of a key is complete for the seqs of one span of time: versions, and above them a delete
//! that ends the span. A reader at another seq passes the run (`read`).
//!
//! # Invariants
//! 1. A reader at or above the highest seq of the past opens no table of it (`past_at`;
//!    `tests::past::a_reader_of_the_newest_version_opens_no_table_of_the_past`).
//! 2. For each key and each seq that is held, one run of the past at most has a version that is shown at that
//!    seq. So the order of these runs has no meaning.

mod manifest;

use std::sync::Arc;

use warpfire_format::table::KeyHeads;
use warpfire_log::LogStore;
use warpfire_units::Seq;

pub(crate) use manifest::{InstallInto, ManifestState, TableChange};

use crate::table::Table;

/// Tables in key order that do not overlap.
pub(crate) struct Run<L: LogStore> {
    pub(crate) id: u64,
    pub(crate) tables: Vec<Arc<Table<L>>>,
    /// Of the largest key of each table. Lookups search them and follow few pointers.
    ends: KeyHeads,
}

impl<L: LogStore> Run<L> {
    /// The run of these tables, which are in the order of their keys.
    pub(crate) fn new(id: u64, tables: Vec<Arc<Table<L>>>) -> Self {
        let ends = KeyHeads::new(tables.len(), |i| &tables[i].entry().largest);
        Run { id, tables, ends }
    }

    /// Length of all its tables, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.tables.iter().map(|t| u64::from(t.entry().len_bytes)).sum()
    }

    /// Whether one of its tables is unreadable, so that the run cannot be rewritten.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.tables.iter().any(|t| t.is_unreadable())
    }

    /// The one table that can hold `key`.
    pub(crate) fn table_of(&self, key: &[u8]) -> Option<&Arc<Table<L>>> {
        let at = self.ends.count_below(key, false, |i| &self.tables[i].entry().largest);
        self.tables.get(at).filter(|t| t.entry().smallest.as_slice() <= key)
    }
}

/// All tables at one time. While a reader holds a table set, its tables stay readable.
pub(crate) struct TableSet<L: LogStore> {
    /// Newest first: the versions of a key in a run are newer than those in the runs after it.
    pub(crate) runs: Vec<Run<L>>,
    /// The runs of the past, in no order.
    pub(crate) past: Vec<Run<L>>,
    /// The highest seq of the past.
    past_end: Seq,
}

impl<L: LogStore> TableSet<L> {
    pub(crate) fn new(runs: Vec<Run<L>>, past: Vec<Run<L>>) -> Self {
        let seqs = past.iter().flat_map(|run| &run.tables).map(|table| table.entry().seq_max);
        let past_end = seqs.max().unwrap_or_default();
        TableSet { runs, past, past_end }
    }

    /// The runs of the past that may have a version for a reader at this seq.
    #[inline]
    pub(crate) fn past_at(&self, at: Seq) -> &[Run<L>] {
        if at < self.past_end { &self.past } else { &[] }
    }

    /// The highest seq of the past.
    pub(crate) fn past_end(&self) -> Seq {
        self.past_end
    }

    /// Whether this is a run of the past.
    pub(crate) fn is_past(&self, run: u64) -> bool {
        self.past.iter().any(|past| past.id == run)
    }

    /// Length of all tables, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().chain(&self.past).map(Run::bytes).sum()
    }

    /// The newest seq in any table. A flush raises it, and a compaction does not.
    pub(crate) fn seq_max(&self) -> Seq {
        self.tables().map(|(_, table)| table.entry().seq_max).max().unwrap_or_default()
    }

    /// Every table of the present and of the past, with the run that it is in.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (u64, &Arc<Table<L>>)> {
        self.runs.iter().chain(&self.past).flat_map(|run| run.tables.iter().map(|t| (run.id, t)))
    }
}
