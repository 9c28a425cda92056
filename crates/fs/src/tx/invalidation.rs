//! Invalidation: the names and files with another answer after a commit, for programs that cache answers of
//! the base, like the kernel.
//!
//! The mount visits them before the commit and announces them, so that the kernel caches no new answer. After
//! the commit it has the kernel drop the answers that it cached before.

use std::collections::BTreeSet;

use warpfire_format::fs::Key;
use warpfire_meta::Storage;

use super::pending::PendingCommit;
use crate::error::FsError;

/// A name or a file with another answer after a transaction is committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidation<'a> {
    /// A name in the directory with this inode number. It is made, removed or refers to another file; or the
    /// record of a file that changes is in it.
    Name(u64, &'a [u8]),
    /// A file's attributes, extended attributes or content; or a directory in which names change.
    File(u64),
}

impl<E: Storage> PendingCommit<E> {
    /// Visits everything that the commit changes: names first, then each file once. A replay of the calls
    /// changes the same.
    ///
    /// # Errors
    /// `Damaged` if a change does not decode.
    pub fn visit_changed(&self, visit: &mut dyn FnMut(Invalidation<'_>)) -> Result<(), FsError> {
        let Some((tx_fs, batch)) = self.changes() else { return Ok(()) };
        // Sets, because several keys of one file may have changed.
        let mut files = BTreeSet::new();
        let keys: BTreeSet<&[u8]> = batch.iter().map(|op| op.key()).collect();
        for key in &keys {
            match Key::decode(key)? {
                Key::Dentry(_, dir, name) => {
                    visit(Invalidation::Name(dir, name));
                    files.insert(dir);
                }
                Key::Inode(_, ino) | Key::Orphan(_, ino) | Key::Xattr(_, ino, _) | Key::Region(_, ino, _) => {
                    files.insert(ino);
                }
                Key::Pool(_) | Key::Counter(..) => {}
            }
        }
        // The key of a name does not have the inode number of the record in it. The node of that file has.
        for node in tx_fs.inode_cache.tx_nodes() {
            let location = node.state.read().record_key(tx_fs.volume, node.ino());
            if location.is_none_or(|key| keys.contains(&*key)) {
                files.insert(node.ino());
            }
        }
        files.into_iter().for_each(|ino| visit(Invalidation::File(ino)));
        Ok(())
    }
}
