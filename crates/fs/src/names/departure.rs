//! Departure: the steps for an inode that loses a name.
//!
//! ```text
//!   plan_departure ──► commit ──► finish_departure    the name is gone
//!                         └─────► cancel_departure    nothing has changed
//! ```
//!
//! # Invariants
//! 1. The caller holds the lock of the name's key, and the node's state for writing, through all three steps
//!    (asserts in each).
//! 2. A node is dying from `plan_departure` on. A commit that fails revives it; after a commit that succeeds
//!    its inode has no name, so no search finds it again.

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::fs::{Inode, InodeContent, InodeEdit, InodeTime};
use warpfire_meta::{Batch, RESERVED, Storage};

use crate::attrs::missing_record;
use crate::deferred::{BYTES, INODES};
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::{inode_key, orphan_key};
use crate::limits::REGIONS_PER_COMMIT;
use crate::node::{NodeRef, NodeState, RecordLocation};

/// The end of a departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// The inode has other names.
    LinksLeft,
    /// The commit removes the inode: no other caller holds it.
    Removed,
    /// The inode becomes an orphan: it has holders, or more regions than one commit removes.
    Orphaned,
}

impl<E: Storage> Fs<E> {
    /// Adds to the batch the loss of one name of a file. The caller changes the name itself. Directories have
    /// `plan_directory_removal` instead.
    pub(super) fn plan_departure(
        &self,
        node: &NodeRef,
        state: &NodeState,
        now: InodeTime,
        batch: &mut Batch,
    ) -> Result<Departure, FsError> {
        assert!(!node.is_dir(), "a directory has one name and is removed with it");
        debug_assert!(node.state.is_locked_exclusive(), "a record changes under its node's state");
        let own = inode_key(node.ino());
        if state.attrs.links > 1 {
            let mut operand = Vec::new();
            InodeEdit { links_add: -1, ctime: Some(now), ..InodeEdit::default() }.encode(&mut operand);
            batch.merge_naming(&own, &operand, []);
            return Ok(Departure::LinksLeft);
        }
        if state.location == RecordLocation::Own {
            batch.delete(&own);
        }
        // The fast path: a file that nobody has open is removed in the commit of its last name. If it has too
        // many regions, it becomes an orphan, and the deletions that are planned already are part of its
        // removal.
        if self.inode_cache.claim(node) {
            let planned = self.plan_content_removal(node.ino(), state, REGIONS_PER_COMMIT, batch);
            match planned {
                Ok(true) => {
                    batch.add(INODES, -1);
                    batch.add(BYTES, -state.attrs.allocated_bytes.cast_signed());
                    batch.add(RESERVED, -state.attrs.reserved_bytes.cast_signed());
                    return Ok(Departure::Removed);
                }
                Ok(false) => {}
                Err(e) => {
                    node.revive();
                    return Err(e);
                }
            }
        }
        let planned = self.plan_orphan(node, state, now, batch);
        if planned.is_err() {
            node.revive();
        }
        planned.map(|()| Departure::Orphaned)
    }

    /// Adds to the batch the record of the inode in the list of orphans.
    pub(crate) fn plan_orphan(
        &self,
        node: &NodeRef,
        state: &NodeState,
        now: InodeTime,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        let key = state.record_key(node.ino()).ok_or(FsError::Gone)?;
        let mut value = Vec::new();
        if !self.get(&key, &mut value)? {
            return Err(missing_record());
        }
        // The record is read and not made from the node: it also has the inline extents.
        let mut inode = Inode::decode(&value)?;
        inode.attrs.links = 0;
        inode.attrs.ctime = now;
        let mut out = Vec::new();
        inode.encode(&mut out);
        if !is_planted(PlantedBug::OrphanUnrecorded) {
            batch.put(&orphan_key(node.ino()), &out);
        }
        Ok(())
    }

    /// Brings the departure to the node, after the commit.
    pub(super) fn finish_departure(
        &self,
        node: &NodeRef,
        state: &mut NodeState,
        departure: Departure,
        now: InodeTime,
    ) {
        debug_assert!(node.state.is_locked_exclusive(), "a node changes under its state");
        assert!(state.attrs.links > 0, "an inode that loses a name had one");
        if let Some(key) = state.record_key(node.ino()) {
            self.version_counters.bump(&key);
        }
        state.attrs.ctime = now;
        state.attrs.links -= 1;
        match departure {
            Departure::LinksLeft => {}
            Departure::Removed => state.location = RecordLocation::Gone,
            Departure::Orphaned => state.location = RecordLocation::Orphan { linkable: false },
        }
    }

    /// Undoes `plan_departure`, after a commit that failed.
    pub(super) fn cancel_departure(node: &NodeRef) {
        node.revive();
    }
}

/// The record of a file with a new change time, for a record that moves to another key. Inline content moves
/// with it; regions stay, because their keys have the inode number.
pub(super) fn with_ctime<'a>(record: &'a [u8], now: InodeTime) -> Result<Inode<'a>, FsError> {
    let mut inode = Inode::decode(record)?;
    inode.attrs.ctime = now;
    debug_assert!(
        !matches!(inode.content, InodeContent::Directory(..)),
        "a directory's record stays at its own key"
    );
    Ok(inode)
}
