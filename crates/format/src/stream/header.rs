//! The frames around the content of a stream: header, marks and end.
//!
//! ```text
//! header                                   mark
//!  0   8  "WFSTREAM"                         0   8  records so far
//!  8   4  version, 1                         8   8  data position
//! 12   4  features needed to read, none     16  32  hash of the stream before this frame
//! 16  16  pool of the sender
//! 32   *  the snapshot                     end
//!  *   *  the base, or number 0 alone        0   8  records in all
//!  *   *  inodes, bytes of files (varints)   8   8  bytes of files in all
//!  *   *  root of the tree in the snapshot: 16   8  files and directories made
//!         length (varint), path             24  32  hash of the stream before this frame
//!
//! snapshot: number (varint), time (zigzag varint, nanoseconds u32), name: length (varint), bytes
//! ```

use super::{BAD_HEADER, BAD_STREAM_VERSION, HEADER_FIELDS};
use crate::fs::InodeTime;
use crate::{Corrupt, Reader, Uuid, varint};

/// The version of the stream that this code writes.
pub const STREAM_VERSION: u32 = 1;

/// Bytes of the hash of a stream.
pub const STREAM_HASH_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"WFSTREAM";

/// Longest path of the root of a tree: a path with its final NUL fits 4096.
const PATH_BYTES_MAX: usize = 4095;

/// A snapshot of the sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSnapshot {
    /// Its number in the pool, not zero.
    pub number: u64,
    /// The time at which it was made.
    pub made: InodeTime,
    /// Its name.
    pub name: Vec<u8>,
}

/// What a stream holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamHeader {
    /// The pool of the sender.
    pub pool: Uuid,
    /// The snapshot that the receiver shows in the end.
    pub snapshot: StreamSnapshot,
    /// The older snapshot that the receiver must show before; `None` if the stream holds everything.
    pub base: Option<StreamSnapshot>,
    /// Inodes of the snapshot, for people.
    pub inodes: u64,
    /// Bytes of its files, for people.
    pub file_bytes: u64,
    /// The directory of the snapshot that is the root of the tree; begins with `/`.
    pub root: Vec<u8>,
}

/// A place at which a stream can be continued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamMark {
    /// Records before it.
    pub records: u64,
    /// The data position.
    pub data_bytes: u64,
    /// The hash of the stream before the mark.
    pub hash: [u8; STREAM_HASH_BYTES],
}

/// The end of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamEnd {
    /// Records in all.
    pub records: u64,
    /// Bytes of files in all.
    pub data_bytes: u64,
    /// Files and directories that the stream makes.
    pub made: u64,
    /// The hash of the stream before the end.
    pub hash: [u8; STREAM_HASH_BYTES],
}

impl StreamSnapshot {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.number);
        self.made.encode(out, 0);
        varint::put(out, self.name.len() as u64);
        out.extend_from_slice(&self.name);
    }

    /// Takes a snapshot; `None` for the number 0.
    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Option<StreamSnapshot>, Corrupt> {
        let number = reader.varint()?;
        if number == 0 {
            return Ok(None);
        }
        let made = InodeTime::decode(reader, 0).map_err(|_| BAD_HEADER)?;
        let len = reader.varint32()? as usize;
        let name = crate::fs::file_name(reader.bytes(len)?).map_err(|_| BAD_HEADER)?;
        Ok(Some(StreamSnapshot { number, made, name: name.to_vec() }))
    }
}

impl StreamHeader {
    /// Appends the payload of the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.root.first() == Some(&b'/') && self.root.len() <= PATH_BYTES_MAX);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&STREAM_VERSION.to_le_bytes());
        out.extend_from_slice(&0_u32.to_le_bytes());
        out.extend_from_slice(&self.pool.get().to_le_bytes());
        self.snapshot.encode(out);
        match &self.base {
            Some(base) => base.encode(out),
            None => varint::put(out, 0),
        }
        varint::put(out, self.inodes);
        varint::put(out, self.file_bytes);
        varint::put(out, self.root.len() as u64);
        out.extend_from_slice(&self.root);
    }

    /// Decodes the payload of the frame.
    ///
    /// # Errors
    /// Code 443 for a version or a feature that this code does not know; code 442 for other bytes.
    pub fn decode(bytes: &[u8]) -> Result<StreamHeader, Corrupt> {
        let mut reader = Reader::new(bytes, &HEADER_FIELDS);
        if &reader.array::<8>()? != MAGIC {
            return Err(BAD_HEADER);
        }
        if reader.u32()? != STREAM_VERSION || reader.u32()? != 0 {
            return Err(BAD_STREAM_VERSION);
        }
        let pool = Uuid::new(reader.u128()?).ok_or(BAD_HEADER)?;
        let snapshot = StreamSnapshot::take(&mut reader)?.ok_or(BAD_HEADER)?;
        let base = StreamSnapshot::take(&mut reader)?;
        let (inodes, file_bytes) = (reader.varint()?, reader.varint()?);
        let len = reader.varint32()? as usize;
        let root = reader.bytes(len)?;
        reader.end()?;
        let is_older = base.as_ref().is_none_or(|base| base.number < snapshot.number);
        let is_path = root.first() == Some(&b'/') && root.len() <= PATH_BYTES_MAX && !root.contains(&0);
        if !is_older || !is_path {
            return Err(BAD_HEADER);
        }
        Ok(StreamHeader { pool, snapshot, base, inodes, file_bytes, root: root.to_vec() })
    }

    /// Whether bytes that fail to decode are of a version or with a feature that this code does not know.
    #[must_use]
    pub fn is_of_other_version(error: Corrupt) -> bool {
        error == BAD_STREAM_VERSION
    }
}

impl StreamMark {
    /// Appends the payload of the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.records.to_le_bytes());
        out.extend_from_slice(&self.data_bytes.to_le_bytes());
        out.extend_from_slice(&self.hash);
    }

    /// Decodes the payload of the frame.
    ///
    /// # Errors
    /// Code 442.
    pub fn decode(bytes: &[u8]) -> Result<StreamMark, Corrupt> {
        let mut reader = Reader::new(bytes, &HEADER_FIELDS);
        let mark = StreamMark { records: reader.u64()?, data_bytes: reader.u64()?, hash: reader.array()? };
        reader.end().map(|()| mark)
    }
}

impl StreamEnd {
    /// Appends the payload of the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.records.to_le_bytes());
        out.extend_from_slice(&self.data_bytes.to_le_bytes());
        out.extend_from_slice(&self.made.to_le_bytes());
        out.extend_from_slice(&self.hash);
    }

    /// Decodes the payload of the frame.
    ///
    /// # Errors
    /// Code 442.
    pub fn decode(bytes: &[u8]) -> Result<StreamEnd, Corrupt> {
        let mut reader = Reader::new(bytes, &HEADER_FIELDS);
        let end = StreamEnd {
            records: reader.u64()?,
            data_bytes: reader.u64()?,
            made: reader.u64()?,
            hash: reader.array()?,
        };
        reader.end().map(|()| end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> StreamHeader {
        let made = InodeTime { seconds: -5, nanos: 999_999_999 };
        StreamHeader {
            pool: Uuid::new(9).expect("not zero"),
            snapshot: StreamSnapshot { number: 300, made, name: b"tuesday".to_vec() },
            base: Some(StreamSnapshot { number: 7, made, name: vec![0xff] }),
            inodes: 5,
            file_bytes: 1 << 40,
            root: b"/".to_vec(),
        }
    }

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        StreamHeader { base: None, ..header() }.encode(&mut out);
        let mut wanted = b"WFSTREAM\x01\0\0\0\0\0\0\0\x09".to_vec();
        wanted.extend([0; 15]);
        wanted.extend(b"\xac\x02\x09\xff\xc9\x9a\x3b\x07tuesday\0\x05\x80\x80\x80\x80\x80\x20\x01/");
        assert_eq!(out, wanted);
    }

    #[test]
    fn everything_comes_back() {
        let mut out = Vec::new();
        header().encode(&mut out);
        assert_eq!(StreamHeader::decode(&out), Ok(header()));
        let mark = StreamMark { records: 1, data_bytes: 2, hash: [3; STREAM_HASH_BYTES] };
        let end = StreamEnd { records: 1, data_bytes: 2, made: 3, hash: [4; STREAM_HASH_BYTES] };
        out.clear();
        mark.encode(&mut out);
        assert_eq!(StreamMark::decode(&out), Ok(mark));
        out.clear();
        end.encode(&mut out);
        assert_eq!(StreamEnd::decode(&out), Ok(end));
    }

    #[test]
    fn a_newer_version_has_an_error_of_its_own() {
        let mut out = Vec::new();
        header().encode(&mut out);
        out[8] = 2;
        assert!(StreamHeader::is_of_other_version(StreamHeader::decode(&out).expect_err("version 2")));
        out[8] = 1;
        out[12] = 1;
        assert!(StreamHeader::is_of_other_version(StreamHeader::decode(&out).expect_err("a feature")));
        out[0] = b'X';
        assert!(!StreamHeader::is_of_other_version(StreamHeader::decode(&out).expect_err("no header")));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail_and_what_decodes_encodes_back(bytes: Vec<u8>) {
            let mut likely = Vec::new();
            header().encode(&mut likely);
            likely.truncate(32);
            likely.extend_from_slice(&bytes);
            for candidate in [&bytes, &likely] {
                if let Ok(header) = StreamHeader::decode(candidate) {
                    let mut again = Vec::new();
                    header.encode(&mut again);
                    prop_assert_eq!(&again, candidate);
                }
                let _ = (StreamMark::decode(candidate), StreamEnd::decode(candidate));
            }
        }
    }
}
