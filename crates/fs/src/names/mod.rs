//! Names: looking up, making, removing, linking, renaming, listing.

mod depart;
mod handle;
mod link;
mod list;
mod make;
mod move_checks;
mod remove;
mod rename;

pub use handle::{DirHandle, HandleVisitor};
pub use list::DirEntry;
pub use make::NewFile;
pub use rename::RenameMode;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;
use warpfire_format::fs::NAME_BYTES_MAX;
use warpfire_meta::{SliceStore, Store};

use crate::acl::{Caller, Perm};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{Node, NodeRef};
use crate::tx::{Call, Who};

/// Checks a name that is to be made, removed or found in a directory. `.` and `..` are paths, not names.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(FsError::Invalid("a name is not empty and holds neither '/' nor NUL"));
    }
    if name == b"." || name == b".." {
        return Err(FsError::Invalid("'.' and '..' are in every directory already"));
    }
    Ok(())
}

/// How a directory's children are held, see `Node::children`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// Names may be added.
    Shared,
    /// None can be.
    Exclusive,
}

#[expect(dead_code, reason = "guards are held for their drop")]
enum Held<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Exclusive(RwLockWriteGuard<'a, ()>),
}

/// Holds the children of several directories, in the order that all callers keep. Naming one twice is fine if the holds agree.
fn hold_children<'a>(dirs: &[(&'a Node, Hold)]) -> SmallVec<[Held<'a>; 3]> {
    let mut order: SmallVec<[(&'a Node, Hold); 3]> = dirs.into();
    order.sort_by_key(|(dir, _)| dir.ino());
    order.dedup_by_key(|(dir, _)| dir.ino());
    order
        .into_iter()
        .map(|(dir, hold)| match hold {
            Hold::Shared => Held::Shared(dir.children.read()),
            Hold::Exclusive => Held::Exclusive(dir.children.write()),
        })
        .collect()
}

impl<E: Store + SliceStore> Fs<E> {
    /// The node that a name in a directory leads to. `.` and `..` work too.
    ///
    /// # Errors
    /// `NotFound`; `NotDirectory` if `dir` is none; `AccessDenied` if the caller may not search it.
    pub fn lookup(&self, caller: &Caller<'_>, dir: &NodeRef, name: &[u8]) -> Result<NodeRef, FsError> {
        self.call(
            || Call::Lookup { who: Who::of(caller), dir: dir.ino(), name: name.into() },
            || self.lookup_in_turn(caller, dir, name),
        )
    }

    fn lookup_in_turn(&self, caller: &Caller<'_>, dir: &NodeRef, name: &[u8]) -> Result<NodeRef, FsError> {
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        self.access(caller, dir, Perm::EXECUTE)?;
        match name {
            b"." => return Ok(NodeRef::clone(dir)),
            b".." => return self.parent(dir),
            _ => check_name(name)?,
        }
        self.find(dir.ino(), name)?.ok_or(FsError::NotFound)
    }

    /// The directory that holds this one; the root holds itself.
    ///
    /// # Errors
    /// `NotFound` if the directory has been removed.
    pub fn parent(&self, dir: &NodeRef) -> Result<NodeRef, FsError> {
        self.call(|| Call::Parent { dir: dir.ino() }, || self.parent_in_turn(dir))
    }

    fn parent_in_turn(&self, dir: &NodeRef) -> Result<NodeRef, FsError> {
        let parent = {
            let state = dir.state.read();
            if state.is_unlinked() {
                return Err(FsError::NotFound);
            }
            let place = state.place.as_ref().filter(|_| dir.is_dir());
            place.map(|(parent, _)| *parent).ok_or(FsError::NotDirectory)?
        };
        if parent == dir.ino() {
            return Ok(NodeRef::clone(dir));
        }
        self.directory(parent)?.ok_or(FsError::NotFound)
    }
}
