//! Announced changes of which the parts are known only when they are made: a rollback, and a change of a
//! volume.
//!
//! Each is an announced commit (`announce.rs`). The kernel's caches are emptied of the changes that a look
//! beforehand finds, and afterwards of those that were made.

use warpfire_fs::{ChangeDetail, FsError, Invalidation, Rollback, VolumeInfo, VolumeOrder};
use warpfire_fuse::Notifier;
use warpfire_meta::{SnapshotStore, Storage};

use super::Views;
use super::announce::{CachedChanges, ROUNDS_MAX};
use crate::invalidation_gate::StaleEntries;

/// Called with each cache entry that becomes stale.
type Changed<'a> = &'a mut dyn FnMut(Invalidation<'_>);

impl<E: Storage + SnapshotStore> Views<E> {
    /// As `Fs::roll_back`. On return the kernel's caches hold nothing that it has changed.
    pub(crate) fn roll_back_announced(&self, name: &[u8], kept_as: &[u8]) -> Result<Rollback, FsError> {
        // A kernel that cannot forget all names at once must be given each of them.
        let detail = match self.notifier.get().map(Notifier::forget_names) {
            Some(Ok(())) => ChangeDetail::Few,
            _ => ChangeDetail::All,
        };
        self.change_announced(
            |changed| self.fs.changed_since(name, detail, changed),
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
        // Else any file is noted that the kernel caches from now on.
        if !before.all_names {
            gate.set_changed_files(before.files.clone());
        }
        let mut stale = StaleEntries { files: before.files, names: true, ..StaleEntries::default() };
        for round in 1.. {
            self.forget_all_names(before.all_names);
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
            // The files that have changed since the look, and those that the last round has left. Where all
            // count as changed, those that the kernel has cached since are noted.
            let mut files = stale.files;
            if after.all_names {
                after.names.clone_from(&before.names);
            } else {
                files.append(&mut after.files);
            }
            self.forget_all_names(before.all_names || after.all_names);
            self.invalidate_caches(&after.names, &StaleEntries { files, names: true, pages: stale.pages });
            gate.forget_stale_pages();
            return outcome;
        }
        unreachable!("the last round returns")
    }

    /// Has the kernel look all names up again, if every name is stale.
    fn forget_all_names(&self, are_stale: bool) {
        if are_stale
            && let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.forget_names()
        {
            // The mount has ended: the kernel has taken this notification before.
            tracing::debug!(%error, "no names to forget");
        }
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
            Invalidation::Everything => {
                cached.files.extend(self.main.nodes.known());
                cached.all_names = true;
            }
        }
    }
}
