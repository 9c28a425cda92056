//! What sending and receiving share: reserved names, the distance of marks, and the hash of a stream.

use warpfire_format::stream::STREAM_HASH_BYTES;

use crate::fs::ROOT_INO;

/// The name in the root of the directory in which streams are kept while they are received. Listings and
/// diffs leave it out, and it is not sent.
pub const RECEIVE_NAME: &[u8] = b".receive";

/// The attribute of the root of a received tree that says what it shows. It is not sent.
pub(crate) const RECEIVED_XATTR: &[u8] = b"trusted.warpfire.received";

/// Bytes of data and records between two marks.
pub const STREAM_MARK_BYTES: u64 = 8 << 20;

/// Whether a name is [`RECEIVE_NAME`] in the root.
pub(crate) fn is_receive_directory(dir: u64, name: &[u8]) -> bool {
    dir == ROOT_INO && name == RECEIVE_NAME
}

/// The running hash of a stream: at a mark it is the hash of all bytes before, with which the next part
/// begins. So a receiver that goes on at a mark needs that hash only.
pub(crate) struct StreamHasher(blake3::Hasher);

impl StreamHasher {
    /// The hasher at the beginning of a stream.
    pub(crate) fn new() -> StreamHasher {
        StreamHasher(blake3::Hasher::new())
    }

    /// The hasher at a mark.
    pub(crate) fn after(hash: &[u8; STREAM_HASH_BYTES]) -> StreamHasher {
        let mut hasher = blake3::Hasher::new();
        hasher.update(hash);
        StreamHasher(hasher)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn hash(&self) -> [u8; STREAM_HASH_BYTES] {
        *self.0.finalize().as_bytes()
    }
}
