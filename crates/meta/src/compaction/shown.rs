//! What the versions of a key show to each of its readers.
//!
//! # Invariants
//! 1. Readers of one stratum see the same. They are neighbours among the seqs of readers.
//! 2. The versions are folded from the oldest to the newest, each once. So a key with many operands costs as
//!    many folds as it has strata (`tests::each_reader_is_shown_what_a_fold_for_it_alone_gives`).
//! 3. Versions below the newest put or delete of a stratum are shown to older readers only.

use std::ops::Range;

use smallvec::SmallVec;
use warpfire_format::table::VersionKind;
use warpfire_units::{Seq, SlicePtr};

use super::fold::{FoldVersion, Readers, VersionGroup};
use crate::domain::RollbackRecord;
use crate::schema::{FoldResult, OlderValue, Schema, SchemaError};

/// What some neighbouring readers see of a key.
pub(crate) struct ShownValue<'a> {
    /// The places of these readers among those of the key.
    pub(crate) readers: Range<usize>,
    pub(crate) value: &'a [u8],
    /// The value is an operand: what it changes is in the origin of the key's domain.
    pub(crate) is_operand: bool,
    /// The bundle of the put onto which operands were folded, or of the put itself.
    pub(crate) bundle: Option<SlicePtr>,
}

/// What the versions up to one of them come to.
#[derive(Clone, Default)]
struct Folded {
    /// `None`: no version so far.
    kind: Option<VersionKind>,
    value: Vec<u8>,
    bundle: Option<SlicePtr>,
}

impl Folded {
    fn older(&self, bottom: bool) -> OlderValue<'_> {
        match self.kind {
            Some(VersionKind::Put) => OlderValue::Value(&self.value),
            Some(VersionKind::Delete) => OlderValue::Absent,
            None if bottom => OlderValue::Absent,
            None | Some(VersionKind::Merge) => OlderValue::Unknown,
        }
    }
}

/// The rollbacks of a key, while its versions are folded from the oldest to the newest.
struct GoingBack {
    /// The places of the readers of the seq that each shows again and of the first one that knows of it, by
    /// rising seq.
    places: SmallVec<[(usize, usize); 1]>,
    /// What each shows again, once it is known.
    shown: SmallVec<[Folded; 1]>,
    /// Number of those that are done.
    done: usize,
}

impl GoingBack {
    fn new(rollbacks: &[RollbackRecord], visible: &[Seq]) -> GoingBack {
        let place_of = |of: &RollbackRecord| {
            let (to, at) = (of.to, of.at);
            (visible.partition_point(|seq| *seq < to), visible.partition_point(|seq| *seq <= at))
        };
        let places = rollbacks.iter().map(place_of).collect();
        GoingBack { places, shown: rollbacks.iter().map(|_| Folded::default()).collect(), done: 0 }
    }

    /// The first reader that knows of the next rollback.
    fn next_place(&self) -> Option<usize> {
        self.places.get(self.done).map(|(_, first)| *first)
    }

    /// Readers at these places see `folded`.
    fn note(&mut self, folded: &Folded, readers: Range<usize>) {
        for (shown, (to, _)) in self.shown.iter_mut().zip(&self.places) {
            if readers.contains(to) {
                shown.clone_from(folded);
            }
        }
    }

    /// Goes back to what a rollback shows again, if the reader at this place is the first to know of it.
    fn go(&mut self, folded: &mut Folded, place: usize) {
        // The newest of those that it is the first to know of decides.
        while self.next_place() == Some(place) {
            folded.clone_from(&self.shown[self.done]);
            self.done += 1;
        }
    }
}

impl VersionGroup {
    /// Calls `visit` with each value that readers at the seqs `visible` see, from the oldest to the newest.
    /// Readers for whom the key does not exist are left out. `removed_at`: the last seq at which the key is
    /// read. `bottom`: no older version is in an origin. The group has none of the versions that
    /// `drop_hidden` drops for these `rollbacks`.
    pub(crate) fn each_shown<S: Schema, E: From<SchemaError>>(
        &self,
        schema: &S,
        (visible, rollbacks): (&[Seq], &[RollbackRecord]),
        removed_at: Option<Seq>,
        bottom: bool,
        visit: &mut dyn FnMut(ShownValue<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        debug_assert!(
            self.versions.is_sorted_by(|newer, older| newer.seq >= older.seq),
            "the versions of a key come from the newest to the oldest"
        );
        let readers = Readers { visible, faded: &[], removed_at, bottom, may_be_zero: false, rollbacks };
        let visible = readers.of_key();
        let stratum_at = |seq: Seq| visible.partition_point(|reader: &Seq| *reader < seq);
        let stratum_of = |version: &FoldVersion| stratum_at(version.seq);
        let mut back = GoingBack::new(rollbacks, visible);
        let (mut folded, mut rest) = (Folded::default(), self.versions.as_slice());
        let mut stratum = 0;
        loop {
            // The next place at which readers see something else: a version, or a rollback before it.
            let next_version = rest.last().map(stratum_of);
            let next = next_version.into_iter().chain(back.next_place()).min();
            let end = next.unwrap_or(visible.len()).min(visible.len());
            if stratum < end && !matches!(folded.kind, None | Some(VersionKind::Delete)) {
                visit(ShownValue {
                    readers: stratum..end,
                    value: &folded.value,
                    is_operand: folded.kind == Some(VersionKind::Merge),
                    bundle: folded.bundle,
                })?;
            }
            let Some(next) = next.filter(|next| *next < visible.len()) else { return Ok(()) };
            back.note(&folded, stratum..next);
            stratum = next;
            back.go(&mut folded, stratum);
            let (newer, group) = rest.split_at(rest.partition_point(|v| stratum_of(v) > stratum));
            rest = newer;
            self.fold_onto(&mut folded, group, schema, bottom)?;
        }
    }

    /// Folds the versions of one stratum, newest first, onto what the older ones come to.
    fn fold_onto<S: Schema>(
        &self,
        folded: &mut Folded,
        group: &[FoldVersion],
        schema: &S,
        bottom: bool,
    ) -> Result<(), SchemaError> {
        let base_at = group.iter().position(|v| v.kind != VersionKind::Merge);
        if let Some(base) = base_at.map(|at| &group[at]) {
            folded.kind = Some(base.kind);
            folded.value.clear();
            folded.value.extend_from_slice(self.value(base));
            folded.bundle = base.bundle_slice();
        }
        let operands = group[..base_at.unwrap_or(group.len())].iter().rev().map(|v| self.value(v));
        let operands: Vec<&[u8]> = operands.collect();
        if operands.is_empty() {
            return Ok(());
        }
        let mut out = Vec::new();
        let result = if folded.kind == Some(VersionKind::Merge) {
            let all: Vec<&[u8]> = std::iter::once(folded.value.as_slice()).chain(operands).collect();
            schema.fold(self.key(), OlderValue::Unknown, &all, &mut out)?
        } else {
            schema.fold(self.key(), folded.older(bottom), &operands, &mut out)?
        };
        folded.kind = Some(match result {
            FoldResult::Value => VersionKind::Put,
            FoldResult::Deleted => VersionKind::Delete,
            FoldResult::Operand => VersionKind::Merge,
        });
        folded.value = out;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use warpfire_format::table::KeyVersion;

    use super::*;
    use crate::testing::{ListSchema, Rng, clear_item, text_item};

    /// What a reader sees, by the plainest means.
    fn naive(versions: &[(u64, VersionKind, Vec<u8>)], at: u64, bottom: bool) -> Option<(Vec<u8>, bool)> {
        let mut seen: Option<(Vec<u8>, bool)> = None;
        let mut settled = bottom;
        for (_, kind, value) in versions.iter().rev().filter(|(seq, ..)| *seq <= at) {
            match kind {
                VersionKind::Put => (seen, settled) = (Some((value.clone(), false)), true),
                VersionKind::Delete => (seen, settled) = (None, true),
                VersionKind::Merge => {
                    let clears = value.first() == Some(&b'X');
                    let (mut all, is_operand) = seen.take().unwrap_or((Vec::new(), !settled));
                    if clears {
                        all.clear();
                    }
                    all.extend_from_slice(if clears && !is_operand { &value[1..] } else { value });
                    seen = (is_operand || !all.is_empty()).then_some((all, is_operand));
                    settled |= seen.is_none();
                }
            }
        }
        seen
    }

    #[test]
    fn each_reader_is_shown_what_a_fold_for_it_alone_gives() {
        let mut rng = Rng(7);
        for round in 0..2000 {
            let mut versions: Vec<(u64, VersionKind, Vec<u8>)> = Vec::new();
            let mut seq = 20 + rng.below(20);
            while seq > 0 && versions.len() < 12 {
                let text = text_item(&seq.to_le_bytes());
                versions.push(match rng.below(6) {
                    0 => (seq, VersionKind::Delete, Vec::new()),
                    1 | 2 => (seq, VersionKind::Put, text),
                    3 => (seq, VersionKind::Merge, clear_item()),
                    4 => (seq, VersionKind::Merge, [clear_item(), text].concat()),
                    _ => (seq, VersionKind::Merge, text),
                });
                seq -= 1 + rng.below(5).min(seq - 1);
                if seq == 1 {
                    break;
                }
            }
            let mut visible: Vec<Seq> = (1..42).filter(|_| rng.below(4) == 0).map(Seq).collect();
            visible.push(Seq(50));
            let bottom = rng.below(2) == 0;
            let mut group = VersionGroup::default();
            group.begin(b"key");
            for (seq, kind, value) in &versions {
                group.push(KeyVersion { key: b"key", seq: Seq(*seq), kind: *kind, value }, None);
            }
            let mut shown = vec![None; visible.len()];
            group
                .each_shown::<_, SchemaError>(&ListSchema, (&visible, &[]), None, bottom, &mut |value| {
                    for place in value.readers {
                        assert!(shown[place].is_none(), "a reader is shown one value");
                        shown[place] = Some((value.value.to_vec(), value.is_operand));
                    }
                    Ok(())
                })
                .unwrap();
            for (place, seq) in visible.iter().enumerate() {
                let expected = naive(&versions, seq.0, bottom);
                assert_eq!(shown[place], expected, "round {round}: {versions:?} at {seq:?}, {bottom}");
            }
        }
    }
}
