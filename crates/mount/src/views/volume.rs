//! The announced change of volumes: the kernel forgets the name of the door, and all behind a door that goes.
//! It is an announced commit (`announce.rs`) with few changes.

use std::collections::BTreeSet;

use warpfire_fs::{FsError, VolumeInfo, VolumeOrder};
use warpfire_meta::{SnapshotStore, Storage};

use super::Views;
use super::announce::{CachedChanges, ROUNDS_MAX};
use crate::invalidation_gate::StaleEntries;

impl<E: Storage + SnapshotStore> Views<E> {
    /// As `Fs::change_volume`. On return the kernel's caches hold nothing that it has changed.
    pub(crate) fn change_volume_announced(&self, order: &VolumeOrder<'_>) -> Result<VolumeInfo, FsError> {
        let _one_at_a_time = self.committing.lock();
        let _announcement = self.main.gate.announce();
        let outcome = self.finish_volume_change(order);
        self.main.changes.mark();
        outcome
    }

    /// Makes the change that is announced, and ends the announcement.
    fn finish_volume_change(&self, order: &VolumeOrder<'_>) -> Result<VolumeInfo, FsError> {
        let gate = &self.main.gate;
        let mut before = CachedChanges::default();
        if let Err(e) = self.fs.visit_door(order, &mut |changed| self.add_cached(changed, &mut before)) {
            gate.lock_exclusive().finish();
            return Err(e);
        }
        gate.set_changed_files(before.files.clone());
        let mut stale = StaleEntries { files: before.files, names: true, ..StaleEntries::default() };
        for round in 1.. {
            self.invalidate_caches(&before.names, &stale);
            // Not held while caches are emptied: the kernel may wait for answers then (invariant 4 of the
            // gate).
            let exclusive = gate.lock_exclusive();
            stale = exclusive.take_stale();
            if !stale.is_empty() && round < ROUNDS_MAX {
                continue;
            }
            let mut after = CachedChanges::default();
            let outcome = self.fs.change_volume(order, &mut |changed| self.add_cached(changed, &mut after));
            exclusive.finish();
            let files: BTreeSet<u64> = after.files.union(&stale.files).copied().collect();
            self.invalidate_caches(&after.names, &StaleEntries { files, names: true, ..stale });
            gate.forget_stale_pages();
            return outcome;
        }
        unreachable!("the last round returns")
    }
}
