//! What commits remove, and what the engine keeps until they are durable.
//!
//! A crash may take a commit back that removes the record of a snapshot, a bookmark, a domain, an origin or a
//! rollback. The versions that the record holds must be there then. So the engine goes on holding them until
//! a sync covers the commit: a *pending removal* ends then.
//!
//! # Invariants
//! 1. A removal ends after the sync that covers its commit, and in the order of commits of one key.
//! 2. When a sync has returned, every removal that it covers has ended (`sync`).
//! 3. A sync that fails ends nothing and forgets nothing: the next one that succeeds ends them all
//!    (`tests::removals`).

use warpfire_env::sync::Mutex;
use warpfire_env::sync::atomic::Ordering;
use warpfire_log::LogStore;
use warpfire_units::Seq;

use crate::domain::{DomainId, DomainRecord, RollbackRecord};
use crate::engine::EngineInner;
use crate::schema::Schema;

/// What a commit removes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Removal {
    Snapshot(Seq),
    Bookmark(Seq),
    /// The record says that the domain is removed.
    Domain(DomainRecord),
    /// The record of a removed domain.
    DomainRecord(DomainId),
    /// The origin in the record of a domain.
    Origin(DomainId),
    Rollback(RollbackRecord),
}

impl Removal {
    /// Whether another one of the same changes nothing. Bookmarks of one seq are counted.
    fn is_once(&self) -> bool {
        !matches!(self, Removal::Bookmark(_))
    }
}

/// The removals of which the commit may not be durable, in the order in which they were added, each with the
/// seq of its commit.
#[derive(Default)]
pub(crate) struct PendingRemovals(Mutex<Vec<(Seq, Removal)>>);

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Ends a removal once its commit is durable.
    pub(crate) fn remove_when_durable(&self, commit: Seq, removal: Removal) {
        debug_assert!(commit <= self.newest(), "the commit is there");
        let mut pending = self.removals.0.lock();
        if !(removal.is_once() && pending.iter().any(|(_, other)| *other == removal)) {
            pending.push((commit, removal));
        }
        drop(pending);
        // The sync of another thread may have covered the commit before.
        self.end_removals();
    }

    /// Ends the removals that are durable.
    pub(crate) fn end_removals(&self) {
        // Held to the end: whoever finds nothing to do here returns after all of it is done.
        let mut pending = self.removals.0.lock();
        if pending.is_empty() {
            return;
        }
        let durable = Seq(self.durable.load(Ordering::Acquire));
        let due: Vec<(Seq, Removal)> = pending.extract_if(.., |(commit, _)| *commit <= durable).collect();
        due.iter().for_each(|(_, removal)| self.end_removal(*removal));
        drop(pending);
        if !due.is_empty() {
            // Work that came to nothing before may gain space now.
            self.wake_background();
        }
    }

    fn end_removal(&self, removal: Removal) {
        match removal {
            Removal::Snapshot(seq) => return self.snapshots.forget(seq),
            Removal::Bookmark(seq) => return self.snapshots.forget_bookmark(seq),
            Removal::Domain(record) => _ = self.domains.set(record),
            Removal::DomainRecord(domain) => _ = self.domains.remove(domain),
            Removal::Origin(domain) => self.domains.forget_origin(domain),
            Removal::Rollback(record) => self.domains.remove_rollback(record.domain, record.at),
        }
        self.snapshots.note_removal();
    }
}
