//! Transactions: any set of changes to any number of files, all of them or none.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use warpfire_fs::{Follow, FsSchema, Transaction};
use warpfire_meta::TxStore;

use crate::{Engine, ErrorKind, Result, Warpfire};

/// What the calls inside a transaction work on.
pub type TxEngine = TxStore<Engine, FsSchema>;

/// Tries of [`Warpfire::transact`]. A conflict means that someone else got on with it, so a try fails only as often as others commit what it reads.
const TRIES: u32 = 32;

/// After so many, the others wait before they begin: those who take less time would come first for ever.
const TRIES_WITHOUT_PRIORITY: u32 = 4;

/// How long they wait at most, so that nobody waits for someone who waits for him.
const PRIORITY_WAIT_MAX: Duration = Duration::from_millis(200);

/// A transaction. All calls of [`Warpfire`] are there, and handles that they give; inside one sees what was there when it began, and one's own
/// changes. Others see nothing of it before [`commit`](Tx::commit), and everything after. Dropping it aborts it.
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
/// Transactions and plain calls are as if one after the other. Where something that a transaction has read was changed by someone else, its calls
/// are made again when it commits; if each answers as it did, the program can not tell and the commit goes on. Otherwise it fails with [`ErrorKind::Conflict`],
/// which names the call and the path. So what is written without having been read does not conflict, names that others make in the same folder do not,
/// attributes that are set do not, and neither do appends that do not ask where they went ([`File::append_blindly`](crate::File::append_blindly)). A directory's own times are left out.
///
/// # What it costs
/// Names and attributes are in memory until the commit; data is in the pool, but for the first few MiB of short writes. So there is no limit to the bytes
/// that a transaction writes, and one that makes a million files takes about half a GiB; beyond some two million, calls that change something fail with
/// [`ErrorKind::TransactionTooLarge`]. One of more than 1.6 million calls is not looked into when something that it read has changed: it fails with `Conflict`.
/// A commit lets calls that go on finish, and makes others wait. A transaction that is open for long keeps the space of what was there when it
/// began and was replaced since.
///
/// # Bad days
/// | what | what happens |
/// |---|---|
/// | a handle, folder or savepoint of a transaction that was committed, or aborted | `WrongTransaction`; nothing has changed |
/// | a commit after an abort, or two | can not be written: both take the transaction away |
/// | it fills the pool | `NoSpace` for its call, and for others until there is room; dropping it gives back all that it wrote |
/// | the program ends, or is killed | the transaction has never been |
/// | the pool goes read-only | `ReadOnly`; nothing has changed, but what [`commit_durable`](Tx::commit_durable) says |
#[derive(Debug)]
pub struct Tx {
    files: Warpfire<TxEngine>,
    tx: Transaction<Engine>,
}

/// A moment of a transaction, to go back to.
#[derive(Debug)]
pub struct Savepoint(warpfire_fs::Savepoint);

/// How a file was when someone looked, for [`Tx::expect_version`].
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

    /// Makes everything visible at once. After a crash all of it is there or nothing.
    ///
    /// # Errors
    /// `Conflict`, which names the call that would have answered otherwise: begin again. `NoSpace`, `ReadOnly`, `Damaged`. Nothing has changed then.
    pub fn commit(self) -> Result<()> {
        Ok(self.tx.commit()?)
    }

    /// As [`commit`](Tx::commit), and durable on return.
    ///
    /// # Errors
    /// As [`commit`](Tx::commit). `ReadOnly` also if it could not be made durable: then it is visible, and may be lost.
    pub fn commit_durable(self) -> Result<()> {
        Ok(self.tx.commit_durable()?)
    }

    /// Ends it without a change. So does dropping it.
    pub fn abort(self) {
        self.tx.abort();
    }

    /// This moment, to go back to.
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

    /// Undoes everything since the savepoint; it can be gone back to again. Files that were open then stay open.
    ///
    /// # Errors
    /// `InvalidInput` for a savepoint of another transaction, or one made after one that was gone back to.
    pub fn rollback_to(&self, point: &Savepoint) -> Result<()> {
        Ok(self.tx.roll_back(&point.0)?)
    }

    /// Lets the commit succeed only if a file is still as it was when [`Warpfire::version`] looked.
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
    /// Begins a transaction, on behalf of the same.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn begin(&self) -> Result<Tx> {
        Ok(Tx::over(self, self.filesystem().begin()?))
    }

    /// Everything as of now, for as long as it is kept, whatever changes meanwhile. Changes to it are refused with `WrongTransaction`.
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

    /// Does something in a transaction and commits it; on a conflict does it again in a new one, up to 32 times, the later ones ahead of other
    /// calls of this. What it does besides should bear repetition. If it fails, nothing has changed.
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
    /// What the closure says; as [`Tx::commit`], `Conflict` after the last try.
    pub fn transact<T>(&self, mut work: impl FnMut(&Tx) -> Result<T>) -> Result<T> {
        let mut tries = 1;
        loop {
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

    /// How the file that a path leads to is now. Any change of its content or attributes makes it another version.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied` for a folder on the way.
    pub fn version(&self, path: impl AsRef<Path>) -> Result<FileVersion> {
        let node = self.node_at(path.as_ref(), Follow::Yes)?;
        Ok(FileVersion(self.fs().version(&node)?))
    }
}
