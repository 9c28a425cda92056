//! The changes of one commit, and the slices that their values name.
//!
//! # Terms
//! A change *carries* its slices if the caller listed the slices that the value names, as it can right after
//! it has encoded the value. Otherwise the schema finds them in the value.
//!
//! # Invariants
//! 1. The slices that a change carries are those that the schema finds in its value, in that order.
//!    (assert in `slices_of`, in debug builds).
//! 2. `bytes` holds the keys and values of all changes in order, without space between them (assert in
//!    `retain`).

use smallvec::SmallVec;
use warpfire_units::SlicePtr;

use crate::schema::{Schema, SchemaError};

/// Number of running sums that commits may add to. The sync point hook gives them their meaning.
pub const SUMS: usize = 3;

/// The running sum of the bytes for which the engine keeps room: see `reserved`.
pub const RESERVED: usize = 2;

/// Changes that commit together, in order, in one flat buffer that is reused from commit to commit.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    ops: Vec<BatchEntry>,
    /// The slices that changes carry, in the order of the changes.
    slices: Vec<SlicePtr>,
    sums: [i64; SUMS],
}

#[derive(Clone, Copy, Debug)]
struct BatchEntry {
    kind: BatchKind,
    /// Whether it carries its slices.
    carries: bool,
    key_start: u32,
    key_len: u32,
    value_len: u32,
    /// End of its slices in `slices`; they begin at the end of the previous change's.
    slices_end: u32,
}

/// The slices of one value. Most values name one; a randomly written region of a file names many.
pub(crate) type Named = SmallVec<[SlicePtr; 4]>;

#[derive(Clone, Copy, Debug)]
enum BatchKind {
    Put,
    Delete,
    Merge,
}

/// One change of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchOp<'a> {
    /// The key has this value.
    Put(&'a [u8], &'a [u8]),
    /// The key has no value.
    Delete(&'a [u8]),
    /// The schema folds this operand onto the key's older value.
    Merge(&'a [u8], &'a [u8]),
}

impl<'a> BatchOp<'a> {
    /// The key that changes.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        match self {
            BatchOp::Put(key, _) | BatchOp::Delete(key) | BatchOp::Merge(key, _) => key,
        }
    }

    /// The value or operand; empty for a delete.
    #[must_use]
    pub fn value(&self) -> &'a [u8] {
        match self {
            BatchOp::Put(_, value) | BatchOp::Merge(_, value) => value,
            BatchOp::Delete(_) => &[],
        }
    }
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key to a value in which the schema finds the slices.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.push(BatchKind::Put, key, value, false);
    }

    /// Sets a key to a value that names these slices, in this order, and no others.
    pub fn put_naming(&mut self, key: &[u8], value: &[u8], slices: impl IntoIterator<Item = SlicePtr>) {
        self.slices.extend(slices);
        self.push(BatchKind::Put, key, value, true);
    }

    /// Removes a key, present or not.
    pub fn delete(&mut self, key: &[u8]) {
        self.push(BatchKind::Delete, key, &[], true);
    }

    /// Adds an operand, in which the schema finds the slices, to a key without reading it.
    pub fn merge(&mut self, key: &[u8], operand: &[u8]) {
        self.push(BatchKind::Merge, key, operand, false);
    }

    /// Adds an operand that names these slices, in this order, and no others.
    pub fn merge_naming(&mut self, key: &[u8], operand: &[u8], slices: impl IntoIterator<Item = SlicePtr>) {
        self.slices.extend(slices);
        self.push(BatchKind::Merge, key, operand, true);
    }

    /// Adds to a running sum with this commit. The engine passes the sums of all commits since the last sync
    /// point to the sync point hook. So a sync point has the sums of exactly the commits before it.
    pub fn add(&mut self, sum: usize, delta: i64) {
        self.sums[sum] = self.sums[sum].wrapping_add(delta);
    }

    /// What the commit adds to each running sum.
    #[must_use]
    pub fn sums(&self) -> &[i64; SUMS] {
        &self.sums
    }

    /// Adds a change. The slices after those of the previous change are its own.
    fn push(&mut self, kind: BatchKind, key: &[u8], value: &[u8], carries: bool) {
        let narrow = |n: usize| u32::try_from(n).expect("a batch stays below 4 GiB");
        self.ops.push(BatchEntry {
            kind,
            carries,
            key_start: narrow(self.bytes.len()),
            key_len: narrow(key.len()),
            value_len: narrow(value.len()),
            slices_end: narrow(self.slices.len()),
        });
        debug_assert!(
            carries
                || self.slices.len()
                    == self.ops.len().checked_sub(2).map_or(0, |n| self.ops[n].slices_end as usize),
            "a change that carries no slices adds none"
        );
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    /// Adds a change of another batch; its value names these slices.
    pub(crate) fn push_op(&mut self, op: BatchOp<'_>, slices: &[SlicePtr]) {
        let slices = slices.iter().copied();
        match op {
            BatchOp::Put(key, value) => self.put_naming(key, value, slices),
            BatchOp::Delete(key) => self.delete(key),
            BatchOp::Merge(key, operand) => self.merge_naming(key, operand, slices),
        }
    }

    /// The slices that a change names: those that it carries, or else those that the schema finds, in
    /// `found`.
    pub(crate) fn slices_of<'a, S: Schema>(
        &'a self,
        number: usize,
        schema: &S,
        found: &'a mut Named,
    ) -> Result<&'a [SlicePtr], SchemaError> {
        if self.ops[number].carries {
            let start = number.checked_sub(1).map_or(0, |before| self.ops[before].slices_end);
            let carried = &self.slices[start as usize..self.ops[number].slices_end as usize];
            #[cfg(debug_assertions)]
            {
                found.clear();
                self.find_slices(number, schema, found)?;
                assert_eq!(found.as_slice(), carried, "a change carries the slices that its value names");
            }
            return Ok(carried);
        }
        found.clear();
        self.find_slices(number, schema, found)?;
        Ok(found)
    }

    fn find_slices<S: Schema>(
        &self,
        number: usize,
        schema: &S,
        found: &mut Named,
    ) -> Result<(), SchemaError> {
        let (key, value, is_operand) = match self.op(number) {
            BatchOp::Put(key, value) => (key, value, false),
            BatchOp::Merge(key, operand) => (key, operand, true),
            BatchOp::Delete(_) => return Ok(()),
        };
        schema.pointers(key, value, is_operand, &mut |slice| found.push(slice))
    }

    /// The changes, in the order they were made.
    pub fn iter(&self) -> impl Iterator<Item = BatchOp<'_>> {
        self.ops.iter().map(|entry| self.op_of(entry))
    }

    /// The change with this number, from 0 on.
    pub(crate) fn op(&self, number: usize) -> BatchOp<'_> {
        self.op_of(&self.ops[number])
    }

    fn op_of(&self, e: &BatchEntry) -> BatchOp<'_> {
        let (key, rest) = self.bytes[e.key_start as usize..].split_at(e.key_len as usize);
        let value = &rest[..e.value_len as usize];
        match e.kind {
            BatchKind::Put => BatchOp::Put(key, value),
            BatchKind::Delete => BatchOp::Delete(key),
            BatchKind::Merge => BatchOp::Merge(key, value),
        }
    }

    /// Removes the changes from number `len` on, and sets the sums.
    pub(crate) fn truncate(&mut self, len: usize, sums: [i64; SUMS]) {
        if let Some(first) = self.ops.get(len) {
            self.bytes.truncate(first.key_start as usize);
            self.ops.truncate(len);
            self.slices.truncate(self.ops.last().map_or(0, |last| last.slices_end as usize));
        }
        self.sums = sums;
    }

    /// Removes the changes with numbers for which `keep` is false.
    pub(crate) fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let mut end = 0;
        let mut number = 0;
        let (mut slices_start, mut slices_end) = (0, 0);
        let (bytes, slices) = (&mut self.bytes, &mut self.slices);
        self.ops.retain_mut(|op| {
            let kept = keep(number);
            number += 1;
            let its_slices = slices_start..op.slices_end as usize;
            slices_start = its_slices.end;
            // Kept changes move towards the front, in place: a large transaction has no memory for a copy.
            if kept {
                let count = its_slices.len();
                slices.copy_within(its_slices, slices_end);
                slices_end += count;
                op.slices_end = u32::try_from(slices_end).expect("slices only move towards the front");
                let (start, len) = (op.key_start as usize, (op.key_len + op.value_len) as usize);
                bytes.copy_within(start..start + len, end);
                op.key_start = u32::try_from(end).expect("changes only move towards the front");
                end += len;
            }
            kept
        });
        assert!(
            end <= self.bytes.len() && slices_end <= self.slices.len(),
            "removal does not make a batch longer"
        );
        self.bytes.truncate(end);
        self.slices.truncate(slices_end);
    }

    /// Writes values and operands anew. `rewrite` writes the new bytes of a change and returns `true`, or
    /// returns `false` for a change that stays. The new bytes name the same slices in the same order.
    ///
    /// # Errors
    /// The first error of `rewrite`. The changes before it are written anew.
    pub fn rewrite<F>(
        &mut self,
        mut rewrite: impl FnMut(BatchOp<'_>, &mut Vec<u8>) -> Result<bool, F>,
    ) -> Result<(), F> {
        let mut value = Vec::new();
        for number in 0..self.ops.len() {
            value.clear();
            if !rewrite(self.op(number), &mut value)? {
                continue;
            }
            let entry = &mut self.ops[number];
            let key = entry.key_start as usize..(entry.key_start + entry.key_len) as usize;
            if value.len() <= entry.value_len as usize {
                self.bytes[key.end..key.end + value.len()].copy_from_slice(&value);
            } else {
                // A longer value moves to the end, with its key.
                entry.key_start = u32::try_from(self.bytes.len()).expect("a batch stays below 4 GiB");
                self.bytes.extend_from_within(key);
                self.bytes.extend_from_slice(&value);
            }
            entry.value_len = u32::try_from(value.len()).expect("a value stays below 4 GiB");
        }
        Ok(())
    }

    /// Number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether no key changes. Such a batch is not committed, and neither are its sums.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Memory of the slices that changes carry, in bytes.
    pub(crate) fn slice_count(&self) -> usize {
        self.slices.len()
    }

    /// Memory of the slices that changes carry.
    pub(crate) fn slice_bytes(&self) -> usize {
        self.slices.len() * size_of::<SlicePtr>()
    }

    /// Bytes of keys and values together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Removes all changes and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ops.clear();
        self.slices.clear();
        self.sums = [0; SUMS];
    }
}

#[cfg(test)]
mod tests {
    use warpfire_units::SegmentId;

    use super::*;
    use crate::testing::{ListSchema, pointer_item, text_item};

    #[test]
    fn the_slices_of_changes_are_counted() {
        let mut batch = Batch::new();
        batch.put(b"a", b"text");
        assert_eq!(batch.slice_count(), 0);
        batch.merge_naming(b"c", &pointer_item(slice(1)), [slice(1)]);
        batch.merge_naming(b"d", &pointer_item(slice(2)), [slice(2)]);
        assert_eq!(batch.slice_count(), 2);
    }

    #[test]
    fn values_are_written_anew_shorter_and_longer() {
        let mut batch = Batch::new();
        batch.put(b"a", b"long value");
        batch.delete(b"b");
        batch.merge_naming(b"c", &pointer_item(slice(1)), [slice(1)]);
        batch.put(b"d", b"x");
        batch.put(b"e", b"stays");
        batch
            .rewrite(|op, out| {
                let new = match op.key() {
                    b"a" => &b"short"[..],
                    b"d" => b"much longer",
                    _ => return Ok::<_, ()>(false),
                };
                out.extend_from_slice(new);
                Ok(true)
            })
            .unwrap();
        let pointer = pointer_item(slice(1));
        let ops: Vec<BatchOp<'_>> = batch.iter().collect();
        assert_eq!(
            ops,
            [
                BatchOp::Put(b"a", b"short"),
                BatchOp::Delete(b"b"),
                BatchOp::Merge(b"c", &pointer),
                BatchOp::Put(b"d", b"much longer"),
                BatchOp::Put(b"e", b"stays"),
            ]
        );
        assert_eq!(batch.slices_of(2, &ListSchema, &mut Named::new()).unwrap(), [slice(1)]);
    }

    fn slice(offset_bytes: u64) -> SlicePtr {
        SlicePtr { segment: SegmentId::FIRST, offset_bytes, len_bytes: 10 }
    }

    fn named(batch: &Batch) -> Vec<Vec<u64>> {
        let mut found = Named::new();
        let mut offsets = |number| {
            let slices = batch.slices_of(number, &ListSchema, &mut found).unwrap();
            slices.iter().map(|slice| slice.offset_bytes).collect()
        };
        (0..batch.len()).map(&mut offsets).collect()
    }

    /// Changes that carry none, one and two slices, one that leaves finding them to the schema, and a delete.
    fn mixed() -> Batch {
        let mut batch = Batch::new();
        let two = [pointer_item(slice(1)), pointer_item(slice(2))].concat();
        batch.put_naming(b"a", &two, [slice(1), slice(2)]);
        batch.put(b"b", &pointer_item(slice(3)));
        batch.delete(b"c");
        batch.merge_naming(b"d", &pointer_item(slice(4)), [slice(4)]);
        batch.put_naming(b"e", &text_item(b"none"), []);
        batch.merge(b"f", &pointer_item(slice(5)));
        batch
    }

    #[test]
    fn each_change_has_its_own_slices_carried_or_found() {
        assert_eq!(named(&mixed()), [vec![1, 2], vec![3], vec![], vec![4], vec![], vec![5]]);
    }

    #[test]
    fn slices_go_with_their_changes() {
        for keep in 0..1u32 << 6 {
            let (mut batch, all) = (mixed(), named(&mixed()));
            batch.retain(|number| keep >> number & 1 == 1);
            let kept = all.iter().enumerate().filter(|(number, _)| keep >> number & 1 == 1);
            assert_eq!(named(&batch), kept.map(|(_, slices)| slices.clone()).collect::<Vec<_>>(), "{keep:b}");
            let carried = [2, 0, 0, 1, 0, 0].iter().enumerate().filter(|(n, _)| keep >> n & 1 == 1);
            let carried: usize = carried.map(|(_, count)| count).sum();
            assert_eq!(batch.slice_bytes(), carried * size_of::<SlicePtr>(), "{keep:b}");
        }
        for len in 0..=6 {
            let (mut batch, all) = (mixed(), named(&mixed()));
            batch.truncate(len, [0; SUMS]);
            batch.put_naming(b"z", &pointer_item(slice(9)), [slice(9)]);
            let mut expected = all[..len].to_vec();
            expected.push(vec![9]);
            assert_eq!(named(&batch), expected, "{len}");
        }
    }

    #[test]
    #[should_panic(expected = "a change carries the slices that its value names")]
    #[cfg(debug_assertions)]
    fn a_wrong_slice_is_noticed() {
        let mut batch = Batch::new();
        batch.put_naming(b"a", &pointer_item(slice(1)), [slice(2)]);
        named(&batch);
    }
}
