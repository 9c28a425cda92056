//! The trait of all operations.

use super::scene::ReplayScene;
use crate::error::FsError;
use crate::node::NameBuf;

/// A call in the form that a journal keeps: names and inode numbers, never nodes; long data as slices.
///
/// `F` is the filesystem that it is a call of.
pub(crate) trait Operation<F>: Send {
    /// What people call it.
    fn name(&self) -> &'static str;

    /// The inode that it is about, and the name or path in it; an empty name if it is about the inode itself.
    fn subject(&self) -> (u64, &[u8]);

    /// Bytes of memory outside of the type itself, those of [`content_bytes`](Operation::content_bytes) left
    /// out.
    fn heap_bytes(&self) -> usize;

    /// Bytes of files that it keeps in memory.
    fn content_bytes(&self) -> usize {
        0
    }

    /// Makes the call again in `fs`, with the nodes that `scene` has, and adds the nodes that it gives to
    /// `scene`.
    ///
    /// What the call answers is in the journal of `fs`. So an error of the call is no failure of the replay:
    /// only the digests say whether the answer is the one of the first time.
    fn replay(&self, fs: &F, scene: &mut ReplayScene) -> Result<(), FsError>;
}

/// Memory outside of a value itself.
pub(crate) trait HeapBytes {
    /// How many bytes.
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
