//! Invalidation: the names and files with another answer after a commit, for programs that cache answers of
//! the base, like the kernel.
//!
//! The mount visits them before the commit and announces them, so that the kernel caches no new answer. After
//! the commit it has the kernel drop the answers that it cached before.

use std::collections::{BTreeMap, BTreeSet};

use warpfire_format::fs::{Dentry, Key, number_in};
use warpfire_meta::{BatchOp, Storage};
use warpfire_units::Seq;

use super::pending::PendingCommit;
use crate::error::FsError;
use crate::invalidation::Invalidation;

impl<E: Storage> PendingCommit<E> {
    /// Visits everything that the commit changes: names first, then each file once. After a `catch_up` it may
    /// be something else.
    ///
    /// A name that refers to the same file before and after is left out, although the file's record is in it:
    /// a kernel that drops a name also detaches the mounts on it.
    ///
    /// # Errors
    /// `Damaged` if a change does not decode.
    pub fn visit_changed(&self, visit: &mut dyn FnMut(Invalidation<'_>)) -> Result<(), FsError> {
        let Some((tx_fs, batch)) = self.changes() else { return Ok(()) };
        // Sets, because several keys of one file may have changed.
        let mut files = BTreeSet::new();
        let ops: BTreeMap<&[u8], BatchOp<'_>> = batch.iter().map(|op| (op.key(), op)).collect();
        let mut value = Vec::new();
        for (key, op) in &ops {
            match Key::decode(key)? {
                Key::Dentry(volume, dir, name) => {
                    let dir = number_in(volume, dir);
                    if !self.refers_to_the_same(op, &mut value)? {
                        visit(Invalidation::Name(dir, name));
                        files.insert(dir);
                    }
                }
                Key::Inode(volume, ino)
                | Key::Orphan(volume, ino)
                | Key::Xattr(volume, ino, _)
                | Key::Region(volume, ino, _) => {
                    files.insert(number_in(volume, ino));
                }
                Key::Pool(_)
                | Key::Counter(..)
                | Key::Snapshot(..)
                | Key::SnapshotName(..)
                | Key::SnapshotRule(..)
                | Key::Bookmark(..)
                | Key::Rollback(..)
                | Key::Volume(_) => {}
            }
        }
        // The key of a name does not have the inode number of the record in it. The node of that file has.
        for node in tx_fs.inode_cache.tx_nodes() {
            let location = node.state.read().record_key(node.ino());
            if location.is_none_or(|key| ops.contains_key(&*key)) {
                files.insert(node.ino());
            }
        }
        files.into_iter().for_each(|ino| visit(Invalidation::File(ino)));
        Ok(())
    }

    /// Whether a name refers to the same file before this change of its record and after it.
    fn refers_to_the_same(&self, op: &BatchOp<'_>, value: &mut Vec<u8>) -> Result<bool, FsError> {
        match op {
            // An edit of the file that the record has.
            BatchOp::Merge(..) => Ok(true),
            BatchOp::Delete(_) => Ok(false),
            BatchOp::Put(key, after) => {
                let was_there = self.base_engine().get(key, Seq::MAX, value)?;
                Ok(was_there && Dentry::decode(value)?.ino() == Dentry::decode(after)?.ino())
            }
        }
    }
}
