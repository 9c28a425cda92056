//! Transactions: any set of changes to any number of files, all of them or none.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use warpfire_fs::{Follow, FsSchema, Transaction};
use warpfire_meta::TxStore;

use crate::{Engine, ErrorKind, Result, Warpfire};

/// The store that the calls inside a transaction work on: a snapshot of the pool and the transaction's own
/// changes.
pub type TxEngine = TxStore<Engine, FsSchema>;

/// Attempts of [`Warpfire::transact`]. Each conflict means that another transaction or call committed, so the
/// pool as a whole always makes progress.
const TRIES: u32 = 32;

/// After so many attempts a transaction gets priority. Without it, shorter transactions could win for ever.
const TRIES_WITHOUT_PRIORITY: u32 = 4;

/// The longest that a new transaction waits for one with priority. The bound ends a deadlock: the one with
/// priority may wait for a lock of the program that the waiting thread holds.
const PRIORITY_WAIT_MAX: Duration = Duration::from_millis(200);

/// A transaction: changes to any number of files that take place together or not at all.
///
/// A `Tx` has all calls of [`Warpfire`]; the [`File`](crate::File)s and [`Dir`](crate::Dir)s that it opens
/// belong to it. Inside, calls see the pool as of the moment when the transaction began, and its own changes.
/// Outside, nobody sees its changes before [`commit`](Tx::commit) and everybody sees all of them after it.
/// Dropping a `Tx` aborts it.
///
/// ```
/// use warpfire::Pool;
///
/// let fs = Pool::options().in_memory()?;
/// fs.write("/balance", b"100")?;
/// let tx = fs.begin()?;
/// let balance: u32 = String::from_utf8_lossy(&tx.read("/balance")?).parse().expect("a number");
/// tx.write("/balance", (balance - 30).to_string())?;
/// tx.write("/receipt", b"30 spent")?;
/// assert!(!fs.exists("/receipt"));
/// tx.commit()?;
/// assert_eq!((fs.read("/balance")?, fs.read("/receipt")?), (b"70".to_vec(), b"30 spent".to_vec()));
/// # Ok::<(), warpfire::Error>(())
/// ```
///
/// # Conflicts
/// Transactions and plain calls behave as if they ran one after the other. If another commit has changed
/// something that this transaction read, its commit repeats its calls over the newest version, beside running
/// work. Reads of files that nobody has changed are not repeated. If each call answers as before, the program
/// could not have seen a difference, and the commit succeeds. Otherwise it fails with
/// [`ErrorKind::Conflict`], which names the call and the path.
///
/// So these never conflict: writes over bytes that the transaction has not read, new names in a directory
/// where others make other names, attributes that are set and not read, and appends that do not ask for their
/// offset ([`File::append_blindly`](crate::File::append_blindly)). The times of a directory
/// and its count of links, which the filesystem keeps itself, do not count as read, and access times do not
/// either.
///
/// # Times
/// Inside, a file that the transaction changes has the time of the call. The commit replaces it by its own
/// time, in files and in the directories in which names have changed. A time that the program has set stays.
///
/// # Costs
/// Names and attributes stay in memory until the commit. File data goes to the pool at once, but for the
/// first few MiB of short writes. So the bytes that a transaction writes have no limit but the pool. A
/// transaction that makes a million files takes about half a GiB of memory. Beyond about two million files,
/// calls that change something fail with [`ErrorKind::TransactionTooLarge`]. All open transactions of a pool
/// take at most [`transaction_memory`](crate::PoolOptions::transaction_memory) together; beyond that calls
/// fail with [`ErrorKind::NoMemory`], and beyond three quarters of it calls are no longer kept.
///
/// A transaction of more than 1.6 million calls cannot be repeated: it fails with `Conflict` if anything that
/// it read has changed, except for what never conflicts.
///
/// For its last step a commit waits for running calls and makes new ones wait. The step is as long as the
/// transaction's changes are many. Calls are repeated before it, up to 32 times if others change again and
/// again something that it has read; then the commit fails with `Conflict`. A long transaction keeps the
/// space of everything that was replaced or removed since it began.
///
/// # Bad days
/// | event | result |
/// |---|---|
/// | a handle or savepoint is used after its transaction has ended | `WrongTransaction`; nothing changes |
/// | it fills the pool | `NoSpace`, for other writers too, until it ends; dropping it frees its bytes |
/// | the program ends or is killed | the transaction leaves no trace |
/// | the pool turns read-only | `ReadOnly`; nothing changes, but see [`commit_durable`](Tx::commit_durable) |
#[derive(Debug)]
pub struct Tx {
    files: Warpfire<TxEngine>,
    tx: Transaction<Engine>,
}

/// A moment of a transaction, from [`Tx::savepoint`].
#[derive(Debug)]
pub struct Savepoint(warpfire_fs::Savepoint);

/// The state of a file at a moment, from [`Warpfire::version`], for [`Tx::expect_version`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileVersion(warpfire_fs::FileVersion);

impl Deref for Tx {
    type Target = Warpfire<TxEngine>;

    fn deref(&self) -> &Warpfire<TxEngine> {
        &self.files
    }
}

impl Tx {
    fn over(pool: &Warpfire, tx: Transaction<Engine>) -> Tx {
        Tx { files: pool.over(tx.files()), tx }
    }

    pub(crate) fn transaction(&self) -> &Transaction<Engine> {
        &self.tx
    }

    /// Makes all changes visible at once. They are durable after the next sync; after a crash all of them are
    /// there or none.
    ///
    /// # Errors
    /// `Conflict`, which names the call that would answer otherwise now: begin a new transaction. `NoSpace`,
    /// `ReadOnly`, `Damaged`. The transaction has ended and nothing has changed.
    pub fn commit(self) -> Result<()> {
        Ok(self.tx.commit()?)
    }

    /// As [`commit`](Tx::commit), and durable on return.
    ///
    /// # Errors
    /// As [`commit`](Tx::commit). If the sync after the commit fails, the error is `ReadOnly` or `NoSpace`
    /// too: then the changes are visible but may be lost in a crash. After `NoSpace` the next sync makes them
    /// durable.
    pub fn commit_durable(self) -> Result<()> {
        Ok(self.tx.commit_durable()?)
    }

    /// Ends the transaction without a change, as dropping it does.
    pub fn abort(self) {
        self.tx.abort();
    }

    /// Marks this moment, so that [`rollback_to`](Tx::rollback_to) can return to it.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// let tx = fs.begin()?;
    /// tx.write("/a", b"kept")?;
    /// let point = tx.savepoint();
    /// tx.remove_file("/a")?;
    /// tx.rollback_to(&point)?;
    /// tx.commit()?;
    /// assert_eq!(fs.read("/a")?, b"kept");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.tx.savepoint())
    }

    /// Undoes all changes since the savepoint. The savepoint stays valid. Files that were open then stay
    /// open.
    ///
    /// # Errors
    /// `InvalidInput` for a savepoint of another transaction, and for one that an earlier rollback has
    /// undone.
    pub fn rollback_to(&self, point: &Savepoint) -> Result<()> {
        Ok(self.tx.roll_back(&point.0)?)
    }

    /// Lets the commit succeed only if a file still has the version that [`Warpfire::version`] returned. With
    /// a version of another pool the commit fails as `InvalidInput`.
    ///
    /// ```
    /// use warpfire::{ErrorKind, Pool};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/draft", b"one")?;
    /// let seen = fs.version("/draft")?;
    /// fs.write("/draft", b"two")?;
    /// let tx = fs.begin()?;
    /// tx.expect_version(&seen);
    /// tx.write("/draft", b"mine")?;
    /// assert_eq!(tx.commit().unwrap_err().kind(), ErrorKind::Conflict);
    /// assert_eq!(fs.read("/draft")?, b"two");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    pub fn expect_version(&self, version: &FileVersion) {
        self.tx.expect_version(version.0.clone());
    }
}

impl Warpfire {
    /// Begins a transaction with the identity of this handle.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn begin(&self) -> Result<Tx> {
        Ok(Tx::over(self, self.filesystem().begin()?))
    }

    /// Begins a transaction that only reads: it shows the pool as of this moment, for as long as it lives,
    /// and never conflicts. Changes fail with `WrongTransaction`.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/a", b"then")?;
    /// let then = fs.begin_read_only()?;
    /// fs.write("/a", b"now")?;
    /// assert_eq!(then.read("/a")?, b"then");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Damaged`.
    pub fn begin_read_only(&self) -> Result<Tx> {
        Ok(Tx::over(self, self.filesystem().begin_read_only()?))
    }

    /// Runs a closure in a transaction and commits it. After a conflict it runs the closure again in a new
    /// transaction, up to 32 times; later attempts get priority over other calls of `transact`. The closure
    /// should have no effects outside of its transaction, because it may run many times. On an error nothing
    /// has changed.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/count", b"1")?;
    /// let count = fs.transact(|tx| {
    ///     let count: u32 = String::from_utf8_lossy(&tx.read("/count")?).parse().expect("a number");
    ///     tx.write("/count", (count + 1).to_string())?;
    ///     Ok(count + 1)
    /// })?;
    /// assert_eq!((count, fs.read("/count")?), (2, b"2".to_vec()));
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// Any error of the closure; errors of [`Tx::commit`], `Conflict` only after the last attempt.
    pub fn transact<T>(&self, mut work: impl FnMut(&Tx) -> Result<T>) -> Result<T> {
        let mut tries = 1;
        loop {
            // Every attempt takes the lock, and so waits while a transaction with priority runs. Only an
            // attempt after many conflicts keeps the lock until its commit has ended.
            let priority = self
                .shared
                .priority
                .try_lock_for(PRIORITY_WAIT_MAX)
                .filter(|_| tries > TRIES_WITHOUT_PRIORITY);
            let tx = self.begin()?;
            let outcome = work(&tx)?;
            let committed = tx.commit();
            drop(priority);
            match committed {
                Ok(()) => return Ok(outcome),
                Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The version of a file. Any change of its content or attributes makes another version.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied` if a directory on the path may not be searched.
    pub fn version(&self, path: impl AsRef<Path>) -> Result<FileVersion> {
        let node = self.node_at(path.as_ref(), Follow::Yes)?;
        Ok(FileVersion(self.fs().version(&node)?))
    }
}
