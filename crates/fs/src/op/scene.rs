//! What a replay carries from one operation to the next.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use warpfire_meta::TxMark;

use crate::error::FsError;
use crate::node::{NodeRef, NodeState, PendingTimes};

/// A moment of one transaction, to go back to.
#[derive(Debug)]
pub struct Savepoint {
    pub(crate) number: u64,
    pub(crate) mark: TxMark,
    /// The sums of inodes and bytes.
    pub(crate) counts: (i64, i64),
    /// What each node was that the transaction had met, in the order that it met them.
    pub(crate) states: Vec<(NodeState, PendingTimes)>,
}

/// What replayed operations gave that later ones need, by number.
#[derive(Default)]
pub(crate) struct ReplayScene {
    nodes: HashMap<u64, NodeRef, FixedState>,
    savepoints: HashMap<u64, Savepoint, FixedState>,
    bytes_differ: bool,
}

impl ReplayScene {
    /// The node with this number.
    ///
    /// # Errors
    /// `NotFound` if no operation gave it: then one that did the first time has answered otherwise.
    pub(crate) fn node(&self, ino: u64) -> Result<&NodeRef, FsError> {
        self.nodes.get(&ino).ok_or(FsError::NotFound)
    }

    /// Keeps a node for later operations.
    pub(crate) fn add(&mut self, node: NodeRef) {
        self.nodes.insert(node.ino(), node);
    }

    /// The savepoint with this number.
    ///
    /// # Errors
    /// `NotFound` if none was made.
    pub(crate) fn savepoint(&self, number: u64) -> Result<&Savepoint, FsError> {
        self.savepoints.get(&number).ok_or(FsError::NotFound)
    }

    /// Keeps a savepoint for later operations.
    pub(crate) fn add_savepoint(&mut self, savepoint: Savepoint) {
        self.savepoints.insert(savepoint.number, savepoint);
    }

    /// An operation gave other bytes than the first time, which its digest does not show. The replay has
    /// failed.
    pub(crate) fn note_other_bytes(&mut self) {
        self.bytes_differ = true;
    }

    /// Whether an operation gave other bytes than the first time.
    pub(crate) fn has_other_bytes(&self) -> bool {
        self.bytes_differ
    }
}
