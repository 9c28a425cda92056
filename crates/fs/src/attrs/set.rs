//! Calls that change attributes, and the commit of an edit of a record (`commit_edit`).
//!
//! # Invariants
//! 1. Attributes change in one commit, all or none. Only a size is a commit of its own, before the others.
//! 2. A record and its node's state change together: the state after the commit, under its lock (assert in
//!    `commit_edit`).
//! 3. A commit that sets the time of a directory's last change of content commits the pending times first
//!    (`apply_setattr`; `deferred` has the reason).

use warpfire_format::fs::{Attrs, FileKind, InodeEdit, InodeTime, flag};
use warpfire_meta::{Admit, Batch, Storage};

use super::access::subject;
use super::attr::{Attr, SetAttr, SetTime, attr_of};
use crate::acl::{Caller, Perm, XATTR_ACCESS, mode_after_chmod, mode_after_chown, mode_after_write};
use crate::deferred::Deferred;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::xattr_key;
use crate::node::{Node, NodeRef, NodeState, PendingTimes};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;
use crate::stamp::stamp;

/// The attribute with the security capabilities of an executable. Every write, and every change of the owner,
/// removes it.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

impl<E: Storage> Fs<E> {
    /// Changes attributes and returns the new ones. They change together, except the size, which changes
    /// first.
    ///
    /// # Errors
    /// `NotPermitted` or `AccessDenied` as for `chmod`, `chown`, `utimensat` and `truncate`; a size as
    /// `truncate`.
    pub fn setattr(&self, caller: &Caller<'_>, node: &NodeRef, set: &SetAttr) -> Result<Attr, FsError> {
        let attr = self.change_attributes(caller, node, set, true)?;
        Ok(attr.expect("the call was made for its result"))
    }

    /// As `setattr` without an answer. In a transaction the call does not conflict with other changes of the
    /// same attributes.
    ///
    /// # Errors
    /// As `setattr`.
    pub fn set_attributes(&self, caller: &Caller<'_>, node: &NodeRef, set: &SetAttr) -> Result<(), FsError> {
        self.change_attributes(caller, node, set, false).map(drop)
    }

    /// Changes attributes. With `wants_result` the new ones are the answer, and part of the call's digest.
    pub(crate) fn change_attributes(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        set: &SetAttr,
        wants_result: bool,
    ) -> Result<Option<Attr>, FsError> {
        let record = || SetAttributes {
            caller: RecordedCaller::of(caller),
            node: node.ino(),
            set: *set,
            wants_result,
        };
        self.call(record, || Ok(Some(self.apply_setattr(caller, node, set)?).filter(|_| wants_result)))
    }

    fn apply_setattr(&self, caller: &Caller<'_>, node: &NodeRef, set: &SetAttr) -> Result<Attr, FsError> {
        // A commit of its own: it may delete or rewrite many regions.
        if let Some(size) = set.size_bytes {
            self.access(caller, node, Perm::WRITE)?;
            self.truncate(caller, node, size)?;
        }
        let now = self.now();
        let mut state = node.state.write();
        let edit = self.plan_setattr(caller, node.ino(), &node.current(&state), set, now)?;
        if edit != InodeEdit::default() {
            let mut scratch = Scratch::take();
            // The list and the mode agree, so both change in the same commit.
            if edit.permissions.is_some() && state.attrs.flags & flag::ACL != 0 {
                self.chmod_acl(
                    node.ino(),
                    u32::from(edit.permissions.unwrap_or_default()),
                    &mut scratch.batch,
                )?;
            }
            let owner_changed = set.uid.is_some() || set.gid.is_some();
            let drop_capability = owner_changed && state.attrs.flags & flag::CAPABILITY != 0;
            if drop_capability {
                scratch.batch.delete(&xattr_key(node.ino(), CAPABILITY));
            }
            let flags = drop_capability.then(|| state.attrs.flags & !flag::CAPABILITY);
            let edit = InodeEdit { flags, ..edit };
            // First a commit of the pending times, so that no sync point emits them after the time that is
            // set.
            let pending_times = match edit.mtime {
                Some(_) if node.is_dir() => Some(self.commit_pending_times(node, &mut state)?),
                _ => None,
            };
            self.commit_edit(node, &mut state, &edit, &mut scratch.batch, Admit::Reserve)?;
            if let Some(pending_times) = pending_times {
                self.deferred.mark_replaced(node, pending_times);
            }
        }
        Ok(attr_of(node.ino(), &node.current(&state)))
    }

    /// Checks permissions and plans the edit of a `setattr`, without the size. The edit is empty if nothing
    /// changes.
    pub(crate) fn plan_setattr(
        &self,
        caller: &Caller<'_>,
        ino: u64,
        attrs: &Attrs,
        set: &SetAttr,
        now: InodeTime,
    ) -> Result<InodeEdit<'static>, FsError> {
        let file = subject(attrs);
        let is_owner = file.is_owned_by(caller);
        let mut edit = InodeEdit::default();
        let mut mode = super::mode_of(attrs);
        // First the owner: the bits of a new mode are judged by the new group.
        if set.uid.is_some() || set.gid.is_some() {
            let uid = set.uid.unwrap_or(attrs.uid);
            let gid = set.gid.unwrap_or(attrs.gid);
            // Only root gives files to others. An owner may change the group to one of its own groups. The
            // kernel knows a root of a user namespace, which this rule does not, so its answer stands.
            let own_group = || gid == attrs.gid || caller.is_in(gid);
            let is_judged_here = !caller.checked && !caller.is_root();
            let gives_to_own_group = is_owner && uid == attrs.uid && own_group();
            if is_judged_here && !gives_to_own_group {
                return Err(FsError::NotPermitted);
            }
            edit.owner = Some((uid, gid));
            mode = mode_after_chown(&file, caller);
        }
        if let Some(wanted) = set.mode {
            if !is_owner {
                return Err(FsError::NotPermitted);
            }
            if attrs.kind == FileKind::Symlink {
                return Err(FsError::Unsupported);
            }
            let gid = edit.owner.map_or(attrs.gid, |(_, gid)| gid);
            mode = mode_after_chmod(&crate::acl::Subject { gid, ..file }, wanted, caller);
        }
        if mode != super::mode_of(attrs) || set.mode.is_some() {
            edit.permissions = Some((mode & 0o7777) as u16);
        }
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(t) => stamp(t),
        };
        if set.atime.is_some() || set.mtime.is_some() {
            // As utimensat(2): a writer may set times to now, only the owner to other times.
            let both_now = [set.atime, set.mtime].iter().flatten().all(|t| *t == SetTime::Now);
            if !is_owner && both_now {
                self.permit(caller, ino, attrs, Perm::WRITE)?;
            } else if !is_owner {
                return Err(FsError::NotPermitted);
            }
            edit.atime = set.atime.map(time);
            edit.mtime = set.mtime.map(time);
        }
        if edit != InodeEdit::default() {
            edit.ctime = Some(now);
        }
        Ok(edit)
    }

    /// Commits the pending times of a directory before a commit that sets the same time. Returns them as they
    /// were.
    fn commit_pending_times(&self, dir: &Node, state: &mut NodeState) -> Result<PendingTimes, FsError> {
        debug_assert!(dir.is_dir(), "only a directory has pending times");
        let pending_times = *dir.pending_times.lock();
        if let Some(edit) = pending_times.edit() {
            self.commit_edit(dir, state, &edit, &mut Scratch::take().batch, Admit::Reserve)?;
            Deferred::mark_committed(dir, pending_times);
        }
        Ok(pending_times)
    }

    /// Adds to the batch the change of the inode's list that follows a chmod.
    fn chmod_acl(&self, ino: u64, mode: u32, batch: &mut Batch) -> Result<(), FsError> {
        debug_assert!(mode <= 0o7777, "a chmod does not change the kind of a file");
        if let Some(mut list) = self.read_acl(ino, XATTR_ACCESS)? {
            list.chmod(mode);
            batch.put_naming(&xattr_key(ino, XATTR_ACCESS), &super::xattr::encode(&list.to_xattr()), []);
        }
        Ok(())
    }

    /// The edit that accompanies a change of content: times, and the special bits that the change removes.
    pub(crate) fn edit_of_write<'a>(
        &self,
        caller: &Caller<'_>,
        node: &Node,
        state: &NodeState,
        batch: &mut Batch,
    ) -> InodeEdit<'a> {
        debug_assert!(!node.is_dir(), "a directory has no content to write");
        let now = self.now();
        let mut edit = InodeEdit { mtime: Some(now), ctime: Some(now), ..InodeEdit::default() };
        let file = subject(&state.attrs);
        let mode = mode_after_write(&file, caller);
        if mode != file.mode {
            edit.permissions = Some((mode & 0o7777) as u16);
        }
        if state.attrs.flags & flag::CAPABILITY != 0 {
            batch.delete(&xattr_key(node.ino(), CAPABILITY));
            edit.flags = Some(state.attrs.flags & !flag::CAPABILITY);
        }
        edit
    }

    /// Sets the access time to `now`.
    pub(crate) fn renew_atime(&self, node: &Node, now: InodeTime) -> Result<(), FsError> {
        let mut scratch = Scratch::take();
        let mut state = node.state.write();
        let edit = InodeEdit { atime: Some(now), ..InodeEdit::default() };
        match self.commit_edit(node, &mut state, &edit, &mut scratch.batch, Admit::Reserve) {
            // The read itself has succeeded, and a pool that is full or read-only still serves reads.
            Err(FsError::ReadOnly(_) | FsError::OpenForReading | FsError::NoSpace) => Ok(()),
            other => other,
        }
    }

    /// Commits a batch together with an edit of the node's record, and then edits the node's state.
    ///
    /// # Errors
    /// Those of `Fs::commit`; `NotFound` for a file that a rollback has unmade; `Damaged` if the record
    /// cannot take the edit.
    pub(crate) fn commit_edit(
        &self,
        node: &Node,
        state: &mut NodeState,
        edit: &InodeEdit<'_>,
        batch: &mut Batch,
        admit: Admit,
    ) -> Result<(), FsError> {
        debug_assert!(node.state.is_locked_exclusive(), "a record changes under its node's state");
        // On a copy: the state must not change if the commit fails.
        let mut attrs = state.attrs;
        edit.apply(&mut attrs)?;
        let Some(key) = state.record_key(node.ino()) else {
            // A file in use loses its record only in a transaction that rolls back to before the file was
            // made.
            if !node.is_dir() {
                return Err(FsError::NotFound);
            }
            // A directory that was removed has no record. Its holders still see changes of the attributes.
            state.attrs = attrs;
            return Ok(());
        };
        let mut operand = Vec::with_capacity(64);
        edit.encode(&mut operand);
        batch.merge_naming(&key, &operand, edit.extents.pointers());
        self.commit(batch, admit)?;
        state.attrs = attrs;
        self.version_counters.bump(&key);
        Ok(())
    }
}

/// [`Fs::change_attributes`] as a journal keeps it.
struct SetAttributes {
    caller: RecordedCaller,
    node: u64,
    set: SetAttr,
    /// Whether the answer had the new attributes.
    wants_result: bool,
}

impl<E: Storage> Operation<Fs<E>> for SetAttributes {
    fn name(&self) -> &'static str {
        "set attributes"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.change_attributes(&self.caller.get(), scene.node(self.node)?, &self.set, self.wants_result)
            .map(drop)
    }
}
