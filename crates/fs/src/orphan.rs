//! The removal of orphans: files that have lost their last name.
//!
//! An orphan with a holder waits until the last holder drops its node. An orphan without a holder is removed
//! in steps, one commit each, because a large file has more regions than one commit takes.
//!
//! ```text
//!   last name lost ──► orphan record ──► last holder drops its node ──► reap: regions, step by step
//!   (names/departure)      │                                                   │
//!                          └── crash: open removes all orphans ────────────────┴──► record deleted
//! ```
//!
//! # Invariants
//! 1. The record of an orphan is deleted in the commit that deletes the last of its other keys
//!    (`remove_orphan`). So after a crash the record is still there, and the removal resumes (the tests
//!    `bad_days`).
//! 2. Only the base removes orphans: a transaction cannot see holders outside of it (assert in
//!    `remove_orphan`).

use warpfire_format::fs::{
    Inode, Key, KeyBuf, LOCAL_INO_MAX, REGION_BYTES, VolumeId, flag, number_in, volume_of,
};
use warpfire_meta::{Admit, Batch, Direction, KeyRange, RESERVED, ScanPage, Storage};

use crate::damage::{REGION_PAST_END, WRONG_RANGE};
use crate::deferred::{BYTES, INODES};
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::{orphan_key, region_key, region_range, xattr_key};
use crate::limits::{FILE_BYTES_MAX, ORPHAN_STEP_REGIONS, PAGE_BYTES, PAGE_ENTRIES, REGIONS_BLIND_MAX};
use crate::node::{Layout, NodeState, RecordLocation};

/// The region in which the largest file ends.
const REGION_INDEX_MAX: u64 = FILE_BYTES_MAX / REGION_BYTES as u64;

/// Receives a region's index and value; `false` ends the walk.
type RegionVisitor<'v> = dyn FnMut(u64, &[u8]) -> Result<bool, FsError> + 'v;

impl<E: Storage> Fs<E> {
    /// Removes orphans that have no holder any more, and ends the leases that have expired.
    ///
    /// Calls that can leave such an orphan do this themselves. After the drop of the last `NodeRef` of an
    /// unlinked file, a call of `reap` frees its space at once.
    ///
    /// A damaged orphan stays on flash until the next open, which tries again.
    ///
    /// # Errors
    /// `ReadOnly`, `NoSpace`. The orphans that are left stay for the next call.
    pub fn reap(&self) -> Result<(), FsError> {
        if self.call_gate.is_transaction() {
            // The file may be open outside. The base removes it after the commit of the transaction.
            return Ok(());
        }
        self.leases.expire(self.lease_time());
        if self.options.read_only {
            return Ok(());
        }
        let _guard = self.call_gate.enter();
        let mut failure = Ok(());
        for ino in self.inode_cache.take_unheld_orphans() {
            // After a failure the others go back untried: most likely each of them would fail too.
            if failure.is_ok() {
                failure = self.remove_unless_damaged(ino).map(drop);
            }
            if failure.is_err() {
                self.inode_cache.return_unheld_orphan(ino);
            }
        }
        failure
    }

    /// As `reap`, for a call whose commit is visible. An error is not the answer of that call: its name is
    /// gone, and the orphans may be those of others. The next call that reaps tries again.
    pub(crate) fn reap_after_commit(&self) {
        let _ = self.reap();
    }

    /// Removes all orphans and returns how many they were. Only for the open of a filesystem: nothing holds
    /// one then.
    pub(crate) fn remove_left_orphans(&self) -> Result<usize, FsError> {
        let mut removed = 0;
        let live = self.live_volumes()?.into_iter().map(|(volume, _)| volume);
        for volume in std::iter::once(VolumeId::FIRST).chain(live) {
            let mut first = number_in(volume, 1);
            loop {
                let orphans = self.some_orphans(first)?;
                let Some(last) = orphans.last() else { break };
                first = last + 1;
                for ino in orphans {
                    removed += usize::from(self.remove_unless_damaged(ino)?);
                }
            }
        }
        if removed > 0 {
            tracing::info!(orphans = removed, "orphans of an earlier session removed");
        }
        Ok(removed)
    }

    /// Removes an orphan. Returns `false` if damage keeps it: that must stop neither a sync nor an open.
    fn remove_unless_damaged(&self, ino: u64) -> Result<bool, FsError> {
        match self.remove_orphan(ino) {
            Err(error @ FsError::Damaged { .. }) => {
                tracing::warn!(ino, %error, "damaged orphan left");
                Ok(false)
            }
            removed => removed.map(|()| true),
        }
    }

    /// The orphans from number `first` on in order, at most a page of them.
    pub(crate) fn some_orphans(&self, first: u64) -> Result<Vec<u64>, FsError> {
        let start = orphan_key(first);
        let end = orphan_key(number_in(volume_of(first), LOCAL_INO_MAX));
        let mut page = ScanPage::default();
        let snapshot = self.engine.snapshot();
        let range = KeyRange { start: &start, end: Some(&end) };
        let at = self.engine.seq(&snapshot);
        self.engine.scan(range, at, Direction::Forward, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
        let mut orphans = Vec::new();
        for entry in page.iter() {
            if let Key::Orphan(volume, ino) = Key::decode(entry.key)? {
                orphans.push(number_in(volume, ino));
            }
        }
        debug_assert!(orphans.len() <= PAGE_ENTRIES, "a page has at most the entries that were asked for");
        Ok(orphans)
    }

    fn remove_orphan(&self, ino: u64) -> Result<(), FsError> {
        assert!(!self.call_gate.is_transaction(), "only the base removes orphans");
        // It went with its volume.
        if matches!(self.check_live(ino), Err(FsError::Gone)) {
            return Ok(());
        }
        let key = orphan_key(ino);
        let mut value = Vec::new();
        // `link` has given the file a name again, or another thread has removed it.
        if !self.get(&key, &mut value)? {
            return Ok(());
        }
        let inode = Inode::decode(&value)?.in_volume(volume_of(ino));
        let state = NodeState::new(&inode, RecordLocation::Orphan { linkable: false });
        debug_assert!(state.is_unlinked(), "an orphan has no name");
        loop {
            let mut batch = Batch::new();
            let last = self.plan_content_removal(ino, &state, ORPHAN_STEP_REGIONS, &mut batch)?;
            if last {
                batch.delete(&key);
                batch.add(INODES, -1);
                batch.add(BYTES, -state.attrs.allocated_bytes.cast_signed());
                batch.add(RESERVED, -state.attrs.reserved_bytes.cast_signed());
            }
            // From the reserve: the removal of a file is how a full pool becomes less full.
            self.commit(&batch, Admit::Reserve)?;
            if last {
                let bytes = state.attrs.allocated_bytes;
                tracing::debug!(ino, bytes, "orphan removed");
                return Ok(());
            }
        }
    }

    /// Adds to the batch the deletion of an inode's attributes and of up to `max` of its regions. Returns
    /// whether no region is left.
    pub(crate) fn plan_content_removal(
        &self,
        ino: u64,
        state: &NodeState,
        max: usize,
        batch: &mut Batch,
    ) -> Result<bool, FsError> {
        assert!(
            max as u64 > REGIONS_BLIND_MAX,
            "a step takes all regions of a small file, so steps come to an end"
        );
        if state.attrs.flags & flag::XATTRS != 0 {
            self.for_each_xattr(ino, &mut |name| {
                batch.delete(&xattr_key(ino, name));
                Ok(())
            })?;
        }
        if state.layout != Layout::Regions {
            return Ok(true);
        }
        // Each step begins at region 0 again: the regions of earlier steps are gone from the walk.
        let regions = self.regions_from(ino, 0, state.extents_end(), max)?;
        for index in &regions {
            batch.delete(&region_key(ino, *index));
        }
        Ok(regions.len() < max)
    }

    /// Indices of regions from `first` on in a file of `size` bytes, in order. They cover the first `max`
    /// regions that exist, and in a small file some that do not.
    pub(crate) fn regions_from(
        &self,
        ino: u64,
        first: u64,
        size: u64,
        max: usize,
    ) -> Result<Vec<u64>, FsError> {
        let past = size.div_ceil(u64::from(REGION_BYTES));
        // A deletion of a key that does not exist costs less than a scan.
        if past.saturating_sub(first) <= REGIONS_BLIND_MAX {
            return Ok((first..past).collect());
        }
        let mut found = Vec::new();
        self.for_each_region(ino, first, past, &mut |index, _| {
            found.push(index);
            Ok(found.len() < max)
        })?;
        debug_assert!(found.len() <= max, "the walk ends at the last region that was asked for");
        debug_assert!(found.is_sorted_by(|a, b| a < b), "a walk visits each region once, in order");
        Ok(found)
    }

    /// Visits the regions that exist from `first` on and below `past`, in order, until `visit` returns
    /// `false`.
    pub(crate) fn for_each_region(
        &self,
        ino: u64,
        first: u64,
        past: u64,
        visit: &mut RegionVisitor<'_>,
    ) -> Result<(), FsError> {
        self.check_live(ino)?;
        let (mut start, mut end) = region_range(ino, first);
        // Beyond that the range ends at the end of the file's keys, so that a region past the end is found.
        if past <= REGION_INDEX_MAX {
            end = region_key(ino, past.max(first));
        }
        // One snapshot for all pages: the walk sees the file as it was at one moment.
        let snapshot = self.engine.snapshot();
        let at = self.engine.seq(&snapshot);
        let mut page = ScanPage::default();
        loop {
            let range = KeyRange { start: &start, end: Some(&end) };
            self.engine.scan(range, at, Direction::Forward, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
            for entry in page.iter() {
                debug_assert!(entry.key >= &start[..], "a scan returns keys of its range");
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
            // The next key in order is this one with a zero byte after it.
            start = KeyBuf::from_slice(last.key);
            start.push(0);
        }
    }
}
