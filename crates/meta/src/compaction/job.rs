//! One rewrite: versions go in, tables and references come out, and the log is told of every byte once.
//!
//! # Invariants
//! 1. Until the edit is durable, what went in stays referenced; what the job appended is given back if it fails.
//! 2. After it, for each segment: references before + bytes appended − references after is given back (or, where values
//!    were multiplied, taken in addition before the edit).

use std::collections::{BTreeMap, BTreeSet};

use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_log::{LogError, LogStore, Slices, Stream};
use warpfire_units::{SegmentId, Seq, SlicePtr};

use super::fold::VersionGroup;
use crate::engine::EngineInner;
use crate::schema::{RelocateError, Relocator, Schema};
use crate::store::MetaError;
use crate::table::TableWriter;
use crate::table_set::InstallInto;

/// What a cleaning has come to so far.
#[derive(Default)]
pub(crate) struct SliceMoves {
    /// Where slices went: each is copied once, though many values may name it.
    copied: BTreeMap<SlicePtr, Slices>,
    /// Segments that hold a slice which can not be read: it stays named, and reading it stays an error.
    pub(super) unrecoverable: BTreeSet<SegmentId>,
}

/// Beyond this many moves are not remembered (about 64 MiB): a slice named twice is then copied twice.
const MOVES_MAX: usize = 1 << 20;

/// Bytes that are packed, moved by slices of at most this length, are never split.
const PACKED_BYTES_MAX: usize = 64 * 1024;

struct JobRelocator<'a, L> {
    log: &'a L,
    cleaning: &'a BTreeSet<SegmentId>,
    moves: &'a mut SliceMoves,
    appended: BTreeMap<SegmentId, u64>,
}

impl<L: LogStore> JobRelocator<'_, L> {
    fn append(&mut self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError> {
        let slices = self.log.append(stream, bytes)?;
        for slice in &slices {
            *self.appended.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
        }
        Ok(slices)
    }
}

impl<L: LogStore> Relocator for JobRelocator<'_, L> {
    fn pack(&mut self, bytes: &[u8]) -> Result<SlicePtr, LogError> {
        assert!(bytes.len() <= PACKED_BYTES_MAX, "bytes that ride in a value fit one slice");
        let slices = self.append(Stream::Small, bytes)?;
        assert_eq!(slices.len(), 1, "appends up to 64 KiB are never split");
        Ok(slices[0])
    }

    fn move_slice(&mut self, slice: SlicePtr) -> Result<Option<Slices>, LogError> {
        if !self.cleaning.contains(&slice.segment) {
            return Ok(None);
        }
        if let Some(known) = self.moves.copied.get(&slice) {
            return Ok(Some(known.clone()));
        }
        let mut bytes = vec![0; slice.len_bytes as usize];
        match self.log.read(slice, &mut bytes) {
            Err(LogError::Damaged(_) | LogError::BadPointer(_)) => {
                self.moves.unrecoverable.insert(slice.segment);
                return Ok(None);
            }
            other => other?,
        }
        let slices = self.append(Stream::Cold, &bytes)?;
        if self.moves.copied.len() < MOVES_MAX {
            self.moves.copied.insert(slice, slices.clone());
        }
        Ok(Some(slices))
    }
}

impl From<RelocateError> for MetaError {
    fn from(e: RelocateError) -> Self {
        match e {
            RelocateError::Schema(e) => MetaError::Schema(e),
            RelocateError::Log(e) => MetaError::Log(e),
        }
    }
}

/// A rewrite in progress.
pub(crate) struct RewriteJob<'a, L: LogStore, S: Schema> {
    engine: &'a EngineInner<L, S>,
    relocator: JobRelocator<'a, L>,
    writer: TableWriter<L>,
    /// Read before the job's input was fixed or later: every reader of the input reads at one of them or above.
    visible: Vec<Seq>,
    /// References of what goes in.
    before: BTreeMap<SegmentId, u64>,
    /// References of each table that comes out.
    after: Vec<BTreeMap<SegmentId, u64>>,
    folded: Vec<u8>,
    relocated: Vec<u8>,
    done: bool,
}

impl<'a, L: LogStore, S: Schema> RewriteJob<'a, L, S> {
    /// A job on versions whose seqs, except 0, are not below `seq_base`, and that name `before`.
    pub(super) fn new(
        engine: &'a EngineInner<L, S>,
        seq_base: Seq,
        before: BTreeMap<SegmentId, u64>,
        cleaning: &'a BTreeSet<SegmentId>,
        moves: &'a mut SliceMoves,
    ) -> Self {
        RewriteJob {
            engine,
            relocator: JobRelocator { log: &engine.log, cleaning, moves, appended: BTreeMap::new() },
            writer: TableWriter::new(engine.log.clone(), engine.table_bytes(), seq_base),
            visible: engine.visible(),
            before,
            after: Vec::new(),
            folded: Vec::new(),
            relocated: Vec::new(),
            done: false,
        }
    }

    /// Writes what must be kept of a key's versions. `bottom`: nothing older of the key is anywhere else.
    pub(super) fn push(&mut self, group: &VersionGroup, bottom: bool) -> Result<(), MetaError> {
        let RewriteJob { engine, relocator, writer, visible, after, folded, relocated, .. } = self;
        group.fold(&engine.schema, visible, bottom, folded, |entry| {
            write(&engine.schema, relocator, writer, after, relocated, entry)
        })
    }

    /// Ends the table that is being written.
    pub(super) fn end_table(&mut self) -> Result<(), MetaError> {
        Ok(self.writer.end_table()?)
    }

    /// Makes the change durable and visible: tables go, move (to the new run, as they are) and come.
    pub(super) fn finish(
        mut self,
        into: &InstallInto,
        removed: Vec<u64>,
        moved: Vec<u64>,
    ) -> Result<(), MetaError> {
        let mut tables = self.writer.finish()?;
        for (table, references) in tables.iter_mut().zip(std::mem::take(&mut self.after)) {
            table.references = references.into_iter().collect();
        }
        let spare = self.settle(&tables);
        self.engine.install(into, removed, moved, tables, || self.done = true)?;
        for (segment, bytes) in spare {
            self.engine.log.release(segment, bytes);
        }
        Ok(())
    }
}

impl<L: LogStore, S: Schema> RewriteJob<'_, L, S> {
    /// What is to be given back per segment once the edit is durable. Takes references where values were multiplied.
    fn settle(&self, tables: &[TableDescriptor]) -> BTreeMap<SegmentId, u64> {
        let mut spare = self.before.clone();
        for (segment, bytes) in &self.relocator.appended {
            *spare.entry(*segment).or_insert(0) += bytes;
        }
        for (segment, bytes) in tables.iter().flat_map(|t| &t.references) {
            let have = spare.entry(*segment).or_insert(0);
            let missing = bytes.saturating_sub(*have);
            *have = have.saturating_sub(*bytes);
            retain_bytes(&*self.engine.log, *segment, missing);
        }
        spare.retain(|_, bytes| *bytes > 0);
        spare
    }
}

/// Counts `bytes` more references to a segment; which of its bytes they are makes no difference to the count.
fn retain_bytes<L: LogStore>(log: &L, segment: SegmentId, mut bytes: u64) {
    while bytes > 0 {
        let len_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        log.retain(SlicePtr { segment, offset_bytes: 0, len_bytes });
        bytes -= u64::from(len_bytes);
    }
}

impl<L: LogStore, S: Schema> Drop for RewriteJob<'_, L, S> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.writer.discard();
        for (segment, bytes) in std::mem::take(&mut self.relocator.appended) {
            self.engine.log.release(segment, bytes);
        }
        // What was copied is gone again.
        self.relocator.moves.copied.clear();
    }
}

fn write<L: LogStore, S: Schema>(
    schema: &S,
    relocator: &mut JobRelocator<'_, L>,
    writer: &mut TableWriter<L>,
    after: &mut Vec<BTreeMap<SegmentId, u64>>,
    relocated: &mut Vec<u8>,
    entry: KeyVersion<'_>,
) -> Result<(), MetaError> {
    if entry.kind == VersionKind::Delete {
        return Ok(writer.push(entry)?);
    }
    let is_operand = entry.kind == VersionKind::Merge;
    let changed = schema.relocate(entry.key, entry.value, is_operand, relocator, relocated)?;
    let value = if changed { relocated.as_slice() } else { entry.value };
    writer.push(KeyVersion { value, ..entry })?;
    let table = writer.finished();
    schema.pointers(entry.key, value, is_operand, &mut |slice| {
        if after.len() <= table {
            after.resize_with(table + 1, BTreeMap::new);
        }
        *after[table].entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
    })?;
    Ok(())
}
