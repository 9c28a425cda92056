//! Bundles, and the bundle block of a partition, which says where they lie.
//!
//! A *bundle* is a key and its value as it was before its bytes were packed, so with its bytes at its end.
//! The pointer of the record names the end of the bundle. One read of a bundle brings a record and its bytes.
//! If the record has changed since, and its bytes have not, its entry here has the *edit*: one operand that
//! makes the record of today from the bundle's.
//!
//! ```text
//! bundle                                bundle block
//! 0  varint  length of the key          0  u32     CRC32C
//! …  key                                4  u8      kind 4
//! …  value, to the end                  5  u32     number of data blocks of the partition, at least 1
//!                                       9  for each data block:
//!                                            varint  bytes of its entries here
//!                                            entries, each:
//!                                              varint  entries of the data block passed over since the last
//!                                              u16     lowest 16 bits of the key's hash
//!                                              zigzag  segment, less that of the bundle before
//!                                              zigzag  offset, less the end of the bundle before
//!                                              varint  length of the bundle, 1 to 65536
//!                                              varint  length of the edit, 0 to 32; 0: there is none
//!                                              edit
//! ```
//!
//! The first bundle of a data block counts from segment 0 and end 0, so each data block can be read alone.

use warpfire_units::{SegmentId, SlicePtr};

use super::{BAD_BUNDLES, BUNDLE_FIELDS, BUNDLES, FRAME_BYTES, open, seal};
use crate::{Corrupt, Reader, varint};

/// Longest bundle. The log stores a run of this length as one slice.
pub const BUNDLE_BYTES_MAX: usize = 64 << 10;

/// Longest edit. A bundle whose record has changed in more ways is none any more.
pub const BUNDLE_EDIT_BYTES_MAX: usize = 32;

/// Writes a bundle over `out`.
pub fn encode_bundle(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.clear();
    varint::put(out, key.len() as u64);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// The key and the value of a bundle; `None` if these bytes are none.
#[must_use]
pub fn decode_bundle(mut bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let key_len = usize::try_from(varint::take(&mut bytes)?).ok()?;
    bytes.split_at_checked(key_len)
}

/// A bundle of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bundle {
    /// Where it lies.
    pub slice: SlicePtr,
    /// The operand that makes the record from the bundle's; empty if they are the same.
    pub edit: Box<[u8]>,
}

/// A bundle and its record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BundleEntry {
    /// Number of the record in its data block.
    pub entry: usize,
    /// The lowest bits of the hash of its key.
    pub fingerprint: u16,
    /// Its bundle.
    pub bundle: Bundle,
}

/// The lowest bits of the hash of a key.
#[must_use]
pub fn fingerprint(hash: u64) -> u16 {
    hash as u16
}

/// Where the numbers of the next entry count from.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    entry: usize,
    segment: u64,
    end: u64,
}

/// Builds the bundle block of a partition.
#[derive(Debug, Default)]
pub(super) struct BundleBuilder {
    body: Vec<u8>,
    /// The entries of the data block that is filling.
    entries: Vec<u8>,
    before: Before,
    blocks: u32,
    is_used: bool,
}

impl BundleBuilder {
    /// Adds the bundle of the record with number `entry` of the data block. The numbers rise.
    pub(super) fn add(&mut self, entry: usize, hash: u64, bundle: &Bundle) {
        let Bundle { slice, edit } = bundle;
        debug_assert!((1..=BUNDLE_BYTES_MAX as u32).contains(&slice.len_bytes), "a bundle is short");
        debug_assert!(edit.len() <= BUNDLE_EDIT_BYTES_MAX, "an edit is short");
        let Before { entry: next, segment, end } = self.before;
        varint::put(&mut self.entries, entry.checked_sub(next).expect("records come in order") as u64);
        self.entries.extend_from_slice(&fingerprint(hash).to_le_bytes());
        varint::put_signed(&mut self.entries, slice.segment.get().wrapping_sub(segment).cast_signed());
        varint::put_signed(&mut self.entries, slice.offset_bytes.wrapping_sub(end).cast_signed());
        varint::put(&mut self.entries, u64::from(slice.len_bytes));
        varint::put(&mut self.entries, edit.len() as u64);
        self.entries.extend_from_slice(edit);
        let end = slice.offset_bytes + u64::from(slice.len_bytes);
        self.before = Before { entry: entry + 1, segment: slice.segment.get(), end };
        self.is_used = true;
    }

    /// Ends a data block.
    pub(super) fn end_block(&mut self) {
        varint::put(&mut self.body, self.entries.len() as u64);
        self.body.append(&mut self.entries);
        self.before = Before::default();
        self.blocks += 1;
    }

    /// Appends the block to `table`, if there is a bundle.
    pub(super) fn finish(&mut self, table: &mut Vec<u8>) {
        if self.is_used {
            let start = table.len();
            table.extend_from_slice(&[0; FRAME_BYTES]);
            table.extend_from_slice(&self.blocks.to_le_bytes());
            table.extend_from_slice(&self.body);
            seal(&mut table[start..], BUNDLES);
        }
        *self = Self::default();
    }
}

/// Bundles from one restart to the next. A search decodes at most so many.
const RESTART_INTERVAL: usize = 8;

/// An entry at which decoding can begin.
#[derive(Debug)]
struct Restart {
    /// Where the entry starts in the bytes of the index.
    start: u32,
    before: Before,
}

/// Where the parts of a data block end in an index.
#[derive(Clone, Copy, Debug, Default)]
struct BlockEnd {
    bytes: u32,
    entries: u32,
    restarts: u32,
}

/// A verified bundle block.
#[derive(Debug)]
pub struct BundleIndex {
    /// The entries of all data blocks.
    bytes: Vec<u8>,
    /// The fingerprint of each entry.
    fingerprints: Vec<u16>,
    /// The first of each `RESTART_INTERVAL` entries of a data block.
    restarts: Vec<Restart>,
    ends: Vec<BlockEnd>,
}

impl BundleIndex {
    /// Verifies and decodes a bundle block.
    ///
    /// # Errors
    /// Codes 300, 301 and 307.
    pub fn decode(block: &[u8]) -> Result<Self, Corrupt> {
        let mut reader = Reader::new(open(block, BUNDLES)?, &BUNDLE_FIELDS);
        let blocks = reader.u32()? as usize;
        // A data block takes at least one byte, so a false count cannot make a large allocation.
        if blocks == 0 || blocks > reader.rest().len() {
            return Err(BAD_BUNDLES);
        }
        let mut index = BundleIndex {
            bytes: Vec::with_capacity(reader.rest().len()),
            fingerprints: Vec::new(),
            restarts: Vec::new(),
            ends: Vec::with_capacity(blocks),
        };
        for _ in 0..blocks {
            let len = reader.varint32()? as usize;
            index.add_block(reader.bytes(len)?)?;
        }
        reader.end()?;
        index.fingerprints.shrink_to_fit();
        index.restarts.shrink_to_fit();
        Ok(index)
    }

    /// Adds the entries of the next data block.
    fn add_block(&mut self, entries: &[u8]) -> Result<(), Corrupt> {
        let fits = |len: usize| u32::try_from(len).map_err(|_| BAD_BUNDLES);
        let mut rest = Reader::new(entries, &BUNDLE_FIELDS);
        let mut before = Before::default();
        let mut number = 0usize;
        while !rest.rest().is_empty() {
            if number.is_multiple_of(RESTART_INTERVAL) {
                let start = fits(self.bytes.len() + entries.len() - rest.rest().len())?;
                self.restarts.push(Restart { start, before });
            }
            self.fingerprints.push(take_entry(&mut rest, &mut before)?.fingerprint);
            number += 1;
        }
        self.bytes.extend_from_slice(entries);
        self.ends.push(BlockEnd {
            bytes: fits(self.bytes.len())?,
            entries: fits(self.fingerprints.len())?,
            restarts: fits(self.restarts.len())?,
        });
        Ok(())
    }

    /// The bundles of the records of a data block, in the order of the records.
    pub fn of_block(&self, block: usize) -> impl Iterator<Item = BundleEntry> {
        let (start, end) = self.bounds(block);
        self.entries(start.bytes, end.bytes, Before::default())
    }

    /// The bundles of a data block whose keys may have this hash. It decodes few of the others.
    pub fn find(&self, block: usize, hash: u64) -> impl Iterator<Item = BundleEntry> {
        let (start, end) = self.bounds(block);
        let fingerprints = &self.fingerprints[start.entries as usize..end.entries as usize];
        let restarts = &self.restarts[start.restarts as usize..end.restarts as usize];
        let wanted = fingerprint(hash);
        let numbers = fingerprints.iter().enumerate().filter(move |(_, found)| **found == wanted);
        numbers.filter_map(move |(number, _)| {
            let restart = &restarts[number / RESTART_INTERVAL];
            self.entries(restart.start, end.bytes, restart.before).nth(number % RESTART_INTERVAL)
        })
    }

    /// Where the parts of a data block start and end. A block that the index lacks has empty parts.
    fn bounds(&self, block: usize) -> (BlockEnd, BlockEnd) {
        let start =
            block.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default();
        (start, self.ends.get(block).copied().unwrap_or(start))
    }

    /// The entries in a range of the bytes.
    fn entries(&self, start: u32, end: u32, mut before: Before) -> impl Iterator<Item = BundleEntry> {
        let mut rest = Reader::new(&self.bytes[start as usize..end as usize], &BUNDLE_FIELDS);
        // All entries decode: `decode` has seen them.
        std::iter::from_fn(move || take_entry(&mut rest, &mut before).ok())
    }

    /// Number of data blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.ends.len()
    }

    /// Memory of the decoded block, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.fingerprints.capacity() * size_of::<u16>()
            + self.restarts.capacity() * size_of::<Restart>()
            + self.ends.capacity() * size_of::<BlockEnd>()
    }
}

fn take_entry(reader: &mut Reader<'_>, before: &mut Before) -> Result<BundleEntry, Corrupt> {
    let passed = reader.varint32()? as usize;
    let fingerprint = reader.u16()?;
    let segment = before.segment.wrapping_add(reader.signed()?.cast_unsigned());
    let offset_bytes = before.end.wrapping_add(reader.signed()?.cast_unsigned());
    let len_bytes = reader.varint32()?;
    let entry = before.entry.checked_add(passed).ok_or(BAD_BUNDLES)?;
    let end = offset_bytes.checked_add(u64::from(len_bytes)).ok_or(BAD_BUNDLES)?;
    let id = SegmentId::new(segment).ok_or(BAD_BUNDLES)?;
    let edit_len = reader.varint32()? as usize;
    if len_bytes == 0 || len_bytes as usize > BUNDLE_BYTES_MAX || edit_len > BUNDLE_EDIT_BYTES_MAX {
        return Err(BAD_BUNDLES);
    }
    let edit = reader.bytes(edit_len)?.into();
    *before = Before { entry: entry + 1, segment, end };
    let slice = SlicePtr { segment: id, offset_bytes, len_bytes };
    Ok(BundleEntry { entry, fingerprint, bundle: Bundle { slice, edit } })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bundle(segment: u64, offset_bytes: u64, len_bytes: u32, edit: &[u8]) -> Bundle {
        let slice = SlicePtr { segment: SegmentId::new(segment).unwrap(), offset_bytes, len_bytes };
        Bundle { slice, edit: edit.into() }
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let mut builder = BundleBuilder::default();
        builder.add(0, 0x1_0203, &bundle(3, 100, 50, b""));
        builder.add(2, 0xffff, &bundle(3, 150, 300, b"ed"));
        builder.end_block();
        builder.end_block();
        builder.add(5, 7, &bundle(2, 0, 1, b""));
        builder.end_block();
        let mut block = Vec::new();
        builder.finish(&mut block);
        let entries = [
            &[0, 3, 2, 6, 200, 1, 50, 0][..],
            &[1, 0xff, 0xff, 0, 0, 172, 2, 2, b'e', b'd'],
            &[5, 7, 0, 4, 0, 1, 0],
        ];
        let body = [&[4, 3, 0, 0, 0, 18][..], entries[0], entries[1], &[0, 7], entries[2]].concat();
        assert_eq!(block[4..], body);
        let index = BundleIndex::decode(&block).unwrap();
        assert_eq!(index.blocks(), 3);
        let of = |n| index.of_block(n).map(|b| (b.entry, b.fingerprint, b.bundle)).collect::<Vec<_>>();
        assert_eq!(of(0), [(0, 0x0203, bundle(3, 100, 50, b"")), (2, 0xffff, bundle(3, 150, 300, b"ed"))]);
        assert_eq!((of(1), of(2), of(3)), (vec![], vec![(5, 7, bundle(2, 0, 1, b""))], vec![]));
    }

    #[test]
    fn a_search_finds_each_bundle_of_its_data_block_alone() {
        let mut builder = BundleBuilder::default();
        for block in 0..3u64 {
            for n in 0..20u64 {
                builder.add(n as usize * 2, n, &bundle(block + 1, n * 100, 100, b""));
            }
            builder.end_block();
        }
        let mut block = Vec::new();
        builder.finish(&mut block);
        let index = BundleIndex::decode(&block).unwrap();
        for (block, n) in (0..3u64).flat_map(|block| (0..20u64).map(move |n| (block, n))) {
            let found: Vec<_> =
                index.find(block as usize, n | 0xabc_0000).map(|e| (e.entry, e.bundle)).collect();
            assert_eq!(found, [(n as usize * 2, bundle(block + 1, n * 100, 100, b""))]);
        }
        assert_eq!(index.find(1, 20).count(), 0, "no key has this hash");
        assert_eq!(index.find(3, 1).count(), 0, "there is no such data block");
    }

    #[test]
    fn a_partition_without_bundles_has_no_block() {
        let mut builder = BundleBuilder::default();
        builder.end_block();
        let mut block = Vec::new();
        builder.finish(&mut block);
        assert_eq!(block, []);
    }

    #[test]
    fn a_bundle_is_a_key_and_a_value() {
        let mut bytes = b"old".to_vec();
        encode_bundle(&mut bytes, b"key", b"value");
        assert_eq!(bytes, b"\x03keyvalue");
        assert_eq!(decode_bundle(&bytes), Some((&b"key"[..], &b"value"[..])));
        assert_eq!(decode_bundle(b"\x09key"), None);
    }

    #[test]
    fn impossible_bundles_are_refused() {
        let sealed = |entry: &[u8]| {
            let mut block = vec![0; FRAME_BYTES];
            block.extend_from_slice(&1u32.to_le_bytes());
            block.push(entry.len() as u8);
            block.extend_from_slice(entry);
            seal(&mut block, BUNDLES);
            BundleIndex::decode(&block).map(|_| ())
        };
        assert_eq!(sealed(&[0, 0, 0, 2, 0, 1, 0]), Ok(()));
        assert_eq!(sealed(&[0, 0, 0, 0, 0, 1, 0]), Err(BAD_BUNDLES), "segment 0");
        assert_eq!(sealed(&[0, 0, 0, 2, 0, 0, 0]), Err(BAD_BUNDLES), "no bytes");
        assert_eq!(sealed(&[0, 0, 0, 2, 0, 0x81, 0x80, 4, 0]), Err(BAD_BUNDLES), "too long");
        assert_eq!(sealed(&[0, 0, 0, 2, 1, 1, 0]), Err(BAD_BUNDLES), "past the end of all offsets");
        let long_edit = [&[0, 0, 0, 2, 0, 1, 33][..], &[7; 33]].concat();
        assert_eq!(sealed(&long_edit), Err(BAD_BUNDLES), "a long edit");
    }

    proptest! {
        #[test]
        fn places_come_back(places in prop::collection::vec((0usize..3, any::<u16>(), 1u64..9, 0u64..1 << 40, 1u32..=65536, prop::collection::vec(any::<u8>(), 0..=32)), 0..40)) {
            let mut builder = BundleBuilder::default();
            let mut next = 0;
            let mut expected = Vec::new();
            for (passed, fingerprint, segment, offset, len, edit) in places {
                let bundle = bundle(segment, offset, len, &edit);
                let entry = next + passed;
                next = entry + 1;
                builder.add(entry, u64::from(fingerprint), &bundle);
                expected.push(BundleEntry { entry, fingerprint, bundle });
            }
            builder.end_block();
            let mut block = Vec::new();
            builder.finish(&mut block);
            if expected.is_empty() {
                prop_assert_eq!(block, []);
            } else {
                let index = BundleIndex::decode(&block).unwrap();
                prop_assert_eq!(index.of_block(0).collect::<Vec<_>>(), &expected[..]);
                for BundleEntry { fingerprint, .. } in &expected {
                    let same: Vec<_> =
                        expected.iter().filter(|entry| entry.fingerprint == *fingerprint).cloned().collect();
                    prop_assert_eq!(index.find(0, u64::from(*fingerprint)).collect::<Vec<_>>(), same);
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200), count in 0u32..20) {
            let mut block = vec![0; FRAME_BYTES];
            block.extend_from_slice(&count.to_le_bytes());
            block.extend_from_slice(&body);
            seal(&mut block, BUNDLES);
            if let Ok(index) = BundleIndex::decode(&block) {
                prop_assert!((0..index.blocks() + 1).map(|n| index.of_block(n).count()).sum::<usize>() <= body.len());
                for n in 0..index.blocks() {
                    prop_assert!(index.of_block(n).all(|entry| index.find(n, u64::from(entry.fingerprint)).any(|found| found == entry)));
                }
            }
            let _ = decode_bundle(&body);
        }
    }
}
