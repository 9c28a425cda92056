//! Memory that devices accept without copying.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use warpfire_units::BLOCK_BYTES;

/// A zeroed buffer whose address and length are multiples of the block size, as `O_DIRECT` wants.
#[derive(Debug)]
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
}

impl AlignedBuf {
    /// A zeroed buffer of `len_bytes`, rounded up to whole blocks.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        let len = len_bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        let layout = Self::layout(len);
        // SAFETY: the layout's size is at least one block, so not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw) else { handle_alloc_error(layout) };
        AlignedBuf { start, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, BLOCK_BYTES).expect("buffer lengths are far below isize::MAX")
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this same layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
    }
}

// SAFETY: the buffer owns its memory; moving it to or sharing it with another thread is like a Box<[u8]>.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBuf {}
