//! What one commit changes.

/// Sums that commits may add to; what they mean is the business of whoever set the cut hook.
pub const SUMS: usize = 2;

/// Changes that commit together, in order, in one flat buffer that is reused from commit to commit.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    ops: Vec<BatchEntry>,
    sums: [i64; SUMS],
}

#[derive(Clone, Copy, Debug)]
struct BatchEntry {
    kind: BatchKind,
    key_start: u32,
    key_len: u32,
    value_len: u32,
}

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
    /// The key's value is what the schema makes of the older value and this operand.
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

    /// Sets a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.push(BatchKind::Put, key, value);
    }

    /// Removes a key, present or not.
    pub fn delete(&mut self, key: &[u8]) {
        self.push(BatchKind::Delete, key, &[]);
    }

    /// Adds an operand to a key without reading it.
    pub fn merge(&mut self, key: &[u8], operand: &[u8]) {
        self.push(BatchKind::Merge, key, operand);
    }

    /// Adds to a running sum with this commit. The engine keeps the sums of all commits since its last cut and hands them
    /// to the cut hook, so a cut holds the sums of exactly the commits that are in it.
    pub fn add(&mut self, sum: usize, delta: i64) {
        self.sums[sum] = self.sums[sum].wrapping_add(delta);
    }

    /// What the commit adds to each running sum.
    #[must_use]
    pub fn sums(&self) -> &[i64; SUMS] {
        &self.sums
    }

    fn push(&mut self, kind: BatchKind, key: &[u8], value: &[u8]) {
        let narrow = |n: usize| u32::try_from(n).expect("a batch stays below 4 GiB");
        self.ops.push(BatchEntry {
            kind,
            key_start: narrow(self.bytes.len()),
            key_len: narrow(key.len()),
            value_len: narrow(value.len()),
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    /// Adds a change of another batch.
    pub fn push_op(&mut self, op: BatchOp<'_>) {
        match op {
            BatchOp::Put(key, value) => self.put(key, value),
            BatchOp::Delete(key) => self.delete(key),
            BatchOp::Merge(key, operand) => self.merge(key, operand),
        }
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

    /// Forgets the changes from this number on; the sums become these.
    pub(crate) fn truncate(&mut self, len: usize, sums: [i64; SUMS]) {
        if let Some(first) = self.ops.get(len) {
            self.bytes.truncate(first.key_start as usize);
            self.ops.truncate(len);
        }
        self.sums = sums;
    }

    /// Forgets the changes whose numbers are not to be kept.
    pub(crate) fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let mut end = 0;
        let mut number = 0;
        let bytes = &mut self.bytes;
        self.ops.retain_mut(|op| {
            let kept = keep(number);
            number += 1;
            if kept {
                let (start, len) = (op.key_start as usize, (op.key_len + op.value_len) as usize);
                bytes.copy_within(start..start + len, end);
                op.key_start = u32::try_from(end).expect("changes only move towards the front");
                end += len;
            }
            kept
        });
        self.bytes.truncate(end);
    }

    /// Number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether no key changes. Such a batch is not committed, so its sums are not either.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Bytes of keys and values together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets all changes and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ops.clear();
        self.sums = [0; SUMS];
    }
}
