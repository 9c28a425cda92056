//! Reading one run front to back. One partition is in memory at a time.

use std::rc::Rc;

use warpfire_format::key_hash;
use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{BlockHandle, BundleIndex, DataBlock, KeyVersion, Partition, TopIndex};

use super::verify::{BlockPlace, TableFacts};
use crate::code::FindingCode;
use crate::media::SliceReader;
use crate::report::Findings;

/// Most bytes of a partition with its data blocks. Writers make partitions of about 256 KiB; a longer one is
/// damage.
const PARTITION_BYTES_MAX: u32 = 64 << 20;

/// Appends bytes `from..from + len` of a table to `out`.
pub(crate) fn read_table(
    entry: &TableDescriptor,
    from: u32,
    len: u32,
    reader: &mut SliceReader<'_>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let (mut start, end) = (0u64, u64::from(from) + u64::from(len));
    for slice in &entry.slices {
        let slice_end = start + u64::from(slice.len_bytes);
        let (a, b) = (start.max(u64::from(from)), slice_end.min(end));
        if a < b {
            let narrow = |n: u64| u32::try_from(n).expect("inside a slice");
            reader.read(slice.part(narrow(a - start), narrow(b - a)), out)?;
        }
        start = slice_end;
    }
    if start < end { Err(format!("bytes {from}+{len} are past the end of the table")) } else { Ok(()) }
}

/// Reads and decodes the top block of a table.
pub(crate) fn read_top(entry: &TableDescriptor, reader: &mut SliceReader<'_>) -> Result<TopIndex, String> {
    let mut bytes = Vec::new();
    let offset = entry.len_bytes.checked_sub(entry.top_len_bytes).ok_or("top block longer than its table")?;
    read_table(entry, offset, entry.top_len_bytes, reader, &mut bytes)?;
    TopIndex::decode(&bytes).map_err(|e| e.to_string())
}

/// The only data block that can hold `key`, found through the table's indexes. `None` if a block is
/// unreadable.
pub(crate) fn find_block(
    entry: &TableDescriptor,
    key: &[u8],
    reader: &mut SliceReader<'_>,
) -> Option<DataBlock> {
    let top = read_top(entry, reader).ok()?;
    let handle = top.partitions().get(top.find(key))?;
    let mut bytes = Vec::new();
    read_table(entry, handle.offset, handle.len, reader, &mut bytes).ok()?;
    let partition = Partition::decode(&bytes).ok()?;
    let handle = partition.blocks().get(partition.find(key))?;
    bytes.clear();
    read_table(entry, handle.offset, handle.len, reader, &mut bytes).ok()?;
    DataBlock::decode(&bytes).ok()
}

/// Keys that an unreadable block of a table may hold.
#[derive(Clone, Debug)]
pub(crate) struct LostKeys {
    /// The table and the block.
    pub(crate) place: String,
    /// The first key that may be lost.
    pub(crate) first: Vec<u8>,
    /// The key that ends the range: the first one that is not lost, or with `with_end` the last one that is.
    pub(crate) end: Vec<u8>,
    pub(crate) with_end: bool,
    /// The partition of the block, if it was read: its filter excludes keys.
    partition: Option<Rc<Partition>>,
}

impl LostKeys {
    /// Whether the lost block may hold a key.
    pub(crate) fn may_hold(&self, key: &[u8]) -> bool {
        let before = if self.with_end { key <= self.end.as_slice() } else { key < self.end.as_slice() };
        self.first.as_slice() <= key
            && before
            && self.partition.as_ref().is_none_or(|p| p.may_hold(key_hash(key)))
    }
}

/// Most lost blocks of a run with their keys. Further ones are findings only.
const LOST_KEYS_MAX: usize = 4096;

/// A decoded partition block with the bytes of its data blocks.
struct OpenPartition {
    partition: Rc<Partition>,
    /// The partition's bytes, from `offset` of the table on.
    bytes: Vec<u8>,
    offset: u32,
    next_block: usize,
    bundles: Option<BundleIndex>,
}

struct OpenTable<'a> {
    entry: &'a TableDescriptor,
    top: TopIndex,
    next_partition: usize,
    partition: Option<OpenPartition>,
    facts: Option<TableFacts>,
}

/// A cursor over the keys of a run's tables.
///
/// ```text
/// tables ─▶ open (open_table) ─▶ partition (open_partition) ─▶ block (next_block) ─▶ start..end (advance)
/// ```
///
/// Entries `start..end` of `block` are the versions of the current key (assert in `advance`).
pub(crate) struct RunReader<'a> {
    tables: std::vec::IntoIter<&'a TableDescriptor>,
    open: Option<OpenTable<'a>>,
    block: Option<DataBlock>,
    start: usize,
    end: usize,
    /// Whether tables are checked on the way.
    verify: bool,
    /// Partitions below this key are passed over.
    from: Vec<u8>,
    /// Part of a table could not be read, so the run may have more keys.
    pub(crate) has_holes: bool,
    /// The keys of unreadable blocks so far, rising.
    lost: Vec<LostKeys>,
}

impl<'a> RunReader<'a> {
    /// A reader of the keys from `from` on. It may give some keys before it.
    pub(crate) fn new(mut tables: Vec<&'a TableDescriptor>, from: &[u8], verify: bool) -> Self {
        tables.retain(|t| t.largest.as_slice() >= from);
        RunReader {
            tables: tables.into_iter(),
            from: from.to_vec(),
            lost: Vec::new(),
            open: None,
            block: None,
            start: 0,
            end: 0,
            verify,
            has_holes: false,
        }
    }

    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.block.as_ref().map(|b| b.key(self.start))
    }

    /// The keys of unreadable blocks so far.
    pub(crate) fn lost(&self) -> &[LostKeys] {
        &self.lost
    }

    fn lose(&mut self, lost: LostKeys) {
        self.has_holes = true;
        if self.lost.len() < LOST_KEYS_MAX {
            self.lost.push(lost);
        }
    }

    /// The versions of the current key, newest first.
    pub(crate) fn versions(&self) -> impl Iterator<Item = KeyVersion<'_>> {
        self.block.iter().flat_map(|b| (self.start..self.end).map(|i| b.entry(i)))
    }

    /// Moves to the next key, at first to the first one.
    pub(crate) fn advance(&mut self, reader: &mut SliceReader<'_>, findings: &Findings) {
        match &self.block {
            Some(block) if self.end < block.len() => {
                self.start = self.end;
                self.end = block.group_end(self.start);
            }
            _ => {
                self.block = self.next_block(reader, findings);
                self.start = 0;
                self.end = self.block.as_ref().map_or(0, |b| b.group_end(0));
            }
        }
        debug_assert_eq!(self.start < self.end, self.block.is_some(), "a current key has versions");
    }

    fn next_block(&mut self, reader: &mut SliceReader<'_>, findings: &Findings) -> Option<DataBlock> {
        loop {
            let Some(open) = &mut self.open else {
                self.open_table(reader, findings)?;
                continue;
            };
            let Some(partition) = &mut open.partition else {
                match open_partition(open, reader, findings) {
                    Ok(true) => {}
                    Ok(false) => self.close_table(reader, findings),
                    // The walk goes on behind the damage. The table's facts are dropped: its sums would be
                    // wrong.
                    Err(message) => {
                        let number = open.next_partition - 1;
                        let place = format!("table {} partition {number}", open.entry.id);
                        findings.error(FindingCode::TableBlock, &place, message);
                        open.facts = None;
                        let first = open.top.separator(number).unwrap_or_default().to_vec();
                        let (end, with_end) = end_of_partition(open, number);
                        self.lose(LostKeys { place, first, end, with_end, partition: None });
                    }
                }
                continue;
            };
            let number = partition.next_block;
            let Some(&handle) = partition.partition.blocks().get(number) else {
                open.partition = None;
                continue;
            };
            partition.next_block += 1;
            let decoded = block_bytes(partition, handle)
                .ok_or_else(|| "a data block is outside its partition".to_string())
                .and_then(|bytes| DataBlock::decode_in_order(bytes).map_err(|e| e.to_string()));
            match decoded {
                Ok(block) => {
                    if let Some(facts) = &mut open.facts {
                        let place = BlockPlace {
                            top: &open.top,
                            partition_number: open.next_partition - 1,
                            partition: &partition.partition,
                            block_number: number,
                            bundles: partition.bundles.iter().flat_map(|b| b.of_block(number)).collect(),
                        };
                        facts.take_block(open.entry, &block, &place, reader, findings);
                    }
                    return Some(block);
                }
                Err(message) => {
                    let place = format!("table {} block at byte {}", open.entry.id, handle.offset);
                    findings.error(FindingCode::TableBlock, &place, message);
                    open.facts = None;
                    let index = Rc::clone(&partition.partition);
                    let first = index.separator(number).unwrap_or_default().to_vec();
                    let next = index.separator(number + 1).map(|next| (next.to_vec(), false));
                    let (end, with_end) =
                        next.unwrap_or_else(|| end_of_partition(open, open.next_partition - 1));
                    self.lose(LostKeys { place, first, end, with_end, partition: Some(index) });
                }
            }
        }
    }

    /// Opens the next table with a readable top block. `None` after the last.
    fn open_table(&mut self, reader: &mut SliceReader<'_>, findings: &Findings) -> Option<()> {
        loop {
            let entry = self.tables.next()?;
            match read_top(entry, reader) {
                Ok(top) => {
                    let facts = self.verify.then(TableFacts::default);
                    let next_partition = if self.from.is_empty() { 0 } else { top.find(&self.from) };
                    self.open = Some(OpenTable { entry, top, next_partition, partition: None, facts });
                    return Some(());
                }
                Err(message) => {
                    let place = format!("table {} top block", entry.id);
                    findings.error(FindingCode::TableBlock, &place, message);
                    let (first, end) = (entry.smallest.clone(), entry.largest.clone());
                    self.lose(LostKeys { place, first, end, with_end: true, partition: None });
                }
            }
        }
    }

    fn close_table(&mut self, reader: &mut SliceReader<'_>, findings: &Findings) {
        if let Some(OpenTable { entry, top, facts: Some(facts), .. }) = self.open.take() {
            facts.finish(entry, &top, reader, findings);
        }
    }
}

/// The key that ends a partition of a table, and whether it belongs to it.
fn end_of_partition(open: &OpenTable<'_>, number: usize) -> (Vec<u8>, bool) {
    match open.top.separator(number + 1) {
        Some(next) => (next.to_vec(), false),
        None => (open.entry.largest.clone(), true),
    }
}

fn block_bytes(partition: &OpenPartition, handle: BlockHandle) -> Option<&[u8]> {
    let from = usize::try_from(handle.offset.checked_sub(partition.offset)?).ok()?;
    partition.bytes.get(from..from.checked_add(usize::try_from(handle.len).ok()?)?)
}

/// Reads the next partition with its data blocks. `false` after the last.
fn open_partition(
    open: &mut OpenTable<'_>,
    reader: &mut SliceReader<'_>,
    findings: &Findings,
) -> Result<bool, String> {
    let number = open.next_partition;
    let Some(&handle) = open.top.partitions().get(number) else { return Ok(false) };
    open.next_partition += 1;
    // The data blocks begin where the previous partition block ends, so one read gets them and their index.
    let before = number.checked_sub(1).and_then(|n| open.top.partitions().get(n));
    let offset = before.map_or(0, |p| p.offset.saturating_add(p.len));
    let end = handle.offset.checked_add(handle.len).ok_or("the partition ends past 4 GiB")?;
    let len = end.checked_sub(offset).filter(|len| *len <= PARTITION_BYTES_MAX);
    let len = len.ok_or_else(|| format!("the partition reaches from byte {offset} to {end}"))?;
    let mut bytes = Vec::new();
    if read_table(open.entry, offset, len, reader, &mut bytes).is_err() {
        bytes = read_piecewise(open.entry, offset, handle, reader)?;
    }
    let own = usize::try_from(handle.offset - offset).ok().and_then(|at| bytes.get(at..));
    let partition = Partition::decode(own.unwrap_or(&[])).map_err(|e| e.to_string())?;
    let first = partition.blocks().first().map(|b| b.offset);
    let last = partition.blocks().last().and_then(|b| b.offset.checked_add(b.len));
    if first != Some(offset) || last.is_none_or(|last| last > handle.offset) {
        return Err(format!("its data blocks do not lie in bytes {offset} to {}", handle.offset));
    }
    let bundles = partition.bundle_block(handle).map(|block| {
        let from = usize::try_from(block.offset - offset).map_err(|e| e.to_string())?;
        let to = usize::try_from(handle.offset - offset).map_err(|e| e.to_string())?;
        let bundles = BundleIndex::decode(bytes.get(from..to).unwrap_or(&[])).map_err(|e| e.to_string())?;
        let is_whole = bundles.blocks() == partition.blocks().len();
        is_whole.then_some(bundles).ok_or_else(|| "it has another number of data blocks".to_owned())
    });
    // No name depends on a bundle block: every record and its bytes are found without it.
    let bundles = bundles.transpose().unwrap_or_else(|message: String| {
        let place = format!("table {} bundles of partition {number}", open.entry.id);
        findings.error(FindingCode::TableBlock, place, message);
        open.facts = None;
        None
    });
    let partition = Rc::new(partition);
    open.partition = Some(OpenPartition { partition, bytes, offset, next_block: 0, bundles });
    Ok(true)
}

/// The bytes of a partition from byte `offset` of the table on, with zeros for the data blocks and the bundle
/// block that cannot be read.
fn read_piecewise(
    entry: &TableDescriptor,
    offset: u32,
    handle: BlockHandle,
    reader: &mut SliceReader<'_>,
) -> Result<Vec<u8>, String> {
    let mut own = Vec::new();
    read_table(entry, handle.offset, handle.len, reader, &mut own)?;
    let partition = Partition::decode(&own).map_err(|e| e.to_string())?;
    let before = usize::try_from(handle.offset - offset).map_err(|e| e.to_string())?;
    let mut bytes = vec![0; before];
    let mut block = Vec::new();
    for data in partition.blocks().iter().copied().chain(partition.bundle_block(handle)) {
        block.clear();
        let place = data.offset.checked_sub(offset).and_then(|from| usize::try_from(from).ok());
        if read_table(entry, data.offset, data.len, reader, &mut block).is_ok()
            && let Some(to) = place.and_then(|from| bytes.get_mut(from..from.checked_add(block.len())?))
        {
            to.copy_from_slice(&block);
        }
    }
    bytes.extend_from_slice(&own);
    Ok(bytes)
}
