//! Records of the whole pool.
//!
//! ```text
//! superblock                               volume
//!  0   1  tag, 1                            0   1  tag, 2
//!  1   2  format version, 1                 1   *  number of the root inode (varint)
//!  3   *  first inode number that no        *   *  name, 1 to 255 bytes, to the end
//!         one has reserved (varint)
//! ```

use super::{BAD_INO, BAD_TAG, BAD_VERSION, FIELDS, key};
use crate::{Corrupt, Reader, varint};

/// The version of the filesystem's records that this code writes.
pub const FORMAT_VERSION: u16 = 1;

/// State of the whole pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilesystemRecord {
    /// Inode numbers below this one may be in use; numbers are never used twice.
    pub next_ino: u64,
}

/// A volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeRecord<'a> {
    /// Inode number of its root directory.
    pub root_ino: u64,
    /// Its name.
    pub name: &'a [u8],
}

impl FilesystemRecord {
    /// Writes the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(1);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        varint::put(out, self.next_ino);
    }

    /// Reads the record.
    ///
    /// # Errors
    /// If the bytes are no superblock, or one of a version that this code does not know.
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
    /// Writes the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(2);
        varint::put(out, self.root_ino);
        out.extend_from_slice(self.name);
    }

    /// Reads the record.
    ///
    /// # Errors
    /// If the bytes are no volume.
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
