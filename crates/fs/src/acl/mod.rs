//! Decisions about permissions: POSIX access control lists, mode bits, and their meaning for a caller.
//!
//! Nothing here reads or writes. A function takes the owner, the mode and the list, and returns the decision.
//! The rules are those of acl(5) and of the filesystems of Linux.
//!
//! # Terms
//! An *access list* decides about its inode. A *default list* belongs to a directory and becomes the access
//! list of new inodes there. A *named* entry is for one user or one group by number. The *mask* bounds all
//! entries except those of the owner and of others. A list without named entries and mask is *minimal*.
//!
//! # Invariants
//! 1. An [`Acl`] is valid by construction. It has exactly one entry each for the owner, the owning group and
//!    others, and a mask if it has a named entry. The order is owner, users, owning group, groups, mask,
//!    others (`Acl::validate`).
//! 2. An inode's mode bits and its access list agree. The owner and other bits are those of their entries.
//!    The group bits are those of the mask, or without a mask those of the owning group (assert in
//!    `Acl::chmod`).
//! 3. A minimal access list is not stored, because nine mode bits mean the same ([`Acl::equivalent_mode`]).

mod access;
mod change;
mod entry;
mod inherit;
mod xattr;

pub use access::{Caller, GroupSet, Subject};
pub use change::{may_delete_from, mode_after_chmod, mode_after_chown, mode_after_write};
pub use entry::{Acl, AclEntry, AclError, AclTag, ENTRIES_MAX, Perm};
pub use inherit::{InheritedAcl, inherit};
pub use xattr::{XATTR_ACCESS, XATTR_DEFAULT};
