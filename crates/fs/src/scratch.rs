//! Buffers that calls reuse: each thread keeps one set.

use std::cell::Cell;

use warpfire_meta::Batch;

/// Buffers of one call. Empty when taken; their memory goes back to the thread when dropped.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) batch: Batch,
    pub(crate) value: Vec<u8>,
    pub(crate) other: Vec<u8>,
}

/// A call that grew its buffers beyond this gives them back to the system.
const KEPT_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static SPARE: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Scratch that goes back to its thread.
pub(crate) struct ScratchGuard(Option<Box<Scratch>>);

impl Scratch {
    pub(crate) fn take() -> ScratchGuard {
        let mut scratch = SPARE.take().unwrap_or_default();
        scratch.batch.clear();
        scratch.value.clear();
        scratch.other.clear();
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
                // A thread that is ending has no place for it any more.
                let _ = SPARE.try_with(|spare| spare.set(Some(scratch)));
            }
        }
    }
}
