//! The resolver: collects the versions of one key from the newest to the oldest, and folds them to a value.

use smallvec::SmallVec;
use warpfire_format::Corrupt;
use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_units::Seq;

use crate::domain::HiddenSeqs;
use crate::schema::{FoldResult, OlderValue, Schema};
use crate::store::MetaError;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ResolvedBase {
    Nothing,
    Value,
    Deleted,
}

const FOLDED_TO_OPERAND: Corrupt = Corrupt::new(330, "a known base folded to an operand");

/// What the versions of one domain say about a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyPart {
    /// No version is visible.
    Nothing,
    /// The value, whatever is below.
    Value,
    /// No value, whatever is below.
    Deleted,
    /// One operand for the value below.
    Operand,
}

impl KeyPart {
    /// The byte before the value in a page of parts.
    pub(super) fn tag(self) -> u8 {
        self as u8
    }

    pub(super) fn of_tag(tag: u8) -> KeyPart {
        let parts = [KeyPart::Nothing, KeyPart::Value, KeyPart::Deleted, KeyPart::Operand];
        parts.into_iter().find(|part| part.tag() == tag).expect("a tag is that of a part")
    }
}

/// What the runs of the past have for a reader of a key.
#[derive(Clone, Copy, Default)]
pub(super) struct FoundInPast {
    delete: bool,
    /// A put or an operand.
    version: bool,
}

/// Collects a key's versions until its value is settled.
pub(super) struct Resolver {
    at: Seq,
    /// What the reader does not see of the seqs up to its own.
    hidden: HiddenSeqs,
    base: ResolvedBase,
    /// Operands one after the other, newest first, then the base's value if there are operands.
    bytes: Vec<u8>,
    ends: SmallVec<[usize; 8]>,
}

impl Resolver {
    pub(super) fn new(at: Seq, hidden: HiddenSeqs) -> Self {
        Resolver { at, hidden, base: ResolvedBase::Nothing, bytes: Vec::new(), ends: SmallVec::new() }
    }

    /// From now on takes the versions of an origin: those that a reader of it at this seq sees.
    pub(super) fn read_on_at(&mut self, seq: Seq, hidden: HiddenSeqs) {
        debug_assert_eq!(self.base, ResolvedBase::Nothing, "a settled value takes no older version");
        debug_assert!(seq <= self.at, "an origin is older than what reads on in it");
        (self.at, self.hidden) = (seq, hidden);
    }

    /// Starts over with another key, of which this is hidden.
    pub(super) fn restart(&mut self, hidden: &HiddenSeqs) {
        if !(hidden.is_empty() && self.hidden.is_empty()) {
            self.hidden.clone_from(hidden);
        }
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
            // Too new for this reader, or hidden by a rollback.
            if entry.seq > self.at || self.hidden.has(entry.seq) {
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

    /// Takes the versions that a run of the past has of the key in a range of seqs that the reader sees
    /// (`HiddenSeqs::seen_ranges`). `true`: the value is settled. A delete that is the first of them says
    /// only that this run has nothing for the reader.
    pub(super) fn offer_past<'e>(
        &mut self,
        versions: impl Iterator<Item = KeyVersion<'e>>,
        (after, upto): (Option<Seq>, Seq),
        found: &mut FoundInPast,
        out: &mut Vec<u8>,
    ) -> bool {
        debug_assert!(upto <= self.at, "the reader sees no later seq");
        let seen = versions.skip_while(|entry| entry.seq > upto);
        let mut seen = seen.take_while(|entry| after.is_none_or(|after| entry.seq > after)).peekable();
        if seen.peek().is_some_and(|entry| entry.kind == VersionKind::Delete) {
            found.delete = true;
            return false;
        }
        found.version |= seen.peek().is_some();
        self.offer_all(seen, out)
    }

    /// After all runs of the past: `true` if they have a delete for the key and nothing else, which settles
    /// it.
    pub(super) fn end_past(&mut self, found: FoundInPast) -> bool {
        let is_deleted = found.delete && !found.version;
        if is_deleted {
            debug_assert_eq!(self.base, ResolvedBase::Nothing, "a settled value takes no older version");
            self.base = ResolvedBase::Deleted;
        }
        is_deleted
    }

    /// The seq of the reader.
    pub(super) fn at(&self) -> Seq {
        self.at
    }

    /// The ranges of seqs that the reader sees, from the newest to the oldest.
    pub(super) fn seen_ranges(&self) -> SmallVec<[(Option<Seq>, Seq); 2]> {
        self.hidden.seen_ranges(self.at).collect()
    }

    /// What the versions of a domain say about a key, in `out`, whatever its origin has.
    pub(super) fn finish_part<S: Schema>(
        &self,
        schema: &S,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<KeyPart, MetaError> {
        if self.base != ResolvedBase::Nothing {
            return Ok(if self.finish(schema, key, out)? { KeyPart::Value } else { KeyPart::Deleted });
        }
        let operands = self.operands();
        match operands.as_slice() {
            [] => Ok(KeyPart::Nothing),
            [only] => {
                out.clear();
                out.extend_from_slice(only);
                Ok(KeyPart::Operand)
            }
            operands => match schema.fold(key, OlderValue::Unknown, operands, out)? {
                FoldResult::Operand => Ok(KeyPart::Operand),
                FoldResult::Value => Ok(KeyPart::Value),
                FoldResult::Deleted => Ok(KeyPart::Deleted),
            },
        }
    }

    /// The operands, oldest first.
    fn operands(&self) -> SmallVec<[&[u8]; 8]> {
        // Operands were collected newest first; the schema folds oldest first.
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let mut operands: SmallVec<[&[u8]; 8]> =
            starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]).collect();
        operands.reverse();
        operands
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
        let operands = self.operands();
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
