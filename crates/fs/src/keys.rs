//! Keys of inodes and of what belongs to them, by inode number: the number has the volume.

use warpfire_format::fs::{self as format, Key, KeyBuf, local_of, number_in, stored_in, volume_of};

/// The key of a name in a directory.
pub(crate) fn dentry_key(dir: u64, name: &[u8]) -> KeyBuf {
    format::dentry_key(volume_of(dir), local_of(dir), name)
}

/// The key of an inode with a key of its own.
pub(crate) fn inode_key(ino: u64) -> KeyBuf {
    format::inode_key(volume_of(ino), local_of(ino))
}

/// The key of an inode without a name.
pub(crate) fn orphan_key(ino: u64) -> KeyBuf {
    Key::Orphan(volume_of(ino), local_of(ino)).encode()
}

/// The key of a region.
pub(crate) fn region_key(ino: u64, index: u64) -> KeyBuf {
    format::region_key(volume_of(ino), local_of(ino), index)
}

/// The key of an extended attribute.
pub(crate) fn xattr_key(ino: u64, name: &[u8]) -> KeyBuf {
    format::xattr_key(volume_of(ino), local_of(ino), name)
}

/// All names in a directory.
pub(crate) fn dentry_range(dir: u64) -> (KeyBuf, KeyBuf) {
    format::dentry_range(volume_of(dir), local_of(dir))
}

/// All extended attributes of an inode.
pub(crate) fn xattr_range(ino: u64) -> (KeyBuf, KeyBuf) {
    format::xattr_range(volume_of(ino), local_of(ino))
}

/// A file's regions from `first` on.
pub(crate) fn region_range(ino: u64, first: u64) -> (KeyBuf, KeyBuf) {
    format::region_range(volume_of(ino), local_of(ino), first)
}

/// The number of `ino` as the record of `holder` has it.
pub(crate) fn stored(holder: u64, ino: u64) -> u64 {
    stored_in(volume_of(holder), ino)
}

/// Whether two inodes are in one volume.
pub(crate) fn share_volume(a: u64, b: u64) -> bool {
    volume_of(a) == volume_of(b)
}

/// A number of the same volume as `dir`.
pub(crate) fn beside(dir: u64, local: u64) -> u64 {
    number_in(volume_of(dir), local)
}
