//! Records of snapshots.
//!
//! ```text
//! snapshot                                 name of a snapshot
//!  0   1  tag, 4                            0   1  tag, 5
//!  1   *  time at which it was made         1   *  seq of the snapshot (varint)
//!         (zigzag varint, nanoseconds u32)
//!  *   *  inodes, bytes of files (varints)
//!  *   *  name of the rule that made it:
//!         length, 0 for none (varint), bytes
//!  *   *  its holds: number (varint, at most 16);
//!         of each, in ascending order without
//!         repetition, length (varint) and bytes
//!  *   *  name, 1 to 255 bytes, to the end
//! ```
//!
//! The names of rules and holds are allowed as names of files.

use warpfire_units::Seq;

use super::{BAD_CONTENT, BAD_TAG, FIELDS, InodeTime, key};
use crate::{Corrupt, Reader, varint};

/// Most holds of a snapshot.
pub const SNAPSHOT_HOLDS_MAX: usize = 16;

/// The record of a snapshot. Its key has the seq.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotRecord<'a> {
    /// The time at which it was made.
    pub made: InodeTime,
    /// Inodes in the volume then.
    pub inodes: u64,
    /// Allocated bytes of its files then, reserved bytes included.
    pub bytes: u64,
    /// The rule that made it.
    pub rule: Option<&'a [u8]>,
    /// Why it must stay, in ascending order.
    pub holds: Vec<&'a [u8]>,
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
        debug_assert!(self.holds.is_sorted_by(|a, b| a < b) && self.holds.len() <= SNAPSHOT_HOLDS_MAX);
        out.push(4);
        self.made.encode(out, 0);
        varint::put(out, self.inodes);
        varint::put(out, self.bytes);
        put_text(out, self.rule.unwrap_or_default());
        varint::put(out, self.holds.len() as u64);
        self.holds.iter().for_each(|hold| put_text(out, hold));
        out.extend_from_slice(self.name);
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Codes 401 to 403, 406, 411 and 414.
    pub fn decode(bytes: &'a [u8]) -> Result<SnapshotRecord<'a>, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != 4 {
            return Err(BAD_TAG);
        }
        let made = InodeTime::decode(&mut reader, 0)?;
        let (inodes, bytes) = (reader.varint()?, reader.varint()?);
        let rule = Some(take_text(&mut reader)?).filter(|rule| !rule.is_empty());
        rule.map(key::dentry_name).transpose()?;
        let count = reader.varint()?;
        let count = usize::try_from(count).ok().filter(|count| *count <= SNAPSHOT_HOLDS_MAX);
        let holds = (0..count.ok_or(BAD_CONTENT)?)
            .map(|_| take_text(&mut reader).and_then(key::dentry_name))
            .collect::<Result<Vec<&[u8]>, Corrupt>>()?;
        if !holds.is_sorted_by(|a, b| a < b) {
            return Err(BAD_CONTENT);
        }
        let name = key::dentry_name(reader.take_rest())?;
        Ok(SnapshotRecord { made, inodes, bytes, rule, holds, name })
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    varint::put(out, text.len() as u64);
    out.extend_from_slice(text);
}

fn take_text<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Corrupt> {
    let len = usize::try_from(reader.varint()?).map_err(|_| BAD_CONTENT)?;
    reader.bytes(len)
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
        let record =
            SnapshotRecord { made, inodes: 2, bytes: 300, rule: None, holds: Vec::new(), name: b"monday" };
        record.encode(&mut out);
        assert_eq!(out, b"\x04\x06\x07\x00\x00\x00\x02\xac\x02\x00\x00monday");
        out.clear();
        let held = SnapshotRecord { rule: Some(b"days"), holds: vec![b"a", b"bc"], ..record };
        held.encode(&mut out);
        assert_eq!(out, b"\x04\x06\x07\x00\x00\x00\x02\xac\x02\x04days\x02\x01a\x02bcmonday");
        for bad in [&b"\x02\x01b\x01a"[..], b"\x02\x01a\x01a", b"\x11", b"\x01\x00", b"\x01\x01/"] {
            let bytes = [b"\x04\x06\x07\x00\x00\x00\x02\xac\x02\x04days", bad, b"monday"].concat();
            assert!(SnapshotRecord::decode(&bytes).is_err(), "{bad:?}");
        }
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
