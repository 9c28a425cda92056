//! Files that programs have open in a view while one transaction follows another there.
//!
//! A program that makes many short transactions on the same files need not open them in each: a commit that
//! begins the next transaction (*chained*) carries the inodes that the kernel remembers over to it.
//!
//! ```text
//!   first transaction          between                          second transaction
//!   inode 70 ──▶ its node      inode 70 ──▶ place of the file   inode 70 ──▶ its node, at the first request
//! ```
//!
//! # Invariants
//! 1. Between the last answer of one transaction and the first answer of the next one, the kernel's caches of
//!    the view are empty: no page, no attribute and no name of the first one is left (`hold`).
//! 2. No request runs between the two: the holder of [`HeldView`] excludes them (`ShownTransaction::server`).
//! 3. The lookups of an inode are counted in `KernelNodes`, in `CarriedInodes`, or a part in each. It has a
//!    node or a place while the sum is above zero
//!    (`tests::an_inode_is_known_until_all_its_lookups_are_forgotten`).

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLockWriteGuard};
use warpfire_fs::{FilePlace, NodeRef};
use warpfire_fuse::{INodeNo, Notifier};
use warpfire_meta::Storage;

use super::request::{RequestResult, STALE};
use super::view_server::{ServedTransaction, ShownTransaction};
use super::{Refusal, Server, VIEW_ROOT_NUMBER};
use crate::invalidation_gate::InvalidationGate;

/// Most inodes that are carried over. Others must be forgotten before a chained commit.
const CARRIED_MAX: usize = 64;

/// Rounds of emptying the kernel's caches. A program that stores into a mapping all the while could go on for
/// ever.
const ROUNDS_MAX: u32 = 8;

/// An inode of an earlier transaction that the kernel remembers.
struct CarriedInode {
    /// `None` is the root directory.
    place: Option<FilePlace>,
    lookups: u64,
}

/// The inodes of earlier transactions that no request of this one has named yet.
#[derive(Default)]
pub(super) struct CarriedInodes(Mutex<HashMap<u64, CarriedInode, FixedState>>);

impl CarriedInodes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Subtracts lookups that the kernel has forgotten.
    pub(super) fn forget(&self, number: u64, lookups: u64) {
        let mut carried = self.0.lock();
        let Some(inode) = carried.get_mut(&number) else { return };
        inode.lookups = inode.lookups.saturating_sub(lookups);
        if inode.lookups == 0 {
            carried.remove(&number);
        }
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl<E: Storage> Server<E> {
    /// The node of an inode that an earlier transaction has left, at the first request that names it.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode, or if its file is not where it was.
    pub(super) fn find_carried(&self, number: INodeNo) -> RequestResult<NodeRef> {
        let mut carried = self.carried.0.lock();
        let Some(inode) = carried.get(&number.0) else {
            // Another request may have found it since this one looked.
            return self.context.nodes.get(number.0).ok_or(STALE);
        };
        let node = match &inode.place {
            None => self.fs.root(),
            Some(place) => self.fs.find_again(place).map_err(|e| match Refusal::from(e) {
                Refusal(warpfire_fuse::Errno::NOENT) => STALE,
                other => other,
            })?,
        };
        self.context.nodes.count_lookups(number.0, &node, inode.lookups);
        carried.remove(&number.0);
        Ok(node)
    }

    /// Whether the kernel has forgotten every inode.
    pub(super) fn is_forgotten(&self) -> bool {
        self.context.nodes.is_empty() && self.carried.is_empty()
    }

    /// The inodes that the next transaction takes over. `None` if there are too many.
    fn carried_on(&self) -> Option<CarriedInodes> {
        let mut carried = std::mem::take(&mut *self.carried.0.lock());
        if self.context.nodes.len() + carried.len() > CARRIED_MAX {
            *self.carried.0.lock() = carried;
            return None;
        }
        for (number, node, lookups) in self.context.nodes.list() {
            let place = (number != VIEW_ROOT_NUMBER).then(|| node.place());
            let lookups = lookups + carried.get(&number).map_or(0, |inode| inode.lookups);
            carried.insert(number, CarriedInode { place, lookups });
        }
        Some(CarriedInodes(Mutex::new(carried)))
    }
}

/// A view whose transaction ends, while no request runs. Dropped, the view shows no transaction any more.
pub(crate) struct HeldView<'a, E: Storage> {
    shown: &'a ShownTransaction<E>,
    carried: CarriedInodes,
    _no_requests: RwLockWriteGuard<'a, ()>,
}

impl<E: Storage> ShownTransaction<E> {
    /// Empties the kernel's caches of the view, and holds its requests. `None` if programs use too many files
    /// in it, list a directory, or store into mappings all the while: then the transaction goes on.
    pub(crate) fn hold(&self, gate: &InvalidationGate) -> Option<HeldView<'_, E>> {
        let (name, server) = self.start_closing()?;
        let notifier =
            self.connection().notifier.get().expect("the notifier is set before the first request");
        let _announcement = gate.announce();
        let held = self.hold_announced(gate, &name, &server, notifier);
        if held.is_none() {
            gate.lock_exclusive().finish();
            self.stop_closing();
        }
        held
    }

    fn hold_announced(
        &self,
        gate: &InvalidationGate,
        name: &[u8],
        server: &Arc<Server<E>>,
        notifier: &Notifier,
    ) -> Option<HeldView<'_, E>> {
        // The kernel drops all names below, and all inodes that nobody uses.
        if server.context.nodes.has(VIEW_ROOT_NUMBER)
            && let Err(e) = notifier.inval_entry(INodeNo::ROOT, name)
        {
            tracing::debug!(kind = "name", ino = INodeNo::ROOT.0, error = %e, "nothing to invalidate");
        }
        if server.context.nodes.len() > CARRIED_MAX {
            self.wait_until(|| server.context.nodes.len() <= CARRIED_MAX);
        }
        for _ in 0..ROUNDS_MAX {
            for (number, ..) in server.context.nodes.list() {
                // It sends the changed pages of mappings first.
                if let Err(e) = notifier.inval_inode(INodeNo(number), 0, 0) {
                    tracing::debug!(kind = "file", ino = number, error = %e, "nothing to invalidate");
                }
            }
            let no_requests = self.requests().write();
            let exclusive = gate.lock_exclusive();
            if !exclusive.take_stale().is_empty() {
                continue;
            }
            if server.open_dirs.are_any() {
                return None;
            }
            let carried = server.carried_on()?;
            exclusive.finish();
            return Some(HeldView { shown: self, carried, _no_requests: no_requests });
        }
        None
    }
}

impl<E: Storage> HeldView<'_, E> {
    /// Shows the next transaction, by its name, and lets requests go on.
    pub(crate) fn show(mut self, name: &str, mut server: Server<E>) {
        server.carried = std::mem::take(&mut self.carried);
        let shown = ServedTransaction::new(name, server);
        let before = self.shown.replace(Some(shown));
        // Dropped without a lock: it releases slices.
        drop(self);
        drop(before);
    }
}

impl<E: Storage> Drop for HeldView<'_, E> {
    fn drop(&mut self) {
        // Still closing: `show` has not been called.
        let ended = self.shown.take_closing();
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_known_until_all_its_lookups_are_forgotten() {
        let carried = CarriedInodes::default();
        carried.0.lock().insert(70, CarriedInode { place: None, lookups: 3 });
        carried.forget(71, 1);
        carried.forget(70, 2);
        assert!(!carried.is_empty());
        carried.forget(70, 1);
        assert!(carried.is_empty());
    }
}
