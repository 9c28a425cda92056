//! Tables: sorted, immutable files of key versions in the log, read block by block through a bounded cache.

mod cache;
mod cursor;
mod stream;
mod writer;

use std::sync::{Arc, OnceLock};
use warpfire_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use warpfire_format::Corrupt;
use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{BlockHandle, DataBlock, Partition, TopIndex};
use warpfire_log::{LogError, LogStore};
use warpfire_units::SlicePtr;

pub use cache::CacheMemory;

pub(crate) use cache::BlockCache;
pub(crate) use cursor::RunCursor;
pub(crate) use stream::RunStream;
pub(crate) use writer::TableWriter;

use crate::snapshot::SnapshotRegistry;
use crate::store::MetaError;
use cache::CachedBlock;

const BLOCK_OUTSIDE: Corrupt = Corrupt::new(306, "a block lies outside its table or partition");

/// A table of a table set. When the last reader of a removed table drops it, its bytes are released.
pub(crate) struct Table<L: LogStore> {
    entry: Arc<TableDescriptor>,
    log: Arc<L>,
    removed: AtomicBool,
    /// A rewrite could not read or decode some of it.
    unreadable: AtomicBool,
    /// The number of released snapshots when a job at the bottom chose its versions; `u64::MAX` if that is
    /// not known.
    folded_at: AtomicU64,
    /// Stays in memory after the first read: some 4 KiB for a table of 16 MiB, and every lookup needs it.
    top: OnceLock<TopIndex>,
}

/// The versions of one key: their block and the first one's place in it.
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
            folded_at: AtomicU64::new(u64::MAX),
            top: OnceLock::new(),
        }
    }

    pub(crate) fn entry(&self) -> &Arc<TableDescriptor> {
        &self.entry
    }

    /// Marks the table as removed. The edit that removes it must be durable.
    pub(crate) fn mark_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// Notes that the table has only versions that some reader saw when so many snapshots had been released,
    /// and that no table has older versions of its keys.
    pub(crate) fn mark_folded(&self, released: u64) {
        self.folded_at.store(released, Ordering::Relaxed);
    }

    /// Whether a rewrite at the bottom may drop a version. A seq that no version of the table is newer than
    /// divides none of them, so its release changes nothing here.
    pub(crate) fn may_drop(&self, snapshots: &SnapshotRegistry) -> bool {
        if self.entry.deletes == 0 && self.entry.superseded == 0 {
            return false;
        }
        let folded_at = self.folded_at.load(Ordering::Relaxed);
        folded_at == u64::MAX || snapshots.released_below(folded_at, self.entry.seq_max)
    }

    /// Whether a rewrite has failed to read the table. Then the table is not rewritten before the pool is
    /// reopened.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.unreadable.load(Ordering::Acquire)
    }

    /// Reads a range of the table, which may reach over several slices.
    pub(crate) fn read(&self, handle: BlockHandle) -> Result<Vec<u8>, MetaError> {
        self.read_by(handle, |slice, buf| self.log.read(slice, buf))
    }

    /// As `read`, through read-ahead: blocks near this one may be needed soon.
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
        debug_assert!(
            reads.iter().all(|(slice, buf)| slice.len_bytes as usize == buf.len()),
            "a buffer fits its slice"
        );
        // A handle from flash may be wrong.
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

    /// Finds the key's versions in this table.
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

/// Adds appended slices to a list, and joins neighbours that lie side by side in a segment.
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
