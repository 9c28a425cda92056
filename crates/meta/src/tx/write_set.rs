//! Changes in order, and by key.
//!
//! # Invariants
//! 1. `index` has, for each key that `log` changes and for no other, the numbers of its changes, rising.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::ops::Bound;

use smallvec::SmallVec;
use warpfire_units::SlicePtr;

use crate::batch::{Batch, BatchOp, Named, SUMS};
use crate::schema::{FoldResult, OlderValue, Schema};
use crate::store::MetaError;

/// Most memory of one transaction's changes: some two million files made, or as many of anything else that
/// takes a key and a short value. The commit takes about as much again, in the memtable.
const WRITE_SET_BYTES_MAX: usize = 512 << 20;

/// Memory of a change beside its key, its value and its slices, and ...
const CHANGE_BYTES: usize = 20;

/// ... of a changed key in the index beside its bytes, in a tree whose nodes are half full.
const KEY_BYTES: usize = 112;

type ChangeNumbers = SmallVec<[u32; 2]>;

#[derive(Default)]
pub(super) struct WriteSet {
    log: Batch,
    index: BTreeMap<Box<[u8]>, ChangeNumbers>,
    /// Bytes of the keys in the index.
    key_bytes: usize,
}

/// What the overlay knows of a key.
pub(super) enum KeyWrites {
    /// It has not been changed.
    Nothing,
    /// What is below does not matter.
    Floor,
    /// Operands for what is below.
    Operands,
}

impl WriteSet {
    pub(super) fn len(&self) -> usize {
        self.log.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.log.is_empty()
    }

    pub(super) fn sums(&self) -> &[i64; SUMS] {
        self.log.sums()
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.index.contains_key(key)
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let changes = self.log.bytes() + self.log.slice_bytes() + self.log.len() * CHANGE_BYTES;
        changes + self.index.len() * KEY_BYTES + self.key_bytes
    }

    /// Adds a batch, all of it or nothing. `keep` is called with each slice that the batch names.
    pub(super) fn append<S: Schema>(
        &mut self,
        batch: &Batch,
        schema: &S,
        keep: impl Fn(SlicePtr) -> Result<(), MetaError>,
    ) -> Result<(), MetaError> {
        let added = batch.bytes() + batch.slice_bytes() + batch.len() * (CHANGE_BYTES + KEY_BYTES);
        if self.memory_bytes() + added > WRITE_SET_BYTES_MAX {
            return Err(MetaError::TooLarge);
        }
        let (len, sums) = (self.log.len(), *self.log.sums());
        let mut found = Named::new();
        let added = (0..batch.len()).try_for_each(|number| {
            let slices = batch.slices_of(number, schema, &mut found)?;
            slices.iter().try_for_each(|slice| keep(*slice))?;
            // Slices that the schema found just now are carried from here on: the commit below need not look
            // for them.
            self.push(batch.op(number), slices);
            Ok(())
        });
        if added.is_err() {
            self.truncate(len, sums);
            return added;
        }
        for (sum, added) in batch.sums().iter().enumerate() {
            self.log.add(sum, *added);
        }
        Ok(())
    }

    fn push(&mut self, op: BatchOp<'_>, slices: &[SlicePtr]) {
        let number = u32::try_from(self.log.len()).expect("fewer changes than bytes");
        match self.index.get_mut(op.key()) {
            Some(changed) => changed.push(number),
            None => {
                self.index.insert(op.key().into(), ChangeNumbers::from_slice(&[number]));
                self.key_bytes += op.key().len();
            }
        }
        self.log.push_op(op, slices);
    }

    /// Forgets the changes from number `len` on; `sums` are those of then.
    pub(super) fn truncate(&mut self, len: usize, sums: [i64; SUMS]) {
        for number in (len..self.log.len()).rev() {
            let key = self.log.op(number).key();
            let changed = self.index.get_mut(key).expect("every change is in the index");
            changed.pop();
            if changed.is_empty() {
                self.index.remove(key);
                self.key_bytes -= key.len();
            }
        }
        self.log.truncate(len, sums);
    }

    pub(super) fn find(&self, key: &[u8]) -> KeyWrites {
        match self.index.get(key) {
            None => KeyWrites::Nothing,
            Some(changed) if self.floor(changed).is_some() => KeyWrites::Floor,
            Some(_) => KeyWrites::Operands,
        }
    }

    /// Where in its list a key's floor is.
    fn floor(&self, changed: &[u32]) -> Option<usize> {
        changed.iter().rposition(|n| !matches!(self.log.op(*n as usize), BatchOp::Merge(..)))
    }

    /// The key's value; `below` is what operands without a floor fold onto. `false` if it has none.
    pub(super) fn fold<S: Schema>(
        &self,
        schema: &S,
        key: &[u8],
        below: Option<OlderValue<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<bool, MetaError> {
        let changed = self.index.get(key).expect("asked for a key that has changed");
        Ok(self.fold_changed(schema, key, changed, below.unwrap_or(OlderValue::Absent), out)?
            == FoldResult::Value)
    }

    fn fold_changed<S: Schema>(
        &self,
        schema: &S,
        key: &[u8],
        changed: &[u32],
        below: OlderValue<'_>,
        out: &mut Vec<u8>,
    ) -> Result<FoldResult, MetaError> {
        let floor = self.floor(changed);
        let base = match floor.map(|at| self.log.op(changed[at] as usize)) {
            Some(BatchOp::Put(_, value)) => OlderValue::Value(value),
            Some(_) => OlderValue::Absent,
            None => below,
        };
        let operands: SmallVec<[&[u8]; 8]> = changed
            .iter()
            .skip(floor.map_or(0, |at| at + 1))
            .map(|n| self.log.op(*n as usize).value())
            .collect();
        if operands.is_empty() {
            out.clear();
            return Ok(match base {
                OlderValue::Value(value) => {
                    out.extend_from_slice(value);
                    FoldResult::Value
                }
                OlderValue::Absent | OlderValue::Unknown => FoldResult::Deleted,
            });
        }
        Ok(schema.fold(key, base, &operands, out)?)
    }

    /// All changes, each key's as one. Those of keys that were changed once stay where they are.
    pub(super) fn into_batch<S: Schema>(mut self, schema: &S) -> Result<Batch, MetaError> {
        if self.index.len() == self.log.len() {
            return Ok(self.log);
        }
        let mut folded = Batch::new();
        let mut is_folded = vec![false; self.log.len()];
        let mut out = Vec::new();
        for (key, changed) in self.index.iter().filter(|(_, changed)| changed.len() > 1) {
            match self.fold_changed(schema, key, changed, OlderValue::Unknown, &mut out)? {
                FoldResult::Value => folded.put(key, &out),
                FoldResult::Deleted => folded.delete(key),
                FoldResult::Operand => folded.merge(key, &out),
            }
            changed.iter().for_each(|number| is_folded[*number as usize] = true);
        }
        // Before the batch grows: this is the larger part of a large transaction.
        self.index.clear();
        self.log.retain(|number| !is_folded[number]);
        let mut found = Named::new();
        for number in 0..folded.len() {
            let slices = folded.slices_of(number, schema, &mut found)?;
            self.log.push_op(folded.op(number), slices);
        }
        Ok(self.log)
    }

    /// Keys that have changed, from `start` on and below `end`.
    pub(super) fn keys(&self, start: &[u8], end: Option<&[u8]>) -> Range<'_, Box<[u8]>, ChangeNumbers> {
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        self.index.range::<[u8], _>((Bound::Included(start), end))
    }
}

#[cfg(test)]
mod tests {
    use warpfire_slices::SliceError;
    use warpfire_units::SegmentId;

    use super::*;
    use crate::testing::{ListSchema, pointer_item, text_item};

    fn add(write_set: &mut WriteSet, batch: &Batch) -> Result<(), MetaError> {
        write_set.append(batch, &ListSchema, |_| Ok(()))
    }

    #[test]
    fn a_batch_with_a_slice_that_cannot_be_kept_adds_nothing() {
        let (mut write_set, mut batch) = (WriteSet::default(), Batch::new());
        let slice = |offset_bytes| SlicePtr { segment: SegmentId::FIRST, offset_bytes, len_bytes: 10 };
        batch.put(b"a", &text_item(b"kept"));
        batch.add(0, 7);
        add(&mut write_set, &batch).unwrap();
        batch.merge_naming(b"a", &pointer_item(slice(1)), [slice(1)]);
        batch.merge(b"b", &pointer_item(slice(2)));
        let refuse_second = |slice: SlicePtr| {
            if slice.offset_bytes == 2 { Err(MetaError::Slices(SliceError::NoSpace)) } else { Ok(()) }
        };
        assert!(write_set.append(&batch, &ListSchema, refuse_second).is_err());
        assert_eq!((write_set.len(), write_set.sums()), (1, &[7, 0]));
        assert!(!write_set.contains(b"b"));
        add(&mut write_set, &batch).unwrap();
        assert_eq!((write_set.len(), write_set.sums()), (4, &[14, 0]));
        assert_eq!(write_set.log.slice_bytes(), 2 * size_of::<SlicePtr>(), "both are carried from here on");
    }

    #[test]
    fn what_is_too_much_is_refused_whole_and_what_was_there_stays() {
        let mut write_set = WriteSet::default();
        let mut batch = Batch::new();
        let (item, short) = (text_item(&[7; 65_000]), text_item(b"short"));
        let value = item.repeat(WRITE_SET_BYTES_MAX / 8 / item.len() + 1);
        let taken = (0..9u8).take_while(|n| {
            batch.clear();
            batch.put(&[*n], &short);
            batch.put(&[*n, 1], &value);
            add(&mut write_set, &batch).is_ok()
        });
        let taken = taken.count();
        assert!((3..8).contains(&taken), "{taken}");
        assert!(matches!(add(&mut write_set, &batch), Err(MetaError::TooLarge)));
        assert_eq!(write_set.len(), 2 * taken);
        assert!(!write_set.contains(&[taken as u8]), "nothing of a batch that was refused");
        batch.clear();
        batch.put(b"k", &short);
        add(&mut write_set, &batch).unwrap();
        assert_eq!(write_set.into_batch(&ListSchema).unwrap().len(), 2 * taken + 1);
    }

    #[test]
    fn keys_that_changed_often_become_one_change_and_others_stay() {
        let (mut write_set, mut batch) = (WriteSet::default(), Batch::new());
        for n in 0..6u8 {
            batch.merge(b"often", &text_item(&[n]));
            batch.put(&[n], &text_item(&[n; 3]));
        }
        batch.delete(&[2]);
        batch.add(1, 5);
        add(&mut write_set, &batch).unwrap();
        let all = write_set.into_batch(&ListSchema).unwrap();
        let keys: Vec<&[u8]> = all.iter().map(|op| op.key()).collect();
        assert_eq!(keys, [&[0][..], &[1], &[3], &[4], &[5], &[2], b"often"]);
        assert_eq!(all.iter().nth(4), Some(BatchOp::Put(&[5], &text_item(&[5; 3]))));
        assert_eq!(all.iter().nth(5), Some(BatchOp::Delete(&[2])));
        let folded: Vec<u8> = (0..6u8).flat_map(|n| text_item(&[n])).collect();
        assert_eq!(all.iter().nth(6), Some(BatchOp::Merge(b"often", &folded)));
        assert_eq!(all.sums(), &[0, 5]);
    }
}
