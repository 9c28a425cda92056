//! Changes of several names at once: in a transaction of the pool, or in a view of its mount.

use std::ffi::OsStr;
use std::path::Path;

use warpfire::{TxEngine, Warpfire};
use warpfire_terminal::Failure;

use super::mounted::MountedTree;
use super::{Attributes, Tree, TreeError, TreeResult, check_changeable};
use crate::commands::tx;

/// The files of a pool as a transaction sees them.
pub enum TransactionTree {
    /// The pool is open in this process.
    Open(Warpfire<TxEngine>),
    /// The view of a transaction on a mount.
    Mounted(MountedTree),
}

/// Runs `work` in a transaction of the pool, and commits if it succeeds. After a conflict on a mount it runs
/// again, in a new transaction.
///
/// # Errors
/// Those of `work`, of the begin and of the commit. Then nothing has changed.
pub fn transact<T>(
    tree: &Tree,
    mut work: impl FnMut(&TransactionTree) -> Result<T, Failure>,
) -> Result<T, Failure> {
    match tree {
        Tree::Open(pool) => {
            let tx = pool.begin()?;
            let done = work(&TransactionTree::Open(Warpfire::clone(&tx)))?;
            tx.commit()?;
            Ok(done)
        }
        Tree::Mounted(mount) => tx::transact(mount.mountpoint(), |view| {
            let view = mount.over(view).map_err(|errno| mount.error(errno).at(Path::new("/")))?;
            work(&TransactionTree::Mounted(view))
        }),
    }
}

/// Runs a call that changes these paths on either kind of tree.
macro_rules! call {
    ($tree:expr, [$($path:ident),*], $files:ident => $call:expr) => {
        match $tree {
            TransactionTree::Open($files) => {
                $(check_changeable($files, $path)?;)*
                $call.map_err(TreeError::from)
            }
            TransactionTree::Mounted($files) => $call.map_err(|errno| $files.error(errno)),
        }
    };
}

impl TransactionTree {
    pub fn metadata(&self, path: &Path) -> TreeResult<Attributes> {
        match self {
            TransactionTree::Open(files) => Ok(files.metadata(path)?.into()),
            TransactionTree::Mounted(files) => files.metadata(path).map_err(|errno| files.error(errno)),
        }
    }

    pub fn symlink_metadata(&self, path: &Path) -> TreeResult<Attributes> {
        match self {
            TransactionTree::Open(files) => Ok(files.symlink_metadata(path)?.into()),
            TransactionTree::Mounted(files) => {
                files.symlink_metadata(path).map_err(|errno| files.error(errno))
            }
        }
    }

    pub fn remove_file(&self, path: &Path) -> TreeResult<()> {
        call!(self, [path], files => files.remove_file(path))
    }

    pub fn rename(&self, from: &Path, to: &Path) -> TreeResult<()> {
        call!(self, [from, to], files => files.rename(from, to))
    }

    /// As `rename`; a name that is taken is `AlreadyExists`.
    pub fn rename_new(&self, from: &Path, to: &Path) -> TreeResult<()> {
        call!(self, [from, to], files => files.rename_new(from, to))
    }

    pub fn exchange(&self, a: &Path, b: &Path) -> TreeResult<()> {
        call!(self, [a, b], files => files.exchange(a, b))
    }

    pub fn hard_link(&self, original: &Path, link: &Path) -> TreeResult<()> {
        call!(self, [original, link], files => files.hard_link(original, link))
    }

    pub fn symlink(&self, text: &OsStr, link: &Path) -> TreeResult<()> {
        call!(self, [link], files => files.symlink(text, link))
    }
}
