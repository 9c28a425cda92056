//! Keys of the ordered map. Their numbers are big-endian, so that the order of bytes is the order of numbers.
//!
//! ```text
//!  0   4  volume; 0 in the keys of records of the whole pool
//!  4   1  kind
//!  5   8  inode number; in keys of pool records, counters and names of snapshots an id; in keys of snapshots
//!         and rollbacks the seq
//! 13   *  rest: the name (dentry, xattr, snapshot), the region's index (8 bytes), or the volume of a
//!         snapshot or rollback (4 bytes); empty otherwise
//! ```

use crate::Corrupt;
use smallvec::SmallVec;
use warpfire_units::Seq;

use super::{BAD_INO, BAD_KEY, BAD_NAME, VOLUME_MAX, number};

/// Longest name of a directory entry, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest name of an extended attribute, in bytes, its namespace included.
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// Bytes before the rest of a key.
pub const KEY_HEAD_BYTES: usize = 13;

/// Length of the volume before the kind.
const VOLUME_BYTES: usize = 4;

/// A volume's number. Zero is the pool itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeId(pub u32);

impl VolumeId {
    /// Records of the whole pool.
    pub const POOL: VolumeId = VolumeId(0);
    /// The first volume of a pool.
    pub const FIRST: VolumeId = VolumeId(1);
}

/// The kind of record that a key names. Zero is never written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum KeyKind {
    /// A pool record: the filesystem record or the record of the first volume.
    Pool = 1,
    /// A sum over a volume.
    Counter = 2,
    /// The inode of a directory or of a file with more than one link.
    Inode = 3,
    /// An inode without a name, kept while it is open or until its regions are gone.
    Orphan = 4,
    /// A name in a directory.
    Dentry = 5,
    /// An extended attribute.
    Xattr = 6,
    /// The extents of 1 MiB of a file.
    Region = 7,
    /// A snapshot of a volume.
    Snapshot = 8,
    /// The name of a snapshot.
    SnapshotName = 9,
    /// A rule by which snapshots of a volume are made and deleted.
    SnapshotRule = 10,
    /// A volume with a door.
    Volume = 11,
    /// A bookmark of a snapshot.
    Bookmark = 12,
    /// A rollback of a volume.
    Rollback = 13,
}

/// Which pool record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PoolRecordId {
    /// The filesystem record.
    Filesystem,
    /// The health record.
    Health,
    /// The wishes record.
    Wishes,
    /// The record of the first volume.
    Volume(VolumeId),
}

/// Which sum of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u64)]
pub enum CounterId {
    /// Inodes that exist, orphans included.
    Inodes = 1,
    /// Allocated bytes of all files: bytes that are not holes, reserved bytes included.
    Bytes = 2,
    /// Reserved bytes of all files, which are among the allocated bytes.
    Reserved = 3,
}

/// A decoded key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key<'a> {
    /// A pool record.
    Pool(PoolRecordId),
    /// A sum of a volume.
    Counter(VolumeId, CounterId),
    /// An inode with a key of its own.
    Inode(VolumeId, u64),
    /// An inode without a name.
    Orphan(VolumeId, u64),
    /// A name in the directory with this inode number.
    Dentry(VolumeId, u64, &'a [u8]),
    /// An extended attribute of an inode.
    Xattr(VolumeId, u64, &'a [u8]),
    /// A region of a file, by index.
    Region(VolumeId, u64, u64),
    /// A snapshot of a volume, by its seq.
    Snapshot(Seq, VolumeId),
    /// The name of a snapshot of a volume.
    SnapshotName(VolumeId, &'a [u8]),
    /// A rule for snapshots of a volume, by its name.
    SnapshotRule(VolumeId, &'a [u8]),
    /// A volume with a door.
    Volume(VolumeId),
    /// A bookmark of a snapshot of a volume, by its name.
    Bookmark(VolumeId, &'a [u8]),
    /// A rollback of a volume, by the seq at which it was made.
    Rollback(Seq, VolumeId),
}

/// An encoded key. Keys of names up to 51 bytes need no allocation.
pub type KeyBuf = SmallVec<[u8; KEY_INLINE_BYTES]>;

const KEY_INLINE_BYTES: usize = 64;

fn head(volume: VolumeId, kind: KeyKind, id: u64) -> [u8; KEY_HEAD_BYTES] {
    let mut head = [0; KEY_HEAD_BYTES];
    head[..4].copy_from_slice(&volume.0.to_be_bytes());
    head[4] = kind as u8;
    head[5..].copy_from_slice(&id.to_be_bytes());
    head
}

fn with_rest(volume: VolumeId, kind: KeyKind, ino: u64, rest: &[u8]) -> KeyBuf {
    let len = KEY_HEAD_BYTES + rest.len();
    let mut buf = [0; KEY_INLINE_BYTES];
    let Some((of_head, of_rest)) = buf[..].split_first_chunk_mut::<KEY_HEAD_BYTES>() else { unreachable!() };
    *of_head = head(volume, kind, ino);
    match of_rest.get_mut(..rest.len()) {
        // Nearly every key: its bytes are written once.
        Some(of_rest) => {
            of_rest.copy_from_slice(rest);
            KeyBuf::from_buf_and_len(buf, len)
        }
        None => {
            let mut key = KeyBuf::with_capacity(len);
            key.extend_from_slice(of_head);
            key.extend_from_slice(rest);
            key
        }
    }
}

/// Whether a key is of this kind. The rest of it is not looked at.
#[must_use]
pub fn is_of_kind(key: &[u8], kind: KeyKind) -> bool {
    key.get(VOLUME_BYTES) == Some(&(kind as u8))
}

/// Whether a key belongs to this volume. The rest of it is not looked at.
#[must_use]
pub fn is_of_volume(key: &[u8], volume: VolumeId) -> bool {
    key.starts_with(&volume.0.to_be_bytes())
}

/// The key of a name in a directory. The caller has checked that the name is allowed; [`Key::decode`] checks
/// it again.
#[must_use]
pub fn dentry_key(volume: VolumeId, dir: u64, name: &[u8]) -> KeyBuf {
    with_rest(volume, KeyKind::Dentry, dir, name)
}

/// The key of an inode with a key of its own.
#[must_use]
pub fn inode_key(volume: VolumeId, ino: u64) -> KeyBuf {
    with_rest(volume, KeyKind::Inode, ino, &[])
}

/// The key of a region.
#[must_use]
pub fn region_key(volume: VolumeId, ino: u64, index: u64) -> KeyBuf {
    with_rest(volume, KeyKind::Region, ino, &index.to_be_bytes())
}

/// The key of an extended attribute.
#[must_use]
pub fn xattr_key(volume: VolumeId, ino: u64, name: &[u8]) -> KeyBuf {
    with_rest(volume, KeyKind::Xattr, ino, name)
}

/// The range of keys of all names in a directory: first key, first key past them.
#[must_use]
pub fn dentry_range(volume: VolumeId, dir: u64) -> (KeyBuf, KeyBuf) {
    (with_rest(volume, KeyKind::Dentry, dir, &[]), past(volume, KeyKind::Dentry, dir))
}

/// The range of keys of all extended attributes of an inode: first key, first key past them.
#[must_use]
pub fn xattr_range(volume: VolumeId, ino: u64) -> (KeyBuf, KeyBuf) {
    (with_rest(volume, KeyKind::Xattr, ino, &[]), past(volume, KeyKind::Xattr, ino))
}

/// The range of keys of a file's regions from `first` on: first key, first key past them.
#[must_use]
pub fn region_range(volume: VolumeId, ino: u64, first: u64) -> (KeyBuf, KeyBuf) {
    (region_key(volume, ino, first), past(volume, KeyKind::Region, ino))
}

/// The range of keys of all snapshots of a pool, by rising seq: first key, first key past them.
#[must_use]
pub fn snapshot_range() -> (KeyBuf, KeyBuf) {
    (with_rest(VolumeId::POOL, KeyKind::Snapshot, 0, &[]), past(VolumeId::POOL, KeyKind::Snapshot, u64::MAX))
}

/// The range of keys of all volumes with a door, by rising number: first key, first key past them.
#[must_use]
pub fn volume_range() -> (KeyBuf, KeyBuf) {
    (with_rest(VolumeId::POOL, KeyKind::Volume, 0, &[]), past(VolumeId::POOL, KeyKind::Volume, u64::MAX))
}

/// The range of keys of all rollbacks of a pool, by rising seq: first key, first key past them.
#[must_use]
pub fn rollback_range() -> (KeyBuf, KeyBuf) {
    (with_rest(VolumeId::POOL, KeyKind::Rollback, 0, &[]), past(VolumeId::POOL, KeyKind::Rollback, u64::MAX))
}

/// The range of keys of all rules for snapshots of a volume, by name: first key, first key past them.
#[must_use]
pub fn snapshot_rule_range(volume: VolumeId) -> (KeyBuf, KeyBuf) {
    (with_rest(volume, KeyKind::SnapshotRule, 1, &[]), past(volume, KeyKind::SnapshotRule, 1))
}

/// The range of keys of all bookmarks of a volume, by name: first key, first key past them.
#[must_use]
pub fn bookmark_range(volume: VolumeId) -> (KeyBuf, KeyBuf) {
    (with_rest(volume, KeyKind::Bookmark, 1, &[]), past(volume, KeyKind::Bookmark, 1))
}

/// A key above every key of this kind and inode: one inode on, or, after the last inode, one byte more.
fn past(volume: VolumeId, kind: KeyKind, ino: u64) -> KeyBuf {
    match ino.checked_add(1) {
        Some(next) => with_rest(volume, kind, next, &[]),
        None => with_rest(volume, kind, ino, &[0xff; NAME_BYTES_MAX + 1]),
    }
}

impl<'a> Key<'a> {
    /// The key's bytes.
    #[must_use]
    pub fn encode(&self) -> KeyBuf {
        match *self {
            Key::Pool(PoolRecordId::Filesystem) => with_rest(VolumeId::POOL, KeyKind::Pool, 1, &[]),
            Key::Pool(PoolRecordId::Health) => with_rest(VolumeId::POOL, KeyKind::Pool, 2, &[]),
            Key::Pool(PoolRecordId::Wishes) => with_rest(VolumeId::POOL, KeyKind::Pool, 3, &[]),
            Key::Pool(PoolRecordId::Volume(v)) => with_rest(v, KeyKind::Pool, 1, &[]),
            Key::Counter(v, id) => with_rest(v, KeyKind::Counter, id as u64, &[]),
            Key::Inode(v, ino) => inode_key(v, ino),
            Key::Orphan(v, ino) => with_rest(v, KeyKind::Orphan, ino, &[]),
            Key::Dentry(v, dir, name) => dentry_key(v, dir, name),
            Key::Xattr(v, ino, name) => xattr_key(v, ino, name),
            Key::Region(v, ino, index) => region_key(v, ino, index),
            Key::Snapshot(seq, v) => with_rest(VolumeId::POOL, KeyKind::Snapshot, seq.0, &v.0.to_be_bytes()),
            Key::SnapshotName(v, name) => with_rest(v, KeyKind::SnapshotName, 1, name),
            Key::SnapshotRule(v, name) => with_rest(v, KeyKind::SnapshotRule, 1, name),
            Key::Volume(v) => with_rest(VolumeId::POOL, KeyKind::Volume, v.0.into(), &[]),
            Key::Bookmark(v, name) => with_rest(v, KeyKind::Bookmark, 1, name),
            Key::Rollback(seq, v) => with_rest(VolumeId::POOL, KeyKind::Rollback, seq.0, &v.0.to_be_bytes()),
        }
    }

    /// Decodes a key.
    ///
    /// # Errors
    /// Codes 400, 404 and 411, if no key has these bytes.
    pub fn decode(bytes: &'a [u8]) -> Result<Key<'a>, Corrupt> {
        let (volume, rest) = bytes.split_first_chunk::<4>().ok_or(BAD_KEY)?;
        let (&kind, rest) = rest.split_first().ok_or(BAD_KEY)?;
        let (id, rest) = rest.split_first_chunk::<8>().ok_or(BAD_KEY)?;
        let volume = VolumeId(u32::from_be_bytes(*volume));
        let id = u64::from_be_bytes(*id);
        if id == 0 {
            return Err(BAD_INO);
        }
        // Volume 0 has the records of the whole pool. Every other record belongs to a volume.
        let of_pool = [KeyKind::Pool, KeyKind::Snapshot, KeyKind::Volume, KeyKind::Rollback];
        let of_pool = of_pool.iter().any(|k| *k as u8 == kind);
        if volume == VolumeId::POOL && !of_pool || volume > VOLUME_MAX {
            return Err(BAD_KEY);
        }
        let of_inode = [KeyKind::Inode, KeyKind::Orphan, KeyKind::Dentry, KeyKind::Xattr, KeyKind::Region];
        if of_inode.iter().any(|k| *k as u8 == kind) {
            number::local(id)?;
        }
        let key = match kind {
            k if k == KeyKind::Pool as u8 && id == 1 => match volume {
                VolumeId::POOL => Key::Pool(PoolRecordId::Filesystem),
                other => Key::Pool(PoolRecordId::Volume(other)),
            },
            k if k == KeyKind::Pool as u8 && id == 2 && volume == VolumeId::POOL => {
                Key::Pool(PoolRecordId::Health)
            }
            k if k == KeyKind::Pool as u8 && id == 3 && volume == VolumeId::POOL => {
                Key::Pool(PoolRecordId::Wishes)
            }
            k if k == KeyKind::Counter as u8 && id == CounterId::Inodes as u64 => {
                Key::Counter(volume, CounterId::Inodes)
            }
            k if k == KeyKind::Counter as u8 && id == CounterId::Bytes as u64 => {
                Key::Counter(volume, CounterId::Bytes)
            }
            k if k == KeyKind::Counter as u8 && id == CounterId::Reserved as u64 => {
                Key::Counter(volume, CounterId::Reserved)
            }
            k if k == KeyKind::Inode as u8 => Key::Inode(volume, id),
            k if k == KeyKind::Orphan as u8 => Key::Orphan(volume, id),
            k if k == KeyKind::Dentry as u8 => {
                return dentry_name(rest).map(|name| Key::Dentry(volume, id, name));
            }
            k if k == KeyKind::Xattr as u8 => {
                return xattr_name(rest).map(|name| Key::Xattr(volume, id, name));
            }
            k if k == KeyKind::Region as u8 => {
                let index = <[u8; 8]>::try_from(rest).map_err(|_| BAD_KEY)?;
                return Ok(Key::Region(volume, id, u64::from_be_bytes(index)));
            }
            k if k == KeyKind::Snapshot as u8 && volume == VolumeId::POOL => {
                return volume_in(rest).map(|of| Key::Snapshot(Seq(id), of));
            }
            k if k == KeyKind::Rollback as u8 && volume == VolumeId::POOL => {
                return volume_in(rest).map(|of| Key::Rollback(Seq(id), of));
            }
            k if k == KeyKind::Volume as u8 && volume == VolumeId::POOL => {
                let of = u32::try_from(id).map(VolumeId).map_err(|_| BAD_KEY)?;
                // The first volume has no door.
                if of <= VolumeId::FIRST || of > VOLUME_MAX {
                    return Err(BAD_KEY);
                }
                Key::Volume(of)
            }
            k if k == KeyKind::SnapshotName as u8 && id == 1 => {
                return dentry_name(rest).map(|name| Key::SnapshotName(volume, name));
            }
            k if k == KeyKind::SnapshotRule as u8 && id == 1 => {
                return dentry_name(rest).map(|name| Key::SnapshotRule(volume, name));
            }
            k if k == KeyKind::Bookmark as u8 && id == 1 => {
                return dentry_name(rest).map(|name| Key::Bookmark(volume, name));
            }
            _ => return Err(BAD_KEY),
        };
        if rest.is_empty() { Ok(key) } else { Err(BAD_KEY) }
    }
}

/// The volume in the rest of a key.
fn volume_in(rest: &[u8]) -> Result<VolumeId, Corrupt> {
    let of = VolumeId(u32::from_be_bytes(rest.try_into().map_err(|_| BAD_KEY)?));
    if of == VolumeId::POOL { Err(BAD_KEY) } else { Ok(of) }
}

/// Checks a name of a directory entry: 1 to 255 bytes, without '/' and NUL, neither '.' nor '..'.
///
/// # Errors
/// Code 411.
pub fn dentry_name(name: &[u8]) -> Result<&[u8], Corrupt> {
    // Without a branch for each byte: every key that is decoded comes by here.
    let has_bad_byte = name.iter().fold(false, |bad, byte| bad | (*byte == b'/') | (*byte == 0));
    let good = (1..=NAME_BYTES_MAX).contains(&name.len()) && !has_bad_byte && name != b"." && name != b"..";
    if good { Ok(name) } else { Err(BAD_NAME) }
}

/// Checks a name of an extended attribute: 1 to 255 bytes without NUL.
///
/// # Errors
/// Code 411.
pub fn xattr_name(name: &[u8]) -> Result<&[u8], Corrupt> {
    let good = (1..=XATTR_NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0);
    if good { Ok(name) } else { Err(BAD_NAME) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let key = Key::Dentry(VolumeId::FIRST, 0x0102, b"a").encode();
        assert_eq!(&key[..], &[0, 0, 0, 1, 5, 0, 0, 0, 0, 0, 0, 1, 2, b'a']);
        let key = Key::Region(VolumeId::FIRST, 7, 3).encode();
        assert_eq!(&key[..], &[0, 0, 0, 1, 7, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3]);
        let key = Key::Snapshot(Seq(0x0305), VolumeId::FIRST).encode();
        assert_eq!(&key[..], &[0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 3, 5, 0, 0, 0, 1]);
        let key = Key::SnapshotName(VolumeId::FIRST, b"a").encode();
        assert_eq!(&key[..], &[0, 0, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0, 1, b'a']);
        let key = Key::Bookmark(VolumeId::FIRST, b"a").encode();
        assert_eq!(&key[..], &[0, 0, 0, 1, 12, 0, 0, 0, 0, 0, 0, 0, 1, b'a']);
        let key = Key::Rollback(Seq(0x0305), VolumeId::FIRST).encode();
        assert_eq!(&key[..], &[0, 0, 0, 0, 13, 0, 0, 0, 0, 0, 0, 3, 5, 0, 0, 0, 1]);
        let key = Key::Volume(VolumeId(0x0203)).encode();
        assert_eq!(&key[..], &[0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 2, 3]);
        assert_eq!(
            &Key::Pool(PoolRecordId::Filesystem).encode()[..],
            &[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]
        );
    }

    #[test]
    fn a_directory_is_one_range() {
        let (start, end) = dentry_range(VolumeId::FIRST, 9);
        let longest = dentry_key(VolumeId::FIRST, 9, &[0xff; NAME_BYTES_MAX]);
        assert!(start < longest && longest < end);
        let (start, end) = dentry_range(VolumeId::FIRST, u64::MAX);
        let longest = dentry_key(VolumeId::FIRST, u64::MAX, &[0xff; NAME_BYTES_MAX]);
        assert!(start < longest && longest < end);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail_and_what_decodes_encodes_back(bytes: Vec<u8>, kind in 0u8..14, id in 0u64..4, volume in 0u8..2) {
            let mut likely = vec![0, 0, 0, volume, kind];
            likely.extend_from_slice(&id.to_be_bytes());
            likely.extend_from_slice(&bytes);
            for candidate in [&bytes, &likely] {
                if let Ok(key) = Key::decode(candidate) {
                    prop_assert_eq!(&key.encode()[..], &candidate[..]);
                }
            }
        }
    }
}
