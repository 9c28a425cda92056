//! The choice of the versions that a job keeps: those that some reader can see.
//!
//! # Terms
//! Live snapshots divide the seqs into *strata*: the seqs between two neighbouring snapshots are a stratum. A
//! reader sees the newest version in its stratum, and through operands the versions below.
//!
//! # Invariants
//! 1. At most one version of each stratum is kept: its newest put or delete with the operands above it folded
//!    in, or one operand that stands for all its operands (`tests::one_version_of_each_stratum_stays`).
//! 2. Versions come out from the newest to the oldest. They go in in this order too (assert in `fold`), or
//!    are brought into it (`sort`).
//! 3. A delete is dropped only if no older version of its key exists
//!    (`tests::a_delete_goes_only_when_nothing_is_below`).

use std::cmp::Reverse;

use warpfire_format::table::{BUNDLE_EDIT_BYTES_MAX, Bundle, KeyVersion, VersionKind};
use warpfire_units::{Seq, SlicePtr};

use crate::schema::{FoldResult, OlderValue, Schema, SchemaError};

/// The readers of a key.
#[derive(Clone, Copy)]
pub(super) struct Readers<'a> {
    /// The seqs that readers may read at, rising.
    pub(super) visible: &'a [Seq],
    /// The last seq at which anybody reads the key, if its domain is removed.
    pub(super) removed_at: Option<Seq>,
    /// No older version of the key exists elsewhere, also not in an origin.
    pub(super) bottom: bool,
    /// A version that all readers see may get seq 0: no run of the past has versions that are older.
    pub(super) may_be_zero: bool,
}

impl<'a> Readers<'a> {
    /// The seqs at which the key is read.
    pub(super) fn of_key(&self) -> &'a [Seq] {
        let end = self.removed_at.map(|removed| self.visible.partition_point(|seq| *seq <= removed));
        &self.visible[..end.unwrap_or(self.visible.len())]
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
        while let Some(newest) = rest.first() {
            let stratum = stratum_of(newest.seq);
            let end = rest.iter().position(|v| stratum_of(v.seq) != stratum).unwrap_or(rest.len());
            let (group, below) = rest.split_at(end);
            rest = below;
            let nothing_below = bottom && below.is_empty();
            let Some(kept) = self.fold_stratum(group, schema, nothing_below, out)? else { continue };
            let KeptVersion { kind, value, bundle } = kept;
            // Every reader sees this version, so its seq does not matter any more. Seq 0 takes fewest bytes.
            let is_zero = readers.may_be_zero && nothing_below && stratum == 0;
            let seq = if is_zero { Seq(0) } else { newest.seq };
            emit(KeyVersion { key: &self.key, seq, kind, value }, bundle)?;
        }
        Ok(())
    }

    /// The one version that stands for a stratum's versions `group`; `None` if none is needed.
    pub(super) fn fold_stratum<'a, S: Schema>(
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
    use crate::testing::{ListSchema, clear_item, text_item};

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
        let mut group = VersionGroup::default();
        group.begin(b"key");
        for (seq, kind, value) in versions {
            group.push(KeyVersion { key: b"key", seq: Seq(*seq), kind: *kind, value }, None);
        }
        let visible: Vec<Seq> = visible.iter().map(|s| Seq(*s)).collect();
        let mut kept = Vec::new();
        group
            .fold::<_, SchemaError>(
                &ListSchema,
                Readers { visible: &visible, removed_at: removed_at.map(Seq), bottom, may_be_zero: true },
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
