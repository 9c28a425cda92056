//! The last step: the target shows the new state.
//!
//! # Invariants
//! 1. The step is one commit: the tree gets its name or is changed, its attribute names what it shows, the
//!    spool goes, and the receiver's snapshot is made of exactly that (`Transaction::snapshot_at_commit`).
//! 2. An increment is applied only if the target is as the receiver's snapshot of the base shows it
//!    (`check_unchanged`). A change in it beside the step makes the commit fail (`check_at_commit`).

use std::sync::Arc;

use warpfire_format::stream::{ReceiveState, Received, StreamHeader, StreamRecords};
use warpfire_meta::{SnapshotStore, Storage};

use super::ReceiveError;
use super::build::{SpoolData, TreeBuilder};
use super::error::words;
use super::removal::remove_tree;
use super::spool::{DATA, RECORDS, Receiver, STASH, STATE, Spool, TREE};
use crate::acl::Caller;
use crate::attrs::{NewMode, SetAttr, SetTime, XattrMode};
use crate::error::FsError;
use crate::fs::Fs;
use crate::names::RenameMode;
use crate::node::NodeRef;
use crate::snapshot::SnapshotInfo;
use crate::stamp::stamp;
use crate::transfer::{RECEIVE_NAME, RECEIVED_XATTR, is_receive_directory};
use crate::tx::{Transaction, TxFs};

const ROOT: Caller<'static> = Caller::ROOT;

/// Bytes of records that are read at once.
const RECORDS_READ_BYTES: u64 = 1 << 20;

/// Names that a listing returns.
const NAMES_AT_ONCE: usize = 1024;

/// A tree that was received.
#[derive(Clone, Debug)]
pub struct ReceivedTree {
    /// What it shows.
    pub header: StreamHeader,
    /// The hash of the stream.
    pub hash: [u8; 32],
    /// Records of the stream.
    pub records: u64,
    /// Bytes of files in the stream.
    pub data_bytes: u64,
    /// The snapshot of this pool that keeps it.
    pub snapshot: SnapshotInfo,
}

impl<E: Storage + SnapshotStore> Receiver<E> {
    /// Lets the target show the received tree, durably. `commit` commits the transaction that does it.
    ///
    /// # Errors
    /// `Cut` if the stream is not whole; see [`ReceiveError`] for others. The spool stays, and a
    /// later receiver may call this again.
    pub fn finish(
        mut self,
        commit: &dyn Fn(Transaction<E>) -> Result<(), FsError>,
    ) -> Result<ReceivedTree, ReceiveError> {
        if !self.is_complete() {
            return Err(ReceiveError::Cut(self.data_bytes()));
        }
        let state = self.state.clone().expect("a complete stream has a header");
        let fs = Arc::clone(&self.fs);
        self.check_target(&state.header)?;
        let spool = self.take_spool()?;
        let keeps_as = self.snapshot_name(&state.header)?;
        let is_full = state.header.base.is_none();
        if is_full {
            self.build_beside(&state, &spool)?;
        }
        // The transaction sees the tree that was built, and the target as it is from here on.
        let tx = fs.begin()?;
        let root = match is_full {
            true => self.place_tree(tx.files())?,
            false => self.change_target(&tx, &state, &spool)?,
        };
        let kept_made = stamp(tx.snapshot_at_commit(&keeps_as)?);
        let received = Received {
            pool: state.header.pool,
            inode: root.ino(),
            hash: state.mark.hash,
            snapshot: state.header.snapshot.clone(),
            root: state.header.root.clone(),
            kept_made,
            kept_as: keeps_as.clone(),
        };
        tx.files().setxattr(&ROOT, &root, RECEIVED_XATTR, &received.encode(), XattrMode::Either)?;
        self.remove_spool(tx.files())?;
        drop((root, spool));
        commit(tx).map_err(|e| match e {
            FsError::Conflict { path, .. } => ReceiveError::Changed(path),
            FsError::Exists => ReceiveError::SnapshotTaken(words(&keeps_as)),
            e => ReceiveError::Files(e),
        })?;
        fs.sync()?;
        fs.remove_empty_receive_directory();
        Ok(ReceivedTree {
            hash: state.mark.hash,
            records: state.mark.records,
            data_bytes: state.mark.data_bytes,
            header: state.header,
            snapshot: fs.snapshot(&keeps_as)?,
        })
    }

    /// Builds the tree of a full stream in the spool.
    fn build_beside(&self, state: &ReceiveState, spool: &Spool) -> Result<(), ReceiveError> {
        let fs = &self.fs;
        // What a crash has left of an earlier attempt.
        remove_tree(&**fs, &spool.dir, TREE)?;
        remove_tree(&**fs, &spool.dir, STASH)?;
        let tree = fs.directory_in(&spool.dir, TREE)?;
        let stash = fs.directory_in(&spool.dir, STASH)?;
        self.build(&**fs, tree, stash, state, spool)?;
        Ok(remove_tree(&**fs, &spool.dir, STASH)?)
    }

    /// Gives the tree in the spool its name. Returns its root.
    fn place_tree(&self, files: &TxFs<E>) -> Result<NodeRef, ReceiveError> {
        let spool = self.spool_in(files)?;
        let tree = files.lookup(&ROOT, &spool, TREE)?;
        let Some(name) = self.target.name() else {
            self.move_into_root(files, &spool, &tree)?;
            return Ok(files.root());
        };
        let parent = self.target.parent(files).map_err(|_| ReceiveError::NoParent)?;
        // The mode lets an empty directory be replaced, and nothing else.
        match files.rename(&ROOT, (&spool, TREE), (&parent, name), RenameMode::Replace) {
            Err(FsError::NotEmpty | FsError::NotDirectory) => Err(ReceiveError::TargetExists),
            renamed => Ok(renamed.map(|()| tree)?),
        }
    }

    /// Moves everything in the tree into the root of the pool, which has only the spools.
    fn move_into_root(&self, files: &TxFs<E>, spool: &NodeRef, tree: &NodeRef) -> Result<(), ReceiveError> {
        let root = files.root();
        if !files.readdir(&ROOT, &root, None, 1)?.is_empty() {
            return Err(ReceiveError::TargetExists);
        }
        let xattrs = files.listxattr(&ROOT, tree)?;
        for name in xattrs.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let value = files.getxattr(&ROOT, tree, name)?;
            files.setxattr(&ROOT, &root, name, &value, XattrMode::Either)?;
        }
        let attr = files.getattr(tree);
        loop {
            let entries = files.readdir(&ROOT, tree, None, NAMES_AT_ONCE)?;
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                if is_receive_directory(root.ino(), &entry.name) {
                    return Err(ReceiveError::DoesNotFit(FsError::Exists));
                }
                let to = (&root, entry.name.as_slice());
                files.rename(&ROOT, (tree, &entry.name), to, RenameMode::NoReplace)?;
            }
        }
        files.rmdir(&ROOT, spool, TREE)?;
        let set = SetAttr {
            mode: Some(attr.mode & 0o7777),
            uid: Some(attr.uid),
            gid: Some(attr.gid),
            size_bytes: None,
            atime: Some(SetTime::At(attr.atime)),
            mtime: Some(SetTime::At(attr.mtime)),
        };
        Ok(files.set_attributes(&ROOT, &root, &set)?)
    }

    /// Carries out an increment in the target. Returns its root.
    fn change_target(
        &self,
        tx: &Transaction<E>,
        state: &ReceiveState,
        spool: &Spool,
    ) -> Result<NodeRef, ReceiveError> {
        let files = tx.files();
        let checked = self.check_unchanged()?;
        let root = self.target.find(files).map_err(|_| ReceiveError::NoParent)?;
        let dir = self.spool_in(files)?;
        let stash = files.mkdir(&ROOT, &dir, STASH, NewMode::exact(0o700))?;
        self.build(&**files, NodeRef::clone(&root), stash, state, spool)?;
        remove_tree(&**files, &dir, STASH)?;
        // The build may have taken long.
        self.check_at_commit(tx, checked)?;
        Ok(root)
    }

    /// Carries out all records in a tree.
    fn build<S: Storage>(
        &self,
        fs: &Fs<S>,
        root: NodeRef,
        stash: NodeRef,
        state: &ReceiveState,
        spool: &Spool,
    ) -> Result<(), ReceiveError> {
        let data = SpoolData::new(&*self.fs, NodeRef::clone(&spool.data), state.mark.data_bytes);
        let mut builder = TreeBuilder::new(fs, root, stash, data)?;
        let (mut buffer, mut at) = (Vec::new(), 0);
        while at < state.record_bytes {
            let wanted = (state.record_bytes - at).min(RECORDS_READ_BYTES);
            let start = buffer.len();
            buffer.resize(start + usize::try_from(wanted).expect("a short read"), 0);
            let read = self.fs.read(spool.records(), at, buffer.get_mut(start..).expect("grown above"))?;
            buffer.truncate(start + read);
            at += read as u64;
            let whole = StreamRecords::whole_bytes(&buffer);
            for record in StreamRecords::new(buffer.get(..whole).expect("within the buffer")) {
                builder.apply(&record.map_err(ReceiveError::of_bytes)?).map_err(ReceiveError::of_step)?;
            }
            buffer.drain(..whole);
            if read == 0 {
                break;
            }
        }
        match buffer.is_empty() {
            true => Ok(()),
            false => Err(ReceiveError::Damaged("records are missing")),
        }
    }

    fn spool_in(&self, files: &TxFs<E>) -> Result<NodeRef, FsError> {
        let all = files.lookup(&ROOT, &files.root(), RECEIVE_NAME)?;
        files.lookup(&ROOT, &all, &self.target.spool_name())
    }

    /// Removes the spool, which is as good as empty.
    fn remove_spool(&self, files: &TxFs<E>) -> Result<(), FsError> {
        let spool = self.spool_in(files)?;
        for name in [DATA, RECORDS, STATE] {
            files.unlink(&ROOT, &spool, name)?;
        }
        let all = files.lookup(&ROOT, &files.root(), RECEIVE_NAME)?;
        files.rmdir(&ROOT, &all, &self.target.spool_name())
    }
}
