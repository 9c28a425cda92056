//! Files without a name: removed when no one holds them any more, step by step, and by whoever opens the pool after a crash.
//!
//! # Invariant
//! An orphan's record goes in the commit that removes the last of its other keys, so a crash leaves something to resume from.

use warpfire_format::fs::{Inode, Key, KeyBuf, REGION_BYTES, flag, region_key, region_range, xattr_key};
use warpfire_meta::{Admit, Batch, Direction, KeyRange, ScanPage, Storage};

use crate::damage::{REGION_PAST_END, WRONG_RANGE};
use crate::deferred::{BYTES, INODES};
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::{FILE_BYTES_MAX, ORPHAN_STEP_REGIONS, PAGE_BYTES, PAGE_ENTRIES, REGIONS_BLIND_MAX};
use crate::node::{Layout, NodeState};

/// The region in which the largest file ends.
const REGION_INDEX_MAX: u64 = FILE_BYTES_MAX / REGION_BYTES as u64;

/// Called with a region's index and value; `false` ends the walk.
type RegionVisitor<'v> = dyn FnMut(u64, &[u8]) -> Result<bool, FsError> + 'v;

impl<E: Storage> Fs<E> {
    /// Removes files that have neither a name nor a holder any more. Calls that can make such files do this themselves; call it after
    /// letting go of the last `NodeRef` to a file that was unlinked, to have its space back at once.
    ///
    /// # Errors
    /// What committing says; the rest is tried again later.
    pub fn reap(&self) -> Result<(), FsError> {
        if self.call_gate.is_transaction() {
            // Whoever holds such a file outside: the base removes it once the transaction has been committed.
            return Ok(());
        }
        self.leases.expire(self.clock.now());
        let _guard = self.call_gate.enter();
        for ino in self.inode_cache.take_unheld_orphans() {
            if let Err(e) = self.remove_orphan(ino) {
                self.inode_cache.return_unheld_orphan(ino);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Removes all orphans: no one can hold one when the pool is opened.
    pub(crate) fn remove_left_orphans(&self) -> Result<(), FsError> {
        loop {
            let orphans = self.some_orphans()?;
            if orphans.is_empty() {
                return Ok(());
            }
            for ino in orphans {
                self.remove_orphan(ino)?;
            }
        }
    }

    fn some_orphans(&self) -> Result<Vec<u64>, FsError> {
        let start = Key::Orphan(self.volume, 1).encode();
        let end = Key::Orphan(self.volume, u64::MAX).encode();
        let mut page = ScanPage::default();
        let snapshot = self.engine.snapshot();
        let range = KeyRange { start: &start, end: Some(&end) };
        let at = self.engine.seq(&snapshot);
        self.engine.scan(range, at, Direction::Forward, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
        let mut orphans = Vec::new();
        for entry in page.iter() {
            if let Key::Orphan(_, ino) = Key::decode(entry.key)? {
                orphans.push(ino);
            }
        }
        Ok(orphans)
    }

    fn remove_orphan(&self, ino: u64) -> Result<(), FsError> {
        let key = Key::Orphan(self.volume, ino).encode();
        let mut value = Vec::new();
        if !self.get(&key, &mut value)? {
            return Ok(());
        }
        let inode = Inode::decode(&value)?;
        let state = NodeState::new(&inode, crate::node::RecordLocation::Orphan { linkable: false });
        loop {
            let mut batch = Batch::new();
            let last = self.plan_content_removal(ino, &state, ORPHAN_STEP_REGIONS, &mut batch)?;
            if last {
                batch.delete(&key);
                batch.add(INODES, -1);
                batch.add(BYTES, -state.attrs.allocated_bytes.cast_signed());
            }
            self.commit(&batch, Admit::Reserve)?;
            if last {
                return Ok(());
            }
        }
    }

    /// Adds to the batch what deletes an inode's regions and attributes, up to about `max` keys; `false` if that is not all of them.
    pub(crate) fn plan_content_removal(
        &self,
        ino: u64,
        state: &NodeState,
        max: usize,
        batch: &mut Batch,
    ) -> Result<bool, FsError> {
        if state.attrs.flags & flag::XATTRS != 0 {
            self.for_each_xattr(ino, &mut |name| {
                batch.delete(&xattr_key(self.volume, ino, name));
                Ok(())
            })?;
        }
        if state.layout != Layout::Regions {
            return Ok(true);
        }
        let regions = self.regions_from(ino, 0, state.attrs.size_bytes, max)?;
        for index in &regions {
            batch.delete(&region_key(self.volume, ino, *index));
        }
        Ok(regions.len() < max)
    }

    /// Indices of up to `max` regions, from `first` on, among which are all that exist in a file of this size.
    pub(crate) fn regions_from(
        &self,
        ino: u64,
        first: u64,
        size: u64,
        max: usize,
    ) -> Result<Vec<u64>, FsError> {
        let past = size.div_ceil(u64::from(REGION_BYTES));
        if past.saturating_sub(first) <= REGIONS_BLIND_MAX {
            return Ok((first..past).collect());
        }
        let mut found = Vec::new();
        self.for_each_region(ino, first, past, &mut |index, _| {
            found.push(index);
            Ok(found.len() < max)
        })?;
        Ok(found)
    }

    /// Visits regions that exist, in order, from `first` on and below `past`, until `visit` says `false`.
    pub(crate) fn for_each_region(
        &self,
        ino: u64,
        first: u64,
        past: u64,
        visit: &mut RegionVisitor<'_>,
    ) -> Result<(), FsError> {
        let (mut start, mut end) = region_range(self.volume, ino, first);
        if past <= REGION_INDEX_MAX {
            end = region_key(self.volume, ino, past.max(first));
        }
        let snapshot = self.engine.snapshot();
        let at = self.engine.seq(&snapshot);
        let mut page = ScanPage::default();
        loop {
            let range = KeyRange { start: &start, end: Some(&end) };
            self.engine.scan(range, at, Direction::Forward, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
            for entry in page.iter() {
                let Key::Region(_, _, index) = Key::decode(entry.key)? else {
                    return Err(WRONG_RANGE.into());
                };
                if index > REGION_INDEX_MAX {
                    return Err(REGION_PAST_END.into());
                }
                if !visit(index, entry.value)? {
                    return Ok(());
                }
            }
            let Some(last) = page.iter().last().filter(|_| page.more) else { return Ok(()) };
            start = KeyBuf::from_slice(last.key);
            start.push(0);
        }
    }
}
