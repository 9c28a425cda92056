//! What a receiver keeps: the state of a stream that is received in parts, and the mark of a tree that was
//! received.
//!
//! ```text
//! state, a file                            received, an extended attribute of the root of the tree
//!  0   4  CRC32C of all that follows         0   1  version, 1
//!  4   1  version, 1                         1  16  pool of the sender
//!  5   1  1 after the end of the stream,    17   8  inode number of the root
//!         else 0                            25  32  hash of the stream
//!  6   8  bytes of the file of records      57   *  the snapshot of the sender
//! 14  48  mark                               *   *  root of the tree there: length (varint), path
//! 62   *  header, to the end                 *   *  name of the snapshot of the receiver, to the end
//! ```

use super::header::{StreamHeader, StreamMark, StreamSnapshot};
use super::{BAD_RECEIVED, RECEIVED_FIELDS, STREAM_HASH_BYTES};
use crate::fs::InodeTime;
use crate::{Corrupt, Reader, Uuid, crc32c, varint};

const VERSION: u8 = 1;

const MARK_BYTES: usize = 16 + STREAM_HASH_BYTES;

/// How far a stream is received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceiveState {
    /// The stream.
    pub header: StreamHeader,
    /// Everything before this mark is kept; after the end it has the totals.
    pub mark: StreamMark,
    /// Bytes of the file of records.
    pub record_bytes: u64,
    /// Whether the stream is received to its end.
    pub is_complete: bool,
}

/// What the root of a received tree says about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// The pool of the sender.
    pub pool: Uuid,
    /// The inode number of the root. The root of a copy of the tree has another.
    pub inode: u64,
    /// The hash of the stream.
    pub hash: [u8; STREAM_HASH_BYTES],
    /// The snapshot that the tree shows.
    pub snapshot: StreamSnapshot,
    /// The root of the tree in the snapshot.
    pub root: Vec<u8>,
    /// When the receiver's own snapshot was made, which shows the tree as it was received. A later one of the
    /// same name has another time.
    pub kept_made: InodeTime,
    /// The name of that snapshot.
    pub kept_as: Vec<u8>,
}

impl ReceiveState {
    /// The bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.push(VERSION);
        out.push(u8::from(self.is_complete));
        out.extend_from_slice(&self.record_bytes.to_le_bytes());
        self.mark.encode(&mut out);
        self.header.encode(&mut out);
        let (crc, sealed) = out.split_first_chunk_mut::<4>().expect("it begins with a checksum");
        *crc = crc32c(sealed).to_le_bytes();
        out
    }

    /// Decodes the bytes of the file.
    ///
    /// # Errors
    /// Code 445; code 443 for a stream of another version.
    pub fn decode(bytes: &[u8]) -> Result<ReceiveState, Corrupt> {
        let mut reader = Reader::new(bytes, &RECEIVED_FIELDS);
        let crc = reader.u32()?;
        if crc != crc32c(reader.rest()) || reader.u8()? != VERSION {
            return Err(BAD_RECEIVED);
        }
        let is_complete = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(BAD_RECEIVED),
        };
        let record_bytes = reader.u64()?;
        let mark = StreamMark::decode(reader.bytes(MARK_BYTES)?)?;
        let header = StreamHeader::decode(reader.take_rest())?;
        Ok(ReceiveState { header, mark, record_bytes, is_complete })
    }
}

impl Received {
    /// The value of the attribute.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.pool.get().to_le_bytes());
        out.extend_from_slice(&self.inode.to_le_bytes());
        out.extend_from_slice(&self.hash);
        self.snapshot.encode(&mut out);
        varint::put(&mut out, self.root.len() as u64);
        out.extend_from_slice(&self.root);
        self.kept_made.encode(&mut out, 0);
        out.extend_from_slice(&self.kept_as);
        out
    }

    /// Decodes the value of the attribute.
    ///
    /// # Errors
    /// Code 445.
    pub fn decode(bytes: &[u8]) -> Result<Received, Corrupt> {
        let mut reader = Reader::new(bytes, &RECEIVED_FIELDS);
        if reader.u8()? != VERSION {
            return Err(BAD_RECEIVED);
        }
        let pool = Uuid::new(reader.u128()?).ok_or(BAD_RECEIVED)?;
        let (inode, hash) = (reader.u64()?, reader.array()?);
        let snapshot = StreamSnapshot::take(&mut reader)?.ok_or(BAD_RECEIVED)?;
        let len = reader.varint32()? as usize;
        let root = reader.bytes(len)?.to_vec();
        let kept_made = InodeTime::decode(&mut reader, 0).map_err(|_| BAD_RECEIVED)?;
        let kept_as = crate::fs::file_name(reader.take_rest()).map_err(|_| BAD_RECEIVED)?.to_vec();
        Ok(Received { pool, inode, hash, snapshot, root, kept_made, kept_as })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot() -> StreamSnapshot {
        StreamSnapshot { number: 3, made: InodeTime { seconds: 5, nanos: 6 }, name: b"monday".to_vec() }
    }

    fn state() -> ReceiveState {
        let pool = Uuid::new(9).expect("not zero");
        ReceiveState {
            header: StreamHeader {
                pool,
                snapshot: snapshot(),
                base: None,
                inodes: 1,
                file_bytes: 2,
                root: b"/".to_vec(),
            },
            mark: StreamMark { records: 7, data_bytes: 8, hash: [9; STREAM_HASH_BYTES] },
            record_bytes: 10,
            is_complete: true,
        }
    }

    fn received() -> Received {
        Received {
            pool: Uuid::new(9).expect("not zero"),
            inode: 77,
            hash: [1; STREAM_HASH_BYTES],
            snapshot: snapshot(),
            root: b"/srv".to_vec(),
            kept_made: InodeTime { seconds: 7, nanos: 8 },
            kept_as: b"monday".to_vec(),
        }
    }

    #[test]
    fn both_come_back() {
        assert_eq!(ReceiveState::decode(&state().encode()), Ok(state()));
        assert_eq!(Received::decode(&received().encode()), Ok(received()));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail_and_a_changed_byte_is_found(bytes: Vec<u8>, at: prop::sample::Index, with in 1u8..) {
            let _ = ReceiveState::decode(&bytes);
            if let Ok(received) = Received::decode(&bytes) {
                prop_assert_eq!(received.encode(), bytes);
            }
            let mut changed = state().encode();
            let at = at.index(changed.len());
            changed[at] ^= with;
            prop_assert!(ReceiveState::decode(&changed).is_err());
        }
    }
}
