//! An inode that loses a name.
//!
//! ```text
//!  plan ──► commit ──► settle          the name is gone
//!              └─────► call_off        nothing has changed
//! ```

use warpfire_format::fs::{Inode, InodeContent, InodeEdit, InodeTime, Key, inode_key};
use warpfire_meta::{Batch, Storage};

use crate::attrs::missing_record;
use crate::deferred::{BYTES, INODES};
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::REGIONS_PER_COMMIT;
use crate::node::{NodeRef, NodeState, RecordLocation};

/// What becomes of an inode when the batch that it was planned into has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// It has other names.
    LinksLeft,
    /// It goes at once: no one holds it.
    Removed,
    /// It waits for its holders, or for its regions to be removed step by step.
    Orphaned,
}

impl<E: Storage> Fs<E> {
    /// Adds to the batch what the loss of one name means for a file that is no directory. The name itself is the caller's to
    /// change, under its key lock.
    pub(super) fn plan_departure(
        &self,
        node: &NodeRef,
        state: &NodeState,
        now: InodeTime,
        batch: &mut Batch,
    ) -> Result<Departure, FsError> {
        let own = inode_key(self.volume, node.ino());
        if state.attrs.links > 1 {
            let mut operand = Vec::new();
            InodeEdit { links_add: -1, ctime: Some(now), ..InodeEdit::default() }.encode(&mut operand);
            batch.merge_naming(&own, &operand, []);
            return Ok(Departure::LinksLeft);
        }
        if state.location == RecordLocation::Own {
            batch.delete(&own);
        }
        if self.inode_cache.claim(node) {
            let planned = self.plan_content_removal(node.ino(), state, REGIONS_PER_COMMIT, batch);
            match planned {
                Ok(true) => {
                    batch.add(INODES, -1);
                    batch.add(BYTES, -state.attrs.allocated_bytes.cast_signed());
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
        planned
    }

    fn plan_orphan(
        &self,
        node: &NodeRef,
        state: &NodeState,
        now: InodeTime,
        batch: &mut Batch,
    ) -> Result<Departure, FsError> {
        let key = state.record_key(self.volume, node.ino()).ok_or_else(missing_record)?;
        let mut value = Vec::new();
        if !self.get(&key, &mut value)? {
            return Err(missing_record());
        }
        let mut inode = Inode::decode(&value)?;
        inode.attrs.links = 0;
        inode.attrs.ctime = now;
        let mut out = Vec::new();
        inode.encode(&mut out);
        batch.put(&Key::Orphan(self.volume, node.ino()).encode(), &out);
        Ok(Departure::Orphaned)
    }

    /// The batch has committed: the node says so too.
    pub(super) fn finish_departure(
        &self,
        node: &NodeRef,
        state: &mut NodeState,
        departure: Departure,
        now: InodeTime,
    ) {
        if let Some(key) = state.record_key(self.volume, node.ino()) {
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

    /// The batch has not committed.
    pub(super) fn cancel_departure(node: &NodeRef) {
        node.revive();
    }
}

/// Whether content can stay where it is when the record moves: what is in the record moves with it.
pub(super) fn with_ctime<'a>(record: &'a [u8], now: InodeTime) -> Result<Inode<'a>, FsError> {
    let mut inode = Inode::decode(record)?;
    inode.attrs.ctime = now;
    debug_assert!(!matches!(inode.content, InodeContent::Directory(..)), "a directory's record never moves");
    Ok(inode)
}
