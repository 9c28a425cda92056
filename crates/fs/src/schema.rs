//! The filesystem's records as the metadata engine sees them.

use warpfire_format::Corrupt;
use warpfire_format::fs::{self, FoldBase, FoldOutcome};
use warpfire_meta::{Base, Folded, PlaceError, Placer, Schema, SchemaError};
use warpfire_units::SlicePtr;

/// What `warpfire-format` says of keys and values, given to the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsSchema;

fn schema_error(e: Corrupt) -> SchemaError {
    SchemaError { code: e.code, reason: e.what.into() }
}

/// An error of `place` before it becomes the engine's.
struct Fault(PlaceError);

impl From<Corrupt> for Fault {
    fn from(e: Corrupt) -> Self {
        Fault(PlaceError::Schema(schema_error(e)))
    }
}

impl Schema for FsSchema {
    fn fold(
        &self,
        key: &[u8],
        base: Base<'_>,
        operands: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<Folded, SchemaError> {
        let base = match base {
            Base::Value(value) => FoldBase::Value(value),
            Base::Absent => FoldBase::Absent,
            Base::Unknown => FoldBase::Unknown,
        };
        match fs::fold(key, base, operands, out).map_err(schema_error)? {
            FoldOutcome::Value => Ok(Folded::Value),
            FoldOutcome::Deleted => Ok(Folded::Deleted),
            FoldOutcome::Operand => Ok(Folded::Operand),
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

    fn place(
        &self,
        key: &[u8],
        value: &[u8],
        is_operand: bool,
        placer: &mut dyn Placer,
        out: &mut Vec<u8>,
    ) -> Result<bool, PlaceError> {
        // Both closures need the placer; they are never called within each other.
        let placer = std::cell::RefCell::new(placer);
        let mut pack = |bytes: &[u8]| placer.borrow_mut().pack(bytes).map_err(|e| Fault(e.into()));
        let mut moved = |slice| placer.borrow_mut().moved(slice).map_err(|e| Fault(e.into()));
        fs::place(key, value, is_operand, &mut pack, &mut moved, out).map_err(|Fault(e)| e)
    }
}
