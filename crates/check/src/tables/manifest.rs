//! The manifest: the edit in the root with the edits in the commit log applied.

use std::collections::{BTreeMap, BTreeSet};

use warpfire_format::manifest::{ManifestEdit, TableDescriptor};
use warpfire_units::Seq;

use super::rollbacks::Rollbacks;
use crate::code::FindingCode;
use crate::report::Findings;

/// The list of tables and runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manifest {
    number: u64,
    /// Every commit up to this seq is in tables.
    pub(crate) flushed: Seq,
    /// Ids of the runs of the present, newest first.
    runs: Vec<u64>,
    /// Ids of the runs of the past.
    past: Vec<u64>,
    tables: BTreeMap<u64, TableDescriptor>,
    /// The rollbacks in the map. `load` adds them.
    pub(crate) rollbacks: Rollbacks,
}

impl Manifest {
    /// Applies an edit. An edit that the manifest includes already has no effect.
    pub(crate) fn apply(&mut self, edit: ManifestEdit, findings: &Findings) {
        let from_nothing = self.number == 0;
        if !from_nothing && edit.number <= self.number {
            return;
        }
        let place = format!("manifest edit {}", edit.number);
        if !from_nothing && edit.number != self.number + 1 {
            let message = format_args!("follows edit {}", self.number);
            findings.error(FindingCode::ManifestEdit, &place, message);
        }
        // A contradiction is reported and the edit applied as far as possible: the later stages then check
        // the rest.
        for id in &edit.removed {
            if self.tables.remove(id).is_none() {
                findings.error(
                    FindingCode::ManifestEdit,
                    &place,
                    format_args!("removes table {id}, which does not exist"),
                );
            }
        }
        for (id, run) in &edit.moved {
            match self.tables.get_mut(id) {
                Some(table) => table.run = *run,
                None => {
                    let message = format_args!("moves table {id}, which does not exist");
                    findings.error(FindingCode::ManifestEdit, &place, message);
                }
            }
        }
        for table in edit.added {
            let id = table.id;
            if id >= edit.next_table || self.tables.insert(id, table).is_some() {
                let message = format_args!("adds table {id}, a number that is in use or not assigned yet");
                findings.error(FindingCode::ManifestEdit, &place, message);
            }
        }
        if edit.flushed < self.flushed || edit.runs.iter().chain(&edit.past).any(|run| *run >= edit.next_run)
        {
            findings.error(
                FindingCode::ManifestEdit,
                &place,
                "lowers the flushed seq, or lists a run with a number that is not assigned yet",
            );
        }
        self.number = edit.number;
        self.flushed = edit.flushed;
        self.runs = edit.runs;
        self.past = edit.past;
    }

    /// All tables, by id.
    pub(crate) fn tables(&self) -> impl ExactSizeIterator<Item = &TableDescriptor> {
        self.tables.values()
    }

    /// One table.
    pub(crate) fn table(&self, id: u64) -> Option<&TableDescriptor> {
        self.tables.get(&id)
    }

    /// The runs of the present, newest first, each with its tables in the order of their keys.
    pub(crate) fn runs(&self) -> Vec<Vec<&TableDescriptor>> {
        self.tables_of(&self.runs)
    }

    /// The runs of the past, as `runs`. They have no order.
    pub(crate) fn past(&self) -> Vec<Vec<&TableDescriptor>> {
        self.tables_of(&self.past)
    }

    /// Whether a run is one of the past.
    pub(crate) fn is_past(&self, run: u64) -> bool {
        self.past.contains(&run)
    }

    fn tables_of(&self, runs: &[u64]) -> Vec<Vec<&TableDescriptor>> {
        let mut of_run: BTreeMap<u64, Vec<&TableDescriptor>> = BTreeMap::new();
        for table in self.tables.values() {
            of_run.entry(table.run).or_default().push(table);
        }
        for tables in of_run.values_mut() {
            tables.sort_by(|a, b| a.smallest.cmp(&b.smallest));
        }
        // A run that is listed twice is read once.
        runs.iter().filter_map(|run| of_run.remove(run)).collect()
    }

    /// Checks that each table is in a listed run and that tables of a run do not overlap.
    pub(crate) fn check(&self, findings: &Findings) {
        let listed: BTreeSet<u64> = self.runs.iter().chain(&self.past).copied().collect();
        if listed.len() != self.runs.len() + self.past.len() {
            findings.error(FindingCode::Runs, "manifest", "lists a run twice");
        }
        for table in self.tables.values().filter(|t| !listed.contains(&t.run)) {
            let message = format_args!("is in run {}, which is not listed", table.run);
            findings.error(FindingCode::Runs, format_args!("table {}", table.id), message);
        }
        for run in self.runs().into_iter().chain(self.past()) {
            for pair in run.windows(2) {
                if let [a, b] = pair
                    && a.largest >= b.smallest
                {
                    let place = format_args!("tables {} and {}", a.id, b.id);
                    findings.error(FindingCode::Runs, place, format_args!("overlap in run {}", a.run));
                }
            }
        }
    }
}
