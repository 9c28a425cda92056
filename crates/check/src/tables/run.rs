//! Reading one run front to back. One partition is in memory at a time.

use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{BlockHandle, DataBlock, KeyVersion, Partition, TopIndex};

use super::verify::TableFacts;
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

/// A decoded partition block with the bytes of its data blocks.
struct OpenPartition {
    partition: Partition,
    /// The partition's bytes, from `offset` of the table on.
    bytes: Vec<u8>,
    offset: u32,
    next_block: usize,
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
    /// Part of a table could not be read, so the run may have more keys.
    pub(crate) has_holes: bool,
}

impl<'a> RunReader<'a> {
    pub(crate) fn new(tables: Vec<&'a TableDescriptor>, verify: bool) -> Self {
        RunReader {
            tables: tables.into_iter(),
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
                match open_partition(open, reader) {
                    Ok(true) => {}
                    Ok(false) => self.close_table(reader, findings),
                    // The walk goes on behind the damage. The table's facts are dropped: its sums would be
                    // wrong.
                    Err(message) => {
                        self.has_holes = true;
                        let handle =
                            format_args!("table {} partition {}", open.entry.id, open.next_partition - 1);
                        findings.error(FindingCode::TableBlock, handle, message);
                        open.facts = None;
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
                        let partition_number = open.next_partition - 1;
                        let index = (&open.top, partition_number, &partition.partition, number);
                        facts.take_block(open.entry, &block, index, reader, findings);
                    }
                    return Some(block);
                }
                Err(message) => {
                    self.has_holes = true;
                    let at = format_args!("table {} block at byte {}", open.entry.id, handle.offset);
                    findings.error(FindingCode::TableBlock, at, message);
                    open.facts = None;
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
                    self.open = Some(OpenTable { entry, top, next_partition: 0, partition: None, facts });
                    return Some(());
                }
                Err(message) => {
                    self.has_holes = true;
                    findings.error(
                        FindingCode::TableBlock,
                        format_args!("table {} top block", entry.id),
                        message,
                    );
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

fn block_bytes(partition: &OpenPartition, handle: BlockHandle) -> Option<&[u8]> {
    let from = usize::try_from(handle.offset.checked_sub(partition.offset)?).ok()?;
    partition.bytes.get(from..from.checked_add(usize::try_from(handle.len).ok()?)?)
}

/// Reads the next partition with its data blocks. `false` after the last.
fn open_partition(open: &mut OpenTable<'_>, reader: &mut SliceReader<'_>) -> Result<bool, String> {
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
    read_table(open.entry, offset, len, reader, &mut bytes)?;
    let own = usize::try_from(handle.offset - offset).ok().and_then(|at| bytes.get(at..));
    let partition = Partition::decode(own.unwrap_or(&[])).map_err(|e| e.to_string())?;
    let first = partition.blocks().first().map(|b| b.offset);
    let last = partition.blocks().last().and_then(|b| b.offset.checked_add(b.len));
    if first != Some(offset) || last != Some(handle.offset) {
        return Err(format!("its data blocks do not fill bytes {offset} to {}", handle.offset));
    }
    open.partition = Some(OpenPartition { partition, bytes, offset, next_block: 0 });
    Ok(true)
}
