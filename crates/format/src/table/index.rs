//! Partition blocks and the top block: two levels of index over the data blocks.
//!
//! ```text
//! partition                                  top
//! 0   u32     CRC32C                         0  u32     CRC32C
//! 4   u8      kind 2                         4  u8      kind 3
//! 5   u32     first data block's offset      5  u32     number of partitions, at least 1
//! 9   u32     number of data blocks, ≥ 1     9  entries, each:
//! 13  u32     filter lines, ≥ 1                   varint  separator bytes shared with the one before
//! 17  entries, each:                              varint  separator bytes that follow
//!       varint  separator bytes shared            varint  partition block's offset in the table
//!       varint  separator bytes that follow       varint  its length, ≥ 1
//!       varint  block's length, ≥ 1               separator bytes
//!       separator bytes
//! …   filter, 64 bytes a line
//! ```
//!
//! The separator of a block is not above its first key, and above the last key of the block before. The data
//! blocks of a partition lie one after the other. Its bundle block, if it has one, follows the last of them,
//! and then its partition block.

use super::bundles::{Bundle, BundleBuilder};
use super::filter::Filter;
use super::key_heads::KeyHeads;
use super::{BAD_INDEX, FRAME_BYTES, INDEX_FIELDS, PARTITION, TOP, open, seal, shared_len};
use crate::{Corrupt, Reader, varint};

/// Where a block lies in its table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockHandle {
    /// First byte, counted from the table's start.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// The shortest key that is above `before` and not above `first`.
fn separator<'a>(before: &[u8], first: &'a [u8]) -> &'a [u8] {
    &first[..(shared_len(before, first) + 1).min(first.len())]
}

/// Encodes separators without the prefix that each shares with the one before it.
#[derive(Debug, Default)]
struct Separators {
    last: Vec<u8>,
}

impl Separators {
    fn put(&mut self, out: &mut Vec<u8>, separator: &[u8], numbers: &[u32]) {
        let shared = shared_len(&self.last, separator);
        varint::put(out, shared as u64);
        varint::put(out, (separator.len() - shared) as u64);
        for n in numbers {
            varint::put(out, u64::from(*n));
        }
        out.extend_from_slice(&separator[shared..]);
        self.last.clear();
        self.last.extend_from_slice(separator);
    }
}

/// Rising separators, each with the place of its block.
#[derive(Debug)]
struct BlockIndex {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    handles: Vec<BlockHandle>,
    heads: KeyHeads,
}

impl BlockIndex {
    fn decode(
        count: usize,
        reader: &mut Reader<'_>,
        mut handle: impl FnMut(&mut Reader<'_>) -> Result<BlockHandle, Corrupt>,
    ) -> Result<Self, Corrupt> {
        // An entry takes at least three bytes, so a false count cannot make a large allocation.
        if count == 0 || count > reader.rest().len() / 3 {
            return Err(BAD_INDEX);
        }
        let mut index = BlockIndex {
            bytes: Vec::with_capacity(reader.rest().len()),
            ends: Vec::with_capacity(count),
            handles: Vec::with_capacity(count),
            heads: KeyHeads::default(),
        };
        let mut last = 0..0;
        for i in 0..count {
            let shared = reader.varint32()? as usize;
            let unshared = reader.varint32()? as usize;
            index.handles.push(handle(reader)?);
            let suffix = reader.bytes(unshared)?;
            let kept = last.start..last.start + shared;
            // The first separator may be empty. Later ones differ from their predecessor in the first suffix
            // byte.
            let rises = match suffix.first() {
                None => i == 0,
                Some(next) => kept.end == last.end || index.bytes.get(kept.end).is_some_and(|old| old < next),
            };
            if kept.end > last.end || !rises {
                return Err(BAD_INDEX);
            }
            let start = index.bytes.len();
            index.bytes.extend_from_within(kept);
            index.bytes.extend_from_slice(suffix);
            last = start..index.bytes.len();
            index.ends.push(u32::try_from(last.end).map_err(|_| BAD_INDEX)?);
        }
        index.heads = KeyHeads::new(count, |i| index.key(i));
        Ok(index)
    }

    fn key(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.bytes[start..self.ends[i] as usize]
    }

    /// The number of the only block that can hold `key`: the last one with a separator not above it, else the
    /// first.
    fn find(&self, key: &[u8]) -> usize {
        self.heads.count_below(key, true, |i| self.key(i)).saturating_sub(1)
    }

    fn separator(&self, i: usize) -> Option<&[u8]> {
        (i < self.ends.len()).then(|| self.key(i))
    }

    fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * 4 + self.handles.capacity() * 8 + self.heads.bytes()
    }
}

/// Takes the length of a block, which is never zero.
fn take_len(reader: &mut Reader<'_>) -> Result<u32, Corrupt> {
    match reader.varint32()? {
        0 => Err(BAD_INDEX),
        len => Ok(len),
    }
}

/// Builds partition blocks, one after the other.
#[derive(Debug, Default)]
pub struct PartitionBuilder {
    body: Vec<u8>,
    blocks: u32,
    bytes: u32,
    first_separator: Vec<u8>,
    separators: Separators,
    hashes: Vec<u64>,
    bundles: BundleBuilder,
}

impl PartitionBuilder {
    /// Adds the hash (`crate::key_hash`) of a key in the partition, once for each key.
    pub fn add_key(&mut self, hash: u64) {
        self.hashes.push(hash);
    }

    /// Adds the bundle of a record of the data block that comes next: number `entry` in it, with a key of
    /// this hash. Only the newest version of a key has one. The numbers rise.
    pub fn add_bundle(&mut self, entry: usize, hash: u64, bundle: &Bundle) {
        self.bundles.add(entry, hash, bundle);
    }

    /// Adds the next data block. `before` is the last key before it, `first` its first key, `len` its length
    /// in bytes.
    pub fn add_block(&mut self, before: &[u8], first: &[u8], len: usize) {
        debug_assert!(before < first, "keys of a table rise");
        debug_assert!(len > 0, "a block is not empty");
        let len = u32::try_from(len).expect("a block stays below 4 GiB");
        let separator = separator(before, first);
        if self.blocks == 0 {
            self.first_separator = separator.to_vec();
        }
        self.separators.put(&mut self.body, separator, &[len]);
        self.bundles.end_block();
        self.blocks += 1;
        self.bytes += len;
    }

    /// Number of data blocks in the current partition.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Appends the bundle block and the partition block to `table`, adds the partition to `top` and starts
    /// the next one. `table` ends with the partition's data blocks; its first byte is byte `table_offset` of
    /// the whole table.
    pub fn finish(&mut self, table: &mut Vec<u8>, table_offset: u32, top: &mut TopBuilder) {
        debug_assert!(self.blocks > 0, "a partition has at least one data block");
        let place = |at: usize| table_offset + u32::try_from(at).expect("a table stays below 4 GiB");
        let first_offset = place(table.len()) - self.bytes;
        self.bundles.finish(table);
        let start = table.len();
        let offset = place(start);
        let filter = Filter::of(&self.hashes);
        table.extend_from_slice(&[0; FRAME_BYTES]);
        table.extend_from_slice(&first_offset.to_le_bytes());
        table.extend_from_slice(&self.blocks.to_le_bytes());
        let lines = u32::try_from(filter.lines()).expect("a filter stays below 4 GiB");
        table.extend_from_slice(&lines.to_le_bytes());
        table.extend_from_slice(&self.body);
        filter.encode(table);
        seal(&mut table[start..], PARTITION);
        let len = u32::try_from(table.len() - start).expect("a block stays below 4 GiB");
        top.add(&self.first_separator, BlockHandle { offset, len });
        *self = Self::default();
    }
}

/// A verified partition block.
#[derive(Debug)]
pub struct Partition {
    index: BlockIndex,
    filter: Filter,
}

impl Partition {
    /// Verifies and decodes a partition block.
    ///
    /// # Errors
    /// Codes 300, 301, 304 and 305.
    pub fn decode(block: &[u8]) -> Result<Self, Corrupt> {
        let body = open(block, PARTITION)?;
        let mut reader = Reader::new(body, &INDEX_FIELDS);
        let mut offset = reader.u32()?;
        let blocks = reader.u32()? as usize;
        let lines = reader.u32()? as usize;
        let index = BlockIndex::decode(blocks, &mut reader, |reader| {
            let handle = BlockHandle { offset, len: take_len(reader)? };
            // Lengths alone give the places: each block begins where the one before it ends.
            offset = offset.checked_add(handle.len).ok_or(BAD_INDEX)?;
            Ok(handle)
        })?;
        let filter = Filter::decode(reader.rest())?;
        if filter.lines() != lines {
            return Err(super::BAD_FILTER);
        }
        Ok(Partition { index, filter })
    }

    /// `false` if no key with this hash is in the partition.
    #[must_use]
    #[inline]
    pub fn may_hold(&self, hash: u64) -> bool {
        self.filter.may_hold(hash)
    }

    /// The number of the only data block that can hold `key`.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> usize {
        self.index.find(key)
    }

    /// Where the data blocks lie, in order.
    #[must_use]
    pub fn blocks(&self) -> &[BlockHandle] {
        &self.index.handles
    }

    /// The separator of a data block: not above its first key, and above the last key of the block before.
    #[must_use]
    pub fn separator(&self, block: usize) -> Option<&[u8]> {
        self.index.separator(block)
    }

    /// The bundle block: what lies between the last data block and the partition block, which is at `own`.
    #[must_use]
    pub fn bundle_block(&self, own: BlockHandle) -> Option<BlockHandle> {
        let last = self.blocks().last()?;
        let offset = last.offset.checked_add(last.len)?;
        let len = own.offset.checked_sub(offset).filter(|len| *len > 0)?;
        Some(BlockHandle { offset, len })
    }

    /// Memory of the decoded block, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes() + self.filter.lines() * 64
    }
}

/// Builds the top block of a table.
#[derive(Debug, Default)]
pub struct TopBuilder {
    body: Vec<u8>,
    partitions: u32,
    separators: Separators,
}

impl TopBuilder {
    fn add(&mut self, separator: &[u8], handle: BlockHandle) {
        self.separators.put(&mut self.body, separator, &[handle.offset, handle.len]);
        self.partitions += 1;
    }

    /// Appends the top block to `table` and starts the next table. Returns the block's length in bytes.
    pub fn finish(&mut self, table: &mut Vec<u8>) -> u32 {
        debug_assert!(self.partitions > 0, "a table has at least one partition");
        let start = table.len();
        table.extend_from_slice(&[0; FRAME_BYTES]);
        table.extend_from_slice(&self.partitions.to_le_bytes());
        table.extend_from_slice(&self.body);
        seal(&mut table[start..], TOP);
        *self = Self::default();
        u32::try_from(table.len() - start).expect("a block stays below 4 GiB")
    }
}

/// A verified top block.
#[derive(Debug)]
pub struct TopIndex {
    index: BlockIndex,
}

impl TopIndex {
    /// Verifies and decodes a top block.
    ///
    /// # Errors
    /// Codes 300, 301 and 304.
    pub fn decode(block: &[u8]) -> Result<Self, Corrupt> {
        let body = open(block, TOP)?;
        let mut reader = Reader::new(body, &INDEX_FIELDS);
        let partitions = reader.u32()? as usize;
        let mut end = 0u32;
        let index = BlockIndex::decode(partitions, &mut reader, |reader| {
            let offset = reader.varint32()?;
            // Data lies between a partition block and the one before it.
            if offset <= end {
                return Err(BAD_INDEX);
            }
            let len = take_len(reader)?;
            end = offset.checked_add(len).ok_or(BAD_INDEX)?;
            Ok(BlockHandle { offset, len })
        })?;
        reader.end()?;
        Ok(TopIndex { index })
    }

    /// The separator of a partition: not above its first key, and above the last key of the one before.
    #[must_use]
    pub fn separator(&self, partition: usize) -> Option<&[u8]> {
        self.index.separator(partition)
    }

    /// The number of the only partition that can hold `key`.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> usize {
        self.index.find(key)
    }

    /// Where the partition blocks lie, in order. The data blocks of a partition lie between the previous
    /// partition block and its own.
    #[must_use]
    pub fn partitions(&self) -> &[BlockHandle] {
        &self.index.handles
    }

    /// Memory of the decoded block, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key_hash;
    use crate::table::{BundleIndex, fingerprint};
    use warpfire_units::{SegmentId, SlicePtr};

    fn two_partitions() -> (Vec<u8>, BlockHandle) {
        let (mut table, mut top) = (Vec::new(), TopBuilder::default());
        let mut partition = PartitionBuilder::default();
        table.resize(300, 9);
        partition.add_key(key_hash(b"apple"));
        partition.add_block(b"", b"apple", 100);
        partition.add_key(key_hash(b"banana"));
        let slice = SlicePtr { segment: SegmentId::FIRST, offset_bytes: 9, len_bytes: 70 };
        partition.add_bundle(1, key_hash(b"banana"), &Bundle { slice, edit: [].into() });
        partition.add_block(b"azure", b"banana", 200);
        assert_eq!(partition.blocks(), 2);
        partition.finish(&mut table, 0, &mut top);
        table.resize(table.len() + 50, 9);
        partition.add_key(key_hash(b"cherry"));
        partition.add_block(b"bzz", b"cherry", 50);
        partition.finish(&mut table, 0, &mut top);
        let offset = table.len() as u32;
        let len = top.finish(&mut table);
        (table, BlockHandle { offset, len })
    }

    fn block_bytes(table: &[u8], handle: BlockHandle) -> &[u8] {
        &table[handle.offset as usize..][..handle.len as usize]
    }

    #[test]
    fn a_key_leads_to_its_block() {
        let (table, handle) = two_partitions();
        let top = TopIndex::decode(block_bytes(&table, handle)).unwrap();
        assert_eq!((top.find(b"aardvark"), top.find(b"bzz"), top.find(b"cherry")), (0, 0, 1));
        let first = Partition::decode(block_bytes(&table, top.partitions()[0])).unwrap();
        assert_eq!((first.find(b"apple"), first.find(b"azure"), first.find(b"banana")), (0, 0, 1));
        assert_eq!(
            first.blocks(),
            [BlockHandle { offset: 0, len: 100 }, BlockHandle { offset: 100, len: 200 }]
        );
        assert!(first.may_hold(key_hash(b"apple")) && !first.may_hold(key_hash(b"cherry")));
        let bundles = first.bundle_block(top.partitions()[0]).unwrap();
        let bundles = BundleIndex::decode(block_bytes(&table, bundles)).unwrap();
        assert_eq!(bundles.of_block(0).count(), 0);
        let found: Vec<_> = bundles.of_block(1).map(|b| (b.entry, b.fingerprint)).collect();
        assert_eq!(found, [(1, fingerprint(key_hash(b"banana")))]);
        let second = Partition::decode(block_bytes(&table, top.partitions()[1])).unwrap();
        assert_eq!(second.blocks()[0].offset, top.partitions()[0].offset + top.partitions()[0].len);
        assert_eq!(second.bundle_block(top.partitions()[1]), None);
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let (table, handle) = two_partitions();
        let top = TopIndex::decode(block_bytes(&table, handle)).unwrap();
        let first = block_bytes(&table, top.partitions()[0]);
        assert_eq!(first[4..17], [2, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(first[17..first.len() - 64], [0, 1, 100, b'a', 0, 1, 200, 1, b'b']);
        let bytes = block_bytes(&table, handle);
        assert_eq!(bytes[4..9], [3, 2, 0, 0, 0]);
        // 300 bytes of data blocks and 18 of the bundle block.
        assert_eq!(bytes[9..14], [0, 1, 190, 2, 90]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200), count in 0u32..20) {
            let mut block = vec![0; FRAME_BYTES];
            block.extend_from_slice(&count.to_le_bytes());
            block.extend_from_slice(&body);
            seal(&mut block, TOP);
            let _ = TopIndex::decode(&block);
            let mut block = vec![0; FRAME_BYTES + 4];
            block.extend_from_slice(&count.to_le_bytes());
            block.extend_from_slice(&body);
            seal(&mut block, PARTITION);
            let _ = Partition::decode(&block);
            let _ = Partition::decode(&body);
        }
    }
}
