//! Beginning a transaction, and ending one without a commit.
//!
//! # Invariants
//! 1. A transaction's root node equals its record in the transaction's snapshot: `tx_fs` takes both under one
//!    guard and the node's state (the test `transaction_model`).
//! 2. After the end of a transaction every call on its filesystem fails with `Ended`: `Drop` ends the store
//!    under the guard (the test `an_aborted_transaction_leaves_nothing`).

use std::sync::Arc;

use parking_lot::Mutex;
use warpfire_format::fs::inode_key;
use warpfire_meta::{Storage, TxStore};

use super::commit::FileVersion;
use super::savepoint::Savepoints;
use crate::deferred::Deferred;
use crate::error::FsError;
use crate::fs::{AtimeMode, Fs, FsOptions, ROOT_INO};
use crate::inode_numbers::InodeNumbers;
use crate::node::{InodeCache, NodeLookup, VersionCounters};
use crate::op::{CallGate, CallJournal, TransactionCounters};
use crate::schema::FsSchema;

/// The filesystem as a transaction sees it. All calls of [`Fs`] work there, on nodes that were found there.
pub type TxFs<E> = Fs<TxStore<E, FsSchema>>;

/// A transaction. Dropping it aborts it.
pub struct Transaction<E: Storage> {
    pub(super) base: Arc<Fs<E>>,
    pub(super) tx_fs: Arc<TxFs<E>>,
    pub(super) savepoints: Mutex<Savepoints>,
    pub(super) expected: Mutex<Vec<FileVersion>>,
}

impl<E: Storage> Fs<E> {
    /// Begins a transaction. It sees everything as of now, and its own changes.
    ///
    /// # Errors
    /// None: what is to be read is read by the calls inside.
    pub fn begin(self: &Arc<Self>) -> Result<Transaction<E>, FsError> {
        self.transaction(|| TxStore::begin(Arc::clone(&self.engine), FsSchema))
    }

    /// Begins a transaction that only reads: everything as of now. It never conflicts.
    ///
    /// # Errors
    /// None: what is to be read is read by the calls inside.
    pub fn begin_read_only(self: &Arc<Self>) -> Result<Transaction<E>, FsError> {
        self.transaction(|| TxStore::begin_read_only(Arc::clone(&self.engine), FsSchema))
    }

    fn transaction(
        self: &Arc<Self>,
        store: impl FnOnce() -> TxStore<E, FsSchema>,
    ) -> Result<Transaction<E>, FsError> {
        Ok(Transaction {
            base: Arc::clone(self),
            tx_fs: Arc::new(self.tx_fs(store, Vec::new(), CallJournal::default())),
            savepoints: Mutex::default(),
            expected: Mutex::default(),
        })
    }

    /// A filesystem over the store of a transaction, which is made for it; the first inode numbers that it
    /// gives out are `drawn_before`.
    pub(super) fn tx_fs(
        self: &Arc<Self>,
        store: impl FnOnce() -> TxStore<E, FsSchema>,
        drawn_before: Vec<u64>,
        journal: CallJournal<TxFs<E>>,
    ) -> TxFs<E> {
        // A commit of a transaction changes the root's record before its node, and waits for this guard. All
        // other changes hold the node's state. So `held` equals the record in the store's snapshot.
        let guard = self.call_gate.enter();
        let held = self.root.state.read();
        let store = store();
        let state = held.clone();
        drop((held, guard));
        // The root node is made without a read of its record, so the read is noted here: a change of it
        // conflicts like any other.
        store.note_read(&inode_key(self.volume, ROOT_INO));
        let inode_cache = InodeCache::for_transaction(&self.inode_cache);
        let found = inode_cache.get_or_insert(ROOT_INO, || true, || state);
        let NodeLookup::Node(root) = found else { unreachable!("a new table holds no other node") };
        let (inodes, bytes) = self.deferred.sums();
        let base = Arc::clone(self);
        Fs {
            engine: Arc::new(store),
            clock: Arc::clone(&self.clock),
            volume: self.volume,
            options: FsOptions { atime: AtimeMode::Never },
            inode_cache,
            version_counters: VersionCounters::for_transaction(),
            deferred: Arc::new(Deferred::new(self.volume, inodes, bytes)),
            leases: Arc::clone(&self.leases),
            fragmentation: Arc::clone(&self.fragmentation),
            rename: Mutex::new(()),
            numbers: InodeNumbers::for_transaction(
                Box::new(move || base.new_ino_for_transaction()),
                drawn_before,
            ),
            call_gate: CallGate::transaction(journal),
            transactions: TransactionCounters::default(),
            root,
        }
    }

    fn new_ino_for_transaction(&self) -> Result<u64, FsError> {
        let _guard = self.call_gate.enter();
        self.new_ino()
    }
}

impl<E: Storage> Transaction<E> {
    /// The filesystem as this transaction sees it. After the transaction's end, calls on it fail with
    /// `Ended`.
    #[must_use]
    pub fn files(&self) -> &Arc<TxFs<E>> {
        &self.tx_fs
    }

    /// Ends the transaction. Nothing has changed; its slices are released.
    pub fn abort(self) {}
}

impl<E: Storage> Drop for Transaction<E> {
    fn drop(&mut self) {
        let _guard = self.tx_fs.call_gate.enter();
        self.tx_fs.engine.end();
        // Nodes hold their table, and the table of a transaction holds its nodes: this ends the circle.
        self.tx_fs.inode_cache.drop_tx_nodes();
    }
}

impl<E: Storage> std::fmt::Debug for Transaction<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transaction at {}", self.tx_fs.engine.at().0)
    }
}
