//! Beginning a transaction, and ending one without a commit.

use std::sync::Arc;

use parking_lot::Mutex;
use warpfire_format::fs::inode_key;
use warpfire_meta::{SliceStore, Store, TxStore};

use super::savepoint::Savepoints;
use super::{Counters, Journal, Turns, Version};
use crate::dirty::Dirty;
use crate::error::FsError;
use crate::fs::{AtimeMode, Fs, FsOptions, ROOT_INO};
use crate::node::{Found, Stripes, Table};
use crate::numbers::Numbers;
use crate::schema::FsSchema;

/// The filesystem as a transaction sees it. All calls of [`Fs`] work there, on nodes that were found there.
pub type Inside<E> = Fs<TxStore<E, FsSchema>>;

/// A transaction. Dropping it aborts it.
pub struct Transaction<E: Store + SliceStore> {
    pub(super) base: Arc<Fs<E>>,
    pub(super) inside: Arc<Inside<E>>,
    pub(super) savepoints: Mutex<Savepoints>,
    pub(super) expected: Mutex<Vec<Version>>,
}

impl<E: Store + SliceStore> Fs<E> {
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
            inside: Arc::new(self.inside(store, Vec::new(), Journal::default())),
            savepoints: Mutex::default(),
            expected: Mutex::default(),
        })
    }

    /// A filesystem over the store of a transaction, which is made for it; the first inode numbers that it needs are `again`.
    pub(super) fn inside(
        self: &Arc<Self>,
        store: impl FnOnce() -> TxStore<E, FsSchema>,
        again: Vec<u64>,
        journal: Journal,
    ) -> Inside<E> {
        // A commit changes the record first and the node then; any other who changes the record holds the state. So it is what the store has.
        let turn = self.turns.take();
        let held = self.root.state.read();
        let store = store();
        let state = held.clone();
        drop((held, turn));
        store.saw(&inode_key(self.volume, ROOT_INO));
        let table = Table::inside(&self.table);
        let found = table.get_or_insert(ROOT_INO, || true, || state);
        let Found::Node(root) = found else { unreachable!("a new table holds no other node") };
        let (inodes, bytes) = self.dirty.counts();
        let base = Arc::clone(self);
        Fs {
            engine: Arc::new(store),
            clock: Arc::clone(&self.clock),
            volume: self.volume,
            options: FsOptions { atime: AtimeMode::Never },
            table,
            stripes: Stripes::inside(),
            dirty: Arc::new(Dirty::new(self.volume, inodes, bytes)),
            leases: Arc::clone(&self.leases),
            strain: Arc::clone(&self.strain),
            rename: Mutex::new(()),
            numbers: Numbers::lent(Box::new(move || base.lend_ino()), again),
            turns: Turns::inside(journal),
            counters: Counters::default(),
            root,
        }
    }

    fn lend_ino(&self) -> Result<u64, FsError> {
        let _turn = self.turns.take();
        self.new_ino()
    }
}

impl<E: Store + SliceStore> Transaction<E> {
    /// The filesystem as this transaction sees it. After the transaction's end, calls on it fail with `Ended`.
    #[must_use]
    pub fn files(&self) -> &Arc<Inside<E>> {
        &self.inside
    }

    /// Ends the transaction. Nothing has changed; what it wrote is given back.
    pub fn abort(self) {}
}

impl<E: Store + SliceStore> Drop for Transaction<E> {
    fn drop(&mut self) {
        let _last = self.inside.turns.take();
        self.inside.engine.end();
        // Nodes hold their table, which holds them: this lets go.
        self.inside.table.let_go();
    }
}

impl<E: Store + SliceStore> std::fmt::Debug for Transaction<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transaction at {}", self.inside.engine.at().0)
    }
}
