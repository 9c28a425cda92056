//! A rewrite job: key versions go in, tables and reference counts come out.
//!
//! # Steps of a job
//! 1. The caller fixes the input (a frozen memtable, or tables of one table set) and passes the references
//!    that its values have, in bytes by segment: `before`.
//! 2. `new` lists the seqs that readers may read at. Snapshots that begin later read at the newest seq or
//!    above, so they need no version that the list does not keep.
//! 3. The caller passes the versions of each key, in key order (`push`). `VersionGroup::fold` chooses the
//!    versions to keep. At the bottom of the present, `fold_and_retire` passes old ones on to the past, and
//!    in the past `fold_past` chooses (`retire.rs`).
//! 4. The schema relocates each kept value. It packs inline bytes into new slices (`pack`) and copies slices
//!    out of segments that are being cleaned (`move_slice`). Both append to the log and count the bytes in
//!    `appended`.
//! 5. The table writer appends the tables. The job counts the references of each table's values: `after`.
//! 6. `finish` ends the last table, and `settle` computes for each segment the bytes to release. If values
//!    have multiplied, it retains the missing references now.
//! 7. `EngineInner::install` logs the manifest edit, syncs the log and publishes the new table set.
//! 8. `finish` releases the references that nothing names any more.
//!
//! A crash before the edit of step 7 is durable leaves the old tables: recovery counts references anew and
//! knows nothing of the job's appends. A crash after it leaves the new tables, and recovery releases by
//! counting.
//!
//! # Invariants
//! 1. Until the edit is logged, everything that went in stays referenced (step 8 comes last). A job that
//!    fails earlier releases everything that it has appended (`Drop`).
//! 2. For each segment: references before + bytes appended + bytes retained = references after + bytes
//!    released (assert in `settle`; `tests::model` ends with no live byte).
//! 3. A job ends once, by `finish` or by `Drop` (assert in `finish`).
//! 4. A version keeps its bundle while its bytes stay as they are; short changes of the record become the
//!    bundle's edit (`relocate.rs`, `fold.rs`; `tests::bundles`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{Bundle, KeyVersion, VersionKind};
use warpfire_log::{LogError, LogStore};
use warpfire_units::{SegmentId, Seq, SlicePtr};

use super::fold::{Readers, VersionGroup};
use super::moves::SliceMoves;
use super::past::held_readers;
use super::relocate::{JobRelocator, VersionRelocator};
use super::retire::KeptIn;
use crate::domain::{DomainId, OriginTable, RollbackRecord, domain_of};
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::TableWriter;
use crate::table_set::{InstallInto, Run, TableChange};

/// The part of the tables that a job rewrites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JobScope {
    /// Some of the present: older versions of its keys may be elsewhere.
    Present,
    /// The oldest versions of its keys in the present, of a memtable.
    BottomOfMemory,
    /// The oldest versions of its keys in the present. Those that only the past needs go there.
    Bottom,
    /// Some of the past.
    Past,
}

impl JobScope {
    /// Whether no older version of a key is in another run of the present.
    fn is_bottom(self) -> bool {
        matches!(self, JobScope::Bottom | JobScope::BottomOfMemory)
    }
}

/// A rewrite in progress.
pub(crate) struct RewriteJob<'a, L: LogStore, S: Schema> {
    engine: &'a EngineInner<L, S>,
    scope: JobScope,
    relocator: JobRelocator<'a, L>,
    output: JobTables<L>,
    /// The new run of the past.
    past: JobTables<L>,
    /// The full spans of the past, each a table, and the run of each: number 0 is the first beside `past`.
    full_spans: JobTables<L>,
    full_runs: Vec<usize>,
    /// Number of released snapshots before `visible` was listed.
    released: u64,
    /// No run of the past has versions.
    is_past_empty: bool,
    /// The lowest seq that is read in the present only.
    lowest_reader: Seq,
    /// The domains when the job began.
    domains: Option<Arc<OriginTable>>,
    /// Seqs that readers may read at in every domain, rising.
    visible_to_all: Vec<Seq>,
    /// Those of readers of this domain. Every reader of the input reads at one of them or above the last.
    visible: Vec<Seq>,
    /// Those of them that are faded in every domain.
    faded: Vec<Seq>,
    in_domain: Option<DomainId>,
    /// References of the values that go in, in bytes by segment.
    before: BTreeMap<SegmentId, u64>,
    folded: Vec<u8>,
    relocated: Vec<u8>,
    /// The slices of one value.
    named: Vec<SlicePtr>,
    /// The edit is logged: the tables belong to the manifest, and `Drop` releases nothing.
    is_logged: bool,
    /// The slices of the finished tables, and the references that were retained: `Drop` releases them.
    finished: Vec<SlicePtr>,
    retained: BTreeMap<SegmentId, u64>,
}

/// Tables that a job writes.
struct JobTables<L: LogStore> {
    writer: TableWriter<L>,
    /// References of the values in each table.
    after: Vec<BTreeMap<SegmentId, u64>>,
}

impl<L: LogStore> JobTables<L> {
    fn new(writer: TableWriter<L>) -> Self {
        JobTables { writer, after: Vec::new() }
    }

    /// Ends the last table. The descriptors have their references.
    fn finish(&mut self) -> Result<Vec<TableDescriptor>, LogError> {
        let mut tables = self.writer.finish()?;
        assert!(self.after.len() <= tables.len(), "references belong to tables that were written");
        for (table, references) in tables.iter_mut().zip(std::mem::take(&mut self.after)) {
            table.references = references.into_iter().collect();
        }
        Ok(tables)
    }
}

impl<'a, L: LogStore, S: Schema> RewriteJob<'a, L, S> {
    /// A job over versions with values that have the references `before`. Seq 0 aside, no version is older
    /// than `seq_base`.
    pub(super) fn new(
        engine: &'a EngineInner<L, S>,
        scope: JobScope,
        seq_base: Seq,
        before: BTreeMap<SegmentId, u64>,
        cleaning: &'a BTreeSet<SegmentId>,
        moves: &'a mut SliceMoves,
    ) -> Self {
        // Before the list: a snapshot that is released later counts as one more.
        let released = engine.snapshots.released();
        let (domains, visible) = engine.readers();
        let (faded, lowest_reader, visible) = (visible.faded, visible.lowest_reader, visible.all);
        assert!(visible.is_sorted(), "the seqs of readers are in order");
        assert!(!visible.is_empty(), "the newest seq is always visible");
        let table_set = engine.table_set();
        let others = |runs: &[Run<L>]| {
            runs.iter().flat_map(|run| &run.tables).map(|table| Arc::clone(table.entry())).collect()
        };
        let writer = |seq_base, others| {
            let sizes = (engine.table_bytes(), engine.schema.group_key_bytes());
            JobTables::new(TableWriter::new(engine.log.clone(), sizes, seq_base, others))
        };
        let (output, past) = match scope {
            JobScope::Past => (Vec::new(), others(&table_set.past)),
            _ => (others(&table_set.runs), Vec::new()),
        };
        let past_base = if scope == JobScope::Past { seq_base } else { Seq(1) };
        RewriteJob {
            engine,
            scope,
            output: writer(seq_base, output),
            past: writer(past_base, past),
            full_spans: writer(past_base, Vec::new()),
            full_runs: Vec::new(),
            is_past_empty: table_set.past.is_empty(),
            lowest_reader,
            relocator: JobRelocator {
                log: &engine.log,
                cleaning,
                moves,
                appended: BTreeMap::new(),
                buffer: Vec::new(),
            },
            released,
            domains,
            in_domain: None,
            visible_to_all: visible.clone(),
            visible,
            faded,
            before,
            folded: Vec::new(),
            relocated: Vec::new(),
            named: Vec::new(),
            is_logged: false,
            finished: Vec::new(),
            retained: BTreeMap::new(),
        }
    }

    pub(super) fn scope(&self) -> JobScope {
        self.scope
    }

    /// Writes the versions of one key that must be kept.
    pub(super) fn push(&mut self, group: &mut VersionGroup) -> Result<(), MetaError> {
        let RewriteJob { engine, scope, relocator, output, past, full_spans, full_runs, .. } = self;
        let RewriteJob { visible, folded, relocated, named, lowest_reader, .. } = self;
        let RewriteJob { domains, in_domain, visible_to_all, faded, is_past_empty, .. } = self;
        let key = group.key();
        // What a run of the past has of a key stands alone.
        let (mut removed_at, mut bottom) = (None, *scope == JobScope::Past || scope.is_bottom());
        let mut rollbacks: &[RollbackRecord] = &[];
        if let Some(table) = domains {
            removed_at = table.removed_at(key);
            // A key that is in no run may be in the origin: there an operand and a delete mean something. So
            // they do above what a rollback shows again.
            bottom = bottom && !table.may_hold_older(key, &engine.schema);
            if engine.schema.goes_back(key) {
                rollbacks = table.rollbacks_at(key);
            }
            let domain = domain_of(key);
            if *in_domain != domain {
                *visible = table.visible_in(domain, visible_to_all);
                *in_domain = domain;
            }
        }
        let schema = &engine.schema;
        if !rollbacks.is_empty() {
            group.drop_hidden(rollbacks, visible, *scope == JobScope::Past);
        }
        let may_be_zero = *is_past_empty;
        let readers = Readers { visible, faded, removed_at, bottom, may_be_zero, rollbacks };
        let mut values = JobValues { relocator, relocated, named };
        let mut last_span = None;
        let mut emit = |place, entry: KeyVersion<'_>, bundle| {
            let tables = match place {
                KeptIn::Present => &mut *output,
                KeptIn::Past(0) => &mut *past,
                KeptIn::Past(number) => {
                    // A table for each full span: no other key shares it.
                    if last_span.replace(number) != Some(number) {
                        full_spans.writer.end_table()?;
                        full_runs.push(number - 1);
                    }
                    &mut *full_spans
                }
            };
            values.write(schema, tables, entry, bundle)
        };
        match scope {
            JobScope::Past => group.fold_past(schema, readers, folded, &mut emit),
            JobScope::Bottom => group.fold_and_retire(schema, readers, *lowest_reader, folded, &mut emit),
            JobScope::Present | JobScope::BottomOfMemory => {
                group.fold(schema, readers, folded, |entry, bundle| emit(KeptIn::Present, entry, bundle))
            }
        }
    }

    /// Ends the tables that are being written.
    pub(super) fn end_table(&mut self) -> Result<(), MetaError> {
        self.past.writer.end_table()?;
        Ok(self.output.writer.end_table()?)
    }

    /// Makes the change durable and visible: tables are removed, moved to the new run unchanged, and added.
    pub(super) fn finish(
        mut self,
        into: &InstallInto,
        removed: Vec<u64>,
        moved: Vec<u64>,
    ) -> Result<(), MetaError> {
        assert!(!self.is_logged, "a job ends once");
        // All of them first: a failure leaves the tables to `Drop`.
        for tables in [&mut self.output, &mut self.past, &mut self.full_spans] {
            tables.writer.end_table()?;
        }
        let mut added = self.output.finish()?;
        let mut past = vec![self.past.finish()?];
        for (table, run) in self.full_spans.finish()?.into_iter().zip(std::mem::take(&mut self.full_runs)) {
            past.resize_with(past.len().max(run + 2), Vec::new);
            past[run + 1].push(table);
        }
        if self.scope == JobScope::Past {
            assert!(added.is_empty(), "a job of the past writes nothing for the present");
            added = std::mem::take(&mut past[0]);
        }
        let tables = || added.iter().chain(past.iter().flatten());
        self.finished = tables().flat_map(|table| table.slices.iter().copied()).collect();
        let spare = self.settle(&tables().collect::<Vec<_>>());
        // Once the edit is in the log it may become durable even if the sync fails. From then on `Drop` must
        // not release the new tables' bytes.
        let change = TableChange { removed, moved, added, past };
        let added = self.engine.install(into, change, || self.is_logged = true)?;
        self.note_choice(&added);
        // Only now: until here a crash brings back the old tables, which name these bytes.
        for (segment, bytes) in spare {
            self.engine.log.release(segment, bytes);
        }
        Ok(())
    }
}

impl<L: LogStore, S: Schema> RewriteJob<'_, L, S> {
    /// Notes at the tables with these ids for which readers their versions were chosen.
    fn note_choice(&self, added: &Range<u64>) {
        let table_set = self.engine.table_set();
        for (run, table) in table_set.tables().filter(|(_, table)| added.contains(&table.entry().id)) {
            if table_set.is_past(run) {
                let seqs = (&self.visible_to_all[..], &self.faded[..]);
                table.note_readers(held_readers(table.entry(), seqs, self.domains.as_deref()));
            } else if self.scope == JobScope::Bottom
                // A job of memory retires nothing, so there may be versions to retire.
                || self.scope == JobScope::BottomOfMemory && table.entry().superseded == 0
            {
                table.mark_folded(self.released);
            }
        }
    }

    /// The bytes to release for each segment once the edit is durable. Retains the references that are
    /// missing: folding can copy a pointer into several values.
    fn settle(&mut self, tables: &[&TableDescriptor]) -> BTreeMap<SegmentId, u64> {
        let mut spare = self.before.clone();
        for (segment, bytes) in &self.relocator.appended {
            *spare.entry(*segment).or_insert(0) += bytes;
        }
        let mut retained = 0;
        for (segment, bytes) in tables.iter().flat_map(|t| &t.references) {
            let have = spare.entry(*segment).or_insert(0);
            let missing = bytes.saturating_sub(*have);
            *have = (*have + missing) - bytes;
            retained += missing;
            // Before the edit: if it becomes durable, the references that it names are counted already.
            if missing > 0 {
                self.engine.log.retain_again(*segment, missing);
                *self.retained.entry(*segment).or_insert(0) += missing;
            }
        }
        let came: u64 = self.before.values().chain(self.relocator.appended.values()).sum();
        let stays: u64 = tables.iter().flat_map(|t| &t.references).map(|(_, bytes)| bytes).sum();
        let goes: u64 = spare.values().sum();
        assert_eq!(came + retained, stays + goes, "a job keeps or releases every reference that it has");
        spare.retain(|_, bytes| *bytes > 0);
        spare
    }
}

impl<L: LogStore, S: Schema> Drop for RewriteJob<'_, L, S> {
    fn drop(&mut self) {
        if self.is_logged {
            return;
        }
        // The job failed before its edit was logged: the old tables stay, and its appends become garbage.
        for tables in [&mut self.output, &mut self.past, &mut self.full_spans] {
            tables.writer.discard();
        }
        for slice in std::mem::take(&mut self.finished) {
            self.engine.log.release(slice.segment, u64::from(slice.len_bytes));
        }
        let (appended, retained) =
            (std::mem::take(&mut self.relocator.appended), std::mem::take(&mut self.retained));
        for (segment, bytes) in appended.into_iter().chain(retained) {
            self.engine.log.release(segment, bytes);
        }
        // The next job of this cleaning must not name the copies that were just released.
        self.relocator.moves.forget();
    }
}

/// Relocates the values of a job and writes them.
struct JobValues<'j, 'a, L: LogStore> {
    relocator: &'j mut JobRelocator<'a, L>,
    relocated: &'j mut Vec<u8>,
    named: &'j mut Vec<SlicePtr>,
}

impl<L: LogStore> JobValues<'_, '_, L> {
    /// Relocates one kept version, writes it to these tables and counts its references.
    fn write<S: Schema>(
        &mut self,
        schema: &S,
        tables: &mut JobTables<L>,
        entry: KeyVersion<'_>,
        bundle: Option<Bundle>,
    ) -> Result<(), MetaError> {
        let JobValues { relocator, relocated, named } = self;
        let JobTables { writer, after } = tables;
        if entry.kind == VersionKind::Delete {
            return Ok(writer.push(entry, None).map(drop)?);
        }
        let is_operand = entry.kind == VersionKind::Merge;
        let KeyVersion { key, value, .. } = entry;
        named.clear();
        let mut version =
            VersionRelocator { schema, job: relocator, key, value, is_operand, bundle, seen: 0, named };
        let changed = schema.relocate(key, value, is_operand, &mut version, relocated)?;
        let bundle = version.bundle;
        let value = if changed { relocated.as_slice() } else { value };
        #[cfg(debug_assertions)]
        assert_names(schema, KeyVersion { value, ..entry }, named)?;
        // A bundle from flash may be wrong.
        let bundle = bundle.filter(|bundle| matches!(named[..], [slice] if slice.is_end_of(bundle.slice)));
        let is_kept = writer.push(KeyVersion { value, ..entry }, bundle.as_ref())?;
        // The whole bundle is referenced, not only the end that the value names.
        if let Some(bundle) = bundle.filter(|_| is_kept) {
            named[0] = bundle.slice;
        }
        // The push above may have ended a table, so the version is in the one that is open now.
        let table = writer.finished();
        for slice in named.iter() {
            if after.len() <= table {
                after.resize_with(table + 1, BTreeMap::new);
            }
            *after[table].entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
        }
        Ok(())
    }
}

/// Checks that the schema relocated every slice of a value: the job counts the references from that.
#[cfg(debug_assertions)]
fn assert_names<S: Schema>(schema: &S, entry: KeyVersion<'_>, named: &[SlicePtr]) -> Result<(), MetaError> {
    let (mut of_value, mut of_job) = (BTreeMap::new(), BTreeMap::new());
    let note = |bytes: &mut BTreeMap<SegmentId, u64>, slice: SlicePtr| {
        *bytes.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
    };
    let is_operand = entry.kind == VersionKind::Merge;
    schema.pointers(entry.key, entry.value, is_operand, &mut |slice| note(&mut of_value, slice))?;
    named.iter().for_each(|slice| note(&mut of_job, *slice));
    debug_assert_eq!(of_value, of_job, "a relocated value names what the relocator returned");
    Ok(())
}
