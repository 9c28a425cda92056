//! The manifest: which tables there are, in which runs.
//!
//! # Invariants
//! 1. Every table is in a listed run (error in `apply`), and every listed run has a table (assert in `plan`).
//! 2. The state is the result of all edits, applied to an empty manifest in the order of their numbers.
//! 3. Ids of tables and runs are never reused (assert in `plan`, error in `apply`).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use warpfire_format::Corrupt;
use warpfire_format::manifest::{ManifestEdit, TableDescriptor};
use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::{Run, TableSet};
use crate::store::MetaError;
use crate::table::Table;

/// The state of the manifest.
#[derive(Clone, Debug)]
pub(crate) struct ManifestState {
    number: u64,
    pub(crate) flushed: Seq,
    next_table: u64,
    next_run: u64,
    runs: Vec<u64>,
    past: Vec<u64>,
    tables: BTreeMap<u64, (u64, Arc<TableDescriptor>)>,
}

impl Default for ManifestState {
    fn default() -> Self {
        ManifestState {
            number: 0,
            flushed: Seq(0),
            next_table: 1,
            next_run: 1,
            runs: Vec::new(),
            past: Vec::new(),
            tables: BTreeMap::new(),
        }
    }
}

/// A change of the list of tables.
#[derive(Default)]
pub(crate) struct TableChange {
    /// Ids of the tables that go.
    pub(crate) removed: Vec<u64>,
    /// Ids of the tables that go over to the run of the change.
    pub(crate) moved: Vec<u64>,
    /// The tables that the run of the change gets.
    pub(crate) added: Vec<TableDescriptor>,
    /// The tables of each new run of the past.
    pub(crate) past: Vec<Vec<TableDescriptor>>,
}

/// The run that an edit adds or moves tables to.
pub(crate) enum InstallInto {
    /// A new run that is newer than all others. It holds every commit up to this seq that no older run holds.
    Newest(Seq),
    /// A new run in the place of these neighbouring runs, by id.
    Replacing(Vec<u64>),
    /// The listed run with this id.
    Existing(u64),
}

const CONTRADICTION: Corrupt = Corrupt::new(322, "a manifest edit contradicts the state");

/// The error for an edit that contradicts the state.
fn inconsistent(reason: &'static str) -> MetaError {
    MetaError::Corrupt { code: CONTRADICTION.code, reason: reason.into() }
}

impl ManifestState {
    /// Decodes the state of a checkpoint, which is empty in a new pool.
    pub(crate) fn decode(state: &[u8]) -> Result<Self, MetaError> {
        let mut manifest = Self::default();
        if !state.is_empty() {
            let edit =
                ManifestEdit::decode(state)?.ok_or_else(|| inconsistent("the state is no manifest"))?;
            manifest.apply(&edit)?;
        }
        Ok(manifest)
    }

    /// The whole manifest as the state of a checkpoint.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let whole =
            |(run, entry): &(u64, Arc<TableDescriptor>)| TableDescriptor { run: *run, ..(**entry).clone() };
        ManifestEdit {
            number: self.number,
            flushed: self.flushed,
            next_table: self.next_table,
            next_run: self.next_run,
            runs: self.runs.clone(),
            past: self.past.clone(),
            removed: Vec::new(),
            moved: Vec::new(),
            added: self.tables.values().map(whole).collect(),
        }
        .encode()
    }

    /// The edit that removes, moves and adds tables. The added tables get new ids, those of the run of the
    /// change first.
    pub(crate) fn plan(&self, into: &InstallInto, change: TableChange) -> ManifestEdit {
        let TableChange { removed, moved, mut added, past: new_past } = change;
        let (mut runs, mut past) = (self.runs.clone(), self.past.clone());
        let mut next_run = self.next_run;
        let mut flushed = self.flushed;
        let run = match into {
            InstallInto::Existing(run) => *run,
            InstallInto::Newest(last) => {
                assert!(*last >= flushed, "a flush adds newer commits");
                flushed = *last;
                runs.insert(0, next_run);
                next_run
            }
            InstallInto::Replacing(replaced) => {
                let is_replaced = |run: &u64| replaced.contains(run);
                let list = if runs.iter().any(is_replaced) { &mut runs } else { &mut past };
                let at = list.iter().position(is_replaced).expect("replaced runs are listed");
                list[at] = next_run;
                list.retain(|run| !is_replaced(run));
                next_run
            }
        };
        next_run = next_run.max(run + 1);
        assert!(
            self.tables.last_key_value().is_none_or(|(id, _)| *id < self.next_table),
            "ids are not reused"
        );
        let mut next_table = self.next_table;
        let mut number = |table: &mut TableDescriptor, run| {
            (table.id, table.run) = (next_table, run);
            next_table += 1;
        };
        added.iter_mut().for_each(|table| number(table, run));
        for mut tables in new_past.into_iter().filter(|tables| !tables.is_empty()) {
            tables.iter_mut().for_each(|table| number(table, next_run));
            added.append(&mut tables);
            past.push(next_run);
            next_run += 1;
        }
        let moved: Vec<(u64, u64)> = moved.into_iter().map(|id| (id, run)).collect();
        // A run that loses its last table is not listed any more.
        let keeps_one = |run: u64| {
            let stays = |(id, (of, _)): (&u64, &(u64, _))| {
                *of == run && !removed.contains(id) && !moved.iter().any(|(moved, _)| moved == id)
            };
            self.tables.iter().any(stays)
                || added.iter().any(|t| t.run == run)
                || moved.iter().any(|(_, to)| *to == run)
        };
        runs.retain(|run| keeps_one(*run));
        past.retain(|run| keeps_one(*run));
        let number = self.number + 1;
        let edit = ManifestEdit { number, flushed, next_table, next_run, runs, past, removed, moved, added };
        assert!(
            edit.added.iter().all(|table| edit.runs.contains(&table.run) || edit.past.contains(&table.run)),
            "the run of an added table is listed"
        );
        edit
    }

    /// Passes over the ids of an edit that was not made: blocks of its tables may be cached under them.
    pub(crate) fn skip_ids(&mut self, edit: &ManifestEdit) {
        assert!(edit.next_table >= self.next_table && edit.next_run >= self.next_run, "ids are not reused");
        (self.next_table, self.next_run) = (edit.next_table, edit.next_run);
    }

    /// Applies an edit. An edit that the state contains already changes nothing.
    pub(crate) fn apply(&mut self, edit: &ManifestEdit) -> Result<(), MetaError> {
        // The log may return edits that are older than the checkpoint.
        if edit.number <= self.number && self.number != 0 {
            return Ok(());
        }
        if self.number != 0 && edit.number != self.number + 1 {
            return Err(inconsistent("an edit is missing"));
        }
        for id in &edit.removed {
            self.tables.remove(id).ok_or_else(|| inconsistent("a removed table is not there"))?;
        }
        for (id, run) in &edit.moved {
            self.tables.get_mut(id).ok_or_else(|| inconsistent("a moved table is not there"))?.0 = *run;
        }
        for table in &edit.added {
            if self.tables.insert(table.id, (table.run, Arc::new(table.clone()))).is_some() {
                return Err(inconsistent("a table's id is used twice"));
            }
        }
        if edit.past.iter().any(|run| edit.runs.contains(run)) {
            return Err(inconsistent("a run is of the present and of the past"));
        }
        let listed: HashSet<u64> = edit.runs.iter().chain(&edit.past).copied().collect();
        if self.tables.values().any(|(run, _)| !listed.contains(run)) {
            return Err(inconsistent("a table is in no run"));
        }
        if self.tables.keys().next_back().is_some_and(|id| *id >= edit.next_table) {
            return Err(inconsistent("a table's id is yet to come"));
        }
        self.number = edit.number;
        self.flushed = edit.flushed;
        self.next_table = edit.next_table;
        self.next_run = edit.next_run;
        self.runs.clone_from(&edit.runs);
        self.past.clone_from(&edit.past);
        Ok(())
    }

    /// All tables.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &TableDescriptor> {
        self.tables.values().map(|(_, entry)| entry.as_ref())
    }

    /// The table set for readers. Tables that `old` has too are shared with it, and with them their open
    /// indexes.
    pub(crate) fn table_set<L: LogStore>(
        &self,
        log: &Arc<L>,
        old: Option<&TableSet<L>>,
    ) -> Result<TableSet<L>, MetaError> {
        let known: BTreeMap<u64, &Arc<Table<L>>> =
            old.iter().flat_map(|v| v.tables()).map(|(_, t)| (t.entry().id, t)).collect();
        let ids = || self.runs.iter().chain(&self.past);
        let mut tables: Vec<Vec<Arc<Table<L>>>> = ids().map(|_| Vec::new()).collect();
        let number: BTreeMap<u64, usize> = ids().enumerate().map(|(i, id)| (*id, i)).collect();
        for (run, entry) in self.tables.values() {
            let table = known
                .get(&entry.id)
                .map_or_else(|| Arc::new(Table::new(Arc::clone(entry), Arc::clone(log))), |t| Arc::clone(t));
            tables[number[run]].push(table);
        }
        for tables in &mut tables {
            tables.sort_by(|a, b| a.entry().smallest.cmp(&b.entry().smallest));
            if tables.windows(2).any(|w| w[0].entry().largest >= w[1].entry().smallest) {
                return Err(inconsistent("tables of a run overlap"));
            }
        }
        let mut runs: Vec<Run<L>> = ids().zip(tables).map(|(id, tables)| Run::new(*id, tables)).collect();
        let past = runs.split_off(self.runs.len());
        Ok(TableSet::new(runs, past))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(smallest: &[u8], largest: &[u8]) -> TableDescriptor {
        TableDescriptor {
            id: 0,
            run: 0,
            entries: 1,
            deletes: 0,
            superseded: 0,
            len_bytes: 0,
            top_len_bytes: 0,
            seq_min: Seq(1),
            seq_max: Seq(1),
            smallest: smallest.to_vec(),
            largest: largest.to_vec(),
            slices: Vec::new(),
            references: Vec::new(),
        }
    }

    fn step(
        m: &mut ManifestState,
        into: &InstallInto,
        removed: Vec<u64>,
        moved: Vec<u64>,
        added: Vec<TableDescriptor>,
    ) {
        change(m, into, TableChange { removed, moved, added, past: vec![] });
    }

    fn change(m: &mut ManifestState, into: &InstallInto, change: TableChange) {
        let edit = m.plan(into, change);
        m.apply(&edit).unwrap();
        let back = ManifestState::decode(&m.encode()).unwrap();
        assert_eq!(back.encode(), m.encode());
    }

    #[test]
    fn a_compacted_run_takes_the_place_of_its_parts() {
        let mut m = ManifestState::default();
        step(&mut m, &InstallInto::Newest(Seq(1)), vec![], vec![], vec![table(b"a", b"c")]);
        step(
            &mut m,
            &InstallInto::Newest(Seq(2)),
            vec![],
            vec![],
            vec![table(b"b", b"d"), table(b"x", b"z")],
        );
        step(&mut m, &InstallInto::Newest(Seq(3)), vec![], vec![], vec![table(b"a", b"z")]);
        assert_eq!(m.runs, [3, 2, 1]);
        step(&mut m, &InstallInto::Replacing(vec![2, 1]), vec![1, 2], vec![3], vec![table(b"a", b"d")]);
        assert_eq!(m.runs, [3, 4]);
        assert_eq!(
            m.tables.iter().map(|(id, (run, _))| (*id, *run)).collect::<Vec<_>>(),
            [(3, 4), (4, 3), (5, 4)]
        );
        step(&mut m, &InstallInto::Replacing(vec![3, 4]), vec![3, 4, 5], vec![], vec![]);
        assert_eq!(m.runs, [0u64; 0], "a run without tables is not listed");
    }

    #[test]
    fn a_merge_may_add_runs_of_the_past_and_these_merge_by_themselves() {
        let mut m = ManifestState::default();
        step(&mut m, &InstallInto::Newest(Seq(1)), vec![], vec![], vec![table(b"a", b"c")]);
        let retiring = TableChange {
            removed: vec![1],
            added: vec![table(b"a", b"c")],
            past: vec![vec![table(b"a", b"b")], vec![], vec![table(b"c", b"c")]],
            ..TableChange::default()
        };
        change(&mut m, &InstallInto::Replacing(vec![1]), retiring);
        assert_eq!((&m.runs[..], &m.past[..]), (&[2][..], &[3, 4][..]), "a run without tables is none");
        assert_eq!(
            m.tables.iter().map(|(id, (run, _))| (*id, *run)).collect::<Vec<_>>(),
            [(2, 2), (3, 3), (4, 4)]
        );
        let into = InstallInto::Replacing(vec![3, 4]);
        step(&mut m, &into, vec![3], vec![4], vec![table(b"a", b"b")]);
        assert_eq!((&m.runs[..], &m.past[..]), (&[2][..], &[5][..]));
        step(&mut m, &InstallInto::Existing(5), vec![4, 5], vec![], vec![]);
        assert_eq!((&m.runs[..], &m.past[..]), (&[2][..], &[][..]));
        let mut edit = m.plan(&InstallInto::Existing(2), TableChange::default());
        edit.past = vec![2];
        assert!(m.apply(&edit).is_err(), "a run is of the present or of the past");
    }

    #[test]
    fn an_edit_is_applied_once_and_none_is_skipped() {
        let mut m = ManifestState::default();
        let added = vec![table(b"a", b"b")];
        let first = m.plan(&InstallInto::Newest(Seq(1)), TableChange { added, ..TableChange::default() });
        m.apply(&first).unwrap();
        m.apply(&first).unwrap();
        let removed = vec![1];
        let mut third = m.plan(&InstallInto::Existing(1), TableChange { removed, ..TableChange::default() });
        third.number += 1;
        assert!(m.apply(&third).is_err());
    }
}
