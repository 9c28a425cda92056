//! Permission, decided purely: POSIX access control lists, mode bits, and what both mean for a caller.
//!
//! Nothing here reads or writes; callers bring the owner, the mode and the list and get an answer. The rules are
//! those of acl(5) and of the kernel's own filesystems.
//!
//! Invariants
//! 1. An [`Acl`] is valid by construction: exactly one entry each for the owner, the owning group and others, in
//!    the order owner, users, owning group, groups, mask, others; a mask wherever there is a named entry.
//! 2. An inode's mode bits and its access list agree: owner and other bits are their entries, the group bits are
//!    the mask's, or without a mask the owning group's.
//! 3. A list that says no more than nine mode bits can is not kept ([`Acl::equivalent_mode`]).

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
