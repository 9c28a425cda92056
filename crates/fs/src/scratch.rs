//! Buffers that calls reuse. Each thread keeps one set, so a call needs no allocation for its batch.

use std::cell::Cell;

use warpfire_meta::Batch;

/// Buffers of one call. They are empty when taken (assert in `take`); the drop returns them to the thread.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) batch: Batch,
    pub(crate) value: Vec<u8>,
    pub(crate) other: Vec<u8>,
}

/// Buffers with more bytes than this are freed and not kept.
const KEPT_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static SPARE: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// A call's hold of its buffers.
pub(crate) struct ScratchGuard(Option<Box<Scratch>>);

impl Scratch {
    pub(crate) fn take() -> ScratchGuard {
        // A call within a call finds the place empty and gets buffers of its own.
        let mut scratch = SPARE.take().unwrap_or_default();
        scratch.batch.clear();
        scratch.value.clear();
        scratch.other.clear();
        debug_assert!(scratch.batch.is_empty(), "a batch holds the changes of one call only");
        ScratchGuard(Some(scratch))
    }
}

impl std::ops::Deref for ScratchGuard {
    type Target = Scratch;
    fn deref(&self) -> &Scratch {
        self.0.as_ref().expect("present until dropped")
    }
}

impl std::ops::DerefMut for ScratchGuard {
    fn deref_mut(&mut self) -> &mut Scratch {
        self.0.as_mut().expect("present until dropped")
    }
}

impl Drop for ScratchGuard {
    fn drop(&mut self) {
        if let Some(scratch) = self.0.take() {
            let kept = scratch.batch.bytes() + scratch.value.capacity() + scratch.other.capacity();
            if kept <= KEPT_BYTES_MAX {
                // A thread that ends may have dropped its place already; then the buffers are freed here.
                let _ = SPARE.try_with(|spare| spare.set(Some(scratch)));
            }
        }
    }
}
