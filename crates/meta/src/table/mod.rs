//! Tables: sorted, immutable, read block by block through a cache of bounded size.

mod cache;
mod cursor;
mod stream;
mod writer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use warpfire_format::Corrupt;
use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{BlockHandle, DataBlock, Partition, TopIndex};
use warpfire_log::{LogError, LogStore};
use warpfire_units::SlicePtr;

pub(crate) use cache::BlockCache;
pub(crate) use cursor::RunCursor;
pub(crate) use stream::RunStream;
pub(crate) use writer::TableWriter;

use crate::store::MetaError;
use cache::CachedBlock;

const BLOCK_OUTSIDE: Corrupt = Corrupt::new(306, "a block lies outside its table or partition");

/// A table that a version names. Its bytes are given back when the last reader of a removed table lets go.
pub(crate) struct Table<L: LogStore> {
    entry: Arc<TableDescriptor>,
    log: Arc<L>,
    removed: AtomicBool,
    /// Some of it could not be read or decoded when it was to be rewritten.
    unreadable: AtomicBool,
    /// Kept once it was read: some 4 KiB for a table of 16 MiB, and every lookup needs it.
    top: OnceLock<TopIndex>,
}

/// A group of versions of one key: a block and where they begin in it.
pub(crate) struct FoundVersions {
    pub(crate) block: Arc<DataBlock>,
    pub(crate) start: usize,
}

impl<L: LogStore> Table<L> {
    pub(crate) fn new(entry: Arc<TableDescriptor>, log: Arc<L>) -> Self {
        Table {
            entry,
            log,
            removed: AtomicBool::new(false),
            unreadable: AtomicBool::new(false),
            top: OnceLock::new(),
        }
    }

    pub(crate) fn entry(&self) -> &Arc<TableDescriptor> {
        &self.entry
    }

    /// Says that the manifest does not name the table any more, durably.
    pub(crate) fn mark_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// Whether an attempt to rewrite the table has failed for what it reads as. Until the pool is opened again there is no other.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.unreadable.load(Ordering::Acquire)
    }

    /// Reads part of the table, whatever slices it lies in.
    pub(crate) fn read(&self, handle: BlockHandle) -> Result<Vec<u8>, MetaError> {
        self.read_by(handle, |slice, buf| self.log.read(slice, buf))
    }

    /// As `read`, for a block of which others near it may be wanted soon.
    fn read_block(&self, handle: BlockHandle, cache: &BlockCache) -> Result<Vec<u8>, MetaError> {
        self.read_by(handle, |slice, buf| cache.ahead().read(&*self.log, slice, buf))
    }

    fn read_by(
        &self,
        handle: BlockHandle,
        read_one: impl FnOnce(SlicePtr, &mut [u8]) -> Result<(), LogError>,
    ) -> Result<Vec<u8>, MetaError> {
        let mut bytes = vec![0; handle.len as usize];
        let (mut skip, mut rest) = (handle.offset, bytes.as_mut_slice());
        let mut reads: Vec<(SlicePtr, &mut [u8])> = Vec::new();
        for slice in &self.entry.slices {
            if rest.is_empty() {
                break;
            }
            if skip >= slice.len_bytes {
                skip -= slice.len_bytes;
                continue;
            }
            let len = rest.len().min((slice.len_bytes - skip) as usize);
            let (head, tail) = rest.split_at_mut(len);
            reads.push((slice.part(skip, u32::try_from(len).expect("no longer than the slice")), head));
            (skip, rest) = (0, tail);
        }
        if !rest.is_empty() {
            return Err(BLOCK_OUTSIDE.into());
        }
        match reads.as_mut_slice() {
            [(slice, buf)] => read_one(*slice, buf)?,
            reads => self.log.read_many(reads)?,
        }
        Ok(bytes)
    }

    fn top_handle(&self) -> BlockHandle {
        let len = self.entry.top_len_bytes;
        BlockHandle { offset: self.entry.len_bytes - len, len }
    }

    pub(crate) fn top(&self) -> Result<&TopIndex, MetaError> {
        if let Some(top) = self.top.get() {
            return Ok(top);
        }
        let top = TopIndex::decode(&self.read(self.top_handle())?)?;
        Ok(self.top.get_or_init(|| top))
    }

    pub(crate) fn partition(
        &self,
        handle: BlockHandle,
        cache: &BlockCache,
    ) -> Result<Arc<Partition>, MetaError> {
        let block = cache.get_or_read(self.entry.id, handle, || {
            Ok(CachedBlock::Partition(Arc::new(Partition::decode(&self.read_block(handle, cache)?)?)))
        })?;
        match block {
            CachedBlock::Partition(partition) => Ok(partition),
            CachedBlock::Data(_) => unreachable!("a place holds one kind of block"),
        }
    }

    pub(crate) fn data(&self, handle: BlockHandle, cache: &BlockCache) -> Result<Arc<DataBlock>, MetaError> {
        let block = cache.get_or_read(self.entry.id, handle, || {
            Ok(CachedBlock::Data(Arc::new(DataBlock::decode(&self.read_block(handle, cache)?)?)))
        })?;
        match block {
            CachedBlock::Data(data) => Ok(data),
            CachedBlock::Partition(_) => unreachable!("a place holds one kind of block"),
        }
    }

    /// The key's versions in this table.
    pub(crate) fn find(
        &self,
        key: &[u8],
        hash: u64,
        cache: &BlockCache,
    ) -> Result<Option<FoundVersions>, MetaError> {
        let top = self.top()?;
        let partition = self.partition(top.partitions()[top.find(key)], cache)?;
        if !partition.may_hold(hash) {
            return Ok(None);
        }
        let block = self.data(partition.blocks()[partition.find(key)], cache)?;
        let start = block.find(key);
        Ok((start < block.len() && block.key(start) == key).then_some(FoundVersions { block, start }))
    }
}

impl<L: LogStore> Drop for Table<L> {
    fn drop(&mut self) {
        if *self.removed.get_mut() {
            for slice in &self.entry.slices {
                self.log.release(slice.segment, u64::from(slice.len_bytes));
            }
        }
    }
}

impl From<Corrupt> for MetaError {
    fn from(e: Corrupt) -> Self {
        MetaError::Corrupt { code: e.code, reason: e.reason.into() }
    }
}

/// Appends to a stream in pieces that are never split, and joins what came to lie side by side.
pub(crate) fn append_joined(slices: &mut Vec<SlicePtr>, appended: impl IntoIterator<Item = SlicePtr>) {
    for slice in appended {
        match slices.last_mut() {
            Some(last)
                if last.is_followed_by(slice) && last.len_bytes.checked_add(slice.len_bytes).is_some() =>
            {
                last.len_bytes += slice.len_bytes;
            }
            _ => slices.push(slice),
        }
    }
}
