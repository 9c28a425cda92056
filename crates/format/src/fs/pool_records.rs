//! Pool records: the filesystem record and the records of volumes.
//!
//! ```text
//! filesystem record                        volume record
//!  0   1  tag, 1                            0   1  tag, 2
//!  1   2  version of the records, 1         1   *  inode number of the root directory (varint)
//!  3   *  first inode number that is        *   *  name, 1 to 255 bytes, to the end
//!         not reserved (varint)
//! ```

use super::{BAD_INO, BAD_TAG, BAD_VERSION, FIELDS, key};
use crate::{Corrupt, Reader, varint};

/// The version of the filesystem's records that this code writes.
pub const FORMAT_VERSION: u16 = 1;

/// The filesystem record: the state of the whole pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilesystemRecord {
    /// First inode number that is not reserved. Numbers below it may be in use; no number is used twice.
    pub next_ino: u64,
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
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.next_ino > 0, "inode numbers count from 1");
        out.push(1);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        varint::put(out, self.next_ino);
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Code 415 for a version that this code does not know; codes 401 to 404 and 412 for other bytes.
    pub fn decode(bytes: &[u8]) -> Result<FilesystemRecord, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != 1 {
            return Err(BAD_TAG);
        }
        if reader.u16()? != FORMAT_VERSION {
            return Err(BAD_VERSION);
        }
        let next_ino = reader.varint()?;
        reader.end()?;
        if next_ino == 0 { Err(BAD_INO) } else { Ok(FilesystemRecord { next_ino }) }
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
        FilesystemRecord { next_ino: 300 }.encode(&mut out);
        assert_eq!(out, [1, 1, 0, 0xac, 0x02]);
        let mut out = Vec::new();
        VolumeRecord { root_ino: 1, name: b"main" }.encode(&mut out);
        assert_eq!(out, [2, 1, b'm', b'a', b'i', b'n']);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
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
