//! The trait [`Operation`]: a call in the form that a journal keeps.

use super::scene::ReplayScene;
use crate::error::FsError;
use crate::node::NameBuf;

/// A call in the form that a journal keeps. It has names and inode numbers instead of nodes, and slices
/// instead of long data, so that it holds nothing in use.
///
/// `F` is the filesystem that the call belongs to.
pub(crate) trait Operation<F>: Send {
    /// The name of the call, for the text of a conflict: "rename".
    fn name(&self) -> &'static str;

    /// The inode that the call is about, and the name or path in it. The name is empty for a call that is
    /// about the inode itself.
    fn subject(&self) -> (u64, &[u8]);

    /// Bytes of memory outside of the type itself, without [`content_bytes`](Operation::content_bytes).
    fn heap_bytes(&self) -> usize;

    /// Bytes of files that the operation keeps in memory.
    fn content_bytes(&self) -> usize {
        0
    }

    /// The file that the call reads, if it does nothing else. Such a call answers as before as long as nobody
    /// changes that file.
    fn pure_read(&self) -> Option<PureRead> {
        None
    }

    /// Makes the call again in `fs`, with nodes of `scene`, and adds the nodes of its answer to `scene`.
    ///
    /// The gate of `fs` takes the digest of the answer. So an error of the call is no failure of the replay:
    /// the first answer may have been that error, and only the digests decide.
    fn replay(&self, fs: &F, scene: &mut ReplayScene) -> Result<(), FsError>;
}

/// What a call reads that reads one file and does nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PureRead {
    /// The file's inode number.
    pub(crate) ino: u64,
    /// The bytes that it reads, from the first to past the last; `None` for everything about the file.
    pub(crate) bytes: Option<(u64, u64)>,
}

impl PureRead {
    /// Of everything about a file.
    pub(crate) fn of_all(ino: u64) -> PureRead {
        PureRead { ino, bytes: None }
    }
}

/// Memory outside of a value itself.
pub(crate) trait HeapBytes {
    /// Its length in bytes.
    fn heap_bytes(&self) -> usize;
}

impl HeapBytes for NameBuf {
    fn heap_bytes(&self) -> usize {
        if self.spilled() { self.capacity() } else { 0 }
    }
}

impl<T> HeapBytes for Box<[T]> {
    fn heap_bytes(&self) -> usize {
        size_of_val::<[T]>(self)
    }
}

impl<T: HeapBytes> HeapBytes for Option<T> {
    fn heap_bytes(&self) -> usize {
        self.as_ref().map_or(0, HeapBytes::heap_bytes)
    }
}
