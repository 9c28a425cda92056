//! Calls that remove names: `unlink` and `rmdir`.

use warpfire_format::fs::{InodeEdit, flag};
use warpfire_meta::{Admit, Direction, KeyRange, ScanPage, Storage};

use super::departure::Departure;
use super::remove_files::RemovedFiles;
use super::{ChildrenLock, lock_children};
use crate::acl::Caller;
use crate::deferred::INODES;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::{dentry_key, dentry_range, inode_key, share_volume};
use crate::node::{NameBuf, Node, NodeRef, RecordLocation, check_name};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

impl<E: Storage> Fs<E> {
    /// Removes a name of anything except a directory. The file is removed when it has neither a name nor a
    /// holder.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `AccessDenied`, `NotPermitted` in a sticky directory.
    pub fn unlink(&self, caller: &Caller<'_>, dir: &NodeRef, name: &[u8]) -> Result<(), FsError> {
        let record = || Unlink { caller: RecordedCaller::of(caller), dir: dir.ino(), name: name.into() };
        self.call(record, || {
            check_parent_and_name(dir, name)?;
            let departure = self.unlink_name(caller, dir, name)?;
            // Without the locks of the name: a file with many regions is removed in many commits.
            if departure == Departure::Orphaned {
                self.reap_after_commit();
            }
            Ok(())
        })
    }

    fn unlink_name(&self, caller: &Caller<'_>, dir: &NodeRef, name: &[u8]) -> Result<Departure, FsError> {
        let key = dentry_key(dir.ino(), name);
        let _guard = self.engine.lock(&[&key]);
        // A record that becomes an orphan takes its slices along. The pin keeps their segments from the read
        // of the record to the commit.
        let _pin = self.engine.pin()?;
        let now = self.now();
        let Some(node) = self.find(dir.ino(), name)? else {
            // Only a caller that may search the directory learns that the name does not exist.
            self.access(caller, dir, crate::acl::Perm::EXECUTE)?;
            return Err(FsError::NotFound);
        };
        // Before the state is held: the check reads the state of the directory, which may come before it.
        let uid = node.state.read().attrs.uid;
        self.permit_removal(caller, dir, uid)?;
        if node.is_dir() {
            return Err(FsError::IsDirectory);
        }
        let mut state = node.state.write();
        let mut scratch = Scratch::take();
        scratch.batch.delete(&key);
        // From here the node may be dying, and every failure must revive it.
        let departure = self.plan_departure(&node, &state, now, &mut scratch.batch)?;
        if let Err(e) = self.commit(&scratch.batch, Admit::Reserve) {
            Self::cancel_departure(&node);
            return Err(e);
        }
        self.version_counters.bump(&key);
        self.finish_departure(&node, &mut state, departure, now);
        debug_assert_eq!(
            state.is_unlinked(),
            departure != Departure::LinksLeft,
            "a node is unlinked if it was its last name"
        );
        self.defer_times(dir, now);
        Ok(departure)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`, `Busy` for the root, `Invalid` for `.`, `AccessDenied`,
    /// `NotPermitted`.
    pub fn rmdir(&self, caller: &Caller<'_>, dir: &NodeRef, name: &[u8]) -> Result<(), FsError> {
        self.rmdir_knowing(caller, dir, name, None)
    }

    /// As `rmdir`, after steps that have removed all files of the directory: it need not look for names.
    ///
    /// # Errors
    /// As `rmdir`.
    pub fn rmdir_after(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        removed: &RemovedFiles,
    ) -> Result<(), FsError> {
        self.rmdir_knowing(caller, dir, name, Some(removed))
    }

    fn rmdir_knowing(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        removed: Option<&RemovedFiles>,
    ) -> Result<(), FsError> {
        let record =
            || RemoveDirectory { caller: RecordedCaller::of(caller), dir: dir.ino(), name: name.into() };
        self.call(record, || {
            match name {
                b"." => return Err(FsError::Invalid("'.' cannot be removed")),
                b".." => return Err(FsError::NotEmpty),
                _ => check_parent_and_name(dir, name)?,
            }
            let key = dentry_key(dir.ino(), name);
            // The lock of the children comes before the key lock, and it belongs to the directory that the
            // name leads to. So the name is found without its lock, and found again under it.
            loop {
                let target = self.find(dir.ino(), name)?.ok_or(FsError::NotFound);
                let target = match target {
                    Ok(target) => target,
                    Err(e) => {
                        self.access(caller, dir, crate::acl::Perm::EXECUTE)?;
                        return Err(e);
                    }
                };
                let _closed = lock_children(&[(&target, ChildrenLock::Exclusive)]);
                let _guard = self.engine.lock(&[&key]);
                let still = self.find(dir.ino(), name)?;
                if still.is_none_or(|still| still.ino() != target.ino()) {
                    continue;
                }
                return self.remove_directory(caller, dir, &target, &key, removed);
            }
        })
    }

    fn remove_directory(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        target: &NodeRef,
        key: &[u8],
        removed: Option<&RemovedFiles>,
    ) -> Result<(), FsError> {
        let owner = target.state.read().attrs.uid;
        self.permit_removal(caller, dir, owner)?;
        if !target.is_dir() {
            return Err(FsError::NotDirectory);
        }
        // Its children are held exclusively, so it stays empty until the commit.
        let is_emptied = removed.is_some_and(|removed| self.is_still_empty(target, removed));
        if !is_emptied && !self.is_empty(target)? {
            return Err(FsError::NotEmpty);
        }
        // The volume behind a door goes by `delete_volume` alone.
        if !share_volume(dir.ino(), target.ino()) {
            return Err(FsError::Busy);
        }
        let now = self.now();
        let mut scratch = Scratch::take();
        scratch.batch.delete(key);
        assert_ne!(dir.ino(), target.ino(), "a directory does not hold itself");
        let (mut parent, mut state) = if dir.ino() < target.ino() {
            let parent = dir.state.write();
            (parent, target.state.write())
        } else {
            let state = target.state.write();
            (dir.state.write(), state)
        };
        self.plan_directory_removal(target, &state, &mut scratch.batch)?;
        let edit = InodeEdit { links_add: -1, ..InodeEdit::default() };
        self.commit_edit(dir, &mut parent, &edit, &mut scratch.batch, Admit::Reserve)?;
        self.version_counters.bump(key);
        self.finish_directory_removal(target, &mut state, now);
        drop((parent, state));
        self.defer_times(dir, now);
        Ok(())
    }

    /// Adds to the batch the deletion of an empty directory's record and attributes.
    pub(super) fn plan_directory_removal(
        &self,
        target: &Node,
        state: &crate::node::NodeState,
        batch: &mut warpfire_meta::Batch,
    ) -> Result<(), FsError> {
        debug_assert!(target.children.is_locked_exclusive(), "no name is added to a directory that goes");
        debug_assert!(target.state.is_locked_exclusive(), "a record is deleted under its node's state");
        batch.delete(&inode_key(target.ino()));
        batch.add(INODES, -1);
        if state.attrs.flags & flag::XATTRS != 0 {
            self.for_each_xattr(target.ino(), &mut |name| {
                batch.delete(&crate::keys::xattr_key(target.ino(), name));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Brings the removal to the directory's node, after the commit.
    pub(super) fn finish_directory_removal(
        &self,
        target: &Node,
        state: &mut crate::node::NodeState,
        now: warpfire_format::fs::InodeTime,
    ) {
        debug_assert!(target.state.is_locked_exclusive(), "a node changes under its state");
        self.version_counters.bump(&inode_key(target.ino()));
        // Its pending times are emitted no more, and callers that hold it still see them.
        state.attrs = target.current(state);
        state.attrs.links = 0;
        state.attrs.ctime = now;
        state.location = RecordLocation::Gone;
    }

    /// Whether a directory holds no name. The caller holds its children exclusively, or the answer could be
    /// stale.
    pub(super) fn is_empty(&self, dir: &Node) -> Result<bool, FsError> {
        debug_assert!(dir.children.is_locked_exclusive(), "the answer stays true for the caller");
        let (start, end) = dentry_range(dir.ino());
        let snapshot = self.engine.snapshot();
        let mut page = ScanPage::default();
        let range = KeyRange { start: &start, end: Some(&end) };
        self.engine.scan(range, self.engine.seq(&snapshot), Direction::Forward, 1, 1, &mut page)?;
        Ok(page.is_empty())
    }
}

/// Checks that a call can work on this name in this directory.
pub(super) fn check_parent_and_name(dir: &Node, name: &[u8]) -> Result<(), FsError> {
    if !dir.is_dir() {
        return Err(FsError::NotDirectory);
    }
    check_name(name)
}

/// [`Fs::unlink`] as a journal keeps it.
struct Unlink {
    caller: RecordedCaller,
    dir: u64,
    name: NameBuf,
}

impl<E: Storage> Operation<Fs<E>> for Unlink {
    fn name(&self) -> &'static str {
        "unlink"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.dir, &self.name)
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.name.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.unlink(&self.caller.get(), scene.node(self.dir)?, &self.name)
    }
}

/// [`Fs::rmdir`] as a journal keeps it.
struct RemoveDirectory {
    caller: RecordedCaller,
    dir: u64,
    name: NameBuf,
}

impl<E: Storage> Operation<Fs<E>> for RemoveDirectory {
    fn name(&self) -> &'static str {
        "remove a directory"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.dir, &self.name)
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.name.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.rmdir(&self.caller.get(), scene.node(self.dir)?, &self.name)
    }
}
