//! The write set: the changes of a transaction, in order and by key.
//!
//! # Invariants
//! 1. `index` has, for each key that `log` changes and for no other, the numbers of its changes, rising
//!    (asserts in `push` and `truncate`).
//! 2. `key_bytes` is the length of all keys in `index`.

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

/// Memory of a change beside its key, its value and its slices.
const CHANGE_BYTES: usize = 20;

/// Memory of a changed key in the index beside its bytes, in a tree with half-full nodes.
const KEY_BYTES: usize = 112;

type ChangeNumbers = SmallVec<[u32; 2]>;

#[derive(Default)]
pub(super) struct WriteSet {
    log: Batch,
    index: BTreeMap<Box<[u8]>, ChangeNumbers>,
    /// Bytes of the keys in the index.
    key_bytes: usize,
}

/// The kind of changes that a write set has for a key.
pub(super) enum KeyWrites {
    /// It has not been changed.
    Nothing,
    /// It has a floor: the value below does not matter.
    Floor,
    /// Operands without a floor: they fold onto the value below.
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

    #[cfg(test)]
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.index.contains_key(key)
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let changes = self.log.bytes() + self.log.slice_bytes() + self.log.len() * CHANGE_BYTES;
        changes + self.index.len() * KEY_BYTES + self.key_bytes
    }

    /// Memory that it takes with a batch added, at most.
    ///
    /// # Errors
    /// `TooLarge` if that is more than a transaction may have.
    pub(super) fn memory_bytes_with(&self, batch: &Batch) -> Result<usize, MetaError> {
        // The index has each key a second time.
        let key_bytes: usize = batch.iter().map(|op| op.key().len()).sum();
        let changes = batch.len() * (CHANGE_BYTES + KEY_BYTES);
        let added = batch.bytes() + batch.slice_bytes() + key_bytes + changes;
        let bytes = self.memory_bytes() + added;
        if bytes > WRITE_SET_BYTES_MAX { Err(MetaError::TooLarge) } else { Ok(bytes) }
    }

    /// Adds a batch, all of it or nothing. `keep` is called with each slice that the batch names.
    pub(super) fn append<S: Schema>(
        &mut self,
        batch: &Batch,
        schema: &S,
        keep: impl Fn(SlicePtr) -> Result<(), MetaError>,
    ) -> Result<(), MetaError> {
        let (len, sums) = (self.log.len(), *self.log.sums());
        let mut found = Named::new();
        let added = (0..batch.len()).try_for_each(|number| {
            let slices = batch.slices_of(number, schema, &mut found)?;
            slices.iter().try_for_each(|slice| keep(*slice))?;
            // The change carries its slices from here on, so that the commit below need not search for them.
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
            Some(changed) => {
                debug_assert!(
                    changed.last().is_some_and(|last| *last < number),
                    "the changes of a key are in order"
                );
                changed.push(number);
            }
            None => {
                self.index.insert(op.key().into(), ChangeNumbers::from_slice(&[number]));
                self.key_bytes += op.key().len();
            }
        }
        self.log.push_op(op, slices);
    }

    /// Removes the changes from number `len` on, and sets the sums of that moment.
    pub(super) fn truncate(&mut self, len: usize, sums: [i64; SUMS]) {
        for number in (len..self.log.len()).rev() {
            let key = self.log.op(number).key();
            let changed = self.index.get_mut(key).expect("every change is in the index");
            let last = changed.pop();
            debug_assert_eq!(
                last.map(|last| last as usize),
                Some(number),
                "the newest change of a key is its last"
            );
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

    /// The position of a key's floor in the list of its changes.
    fn floor(&self, changed: &[u32]) -> Option<usize> {
        changed.iter().rposition(|n| !matches!(self.log.op(*n as usize), BatchOp::Merge(..)))
    }

    /// The key's value, in `out`. Operands without a floor fold onto `below`. `false` if the key has no
    /// value.
    pub(super) fn fold<S: Schema>(
        &self,
        schema: &S,
        key: &[u8],
        below: Option<OlderValue<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<bool, MetaError> {
        let changed = self.index.get(key).expect("callers pass keys that have changed");
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

    /// All changes, each key once. Changes of keys that changed once keep their order and come first.
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
        // Freed before the batch grows: the index is the larger part of a large transaction.
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
        write_set.memory_bytes_with(batch)?;
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
        assert_eq!((write_set.len(), write_set.sums()), (1, &[7, 0, 0]));
        assert!(!write_set.contains(b"b"));
        add(&mut write_set, &batch).unwrap();
        assert_eq!((write_set.len(), write_set.sums()), (4, &[14, 0, 0]));
        assert_eq!(write_set.log.slice_bytes(), 2 * size_of::<SlicePtr>(), "both are carried from here on");
    }

    #[test]
    fn the_memory_of_a_batch_counts_bytes_slices_and_changes() {
        let (mut write_set, mut batch) = (WriteSet::default(), Batch::new());
        let slice = |n| SlicePtr { segment: SegmentId::FIRST, offset_bytes: n, len_bytes: 10 };
        for n in 0..5u8 {
            let slice = slice(u64::from(n));
            batch.put_naming(&[n], &pointer_item(slice), [slice]);
        }
        let of_slices = 5 * size_of::<SlicePtr>();
        let of_keys = 5;
        let wanted = batch.bytes() + of_slices + of_keys + 5 * (CHANGE_BYTES + KEY_BYTES);
        assert_eq!(write_set.memory_bytes_with(&batch).unwrap(), wanted);
        add(&mut write_set, &batch).unwrap();
        assert_eq!(write_set.memory_bytes(), wanted, "each key is new");
        assert_eq!(write_set.memory_bytes_with(&batch).unwrap(), 2 * wanted, "at most");
    }

    #[test]
    fn a_batch_that_is_too_much_is_refused_whole() {
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
        assert_eq!(all.sums(), &[0, 5, 0]);
    }
}
