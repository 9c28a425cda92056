//! The resolver: collects the versions of one key from the newest to the oldest, and folds them to a value.

use smallvec::SmallVec;
use warpfire_format::Corrupt;
use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_units::Seq;

use crate::schema::{FoldResult, OlderValue, Schema};
use crate::store::MetaError;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ResolvedBase {
    Nothing,
    Value,
    Deleted,
}

const FOLDED_TO_OPERAND: Corrupt = Corrupt::new(330, "a known base folded to an operand");

/// Collects a key's versions until its value is settled.
pub(super) struct Resolver {
    at: Seq,
    base: ResolvedBase,
    /// Operands one after the other, newest first, then the base's value if there are operands.
    bytes: Vec<u8>,
    ends: SmallVec<[usize; 8]>,
}

impl Resolver {
    pub(super) fn new(at: Seq) -> Self {
        Resolver { at, base: ResolvedBase::Nothing, bytes: Vec::new(), ends: SmallVec::new() }
    }

    /// Starts over with another key.
    pub(super) fn restart(&mut self) {
        self.base = ResolvedBase::Nothing;
        self.bytes.clear();
        self.ends.clear();
    }

    /// Takes the next older versions. `true`: the value is settled, and older versions do not matter. A value
    /// without operands is copied to `out` at once.
    #[inline]
    pub(super) fn offer_all<'e>(
        &mut self,
        versions: impl Iterator<Item = KeyVersion<'e>>,
        out: &mut Vec<u8>,
    ) -> bool {
        debug_assert_eq!(self.base, ResolvedBase::Nothing, "a settled value takes no older version");
        for entry in versions {
            // Too new for this reader.
            if entry.seq > self.at {
                continue;
            }
            match entry.kind {
                VersionKind::Merge => {
                    self.bytes.extend_from_slice(entry.value);
                    self.ends.push(self.bytes.len());
                }
                VersionKind::Delete => {
                    self.base = ResolvedBase::Deleted;
                    return true;
                }
                VersionKind::Put => {
                    self.base = ResolvedBase::Value;
                    if self.ends.is_empty() {
                        out.clear();
                        out.extend_from_slice(entry.value);
                    } else {
                        self.bytes.extend_from_slice(entry.value);
                    }
                    return true;
                }
            }
        }
        false
    }

    /// The value, in `out`; `false` if there is none.
    pub(super) fn finish<S: Schema>(
        &self,
        schema: &S,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, MetaError> {
        let Some(&operands_end) = self.ends.last() else {
            if self.base != ResolvedBase::Value {
                out.clear();
            }
            return Ok(self.base == ResolvedBase::Value);
        };
        // Operands were collected newest first; the schema folds oldest first.
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let mut operands: SmallVec<[&[u8]; 8]> =
            starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]).collect();
        operands.reverse();
        let base = match self.base {
            ResolvedBase::Value => OlderValue::Value(&self.bytes[operands_end..]),
            ResolvedBase::Deleted | ResolvedBase::Nothing => OlderValue::Absent,
        };
        match schema.fold(key, base, &operands, out)? {
            FoldResult::Value => Ok(true),
            FoldResult::Deleted => {
                out.clear();
                Ok(false)
            }
            FoldResult::Operand => Err(FOLDED_TO_OPERAND.into()),
        }
    }
}
