//! The announced rollback: the kernel's caches are emptied of everything that has changed since the snapshot,
//! then the tree goes back.
//!
//! It is an announced commit (`announce.rs`) of which the changes are known only when it is made. So the
//! caches are emptied of the changes that a look beforehand finds, and afterwards of those that were written
//! back.

use std::collections::BTreeSet;

use warpfire_fs::{FsError, Invalidation, Rollback};
use warpfire_meta::{SnapshotStore, Storage};

use super::Views;
use super::announce::{CachedChanges, ROUNDS_MAX};
use crate::invalidation_gate::StaleEntries;

impl<E: Storage + SnapshotStore> Views<E> {
    /// As `Fs::roll_back`. On return the kernel's caches hold nothing that it has changed.
    pub(crate) fn roll_back_announced(&self, name: &[u8], kept_as: &[u8]) -> Result<Rollback, FsError> {
        let _one_at_a_time = self.committing.lock();
        let gate = &self.main.gate;
        let _announcement = gate.announce();
        let outcome = self.finish_rollback(name, kept_as);
        self.main.changes.mark();
        outcome
    }

    /// Makes the rollback that is announced, and ends the announcement.
    fn finish_rollback(&self, name: &[u8], kept_as: &[u8]) -> Result<Rollback, FsError> {
        let gate = &self.main.gate;
        let mut before = CachedChanges::default();
        if let Err(e) = self.fs.changed_since(name, &mut |changed| self.add_cached(changed, &mut before)) {
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
            let outcome =
                self.fs.roll_back(name, kept_as, &mut |changed| self.add_cached(changed, &mut after));
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
    pub(super) fn add_cached(&self, changed: Invalidation<'_>, cached: &mut CachedChanges) {
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
