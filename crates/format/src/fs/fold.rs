//! Folding: the meaning of operands. A key's value is its newest base with the operands after it applied in
//! order.

use super::extent::{ExtentMap, SMALL_FILE_BYTES_MAX, decode_region, encode_region};
use super::inode::{Inode, InodeContent};
use super::{BAD_CONTENT, InodeEdit, Key, NO_OPERANDS, decode_counter, encode_counter};
use crate::Corrupt;

/// The base that operands are folded onto.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoldBase<'a> {
    /// The key's older value.
    Value(&'a [u8]),
    /// The key has no older value.
    Absent,
    /// The older value is not known. The outcome is one operand.
    Unknown,
}

/// What [`fold`] wrote to its buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoldOutcome {
    /// A value.
    Value,
    /// Nothing: the key has no value.
    Deleted,
    /// One operand with the effect of all operands.
    Operand,
}

/// Folds `operands`, oldest first, onto `base`. Clears `out` and writes the result to it.
///
/// Folding is associative: operands folded onto `Unknown`, and that result folded onto a base, give the same
/// as the operands folded onto the base. Compaction relies on it.
///
/// # Errors
/// The error of a key, base or operand that does not decode; code 413 for operands of a key that takes none;
/// code 414 for an operand that does not fit the file type of its base.
pub fn fold(
    key: &[u8],
    base: FoldBase<'_>,
    operands: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<FoldOutcome, Corrupt> {
    out.clear();
    match Key::decode(key)? {
        Key::Counter(..) => counter(base, operands, out),
        Key::Inode(..) | Key::Orphan(..) | Key::Dentry(..) => inode(base, operands, out),
        Key::Region(..) => region(base, operands, out),
        Key::Pool(_)
        | Key::Xattr(..)
        | Key::Snapshot(..)
        | Key::SnapshotName(..)
        | Key::SnapshotRule(..)
        | Key::Bookmark(..)
        | Key::Rollback(..)
        | Key::Volume(_) => Err(NO_OPERANDS),
    }
}

fn counter(base: FoldBase<'_>, operands: &[&[u8]], out: &mut Vec<u8>) -> Result<FoldOutcome, Corrupt> {
    let mut sum = match base {
        FoldBase::Value(v) => decode_counter(v)?,
        FoldBase::Absent | FoldBase::Unknown => 0,
    };
    for operand in operands {
        sum = sum.wrapping_add(decode_counter(operand)?);
    }
    encode_counter(out, sum);
    Ok(if base == FoldBase::Unknown { FoldOutcome::Operand } else { FoldOutcome::Value })
}

fn region(base: FoldBase<'_>, operands: &[&[u8]], out: &mut Vec<u8>) -> Result<FoldOutcome, Corrupt> {
    let mut map = match base {
        FoldBase::Value(v) => decode_region(v, false)?,
        FoldBase::Absent | FoldBase::Unknown => ExtentMap::new(),
    };
    for operand in operands {
        apply_extents(&mut map, &decode_region(operand, true)?);
    }
    // Holes must stay in an operand, where they cover data of the unknown base. In a value they are the
    // absence of extents.
    if base == FoldBase::Unknown {
        encode_region(out, &map, true);
        return Ok(FoldOutcome::Operand);
    }
    map.drop_holes();
    if map.is_empty() {
        return Ok(FoldOutcome::Deleted);
    }
    encode_region(out, &map, false);
    Ok(FoldOutcome::Value)
}

fn apply_extents<'a>(map: &mut ExtentMap<'a>, over: &ExtentMap<'a>) {
    for extent in over.iter() {
        map.overlay(*extent);
    }
}

fn inode(base: FoldBase<'_>, operands: &[&[u8]], out: &mut Vec<u8>) -> Result<FoldOutcome, Corrupt> {
    let mut all = InodeEdit::default();
    for operand in operands {
        all.compose(InodeEdit::decode(operand)?)?;
    }
    let value = match base {
        FoldBase::Value(value) => value,
        // An operand on a removed inode must not create it again.
        FoldBase::Absent => return Ok(FoldOutcome::Deleted),
        FoldBase::Unknown => {
            all.encode(out);
            return Ok(FoldOutcome::Operand);
        }
    };
    let mut inode = Inode::decode(value)?;
    all.apply(&mut inode.attrs)?;
    // A lost commit can leave the size edit of a file without the commit that moved it to regions. The result
    // would be an inode that no reader accepts.
    let small = matches!(inode.content, InodeContent::Small(_));
    if small && inode.attrs.size_bytes > u64::from(SMALL_FILE_BYTES_MAX) {
        return Err(BAD_CONTENT);
    }
    match inode.content {
        InodeContent::Small(extents) if !all.extents.is_empty() => {
            let mut map = extents.to_map()?;
            apply_extents(&mut map, &all.extents);
            map.drop_holes();
            inode.encode_head(out);
            map.encode(out);
        }
        InodeContent::Directory(parent, name) if all.extents.is_empty() => {
            let (parent, name) = all.parent.unwrap_or((parent, name));
            Inode { content: InodeContent::Directory(parent, name), ..inode }.encode(out);
        }
        _ if all.extents.is_empty() && all.parent.is_none() => inode.encode(out),
        _ => return Err(BAD_CONTENT),
    }
    debug_assert!(Inode::decode(out).is_ok(), "a folded inode decodes");
    Ok(FoldOutcome::Value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{Attrs, Extent, FileKind, InodeTime, VolumeId, inode_key, region_key};
    use proptest::prelude::*;
    use warpfire_units::{SegmentId, SlicePtr};

    const BLOB: [u8; 600] = [7; 600];

    fn extent(pick: u8, offset: u32, len: u32, at: u64) -> Extent<'static> {
        match pick % 4 {
            0 => Extent::hole(offset, len),
            3 => Extent::reserved(offset, len),
            1 => Extent::bytes(offset, &BLOB[..len as usize]),
            _ => {
                // An address that follows from the offset makes neighbours that can be joined.
                let offset_bytes = u64::from(offset) + (at % 2) * 10_000;
                Extent::slice(offset, SlicePtr { segment: SegmentId::FIRST, offset_bytes, len_bytes: len })
            }
        }
    }

    fn extents() -> impl Strategy<Value = ExtentMap<'static>> {
        proptest::collection::vec((any::<u8>(), 0u32..2000, 1u32..600, any::<u64>()), 0..6)
            .prop_map(|all| all.into_iter().map(|(p, o, l, a)| extent(p, o, l, a)).collect())
    }

    fn stamp() -> impl Strategy<Value = Option<InodeTime>> {
        proptest::option::of((-5i64..5, 0u32..5).prop_map(|(seconds, nanos)| InodeTime { seconds, nanos }))
    }

    fn edits() -> impl Strategy<Value = InodeEdit<'static>> {
        let scalars = (
            proptest::option::of(0u16..4096),
            proptest::option::of(any::<(u32, u32)>()),
            proptest::option::of((0u64..=65536, 0u64..=65536)),
            -1i64..2,
            proptest::option::of(0u32..32),
            proptest::option::of(0u64..3),
        );
        (scalars, (stamp(), stamp(), stamp(), stamp(), stamp()), extents()).prop_map(|(s, t, extents)| {
            InodeEdit {
                permissions: s.0,
                owner: s.1,
                size: s.2,
                reserved: s.5,
                links_add: s.3,
                flags: s.4,
                atime: t.0,
                mtime: t.1,
                ctime: t.2,
                mtime_max: t.3,
                ctime_max: t.4,
                parent: None,
                extents,
            }
        })
    }

    fn small_file() -> Vec<u8> {
        let attrs = Attrs {
            kind: FileKind::Regular,
            permissions: 0o600,
            uid: 1,
            gid: 2,
            links: 9,
            size_bytes: 0,
            allocated_bytes: 0,
            reserved_bytes: 0,
            rdev: 0,
            btime: InodeTime::default(),
            mtime: InodeTime::default(),
            ctime: InodeTime::default(),
            atime: InodeTime::default(),
            flags: 0,
        };
        let mut value = Vec::new();
        Inode { ino: 5, attrs, content: InodeContent::Small(crate::fs::ExtentReader::new(&[], 0, false)) }
            .encode(&mut value);
        value
    }

    /// Folds all operands at once and in two groups, and compares the results.
    fn grouping_does_not_matter(key: &[u8], base: FoldBase<'_>, operands: &[Vec<u8>], split: usize) {
        let all: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
        let (mut at_once, mut early, mut late, mut grouped) = (vec![], vec![], vec![], vec![]);
        let outcome = fold(key, base, &all, &mut at_once).unwrap();
        let (first, second) = all.split_at(split % (all.len() + 1));
        assert_eq!(fold(key, FoldBase::Unknown, first, &mut early).unwrap(), FoldOutcome::Operand);
        assert_eq!(fold(key, FoldBase::Unknown, second, &mut late).unwrap(), FoldOutcome::Operand);
        assert_eq!(fold(key, base, &[&early, &late], &mut grouped).unwrap(), outcome);
        assert_eq!(at_once, grouped);
        // The result of the first group is a base for the second.
        let left = fold(key, base, first, &mut early).unwrap();
        let base = match left {
            FoldOutcome::Value => FoldBase::Value(&early),
            FoldOutcome::Deleted => FoldBase::Absent,
            FoldOutcome::Operand => return,
        };
        assert_eq!(fold(key, base, second, &mut grouped).unwrap(), outcome);
        assert_eq!(at_once, grouped);
    }

    proptest! {
        #[test]
        fn regions_fold_in_any_grouping(ops in proptest::collection::vec(extents(), 0..8), split: usize, which in 0usize..3) {
            let key = region_key(VolumeId::FIRST, 5, 0);
            let operands: Vec<Vec<u8>> = ops.iter().map(|m| { let mut o = vec![]; encode_region(&mut o, m, true); o }).collect();
            let mut value = Vec::new();
            encode_region(&mut value, &[Extent::bytes(100, &BLOB[..300])].into_iter().collect(), false);
            let base = [FoldBase::Value(&value), FoldBase::Absent, FoldBase::Unknown][which];
            grouping_does_not_matter(&key, base, &operands, split);
        }

        #[test]
        fn inodes_fold_in_any_grouping(ops in proptest::collection::vec(edits(), 0..8), split: usize, which in 0usize..3) {
            let key = inode_key(VolumeId::FIRST, 5);
            let operands: Vec<Vec<u8>> = ops.iter().map(|e| { let mut o = vec![]; e.encode(&mut o); o }).collect();
            let value = small_file();
            let base = [FoldBase::Value(&value), FoldBase::Absent, FoldBase::Unknown][which];
            grouping_does_not_matter(&key, base, &operands, split);
        }

        #[test]
        fn an_overlay_reads_like_bytes_written_in_order(ops in proptest::collection::vec((any::<u8>(), 0u32..2000, 1u32..600, any::<u64>()), 0..20)) {
            // The naive twin: the newest source of each byte.
            let mut twin = vec![None; 3000];
            let mut map = ExtentMap::new();
            for (pick, offset, len, at) in ops {
                let new = extent(pick, offset, len, at);
                for i in 0..len {
                    twin[(offset + i) as usize] = Some(new.clip(offset + i, offset + i + 1).source);
                }
                map.overlay(new);
            }
            let mut read = vec![None; 3000];
            let mut end = 0;
            for e in map.iter() {
                assert!(e.offset >= end && e.len > 0);
                end = e.end();
                for i in e.offset..e.end() {
                    read[i as usize] = Some(e.clip(i, i + 1).source);
                }
            }
            prop_assert_eq!(twin, read);
        }
    }

    #[test]
    fn a_change_of_times_does_not_bring_back_a_removed_inode() {
        let mut operand = Vec::new();
        InodeEdit { mtime_max: Some(InodeTime::default()), ..InodeEdit::default() }.encode(&mut operand);
        let key = inode_key(VolumeId::FIRST, 5);
        let mut out = Vec::new();
        assert_eq!(fold(&key, FoldBase::Absent, &[&operand], &mut out), Ok(FoldOutcome::Deleted));
    }

    #[test]
    fn neighbouring_slices_become_one() {
        let piece = |i: u32| {
            let offset_bytes = 5000 + u64::from(i) * 10;
            Extent::slice(i * 10, SlicePtr { segment: SegmentId::FIRST, offset_bytes, len_bytes: 10 })
        };
        let map: ExtentMap<'_> = [piece(0), piece(2), piece(1)].into_iter().collect();
        assert_eq!(map.len(), 1);
        assert_eq!(map.iter().next().map(|e| e.len), Some(30));
    }

    /// Regression: after the loss of a commit record before the operand, the fold wrote an inode that did not
    /// decode.
    #[test]
    fn a_small_file_cannot_be_made_larger_than_small_files_are() {
        let mut operand = Vec::new();
        InodeEdit { size: Some((1 << 20, 1)), ..InodeEdit::default() }.encode(&mut operand);
        let key = inode_key(VolumeId::FIRST, 5);
        let outcome = fold(&key, FoldBase::Value(&small_file()), &[&operand], &mut Vec::new());
        assert_eq!(outcome, Err(BAD_CONTENT));
    }
}
