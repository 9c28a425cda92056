//! The scene of a replay: nodes and savepoints that one operation answers and a later one takes.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use warpfire_meta::{MemoryCharge, SUMS, TxMark};

use crate::error::FsError;
use crate::node::{NodeRef, NodeState, PendingTimes};

/// A moment of one transaction that it can roll back to.
#[derive(Debug)]
pub struct Savepoint {
    pub(crate) number: u64,
    pub(crate) mark: TxMark,
    /// The sums of inodes, bytes and reserved bytes.
    pub(crate) sums: [i64; SUMS],
    /// The state of each node that the transaction had met, in the order in which it met them.
    pub(crate) states: Vec<(NodeState, PendingTimes)>,
    /// The charge for `states`.
    pub(crate) _charge: MemoryCharge,
}

/// The nodes and savepoints that replayed operations have answered, by number.
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
    /// `NotFound` if no operation has answered it. Then one that did so the first time has another answer
    /// now.
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
        let earlier = self.savepoints.insert(savepoint.number, savepoint);
        assert!(earlier.is_none(), "each savepoint has a number of its own");
    }

    /// Notes that an operation answered other bytes than the first time, which its digest does not show. The
    /// replay is a conflict.
    pub(crate) fn note_other_bytes(&mut self) {
        self.bytes_differ = true;
    }

    /// Whether an operation answered other bytes than the first time.
    pub(crate) fn has_other_bytes(&self) -> bool {
        self.bytes_differ
    }
}
