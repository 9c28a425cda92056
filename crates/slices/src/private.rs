//! The slices of one transaction, over those of another store.
//!
//! Before the commit, only the transaction itself names the slices that it writes. Others may drop the last
//! name of a slice that it names. So `PrivateSlices` holds both kinds until the transaction ends. If the
//! transaction was committed below, that commit has counted references of its own by then. Cleaning moves
//! held bytes, so an open transaction keeps no segment from being cleaned.
//!
//! # Terms
//! A *written range* is a range of a segment that the transaction has written without a distance in between.
//! A *named slice* is a slice that a change of the transaction names.
//!
//! # Invariants
//! 1. `written` maps the start of each written range to its length. All its bytes are held, and the writer's
//!    reference has ended (`tests::written_neighbours_are_joined_and_only_slices_of_others_are_held_beside`).
//! 2. `named` lists the other holds: one for each named slice outside the written ranges (same test).
//! 3. A sealed transaction writes nothing, an ended one keeps nothing (assert in `end`;
//!    `tests::kept_slices_are_returned_once_at_the_end`).
//!
//! ```text
//!   open ──seal──► sealed ──end──► ended
//!     └─────────────end──────────────┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use warpfire_env::sync::Mutex;
use warpfire_env::{PlantedBug, is_planted};
use warpfire_log::{Admit, Pin, Slices, Space, Stream};
use warpfire_units::{SegmentId, SlicePtr};

use crate::error::SliceError;
use crate::store::{SliceHolder, SliceRead, SliceStore};

/// The slices of one transaction over the store `B`.
pub struct PrivateSlices<B> {
    below: Arc<B>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_sealed: bool,
    is_ended: bool,
    kept: KeptSlices,
}

#[derive(Default)]
struct KeptSlices {
    /// Written ranges: segment and start, length.
    written: BTreeMap<(SegmentId, u64), u32>,
    named: Vec<SlicePtr>,
}

impl KeptSlices {
    /// Keeps a slice that the transaction has just written. The caller still has the writer's reference.
    fn add_written(&mut self, slice: SlicePtr, holder: &dyn SliceHolder) -> Result<(), SliceError> {
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        holder.hold(&[slice])?;
        let mut before = self.written.range_mut((segment, 0)..(segment, offset_bytes));
        if let Some(((_, start), len)) = before.next_back()
            && *start + u64::from(*len) == offset_bytes
            && let Some(both) = len.checked_add(len_bytes)
        {
            *len = both;
            return Ok(());
        }
        let older = self.written.insert((segment, offset_bytes), len_bytes);
        debug_assert!(older.is_none(), "the log hands out each byte of a segment once");
        Ok(())
    }

    /// Keeps a slice that a change names. The caller still keeps its bytes.
    fn add_named(&mut self, slice: SlicePtr, holder: &dyn SliceHolder) -> Result<(), SliceError> {
        if is_planted(PlantedBug::NamedNotHeld) {
            return Ok(());
        }
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        let end = offset_bytes + u64::from(len_bytes);
        // A slice inside a written range is held already.
        let before = self.written.range((segment, 0)..=(segment, offset_bytes)).next_back();
        if before.is_none_or(|((_, start), len)| *start + u64::from(*len) < end) {
            holder.hold(&[slice])?;
            self.named.push(slice);
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.written.is_empty() && self.named.is_empty()
    }

    /// Ends the holds.
    fn end(self, holder: &dyn SliceHolder) {
        holder.release_hold(&self.named);
        for ((segment, offset_bytes), len_bytes) in self.written {
            holder.release_hold(&[SlicePtr { segment, offset_bytes, len_bytes }]);
        }
    }
}

fn ended() -> SliceError {
    SliceError::ReadOnly("the transaction has ended".into())
}

impl<B: SliceStore> PrivateSlices<B> {
    /// A new transaction's slices, over those of `below`.
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
        state.kept.add_named(slice, &*self.below.holder())
    }

    /// How many written ranges and named slices are kept.
    #[must_use]
    pub fn kept_count(&self) -> usize {
        let state = self.state.lock();
        state.kept.written.len() + state.kept.named.len()
    }

    /// Refuses writes from now on. Kept slices stay kept until the end.
    pub fn seal(&self) {
        self.state.lock().is_sealed = true;
    }

    /// Ends the holds. A caller that wants the slices to stay commits their names below first. A second call
    /// does nothing.
    pub fn end(&self) {
        let kept = {
            let mut state = self.state.lock();
            state.is_ended = true;
            std::mem::take(&mut state.kept)
        };
        // Outside the lock: the store below may take long, and writes of other threads must learn of the end.
        kept.end(&*self.below.holder());
        debug_assert!(self.state.lock().kept.is_empty(), "an ended transaction keeps nothing");
    }
}

impl<B: SliceStore> SliceStore for PrivateSlices<B> {
    fn write(&self, stream: Stream, bytes: &[u8], admit: Admit) -> Result<Slices, SliceError> {
        if self.state.lock().is_sealed {
            return Err(ended());
        }
        // Not under the lock: the devices and the work for space may take long.
        let slices = self.below.write(stream, bytes, admit)?;
        let holder = self.below.holder();
        let mut state = self.state.lock();
        for slice in &slices {
            // The transaction may have ended during the write. Then nobody else would release the new slices.
            let kept = if state.is_ended { Err(ended()) } else { state.kept.add_written(*slice, &*holder) };
            if let Err(e) = kept {
                // All slices lose the writer's reference. Those that are held already stay until the end.
                drop(state);
                self.below.release(&slices);
                return Err(e);
            }
        }
        drop(state);
        // The holds keep the bytes from here on.
        self.below.release(&slices);
        Ok(slices)
    }

    /// Does nothing: the transaction keeps its written slices until it ends.
    fn release(&self, _slices: &[SlicePtr]) {}

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), SliceError> {
        self.below.read(reads)
    }

    fn may_share_batch(&self, len_bytes: usize) -> bool {
        self.below.may_share_batch(len_bytes)
    }

    fn pin(&self) -> Result<Pin, SliceError> {
        self.below.pin()
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder> {
        self.below.holder()
    }

    fn held_bytes(&self) -> u64 {
        self.below.held_bytes()
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
    fn written_neighbours_are_joined_and_only_slices_of_others_are_held_beside() {
        let (mut held, holder) = (KeptSlices::default(), Counting::default());
        held.add_written(slice(100, 10), &holder).unwrap();
        held.add_written(slice(110, 10), &holder).unwrap();
        held.add_written(slice(200, 10), &holder).unwrap();
        assert_eq!(held.written.len(), 2, "neighbours are one range");
        held.add_named(slice(105, 15), &holder).unwrap();
        assert_eq!(holder.held.lock().len(), 3, "the transaction wrote these bytes itself");
        held.add_named(slice(115, 10), &holder).unwrap();
        held.add_named(slice(0, 10), &holder).unwrap();
        assert_eq!(holder.held.lock().len(), 5);
        held.end(&holder);
        assert!(holder.held.lock().is_empty());
    }

    #[test]
    fn kept_slices_are_returned_once_at_the_end() {
        let below = Arc::new(Counting::default());
        let private = Arc::new(PrivateSlices::new(below.clone()));
        let written = private.write(Stream::Large, b"bytes", Admit::User).unwrap();
        private.keep(slice(1 << 20, 7)).unwrap();
        private.release(&written);
        assert_eq!((below.held.lock().len(), below.released.lock().len()), (2, 1));
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
        below.refuses_holds.store(true, warpfire_env::sync::atomic::Ordering::Relaxed);
        assert!(private.write(Stream::Large, b"bytes", Admit::User).is_err());
        assert_eq!(below.released.lock().len(), 1, "the reference of the refused write is released at once");
        private.end();
        assert_eq!(below.released.lock().len(), 1, "the end does not release it again");
    }
}
