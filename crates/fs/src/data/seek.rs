//! Finding data and holes.

use warpfire_meta::{SliceStore, Store};

use super::check_regular;
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::NodeRef;
use crate::tx::Call;

/// What to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// The next byte of data.
    Data,
    /// The next hole; the end of the file counts as one.
    Hole,
}

impl<E: Store + SliceStore> Fs<E> {
    /// The first offset, from `offset` on, where there is what is looked for.
    ///
    /// # Errors
    /// `NoSuchOffset` at or past the end of the file, or if no data follows.
    pub fn seek(&self, node: &NodeRef, what: Seek, offset: u64) -> Result<u64, FsError> {
        self.call(|| Call::Seek { node: node.ino(), what, offset }, || self.seek_in_turn(node, what, offset))
    }

    fn seek_in_turn(&self, node: &NodeRef, what: Seek, offset: u64) -> Result<u64, FsError> {
        check_regular(node)?;
        let state = node.state.read();
        let size = state.attrs.size_bytes;
        if offset >= size {
            return Err(FsError::NoSuchOffset);
        }
        let mut data = None;
        let mut hole = offset;
        self.for_each_piece(node, &state, offset, size, &mut |piece| match what {
            Seek::Data => {
                data = Some(piece.offset);
                Ok(false)
            }
            Seek::Hole => {
                if piece.offset > hole {
                    return Ok(false);
                }
                hole = piece.end();
                Ok(true)
            }
        })?;
        match what {
            Seek::Data => data.ok_or(FsError::NoSuchOffset),
            Seek::Hole => Ok(hole),
        }
    }
}
