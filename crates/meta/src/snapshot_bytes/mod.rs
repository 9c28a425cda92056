//! The bytes that snapshots alone need, so that a list of snapshots can say what deleting them frees.
//!
//! # Terms
//! Readers *need* the slices that the values name which they see. A byte is needed by the snapshots of a
//! list from the first to the last that need it, or by *others*: the present, live snapshots, the origins of
//! clones, holds, and persistent snapshots that are not in the list.
//!
//! # Invariants
//! 1. A byte counts for a stretch of snapshots only if nothing outside of it needs the byte, whichever keys
//!    name it. So the bytes of a stretch are free once its snapshots are deleted and compaction and a census
//!    have gone over what named them (`tests::snapshot_bytes`).
//! 2. Nothing is written but the memtable. The count is of one moment: of the tables and the memory at its
//!    beginning. Later changes do not count.
//! 3. Memory is bounded by that of the memtable and of `PieceList`. All tables are read twice for each round
//!    of it.
//!
//! Only bytes of slices count: neither records nor the indexes of tables do.

#[cfg(any(test, feature = "twin"))]
mod naive;
mod pieces;
mod versions;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::ops::Range;

use warpfire_log::LogStore;
use warpfire_units::{SegmentId, Seq, SlicePtr};

#[cfg(any(test, feature = "twin"))]
pub(crate) use naive::naive_bytes;
pub(crate) use pieces::{LogPlace, NeededPiece, Needers, merged};

use crate::domain::{DomainId, OriginTable, RollbackRecord, domain_of};
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;
use pieces::{PieceList, parts_inside};
use versions::VersionSources;

/// The bytes that snapshots of a list need and nothing else does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SnapshotBytes {
    /// Bytes by the first and the last place in the list that need them.
    by_needers: BTreeMap<(u32, u32), u64>,
}

impl SnapshotBytes {
    pub(crate) fn add(&mut self, pieces: &[NeededPiece]) {
        debug_assert!(
            pieces.windows(2).all(|pair| (pair[0].segment, pair[0].to) <= (pair[1].segment, pair[1].from)),
            "no byte is in two stretches"
        );
        for piece in pieces.iter().filter(|piece| piece.needers.are_listed()) {
            let cell = (piece.needers.first, piece.needers.last);
            *self.by_needers.entry(cell).or_default() += piece.to - piece.from;
        }
    }

    /// The bytes by the snapshots that need them: the places of the first and of the last one in the list.
    pub fn iter(&self) -> impl Iterator<Item = (Range<usize>, u64)> + '_ {
        self.by_needers.iter().map(|((first, last), bytes)| (*first as usize..*last as usize + 1, *bytes))
    }

    /// All of them: the bytes that are free without the snapshots of the list.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_needers.values().sum()
    }
}

/// The seqs at which keys of one domain are read, and which of them are in the list.
pub(crate) struct DomainReaders<'a> {
    listed: &'a [Seq],
    of: Option<DomainId>,
    pub(crate) seqs: Vec<Seq>,
    needers: Vec<Needers>,
    /// Number of readers before each place that are not in the list.
    others_before: Vec<usize>,
}

impl<'a> DomainReaders<'a> {
    /// Readers of the domain that no key is in. `listed` rises.
    pub(crate) fn new(listed: &'a [Seq], visible_to_all: &[Seq]) -> Self {
        assert!(listed.is_sorted(), "the snapshots of a list rise");
        let mut readers =
            DomainReaders { listed, of: None, seqs: Vec::new(), needers: Vec::new(), others_before: vec![0] };
        readers.set(visible_to_all.to_vec(), None);
        readers
    }

    /// Changes to the domain of a key.
    pub(crate) fn change_to(&mut self, key: &[u8], domains: &OriginTable, visible_to_all: &[Seq]) {
        let domain = domain_of(key);
        if domain != self.of {
            let origins: BTreeSet<Seq> = domains.held_for(domain).collect();
            self.set(domains.visible_in(domain, visible_to_all), domain);
            // Readers through an origin or a rollback stay, also where a snapshot has the same seq.
            for (seq, needers) in self.seqs.iter().zip(&mut self.needers) {
                if origins.contains(seq) {
                    *needers = Needers::OTHERS;
                }
            }
            self.count_others();
        }
    }

    fn set(&mut self, seqs: Vec<Seq>, domain: Option<DomainId>) {
        let needers_at = |seq: &Seq| match self.listed.binary_search(seq) {
            Ok(place) => Needers::at(u32::try_from(place).expect("a pool has at most 2^20 snapshots")),
            Err(_) => Needers::OTHERS,
        };
        self.needers = seqs.iter().map(needers_at).collect();
        (self.seqs, self.of) = (seqs, domain);
        self.count_others();
    }

    fn count_others(&mut self) {
        self.others_before.clear();
        self.others_before.push(0);
        let mut others = 0;
        for needers in &self.needers {
            others += usize::from(!needers.are_listed());
            self.others_before.push(others);
        }
    }

    /// All that need a value which neighbouring readers see.
    pub(crate) fn needers(&self, readers: Range<usize>) -> Needers {
        assert!(!readers.is_empty(), "somebody sees it");
        if self.others_before[readers.start] != self.others_before[readers.end] {
            return Needers::OTHERS;
        }
        self.needers[readers.start].with(self.needers[readers.end - 1])
    }
}

/// The slices of one key, each with all that need it there.
#[derive(Default)]
struct KeySlices {
    /// Those of the value before, in order.
    open: Vec<(SlicePtr, Needers)>,
    named: Vec<SlicePtr>,
    next: Vec<(SlicePtr, Needers)>,
}

impl KeySlices {
    /// Goes on to a newer value, which names `named`. What it does not name any more goes to `emit`.
    fn change(&mut self, needers: Needers, emit: &mut dyn FnMut(SlicePtr, Needers)) {
        debug_assert!(self.next.is_empty(), "the value before has been worked off");
        self.named.sort_unstable();
        self.named.dedup();
        let mut open = self.open.drain(..).peekable();
        for slice in self.named.drain(..) {
            while let Some((gone, of_gone)) = open.next_if(|(older, _)| *older < slice) {
                emit(gone, of_gone);
            }
            let same = open.next_if(|(older, _)| *older == slice);
            self.next.push((slice, same.map_or(needers, |(_, older)| older.with(needers))));
        }
        open.for_each(|(gone, of_gone)| emit(gone, of_gone));
        std::mem::swap(&mut self.open, &mut self.next);
    }

    fn end(&mut self, emit: &mut dyn FnMut(SlicePtr, Needers)) {
        self.open.drain(..).for_each(|(slice, needers)| emit(slice, needers));
    }
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// As `SnapshotStore::snapshot_bytes`.
    pub(crate) fn snapshot_bytes(&self, snapshots: &[Seq]) -> Result<SnapshotBytes, MetaError> {
        let mut bytes = SnapshotBytes::default();
        if snapshots.is_empty() {
            return Ok(bytes);
        }
        // The bytes of small files are slices only in tables. A full pool leaves them in memory.
        if !self.options.read_only {
            // A memtable may be frozen already, and then the active one has its turn after it.
            let written = self.flush_frozen().and_then(|_| self.freeze()).and_then(|_| self.flush_frozen());
            if let Err(error) = written
                && !error.is_no_space()
            {
                return Err(error);
            }
        }
        let sources = self.version_sources();
        let mut from = None;
        loop {
            let (held, next) = self.listed_pieces(&sources, snapshots, from)?;
            bytes.add(&self.without_others(&sources, snapshots, held)?);
            let Some(next) = next else { return Ok(bytes) };
            assert!(from < Some(next), "each round goes on");
            from = Some(next);
        }
    }

    /// What the snapshots of the list need, from a place on, and the place where the next round begins.
    fn listed_pieces(
        &self,
        sources: &VersionSources<L>,
        snapshots: &[Seq],
        from: Option<LogPlace>,
    ) -> Result<(Vec<NeededPiece>, Option<LogPlace>), MetaError> {
        let mut list = PieceList::new(from);
        self.each_slice(sources, snapshots, false, &mut |slice, needers| {
            if needers.are_listed() {
                list.add(slice, needers);
            }
        })?;
        Ok(list.end())
    }

    /// The same stretches, of which what others need says so.
    fn without_others(
        &self,
        sources: &VersionSources<L>,
        snapshots: &[Seq],
        held: Vec<NeededPiece>,
    ) -> Result<Vec<NeededPiece>, MetaError> {
        if held.is_empty() {
            return Ok(held);
        }
        let mut of_others = Vec::new();
        let mut merge_at = held.len().max(1 << 20);
        let mut note = |slice: SlicePtr| {
            parts_inside(&held, slice, &mut |part| of_others.push(part));
            if of_others.len() > merge_at {
                of_others = merged(std::mem::take(&mut of_others));
                merge_at = of_others.len() * 2 + held.len().max(1 << 20);
            }
        };
        let segments: BTreeSet<SegmentId> = held.iter().map(|piece| piece.segment).collect();
        let segments: Vec<SegmentId> = segments.into_iter().collect();
        self.held.count_held(&segments, &mut note, || ());
        self.each_slice(sources, snapshots, true, &mut |slice, needers| {
            if !needers.are_listed() {
                note(slice);
            }
        })?;
        let mut all = held;
        all.append(&mut of_others);
        Ok(merged(all))
    }

    /// Calls `visit` with the slices of each key that somebody sees, and with all that need them there. With
    /// `of_others`, keys that only others need are met too.
    fn each_slice(
        &self,
        sources: &VersionSources<L>,
        snapshots: &[Seq],
        of_others: bool,
        visit: &mut dyn FnMut(SlicePtr, Needers),
    ) -> Result<(), MetaError> {
        let mut readers = DomainReaders::new(snapshots, &sources.visible);
        let (mut slices, schema) = (KeySlices::default(), &self.schema);
        sources.each_key(&mut |group| {
            let (mut removed_at, mut bottom) = (None, true);
            let mut rollbacks: &[RollbackRecord] = &[];
            if let Some(domains) = &sources.domains {
                readers.change_to(group.key(), domains, &sources.visible);
                removed_at = domains.removed_at(group.key());
                bottom = !domains.is_above_origin(group.key(), schema);
                if schema.goes_back(group.key()) {
                    rollbacks = domains.rollbacks_at(group.key());
                }
            }
            if !rollbacks.is_empty() {
                group.drop_hidden(rollbacks, &readers.seqs, false);
            }
            // Only others need what the present shows: a version that nothing ends or hides.
            if !of_others && removed_at.is_none() && rollbacks.is_empty() && group.len() == 1 {
                return Ok(());
            }
            let seqs = (&readers.seqs[..], rollbacks);
            group.each_shown::<S, MetaError>(schema, seqs, removed_at, bottom, &mut |shown| {
                let whole = |slice: SlicePtr| shown.bundle.filter(|bundle| slice.is_end_of(*bundle));
                let named = &mut slices.named;
                schema.pointers(group.key(), shown.value, shown.is_operand, &mut |slice| {
                    named.push(whole(slice).unwrap_or(slice));
                })?;
                slices.change(readers.needers(shown.readers), visit);
                Ok(())
            })?;
            slices.end(visit);
            Ok(())
        })
    }
}
