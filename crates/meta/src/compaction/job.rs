//! A rewrite job: key versions go in, tables and reference counts come out.
//!
//! # Steps of a job
//! 1. The caller fixes the input (a frozen memtable, or tables of one table set) and passes the references
//!    that its values have, in bytes by segment: `before`.
//! 2. `new` lists the seqs that readers may read at. Snapshots that begin later read at the newest seq or
//!    above, so they need no version that the list does not keep.
//! 3. The caller passes the versions of each key, in key order (`push`). `VersionGroup::fold` chooses the
//!    versions to keep.
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
//!    bundle's edit (`VersionRelocator`, `fold`; `tests::bundles`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;
use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{BUNDLE_BYTES_MAX, Bundle, KeyVersion, VersionKind, encode_bundle};
use warpfire_log::{LogError, LogStore, Slices, Stream};
use warpfire_slices::KnownCopy;
use warpfire_units::{SegmentId, Seq, SlicePtr};

use super::fold::VersionGroup;
use super::moves::SliceMoves;
use crate::domain::{DomainId, OriginTable, domain_of};
use crate::engine::EngineInner;
use crate::schema::{RelocateError, Relocator, Schema};
use crate::store::MetaError;
use crate::table::TableWriter;
use crate::table_set::InstallInto;

/// The log never splits appends up to this length, so packed bytes are one slice, and so is a bundle.
const PACKED_BYTES_MAX: usize = 64 * 1024;

const _: () = assert!(BUNDLE_BYTES_MAX <= PACKED_BYTES_MAX, "a bundle is one slice");

struct JobRelocator<'a, L> {
    log: &'a L,
    cleaning: &'a BTreeSet<SegmentId>,
    moves: &'a mut SliceMoves,
    /// Bytes that the job has appended for values, by segment.
    appended: BTreeMap<SegmentId, u64>,
    /// The bundle that is being written.
    buffer: Vec<u8>,
}

impl<L: LogStore> JobRelocator<'_, L> {
    fn append(&mut self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError> {
        let slices = self.log.append(stream, bytes)?;
        // The writer's reference to each slice is the job's until `settle` hands it to the tables.
        for slice in &slices {
            *self.appended.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
        }
        Ok(slices)
    }
}

impl<L: LogStore> JobRelocator<'_, L> {
    fn pack(&mut self, bytes: &[u8]) -> Result<SlicePtr, LogError> {
        assert!(bytes.len() <= PACKED_BYTES_MAX, "inline bytes fit one slice");
        let slices = self.append(Stream::Small, bytes)?;
        assert_eq!(slices.len(), 1, "appends up to 64 KiB are never split");
        Ok(slices[0])
    }

    /// Packs a bundle.
    fn pack_bundle(&mut self, key: &[u8], value: &[u8]) -> Result<SlicePtr, LogError> {
        let mut bundle = std::mem::take(&mut self.buffer);
        encode_bundle(&mut bundle, key, value);
        let packed = self.pack(&bundle);
        self.buffer = bundle;
        packed
    }

    fn move_slice(&mut self, slice: SlicePtr) -> Result<Option<Slices>, LogError> {
        if !self.cleaning.contains(&slice.segment) {
            return Ok(None);
        }
        // Everything is read before anything is appended: a value keeps its pointer as a whole if some of its
        // bytes cannot be read. They may come back with a missing device.
        let mut parts: SmallVec<[(KnownCopy, Vec<u8>); 1]> = SmallVec::new();
        let mut done = 0;
        while done < slice.len_bytes {
            let rest = slice.part(done, slice.len_bytes - done);
            let known = self.moves.known_copy(rest);
            let bytes = match known {
                KnownCopy::Of(copy) => {
                    done += copy.len_bytes;
                    Vec::new()
                }
                KnownCopy::NoneOf(len) => {
                    done += len;
                    let mut bytes = vec![0; len as usize];
                    match self.log.read(rest.part(0, len), &mut bytes) {
                        Err(LogError::Damaged(_) | LogError::BadPointer(_)) => {
                            self.moves.unrecoverable.insert(slice.segment);
                            return Ok(None);
                        }
                        read => read?,
                    }
                    bytes
                }
            };
            parts.push((known, bytes));
        }
        let mut slices = Slices::new();
        let mut done = 0;
        for (known, bytes) in parts {
            match known {
                KnownCopy::Of(copy) => {
                    done += copy.len_bytes;
                    slices.push(copy);
                }
                KnownCopy::NoneOf(len) => {
                    // Slices that survive until cleaning live long: they go to a stream of their own.
                    let copies = self.append(Stream::Cold, &bytes)?;
                    self.moves.note(slice.part(done, len), &copies);
                    done += len;
                    slices.extend(copies);
                }
            }
        }
        debug_assert_eq!(
            slices.iter().map(|s| u64::from(s.len_bytes)).sum::<u64>(),
            u64::from(slice.len_bytes),
            "a moved slice keeps its length"
        );
        Ok(Some(slices))
    }
}

/// Relocates one version, and keeps its bundle in step with it.
///
/// # Invariants
/// 1. With a bundle the version has one slice, which is the end of the bundle. A version with more has none.
/// 2. The bundle has the version's own key and, with its edit, the version's value with the bytes of the
///    slice inline.
struct VersionRelocator<'r, 'a, L, S> {
    schema: &'r S,
    job: &'r mut JobRelocator<'a, L>,
    key: &'r [u8],
    value: &'r [u8],
    is_operand: bool,
    bundle: Option<Bundle>,
    /// Slices and packed bytes of the version so far.
    seen: u32,
    /// The slices that the version names when it is relocated.
    named: &'r mut Vec<SlicePtr>,
}

impl<L: LogStore, S: Schema> Relocator for VersionRelocator<'_, '_, L, S> {
    fn packs(&self) -> bool {
        true
    }

    fn pack(&mut self, bytes: &[u8]) -> Result<SlicePtr, LogError> {
        let packed = self.pack_version(bytes)?;
        self.named.push(packed);
        Ok(packed)
    }

    fn move_slice(&mut self, slice: SlicePtr) -> Result<Option<Slices>, LogError> {
        let moved = self.move_of_version(slice)?;
        self.named.extend_from_slice(moved.as_deref().unwrap_or(&[slice]));
        Ok(moved)
    }
}

impl<L: LogStore, S: Schema> VersionRelocator<'_, '_, L, S> {
    fn pack_version(&mut self, bytes: &[u8]) -> Result<SlicePtr, LogError> {
        self.seen += 1;
        self.bundle = None;
        let fits = self.key.len() + self.value.len() + BUNDLE_HEAD_BYTES_MAX <= BUNDLE_BYTES_MAX;
        let is_alone = self.seen == 1 && !self.is_operand && self.value.ends_with(bytes);
        if !(is_alone && fits && self.schema.is_bundled(self.key)) {
            return self.job.pack(bytes);
        }
        let bundle = self.job.pack_bundle(self.key, self.value)?;
        self.bundle = Some(Bundle { slice: bundle, edit: [].into() });
        let len = u32::try_from(bytes.len()).expect("the end of a bundle is shorter than the bundle");
        Ok(bundle.end(len))
    }

    fn move_of_version(&mut self, slice: SlicePtr) -> Result<Option<Slices>, LogError> {
        self.seen += 1;
        let bundle = self.bundle.take().filter(|b| self.seen == 1 && slice.is_end_of(b.slice));
        let Some(bundle) = bundle else { return self.job.move_slice(slice) };
        let Some(moved) = self.job.move_slice(bundle.slice)? else {
            if self.job.cleaning.contains(&slice.segment) {
                // Some of the bundle cannot be read. Its end may be readable.
                return self.job.move_slice(slice);
            }
            self.bundle = Some(bundle);
            return Ok(None);
        };
        if let [whole] = moved[..] {
            self.bundle = Some(Bundle { slice: whole, edit: bundle.edit });
            return Ok(Some(SmallVec::from_buf([whole.end(slice.len_bytes)])));
        }
        // In pieces it is no bundle any more.
        let mut head_bytes = bundle.slice.len_bytes - slice.len_bytes;
        let mut parts = Slices::new();
        for piece in moved {
            let passed = head_bytes.min(piece.len_bytes);
            head_bytes -= passed;
            if passed < piece.len_bytes {
                parts.push(piece.part(passed, piece.len_bytes - passed));
            }
        }
        Ok(Some(parts))
    }
}

/// Most bytes of the length of a key in a bundle.
const BUNDLE_HEAD_BYTES_MAX: usize = 3;

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
    /// Number of released snapshots before `visible` was listed.
    released: u64,
    /// Whether every version was chosen at the bottom, where no older one exists.
    is_at_bottom: bool,
    /// The domains when the job began.
    domains: Option<Arc<OriginTable>>,
    /// Seqs that readers may read at in every domain, rising.
    visible_to_all: Vec<Seq>,
    /// Those of readers of this domain. Every reader of the input reads at one of them or above the last.
    visible: Vec<Seq>,
    in_domain: Option<DomainId>,
    /// References of the values that go in, in bytes by segment.
    before: BTreeMap<SegmentId, u64>,
    /// References of the values in each table that comes out.
    after: Vec<BTreeMap<SegmentId, u64>>,
    folded: Vec<u8>,
    relocated: Vec<u8>,
    /// The slices of one value.
    named: Vec<SlicePtr>,
    /// The edit is logged: the tables belong to the manifest, and `Drop` releases nothing.
    is_logged: bool,
}

impl<'a, L: LogStore, S: Schema> RewriteJob<'a, L, S> {
    /// A job over versions with values that have the references `before`. Seq 0 aside, no version is older
    /// than `seq_base`.
    pub(super) fn new(
        engine: &'a EngineInner<L, S>,
        seq_base: Seq,
        before: BTreeMap<SegmentId, u64>,
        cleaning: &'a BTreeSet<SegmentId>,
        moves: &'a mut SliceMoves,
    ) -> Self {
        // Before the list: a snapshot that is released later counts as one more.
        let released = engine.snapshots.released();
        // Before the list too: the readers of a domain that is removed by now are in it.
        let domains = engine.domains.get();
        let visible = engine.visible();
        assert!(visible.is_sorted(), "the seqs of readers are in order");
        assert!(!visible.is_empty(), "the newest seq is always visible");
        let table_set = engine.table_set();
        let tables = table_set.runs.iter().flat_map(|run| &run.tables);
        let others = tables.map(|table| Arc::clone(table.entry())).collect();
        RewriteJob {
            engine,
            relocator: JobRelocator {
                log: &engine.log,
                cleaning,
                moves,
                appended: BTreeMap::new(),
                buffer: Vec::new(),
            },
            writer: TableWriter::new(engine.log.clone(), engine.table_bytes(), seq_base, others),
            released,
            is_at_bottom: true,
            domains,
            in_domain: None,
            visible_to_all: visible.clone(),
            visible,
            before,
            after: Vec::new(),
            folded: Vec::new(),
            relocated: Vec::new(),
            named: Vec::new(),
            is_logged: false,
        }
    }

    /// Writes the versions of one key that must be kept. `bottom`: no run below the job's input holds the
    /// key.
    pub(super) fn push(&mut self, group: &VersionGroup, bottom: bool) -> Result<(), MetaError> {
        self.is_at_bottom &= bottom;
        let RewriteJob { engine, relocator, writer, visible, after, folded, relocated, named, .. } = self;
        let RewriteJob { domains, in_domain, visible_to_all, .. } = self;
        let key = group.key();
        let (mut removed_at, mut bottom) = (None, bottom);
        if let Some(table) = domains {
            removed_at = table.removed_at(key);
            // A key that is in no run may be in the origin: there an operand and a delete mean something.
            bottom = bottom && !(table.may_hold_older(key) && engine.schema.reads_on(key));
            let domain = domain_of(key);
            if *in_domain != domain {
                *visible = table.visible_in(domain, visible_to_all);
                *in_domain = domain;
            }
        }
        let mut output = JobOutput { relocator, writer, after, relocated, named };
        group.fold(&engine.schema, visible, bottom, removed_at, folded, |entry, bundle| {
            output.write(&engine.schema, entry, bundle)
        })
    }

    /// Ends the table that is being written.
    pub(super) fn end_table(&mut self) -> Result<(), MetaError> {
        Ok(self.writer.end_table()?)
    }

    /// Makes the change durable and visible: tables are removed, moved to the new run unchanged, and added.
    pub(super) fn finish(
        mut self,
        into: &InstallInto,
        removed: Vec<u64>,
        moved: Vec<u64>,
    ) -> Result<(), MetaError> {
        assert!(!self.is_logged, "a job ends once");
        let mut tables = self.writer.finish()?;
        assert!(self.after.len() <= tables.len(), "references belong to tables that were written");
        for (table, references) in tables.iter_mut().zip(std::mem::take(&mut self.after)) {
            table.references = references.into_iter().collect();
        }
        let spare = self.settle(&tables);
        // Once the edit is in the log it may become durable even if the sync fails. From then on `Drop` must
        // not release the new tables' bytes.
        let added = self.engine.install(into, removed, moved, tables, || self.is_logged = true)?;
        if self.is_at_bottom {
            for (_, table) in self.engine.table_set().tables().filter(|(_, t)| added.contains(&t.entry().id))
            {
                table.mark_folded(self.released);
            }
        }
        // Only now: until here a crash brings back the old tables, which name these bytes.
        for (segment, bytes) in spare {
            self.engine.log.release(segment, bytes);
        }
        Ok(())
    }
}

impl<L: LogStore, S: Schema> RewriteJob<'_, L, S> {
    /// The bytes to release for each segment once the edit is durable. Retains the references that are
    /// missing: folding can copy a pointer into several values.
    fn settle(&self, tables: &[TableDescriptor]) -> BTreeMap<SegmentId, u64> {
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
        self.writer.discard();
        for (segment, bytes) in std::mem::take(&mut self.relocator.appended) {
            self.engine.log.release(segment, bytes);
        }
        // The next job of this cleaning must not name the copies that were just released.
        self.relocator.moves.forget();
    }
}

/// Where a job writes the versions that it keeps.
struct JobOutput<'j, 'a, L: LogStore> {
    relocator: &'j mut JobRelocator<'a, L>,
    writer: &'j mut TableWriter<L>,
    after: &'j mut Vec<BTreeMap<SegmentId, u64>>,
    relocated: &'j mut Vec<u8>,
    named: &'j mut Vec<SlicePtr>,
}

impl<L: LogStore> JobOutput<'_, '_, L> {
    /// Relocates one kept version, writes it and counts its references.
    fn write<S: Schema>(
        &mut self,
        schema: &S,
        entry: KeyVersion<'_>,
        bundle: Option<Bundle>,
    ) -> Result<(), MetaError> {
        let JobOutput { relocator, writer, after, relocated, named } = self;
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
