//! Fading: what stays of a version that only a bookmark shows. Names, attributes and sizes stay; the bytes of
//! files go.
//!
//! A faded inode has no extents, whatever its size says. A faded region says only that the file had bytes or
//! a change there.

use super::extent::{Extent, ExtentMap, SMALL_FILE_BYTES_MAX};
use super::visit::extents;
use crate::Corrupt;

/// The value of a faded region: a region without extents.
pub const FADED_REGION: &[u8] = &[1];

/// Writes a value or operand that is no region's into `out`, without the bytes that it has or names. Returns
/// `false`, and leaves `out` unchanged, if it has none.
///
/// # Errors
/// Codes 400 to 416, if key or value does not decode.
pub fn fade(key: &[u8], value: &[u8], is_operand: bool, out: &mut Vec<u8>) -> Result<bool, Corrupt> {
    let Some(extents) = extents(key, value, is_operand)?.filter(|extents| !extents.raw().is_empty()) else {
        return Ok(false);
    };
    let head_len = value.len() - extents.raw().len();
    out.clear();
    out.extend_from_slice(value.get(..head_len).expect("extents are the end of the value"));
    if is_operand {
        // In place of what it wrote: the inode that it folds onto loses its bytes too. An operand with
        // extents folds onto a small file only.
        let all: ExtentMap<'_> = std::iter::once(Extent::hole(0, SMALL_FILE_BYTES_MAX)).collect();
        all.encode(out);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{
        Attrs, Dentry, ExtentReader, FileKind, FoldBase, FoldOutcome, Inode, InodeContent, InodeEdit,
        InodeTime, VolumeId, decode_region, dentry_key, fold, pointers, region_key,
    };
    use warpfire_units::{SegmentId, SlicePtr};

    fn inode(extents: &ExtentMap<'_>) -> Vec<u8> {
        let time = InodeTime { seconds: 5, nanos: 6 };
        let attrs = Attrs {
            kind: FileKind::Regular,
            permissions: 0o640,
            uid: 1,
            gid: 2,
            links: 1,
            size_bytes: 700,
            allocated_bytes: 600,
            reserved_bytes: 0,
            rdev: 0,
            btime: time,
            mtime: time,
            ctime: time,
            atime: time,
            flags: 0,
        };
        let mut value = Vec::new();
        let content = InodeContent::Small(ExtentReader::new(&[], 0, false));
        Inode { ino: 5, attrs, content }.encode_head(&mut value);
        extents.encode(&mut value);
        value
    }

    fn slice() -> Extent<'static> {
        let pointer = SlicePtr { segment: SegmentId::FIRST, offset_bytes: 9, len_bytes: 500 };
        Extent::slice(0, pointer)
    }

    #[test]
    fn an_inode_keeps_all_but_its_bytes() {
        let key = dentry_key(VolumeId::FIRST, 1, b"a");
        let value = inode(&[slice(), Extent::bytes(500, &[7; 100])].into_iter().collect());
        let mut faded = Vec::new();
        assert!(fade(&key, &value, false, &mut faded).unwrap());
        pointers(&key, &faded, false, &mut |slice| panic!("it names {slice:?}")).unwrap();
        let attrs = |bytes| match Dentry::decode(bytes).unwrap() {
            Dentry::Embedded(inode) => (inode.ino, inode.attrs),
            Dentry::Reference(..) => panic!("it is embedded"),
        };
        assert_eq!(attrs(&faded), attrs(&value));
        assert!(!fade(&key, &faded.clone(), false, &mut faded).unwrap(), "nothing is left to fade");
    }

    #[test]
    fn an_operand_fades_what_it_folds_onto() {
        let key = dentry_key(VolumeId::FIRST, 1, b"a");
        let value = inode(&std::iter::once(slice()).collect());
        let mut operand = Vec::new();
        let extents = std::iter::once(Extent::bytes(10, b"new")).collect();
        InodeEdit { size: Some((400, 400)), extents, ..InodeEdit::default() }.encode(&mut operand);
        let (mut faded, mut folded) = (Vec::new(), Vec::new());
        assert!(fade(&key, &operand, true, &mut faded).unwrap());
        let outcome = fold(&key, FoldBase::Value(&value), &[&faded], &mut folded);
        assert_eq!(outcome, Ok(FoldOutcome::Value));
        let Dentry::Embedded(inode) = Dentry::decode(&folded).unwrap() else { panic!("it is embedded") };
        let InodeContent::Small(extents) = inode.content else { panic!("it is small") };
        assert_eq!((inode.attrs.size_bytes, extents.raw()), (400, &b""[..]));
    }

    #[test]
    fn a_faded_region_is_a_region_without_extents() {
        assert!(decode_region(FADED_REGION, false).unwrap().is_empty());
        let key = region_key(VolumeId::FIRST, 5, 0);
        pointers(&key, FADED_REGION, false, &mut |slice| panic!("it names {slice:?}")).unwrap();
    }
}
