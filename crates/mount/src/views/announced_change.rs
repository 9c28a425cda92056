//! Announced changes of which the parts are known only when they are made: a rollback, and a change of a
//! volume.
//!
//! Each is an announced commit (`announce.rs`). The kernel's caches are emptied of the changes that a look
//! beforehand finds, and afterwards of those that were made.

use std::collections::BTreeSet;

use warpfire_fs::{FsError, Invalidation, Rollback, VolumeInfo, VolumeOrder};
use warpfire_meta::{SnapshotStore, Storage};

use super::Views;
use super::announce::{CachedChanges, ROUNDS_MAX};
use crate::invalidation_gate::StaleEntries;

/// Called with each cache entry that becomes stale.
type Changed<'a> = &'a mut dyn FnMut(Invalidation<'_>);

impl<E: Storage + SnapshotStore> Views<E> {
    /// As `Fs::roll_back`. On return the kernel's caches hold nothing that it has changed.
    pub(crate) fn roll_back_announced(&self, name: &[u8], kept_as: &[u8]) -> Result<Rollback, FsError> {
        self.change_announced(
            |changed| self.fs.changed_since(name, changed),
            |changed| self.fs.roll_back(name, kept_as, changed),
        )
    }

    /// As `Fs::change_volume`. On return the kernel's caches hold nothing that it has changed: neither the
    /// name of the door nor the files behind a door that goes.
    pub(crate) fn change_volume_announced(&self, order: &VolumeOrder<'_>) -> Result<VolumeInfo, FsError> {
        self.change_announced(
            |changed| self.fs.visit_door(order, changed),
            |changed| self.fs.change_volume(order, changed),
        )
    }

    /// Makes a change that `look` foresees.
    fn change_announced<T>(
        &self,
        look: impl FnOnce(Changed<'_>) -> Result<(), FsError>,
        change: impl FnMut(Changed<'_>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let _one_at_a_time = self.committing.lock();
        let _announcement = self.main.gate.announce();
        let outcome = self.finish_change(look, change);
        self.main.changes.mark();
        outcome
    }

    /// Makes the change that is announced, and ends the announcement.
    fn finish_change<T>(
        &self,
        look: impl FnOnce(Changed<'_>) -> Result<(), FsError>,
        mut change: impl FnMut(Changed<'_>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let gate = &self.main.gate;
        let mut before = CachedChanges::default();
        if let Err(e) = look(&mut |changed| self.add_cached(changed, &mut before)) {
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
            let pages = match self.content_before(&stale) {
                Ok(pages) => pages,
                Err(e) => {
                    exclusive.finish();
                    return Err(e);
                }
            };
            let mut after = CachedChanges::default();
            let outcome = change(&mut |changed| self.add_cached(changed, &mut after));
            match &outcome {
                Ok(_) => exclusive.finish_with(pages),
                Err(_) => exclusive.finish(),
            }
            // The files that have changed since the look, and those that the last round has left.
            let files: BTreeSet<u64> = after.files.union(&stale.files).copied().collect();
            self.invalidate_caches(&after.names, &StaleEntries { files, names: true, ..stale });
            gate.forget_stale_pages();
            return outcome;
        }
        unreachable!("the last round returns")
    }

    /// Adds what the kernel may have cached.
    fn add_cached(&self, changed: Invalidation<'_>, cached: &mut CachedChanges) {
        match changed {
            Invalidation::Name(dir, name) => {
                if self.main.nodes.get(dir).is_some() {
                    cached.names.push((dir, name.to_vec()));
                }
            }
            Invalidation::File(ino) => _ = cached.files.insert(ino),
        }
    }
}
