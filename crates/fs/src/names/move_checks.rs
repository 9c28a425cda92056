//! What must hold for a directory to be moved.

use warpfire_meta::Storage;

use crate::damage::OWN_ANCESTOR;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::DEPTH_MAX;
use crate::node::{Node, NodeRef};

impl<E: Storage> Fs<E> {
    /// Whether `above` is `below` or holds it at any depth. Lasting while `Fs::rename` is held, because only moves of
    /// directories change the answer.
    pub(super) fn is_ancestor(&self, above: &Node, below: &NodeRef) -> Result<bool, FsError> {
        let mut at = NodeRef::clone(below);
        for _ in 0..DEPTH_MAX {
            if at.ino() == above.ino() {
                return Ok(true);
            }
            let parent = match self.parent(&at) {
                // A directory that is gone is below nothing.
                Err(FsError::NotFound) => return Ok(false),
                other => other?,
            };
            if parent.ino() == at.ino() {
                return Ok(false);
            }
            at = parent;
        }
        Err(OWN_ANCESTOR.into())
    }
}
