//! Records of snapshots.
//!
//! ```text
//! snapshot                                 name of a snapshot
//!  0   1  tag, 4                            0   1  tag, 5
//!  1   *  time at which it was made         1   *  seq of the snapshot (varint)
//!         (zigzag varint, nanoseconds u32)
//!  *   *  inodes, bytes of files (varints)
//!  *   *  name, 1 to 255 bytes, to the end
//! ```

use warpfire_units::Seq;

use super::{BAD_CONTENT, BAD_TAG, FIELDS, InodeTime, key};
use crate::{Corrupt, Reader, varint};

/// The record of a snapshot. Its key has the seq.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotRecord<'a> {
    /// The time at which it was made.
    pub made: InodeTime,
    /// Inodes in the volume then.
    pub inodes: u64,
    /// Allocated bytes of its files then, reserved bytes included.
    pub bytes: u64,
    /// Its name.
    pub name: &'a [u8],
}

/// The record of a snapshot's name. Its key has the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotName {
    /// The seq of the snapshot.
    pub seq: Seq,
}

impl<'a> SnapshotRecord<'a> {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(key::dentry_name(self.name).is_ok(), "a snapshot has a name like those of files");
        out.push(4);
        self.made.encode(out, 0);
        varint::put(out, self.inodes);
        varint::put(out, self.bytes);
        out.extend_from_slice(self.name);
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Codes 401 to 403, 406 and 411.
    pub fn decode(bytes: &'a [u8]) -> Result<SnapshotRecord<'a>, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != 4 {
            return Err(BAD_TAG);
        }
        let made = InodeTime::decode(&mut reader, 0)?;
        let (inodes, bytes) = (reader.varint()?, reader.varint()?);
        let name = key::dentry_name(reader.take_rest())?;
        Ok(SnapshotRecord { made, inodes, bytes, name })
    }
}

impl SnapshotName {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.seq > Seq(0), "no snapshot shows an empty map");
        out.push(5);
        varint::put(out, self.seq.0);
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Codes 401 to 403, 412 and 414.
    pub fn decode(bytes: &[u8]) -> Result<SnapshotName, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != 5 {
            return Err(BAD_TAG);
        }
        let seq = Seq(reader.varint()?);
        reader.end()?;
        if seq == Seq(0) { Err(BAD_CONTENT) } else { Ok(SnapshotName { seq }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let made = InodeTime { seconds: 3, nanos: 7 };
        let mut out = Vec::new();
        SnapshotRecord { made, inodes: 2, bytes: 300, name: b"monday" }.encode(&mut out);
        assert_eq!(out, b"\x04\x06\x07\x00\x00\x00\x02\xac\x02monday");
        out.clear();
        SnapshotName { seq: Seq(300) }.encode(&mut out);
        assert_eq!(out, [5, 0xac, 0x02]);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>, tag in 4u8..=5) {
            let bytes: Vec<u8> = std::iter::once(tag).chain(bytes).collect();
            let mut out = Vec::new();
            if let Ok(record) = SnapshotRecord::decode(&bytes) {
                record.encode(&mut out);
                prop_assert_eq!(&out, &bytes);
            }
            out.clear();
            if let Ok(name) = SnapshotName::decode(&bytes) {
                name.encode(&mut out);
                prop_assert_eq!(&out, &bytes);
            }
        }
    }
}
