//! Hard links: the call that gives a file one more name.
//!
//! The record of a file with one name is the value of that name. The second name moves the record to the
//! inode's own key, and both names become references to it. It stays there when names are removed again.

use warpfire_format::fs::{Dentry, Inode, InodeEdit, local_of};
use warpfire_meta::{Admit, Storage};

use super::remove::check_parent_and_name;
use crate::acl::{Caller, Perm};
use crate::attrs::missing_record;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::{dentry_key, inode_key, orphan_key, share_volume};
use crate::limits::LINKS_MAX;
use crate::node::{NameBuf, NodeRef, RecordLocation};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

impl<E: Storage> Fs<E> {
    /// Gives a file one more name.
    ///
    /// # Errors
    /// `NotPermitted` for a directory; `NotFound` for a file that has lost its last name; `TooManyLinks`;
    /// `Exists` and others as for `create`.
    pub fn link(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        dir: &NodeRef,
        name: &[u8],
    ) -> Result<(), FsError> {
        let record = || MakeLink {
            caller: RecordedCaller::of(caller),
            node: node.ino(),
            dir: dir.ino(),
            name: name.into(),
        };
        self.call(record, || {
            check_parent_and_name(dir, name)?;
            if node.is_dir() {
                return Err(FsError::NotPermitted);
            }
            if !share_volume(node.ino(), dir.ino()) {
                return Err(FsError::OtherVolume);
            }
            self.change_with_pin(|| self.try_link(caller, node, dir, name))
        })
    }

    fn try_link(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        dir: &NodeRef,
        name: &[u8],
    ) -> Result<(), FsError> {
        let now = self.now();
        // Until the commit the directory cannot be removed.
        let _adding = dir.children.read();
        let key = dentry_key(dir.ino(), name);
        let _guard = self.engine.lock(&[&key]);
        // A record that moves takes its slices along. The pin keeps their segments from the read of the
        // record to the commit.
        let _pin = self.pin_to_commit()?;
        let mut scratch = Scratch::take();
        let Scratch { batch, value, other } = &mut *scratch;
        if self.get(&key, value)? {
            // Only a caller that may search the directory learns that the name is taken.
            self.access(caller, dir, Perm::EXECUTE)?;
            return Err(FsError::Exists);
        }
        {
            let parent = dir.state.read();
            if parent.is_unlinked() {
                return Err(FsError::NotFound);
            }
            self.permit(caller, dir.ino(), &parent.attrs, Perm::WRITE.or(Perm::EXECUTE))?;
        }
        let mut state = node.state.write();
        if state.attrs.links >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        let old_key = state.record_key(node.ino()).ok_or(FsError::NotFound)?;
        let own = inode_key(node.ino());
        let mut location = RecordLocation::Own;
        match &state.location {
            RecordLocation::Own => {
                InodeEdit { links_add: 1, ctime: Some(now), ..InodeEdit::default() }.encode(value);
                batch.merge_naming(&own, value, []);
            }
            RecordLocation::Dentry(..) | RecordLocation::Orphan { linkable: true } => {
                if !self.get(&old_key, value)? {
                    return Err(missing_record());
                }
                let mut inode = Inode::decode(value)?;
                debug_assert_eq!(inode.attrs.links, state.attrs.links, "a node's state equals its record");
                inode.attrs.links += 1;
                inode.attrs.ctime = now;
                inode.encode(other);
                // The first name of an unnamed file takes the record; a second name sends it to its own
                // key.
                if let RecordLocation::Orphan { .. } = state.location {
                    batch.delete(&orphan_key(node.ino()));
                    batch.put(&key, other);
                    location = RecordLocation::Dentry(dir.ino(), name.into());
                } else {
                    batch.put(&own, other);
                    other.clear();
                    Dentry::encode_reference(other, node.kind(), local_of(node.ino()));
                    batch.put_naming(&old_key, other, []);
                }
            }
            RecordLocation::Orphan { linkable: false } | RecordLocation::Gone => {
                return Err(FsError::NotFound);
            }
        }
        if location == RecordLocation::Own {
            other.clear();
            Dentry::encode_reference(other, node.kind(), local_of(node.ino()));
            batch.put_naming(&key, other, []);
        }
        self.commit(batch, Admit::User)?;
        state.attrs.links += 1;
        state.attrs.ctime = now;
        if location == RecordLocation::Own {
            state.dentry = Some(Box::new((dir.ino(), name.into())));
        }
        state.location = location;
        debug_assert!(!state.is_unlinked(), "the file has a name now");
        // More keys than changed in some cases: a counter that moves without need costs one read.
        for moved in [&old_key, &own, &key] {
            self.version_counters.bump(moved);
        }
        drop(state);
        self.defer_times(dir, now);
        Ok(())
    }
}

/// [`Fs::link`] as a journal keeps it.
struct MakeLink {
    caller: RecordedCaller,
    node: u64,
    dir: u64,
    name: NameBuf,
}

impl<E: Storage> Operation<Fs<E>> for MakeLink {
    fn name(&self) -> &'static str {
        "link"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.dir, &self.name)
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.name.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.link(&self.caller.get(), scene.node(self.node)?, scene.node(self.dir)?, &self.name)
    }
}
