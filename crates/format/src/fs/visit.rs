//! Slice pointers in values: listing them, and rewriting a value when its bytes move.

use crate::Corrupt;
use smallvec::SmallVec;
use warpfire_units::SlicePtr;

use super::extent::{Extent, ExtentMap, ExtentReader, ExtentSource, SMALL_FILE_BYTES_MAX, region_extents};
use super::inode::{Dentry, Inode, InodeContent};
use super::{InodeEdit, Key};

/// Longest run of bytes that is never packed into a slice. A pointer in its place would save nothing.
pub const INLINE_FOREVER_BYTES_MAX: usize = 64;

/// Most bytes packed as one slice. The log stores a run of this length as one slice.
const PACK_BYTES_MAX: usize = 64 << 10;

/// A reader of the extents of a value or operand, which are its last bytes. `None` if it has none.
///
/// # Errors
/// Codes 400 to 416, if key or value does not decode.
pub fn extents<'a>(
    key: &[u8],
    value: &'a [u8],
    is_operand: bool,
) -> Result<Option<ExtentReader<'a>>, Corrupt> {
    let of_inode = |inode: Inode<'a>| match inode.content {
        InodeContent::Small(extents) => Some(extents),
        _ => None,
    };
    match Key::decode(key)? {
        Key::Region(..) => region_extents(value, is_operand).map(Some),
        Key::Inode(..) | Key::Orphan(..) | Key::Dentry(..) if is_operand => {
            InodeEdit::decode_head(value).map(|(_, extents)| extents)
        }
        Key::Inode(..) | Key::Orphan(..) => Inode::decode(value).map(of_inode),
        Key::Dentry(..) => Ok(match Dentry::decode(value)? {
            Dentry::Embedded(inode) => of_inode(inode),
            Dentry::Reference(..) => None,
        }),
        Key::Pool(_)
        | Key::Counter(..)
        | Key::Xattr(..)
        | Key::Snapshot(..)
        | Key::SnapshotName(..)
        | Key::SnapshotRule(..)
        | Key::Bookmark(..)
        | Key::Rollback(..)
        | Key::Volume(_) => Ok(None),
    }
}

/// Calls `visit` for each slice that a value or operand names.
///
/// # Errors
/// Codes 400 to 416, if key or value does not decode. `visit` may have been called before the error is found.
pub fn pointers(
    key: &[u8],
    value: &[u8],
    is_operand: bool,
    visit: &mut dyn FnMut(SlicePtr),
) -> Result<(), Corrupt> {
    for extent in extents(key, value, is_operand)?.into_iter().flatten() {
        if let Some(slice) = extent?.pointer() {
            visit(slice);
        }
    }
    Ok(())
}

/// Stores bytes and returns their slice.
pub type PackBytes<'a, E> = &'a mut dyn FnMut(&[u8]) -> Result<SlicePtr, E>;

/// The slices that replace a slice, in order. Their lengths add up to its own.
pub type MovedSlices = SmallVec<[SlicePtr; 1]>;

/// Rewrites a value or operand into `out`. `pack`, if there is one, stores each run of more than
/// [`INLINE_FOREVER_BYTES_MAX`] bytes and returns its slice. `moved` returns the new slices of a slice, or
/// `None` if it stays. Returns
/// `false`, and leaves `out` unchanged, if nothing changed.
///
/// # Errors
/// Codes 400 to 416, if key or value does not decode, or the error of a callback.
pub fn relocate<E: From<Corrupt>>(
    key: &[u8],
    value: &[u8],
    is_operand: bool,
    mut pack: Option<PackBytes<'_, E>>,
    moved: &mut dyn FnMut(SlicePtr) -> Result<Option<MovedSlices>, E>,
    out: &mut Vec<u8>,
) -> Result<bool, E> {
    let Some(extents) = extents(key, value, is_operand)? else { return Ok(false) };
    // Only the extents change. The bytes before them are copied as they are.
    let head_len = value.len() - extents.raw().len();
    let mut changed = false;
    let mut map = ExtentMap::new();
    for extent in extents {
        let extent = extent?;
        match (extent.source, &mut pack) {
            (ExtentSource::Bytes(bytes), Some(pack)) if bytes.len() > INLINE_FOREVER_BYTES_MAX => {
                changed = true;
                let mut at = extent.offset;
                for piece in bytes.chunks(PACK_BYTES_MAX) {
                    let slice = pack(piece)?;
                    assert_eq!(slice.len_bytes as usize, piece.len(), "the slice holds the whole run");
                    map.overlay(Extent::slice(at, slice));
                    at += slice.len_bytes;
                }
            }
            (ExtentSource::Slice(..), _) => {
                let slice = extent.pointer().expect("a slice has a pointer");
                let to = moved(slice)?;
                changed |= to.is_some();
                let mut at = extent.offset;
                for part in to.unwrap_or_else(|| SmallVec::from_buf([slice])) {
                    map.overlay(Extent::slice(at, part));
                    at += part.len_bytes;
                }
                assert_eq!(at, extent.end(), "a slice keeps its length when it moves");
            }
            (ExtentSource::Bytes(_) | ExtentSource::Hole | ExtentSource::Reserved, _) => map.overlay(extent),
        }
    }
    if changed {
        out.clear();
        out.extend_from_slice(value.get(..head_len).expect("extents are the end of the value"));
        map.encode(out);
    }
    Ok(changed)
}

const _: () = assert!(PACK_BYTES_MAX >= SMALL_FILE_BYTES_MAX as usize, "a small file is packed whole");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{VolumeId, decode_region, encode_region, region_key};
    use proptest::prelude::*;
    use warpfire_units::SegmentId;

    #[test]
    fn long_runs_are_packed_and_short_ones_stay() {
        let key = region_key(VolumeId::FIRST, 5, 0);
        let (long, short) = ([1; 65], [2; 64]);
        let old = SlicePtr { segment: SegmentId::FIRST, offset_bytes: 9, len_bytes: 7 };
        let map = [Extent::bytes(0, &long), Extent::bytes(100, &short), Extent::slice(200, old)]
            .into_iter()
            .collect();
        let mut value = Vec::new();
        encode_region(&mut value, &map, false);
        let mut out = Vec::new();
        let mut packed = Vec::new();
        let to = SegmentId::FIRST.next();
        let mut pack = |b: &[u8]| {
            packed.push(b.to_vec());
            Ok::<_, Corrupt>(SlicePtr { segment: to, offset_bytes: 0, len_bytes: b.len() as u32 })
        };
        let mut stay = |_| Ok(None);
        assert!(!relocate::<Corrupt>(&key, &value, false, None, &mut stay, &mut out).unwrap());
        assert!(relocate(&key, &value, false, Some(&mut pack), &mut stay, &mut out).unwrap());
        assert_eq!(packed, [long.to_vec()]);
        let mut seen = Vec::new();
        pointers(&key, &out, false, &mut |p| seen.push(p)).unwrap();
        assert_eq!(seen, [SlicePtr { segment: to, offset_bytes: 0, len_bytes: 65 }, old]);
        let encoded_again = out.clone();
        let mut none = |_: &[u8]| -> Result<SlicePtr, Corrupt> { panic!("nothing left to pack") };
        assert!(!relocate(&key, &encoded_again, false, Some(&mut none), &mut stay, &mut out).unwrap());
        assert_eq!(decode_region(&out, false).unwrap().len(), 3);
    }

    proptest! {
        #[test]
        fn any_bytes_are_visited_or_refused(kind in 0u8..9, value: Vec<u8>, tag in 0u8..4, is_operand: bool) {
            let mut key = vec![0, 0, 0, 1, kind, 0, 0, 0, 0, 0, 0, 0, 1];
            key.extend_from_slice(if kind == 7 { &[0; 8] } else if kind > 4 { b"n" } else { b"" });
            let mut tagged = vec![tag];
            tagged.extend_from_slice(&value);
            let _ = pointers(&key, &tagged, is_operand, &mut |_| ());
        }
    }
}
