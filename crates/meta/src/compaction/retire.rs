//! The choice of the versions that go from the present to the past, and of those that stay in the past.
//!
//! ```text
//!   versions of a key, newest first        at the bottom of the present       in a run of the past
//!
//!   9  put      ◀─ the newest seq          9  put
//!   7  operand  ◀─ a live snapshot at 8    7  put: 7 folded onto 4 and 2      7  delete: ends the span
//!   4  operand  ◀─ a persistent one at 5                                      4  operand
//!   2  put      ◀─ a persistent one at 3                                      2  put
//! ```
//!
//! # Terms
//! The *lowest reader* is the oldest live snapshot of the present, or the newest seq if there is none. A
//! *span* is what a run of the past has of a key: versions, and above them a delete with the seq of the
//! version that replaced the newest of them. A long span is divided into spans of `SPAN_BYTES`, which are
//! *full*, and a rest.
//!
//! # Invariants
//! 1. The present keeps every version that the lowest reader or a later one sees. The oldest of them is
//!    settled: a put or a delete, or a put onto which its operands were folded. If it cannot be settled,
//!    because the base is in a domain's origin or behind a rollback, nothing is retired.
//! 2. The newest version of each span is a delete, and a span has another version below it. A span is settled
//!    too, or its base is in a domain's origin or behind a rollback.
//! 3. A span has less than twice `SPAN_BYTES` of versions, and one stratum more
//!    (`tests::a_long_span_is_divided_into_spans_that_stand_alone`).

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::table::{Bundle, KeyVersion, VersionKind};
use warpfire_units::Seq;

use super::fold::{FoldVersion, FullReads, KeptVersion, Readers, VersionGroup};
use crate::schema::{Schema, SchemaError};

/// Bytes of the versions of a full span.
// Short in tests, so that their histories divide spans.
pub(super) const SPAN_BYTES: usize = if cfg!(test) { 1 << 10 } else { 64 << 10 };

/// Bytes that a version is counted with beside its value.
const VERSION_BYTES: usize = 8;

/// The place of a version that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeptIn {
    /// The table of the present.
    Present,
    /// A span of the past. Of the spans of its key number 0 is the newest, and the others are full.
    Past(usize),
}

/// The seq of a version in the past that every held seq sees. In the present such a version has seq 0.
const SEEN_BY_ALL: Seq = Seq(1);

/// The stratum of a seq.
fn stratum(visible: &[Seq], seq: Seq) -> usize {
    visible.partition_point(|reader| *reader < seq)
}

/// Where a fold puts what it keeps.
type Emit<'e, E> = dyn FnMut(KeptIn, KeyVersion<'_>, Option<Bundle>) -> Result<(), E> + 'e;

impl VersionGroup {
    /// As `fold` at the bottom of the present. Versions that no reader from `lowest` on sees go to the past.
    pub(super) fn fold_and_retire<S: Schema, E: From<SchemaError>>(
        &self,
        schema: &S,
        readers: Readers<'_>,
        lowest: Seq,
        out: &mut Vec<u8>,
        emit: &mut Emit<'_, E>,
    ) -> Result<(), E> {
        debug_assert!(readers.visible.binary_search(&lowest).is_ok(), "the lowest reader is a reader");
        debug_assert!(readers.rollbacks.is_empty() || !readers.bottom, "a rollback shows older versions");
        let (visible, bottom) = (readers.of_key(), readers.bottom);
        let all = self.versions.as_slice();
        // Of a removed domain the present keeps what its last reader sees: versions in memory may be newer,
        // and they are retired with that one.
        let of_lowest = stratum(visible, lowest).min(visible.len().saturating_sub(1));
        let is_unread =
            |v: &FoldVersion| readers.removed_at.is_some() && stratum(visible, v.seq) == visible.len();
        let newest = all.iter().take_while(|v| is_unread(v)).count();
        let is_read = |v: &FoldVersion| stratum(visible, v.seq) <= of_lowest;
        let first = all[newest..].iter().position(is_read).map(|first| newest + first);
        let retired = first.map(|first| first + Self::stratum_len(&all[first..], visible));
        let split = first.zip(retired).filter(|(_, retired)| *retired < all.len());
        let settled = split.and_then(|(first, retired)| {
            let with = first + Self::settling_len(&all[first..], readers)?;
            Some((first, retired, with.max(retired)))
        });
        let Some((first, retired, with)) = settled else {
            return self.fold(schema, readers, out, |entry, bundle| emit(KeptIn::Present, entry, bundle));
        };
        let mut full_reads = FullReads::below(None, readers);
        let mut rest = &all[newest..first];
        while let Some(newest) = rest.first() {
            let (group, below) = rest.split_at(Self::stratum_len(rest, visible));
            rest = below;
            let seq = newest.seq;
            if let Some(kept) = self.keep_stratum(group, (seq, &mut full_reads), schema, false, out)? {
                self.emit_kept(KeptIn::Present, seq, kept, emit)?;
            }
        }
        let replaced_by = all[first].seq;
        let settled = &all[first..with];
        if let Some(kept) = self.keep_stratum(settled, (replaced_by, &mut full_reads), schema, bottom, out)? {
            self.emit_kept(KeptIn::Present, replaced_by, kept, emit)?;
        }
        self.emit_span(schema, (&all[retired..], replaced_by), readers, out, emit)
    }

    /// Chooses the versions that stay in the past, of one span or of several.
    pub(super) fn fold_past<S: Schema, E: From<SchemaError>>(
        &self,
        schema: &S,
        readers: Readers<'_>,
        out: &mut Vec<u8>,
        emit: &mut Emit<'_, E>,
    ) -> Result<(), E> {
        let all = self.versions.as_slice();
        let Some(newest) = all.first() else { return Ok(()) };
        let visible = readers.of_key();
        // Damaged metadata may lack the delete. Then the newest version is shown up to its own seq only.
        let of_end = Self::stratum_len(all, visible);
        self.emit_span(schema, (&all[of_end..], newest.seq), readers, out, emit)
    }

    /// Number of the first versions that settle the newest of them. `None`: it cannot be settled.
    fn settling_len(versions: &[FoldVersion], readers: Readers<'_>) -> Option<usize> {
        let joined = &versions[..readers.joined_len(versions)];
        match joined.iter().position(|v| v.kind != VersionKind::Merge) {
            Some(base) => Some(base + 1),
            None => readers.bottom.then_some(versions.len()),
        }
    }

    /// Number of the first versions that are in one stratum.
    fn stratum_len(versions: &[FoldVersion], visible: &[Seq]) -> usize {
        let Some(newest) = versions.first() else { return 0 };
        let of_newest = stratum(visible, newest.seq);
        versions.iter().position(|v| stratum(visible, v.seq) != of_newest).unwrap_or(versions.len())
    }

    fn emit_kept<E>(
        &self,
        place: KeptIn,
        seq: Seq,
        kept: KeptVersion<'_>,
        emit: &mut Emit<'_, E>,
    ) -> Result<(), E> {
        let KeptVersion { kind, value, bundle } = kept;
        emit(place, KeyVersion { key: self.key(), seq, kind, value }, bundle)
    }

    /// Writes a span that ends at a seq, divided if it is long.
    fn emit_span<S: Schema, E: From<SchemaError>>(
        &self,
        schema: &S,
        (span, end): (&[FoldVersion], Seq),
        readers: Readers<'_>,
        out: &mut Vec<u8>,
        emit: &mut Emit<'_, E>,
    ) -> Result<(), E> {
        let Some(newest) = span.first() else { return Ok(()) };
        let (visible, bottom) = (readers.of_key(), readers.bottom);
        // Above it is a put or a delete, so nobody reads it through operands.
        let mut full_reads = FullReads::below(Some(end), readers);
        let end = if is_planted(PlantedBug::PastEndsEarly) { end.min(Seq(newest.seq.0 + 1)) } else { end };
        let bytes: usize = span.iter().map(|v| v.len + VERSION_BYTES).sum();
        // The newest part is the rest: it merges with later versions, and the others are full for good.
        let mut room = if bytes < 2 * SPAN_BYTES { usize::MAX } else { bytes % SPAN_BYTES };
        let (mut number, mut ends_at) = (0, Some(end));
        let mut rest = span;
        while let Some(newest) = rest.first() {
            let (group, below) = rest.split_at(Self::stratum_len(rest, visible));
            let group_bytes: usize = group.iter().map(|v| v.len + VERSION_BYTES).sum();
            let is_last = group_bytes >= room && !below.is_empty();
            room = room.saturating_sub(group_bytes);
            // The oldest version of a span is settled, so that the span stands alone.
            let settles = is_last && group.iter().all(|v| v.kind == VersionKind::Merge);
            let with = match settles {
                true => Self::settling_len(rest, readers).unwrap_or(group.len()),
                false => group.len(),
            };
            let nothing_below = bottom && with == rest.len();
            let ends_span = is_last && (!settles || with > group.len() || nothing_below);
            let seq = newest.seq.max(SEEN_BY_ALL);
            let folded = &rest[..with];
            if let Some(kept) =
                self.keep_stratum(folded, (seq, &mut full_reads), schema, nothing_below, out)?
            {
                let place = KeptIn::Past(number);
                if let Some(end) = ends_at.take() {
                    let delete = KeptVersion { kind: VersionKind::Delete, value: &[], bundle: None };
                    self.emit_kept(place, end, delete, emit)?;
                }
                // No reader of the past takes a bundle.
                self.emit_kept(place, seq, KeptVersion { bundle: None, ..kept }, emit)?;
            }
            if ends_span {
                (number, room, ends_at) = (number + 1, SPAN_BYTES, Some(seq));
            }
            rest = below;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ListSchema, text_item};
    use VersionKind::{Delete, Merge, Put};

    /// Version by version: its place, seq, kind and the length of its value.
    type Kept = Vec<(KeptIn, u64, VersionKind, usize)>;

    fn group(versions: &[(u64, VersionKind, usize)]) -> VersionGroup {
        let mut group = VersionGroup::default();
        group.begin(b"key");
        for (seq, kind, len) in versions {
            let value = if *kind == Delete { Vec::new() } else { text_item(&vec![*seq as u8; *len]) };
            group.push(KeyVersion { key: b"key", seq: Seq(*seq), kind: *kind, value: &value }, None);
        }
        group
    }

    fn kept_by(fold: impl FnOnce(&mut Emit<'_, SchemaError>) -> Result<(), SchemaError>) -> Kept {
        let mut kept = Vec::new();
        fold(&mut |place, entry, _| {
            kept.push((place, entry.seq.0, entry.kind, entry.value.len()));
            Ok(())
        })
        .unwrap();
        kept
    }

    fn readers(visible: &[Seq]) -> Readers<'_> {
        let may_be_zero = true;
        Readers { visible, faded: &[], removed_at: None, bottom: true, may_be_zero, rollbacks: &[] }
    }

    fn seqs(seqs: &[u64]) -> Vec<Seq> {
        seqs.iter().map(|seq| Seq(*seq)).collect()
    }

    fn retire(group: &VersionGroup, readers: Readers<'_>, lowest: u64) -> Kept {
        kept_by(|emit| group.fold_and_retire(&ListSchema, readers, Seq(lowest), &mut Vec::new(), emit))
    }

    fn keep(group: &VersionGroup, readers: Readers<'_>) -> Kept {
        kept_by(|emit| group.fold_past(&ListSchema, readers, &mut Vec::new(), emit))
    }

    const PRESENT: KeptIn = KeptIn::Present;
    const PAST: KeptIn = KeptIn::Past(0);

    #[test]
    fn the_present_keeps_what_its_readers_see_and_the_past_the_rest() {
        let group = group(&[(9, Put, 1), (7, Merge, 1), (4, Merge, 1), (2, Put, 1)]);
        // A live snapshot at 8, persistent ones at 3 and 5.
        let visible = seqs(&[3, 5, 8, 10]);
        assert_eq!(
            retire(&group, readers(&visible), 8),
            [
                (PRESENT, 9, Put, 4),
                (PRESENT, 7, Put, 12),
                (PAST, 7, Delete, 0),
                (PAST, 4, Merge, 4),
                (PAST, 2, Put, 4)
            ]
        );
        // Without the live one nobody needs 7.
        let visible = seqs(&[3, 5, 10]);
        assert_eq!(
            retire(&group, readers(&visible), 10),
            [(PRESENT, 9, Put, 4), (PAST, 9, Delete, 0), (PAST, 4, Merge, 4), (PAST, 2, Put, 4)]
        );
        // All are read in the present.
        assert!(retire(&group, readers(&seqs(&[3, 5, 10])), 3).iter().all(|kept| kept.0 == PRESENT));
    }

    #[test]
    fn a_deleted_key_leaves_the_present() {
        let group = group(&[(9, Delete, 0), (4, Put, 1)]);
        let expected = [(PAST, 9, Delete, 0), (PAST, 4, Put, 4)];
        assert_eq!(retire(&group, readers(&seqs(&[5, 10])), 10), expected);
        // Where an origin is below, the delete hides it.
        let visible = seqs(&[5, 10]);
        let above_origin = Readers { bottom: false, ..readers(&visible) };
        let expected = [(PRESENT, 9, Delete, 0), (PAST, 9, Delete, 0), (PAST, 4, Put, 4)];
        assert_eq!(retire(&group, above_origin, 10), expected);
    }

    #[test]
    fn an_operand_above_an_origin_keeps_what_is_below_it_in_the_present() {
        let visible = seqs(&[5, 10]);
        let above_origin = Readers { bottom: false, ..readers(&visible) };
        let unsettled = group(&[(9, Merge, 1), (4, Merge, 1)]);
        assert_eq!(retire(&unsettled, above_origin, 10), [(PRESENT, 9, Merge, 4), (PRESENT, 4, Merge, 4)]);
        let settled = group(&[(9, Merge, 1), (4, Merge, 1), (2, Delete, 0)]);
        let expected = [(PRESENT, 9, Put, 8), (PAST, 9, Delete, 0), (PAST, 4, Put, 4)];
        assert_eq!(retire(&settled, above_origin, 10), expected);
    }

    #[test]
    fn a_version_of_seq_0_gets_seq_1_in_the_past() {
        let group = group(&[(9, Put, 1), (0, Put, 1)]);
        let expected = [(PRESENT, 9, Put, 4), (PAST, 9, Delete, 0), (PAST, 1, Put, 4)];
        assert_eq!(retire(&group, readers(&seqs(&[5, 10])), 10), expected);
    }

    #[test]
    fn of_a_removed_domain_the_present_keeps_what_the_last_reader_sees() {
        let group = group(&[(9, Put, 1), (6, Put, 1), (4, Put, 1)]);
        let visible = seqs(&[5, 7, 12]);
        let removed = |removed| Readers { removed_at: Some(Seq(removed)), ..readers(&visible) };
        let expected = [(PRESENT, 6, Put, 4), (PAST, 6, Delete, 0), (PAST, 4, Put, 4)];
        assert_eq!(retire(&group, removed(8), 12), expected);
        assert_eq!(retire(&group, removed(3), 12), []);
    }

    #[test]
    fn spans_that_merge_lose_what_nobody_sees() {
        let group = group(&[(9, Delete, 0), (7, Put, 1), (6, Delete, 0), (3, Put, 1)]);
        let all = [(PAST, 9, Delete, 0), (PAST, 7, Put, 4), (PAST, 6, Delete, 0), (PAST, 3, Put, 4)];
        assert_eq!(keep(&group, readers(&seqs(&[4, 6, 8, 10]))), all);
        let later = [(PAST, 9, Delete, 0), (PAST, 7, Put, 4)];
        assert_eq!(keep(&group, readers(&seqs(&[8, 10]))), later);
        let older = [(PAST, 9, Delete, 0), (PAST, 3, Put, 4)];
        assert_eq!(keep(&group, readers(&seqs(&[4, 10]))), older);
        assert_eq!(keep(&group, readers(&seqs(&[2, 10]))), [], "a delete alone is nothing");
    }

    #[test]
    fn a_long_span_is_divided_into_spans_that_stand_alone() {
        let bytes = 100;
        let mut versions = vec![(2000, Delete, 0)];
        versions.extend((0..100).map(|n| (1999 - 2 * n, if n == 99 { Put } else { Merge }, bytes)));
        let group = group(&versions);
        let visible: Vec<Seq> = (1..=1000).map(|n| Seq(2 * n)).collect();
        let kept = keep(&group, readers(&visible));
        let last = kept.last().unwrap().0;
        let KeptIn::Past(last) = last else { panic!("all is in the past") };
        assert_eq!(last, 100 * (bytes + 3 + VERSION_BYTES) / SPAN_BYTES, "full spans, and a rest");
        for number in 0..=last {
            let of_span: Vec<_> = kept.iter().filter(|kept| kept.0 == KeptIn::Past(number)).collect();
            let (first, oldest) = (of_span[0], of_span[of_span.len() - 1]);
            assert_eq!((first.2, oldest.2), (Delete, Put), "span {number} ends and is settled");
            let operands: usize = of_span.iter().filter(|kept| kept.2 == Merge).map(|kept| kept.3 + 8).sum();
            assert!(operands < 2 * SPAN_BYTES, "{operands} bytes in span {number}");
        }
    }

    /// Its oldest version could not be settled, so no part but the last could stand alone.
    #[test]
    fn a_long_span_of_operands_above_an_origin_is_not_divided() {
        let mut versions = vec![(2000, Delete, 0)];
        versions.extend((0..100).map(|n| (1999 - 2 * n, Merge, 100)));
        let visible: Vec<Seq> = (1..=1000).map(|n| Seq(2 * n)).collect();
        let above_origin = Readers { bottom: false, ..readers(&visible) };
        let kept = keep(&group(&versions), above_origin);
        assert_eq!(kept.len(), 100);
        assert!(kept.iter().all(|(place, ..)| *place == PAST));
        assert!(kept[1..].iter().all(|(_, _, kind, _)| *kind == Merge));
    }
}
