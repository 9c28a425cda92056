//! Data blocks: key versions in the order (key rising, seq falling), keys shortened by their shared prefix.
//!
//! ```text
//! 0   u32     CRC32C
//! 4   u8      kind 1
//! 5   u64     seq_base
//! 13  u32     number of entries, at least 1
//! 17  entries, each:
//!       varint  length of the prefix shared with the previous key (0 in the first entry)
//!       varint  length of the suffix (0: an older version of the previous key)
//!       varint  value length × 4 + kind (1 put, 2 delete, 3 merge)
//!       varint  0: seq 0, which every reader sees; n: seq_base + n − 1
//!       suffix bytes, value bytes
//! ```
//!
//! All versions of a key lie in one block.

use warpfire_units::Seq;

use super::key_heads::KeyHeads;
use super::{BAD_DATA, BAD_ORDER, DATA, DATA_FIELDS, FRAME_BYTES, open, seal, shared_len};
use crate::{Corrupt, Reader, varint};

const HEADER_BYTES: usize = FRAME_BYTES + 12;

/// The effect of a key version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum VersionKind {
    /// The key has this value.
    Put = 1,
    /// The key has no value.
    Delete = 2,
    /// The value is an operand, to be folded onto older versions.
    Merge = 3,
}

impl VersionKind {
    /// The kind in the low two bits of an encoded length.
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        match bits & 3 {
            1 => Some(VersionKind::Put),
            2 => Some(VersionKind::Delete),
            3 => Some(VersionKind::Merge),
            _ => None,
        }
    }
}

/// One version of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyVersion<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The commit that wrote it. 0 if every reader sees it.
    pub seq: Seq,
    /// Put, delete or merge.
    pub kind: VersionKind,
    /// The value or operand; empty for a delete.
    pub value: &'a [u8],
}

/// Builds data blocks, one after the other.
#[derive(Debug)]
pub struct DataBlockBuilder {
    out: Vec<u8>,
    count: u32,
    seq_base: u64,
    last_key: Vec<u8>,
}

impl DataBlockBuilder {
    /// A builder for key versions with a seq of 0 or not below `seq_base`.
    #[must_use]
    pub fn new(seq_base: Seq) -> Self {
        DataBlockBuilder { out: vec![0; HEADER_BYTES], count: 0, seq_base: seq_base.0, last_key: Vec::new() }
    }

    /// Adds an entry. The caller adds them in order, with all versions of a key in one block.
    ///
    /// # Panics
    /// If a seq other than 0 is below the base.
    pub fn push(&mut self, entry: KeyVersion<'_>) {
        debug_assert!(!entry.key.is_empty(), "a key is not empty");
        debug_assert!(entry.kind != VersionKind::Delete || entry.value.is_empty(), "a delete has no value");
        let shared = if self.count == 0 { 0 } else { shared_len(&self.last_key, entry.key) };
        let suffix = &entry.key[shared..];
        varint::put(&mut self.out, shared as u64);
        varint::put(&mut self.out, suffix.len() as u64);
        varint::put(&mut self.out, (entry.value.len() as u64) << 2 | entry.kind as u64);
        let code = match entry.seq.0 {
            0 => 0,
            seq => 1 + seq.checked_sub(self.seq_base).expect("no seq is below the base"),
        };
        varint::put(&mut self.out, code);
        self.out.extend_from_slice(suffix);
        self.out.extend_from_slice(entry.value);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(suffix);
        self.count += 1;
    }

    /// Length of the block so far, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Number of entries so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Whether the block has no entry yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Ends the block, appends it to `table` and starts the next. Returns its length in bytes.
    pub fn finish(&mut self, table: &mut Vec<u8>) -> usize {
        debug_assert!(self.count > 0, "a data block has at least one entry");
        self.out[FRAME_BYTES..FRAME_BYTES + 8].copy_from_slice(&self.seq_base.to_le_bytes());
        self.out[FRAME_BYTES + 8..HEADER_BYTES].copy_from_slice(&self.count.to_le_bytes());
        seal(&mut self.out, DATA);
        table.extend_from_slice(&self.out);
        let len = self.out.len();
        self.out.truncate(HEADER_BYTES);
        self.count = 0;
        self.last_key.clear();
        len
    }
}

#[derive(Clone, Copy, Debug)]
struct VersionSpan {
    start: u32,
    key_len: u32,
    value_len: u32,
    kind: VersionKind,
    first_of_key: bool,
    seq: Seq,
}

/// A verified block with whole keys, for binary search and for iteration in both directions.
#[derive(Debug)]
pub struct DataBlock {
    bytes: Vec<u8>,
    entries: Vec<VersionSpan>,
    heads: KeyHeads,
}

impl DataBlock {
    /// Verifies and decodes a block.
    ///
    /// # Errors
    /// Codes 300 to 303.
    pub fn decode(block: &[u8]) -> Result<Self, Corrupt> {
        let mut decoded = Self::decode_in_order(block)?;
        decoded.heads = KeyHeads::new(decoded.entries.len(), |i| decoded.key(i));
        Ok(decoded)
    }

    /// Like [`DataBlock::decode`], for readers that only walk the entries. [`DataBlock::find`] does not work
    /// on it.
    ///
    /// # Errors
    /// Codes 300 to 303.
    pub fn decode_in_order(block: &[u8]) -> Result<Self, Corrupt> {
        let body = open(block, DATA)?;
        let mut reader = Reader::new(body, &DATA_FIELDS);
        let seq_base = reader.u64()?;
        let count = reader.u32()? as usize;
        let entries_bytes = reader.rest().len();
        // An entry takes at least four bytes, so a false count cannot make a large allocation.
        if count == 0 || count > entries_bytes / 4 {
            return Err(BAD_DATA);
        }
        let mut bytes: Vec<u8> = Vec::with_capacity(entries_bytes * 2);
        let mut entries: Vec<VersionSpan> = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = take_entry(&mut reader, seq_base, entries.last(), &mut bytes)?;
            entries.push(entry);
        }
        reader.end()?;
        Ok(DataBlock { bytes, entries, heads: KeyHeads::default() })
    }

    /// Number of entries; at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The i-th entry's key.
    #[must_use]
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        let e = &self.entries[i];
        &self.bytes[e.start as usize..][..e.key_len as usize]
    }

    /// The i-th entry.
    #[must_use]
    #[inline]
    pub fn entry(&self, i: usize) -> KeyVersion<'_> {
        let e = &self.entries[i];
        let (key, rest) = self.bytes[e.start as usize..].split_at(e.key_len as usize);
        KeyVersion { key, seq: e.seq, kind: e.kind, value: &rest[..e.value_len as usize] }
    }

    /// The group of the i-th entry is all versions of its key. If the i-th entry is the newest of them, this
    /// is one past the last.
    #[must_use]
    #[inline]
    pub fn group_end(&self, i: usize) -> usize {
        let mut end = i + 1;
        while self.entries.get(end).is_some_and(|e| !e.first_of_key) {
            end += 1;
        }
        end
    }

    /// The first entry of the i-th entry's group: the newest version of its key.
    #[must_use]
    #[inline]
    pub fn group_start(&self, i: usize) -> usize {
        let mut start = i;
        while !self.entries[start].first_of_key {
            start -= 1;
        }
        start
    }

    /// The first entry at or after `key`; the number of entries if there is none.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> usize {
        self.heads.count_below(key, false, |i| self.key(i))
    }

    /// Memory of the decoded block, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<VersionSpan>() + self.heads.bytes()
    }
}

#[inline]
fn take_entry(
    reader: &mut Reader<'_>,
    seq_base: u64,
    before: Option<&VersionSpan>,
    bytes: &mut Vec<u8>,
) -> Result<VersionSpan, Corrupt> {
    let shared = reader.varint32()? as usize;
    let unshared = reader.varint32()? as usize;
    let tag = reader.varint()?;
    let code = reader.varint()?;
    let suffix = reader.bytes(unshared)?;
    let value_len = usize::try_from(tag >> 2).map_err(|_| BAD_DATA)?;
    let value = reader.bytes(value_len)?;
    let kind = VersionKind::from_bits(tag).ok_or(BAD_DATA)?;
    if kind == VersionKind::Delete && value_len != 0 {
        return Err(BAD_DATA);
    }
    let seq = match code {
        0 => Seq(0),
        n => Seq(seq_base.checked_add(n - 1).filter(|seq| *seq != 0).ok_or(BAD_DATA)?),
    };
    let old_key = before.map_or(0..0, |b| b.start as usize..b.start as usize + b.key_len as usize);
    let prefix = old_key.start..old_key.start.checked_add(shared).ok_or(BAD_DATA)?;
    if prefix.end > old_key.end {
        return Err(BAD_DATA);
    }
    let first_of_key = match (before, suffix.first()) {
        // No key is empty, and only the first one could be without breaking the order.
        (None, None) => return Err(BAD_DATA),
        (None, Some(_)) => true,
        // The shared prefix is as long as possible, so the next byte decides the order of the two keys.
        (Some(_), Some(next)) => {
            if prefix.end < old_key.end && bytes.get(prefix.end).is_none_or(|old| old >= next) {
                return Err(BAD_ORDER);
            }
            true
        }
        (Some(b), None) => {
            if prefix.end != old_key.end || b.seq <= seq {
                return Err(BAD_ORDER);
            }
            false
        }
    };
    // Key and value are stored whole: the next entry copies its prefix from here.
    let start = u32::try_from(bytes.len()).map_err(|_| BAD_DATA)?;
    bytes.extend_from_within(prefix);
    bytes.extend_from_slice(suffix);
    bytes.extend_from_slice(value);
    Ok(VersionSpan {
        start,
        key_len: u32::try_from(shared + unshared).map_err(|_| BAD_DATA)?,
        value_len: u32::try_from(value_len).map_err(|_| BAD_DATA)?,
        kind,
        first_of_key,
        seq,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::table::BAD_CHECKSUM;

    fn entry<'a>(key: &'a [u8], seq: u64, kind: VersionKind, value: &'a [u8]) -> KeyVersion<'a> {
        KeyVersion { key, seq: Seq(seq), kind, value }
    }

    fn build(entries: &[KeyVersion<'_>]) -> Vec<u8> {
        let mut builder = DataBlockBuilder::new(Seq(100));
        let mut out = Vec::new();
        for e in entries {
            builder.push(*e);
        }
        assert_eq!(builder.len(), builder.finish(&mut out));
        assert!(builder.is_empty());
        out
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let block = build(&[
            entry(b"alpha", 102, VersionKind::Put, b"1"),
            entry(b"alpha", 0, VersionKind::Delete, b""),
            entry(b"alps", 101, VersionKind::Merge, b"22"),
        ]);
        assert_eq!(
            block[4..],
            [
                &[1u8][..],
                &100u64.to_le_bytes(),
                &3u32.to_le_bytes(),
                &[0, 5, 1 << 2 | 1, 3],
                b"alpha1",
                &[5, 0, 2, 0],
                &[3, 1, 2 << 2 | 3, 2],
                b"s22",
            ]
            .concat()
        );
        assert_eq!(block[..4], crate::crc32c(&block[4..]).to_le_bytes());
    }

    #[test]
    fn versions_of_a_key_are_one_group() {
        let entries = [
            entry(b"a", 0, VersionKind::Put, b"x"),
            entry(b"b", 105, VersionKind::Merge, b"y"),
            entry(b"b", 103, VersionKind::Put, b"z"),
            entry(b"c", 104, VersionKind::Delete, b""),
        ];
        let block = DataBlock::decode(&build(&entries)).unwrap();
        assert_eq!((0..block.len()).map(|i| block.entry(i)).collect::<Vec<_>>(), entries);
        assert_eq!((block.group_end(1), block.group_start(2)), (3, 1));
        assert_eq!((block.find(b"b"), block.find(b"bb"), block.find(b"d")), (1, 3, 4));
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let mut block = build(&[entry(b"key", 100, VersionKind::Put, b"value")]);
        let last = block.len() - 1;
        block[last] ^= 1;
        assert_eq!(DataBlock::decode(&block).unwrap_err(), BAD_CHECKSUM);
    }

    #[test]
    fn entries_out_of_order_are_refused() {
        let block = build(&[entry(b"b", 0, VersionKind::Put, b""), entry(b"a", 0, VersionKind::Put, b"")]);
        assert_eq!(DataBlock::decode(&block).unwrap_err(), BAD_ORDER);
        let block =
            build(&[entry(b"b", 101, VersionKind::Put, b""), entry(b"b", 102, VersionKind::Put, b"")]);
        assert_eq!(DataBlock::decode(&block).unwrap_err(), BAD_ORDER);
    }

    proptest! {
        #[test]
        fn sorted_entries_come_back(
            keys in prop::collection::btree_map(prop::collection::vec(0u8..4, 1..20), (100u64..200, 1u64..4, 0usize..300), 1..60)
        ) {
            let values: Vec<Vec<u8>> = keys.values().map(|(_, kind, len)| if *kind == 2 { vec![] } else { vec![7; *len] }).collect();
            let entries: Vec<KeyVersion<'_>> = keys.iter().zip(&values).map(|((key, (seq, kind, _)), value)| {
                entry(key, *seq, VersionKind::from_bits(*kind).unwrap(), value)
            }).collect();
            let block = DataBlock::decode(&build(&entries)).unwrap();
            prop_assert_eq!((0..block.len()).map(|i| block.entry(i)).collect::<Vec<_>>(), entries.clone());
            for (i, e) in entries.iter().enumerate() {
                prop_assert_eq!(block.find(e.key), i);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200), count in 0u32..40) {
            let mut block = vec![0; FRAME_BYTES];
            block.extend_from_slice(&100u64.to_le_bytes());
            block.extend_from_slice(&count.to_le_bytes());
            block.extend_from_slice(&body);
            seal(&mut block, DATA);
            let _ = DataBlock::decode(&block);
            let _ = DataBlock::decode(&body);
        }
    }
}
