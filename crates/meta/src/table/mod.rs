//! Tables: sorted, immutable files of key versions in the log, read block by block through a bounded cache.

mod cache;
mod cursor;
mod passing;
mod stream;
mod writer;

use std::sync::{Arc, OnceLock};
use warpfire_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use warpfire_format::Corrupt;
use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{
    BlockHandle, BundleIndex, DataBlock, KeyVersion, Partition, TopIndex, VersionKind, decode_bundle,
};
use warpfire_log::{LogError, LogStore};
use warpfire_units::{Seq, SlicePtr};

pub use cache::CacheMemory;

pub(crate) use cache::BlockCache;
pub(crate) use cursor::RunCursor;
pub(crate) use stream::RunStream;
pub(crate) use writer::TableWriter;

use crate::domain::OriginTable;
use crate::snapshot::SnapshotRegistry;
use crate::store::{MetaError, WantedBytes};
use cache::{BlockUse, CachedBlock};

const BLOCK_OUTSIDE: Corrupt = Corrupt::new(306, "a block lies outside its table or partition");

/// A number that is not known.
const UNKNOWN: u64 = u64::MAX;

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
    /// Of a table of the past: the number of held seqs that could read it when its versions were chosen, or
    /// when the engine first looked; `UNKNOWN` before.
    readers: AtomicU64,
    /// Stays in memory after the first read: some 4 KiB for a table of 16 MiB, and every lookup needs it.
    top: OnceLock<TopIndex>,
}

/// The one data block of a table that may hold a key.
pub(crate) struct KeyPlace {
    /// The block of its partition.
    own: BlockHandle,
    partition: Arc<Partition>,
    /// Number of the data block in the partition.
    number: usize,
}

/// A bundle that was read.
pub(crate) struct ReadBundle {
    bytes: Arc<Vec<u8>>,
    value_start: usize,
    edit: Box<[u8]>,
}

impl ReadBundle {
    /// The version that it stands for: the edit, if there is one, over the bundle's value.
    pub(crate) fn versions<'b>(&'b self, key: &'b [u8]) -> impl Iterator<Item = KeyVersion<'b>> {
        let version = move |kind, value| KeyVersion { key, seq: Seq(0), kind, value };
        let edit = (!self.edit.is_empty()).then(|| version(VersionKind::Merge, &self.edit));
        edit.into_iter().chain([version(VersionKind::Put, &self.bytes[self.value_start..])])
    }
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
            folded_at: AtomicU64::new(UNKNOWN),
            readers: AtomicU64::new(UNKNOWN),
            top: OnceLock::new(),
        }
    }

    pub(crate) fn entry(&self) -> &Arc<TableDescriptor> {
        &self.entry
    }

    /// Whether a reader has opened the table.
    #[cfg(test)]
    pub(crate) fn is_open(&self) -> bool {
        self.top.get().is_some()
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
    /// divides none of them, so its release changes nothing here. In a removed domain any release may.
    pub(crate) fn may_drop(&self, snapshots: &SnapshotRegistry, domains: Option<&OriginTable>) -> bool {
        let TableDescriptor { deletes, superseded, seq_max, smallest, largest, .. } = &*self.entry;
        let has_removed = domains.is_some_and(|table| table.has_removed_between(smallest, largest));
        if *deletes == 0 && *superseded == 0 && !has_removed {
            return false;
        }
        let folded_at = self.folded_at.load(Ordering::Relaxed);
        folded_at == UNKNOWN
            || has_removed && folded_at != snapshots.released()
            || snapshots.released_below(folded_at, *seq_max)
    }

    /// Whether a table of the past may have a version for a reader at this seq. The delete with its highest
    /// seq ends the last of them.
    #[inline]
    pub(crate) fn is_read_at(&self, at: Seq) -> bool {
        self.entry.seq_min <= at && at < self.entry.seq_max
    }

    /// Notes how many held seqs may read the table, which is of the past.
    pub(crate) fn note_readers(&self, readers: u64) {
        self.readers.store(readers, Ordering::Relaxed);
    }

    /// The number that was noted last; `None` if none was since the engine was opened.
    pub(crate) fn noted_readers(&self) -> Option<u64> {
        Some(self.readers.load(Ordering::Relaxed)).filter(|readers| *readers != UNKNOWN)
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
        let mut rest = bytes.as_mut_slice();
        let mut reads: Vec<(SlicePtr, &mut [u8])> = Vec::new();
        for slice in self.slices_of(handle) {
            let (head, tail) = rest.split_at_mut(slice.len_bytes as usize);
            reads.push((slice, head));
            rest = tail;
        }
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

    /// The slices which make up a range of the table. They are shorter than the range if it ends outside.
    fn slices_of(&self, handle: BlockHandle) -> impl Iterator<Item = SlicePtr> {
        let (mut skip, mut rest_bytes) = (handle.offset, handle.len);
        self.entry.slices.iter().filter_map(move |slice| {
            let (start, len) = (skip, rest_bytes.min(slice.len_bytes.saturating_sub(skip)));
            skip = skip.saturating_sub(slice.len_bytes);
            rest_bytes -= len;
            (len > 0).then(|| slice.part(start, len))
        })
    }

    /// Whether a block can be had without a read of a device.
    fn is_in_memory(&self, handle: BlockHandle, cache: &BlockCache) -> bool {
        cache.holds(self.entry.id, handle) || self.slices_of(handle).all(|slice| cache.ahead().holds(slice))
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

    fn partition(
        &self,
        handle: BlockHandle,
        used: BlockUse,
        cache: &BlockCache,
    ) -> Result<Arc<Partition>, MetaError> {
        debug_assert_ne!(used, BlockUse::Lookup, "a partition of a lookup is an index");
        let block = cache.get_or_read(self.entry.id, handle, used, || {
            Ok(CachedBlock::Partition(Arc::new(Partition::decode(&self.read_block(handle, cache)?)?)))
        })?;
        match block {
            CachedBlock::Partition(partition) => Ok(partition),
            // A handle from flash may be wrong.
            _ => Err(BLOCK_OUTSIDE.into()),
        }
    }

    fn bundles(&self, handle: BlockHandle, cache: &BlockCache) -> Result<Arc<BundleIndex>, MetaError> {
        let block = cache.get_or_read(self.entry.id, handle, BlockUse::Index, || {
            Ok(CachedBlock::Bundles(Arc::new(BundleIndex::decode(&self.read_block(handle, cache)?)?)))
        })?;
        match block {
            CachedBlock::Bundles(bundles) => Ok(bundles),
            _ => Err(BLOCK_OUTSIDE.into()),
        }
    }

    fn data(
        &self,
        handle: BlockHandle,
        used: BlockUse,
        cache: &BlockCache,
    ) -> Result<Arc<DataBlock>, MetaError> {
        let block = cache.get_or_read(self.entry.id, handle, used, || {
            Ok(CachedBlock::Data(Arc::new(DataBlock::decode(&self.read_block(handle, cache)?)?)))
        })?;
        match block {
            CachedBlock::Data(data) => Ok(data),
            _ => Err(BLOCK_OUTSIDE.into()),
        }
    }

    /// Finds the key's versions in this table.
    pub(crate) fn find(
        &self,
        key: &[u8],
        hash: u64,
        cache: &BlockCache,
    ) -> Result<Option<FoundVersions>, MetaError> {
        let Some(place) = self.place(key, hash, cache)? else { return Ok(None) };
        self.find_at(&place, key, cache)
    }

    /// The data block that may hold the key; `None` if the filter excludes it.
    pub(crate) fn place(
        &self,
        key: &[u8],
        hash: u64,
        cache: &BlockCache,
    ) -> Result<Option<KeyPlace>, MetaError> {
        let top = self.top()?;
        let own = top.partitions()[top.find(key)];
        let partition = self.partition(own, BlockUse::Index, cache)?;
        if !partition.may_hold(hash) {
            return Ok(None);
        }
        let number = partition.find(key);
        Ok(Some(KeyPlace { own, partition, number }))
    }

    /// Finds the key's versions in its data block.
    pub(crate) fn find_at(
        &self,
        place: &KeyPlace,
        key: &[u8],
        cache: &BlockCache,
    ) -> Result<Option<FoundVersions>, MetaError> {
        let block = self.data(place.partition.blocks()[place.number], BlockUse::Lookup, cache)?;
        let start = block.find(key);
        Ok((start < block.len() && block.key(start) == key).then_some(FoundVersions { block, start }))
    }

    /// The newest version of the key in this table, by one read of its bundle, or by none if the bundle was
    /// kept. `None` if the version has none, if it cannot be read, or if it was not kept and either only a
    /// kept one is wanted or the data block, which is in memory, has all that the caller needs. The caller
    /// holds a pin, or the bundle may be gone.
    pub(crate) fn read_bundle(
        &self,
        place: &KeyPlace,
        key: &[u8],
        hash: u64,
        wanted: WantedBytes,
        cache: &BlockCache,
    ) -> Option<ReadBundle> {
        let KeyPlace { own, partition, number } = place;
        let if_kept = match wanted {
            WantedBytes::Now | WantedBytes::Soon => self.is_in_memory(partition.blocks()[*number], cache),
            WantedBytes::Again | WantedBytes::InParts => false,
            WantedBytes::IfKept => true,
        };
        let handle = partition.bundle_block(*own)?;
        // It was read with the bundle, if that is kept.
        if if_kept && !cache.holds(self.entry.id, handle) {
            return None;
        }
        // Whatever goes wrong here, the data block has the record too.
        let bundles = self.bundles(handle, cache).ok()?;
        for entry in bundles.find(*number, hash) {
            let slice = entry.bundle.slice;
            let kept = cache.bundle(slice);
            let is_kept = kept.is_some();
            let read = || if if_kept { None } else { self.read_slice(slice, cache) };
            let Some(bytes) = kept.or_else(read) else { continue };
            // Another key may have the same fingerprint.
            if let Some((found, value)) = decode_bundle(&bytes)
                && found == key
            {
                let value_start = bytes.len() - value.len();
                let used = match wanted {
                    WantedBytes::Again => Some(BlockUse::Bytes),
                    WantedBytes::Soon | WantedBytes::InParts => Some(BlockUse::Scan),
                    WantedBytes::Now | WantedBytes::IfKept => None,
                };
                if let Some(used) = used.filter(|_| !is_kept) {
                    let data = (self.entry.id, partition.blocks()[*number]);
                    cache.keep_bundle(slice, Arc::clone(&bytes), data, used);
                }
                return Some(ReadBundle { bytes, value_start, edit: entry.bundle.edit });
            }
        }
        None
    }
}

impl<L: LogStore> Table<L> {
    /// The bytes of a slice outside of the table; `None` if they cannot be read.
    fn read_slice(&self, slice: SlicePtr, cache: &BlockCache) -> Option<Arc<Vec<u8>>> {
        let mut bytes = vec![0; slice.len_bytes as usize];
        cache.ahead().read(&*self.log, slice, &mut bytes).ok()?;
        Some(Arc::new(bytes))
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
