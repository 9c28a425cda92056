//! Names, files and time, written once over the metadata and slice seams.
//!
//! [`Fs`] is the filesystem. Its calls take nodes ([`NodeRef`]). A node stands for an inode in use; it stays
//! valid when its file is renamed or loses its last name. A call acts for a user ([`acl::Caller`]), and its
//! permissions are checked here, for the mount and the library alike. Programs that use the library name
//! files by path ([`Fs::resolve`]).

#![forbid(unsafe_code)]

pub mod acl;
mod attrs;
mod damage;
mod data;
mod deferred;
mod diff;
mod error;
mod find;
mod fs;
mod inode_numbers;
mod invalidation;
mod keys;
pub mod limits;
mod lock_ranks;
mod names;
mod node;
mod op;
mod orphan;
mod path;
mod receive;
mod rollback;
mod schema;
mod scratch;
mod send;
mod slice;
mod snapshot;
mod space;
mod stamp;
#[cfg(test)]
mod tests;
mod transfer;
mod tx;
mod volume;

pub use attrs::{Attr, NewMode, SetAttr, SetTime, XattrMode};
pub use data::{AllocMode, DefragmentCounts, Position, ReadAt, Seek};
pub use diff::{Aspect, ChangeKind, ChangedRanges, Diff, PathChange, RANGES_LISTED_MAX, XATTRS_LISTED_MAX};
pub use error::FsError;
pub use fs::{AtimeMode, Fs, FsOptions};
pub use invalidation::Invalidation;
pub use names::{
    DirEntry, DirHandle, FilePlace, HandleVisitor, ListedFile, NewFile, RemovedFiles, RenameMode,
};
pub use node::{Node, NodeRef};
pub use op::{CallNumber, Savepoint, TransactionCounts};
pub use path::{Follow, Resolved};
pub use receive::{
    ReceiveError, ReceiveState, ReceiveTarget, ReceivedTree, Receiver, StreamEnd, StreamHeader, StreamMark,
    StreamSnapshot,
};
pub use rollback::{ChangeDetail, Rollback};
pub use schema::FsSchema;
pub use send::{SendBase, SendError, SendOrder, SentStream, StreamData, StreamFramer, StreamPart};
pub use slice::{InsertSource, YankLimit, YankedSlice};
pub use snapshot::{BookmarkInfo, SnapshotFs, SnapshotInfo, SnapshotSpace, gmt_name, gmt_second};
pub use space::SpaceInfo;
pub use transfer::{RECEIVE_NAME, STREAM_MARK_BYTES};
pub use tx::{FileVersion, PendingCommit, Transaction, TxFs};
pub use volume::{CloneSource, DetachProgress, LimitChange, NewLimit, VolumeInfo, VolumeOrder, WatchDetach};
pub use warpfire_format::fs::FileKind;
pub use warpfire_format::fs::{LIMIT_MAX, VolumeLimits};
pub use warpfire_units::Seq;
