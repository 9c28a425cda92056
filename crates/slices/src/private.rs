//! The slices of a transaction, over those of another store.
//!
//! What a transaction writes is named by nothing but the transaction until it commits, and what it names may
//! lose its name meanwhile. So both are kept until the transaction ends, however it ends; a commit below has
//! counted its own references by then.
//!
//! # Invariants
//! 1. `written` maps where a run of written bytes begins to its length, neighbours joined. The writer's
//!    references to them are not returned before the end. Held by
//!    `neighbours_are_one_and_only_what_others_wrote_is_held_slice_by_slice`.
//! 2. `held` lists the holds: one in each segment that the transaction wrote to, because bytes that only a
//!    transaction knows of cannot be moved, and one for every slice that it names and did not write. Held by
//!    the same test.
//! 3. Once sealed, nothing is written. Once ended, nothing is kept. Held by
//!    `what_was_kept_is_returned_once_at_the_end`.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use warpfire_log::{Admit, Pin, Slices, Space, Stream};
use warpfire_units::{SegmentId, SlicePtr};

use crate::error::SliceError;
use crate::store::{SliceHolder, SliceRead, SliceStore};

/// A transaction's slices.
pub struct PrivateSlices<B> {
    below: Arc<B>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_sealed: bool,
    is_ended: bool,
    kept: Held,
}

#[derive(Default)]
struct Held {
    written: BTreeMap<(SegmentId, u64), u32>,
    held: Vec<SlicePtr>,
}

impl Held {
    /// A slice was written.
    fn wrote(&mut self, slice: SlicePtr, holder: &dyn SliceHolder) -> Result<(), SliceError> {
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        let mut before = self.written.range_mut((segment, 0)..(segment, offset_bytes));
        match before.next_back() {
            None => {
                holder.hold(&[slice])?;
                self.held.push(slice);
            }
            Some(((_, start), len)) if *start + u64::from(*len) == offset_bytes => {
                if let Some(both) = len.checked_add(len_bytes) {
                    *len = both;
                    return Ok(());
                }
            }
            Some(_) => {}
        }
        let older = self.written.insert((segment, offset_bytes), len_bytes);
        debug_assert!(older.is_none(), "bytes are written once");
        Ok(())
    }

    /// A change names a slice, and whoever made the change still keeps the bytes.
    fn named(&mut self, slice: SlicePtr, holder: &dyn SliceHolder) -> Result<(), SliceError> {
        if cfg!(feature = "planted-bug-named-not-held") {
            return Ok(());
        }
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        let end = offset_bytes + u64::from(len_bytes);
        let before = self.written.range((segment, 0)..=(segment, offset_bytes)).next_back();
        if before.is_none_or(|((_, start), len)| *start + u64::from(*len) < end) {
            holder.hold(&[slice])?;
            self.held.push(slice);
        }
        Ok(())
    }

    /// Ends the holds. Returns what was written, whose references are to be released.
    fn end(self, holder: &dyn SliceHolder) -> Vec<SlicePtr> {
        holder.release_hold(&self.held);
        let slices = self.written.into_iter();
        slices
            .map(|((segment, offset_bytes), len_bytes)| SlicePtr { segment, offset_bytes, len_bytes })
            .collect()
    }
}

fn ended() -> SliceError {
    SliceError::ReadOnly("the transaction has ended".into())
}

impl<B: SliceStore> PrivateSlices<B> {
    /// Slices over those of `below`.
    #[must_use]
    pub fn new(below: Arc<B>) -> Self {
        PrivateSlices { below, state: Mutex::default() }
    }

    /// Keeps a slice that a change of the transaction names. The caller keeps it until this returns.
    ///
    /// # Errors
    /// As `SliceHolder::hold`; `ReadOnly` after the end.
    pub fn keep(&self, slice: SlicePtr) -> Result<(), SliceError> {
        let mut state = self.state.lock();
        if state.is_ended {
            return Err(ended());
        }
        state.kept.named(slice, &*self.below.holder())
    }

    /// Refuses writes from now on. What is kept stays so until the end.
    pub fn seal(&self) {
        self.state.lock().is_sealed = true;
    }

    /// Ends the holds and returns the references of everything written. What is to stay has been committed
    /// below before.
    pub fn end(&self) {
        let kept = {
            let mut state = self.state.lock();
            state.is_ended = true;
            std::mem::take(&mut state.kept)
        };
        self.below.release(&kept.end(&*self.below.holder()));
    }
}

impl<B: SliceStore> SliceStore for PrivateSlices<B> {
    fn write(&self, stream: Stream, bytes: &[u8], who: Admit) -> Result<Slices, SliceError> {
        if self.state.lock().is_sealed {
            return Err(ended());
        }
        // Not under the lock: the device and work for space may take long.
        let slices = self.below.write(stream, bytes, who)?;
        let holder = self.below.holder();
        let mut state = self.state.lock();
        for (number, slice) in slices.iter().enumerate() {
            let kept = if state.is_ended { Err(ended()) } else { state.kept.wrote(*slice, &*holder) };
            if let Err(e) = kept {
                // The slices noted so far are released at the end, with all others.
                self.below.release(slices.get(number..).expect("a slice of the write"));
                return Err(e);
            }
        }
        Ok(slices)
    }

    /// Does nothing: what was written is kept until the end.
    fn release(&self, _slices: &[SlicePtr]) {}

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), SliceError> {
        self.below.read(reads)
    }

    fn pin(&self) -> Result<Pin, SliceError> {
        self.below.pin()
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder> {
        self.below.holder()
    }

    fn space(&self) -> Result<Space, SliceError> {
        self.below.space()
    }
}

impl<B> std::fmt::Debug for PrivateSlices<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateSlices")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Counting;

    fn slice(offset_bytes: u64, len_bytes: u32) -> SlicePtr {
        SlicePtr { segment: SegmentId::FIRST, offset_bytes, len_bytes }
    }

    #[test]
    fn neighbours_are_one_and_only_what_others_wrote_is_held_slice_by_slice() {
        let (mut held, holder) = (Held::default(), Counting::default());
        held.wrote(slice(100, 10), &holder).unwrap();
        held.wrote(slice(110, 10), &holder).unwrap();
        held.wrote(slice(200, 10), &holder).unwrap();
        assert_eq!(*holder.held.lock(), [slice(100, 10)]);
        held.named(slice(105, 15), &holder).unwrap();
        assert_eq!(holder.held.lock().len(), 1, "it wrote these itself");
        held.named(slice(115, 10), &holder).unwrap();
        held.named(slice(0, 10), &holder).unwrap();
        assert_eq!(holder.held.lock().len(), 3);
        assert_eq!(held.end(&holder), [slice(100, 20), slice(200, 10)]);
        assert!(holder.held.lock().is_empty());
    }

    #[test]
    fn what_was_kept_is_returned_once_at_the_end() {
        let below = Arc::new(Counting::default());
        let private = Arc::new(PrivateSlices::new(below.clone()));
        let written = private.write(Stream::Large, b"bytes", Admit::User).unwrap();
        private.keep(slice(1 << 20, 7)).unwrap();
        private.release(&written);
        assert_eq!((below.held.lock().len(), below.released.lock().len()), (2, 0));
        private.seal();
        assert_eq!(private.write(Stream::Large, b"more", Admit::User), Err(ended()));
        private.keep(slice(2 << 20, 7)).unwrap();
        private.end();
        private.end();
        assert!(below.held.lock().is_empty());
        assert_eq!(*below.released.lock(), written.to_vec());
        assert_eq!(private.keep(slice(1 << 20, 7)), Err(ended()));
    }

    #[test]
    fn a_hold_that_is_refused_leaves_nothing_behind() {
        let below = Arc::new(Counting::default());
        let private = PrivateSlices::new(below.clone());
        below.refuses_holds.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(private.write(Stream::Large, b"bytes", Admit::User).is_err());
        assert_eq!(below.released.lock().len(), 1, "the write's reference is returned at once");
        private.end();
        assert_eq!(below.released.lock().len(), 1, "and not again at the end");
    }
}
