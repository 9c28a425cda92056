//! Savepoints: a transaction rolls back to an earlier moment.
//!
//! The write set undoes its changes, and each node returns to the state that it had, so files that are open
//! in the transaction stay open. Files that were made since are gone. The undone calls stay in the journal:
//! the program has seen their answers, so a replay makes them and undoes them too.
//!
//! # Invariants
//! 1. `Savepoints::live` has the numbers of the savepoints that the transaction can roll back to, in the
//!    order in which they were made. Rolling back to one ends the later ones (asserts in `savepoint` and
//!    `roll_back`).
//! 2. From its first savepoint on a transaction keeps every node until it ends, in one order. So the states
//!    of a savepoint belong to the first nodes of the list (assert in `undo`).

use std::hash::Hasher;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_format::fs::{Dentry, Inode, volume_of};
use warpfire_meta::Storage;

use super::begin::{Transaction, TxFs};
use crate::error::FsError;
use crate::fs::ROOT_INO;
use crate::node::{Node, NodeRef, NodeState, PendingTimes, RecordLocation};
use crate::op::{Digestible, Operation, ReplayScene, Savepoint};

/// The savepoints of one transaction.
#[derive(Default)]
pub(super) struct Savepoints {
    live: Vec<u64>,
}

/// The next savepoint's number. Transactions share the counter, so that a savepoint of another one is
/// recognised.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Savepoints {
    /// Whether the transaction has made none.
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}

impl<E: Storage> Transaction<E> {
    /// Marks this moment, to roll back to.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        let mut savepoints = self.savepoints.lock();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(
            savepoints.live.last().is_none_or(|last| *last < number),
            "later savepoints have larger numbers"
        );
        savepoints.live.push(number);
        self.tx_fs.mark_savepoint(number)
    }

    /// Undoes everything since the savepoint, which stays valid. Files that were made since are gone: calls
    /// on their open nodes fail.
    ///
    /// # Errors
    /// `Invalid` if the transaction has rolled back to an earlier savepoint since, or the savepoint is of
    /// another transaction.
    pub fn roll_back(&self, to: &Savepoint) -> Result<(), FsError> {
        let mut savepoints = self.savepoints.lock();
        let Some(at) = savepoints.live.iter().position(|number| *number == to.number) else {
            return Err(FsError::Invalid("the savepoint is past, or of another transaction"));
        };
        savepoints.live.truncate(at + 1);
        debug_assert!(savepoints.live.is_sorted(), "savepoints are in the order in which they were made");
        self.tx_fs.roll_back_to(to)
    }
}

impl<E: Storage> TxFs<E> {
    fn mark_savepoint(&self, number: u64) -> Savepoint {
        let run = || {
            let look = |node: &NodeRef| (node.state.read().clone(), node.pending_times.get());
            let states = self.inode_cache.keep_first_states(look);
            let mut charge = self.memory.coarse_charge();
            charge.count(states.len() * size_of::<(NodeState, PendingTimes)>());
            let (mark, sums) = (self.engine.mark(), self.deferred.sums());
            Savepoint { number, mark, sums, states, _charge: charge }
        };
        self.call(|| MarkSavepoint { number }, run)
    }

    fn roll_back_to(&self, to: &Savepoint) -> Result<(), FsError> {
        self.call(|| RollBack { number: to.number }, || self.undo(to))
    }

    fn undo(&self, to: &Savepoint) -> Result<(), FsError> {
        assert!(self.call_gate.is_entered(), "no other call of the transaction sees half of it undone");
        // The records first: the nodes are compared with them below.
        self.engine.roll_back(&to.mark);
        self.deferred.set_sums(to.sums);
        let nodes = self.inode_cache.tx_nodes_with_first_state();
        assert!(
            to.states.len() <= nodes.len(),
            "a transaction with a savepoint keeps every node until it ends"
        );
        for (number, (node, first)) in nodes.into_iter().enumerate() {
            let (state, pending_times) = match (to.states.get(number), first) {
                (Some(then), _) => then.clone(),
                // The transaction met the node after the savepoint. The record is in the state of the
                // savepoint again, and so the node gets the state that it was met with.
                (None, Some(first)) if self.is_record_of(&node, &first)? => (*first, PendingTimes::default()),
                // The file was made after the savepoint.
                (None, _) => {
                    let mut state = node.state.read().clone();
                    state.location = RecordLocation::Gone;
                    (state, PendingTimes::default())
                }
            };
            *node.state.write() = state;
            node.pending_times.set(pending_times);
        }
        Ok(())
    }

    /// Whether the node's record is at the location of this state.
    fn is_record_of(&self, node: &Node, state: &NodeState) -> Result<bool, FsError> {
        let Some(key) = state.record_key(node.ino()) else { return Ok(false) };
        let mut value = Vec::new();
        if !self.get(&key, &mut value)? {
            return Ok(false);
        }
        let volume = volume_of(node.ino());
        Ok(match &state.location {
            RecordLocation::Dentry(..) => match Dentry::decode(&value)?.in_volume(volume) {
                Dentry::Embedded(inode) => inode.ino == node.ino(),
                Dentry::Reference(..) => false,
            },
            _ => Inode::decode(&value)?.in_volume(volume).ino == node.ino(),
        })
    }
}

/// [`Transaction::savepoint`] as a journal keeps it.
struct MarkSavepoint {
    number: u64,
}

impl<E: Storage> Operation<TxFs<E>> for MarkSavepoint {
    fn name(&self) -> &'static str {
        "go back"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (ROOT_INO, b"")
    }

    fn heap_bytes(&self) -> usize {
        0
    }

    fn replay(&self, fs: &TxFs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        scene.add_savepoint(fs.mark_savepoint(self.number));
        Ok(())
    }
}

/// [`Transaction::roll_back`] as a journal keeps it.
struct RollBack {
    number: u64,
}

impl<E: Storage> Operation<TxFs<E>> for RollBack {
    fn name(&self) -> &'static str {
        "go back"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (ROOT_INO, b"")
    }

    fn heap_bytes(&self) -> usize {
        0
    }

    fn replay(&self, fs: &TxFs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.roll_back_to(scene.savepoint(self.number)?)
    }
}

impl Digestible for Savepoint {
    fn add_to(&self, _state: &mut impl Hasher) {}
}
