//! The seam `Schema`: the knowledge of values that the engine needs. It folds operands and finds slice
//! pointers.

use warpfire_log::LogError;
use warpfire_slices::Slices;
use warpfire_units::{Seq, SlicePtr};

use crate::domain::{DomainRecord, RollbackRecord};

/// The older state that operands fold onto.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OlderValue<'a> {
    /// The key's older value.
    Value(&'a [u8]),
    /// The key is known to have no older value.
    Absent,
    /// There may be an older value further down, so the result must again be an operand.
    Unknown,
}

/// The kind of a fold's result, which is in the caller's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoldResult {
    /// The buffer holds a value (for `OlderValue::Value` and `OlderValue::Absent`).
    Value,
    /// The key has no value.
    Deleted,
    /// The buffer holds one operand with the effect of all of them (for `OlderValue::Unknown`).
    Operand,
}

/// A value or operand that does not decode.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("value does not decode ({code}): {reason}")]
pub struct SchemaError {
    /// Permanent number of this kind of corruption, see docs/FORMAT.md "Corruption codes".
    pub code: u16,
    /// The finding.
    pub reason: String,
}

/// Moves the bytes of values when a table is written, or names them anew when held bytes have moved.
pub trait Relocator {
    /// Whether inline bytes of values are to be packed.
    fn packs(&self) -> bool;

    /// Packs inline bytes of a value into the small stream. From now on the value names them by pointer.
    fn pack(&mut self, bytes: &[u8]) -> Result<SlicePtr, LogError>;

    /// The new place of a slice; `None` if the slice stays. For a segment that is being cleaned the call
    /// copies the bytes, once for each distinct slice. The place may be several slices, which hold the bytes
    /// in order.
    fn move_slice(&mut self, slice: SlicePtr) -> Result<Option<Slices>, LogError>;
}

/// The meaning of values, defined by the crate that owns the keys. Pure: same arguments, same result.
pub trait Schema: Send + Sync + 'static {
    /// Folds operands, oldest first, onto a base, into `out` (cleared by the callee).
    fn fold(
        &self,
        key: &[u8],
        base: OlderValue<'_>,
        operands: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<FoldResult, SchemaError>;

    /// Calls `visit` for each slice pointer in a value or operand.
    fn pointers(
        &self,
        key: &[u8],
        value: &[u8],
        is_operand: bool,
        visit: &mut dyn FnMut(SlicePtr),
    ) -> Result<(), SchemaError>;

    /// Whether a record with this key is read together with its bytes. Its bytes are then packed behind a
    /// copy of the record, as a bundle, and `Store::get_with_bytes` reads both at once. The bytes of such a
    /// value are at its end.
    fn is_bundled(&self, _key: &[u8]) -> bool {
        false
    }

    /// Rewrites a value or operand: bytes inside it may be packed (`Relocator::packs`), slices may move. Each
    /// slice that it names is offered to `Relocator::move_slice` once, and afterwards it names what the
    /// relocator returned and nothing else. `Ok(false)` means unchanged, with `out` untouched.
    fn relocate(
        &self,
        key: &[u8],
        value: &[u8],
        is_operand: bool,
        relocator: &mut dyn Relocator,
        out: &mut Vec<u8>,
    ) -> Result<bool, RelocateError>;

    /// The range of keys of persistent snapshots: first key, first key past them. `None`: there are none.
    fn snapshot_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        None
    }

    /// The seq that the record of this key keeps readable; `None` for a key outside of `snapshot_range`.
    fn snapshot_seq(&self, _key: &[u8]) -> Result<Option<Seq>, SchemaError> {
        Ok(None)
    }

    /// The range of keys of bookmarks: first key, first key past them. `None`: there are none.
    fn bookmark_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        None
    }

    /// The seq that this record keeps as a bookmark; `None` for a key outside of `bookmark_range`.
    fn bookmark_seq(&self, _key: &[u8], _value: &[u8]) -> Result<Option<Seq>, SchemaError> {
        Ok(None)
    }

    /// The value that stands for any value of this key that only bookmarks show, if such a value says no more
    /// than that there was one. It names no slice.
    fn faded(&self, _key: &[u8]) -> Option<&'static [u8]> {
        None
    }

    /// Writes the rest of a value or operand that only bookmarks show into `out`: it names no slice. Such an
    /// operand folds onto such a value. `Ok(false)` means unchanged.
    fn fade(
        &self,
        _key: &[u8],
        _value: &[u8],
        _is_operand: bool,
        _out: &mut Vec<u8>,
    ) -> Result<bool, SchemaError> {
        Ok(false)
    }

    /// The range of keys of the records of domains: first key, first key past them. `None`: there are none.
    fn domain_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        None
    }

    /// The domain that a record describes; `None` for a key outside of `domain_range`.
    fn domain(&self, _key: &[u8], _value: &[u8]) -> Result<Option<DomainRecord>, SchemaError> {
        Ok(None)
    }

    /// The range of keys of the records of rollbacks: first key, first key past them. `None`: there are none.
    fn rollback_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        None
    }

    /// The rollback that a record describes; `None` for a key outside of `rollback_range`.
    fn rollback(&self, _key: &[u8], _value: &[u8]) -> Result<Option<RollbackRecord>, SchemaError> {
        Ok(None)
    }

    /// Whether a rollback of its domain hides versions of this key.
    fn goes_back(&self, _key: &[u8]) -> bool {
        true
    }

    /// Keys that share so many first bytes are a *group*, in which keys are often inserted in order: the
    /// names of a directory. 0: all keys are one group.
    fn group_key_bytes(&self) -> usize {
        0
    }

    /// Whether a read of this key goes on in the origin of its domain.
    fn reads_on(&self, _key: &[u8]) -> bool {
        true
    }
}

/// The reason why a value could not be relocated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RelocateError {
    /// The value does not decode.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The log refused.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// The simplest schema, for benchmarks and tests: values are bytes that hold no pointer, operands are
/// appended.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainSchema;

impl Schema for PlainSchema {
    fn fold(
        &self,
        _key: &[u8],
        base: OlderValue<'_>,
        operands: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<FoldResult, SchemaError> {
        out.clear();
        if let OlderValue::Value(value) = base {
            out.extend_from_slice(value);
        }
        operands.iter().for_each(|operand| out.extend_from_slice(operand));
        Ok(if base == OlderValue::Unknown { FoldResult::Operand } else { FoldResult::Value })
    }

    fn pointers(
        &self,
        _key: &[u8],
        _value: &[u8],
        _is_operand: bool,
        _visit: &mut dyn FnMut(SlicePtr),
    ) -> Result<(), SchemaError> {
        Ok(())
    }

    fn relocate(
        &self,
        _key: &[u8],
        _value: &[u8],
        _is_operand: bool,
        _placer: &mut dyn Relocator,
        _out: &mut Vec<u8>,
    ) -> Result<bool, RelocateError> {
        Ok(false)
    }
}
