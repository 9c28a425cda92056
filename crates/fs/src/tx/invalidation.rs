//! What a commit will change, for those who keep what they were told of the base.

use std::collections::BTreeSet;

use warpfire_format::fs::Key;
use warpfire_meta::Storage;

use super::begin::Transaction;
use crate::error::FsError;

/// Something whose answer changes when a transaction is committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidation<'a> {
    /// A name in the directory with this inode number: it comes, goes, or leads elsewhere; or it only holds
    /// the record of a file that changes.
    Name(u64, &'a [u8]),
    /// A file's attributes, extended ones too, or its content. A directory whose names change is among these.
    File(u64),
}

impl<E: Storage> Transaction<E> {
    /// Visits what has been changed so far: names first, then each file once. What the commit changes is
    /// among it, and a replay of the calls changes the same. `visit` must not call the transaction.
    ///
    /// # Errors
    /// `Damaged` if a change does not decode; `Ended`.
    pub fn visit_changed(&self, visit: &mut dyn FnMut(Invalidation<'_>)) -> Result<(), FsError> {
        let _guard = self.tx_fs.call_gate.enter();
        let engine = &self.tx_fs.engine;
        let mut files = BTreeSet::new();
        engine.visit_changed(&mut |key| -> Result<(), FsError> {
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
            Ok(())
        })?;
        // A record that lies in a name does not show in the key whose it is: the node does.
        for node in self.tx_fs.inode_cache.tx_nodes() {
            let location = node.state.read().record_key(self.tx_fs.volume, node.ino());
            if location.is_none_or(|key| engine.has_changed(&key)) {
                files.insert(node.ino());
            }
        }
        files.into_iter().for_each(|ino| visit(Invalidation::File(ino)));
        Ok(())
    }
}
