//! Nodes by name and by number: a node is made from its record if it is not in use.

use warpfire_format::fs::{Dentry, FileKind, Inode, volume_of};
use warpfire_meta::{Storage, WantedBytes};

use crate::damage::{HOLDS_ITSELF, INODE_DIFFERS, NO_INODE_OF_NAME};
use crate::error::FsError;
use crate::fs::{Doors, Fs};
use crate::keys::{dentry_key, inode_key, share_volume};
use crate::node::{NodeLookup, NodeRef, NodeState, RecordLocation, RecordWatch};
use crate::scratch::Scratch;

impl<E: Storage> Fs<E> {
    /// The node that a name leads to, `None` if there is no such name.
    pub(crate) fn find(&self, dir: u64, name: &[u8]) -> Result<Option<NodeRef>, FsError> {
        self.find_by(dir, name, |key, value| self.get(key, value))
    }

    /// As `find`, for a caller that will read the file: a cold record comes with the bytes of a small file,
    /// and the store keeps these for the read.
    pub(crate) fn find_to_read(&self, dir: u64, name: &[u8]) -> Result<Option<NodeRef>, FsError> {
        let _pin = self.engine.pin()?;
        self.find_by(dir, name, |key, value| self.get_with_bytes(key, WantedBytes::Soon, value))
    }

    /// Finds a node by records that `get` reads.
    ///
    /// It takes no key lock. Each turn of the loop ends when the record has changed since its version counter
    /// was read.
    fn find_by(
        &self,
        dir: u64,
        name: &[u8],
        get: impl Fn(&[u8], &mut Vec<u8>) -> Result<bool, FsError>,
    ) -> Result<Option<NodeRef>, FsError> {
        debug_assert!(self.call_gate.is_entered(), "a name is looked up inside a call");
        let key = dentry_key(dir, name);
        let mut scratch = Scratch::take();
        loop {
            // Before the record: a change after this read moves the counter, and the node is not made.
            let watch = self.version_counters.watch(&key);
            if !get(&key, &mut scratch.value)? {
                return Ok(None);
            }
            let dentry = Dentry::decode(&scratch.value)?.in_volume(volume_of(dir));
            if dentry.ino() == dir {
                return Err(HOLDS_ITSELF.into());
            }
            if self.leaves_out(dir, &dentry) {
                return Ok(None);
            }
            let found = match dentry {
                Dentry::Reference(kind, ino) => self.find_at_own_key(kind, ino, Some((dir, name)), &get)?,
                Dentry::Embedded(inode) => Some(self.node_of_name(&inode, watch, (dir, name))),
            };
            match found {
                Some(NodeLookup::Node(node)) => return Ok(Some(node)),
                // The remover holds the state until its commit has succeeded or failed.
                Some(NodeLookup::Dying(node)) => drop(node.state.read()),
                Some(NodeLookup::Stale) => {}
                Some(NodeLookup::Refused(e)) => return Err(e.into()),
                // An inode that is removed after the name was read takes its name along, and the counter of
                // the name moves. If it did not move, the store has lost the inode.
                None if watch.is_unmoved() => return Err(NO_INODE_OF_NAME.into()),
                None => {}
            }
        }
    }

    /// The node of an inode whose record was read from a name. `watch` watches the name's key since before
    /// that.
    pub(crate) fn node_of_name(
        &self,
        inode: &Inode<'_>,
        watch: RecordWatch<'_>,
        (dir, name): (u64, &[u8]),
    ) -> NodeLookup {
        self.inode_cache.get_or_insert(
            inode.ino,
            || watch.is_unmoved(),
            || NodeState::new(inode, RecordLocation::Dentry(dir, name.into())),
        )
    }

    /// Whether a name is a door that this filesystem does not show.
    pub(crate) fn leaves_out(&self, dir: u64, dentry: &Dentry<'_>) -> bool {
        self.doors == Doors::LeftOut && !share_volume(dir, dentry.ino())
    }

    /// The node of an inode with a record at its own key. `by` is the name through which it was found. `None`
    /// if there is no such inode.
    fn find_at_own_key(
        &self,
        kind: FileKind,
        ino: u64,
        by: Option<(u64, &[u8])>,
        get: impl Fn(&[u8], &mut Vec<u8>) -> Result<bool, FsError>,
    ) -> Result<Option<NodeLookup>, FsError> {
        debug_assert!(self.call_gate.is_entered(), "an inode is looked up inside a call");
        // The common case: an inode in use costs no read of its record.
        if let Some(found) = self.inode_cache.get(ino) {
            return Ok(Some(found));
        }
        let key = inode_key(ino);
        let watch = self.version_counters.watch(&key);
        let mut value = Vec::new();
        if !get(&key, &mut value)? {
            return Ok(None);
        }
        let inode = Inode::decode(&value)?.in_volume(volume_of(ino));
        if inode.ino != ino || inode.attrs.kind != kind || inode.attrs.links == 0 {
            return Err(INODE_DIFFERS.into());
        }
        let state = || {
            let state = NodeState::new(&inode, RecordLocation::Own);
            // A directory's record has its name. For a file with several names any of them will do: it is
            // only shown to people.
            let dentry = state.dentry.clone().or_else(|| by.map(|(dir, name)| Box::new((dir, name.into()))));
            NodeState { dentry, ..state }
        };
        Ok(Some(self.inode_cache.get_or_insert(ino, || watch.is_unmoved(), state)))
    }

    /// The node of a directory by number, for walks towards the root. `None` if it is gone.
    pub(crate) fn directory(&self, ino: u64) -> Result<Option<NodeRef>, FsError> {
        self.at_own_key(FileKind::Directory, ino)
    }

    /// The node of an inode with a record at its own key, by number. `None` if it is gone.
    pub(crate) fn at_own_key(&self, kind: FileKind, ino: u64) -> Result<Option<NodeRef>, FsError> {
        loop {
            match self.find_at_own_key(kind, ino, None, |key, value| self.get(key, value))? {
                Some(NodeLookup::Node(node)) => return Ok(Some(node)),
                Some(NodeLookup::Dying(node)) => drop(node.state.read()),
                Some(NodeLookup::Stale) => {}
                Some(NodeLookup::Refused(e)) => return Err(e.into()),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::acl::Caller;
    use crate::keys::inode_key;
    use crate::tests::world;
    use crate::{NewMode, SetAttr};

    /// Finds a file in a world in which another thread changes the file just after its record was first
    /// read, and nobody uses the file any more.
    fn find_while_it_changes(has_own_record: bool) {
        const ROOT: Caller<'static> = Caller::ROOT;
        let fs = world();
        let node = fs.create(&ROOT, &fs.root(), b"file", NewMode::exact(0o644)).unwrap();
        if has_own_record {
            fs.link(&ROOT, &node, &fs.root(), b"other").unwrap();
        }
        let (ino, root) = (node.ino(), fs.root().ino());
        drop(node);
        let change = || {
            let node = fs.lookup(&ROOT, &fs.root(), b"file").unwrap();
            let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            fs.setattr(&ROOT, &node, &mode).unwrap();
        };
        let (name_reads, own_reads) = (Cell::new(0), Cell::new(0));
        let guard = fs.call_gate.enter();
        let found = fs.find_by(root, b"file", |key, value| {
            let found = fs.get(key, value)?;
            let reads = if *key == *inode_key(ino) { &own_reads } else { &name_reads };
            reads.set(reads.get() + 1);
            // The record of the file is the name's, or the one at its own key.
            if std::ptr::eq(reads, &own_reads) == has_own_record && reads.get() == 1 {
                std::thread::scope(|scope| scope.spawn(change).join()).expect("nothing fails");
            }
            Ok(found)
        });
        drop(guard);
        let found = found.unwrap().expect("it is there");
        assert_eq!((found.ino(), fs.getattr(&found).mode & 0o777), (ino, 0o600), "the node is outdated");
        assert_eq!((name_reads.get(), own_reads.get()), (2, if has_own_record { 2 } else { 0 }));
    }

    #[test]
    fn a_record_that_changes_after_it_was_read_is_read_again() {
        find_while_it_changes(false);
        find_while_it_changes(true);
    }
}
