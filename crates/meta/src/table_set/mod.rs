//! Versions of the set of tables.

mod manifest;

use std::sync::Arc;

use warpfire_log::LogStore;

pub(crate) use manifest::{InstallInto, ManifestState};

use crate::table::Table;

/// Tables in the order of their keys; no two overlap.
pub(crate) struct Run<L: LogStore> {
    pub(crate) id: u64,
    pub(crate) tables: Vec<Arc<Table<L>>>,
}

impl<L: LogStore> Run<L> {
    /// Length of all its tables.
    pub(crate) fn bytes(&self) -> u64 {
        self.tables.iter().map(|t| u64::from(t.entry().len_bytes)).sum()
    }

    /// Whether it can not be rewritten, for a table that can not be read.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.tables.iter().any(|t| t.is_unreadable())
    }

    /// The one table that can hold `key`.
    pub(crate) fn table_of(&self, key: &[u8]) -> Option<&Arc<Table<L>>> {
        let at = self.tables.partition_point(|t| t.entry().largest.as_slice() < key);
        self.tables.get(at).filter(|t| t.entry().smallest.as_slice() <= key)
    }
}

/// All tables at one time. What a reader holds stays readable.
pub(crate) struct TableSet<L: LogStore> {
    /// Newest first: of a key's versions, those in an earlier run are newer.
    pub(crate) runs: Vec<Run<L>>,
}

impl<L: LogStore> TableSet<L> {
    /// Every table, with the run that it is in.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (u64, &Arc<Table<L>>)> {
        self.runs.iter().flat_map(|run| run.tables.iter().map(|t| (run.id, t)))
    }
}
