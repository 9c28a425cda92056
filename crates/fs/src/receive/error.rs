//! Why a stream is not received.

use std::sync::Arc;

use warpfire_format::Corrupt;
use warpfire_format::stream::StreamHeader;
use warpfire_meta::MetaError;
use warpfire_slices::SliceError;

use crate::error::FsError;

/// Why a stream is not received. The target is as it was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The bytes are no stream.
    #[error("this is no stream of 'warpfire send'")]
    NoStream,
    /// The stream has a version or a feature that this program does not know.
    #[error("the stream is of a newer version of warpfire")]
    NewerVersion,
    /// The bytes have changed on their way.
    #[error("the stream is damaged: {0}")]
    Damaged(&'static str),
    /// Bytes follow the end of the stream.
    #[error("bytes follow the end of the stream")]
    Trailing,
    /// The stream ends before its end.
    #[error("the stream was cut after {0} bytes of files")]
    Cut(u64),
    /// Another stream is received in part.
    #[error("another stream for this directory is received in part, of the snapshot '{0}'")]
    OtherStream(Arc<str>),
    /// The same stream is received in part, and this one begins at its beginning.
    #[error("this stream is received in part already")]
    Begun,
    /// The stream goes on from a mark, and nothing of it is here.
    #[error("this is the rest of a stream, and the part before it is not here")]
    NotBegun,
    /// The stream goes on from another mark than the one that was received.
    #[error("this rest of a stream begins at another place than the one that was reached")]
    OtherMark,
    /// Too many bytes without a mark.
    #[error("the stream has no mark for too long")]
    NoMark,
    /// A full stream is for a directory that does not exist or is empty.
    #[error("the directory exists and is not empty")]
    TargetExists,
    /// The parent of the target does not exist.
    #[error("the directory to receive into does not exist")]
    NoParent,
    /// An increment is for a directory that was received.
    #[error("the stream has the changes since the snapshot '{0}', and the directory was never received")]
    NeverReceived(Arc<str>),
    /// The directory was received from another pool, or from another directory of it.
    #[error("the directory was received from {0}")]
    OtherSource(&'static str),
    /// The directory shows another snapshot than the base.
    #[error("the stream has the changes since the snapshot '{base}', and the directory shows '{shown}'")]
    OtherBase {
        /// The base of the stream.
        base: Arc<str>,
        /// The snapshot that the directory shows.
        shown: Arc<str>,
    },
    /// The directory shows the snapshot of the stream.
    #[error("the directory shows the snapshot '{0}' already")]
    AlreadyShown(Arc<str>),
    /// The receiver's snapshot of the base is deleted.
    #[error("the snapshot '{0}' of this pool, which has the directory as it was received, is deleted")]
    BaseDeleted(Arc<str>),
    /// Something in the directory was changed.
    #[error("the directory has changed since it was received: {0}")]
    Changed(Arc<str>),
    /// The name for the snapshot is taken.
    #[error("the pool has a snapshot or bookmark '{0}' already")]
    SnapshotTaken(Arc<str>),
    /// The records do not fit the tree.
    #[error("the stream does not fit the directory: {0}")]
    DoesNotFit(FsError),
    /// The filesystem.
    #[error(transparent)]
    Files(FsError),
}

impl ReceiveError {
    /// The error of bytes that do not decode.
    pub(super) fn of_bytes(e: Corrupt) -> ReceiveError {
        match StreamHeader::is_of_other_version(e) {
            true => ReceiveError::NewerVersion,
            false => ReceiveError::Damaged(e.reason),
        }
    }

    /// The error of a step that the records ask for.
    pub(super) fn of_step(e: FsError) -> ReceiveError {
        match e {
            FsError::NotFound
            | FsError::Exists
            | FsError::NotDirectory
            | FsError::IsDirectory
            | FsError::NotEmpty
            | FsError::NotPermitted
            | FsError::Invalid(_)
            | FsError::NameTooLong
            | FsError::TooManyLinks
            | FsError::FileTooLarge
            | FsError::NoAttribute
            | FsError::Range(_)
            | FsError::ValueTooLarge
            | FsError::Unsupported
            | FsError::Busy => ReceiveError::DoesNotFit(e),
            e => ReceiveError::Files(e),
        }
    }
}

impl From<FsError> for ReceiveError {
    fn from(e: FsError) -> Self {
        ReceiveError::Files(e)
    }
}

impl From<MetaError> for ReceiveError {
    fn from(e: MetaError) -> Self {
        ReceiveError::Files(e.into())
    }
}

impl From<SliceError> for ReceiveError {
    fn from(e: SliceError) -> Self {
        ReceiveError::Files(e.into())
    }
}

/// A name in a message.
pub(super) fn words(name: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(name).into()
}
