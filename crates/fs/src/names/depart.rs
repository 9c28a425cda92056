//! An inode that loses a name.
//!
//! ```text
//!  plan ──► commit ──► settle          the name is gone
//!              └─────► call_off        nothing has changed
//! ```

use warpfire_format::fs::{Content, Inode, InodeEdit, Key, Stamp, inode_key};
use warpfire_meta::{Batch, SliceStore, Store};

use crate::attrs::lost;
use crate::dirty::{BYTES, INODES};
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::REGIONS_PER_COMMIT;
use crate::node::{Home, NodeRef, State};

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

impl<E: Store + SliceStore> Fs<E> {
    /// Adds to the batch what the loss of one name means for a file that is no directory. The name itself is the caller's to
    /// change, under its key lock.
    pub(super) fn plan_departure(
        &self,
        node: &NodeRef,
        state: &State,
        now: Stamp,
        batch: &mut Batch,
    ) -> Result<Departure, FsError> {
        let own = inode_key(self.volume, node.ino());
        if state.attrs.links > 1 {
            let mut operand = Vec::new();
            InodeEdit { links_add: -1, ctime: Some(now), ..InodeEdit::default() }.encode(&mut operand);
            batch.merge(&own, &operand);
            return Ok(Departure::LinksLeft);
        }
        if state.home == Home::Own {
            batch.delete(&own);
        }
        if self.table.claim(node) {
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
        state: &State,
        now: Stamp,
        batch: &mut Batch,
    ) -> Result<Departure, FsError> {
        let key = state.home_key(self.volume, node.ino()).ok_or_else(lost)?;
        let mut value = Vec::new();
        if !self.get(&key, &mut value)? {
            return Err(lost());
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
    pub(super) fn settle(&self, node: &NodeRef, state: &mut State, departure: Departure, now: Stamp) {
        if let Some(key) = state.home_key(self.volume, node.ino()) {
            self.stripes.moved(&key);
        }
        state.attrs.ctime = now;
        state.attrs.links -= 1;
        match departure {
            Departure::LinksLeft => {}
            Departure::Removed => state.home = Home::Gone,
            Departure::Orphaned => state.home = Home::Orphan { linkable: false },
        }
    }

    /// The batch has not committed.
    pub(super) fn call_off(node: &NodeRef) {
        node.revive();
    }
}

/// Whether content can stay where it is when the record moves: what is in the record moves with it.
pub(super) fn with_ctime<'a>(record: &'a [u8], now: Stamp) -> Result<Inode<'a>, FsError> {
    let mut inode = Inode::decode(record)?;
    inode.attrs.ctime = now;
    debug_assert!(!matches!(inode.content, Content::Directory(..)), "a directory's record never moves");
    Ok(inode)
}
