//! Changes in order, and by key.
//!
//! # Invariants
//! 1. `index` has, for each key that `log` changes and for no other, the numbers of its changes, rising.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::ops::Bound;

use smallvec::SmallVec;
use warpfire_log::LogError;

use crate::batch::{Batch, BatchOp, SUMS};
use crate::schema::{Base, Folded, Schema};
use crate::store::MetaError;

/// Most bytes of keys and values that one transaction changes: a batch counts them in 32 bits, and folding adds none.
const OVERLAY_BYTES_MAX: usize = 3 << 30;

type Changed = SmallVec<[u32; 2]>;

#[derive(Default)]
pub(super) struct Overlay {
    log: Batch,
    index: BTreeMap<Box<[u8]>, Changed>,
}

/// What the overlay knows of a key.
pub(super) enum Found {
    /// It has not been changed.
    Nothing,
    /// What is below does not matter.
    Floor,
    /// Operands for what is below.
    Operands,
}

impl Overlay {
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

    /// Adds a batch, all of it or nothing.
    pub(super) fn append(&mut self, batch: &Batch) -> Result<(), MetaError> {
        if self.log.bytes() + batch.bytes() > OVERLAY_BYTES_MAX {
            return Err(MetaError::Log(LogError::NoSpace));
        }
        for op in batch.iter() {
            let number = u32::try_from(self.log.len()).expect("fewer changes than bytes");
            match self.index.get_mut(op.key()) {
                Some(changed) => changed.push(number),
                None => _ = self.index.insert(op.key().into(), Changed::from_slice(&[number])),
            }
            self.log.push_op(op);
        }
        for (sum, added) in batch.sums().iter().enumerate() {
            self.log.add(sum, *added);
        }
        Ok(())
    }

    /// Forgets the changes from number `len` on; `sums` are those of then.
    pub(super) fn truncate(&mut self, len: usize, sums: [i64; SUMS]) {
        for number in (len..self.log.len()).rev() {
            let key = self.log.op(number).key();
            let changed = self.index.get_mut(key).expect("every change is in the index");
            changed.pop();
            if changed.is_empty() {
                self.index.remove(key);
            }
        }
        self.log.truncate(len, sums);
    }

    pub(super) fn find(&self, key: &[u8]) -> Found {
        match self.index.get(key) {
            None => Found::Nothing,
            Some(changed) if self.floor(changed).is_some() => Found::Floor,
            Some(_) => Found::Operands,
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
        below: Option<Base<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<bool, MetaError> {
        let changed = self.index.get(key).expect("asked for a key that has changed");
        Ok(self.fold_changed(schema, key, changed, below.unwrap_or(Base::Absent), out)? == Folded::Value)
    }

    fn fold_changed<S: Schema>(
        &self,
        schema: &S,
        key: &[u8],
        changed: &[u32],
        below: Base<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Folded, MetaError> {
        let floor = self.floor(changed);
        let base = match floor.map(|at| self.log.op(changed[at] as usize)) {
            Some(BatchOp::Put(_, value)) => Base::Value(value),
            Some(_) => Base::Absent,
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
                Base::Value(value) => {
                    out.extend_from_slice(value);
                    Folded::Value
                }
                Base::Absent | Base::Unknown => Folded::Deleted,
            });
        }
        Ok(schema.fold(key, base, &operands, out)?)
    }

    /// Adds each key's changes to the batch as one.
    pub(super) fn fold_into<S: Schema>(&self, schema: &S, batch: &mut Batch) -> Result<(), MetaError> {
        let mut out = Vec::new();
        for (key, changed) in &self.index {
            match *changed.as_slice() {
                [only] => batch.push_op(self.log.op(only as usize)),
                _ => match self.fold_changed(schema, key, changed, Base::Unknown, &mut out)? {
                    Folded::Value => batch.put(key, &out),
                    Folded::Deleted => batch.delete(key),
                    Folded::Operand => batch.merge(key, &out),
                },
            }
        }
        for (sum, added) in self.sums().iter().enumerate() {
            batch.add(sum, *added);
        }
        Ok(())
    }

    /// Keys that have changed, from `start` on and below `end`.
    pub(super) fn keys(&self, start: &[u8], end: Option<&[u8]>) -> Range<'_, Box<[u8]>, Changed> {
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        self.index.range::<[u8], _>((Bound::Included(start), end))
    }
}
