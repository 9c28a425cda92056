//! Pool records: the filesystem record and the records of volumes.
//!
//! ```text
//! filesystem record                        volume record
//!  0   1  tag, 1                            0   1  tag, 2
//!  1   2  version of the records:           1   *  inode number of the root directory (varint)
//!         1, or 2 once there was a          *   *  name, 1 to 255 bytes, to the end
//!         volume with a door, or 3
//!         once there was a bookmark,
//!         or 4 once a volume was rolled
//!         back
//!  3   *  first local inode number that
//!         is not reserved (varint)
//!  *   *  versions 2 to 4: first number
//!         that no volume has had (varint)
//! ```
//!
//! Code that knows version 1 only must not open a pool with volumes that read on in others. Code that does
//! not know version 3 would drop the deletes that a bookmark needs, and code that does not know version 4
//! would show what a rollback hides.

use super::{BAD_CONTENT, BAD_INO, BAD_TAG, BAD_VERSION, FIELDS, VOLUME_MAX, VolumeId, key};
use crate::{Corrupt, Reader, varint};

/// The newest version of the filesystem's records that this code writes.
pub const FORMAT_VERSION: u16 = 4;

/// The version of the records of a pool that had a bookmark, and never a rollback.
const BOOKMARKS_VERSION: u16 = 3;

/// The version of the records of a pool that had a volume with a door, and never a bookmark.
const VOLUMES_VERSION: u16 = 2;

/// The version of the records of a pool that never had a volume with a door, or a bookmark.
const ONE_VOLUME_VERSION: u16 = 1;

/// The number of the first volume with a door.
const FIRST_WITH_DOOR: VolumeId = VolumeId(2);

/// The filesystem record: the state of the whole pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilesystemRecord {
    /// First local inode number that is not reserved. Numbers below it may be in use; no number is used
    /// twice.
    pub next_ino: u64,
    /// First number that no volume has had. After the first volume comes number 2.
    pub next_volume: VolumeId,
    /// Whether there may have been a bookmark.
    pub has_bookmarks: bool,
    /// Whether a volume was rolled back. Then there may have been a bookmark too.
    pub has_rollbacks: bool,
}

/// The record of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeRecord<'a> {
    /// Inode number of the root directory.
    pub root_ino: u64,
    /// Name of the volume.
    pub name: &'a [u8],
}

impl FilesystemRecord {
    /// The record of a pool without volumes that have doors.
    #[must_use]
    pub fn of_one_volume(next_ino: u64) -> FilesystemRecord {
        let next_volume = FIRST_WITH_DOOR;
        FilesystemRecord { next_ino, next_volume, has_bookmarks: false, has_rollbacks: false }
    }

    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.next_ino > 0, "inode numbers count from 1");
        debug_assert!(self.next_volume > VolumeId::FIRST, "there is a first volume");
        let has_doors = self.next_volume != FIRST_WITH_DOOR;
        let version = match (self.has_rollbacks, self.has_bookmarks, has_doors) {
            (true, ..) => FORMAT_VERSION,
            (false, true, _) => BOOKMARKS_VERSION,
            (false, false, true) => VOLUMES_VERSION,
            (false, false, false) => ONE_VOLUME_VERSION,
        };
        out.push(1);
        out.extend_from_slice(&version.to_le_bytes());
        varint::put(out, self.next_ino);
        if version > ONE_VOLUME_VERSION {
            varint::put(out, self.next_volume.0.into());
        }
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Code 415 for a version that this code does not know; codes 401 to 404, 412 and 414 for other bytes.
    pub fn decode(bytes: &[u8]) -> Result<FilesystemRecord, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != 1 {
            return Err(BAD_TAG);
        }
        let version = reader.u16()?;
        if !(ONE_VOLUME_VERSION..=FORMAT_VERSION).contains(&version) {
            return Err(BAD_VERSION);
        }
        let next_ino = reader.varint()?;
        let mut next_volume = FIRST_WITH_DOOR;
        if version > ONE_VOLUME_VERSION {
            next_volume = u32::try_from(reader.varint()?).map(VolumeId).map_err(|_| BAD_CONTENT)?;
            let is_first = next_volume == FIRST_WITH_DOOR && version == VOLUMES_VERSION;
            if is_first || next_volume < FIRST_WITH_DOOR || next_volume.0 > VOLUME_MAX.0 + 1 {
                return Err(BAD_CONTENT);
            }
        }
        reader.end()?;
        let (has_bookmarks, has_rollbacks) = (version >= BOOKMARKS_VERSION, version == FORMAT_VERSION);
        if next_ino == 0 {
            return Err(BAD_INO);
        }
        Ok(FilesystemRecord { next_ino, next_volume, has_bookmarks, has_rollbacks })
    }
}

impl<'a> VolumeRecord<'a> {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.root_ino > 0, "inode numbers count from 1");
        out.push(2);
        varint::put(out, self.root_ino);
        out.extend_from_slice(self.name);
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Codes 401 to 404 and 411.
    pub fn decode(bytes: &'a [u8]) -> Result<VolumeRecord<'a>, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != 2 {
            return Err(BAD_TAG);
        }
        let root_ino = reader.varint()?;
        let name = key::dentry_name(reader.take_rest())?;
        if root_ino == 0 { Err(BAD_INO) } else { Ok(VolumeRecord { root_ino, name }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        let record = FilesystemRecord::of_one_volume(300);
        record.encode(&mut out);
        assert_eq!(out, [1, 1, 0, 0xac, 0x02]);
        out.clear();
        FilesystemRecord { next_volume: VolumeId(9), ..record }.encode(&mut out);
        assert_eq!(out, [1, 2, 0, 0xac, 0x02, 9]);
        out.clear();
        FilesystemRecord { has_bookmarks: true, ..record }.encode(&mut out);
        assert_eq!(out, [1, 3, 0, 0xac, 0x02, 2]);
        out.clear();
        FilesystemRecord { has_bookmarks: true, has_rollbacks: true, ..record }.encode(&mut out);
        assert_eq!(out, [1, 4, 0, 0xac, 0x02, 2]);
        let of_version_5 = FilesystemRecord::decode(&[1, 5, 0, 0xac, 0x02, 2]);
        assert_eq!(of_version_5, Err(BAD_VERSION));
        let mut out = Vec::new();
        VolumeRecord { root_ino: 1, name: b"main" }.encode(&mut out);
        assert_eq!(out, [2, 1, b'm', b'a', b'i', b'n']);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>, version in 0_u8..6, next_volume in 0_u8..4) {
            let likely = [1, version, 0, 7, next_volume];
            if let Ok(s) = FilesystemRecord::decode(&likely) {
                let mut out = Vec::new();
                s.encode(&mut out);
                prop_assert_eq!(&out[..], &likely[..]);
            }
            let mut out = Vec::new();
            if let Ok(s) = FilesystemRecord::decode(&bytes) {
                s.encode(&mut out);
                prop_assert_eq!(&out, &bytes);
            }
            out.clear();
            if let Ok(v) = VolumeRecord::decode(&bytes) {
                v.encode(&mut out);
                prop_assert_eq!(&out, &bytes);
            }
        }
    }
}
