//! Beginning a transaction, and ending one without a commit.
//!
//! # Invariants
//! 1. A transaction's root node equals its record in the transaction's snapshot: `tx_fs` takes both under one
//!    guard and the node's state (`tests::transaction_model`).
//! 2. After the end of a transaction every call on its filesystem fails with `Ended`: `Drop` ends the store
//!    under the guard (`tests::transactions::an_aborted_transaction_leaves_nothing`).
//! 3. Only the base begins transactions: they do not nest (assert in `transaction`).

use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicU32, Ordering};

use warpfire_env::sync::Mutex;
use warpfire_env::{LockPlace, RankedMutex, RankedRawMutex, Timestamp};

use warpfire_meta::{MemoryAccount, SnapshotStore, Storage, TxStore};

use super::commit::FileVersion;
use super::savepoint::Savepoints;
use crate::deferred::Deferred;
use crate::error::FsError;
use crate::fs::{AtimeMode, Doors, Fs, FsOptions, ROOT_INO};
use crate::inode_numbers::InodeNumbers;
use crate::keys::inode_key;
use crate::node::{InodeCache, NodeLookup, NodeState, VersionCounters};
use crate::op::{CallGate, CallJournal, TransactionCounters};
use crate::rollback::Settling;
use crate::schema::FsSchema;
use crate::snapshot::CommitSnapshot;
use crate::stamp::stamp;
use crate::volume::LimitedVolumes;

/// The filesystem of one transaction. It has all calls of [`Fs`], for nodes that calls of the same
/// transaction have returned.
pub type TxFs<E> = Fs<TxStore<E, FsSchema>>;

/// A transaction. Dropping it aborts it.
pub struct Transaction<E: Storage> {
    pub(super) base: Arc<Fs<E>>,
    pub(super) tx_fs: Arc<TxFs<E>>,
    pub(super) savepoints: Mutex<Savepoints>,
    pub(super) expected: Mutex<Vec<FileVersion>>,
    pub(super) snapshot: Mutex<Option<CommitSnapshot<E>>>,
    pub(super) check: Mutex<Option<CommitCheck>>,
}

/// The last check of a commit; see [`Transaction::check_at_commit`].
pub(super) type CommitCheck = Box<dyn FnOnce() -> Result<(), FsError> + Send>;

impl<E: Storage> Fs<E> {
    /// Begins a transaction. It sees the filesystem as it is now, and its own changes.
    ///
    /// # Errors
    /// None today: nothing is read yet.
    pub fn begin(self: &Arc<Self>) -> Result<Transaction<E>, FsError> {
        self.begin_for(None)
    }

    /// As `begin`, for a user with a share in the memory budget, or with `None` for the store's own user.
    ///
    /// # Errors
    /// As `begin`.
    pub fn begin_for(self: &Arc<Self>, uid: Option<u32>) -> Result<Transaction<E>, FsError> {
        let account = self.memory_account(uid);
        self.transaction(|| TxStore::begin(Arc::clone(&self.engine), FsSchema, &account), &account)
    }

    /// Begins a read-only transaction. It sees the filesystem as it is now, and never conflicts.
    ///
    /// # Errors
    /// None today: nothing is read yet.
    pub fn begin_read_only(self: &Arc<Self>) -> Result<Transaction<E>, FsError> {
        let account = self.memory_account(None);
        self.transaction(|| TxStore::begin_read_only(Arc::clone(&self.engine), FsSchema, &account), &account)
    }

    fn transaction(
        self: &Arc<Self>,
        store: impl FnOnce() -> TxStore<E, FsSchema>,
        account: &MemoryAccount,
    ) -> Result<Transaction<E>, FsError> {
        assert!(!self.call_gate.is_transaction(), "only the base begins transactions");
        Ok(Transaction {
            base: Arc::clone(self),
            tx_fs: Arc::new(self.tx_fs(store, Vec::new(), CallJournal::new(account), account)),
            savepoints: Mutex::default(),
            expected: Mutex::default(),
            snapshot: Mutex::new(None),
            check: Mutex::new(None),
        })
    }

    /// A filesystem over a new transaction's store. `store` makes the store. New inodes get the numbers
    /// `drawn_before` first, then others.
    pub(super) fn tx_fs(
        self: &Arc<Self>,
        store: impl FnOnce() -> TxStore<E, FsSchema>,
        drawn_before: Vec<u64>,
        journal: CallJournal<TxFs<E>>,
        account: &MemoryAccount,
    ) -> TxFs<E> {
        // A commit of a transaction changes the root's record first and its node later, but it waits for this
        // guard. All other changes hold the node's state. So `held` equals the record in the store's
        // snapshot.
        let guard = self.call_gate.enter();
        let held = self.root.state.read();
        let store = Arc::new(store());
        let state = held.clone();
        drop((held, guard));
        // The root node is made without a read of its record, so the read is noted here: a change of it
        // conflicts like any other.
        store.note_read(&inode_key(ROOT_INO));
        let changes = Arc::clone(&store);
        let has_changed = move |ino: u64, state: &NodeState| {
            state.record_key(ino).is_none_or(|key| changes.has_changed(&key))
        };
        let inode_cache = InodeCache::for_transaction(&self.inode_cache, Box::new(has_changed), account);
        let found = inode_cache.insert_made(ROOT_INO, || true, || state);
        let NodeLookup::Node(root) = found else { unreachable!("a new inode cache has no other node") };
        debug_assert_eq!(root.ino(), ROOT_INO, "the first node of a transaction is the root");
        let sums = self.deferred.sums();
        let base = Arc::clone(self);
        Fs {
            engine: store,
            clock: Arc::clone(&self.clock),
            volume: self.volume,
            doors: Doors::Shown,
            options: FsOptions { atime: AtimeMode::Never, ..FsOptions::default() },
            inode_cache,
            version_counters: VersionCounters::for_transaction(),
            deferred: Arc::new(Deferred::new(self.volume, sums)),
            leases: Arc::clone(&self.leases),
            fragmentation: Arc::clone(&self.fragmentation),
            rename: RankedMutex::from_raw(RankedRawMutex::of(LockPlace::UNCONTENDED), ()),
            numbers: InodeNumbers::for_transaction(
                Box::new(move || base.new_ino_for_transaction()),
                drawn_before,
                account,
            ),
            next_volume: AtomicU32::new(self.next_volume.load(Ordering::Relaxed)),
            call_gate: CallGate::transaction(journal),
            transactions: TransactionCounters::default(),
            memory: account.clone(),
            root,
            snapshots: Arc::clone(&self.snapshots),
            limited_volumes: LimitedVolumes::default(),
            settling: Settling::default(),
        }
    }

    fn new_ino_for_transaction(&self) -> Result<u64, FsError> {
        let _guard = self.call_gate.enter();
        self.new_local_ino()
    }
}

impl<E: Storage> Transaction<E> {
    /// The filesystem of this transaction. After the transaction's end, calls on it fail with `Ended`.
    #[must_use]
    pub fn files(&self) -> &Arc<TxFs<E>> {
        &self.tx_fs
    }

    /// Lets the commit make a snapshot of the base with the changes of this transaction, and nothing later. A
    /// crash keeps both or neither. A commit that changes nothing makes none. If the name is taken, the
    /// commit fails with `Exists`. Returns the time that the snapshot will have: this moment.
    ///
    /// # Errors
    /// `Invalid` and `NameTooLong` for a name that no snapshot can have.
    pub fn snapshot_at_commit(&self, name: &[u8]) -> Result<Timestamp, FsError>
    where
        E: SnapshotStore,
    {
        let made = self.tx_fs.clock.now();
        *self.snapshot.lock() = Some(CommitSnapshot::named(name, stamp(made))?);
        Ok(made)
    }

    /// Lets the commit take place only if `check` succeeds. It is called alone in the base, when nothing else
    /// can make the commit fail as a conflict. So it may read the engine of the base, and makes no call of
    /// the base, which would wait for the commit. A commit that changes nothing does not call it.
    pub(crate) fn check_at_commit(&self, check: impl FnOnce() -> Result<(), FsError> + Send + 'static) {
        *self.check.lock() = Some(Box::new(check));
    }

    /// Ends the transaction without a commit. The base is unchanged, and the transaction's slices are
    /// released.
    pub fn abort(self) {}
}

impl<E: Storage> Drop for Transaction<E> {
    fn drop(&mut self) {
        // A call that runs on another thread ends first; the next one finds the transaction ended.
        let mut guard = self.tx_fs.call_gate.enter_to_end();
        // A mount may keep the filesystem until the last file in it is closed.
        if let Some(journal) = guard.journal() {
            journal.end();
        }
        self.tx_fs.engine.end();
        // A node refers to its inode cache, and the cache of a transaction to its nodes: this ends the cycle.
        self.tx_fs.inode_cache.drop_tx_nodes();
        drop(guard);
    }
}

impl<E: Storage> std::fmt::Debug for Transaction<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transaction at {}", self.tx_fs.engine.at().0)
    }
}
