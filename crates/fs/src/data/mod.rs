//! The content of regular files.
//!
//! # Terms
//! An *extent* is a run of bytes of a file together with the source of these bytes: a slice in the log, bytes
//! in the value itself, or a hole. A *region* is one MiB of a file. The *layout* says where the extents are:
//! *inline* in the inode record, or in *regions*, one key for each. A file begins inline. It is promoted to
//! regions when it outgrows 64 KiB, and becomes inline again when it becomes empty. A *piece* ([`FilePiece`])
//! is a run of bytes at its offset in the whole file.
//!
//! ```text
//!   write(offset, bytes)
//!      │  up to 32 KiB: the piece has the bytes
//!      │  longer: `WriteSource::stage` writes them to the log, before any lock, and the piece has the slice
//!      ▼
//!   piece                |───── b ─────|
//!      │  `apply_pieces`: one commit
//!      ▼
//!   file       |── a ────|───── b ─────|── a ──|    what the piece covers is gone; both ends of `a` stay
//!              └─────── region 0 ───────┴───── region 1 ─────┘
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `piece` | pieces, and bytes on their way into a file |
//! | `change` | applies pieces over a file: every change of content but a splice |
//! | `splice` | replaces a range by one of another length |
//! | `read` | reads; `seek` finds data and holes, `unreadable` finds what damage has taken |
//! | `write`, `truncate`, `alloc`, `copy` | the calls |
//! | `refold` | writes a value whole after many edits, so that a read folds few |
//! | `defragment` | writes the small pieces of a region next to each other after they were read |

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
mod unreadable;
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

/// Refuses nodes that are not regular files: only these have content to read and write.
pub(crate) fn check_regular(node: &Node) -> Result<(), FsError> {
    match node.kind() {
        warpfire_format::fs::FileKind::Regular => Ok(()),
        warpfire_format::fs::FileKind::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid("not a regular file")),
    }
}
