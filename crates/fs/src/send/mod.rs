//! Sending: a snapshot, or the changes between two, becomes a stream of bytes (`docs/STREAM.md`).
//!
//! # Terms
//! The *base* is the older snapshot, which the receiver has. Without one the stream is *full*, with one it
//! is an *increment*. The sender needs the base itself, or a bookmark of it: that has the names and
//! attributes of the base, and not the content of its files. So a changed region is sent whole, and so is a
//! small file that has changed in any way.
//!
//! # Invariants
//! 1. The stream depends on the snapshots and on the places of their bytes alone. So it can be continued at a
//!    mark (`tests::transfer::a_stream_that_is_continued_at_any_mark_is_the_rest_of_the_whole`). Whether the
//!    versions of a bookmark have faded already makes no difference.
//! 2. An increment first takes apart, in the tree of the base, everything that has another name now
//!    (`detach`): names in a directory before the directory's own name. Then it builds the tree of the
//!    snapshot (`attach`): a directory's own name before the names in it. So every name is where the receiver
//!    looks for it, whatever was moved.
//! 3. Memory follows changed directories, moved files and files of several names, and never the number of
//!    files or their bytes (`shared`, `survey`).
//!
//! ```text
//!   base ─────┐   changed names          stash, remove
//!             ├─► Survey ──► detach ─────────────────────────┐
//!   snapshot ─┘        └───► attach ──► make, place, write ──┴─► StreamWriter ──► fill ──► StreamFramer
//!                              without a base: all names              └─ shared bytes are named again
//! ```

mod attach;
mod content;
mod detach;
mod framer;
mod place;
mod shared;
mod tree;
mod writer;

use std::ops::ControlFlow;

use warpfire_format::fs::NAME_BYTES_MAX;
use warpfire_format::stream::{StreamEnd, StreamHeader, StreamMark, StreamSnapshot};
use warpfire_format::{Corrupt, Uuid};
use warpfire_meta::{MetaError, SnapshotStore, Storage};
use warpfire_slices::SliceError;

use crate::error::FsError;
use crate::fs::Fs;
use crate::snapshot::{BookmarkInfo, SnapshotInfo};
use crate::stamp::stamp;
use attach::Attach;
use detach::Detach;
pub use framer::{StreamData, StreamFramer, StreamPart};
use tree::SentTrees;
use writer::StreamWriter;

const _: () = assert!(NAME_BYTES_MAX < 1 << 16, "a name is shorter than a frame");

/// What to send.
#[derive(Clone, Debug)]
pub struct SendOrder<'a> {
    /// The pool that the stream says it comes from.
    pub pool: Uuid,
    /// The snapshot.
    pub snapshot: &'a SnapshotInfo,
    /// The base.
    pub base: Option<SendBase<'a>>,
    /// The directory to send, from the root of the pool; `/` for all.
    pub root: &'a [u8],
    /// The mark after which the receiver has nothing.
    pub continued_at: Option<StreamMark>,
    /// Bytes of data and records between two marks, at most [`STREAM_MARK_BYTES`](crate::STREAM_MARK_BYTES).
    /// A stream is continued with the distance that it was begun with.
    pub mark_bytes: u64,
}

/// What the sender has of the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendBase<'a> {
    /// The base itself.
    Snapshot(&'a SnapshotInfo),
    /// A bookmark of it.
    Bookmark(&'a BookmarkInfo),
}

/// A stream that was sent to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentStream {
    /// The last frame.
    pub end: StreamEnd,
    /// Bytes that were written, frames included.
    pub written_bytes: u64,
}

/// Why a stream was not sent to its end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SendError {
    /// The sink takes no more bytes.
    #[error("the sink takes no more bytes")]
    Stopped,
    /// The mark is none of this stream.
    #[error("the stream has no such mark")]
    NotThisStream,
    /// The filesystem cannot be read.
    #[error(transparent)]
    Files(#[from] FsError),
}

impl From<Corrupt> for SendError {
    fn from(e: Corrupt) -> Self {
        FsError::from(e).into()
    }
}

impl From<MetaError> for SendError {
    fn from(e: MetaError) -> Self {
        FsError::from(e).into()
    }
}

impl From<SliceError> for SendError {
    fn from(e: SliceError) -> Self {
        FsError::from(e).into()
    }
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Sends a snapshot, or the changes from the base to it, to a sink, which takes whole frames.
    ///
    /// # Errors
    /// `NotFound` if a snapshot has just been deleted, or the root is not in the snapshot; `NotDirectory` if
    /// it is no directory, or another one than in the base; `Damaged`; `Memory`; `Stopped` if the sink
    /// breaks; `NotThisStream` for a mark that the stream cannot have.
    pub fn send(
        &self,
        order: &SendOrder<'_>,
        sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<SentStream, SendError> {
        let (mut framer, mut failed) = (StreamFramer::default(), None);
        let sent = self.send_parts(order, &mut |mut part| {
            if let Err(error) = self.fill(&mut part) {
                failed = Some(error);
                return ControlFlow::Break(());
            }
            let framed = framer.frame(&part, |frame| sink(frame).is_continue().then_some(()).ok_or(()));
            if framed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        sent?;
        Ok(framer.sent().expect("a stream that is sent has its end"))
    }

    /// As `send`, in parts: [`fill`](Fs::fill) reads what they lack, and then a [`StreamFramer`] makes frames
    /// of them. Only names and attributes are read here.
    ///
    /// # Errors
    /// As `send`.
    pub fn send_parts(
        &self,
        order: &SendOrder<'_>,
        sink: &mut dyn FnMut(StreamPart) -> ControlFlow<()>,
    ) -> Result<(), SendError> {
        let sides = match order.base {
            Some(SendBase::Bookmark(base)) => self.bookmark_sides(base, order.snapshot)?,
            Some(SendBase::Snapshot(base)) => self.snapshot_sides(base, Some(order.snapshot))?,
            None => self.snapshot_sides(order.snapshot, Some(order.snapshot))?,
        };
        if sides.have_doors()? {
            return Err(FsError::Invalid("a snapshot with the door of a volume cannot be sent").into());
        }
        let trees = SentTrees::new(sides, order.root, order.base.is_some())?;
        let header = StreamHeader {
            pool: order.pool,
            snapshot: stream_snapshot(order.snapshot),
            base: order.base.map(stream_base),
            inodes: order.snapshot.inodes,
            file_bytes: order.snapshot.file_bytes,
            root: order.root.to_vec(),
        };
        let writer =
            StreamWriter::begin(sink, self.engine.holder(), header, order.continued_at, order.mark_bytes)?;
        let (trees, writer) = match trees.has_base() {
            true => Detach::new(trees, writer).run()?,
            false => (trees, writer),
        };
        Attach::new(trees, writer).run()
    }
}

/// The base under the name that the sender has it by. The name says which of the two it is: none of the pool
/// is of both.
fn stream_base(base: SendBase<'_>) -> StreamSnapshot {
    match base {
        SendBase::Snapshot(info) => stream_snapshot(info),
        SendBase::Bookmark(info) => {
            StreamSnapshot { number: info.seq.0, made: stamp(info.made), name: info.name.clone() }
        }
    }
}

fn stream_snapshot(info: &SnapshotInfo) -> StreamSnapshot {
    StreamSnapshot { number: info.seq.0, made: stamp(info.made), name: info.name.clone() }
}
