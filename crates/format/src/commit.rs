//! Commit records: the record that a sync writes to the commit log.
//!
//! ```text
//! 0   u32     CRC32C of all that follows
//! 4   u8      kind 1
//! 5   u64     first seq, never 0
//! 13  u64     last seq
//! 21  u32     number of changes
//! 25  changes, each:
//!       varint  seq − first
//!       varint  key length
//!       varint  value length × 4 + kind (1 put, 2 delete, 3 merge)
//!       key bytes, value bytes
//! ```
//!
//! A *change* is a key version: key, seq, kind and value. The record holds every commit from the first seq to
//! the last, each of them whole. Changes to one key stand in the order in which they were made; changes to
//! different keys stand in any order.

use warpfire_units::Seq;

use crate::table::{KeyVersion, VersionKind};
use crate::{Corrupt, FieldErrors, Reader, crc32c, varint};

/// The byte after the checksum.
const KIND: u8 = 1;
const HEADER_BYTES: usize = 25;

const BAD_CHECKSUM: Corrupt = Corrupt::new(310, "commit record checksum");
const BAD_RECORD: Corrupt = Corrupt::new(311, "commit record structure");

static FIELDS: FieldErrors = FieldErrors::all(BAD_RECORD);

/// Builds one record.
#[derive(Debug)]
pub struct CommitRecordBuilder {
    out: Vec<u8>,
    first: Seq,
    last: Seq,
    count: u32,
}

impl CommitRecordBuilder {
    /// A record of the commits from `first` to `last`.
    ///
    /// # Panics
    /// If the range holds no commit.
    #[must_use]
    pub fn new(first: Seq, last: Seq) -> Self {
        assert!(Seq(0) < first && first <= last, "a record covers at least one commit");
        CommitRecordBuilder { out: vec![0; HEADER_BYTES], first, last, count: 0 }
    }

    /// Adds a change.
    ///
    /// # Panics
    /// If its seq is outside the record's range.
    pub fn push(&mut self, change: KeyVersion<'_>) {
        assert!(self.first <= change.seq && change.seq <= self.last, "the record covers the change");
        debug_assert!(change.kind != VersionKind::Delete || change.value.is_empty(), "a delete has no value");
        varint::put(&mut self.out, change.seq.0 - self.first.0);
        varint::put(&mut self.out, change.key.len() as u64);
        varint::put(&mut self.out, (change.value.len() as u64) << 2 | change.kind as u64);
        self.out.extend_from_slice(change.key);
        self.out.extend_from_slice(change.value);
        self.count += 1;
    }

    /// The record's bytes.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.out[4] = KIND;
        self.out[5..13].copy_from_slice(&self.first.0.to_le_bytes());
        self.out[13..21].copy_from_slice(&self.last.0.to_le_bytes());
        self.out[21..25].copy_from_slice(&self.count.to_le_bytes());
        let crc = crc32c(&self.out[4..]);
        self.out[..4].copy_from_slice(&crc.to_le_bytes());
        self.out
    }
}

/// A record with a verified checksum and header. The changes are decoded by [`CommitRecord::for_each`].
#[derive(Clone, Copy, Debug)]
pub struct CommitRecord<'a> {
    /// First commit in the record.
    pub first: Seq,
    /// Last commit in the record.
    pub last: Seq,
    count: u32,
    changes: &'a [u8],
}

impl<'a> CommitRecord<'a> {
    /// Verifies the checksum and reads the header. `None` if the record is of another kind.
    ///
    /// # Errors
    /// Codes 310 and 311.
    pub fn decode(record: &'a [u8]) -> Result<Option<Self>, Corrupt> {
        let mut reader = Reader::new(record, &FIELDS);
        let crc = reader.u32()?;
        if crc32c(reader.rest()) != crc {
            return Err(BAD_CHECKSUM);
        }
        if reader.u8()? != KIND {
            return Ok(None);
        }
        let first = Seq(reader.u64()?);
        let last = Seq(reader.u64()?);
        let count = reader.u32()?;
        if first == Seq(0) || last < first {
            return Err(BAD_RECORD);
        }
        Ok(Some(CommitRecord { first, last, count, changes: reader.rest() }))
    }

    /// Calls `each` with every change, in the order of the record.
    ///
    /// # Errors
    /// Code 311, when the bytes after the header are not the changes that the header announces. `each` has
    /// then seen the changes up to the fault.
    pub fn for_each(&self, mut each: impl FnMut(KeyVersion<'a>)) -> Result<(), Corrupt> {
        let mut reader = Reader::new(self.changes, &FIELDS);
        for _ in 0..self.count {
            let change = take_change(&mut reader, self.first)?;
            if change.seq > self.last || (change.kind == VersionKind::Delete && !change.value.is_empty()) {
                return Err(BAD_RECORD);
            }
            each(change);
        }
        reader.end()
    }
}

fn take_change<'a>(reader: &mut Reader<'a>, first: Seq) -> Result<KeyVersion<'a>, Corrupt> {
    let seq = first.0.checked_add(reader.varint()?).ok_or(BAD_RECORD)?;
    let key_len = reader.varint32()? as usize;
    let tag = reader.varint()?;
    let key = reader.bytes(key_len)?;
    let value = reader.bytes(usize::try_from(tag >> 2).map_err(|_| BAD_RECORD)?)?;
    let kind = VersionKind::from_bits(tag).ok_or(BAD_RECORD)?;
    Ok(KeyVersion { key, seq: Seq(seq), kind, value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Vec<u8> {
        let mut builder = CommitRecordBuilder::new(Seq(7), Seq(9));
        builder.push(KeyVersion { key: b"k", seq: Seq(9), kind: VersionKind::Put, value: b"vv" });
        builder.push(KeyVersion { key: b"gone", seq: Seq(7), kind: VersionKind::Delete, value: b"" });
        builder.finish()
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let record = sample();
        let mut expected = vec![1];
        expected.extend_from_slice(&7u64.to_le_bytes());
        expected.extend_from_slice(&9u64.to_le_bytes());
        expected.extend_from_slice(&2u32.to_le_bytes());
        expected.extend_from_slice(&[2, 1, 2 << 2 | 1, b'k', b'v', b'v', 0, 4, 2]);
        expected.extend_from_slice(b"gone");
        assert_eq!(record[4..], expected);
    }

    #[test]
    fn changes_come_back() {
        let record = sample();
        let decoded = CommitRecord::decode(&record).unwrap().unwrap();
        assert_eq!((decoded.first, decoded.last), (Seq(7), Seq(9)));
        let mut seen = Vec::new();
        decoded.for_each(|e| seen.push((e.key.to_vec(), e.seq.0, e.kind))).unwrap();
        assert_eq!(seen, [(b"k".to_vec(), 9, VersionKind::Put), (b"gone".to_vec(), 7, VersionKind::Delete)]);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let record = sample();
        for bit in 0..record.len() * 8 {
            let mut bad = record.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(CommitRecord::decode(&bad).unwrap_err(), BAD_CHECKSUM, "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200), count in 0u32..20) {
            let mut record = vec![0, 0, 0, 0, KIND];
            record.extend_from_slice(&7u64.to_le_bytes());
            record.extend_from_slice(&90u64.to_le_bytes());
            record.extend_from_slice(&count.to_le_bytes());
            record.extend_from_slice(&body);
            let crc = crc32c(&record[4..]);
            record[..4].copy_from_slice(&crc.to_le_bytes());
            let _ = CommitRecord::decode(&record).unwrap().unwrap().for_each(|_| {});
            let _ = CommitRecord::decode(&body);
        }
    }
}
