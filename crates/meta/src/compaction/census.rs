//! Census: the live bytes of segments in which references share bytes.
//!
//! The log counts references, and bytes with two names count twice. So it cannot see that they hide garbage:
//! of a file and its copy that both lose the same half, as many bytes are referenced as were written. A
//! census reads all references to some segments and counts the bytes that they name, each once.
//!
//! # The moment that is counted
//! A census counts the references of one moment, its *beginning*. At the beginning this thread has locked
//! `compacting` and `flushing`, all shards for reading, and the book of held bytes, in this order. Then
//! - no job is between the release of its input and the installation of its output, because every job holds
//!   one of the first two locks;
//! - no commit is in progress: a commit retains its slices and inserts its values under its shards' locks;
//! - no hold begins, ends or moves.
//!
//! So the log's number of references, which is read under these locks, is that of the names in the memtables,
//! in the table set, of the tables' own bytes and of the book, and of nothing else but the references of
//! writers between their write and their commit and those of removed tables that a reader still has. The
//! census does not meet these. The log takes each of them for bytes of its own (`CountedSegment`), so it
//! counts too many live bytes for as long as they last, and never too few.
//!
//! All that is read after the beginning is as it was then. Slots of a memtable never change, and while
//! `flushing` is locked the active memtable can be frozen once and not be written (`count_memory`). Tables
//! never change, and the table set keeps them. References that come after the beginning are added to the
//! count by the log, those that go are not subtracted: the live bytes that the log reports stay a bound
//! (`LiveBytes`).
//!
//! # Invariants
//! 1. A census frees nothing. It changes what counts as live, and with it the choice of victims.
//! 2. A census takes 64 MiB at most (`SEGMENTS_MAX` bitmaps), and locks shards for as long as it takes to
//!    read `SLOTS_AT_ONCE` values.
//! 3. Work is bounded by gain. Where no caller waits for space, the bytes that a census may free are at least
//!    `GAIN_FACTOR` times those that it reads. After it they are sure, and only names that metadata drops
//!    make them unsure again. So all censuses read an eighth of the bytes of dropped names at most
//!    (`tests::census::without_a_change_no_table_is_read_again`).
//! 4. A table that cannot be read counts as if its names named bytes of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{Bundle, KeyVersion, VersionKind};
use warpfire_log::{CensusCandidate, CensusMark, CensusNeed, CountedSegment, LogStore};
use warpfire_units::{SegmentId, SlicePtr};

use crate::engine::EngineInner;
use crate::memtable::{FrozenMemtable, MemtableShard, SHARDS};
use crate::schema::{Schema, SchemaError};
use crate::store::MetaError;
use crate::table::{RunStream, Table};
use crate::table_set::TableSet;

/// Most segments of one census.
const SEGMENTS_MAX: usize = 64;

/// Most bits of the bitmap of a segment: 1 MiB.
const BITS_MAX: u64 = 1 << 23;

/// Most bytes of tables that one census reads, unless its first segment alone is named in more.
const READ_BYTES_MAX: u64 = 256 << 20;

/// A census of the background reads one byte for so many that it may free.
const GAIN_FACTOR: u64 = 8;

/// Values of a memtable that are read under one lock of their shard.
const SLOTS_AT_ONCE: usize = 256;

/// The bytes of one segment that references name. A bit stands for a *granule*: one byte in a segment of up
/// to 8 MiB, 32 bytes in one of 256 MiB. A granule counts as live if one of its bytes is.
struct NamedBytes {
    mark: CensusMark,
    granule_bits: u32,
    words: Vec<u64>,
    /// The bytes of all names, also of the same bytes.
    named_bytes: u64,
}

impl NamedBytes {
    fn new(mark: CensusMark) -> Self {
        let granule = mark.written_bytes.div_ceil(BITS_MAX).max(1).next_power_of_two();
        let words = mark.written_bytes.div_ceil(granule).div_ceil(u64::from(u64::BITS));
        let words = vec![0; usize::try_from(words).expect("at most BITS_MAX bits")];
        NamedBytes { mark, granule_bits: granule.ilog2(), words, named_bytes: 0 }
    }

    /// Counts one name. What damaged metadata names behind the end of the segment is no byte of it.
    fn add(&mut self, slice: SlicePtr) {
        let end = slice.offset_bytes.saturating_add(u64::from(slice.len_bytes)).min(self.mark.written_bytes);
        let Some(len) = end.checked_sub(slice.offset_bytes).filter(|len| *len > 0) else { return };
        self.named_bytes += len;
        let (first, last) = (slice.offset_bytes >> self.granule_bits, (end - 1) >> self.granule_bits);
        for word in first / 64..=last / 64 {
            let from = if word == first / 64 { first % 64 } else { 0 };
            let to = if word == last / 64 { last % 64 } else { 63 };
            let at = usize::try_from(word).expect("at most BITS_MAX bits");
            self.words[at] |= u64::MAX >> (63 - (to - from)) << from;
        }
    }

    fn counted(&self) -> CountedSegment {
        let granules: u64 = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
        let live_bytes = (granules << self.granule_bits).min(self.mark.written_bytes);
        CountedSegment { mark: self.mark, named_bytes: self.named_bytes, live_bytes }
    }
}

/// The counts of one census.
struct CensusCount<'s, S> {
    schema: &'s S,
    segments: BTreeMap<SegmentId, NamedBytes>,
}

impl<S: Schema> CensusCount<'_, S> {
    fn add(&mut self, slice: SlicePtr) {
        if let Some(segment) = self.segments.get_mut(&slice.segment) {
            segment.add(slice);
        }
    }

    /// Counts the slices of a value. A slice that is the end of the value's bundle stands for all of it.
    fn add_value(&mut self, entry: KeyVersion<'_>, bundle: Option<&Bundle>) -> Result<(), SchemaError> {
        if entry.kind == VersionKind::Delete {
            return Ok(());
        }
        let schema = self.schema;
        schema.pointers(entry.key, entry.value, entry.kind == VersionKind::Merge, &mut |slice| {
            let whole = bundle.map(|bundle| bundle.slice).filter(|bundle| slice.is_end_of(*bundle));
            self.add(whole.unwrap_or(slice));
        })
    }

    fn add_slots(&mut self, shard: &MemtableShard, slots: std::ops::Range<usize>) -> Result<(), SchemaError> {
        slots.into_iter().try_for_each(|slot| self.add_value(shard.entry(slot), None))
    }
}

/// The sources of references at the beginning of a census.
struct Sources<L: LogStore> {
    /// Whether the memtables name any of the segments.
    in_memory: bool,
    frozen: Option<Arc<FrozenMemtable>>,
    /// Number of slots of each shard of the active memtable.
    active: [usize; SHARDS],
    table_set: Arc<TableSet<L>>,
}

/// Whether values in the table name slices of one of the segments.
fn names_any(entry: &TableDescriptor, is_one: impl Fn(SegmentId) -> bool) -> bool {
    entry.references.iter().any(|(segment, _)| is_one(*segment))
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Takes a census of the segments that promise most, if that pays. `true` if it did: the next call takes
    /// one of others.
    pub(crate) fn census_step(&self, need: CensusNeed) -> Result<bool, MetaError> {
        // The usual answer, at the cost of a look at the log's sums.
        if need == CensusNeed::Gain && self.log.space().unsure_bytes == 0 {
            return Ok(false);
        }
        let _compacting = self.compacting.lock();
        let plan = self.plan_census(&self.log.census_candidates(need), need);
        let Some(segments) = plan else { return Ok(false) };
        self.count(&segments)?;
        Ok(true)
    }

    /// Counts the live bytes of all segments.
    pub(crate) fn count_everything(&self) -> Result<(), MetaError> {
        let _compacting = self.compacting.lock();
        let all = self.log.census_candidates(CensusNeed::Everything);
        let all: Vec<SegmentId> = all.iter().map(|candidate| candidate.segment).collect();
        all.chunks(SEGMENTS_MAX).try_for_each(|segments| self.count(segments))
    }

    /// The first candidates, as many as one census counts. `None`: a census does not pay.
    fn plan_census(&self, candidates: &[CensusCandidate], need: CensusNeed) -> Option<Vec<SegmentId>> {
        let table_set = self.table_set();
        let (mut segments, mut tables) = (Vec::new(), BTreeSet::new());
        let (mut read_bytes, mut unsure_bytes) = (0, 0);
        for candidate in candidates.iter().take(SEGMENTS_MAX) {
            let entries = || table_set.tables().map(|(_, table)| table.entry());
            let naming = |entry: &&Arc<TableDescriptor>| {
                !tables.contains(&entry.id) && names_any(entry, |segment| segment == candidate.segment)
            };
            let more_bytes: u64 = entries().filter(naming).map(|entry| u64::from(entry.len_bytes)).sum();
            if !segments.is_empty() && read_bytes + more_bytes > READ_BYTES_MAX {
                continue;
            }
            let more: Vec<u64> = entries().filter(naming).map(|entry| entry.id).collect();
            tables.extend(more);
            read_bytes += more_bytes;
            unsure_bytes += candidate.unsure_bytes;
            segments.push(candidate.segment);
        }
        if need == CensusNeed::Gain && self.shards.memory_names(&segments.iter().copied().collect()) {
            read_bytes += self.usage.in_memory_bytes();
        }
        let pays = match need {
            CensusNeed::Gain => unsure_bytes >= GAIN_FACTOR * read_bytes,
            CensusNeed::Room => unsure_bytes >= read_bytes,
            CensusNeed::Everything => true,
        };
        (pays && !segments.is_empty()).then_some(segments)
    }

    /// Counts the live bytes of some segments. The caller has locked `compacting`.
    fn count(&self, segments: &[SegmentId]) -> Result<(), MetaError> {
        let (mut count, table_set) = {
            let _flushing = self.flushing.lock();
            let (mut count, sources) = self.begin_census(segments);
            if sources.in_memory && !is_planted(PlantedBug::CensusWithoutMemory) {
                self.count_memory(&mut count, &sources)?;
            }
            (count, sources.table_set)
        };
        for (_, table) in table_set.tables() {
            for slice in &table.entry().slices {
                count.add(*slice);
            }
            if table.is_unreadable()
                || !names_any(table.entry(), |segment| count.segments.contains_key(&segment))
            {
                continue;
            }
            match count_table(&mut count, table) {
                Err(_) if table.is_unreadable() => {}
                counted => counted?,
            }
        }
        let counted: Vec<CountedSegment> = count.segments.values().map(NamedBytes::counted).collect();
        self.log.end_census(&counted);
        tracing::debug!(
            name: "census_taken",
            segments = counted.len(),
            named_bytes = counted.iter().map(|c| c.named_bytes).sum::<u64>(),
            live_bytes = counted.iter().map(|c| c.live_bytes).sum::<u64>(),
            "the live bytes of some segments were counted"
        );
        Ok(())
    }

    /// Notes the sources of references, counts those of holds, and lets the log note its numbers, all at one
    /// moment.
    fn begin_census(&self, segments: &[SegmentId]) -> (CensusCount<'_, S>, Sources<L>) {
        // Before the locks: commits must not wait while this is allocated.
        let mut held: Vec<SlicePtr> = Vec::new();
        let shards = self.shards.read_all();
        let mut active = [0; SHARDS];
        active.iter_mut().zip(&shards).for_each(|(slots, shard)| *slots = shard.active.len());
        let names = |m: &MemtableShard| segments.iter().any(|segment| m.references.contains_key(segment));
        let in_memory = shards.iter().any(|shard| names(&shard.active))
            || shards[0].frozen.as_ref().is_some_and(|frozen| frozen.shards.iter().any(names));
        let (frozen, table_set) = (shards[0].frozen.clone(), Arc::clone(&shards[0].table_set));
        let marks =
            self.held.count_held(segments, &mut |slice| held.push(slice), || self.log.begin_census(segments));
        drop(shards);
        let segments = marks.into_iter().map(|mark| (mark.segment, NamedBytes::new(mark))).collect();
        let mut count = CensusCount { schema: &self.schema, segments };
        held.into_iter().for_each(|slice| count.add(slice));
        (count, Sources { in_memory, frozen, active, table_set })
    }

    /// Counts the names in the memtables as they were at the beginning. The caller has locked `flushing`
    /// since then.
    fn count_memory(&self, count: &mut CensusCount<'_, S>, sources: &Sources<L>) -> Result<(), SchemaError> {
        for shard in sources.frozen.iter().flat_map(|frozen| &frozen.shards) {
            count.add_slots(shard, 0..shard.len())?;
        }
        for (number, slots) in sources.active.into_iter().enumerate() {
            let mut next = 0;
            while next < slots {
                let shard = self.shards.read(number);
                match &shard.frozen {
                    // The active memtable has been frozen since. A frozen one takes no commits, so nobody
                    // waits for this.
                    Some(frozen) if sources.frozen.is_none() => {
                        let frozen = Arc::clone(frozen);
                        drop(shard);
                        count.add_slots(&frozen.shards[number], next..slots)?;
                        next = slots;
                    }
                    // With a frozen memtable at the beginning, the active one stays: the frozen one is not
                    // written.
                    _ => {
                        let to = slots.min(next + SLOTS_AT_ONCE);
                        count.add_slots(&shard.active, next..to)?;
                        next = to;
                    }
                }
            }
        }
        Ok(())
    }
}

fn count_table<L: LogStore, S: Schema>(
    count: &mut CensusCount<'_, S>,
    table: &Arc<Table<L>>,
) -> Result<(), MetaError> {
    let mut stream = RunStream::new(vec![Arc::clone(table)])?;
    while let Some(entry) = stream.entry() {
        count.add_value(entry, stream.bundle())?;
        stream.next()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use warpfire_log::{MemLog, MemLogOptions, Stream};

    use super::*;
    use crate::testing::Rng;

    #[test]
    fn named_bytes_are_counted_once_in_granules_of_any_size() {
        let mut rng = Rng(1);
        // One byte, and eight: segments of at most 8 MiB, and of 40 MiB.
        for (len, granule) in [(100_000u64, 1u64), (8 << 20, 1), (40 << 20, 8)] {
            let log =
                MemLog::with_options(MemLogOptions { capacity_bytes: 64 << 20, segment_bytes: 40 << 20 });
            let slice = log.append(Stream::Large, &vec![1; len as usize]).unwrap()[0];
            for _ in 0..20 {
                let mut named = NamedBytes::new(log.begin_census(&[slice.segment])[0]);
                let mut naive = vec![false; len as usize];
                let mut sum = 0;
                for _ in 0..rng.below(30) {
                    let offset_bytes = rng.below(len);
                    let len_bytes = 1 + rng.below((len - offset_bytes).min(1 << 16)) as u32;
                    named.add(SlicePtr { segment: slice.segment, offset_bytes, len_bytes });
                    sum += u64::from(len_bytes);
                    let (from, to) =
                        (offset_bytes / granule, (offset_bytes + u64::from(len_bytes)).div_ceil(granule));
                    let to = (to * granule).min(len);
                    naive[(from * granule) as usize..to as usize].fill(true);
                }
                named.add(SlicePtr { segment: slice.segment, offset_bytes: len, len_bytes: 9 });
                let counted = named.counted();
                assert_eq!(counted.live_bytes, naive.iter().filter(|live| **live).count() as u64);
                assert_eq!(counted.named_bytes, sum, "bytes behind the end are none");
            }
        }
    }
}
