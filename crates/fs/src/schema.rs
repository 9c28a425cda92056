//! The schema of the filesystem's records: how the metadata engine folds values, finds their slices and moves
//! them.

use warpfire_format::Corrupt;
use warpfire_format::fs::{self, FoldBase, FoldOutcome, PackBytes};
use warpfire_meta::{
    DomainOrigin, DomainRecord, FoldResult, OlderValue, RelocateError, Relocator, RollbackRecord, Schema,
    SchemaError,
};
use warpfire_units::{Seq, SlicePtr};

/// The rules of `warpfire-format` for keys and values, in the form that the engine takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsSchema;

fn schema_error(e: Corrupt) -> SchemaError {
    SchemaError { code: e.code, reason: e.reason.into() }
}

/// The error type of `fs::relocate` here. It takes the decoder's errors and those of the relocator.
struct RelocateFailure(RelocateError);

impl From<Corrupt> for RelocateFailure {
    fn from(e: Corrupt) -> Self {
        RelocateFailure(RelocateError::Schema(schema_error(e)))
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

    /// The names of a directory are a group.
    fn group_key_bytes(&self) -> usize {
        fs::KEY_HEAD_BYTES
    }

    fn is_bundled(&self, key: &[u8]) -> bool {
        fs::is_of_kind(key, fs::KeyKind::Dentry) || fs::is_of_kind(key, fs::KeyKind::Inode)
    }

    fn relocate(
        &self,
        key: &[u8],
        value: &[u8],
        is_operand: bool,
        relocator: &mut dyn Relocator,
        out: &mut Vec<u8>,
    ) -> Result<bool, RelocateError> {
        // Both closures need the relocator. Neither runs inside the other, so no borrow fails.
        let relocator = std::cell::RefCell::new(relocator);
        let mut pack = |bytes: &[u8]| {
            assert!(!bytes.is_empty(), "an extent that is packed has bytes");
            relocator.borrow_mut().pack(bytes).map_err(|e| RelocateFailure(e.into()))
        };
        let mut moved =
            |slice| relocator.borrow_mut().move_slice(slice).map_err(|e| RelocateFailure(e.into()));
        let packs = relocator.borrow().packs();
        let pack: Option<PackBytes<'_, RelocateFailure>> = if packs { Some(&mut pack) } else { None };
        fs::relocate(key, value, is_operand, pack, &mut moved, out).map_err(|RelocateFailure(e)| e)
    }

    fn snapshot_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (start, end) = fs::snapshot_range();
        Some((start.to_vec(), end.to_vec()))
    }

    fn snapshot_seq(&self, key: &[u8]) -> Result<Option<Seq>, SchemaError> {
        match fs::Key::decode(key).map_err(schema_error)? {
            fs::Key::Snapshot(seq, _) => Ok(Some(seq)),
            _ => Ok(None),
        }
    }

    fn bookmark_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (start, end) = fs::bookmark_range(fs::VolumeId::FIRST);
        Some((start.to_vec(), end.to_vec()))
    }

    fn bookmark_seq(&self, key: &[u8], value: &[u8]) -> Result<Option<Seq>, SchemaError> {
        match fs::Key::decode(key).map_err(schema_error)? {
            fs::Key::Bookmark(..) => Ok(Some(fs::BookmarkRecord::decode(value).map_err(schema_error)?.seq)),
            _ => Ok(None),
        }
    }

    /// Of a region a stream needs no more than that it has changed: it sends the whole of it.
    fn faded(&self, key: &[u8]) -> Option<&'static [u8]> {
        fs::is_of_kind(key, fs::KeyKind::Region).then_some(fs::FADED_REGION)
    }

    fn fade(
        &self,
        key: &[u8],
        value: &[u8],
        is_operand: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool, SchemaError> {
        fs::fade(key, value, is_operand, out).map_err(schema_error)
    }

    fn domain_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (start, end) = fs::volume_range();
        Some((start.to_vec(), end.to_vec()))
    }

    fn domain(&self, key: &[u8], value: &[u8]) -> Result<Option<DomainRecord>, SchemaError> {
        let fs::Key::Volume(volume) = fs::Key::decode(key).map_err(schema_error)? else { return Ok(None) };
        let record = fs::DoorVolume::decode(value).map_err(schema_error)?;
        let domain = |volume: fs::VolumeId| volume.0.to_be_bytes();
        let origin = record.origin.map(|origin| DomainOrigin {
            domain: domain(origin.volume),
            seq: origin.seq,
            released_at: origin.released_at,
        });
        Ok(Some(DomainRecord { domain: domain(volume), origin, removed_at: record.removed_at }))
    }

    fn rollback_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (start, end) = fs::rollback_range();
        Some((start.to_vec(), end.to_vec()))
    }

    fn rollback(&self, key: &[u8], value: &[u8]) -> Result<Option<RollbackRecord>, SchemaError> {
        let fs::Key::Rollback(at, volume) = fs::Key::decode(key).map_err(schema_error)? else {
            return Ok(None);
        };
        let record = fs::RolledBack::decode(at, value).map_err(schema_error)?;
        let domain = volume.0.to_be_bytes();
        Ok(Some(RollbackRecord { domain, to: record.to, at, ended_at: record.ended_at }))
    }

    /// Files and sums go back. Names of snapshots, rules and bookmarks stay.
    fn goes_back(&self, key: &[u8]) -> bool {
        let of_tree = fs::KeyKind::Counter as u8..=fs::KeyKind::Region as u8;
        key.get(4).is_some_and(|kind| of_tree.contains(kind))
    }

    /// Sums and files without a name belong to one volume: a clone has sums of its own, and nobody holds a
    /// file without a name there.
    fn reads_on(&self, key: &[u8]) -> bool {
        let own = [fs::KeyKind::Pool, fs::KeyKind::Counter, fs::KeyKind::Orphan];
        key.get(4).is_some_and(|kind| own.iter().all(|of| *of as u8 != *kind))
    }
}
