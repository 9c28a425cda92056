//! The filesystem's records as the metadata engine sees them.

use warpfire_format::Corrupt;
use warpfire_format::fs::{self, FoldBase, FoldOutcome};
use warpfire_meta::{FoldResult, OlderValue, RelocateError, Relocator, Schema, SchemaError};
use warpfire_units::SlicePtr;

/// What `warpfire-format` says of keys and values, given to the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsSchema;

fn schema_error(e: Corrupt) -> SchemaError {
    SchemaError { code: e.code, reason: e.reason.into() }
}

/// An error of `place` before it becomes the engine's.
struct PlaceFault(RelocateError);

impl From<Corrupt> for PlaceFault {
    fn from(e: Corrupt) -> Self {
        PlaceFault(RelocateError::Schema(schema_error(e)))
    }
}

impl Schema for FsSchema {
    fn fold(
        &self,
        key: &[u8],
        base: OlderValue<'_>,
        operands: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<FoldResult, SchemaError> {
        let base = match base {
            OlderValue::Value(value) => FoldBase::Value(value),
            OlderValue::Absent => FoldBase::Absent,
            OlderValue::Unknown => FoldBase::Unknown,
        };
        match fs::fold(key, base, operands, out).map_err(schema_error)? {
            FoldOutcome::Value => Ok(FoldResult::Value),
            FoldOutcome::Deleted => Ok(FoldResult::Deleted),
            FoldOutcome::Operand => Ok(FoldResult::Operand),
        }
    }

    fn pointers(
        &self,
        key: &[u8],
        value: &[u8],
        is_operand: bool,
        visit: &mut dyn FnMut(SlicePtr),
    ) -> Result<(), SchemaError> {
        fs::pointers(key, value, is_operand, visit).map_err(schema_error)
    }

    fn relocate(
        &self,
        key: &[u8],
        value: &[u8],
        is_operand: bool,
        relocator: &mut dyn Relocator,
        out: &mut Vec<u8>,
    ) -> Result<bool, RelocateError> {
        // Both closures need the placer; they are never called within each other.
        let relocator = std::cell::RefCell::new(relocator);
        let mut pack = |bytes: &[u8]| relocator.borrow_mut().pack(bytes).map_err(|e| PlaceFault(e.into()));
        let mut moved = |slice| relocator.borrow_mut().move_slice(slice).map_err(|e| PlaceFault(e.into()));
        fs::relocate(key, value, is_operand, &mut pack, &mut moved, out).map_err(|PlaceFault(e)| e)
    }
}
