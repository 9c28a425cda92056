//! The choice of the versions that a job keeps: those that some reader can see.
//!
//! # Terms
//! Live snapshots divide the seqs into *strata*: the seqs between two neighbouring snapshots are a stratum. A
//! reader sees the newest version in its stratum, and through operands the versions below. A version is
//! *read fully* if some reader sees it whose seq is not faded (`snapshot.rs`), itself or through operands.
//!
//! # Invariants
//! 1. At most one version of each stratum is kept: its newest put or delete with the operands above it folded
//!    in, or one operand that stands for all its operands (`tests::one_version_of_each_stratum_stays`).
//! 2. Versions come out from the newest to the oldest. They go in in this order too (assert in `fold`), or
//!    are brought into it (`sort`).
//! 3. A delete is dropped only if no older version of its key exists
//!    (`tests::a_delete_goes_only_when_nothing_is_below`). What fades stays there, so a delete above it
//!    stays.
//! 4. A version that is not read fully fades (`FullReads`, `tests::what_only_bookmarks_show_fades`). Versions
//!    of the key in other runs do not matter: a newer one there takes readers away, and adds none.

use std::cmp::Reverse;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::table::{BUNDLE_EDIT_BYTES_MAX, Bundle, KeyVersion, VersionKind};
use warpfire_units::{Seq, SlicePtr};

use crate::domain::RollbackRecord;
use crate::schema::{FoldResult, OlderValue, Schema, SchemaError};

/// The readers of a key.
#[derive(Clone, Copy)]
pub(super) struct Readers<'a> {
    /// The seqs that readers may read at, rising.
    pub(super) visible: &'a [Seq],
    /// Those of them that are faded.
    pub(super) faded: &'a [Seq],
    /// The last seq at which anybody reads the key, if its domain is removed.
    pub(super) removed_at: Option<Seq>,
    /// No older version of the key exists elsewhere, also not in an origin.
    pub(super) bottom: bool,
    /// A version that all readers see may get seq 0: no run of the past has versions that are older.
    pub(super) may_be_zero: bool,
    /// The rollbacks of the key, by rising seq.
    pub(super) rollbacks: &'a [RollbackRecord],
}

impl<'a> Readers<'a> {
    /// Number of the first versions that no rollback parts from the newest of them. They fold together.
    pub(super) fn joined_len(&self, versions: &[FoldVersion]) -> usize {
        let Some(newest) = versions.first() else { return 0 };
        let below = self.rollbacks.iter().rev().find(|rollback| rollback.at < newest.seq);
        let below = below.filter(|_| !is_planted(PlantedBug::RollbackFoldsAcross));
        below.map_or(versions.len(), |rollback| versions.partition_point(|v| v.seq > rollback.at))
    }

    /// The seqs at which the key is read.
    pub(super) fn of_key(&self) -> &'a [Seq] {
        let end = self.removed_at.map(|removed| self.visible.partition_point(|seq| *seq <= removed));
        &self.visible[..end.unwrap_or(self.visible.len())]
    }
}

/// Finds the strata that are read fully, from the newest to the oldest.
pub(super) struct FullReads<'a> {
    readers: Readers<'a>,
    /// The seq of the stratum above.
    above: Option<Seq>,
    /// Whether a full reader of the stratum above sees the versions below it too.
    passes: bool,
}

impl<'a> FullReads<'a> {
    /// For versions below this seq, which hides them from its readers; `None`: nothing is above.
    pub(super) fn below(above: Option<Seq>, readers: Readers<'a>) -> FullReads<'a> {
        FullReads { readers, above, passes: false }
    }

    /// Whether the next stratum, of which this is the newest version, is read fully.
    pub(super) fn of_next(&mut self, newest: Seq) -> bool {
        let above = self.above.replace(newest);
        debug_assert!(above.is_none_or(|above| newest <= above), "strata come from the newest to the oldest");
        if self.passes || self.readers.faded.is_empty() || is_planted(PlantedBug::BookmarkHoldsBytes) {
            return true;
        }
        // Later readers read the newest version.
        if above.is_none() && self.readers.removed_at.is_none() {
            return true;
        }
        let of_key = self.readers.of_key();
        let count = |seqs: &[Seq]| {
            let end = above.map_or(seqs.len(), |above| seqs.partition_point(|seq| *seq < above));
            end.saturating_sub(seqs.partition_point(|seq| *seq < newest))
        };
        let faded = self.readers.removed_at.map_or(self.readers.faded, |removed| {
            &self.readers.faded[..self.readers.faded.partition_point(|seq| *seq <= removed)]
        });
        let (all, faded) = (count(of_key), count(faded));
        debug_assert!(faded <= all, "a faded seq is the seq of a reader");
        if is_planted(PlantedBug::SnapshotFades) {
            return faded == 0;
        }
        all > faded
    }

    /// Notes which version was kept of the stratum.
    pub(super) fn note(&mut self, is_full: bool, kept: Option<VersionKind>) {
        self.passes = is_full && kept == Some(VersionKind::Merge);
    }
}

pub(super) struct FoldVersion {
    pub(super) seq: Seq,
    pub(super) kind: VersionKind,
    start: usize,
    pub(super) len: usize,
    bundle: Option<Bundle>,
}

impl FoldVersion {
    pub(super) fn bundle_slice(&self) -> Option<SlicePtr> {
        self.bundle.as_ref().map(|bundle| bundle.slice)
    }
}

/// The version that stands for a stratum.
pub(super) struct KeptVersion<'a> {
    pub(super) kind: VersionKind,
    pub(super) value: &'a [u8],
    pub(super) bundle: Option<Bundle>,
}

/// All versions of one key that a job has met, newest first.
#[derive(Default)]
pub(crate) struct VersionGroup {
    key: Vec<u8>,
    bytes: Vec<u8>,
    pub(super) versions: Vec<FoldVersion>,
}

impl VersionGroup {
    /// Starts over with another key.
    pub(crate) fn begin(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.bytes.clear();
        self.versions.clear();
    }

    /// Whether no version was added since `begin`.
    pub(super) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Number of its versions.
    pub(crate) fn len(&self) -> usize {
        self.versions.len()
    }

    /// Brings versions of several sources into their order. A version comes before the delete that its seq
    /// ends an older span with.
    pub(crate) fn sort(&mut self) {
        self.versions.sort_by_key(|v| (Reverse(v.seq), v.kind == VersionKind::Delete));
    }

    /// Drops the versions that a rollback hides and that no reader from before it sees. `visible` has the
    /// seqs of readers. The first version of a group of the past stays: it ends the time of the others.
    pub(crate) fn drop_hidden(&mut self, rollbacks: &[RollbackRecord], visible: &[Seq], is_past: bool) {
        debug_assert!(visible.is_sorted(), "the seqs of readers are in order");
        let is_unseen = |seq: Seq| {
            let reader = visible.get(visible.partition_point(|reader| *reader < seq));
            let mut hiding = rollbacks.iter().filter(|of| of.to < seq && seq <= of.at);
            hiding.any(|of| reader.is_none_or(|reader| *reader > of.at))
                && !is_planted(PlantedBug::RollbackFoldsAcross)
        };
        let mut place = 0;
        self.versions.retain(|version| {
            place += 1;
            is_past && place == 1 || !is_unseen(version.seq)
        });
    }

    /// Adds the next older version, which may have a bundle.
    pub(crate) fn push(&mut self, entry: KeyVersion<'_>, bundle: Option<&Bundle>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(entry.value);
        let len = entry.value.len();
        let bundle = bundle.cloned();
        self.versions.push(FoldVersion { seq: entry.seq, kind: entry.kind, start, len, bundle });
    }

    pub(super) fn value(&self, v: &FoldVersion) -> &[u8] {
        &self.bytes[v.start..v.start + v.len]
    }

    /// Calls `emit` with the versions to keep, newest first, and with the bundles that they still have. `out`
    /// is scratch memory.
    pub(super) fn fold<S: Schema, E: From<SchemaError>>(
        &self,
        schema: &S,
        readers: Readers<'_>,
        out: &mut Vec<u8>,
        mut emit: impl FnMut(KeyVersion<'_>, Option<Bundle>) -> Result<(), E>,
    ) -> Result<(), E> {
        debug_assert!(
            self.versions.is_sorted_by(|newer, older| newer.seq >= older.seq),
            "the versions of a key come from the newest to the oldest"
        );
        let (visible, removed_at, bottom) = (readers.of_key(), readers.removed_at, readers.bottom);
        // A version newer than every reader's seq has a stratum of its own, the last one: it is kept, unless
        // there will be no reader.
        let stratum_of = |seq: Seq| visible.partition_point(|v| *v < seq);
        let mut rest = self.versions.as_slice();
        if removed_at.is_some() {
            let unread = rest.iter().take_while(|v| stratum_of(v.seq) == visible.len()).count();
            rest = &rest[unread..];
        }
        let mut full_reads = FullReads::below(None, readers);
        while let Some(newest) = rest.first() {
            let stratum = stratum_of(newest.seq);
            let end = rest.iter().position(|v| stratum_of(v.seq) != stratum).unwrap_or(rest.len());
            let (group, below) = rest.split_at(end);
            rest = below;
            let nothing_below = bottom && below.is_empty();
            let kept = self.keep_stratum(group, (newest.seq, &mut full_reads), schema, nothing_below, out)?;
            let Some(kept) = kept else { continue };
            let KeptVersion { kind, value, bundle } = kept;
            // Every reader sees this version, so its seq does not matter any more. Seq 0 takes fewest bytes.
            let is_zero = readers.may_be_zero && nothing_below && stratum == 0;
            let seq = if is_zero { Seq(0) } else { newest.seq };
            emit(KeyVersion { key: &self.key, seq, kind, value }, bundle)?;
        }
        Ok(())
    }

    /// The one version that stands for a stratum's versions `group`, of which the newest has this seq; `None`
    /// if none is needed. It is faded if it is not read fully.
    pub(super) fn keep_stratum<'a, S: Schema>(
        &'a self,
        group: &[FoldVersion],
        (newest, full_reads): (Seq, &mut FullReads<'_>),
        schema: &S,
        nothing_below: bool,
        out: &'a mut Vec<u8>,
    ) -> Result<Option<KeptVersion<'a>>, SchemaError> {
        debug_assert!(!group.is_empty(), "a stratum has a version");
        let is_full = full_reads.of_next(newest);
        let kept = match is_full {
            true => self.fold_stratum(group, schema, nothing_below, out)?,
            false => self.fade_stratum(group, schema, nothing_below, out)?,
        };
        full_reads.note(is_full, kept.as_ref().map(|kept| kept.kind));
        Ok(kept)
    }

    /// As `fold_stratum`, of a stratum that only bookmarks read.
    fn fade_stratum<'a, S: Schema>(
        &'a self,
        group: &[FoldVersion],
        schema: &S,
        nothing_below: bool,
        out: &'a mut Vec<u8>,
    ) -> Result<Option<KeptVersion<'a>>, SchemaError> {
        let is_deleted = group.first().is_none_or(|newest| newest.kind == VersionKind::Delete);
        // Not folded: operands may leave nothing of a value that has faded, although there was one.
        if let Some(value) = schema.faded(&self.key).filter(|_| !is_deleted) {
            return Ok(Some(KeptVersion { kind: VersionKind::Put, value, bundle: None }));
        }
        let mut faded = Vec::new();
        let Some(kept) = self.fold_stratum(group, schema, nothing_below, &mut *out)? else { return Ok(None) };
        let kind = kept.kind;
        if kind == VersionKind::Delete
            || !schema.fade(&self.key, kept.value, kind == VersionKind::Merge, &mut faded)?
        {
            faded.extend_from_slice(kept.value);
        }
        *out = faded;
        Ok(Some(KeptVersion { kind, value: out, bundle: None }))
    }

    /// The one version that stands for a stratum's versions `group`; `None` if none is needed.
    fn fold_stratum<'a, S: Schema>(
        &'a self,
        group: &[FoldVersion],
        schema: &S,
        nothing_below: bool,
        out: &'a mut Vec<u8>,
    ) -> Result<Option<KeptVersion<'a>>, SchemaError> {
        let kept = |kind, value, bundle| Some(KeptVersion { kind, value, bundle });
        // Versions below the newest put or delete of the stratum are visible to nobody.
        let base_at = group.iter().position(|v| v.kind != VersionKind::Merge);
        let operands = &group[..base_at.unwrap_or(group.len())];
        let base = base_at.map(|i| &group[i]);
        let deleted = || if nothing_below { None } else { kept(VersionKind::Delete, &[], None) };
        if operands.is_empty() {
            return Ok(match base {
                Some(v) if v.kind == VersionKind::Put => {
                    kept(VersionKind::Put, self.value(v), v.bundle.clone())
                }
                _ => deleted(),
            });
        }
        let known = match base {
            Some(v) if v.kind == VersionKind::Put => OlderValue::Value(self.value(v)),
            Some(_) => OlderValue::Absent,
            None if nothing_below => OlderValue::Absent,
            None => OlderValue::Unknown,
        };
        // One operand over an unknown value stays as it is: the schema is not asked.
        if let ([only], OlderValue::Unknown) = (operands, known) {
            return Ok(kept(VersionKind::Merge, self.value(only), None));
        }
        let oldest_first: Vec<&[u8]> = operands.iter().rev().map(|v| self.value(v)).collect();
        Ok(match schema.fold(&self.key, known, &oldest_first, out)? {
            FoldResult::Value => {
                let bundle = base.and_then(|v| v.bundle.as_ref());
                let bundle = bundle.map(|b| self.edited(b, &oldest_first, schema)).transpose()?.flatten();
                kept(VersionKind::Put, out, bundle)
            }
            FoldResult::Deleted => deleted(),
            FoldResult::Operand => kept(VersionKind::Merge, out, None),
        })
    }

    /// The bundle of a version onto which these operands were folded, oldest first; `None` if its edit would
    /// be long. Whether the version still has the bundle's bytes is decided when it is written.
    fn edited<S: Schema>(
        &self,
        bundle: &Bundle,
        operands: &[&[u8]],
        schema: &S,
    ) -> Result<Option<Bundle>, SchemaError> {
        let before = (!bundle.edit.is_empty()).then_some(&*bundle.edit);
        let all: Vec<&[u8]> = before.into_iter().chain(operands.iter().copied()).collect();
        let mut folded = Vec::new();
        let edit = match all[..] {
            [only] => only,
            _ => match schema.fold(&self.key, OlderValue::Unknown, &all, &mut folded)? {
                FoldResult::Operand => &folded,
                FoldResult::Value | FoldResult::Deleted => return Ok(None),
            },
        };
        let is_short = edit.len() <= BUNDLE_EDIT_BYTES_MAX;
        Ok(is_short.then(|| Bundle { slice: bundle.slice, edit: edit.into() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FADED, ListSchema, clear_item, text_item};

    fn fold(
        versions: &[(u64, VersionKind, &[u8])],
        visible: &[u64],
        bottom: bool,
    ) -> Vec<(u64, VersionKind, Vec<u8>)> {
        fold_removed(versions, visible, bottom, None)
    }

    fn fold_removed(
        versions: &[(u64, VersionKind, &[u8])],
        visible: &[u64],
        bottom: bool,
        removed_at: Option<u64>,
    ) -> Vec<(u64, VersionKind, Vec<u8>)> {
        fold_faded(b"key", versions, visible, &[], bottom, removed_at)
    }

    fn fold_faded(
        key: &[u8],
        versions: &[(u64, VersionKind, &[u8])],
        visible: &[u64],
        faded: &[u64],
        bottom: bool,
        removed_at: Option<u64>,
    ) -> Vec<(u64, VersionKind, Vec<u8>)> {
        let mut group = VersionGroup::default();
        group.begin(key);
        for (seq, kind, value) in versions {
            group.push(KeyVersion { key, seq: Seq(*seq), kind: *kind, value }, None);
        }
        let seqs = |seqs: &[u64]| -> Vec<Seq> { seqs.iter().map(|seq| Seq(*seq)).collect() };
        let (visible, faded) = (seqs(visible), seqs(faded));
        let mut kept = Vec::new();
        group
            .fold::<_, SchemaError>(
                &ListSchema,
                Readers {
                    visible: &visible,
                    faded: &faded,
                    removed_at: removed_at.map(Seq),
                    bottom,
                    may_be_zero: true,
                    rollbacks: &[],
                },
                &mut Vec::new(),
                |e, _| {
                    kept.push((e.seq.0, e.kind, e.value.to_vec()));
                    Ok(())
                },
            )
            .unwrap();
        kept
    }

    use VersionKind::{Delete, Merge, Put};

    #[test]
    fn one_version_of_each_stratum_stays() {
        let versions = [
            (9, Put, &b"T\x01\x009"[..]),
            (7, Put, b"T\x01\x007"),
            (5, Delete, b""),
            (3, Put, b"T\x01\x003"),
        ];
        let kept: Vec<u64> = fold(&versions, &[4, 10], false).iter().map(|k| k.0).collect();
        assert_eq!(kept, [9, 3]);
        let kept: Vec<u64> = fold(&versions, &[4, 6, 10], true).iter().map(|k| k.0).collect();
        assert_eq!(kept, [9, 5, 0], "a version that every reader sees has seq 0");
    }

    #[test]
    fn what_only_bookmarks_show_fades() {
        let (a, b, c) = (text_item(b"a"), text_item(b"b"), text_item(b"c"));
        let (left, left_operand) = (FADED.to_vec(), [clear_item(), FADED.to_vec()].concat());
        let replaced = [(9, Put, &c[..]), (4, Put, &a)];
        let fold = |versions: &[(u64, VersionKind, &[u8])], visible: &[u64], faded: &[u64], bottom| {
            fold_faded(b"key", versions, visible, faded, bottom, None)
        };
        assert_eq!(fold(&replaced, &[5, 10], &[5], true), [(9, Put, c.clone()), (0, Put, left.clone())]);
        assert_eq!(fold(&replaced, &[5, 7, 10], &[5], true), [(9, Put, c.clone()), (0, Put, a.clone())]);
        // A job without the later version cannot know it.
        assert_eq!(fold(&replaced[1..], &[5, 10], &[5], false), [(4, Put, a.clone())]);
        // Full readers see 4 through the operand at 9, and none through that at 7.
        let operands = [(9, Merge, &c[..]), (4, Put, &a)];
        assert_eq!(fold(&operands, &[5, 10], &[5], true), [(9, Merge, c.clone()), (0, Put, a.clone())]);
        let replaced = [(9, Put, &c[..]), (7, Merge, &b), (4, Put, &a)];
        let expected = [(9, Put, c.clone()), (7, Merge, left_operand), (0, Put, left)];
        assert_eq!(fold(&replaced, &[5, 8, 10], &[5, 8], true), expected);
        let expected = [(9, Put, c.clone()), (7, Merge, b.clone()), (0, Put, a.clone())];
        assert_eq!(fold(&replaced, &[5, 8, 10], &[5], true), expected);
    }

    /// What operands leave of content says nothing once a part of it has faded.
    #[test]
    fn content_fades_to_a_mark_that_it_was_there() {
        let a = text_item(b"a");
        let clear = clear_item();
        let versions = [(9, Delete, &b""[..]), (7, Merge, &clear), (4, Put, &a)];
        let fold = |versions: &[(u64, VersionKind, &[u8])], visible: &[u64], faded: &[u64]| {
            fold_faded(b"zz", versions, visible, faded, true, None)
        };
        let expected = [(9, Delete, vec![]), (7, Put, FADED.to_vec()), (0, Put, FADED.to_vec())];
        assert_eq!(fold(&versions, &[5, 8, 10], &[5, 8]), expected);
        assert_eq!(fold(&versions, &[8, 10], &[8]), [(9, Delete, vec![]), (0, Put, FADED.to_vec())]);
        // For a full reader the operand leaves nothing.
        assert_eq!(fold(&versions, &[8, 10], &[]), [(9, Delete, vec![])]);
        let deleted = [(9, Put, &a[..]), (7, Delete, b""), (4, Put, &a)];
        let expected = [(9, Put, a.clone()), (7, Delete, vec![]), (0, Put, FADED.to_vec())];
        assert_eq!(fold(&deleted, &[5, 8, 10], &[5, 8]), expected);
    }

    #[test]
    fn of_a_removed_domain_fades_what_no_full_reader_saw() {
        let versions = [(9, Put, &b"T\x01\x009"[..]), (3, Put, b"T\x01\x003")];
        let fold =
            |faded: &[u64], removed| fold_faded(b"key", &versions, &[4, 10, 12], faded, false, Some(removed));
        assert_eq!(fold(&[10], 11)[0], (9, Put, FADED.to_vec()), "the newest seq reads nothing");
        assert_eq!(fold(&[4], 11)[0].2, versions[0].2);
        assert_eq!(fold(&[4], 11)[1].2, FADED);
    }

    #[test]
    fn of_a_removed_domain_stays_what_snapshots_before_see() {
        let versions = [(9, Put, &b"T\x01\x009"[..]), (5, Merge, b"T\x01\x005"), (3, Put, b"T\x01\x003")];
        let kept = |visible: &[u64], removed| {
            let kept = fold_removed(&versions, visible, false, Some(removed));
            kept.iter().map(|k| k.0).collect::<Vec<u64>>()
        };
        assert_eq!(kept(&[12], 10), [], "the newest seq reads nothing");
        assert_eq!(kept(&[4, 12], 10), [3]);
        assert_eq!(kept(&[4, 6, 12], 10), [5, 3]);
        assert_eq!(kept(&[4, 10, 12], 10), [9, 3], "a reader at the last seq sees all");
        assert_eq!(kept(&[4, 8, 12], 7), [3], "a reader after the removal counts as none");
    }

    #[test]
    fn a_delete_goes_only_when_nothing_is_below() {
        assert_eq!(fold(&[(5, Delete, b"")], &[9], false), [(5, Delete, vec![])]);
        assert_eq!(fold(&[(5, Delete, b"")], &[9], true), []);
        let over_a_put = [(5, Delete, &b""[..]), (3, Put, b"T\x01\x003")];
        assert_eq!(fold(&over_a_put, &[4, 9], true).len(), 2, "a snapshot sees the put");
    }

    #[test]
    fn operands_fold_onto_what_is_known() {
        let (a, b) = (text_item(b"a"), text_item(b"b"));
        let both = [a.clone(), b.clone()].concat();
        assert_eq!(fold(&[(5, Merge, &b), (4, Put, &a)], &[9], true), [(0, Put, both.clone())]);
        assert_eq!(fold(&[(5, Merge, &b), (4, Merge, &a)], &[9], true), [(0, Put, both.clone())]);
        assert_eq!(fold(&[(5, Merge, &b), (4, Merge, &a)], &[9], false), [(5, Merge, both)]);
        assert_eq!(fold(&[(5, Merge, &b), (4, Delete, b"")], &[9], false), [(5, Put, b.clone())]);
        assert_eq!(fold(&[(5, Merge, &clear_item()), (4, Put, &a)], &[9], true), []);
        assert_eq!(fold(&[(5, Merge, &b), (4, Merge, &a)], &[4, 9], true), [(5, Merge, b), (0, Put, a)]);
    }
}
