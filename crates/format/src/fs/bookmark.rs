//! The record of a bookmark.
//!
//! ```text
//!  0   1  tag, 10
//!  1   *  seq of the snapshot that it is of, not 0 (varint)
//!  *   *  time at which that snapshot was made (zigzag varint, nanoseconds u32)
//!  *   *  name of that snapshot, 1 to 255 bytes, to the end
//! ```

use warpfire_units::Seq;

use super::{BAD_CONTENT, BAD_TAG, FIELDS, InodeTime, key};
use crate::{Corrupt, Reader, varint};

const TAG: u8 = 10;

/// The moment of a snapshot, which may be deleted. Its key has the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BookmarkRecord<'a> {
    /// The seq of the snapshot.
    pub seq: Seq,
    /// The time at which the snapshot was made.
    pub made: InodeTime,
    /// The name of the snapshot when the bookmark was made.
    pub snapshot: &'a [u8],
}

impl<'a> BookmarkRecord<'a> {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.seq > Seq(0), "no snapshot shows an empty map");
        debug_assert!(key::dentry_name(self.snapshot).is_ok(), "a snapshot has a name like those of files");
        out.push(TAG);
        varint::put(out, self.seq.0);
        self.made.encode(out, 0);
        out.extend_from_slice(self.snapshot);
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// Codes 401 to 403, 406, 411 and 414.
    pub fn decode(bytes: &'a [u8]) -> Result<BookmarkRecord<'a>, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != TAG {
            return Err(BAD_TAG);
        }
        let seq = Seq(reader.varint()?);
        let made = InodeTime::decode(&mut reader, 0)?;
        let snapshot = key::dentry_name(reader.take_rest())?;
        if seq == Seq(0) { Err(BAD_CONTENT) } else { Ok(BookmarkRecord { seq, made, snapshot }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let made = InodeTime { seconds: 3, nanos: 7 };
        let record = BookmarkRecord { seq: Seq(300), made, snapshot: b"monday" };
        let mut out = Vec::new();
        record.encode(&mut out);
        assert_eq!(out, b"\x0a\xac\x02\x06\x07\x00\x00\x00monday");
        assert_eq!(BookmarkRecord::decode(&out), Ok(record));
        let bad = [&b""[..], b"\x04\x01\x06\x07\x00\x00\x00a", b"\x0a\x00\x06\x07\x00\x00\x00a"];
        let nameless = [&b"\x0a\x01\x06\x07\x00\x00\x00"[..], b"\x0a\x01\x06\x07\x00\x00\x00a/b"];
        for bytes in bad.into_iter().chain(nameless) {
            assert!(BookmarkRecord::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            let bytes: Vec<u8> = std::iter::once(TAG).chain(bytes).collect();
            if let Ok(record) = BookmarkRecord::decode(&bytes) {
                let mut out = Vec::new();
                record.encode(&mut out);
                prop_assert_eq!(out, bytes);
            }
        }
    }
}
