//! Finding data and holes.

use warpfire_meta::Storage;

use super::check_regular;
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::NodeRef;
use crate::op::{Operation, PureRead, ReplayScene};

/// The target of [`Fs::seek`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// The next byte of data.
    Data,
    /// The next hole; the end of the file counts as one.
    Hole,
}

impl<E: Storage> Fs<E> {
    /// The first offset in bytes, from `offset` on, at which there is data or a hole, as `what` asks.
    ///
    /// # Errors
    /// `NoSuchOffset` at or past the end of the file, or if no data follows.
    pub fn seek(&self, node: &NodeRef, what: Seek, offset: u64) -> Result<u64, FsError> {
        let record = || SeekContent { node: node.ino(), what, offset };
        self.call(record, || {
            check_regular(node)?;
            let state = node.state.read();
            let size = state.attrs.size_bytes;
            if offset >= size {
                return Err(FsError::NoSuchOffset);
            }
            // Only data is visited, in order. A hole begins where the next piece does not begin at the end of
            // the one before; the end of the file is a hole too.
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
            debug_assert!(
                offset <= hole && hole <= size,
                "a hole begins in the rest of the file or at its end"
            );
            match what {
                Seek::Data => data.ok_or(FsError::NoSuchOffset),
                Seek::Hole => Ok(hole),
            }
        })
    }
}

/// The journal's form of [`Fs::seek`].
struct SeekContent {
    node: u64,
    what: Seek,
    offset: u64,
}

impl<E: Storage> Operation<Fs<E>> for SeekContent {
    fn name(&self) -> &'static str {
        "seek"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        0
    }

    fn pure_read(&self) -> Option<PureRead> {
        Some(PureRead::of_all(self.node))
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.seek(scene.node(self.node)?, self.what, self.offset).map(drop)
    }
}
