//! The table set: all tables at one time, grouped in runs.

mod manifest;

use std::sync::Arc;

use warpfire_log::LogStore;
use warpfire_units::Seq;

pub(crate) use manifest::{InstallInto, ManifestState};

use crate::table::Table;

/// Tables in key order that do not overlap.
pub(crate) struct Run<L: LogStore> {
    pub(crate) id: u64,
    pub(crate) tables: Vec<Arc<Table<L>>>,
}

impl<L: LogStore> Run<L> {
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
        let at = self.tables.partition_point(|t| t.entry().largest.as_slice() < key);
        self.tables.get(at).filter(|t| t.entry().smallest.as_slice() <= key)
    }
}

/// All tables at one time. While a reader holds a table set, its tables stay readable.
pub(crate) struct TableSet<L: LogStore> {
    /// Newest first: the versions of a key in a run are newer than those in the runs after it.
    pub(crate) runs: Vec<Run<L>>,
}

impl<L: LogStore> TableSet<L> {
    /// The newest seq in any table. A flush raises it, and a compaction does not.
    pub(crate) fn seq_max(&self) -> Seq {
        self.tables().map(|(_, table)| table.entry().seq_max).max().unwrap_or_default()
    }

    /// Every table, with the run that it is in.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (u64, &Arc<Table<L>>)> {
        self.runs.iter().flat_map(|run| run.tables.iter().map(|t| (run.id, t)))
    }
}
