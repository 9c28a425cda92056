//! Content of regular files: pieces of bytes, slices and holes, laid over what is there.

mod alloc;
mod change;
mod copy;
mod defragment;
mod piece;
mod read;
mod refold;
mod seek;
mod splice;
mod truncate;
mod write;

pub use alloc::AllocMode;
pub(crate) use copy::pieces_of;
pub use defragment::DefragmentCounts;
pub(crate) use defragment::Fragmentation;
pub(crate) use piece::{FilePiece, RecordedContent, WriteSource, by_region};
pub use read::ReadAt;
pub use seek::Seek;
pub(crate) use splice::Splice;
pub use write::Position;
pub(crate) use write::check_end;

use crate::error::FsError;
use crate::node::Node;

/// Only regular files have content that can be read and written.
pub(crate) fn check_regular(node: &Node) -> Result<(), FsError> {
    match node.kind() {
        warpfire_format::fs::FileKind::Regular => Ok(()),
        warpfire_format::fs::FileKind::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid("not a regular file")),
    }
}
