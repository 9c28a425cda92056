//! Names: calls that find, make, remove, link, rename and list them.
//!
//! # Invariants
//! 1. A call changes a name under the engine's lock of its key, from the read of the old value to the commit.
//! 2. A name is added to a directory only while the directory's children are held shared, and a directory is
//!    removed only while its own children are held exclusively. So no name is added to a directory that goes
//!    (assert in `is_empty`).
//! 3. One call is one commit. A failed commit leaves names, records and nodes as they were (the tests `names`
//!    and `full`).
//! 4. After the commit the version counters of all changed keys move, and then the locks are released.

mod again;
mod departure;
mod handle;
mod link;
mod list;
mod listed;
mod make;
mod remove;
mod remove_files;
mod rename;

pub use again::FilePlace;
pub use handle::{DirHandle, HandleVisitor};
pub use list::DirEntry;
pub use listed::ListedFile;
pub use make::NewFile;
pub use remove_files::RemovedFiles;
pub use rename::RenameMode;

use smallvec::SmallVec;
use warpfire_env::{RankedReadGuard, RankedWriteGuard};
use warpfire_meta::Storage;

use crate::acl::{Caller, Perm};
use crate::error::FsError;
use crate::fs::Fs;
use crate::lock_ranks::CHILDREN;
use crate::node::{NameBuf, Node, NodeRef, check_name};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};

/// How a call holds `Node::children` of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChildrenLock {
    /// Other calls may add names at the same time.
    Shared,
    /// No call adds a name.
    Exclusive,
}

#[expect(dead_code, reason = "guards are held for their drop")]
enum ChildrenGuard<'a> {
    Shared(RankedReadGuard<'a, CHILDREN, ()>),
    Exclusive(RankedWriteGuard<'a, CHILDREN, ()>),
}

/// Holds the children of several directories, by ascending inode number. A directory may be named twice with
/// the same lock.
fn lock_children<'a>(dirs: &[(&'a Node, ChildrenLock)]) -> SmallVec<[ChildrenGuard<'a>; 3]> {
    let mut order: SmallVec<[(&'a Node, ChildrenLock); 3]> = dirs.into();
    order.sort_by_key(|(dir, _)| dir.ino());
    debug_assert!(
        order.iter().zip(order.iter().skip(1)).all(|(a, b)| a.0.ino() != b.0.ino() || a.1 == b.1),
        "a directory is held in one way"
    );
    order.dedup_by_key(|(dir, _)| dir.ino());
    order
        .into_iter()
        .map(|(dir, hold)| match hold {
            ChildrenLock::Shared => ChildrenGuard::Shared(dir.children.read()),
            ChildrenLock::Exclusive => ChildrenGuard::Exclusive(dir.children.write()),
        })
        .collect()
}

impl<E: Storage> Fs<E> {
    /// The node that a name in a directory leads to; `.` and `..` are names here.
    ///
    /// # Errors
    /// `NotFound`; `NotDirectory` if `dir` is another kind of file; `AccessDenied` if the caller may not
    /// search it; `NameTooLong`; `Invalid`.
    pub fn lookup(&self, caller: &Caller<'_>, dir: &NodeRef, name: &[u8]) -> Result<NodeRef, FsError> {
        self.lookup_by(caller, dir, name, Fs::find)
    }

    /// As `lookup`, for a caller that will read the file: one device read brings a small file whole.
    ///
    /// # Errors
    /// As `lookup`.
    pub fn lookup_to_read(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
    ) -> Result<NodeRef, FsError> {
        self.lookup_by(caller, dir, name, Fs::find_to_read)
    }

    fn lookup_by(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        find: impl FnOnce(&Fs<E>, u64, &[u8]) -> Result<Option<NodeRef>, FsError>,
    ) -> Result<NodeRef, FsError> {
        let record = || Lookup { caller: RecordedCaller::of(caller), dir: dir.ino(), name: name.into() };
        self.call(record, || {
            if !dir.is_dir() {
                return Err(FsError::NotDirectory);
            }
            self.access(caller, dir, Perm::EXECUTE)?;
            match name {
                b"." => return Ok(NodeRef::clone(dir)),
                b".." => return self.parent(dir),
                _ => check_name(name)?,
            }
            find(self, dir.ino(), name)?.ok_or(FsError::NotFound)
        })
    }

    /// The parent of a directory. The root is its own parent.
    ///
    /// # Errors
    /// `NotFound` if the directory has been removed; `NotDirectory`.
    pub fn parent(&self, dir: &NodeRef) -> Result<NodeRef, FsError> {
        let record = || LookupParent { dir: dir.ino() };
        self.call(record, || {
            // The state is released before the search, which may wait for the state of another node.
            let parent = {
                let state = dir.state.read();
                if state.is_unlinked() {
                    return Err(FsError::NotFound);
                }
                let dentry = state.dentry.as_ref().filter(|_| dir.is_dir());
                dentry.map(|dentry| dentry.0).ok_or(FsError::NotDirectory)?
            };
            if parent == dir.ino() {
                return Ok(NodeRef::clone(dir));
            }
            self.directory(parent)?.ok_or(FsError::NotFound)
        })
    }
}

/// [`Fs::lookup`] as a journal keeps it.
struct Lookup {
    caller: RecordedCaller,
    dir: u64,
    name: NameBuf,
}

impl<E: Storage> Operation<Fs<E>> for Lookup {
    fn name(&self) -> &'static str {
        "look up"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.dir, &self.name)
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.name.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let node = fs.lookup(&self.caller.get(), scene.node(self.dir)?, &self.name)?;
        scene.add(node);
        Ok(())
    }
}

/// [`Fs::parent`] as a journal keeps it.
struct LookupParent {
    dir: u64,
}

impl<E: Storage> Operation<Fs<E>> for LookupParent {
    fn name(&self) -> &'static str {
        "look up the parent"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.dir, b"")
    }

    fn heap_bytes(&self) -> usize {
        0
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let parent = fs.parent(scene.node(self.dir)?)?;
        scene.add(parent);
        Ok(())
    }
}
