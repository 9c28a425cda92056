//! The slices of one transaction, over those of another store.
//!
//! Before the commit, only the transaction itself names the slices that it writes. Others may drop the last
//! name of a slice that it names. So `PrivateSlices` keeps both kinds until the transaction ends. If the
//! transaction was committed below, that commit has counted references of its own by then.
//!
//! # Terms
//! A *written range* is a range of a segment that the transaction has written without a distance in between.
//! A *named slice* is a slice that a change of the transaction names.
//!
//! # Invariants
//! 1. `written` maps the start of each written range to its length. The writer's references to these bytes
//!    end only with the transaction (assert in `add_written`;
//!    `tests::written_neighbours_are_joined_and_only_slices_of_others_are_held`).
//! 2. `held` lists the holds. There is one in each segment that the transaction has written to, because
//!    cleaning cannot move bytes that no metadata names. There is one for each named slice outside the
//!    written ranges (same test).
//! 3. A sealed transaction writes nothing, an ended one keeps nothing (assert in `end`;
//!    `tests::kept_slices_are_returned_once_at_the_end`).
//!
//! ```text
//!   open ──seal──► sealed ──end──► ended
//!     └─────────────end──────────────┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
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
    held: Vec<SlicePtr>,
}

impl KeptSlices {
    /// Keeps a slice that the transaction has just written.
    fn add_written(&mut self, slice: SlicePtr, holder: &dyn SliceHolder) -> Result<(), SliceError> {
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        let mut before = self.written.range_mut((segment, 0)..(segment, offset_bytes));
        match before.next_back() {
            // The first written range of the segment is the one that holds it. A later slice of the segment
            // is never in front of it, except when two threads write at once; then both are held.
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
        debug_assert!(older.is_none(), "the log hands out each byte of a segment once");
        debug_assert!(
            self.held.iter().any(|held| held.segment == segment),
            "a segment with written ranges is held"
        );
        Ok(())
    }

    /// Keeps a slice that a change names. The caller still keeps its bytes.
    fn add_named(&mut self, slice: SlicePtr, holder: &dyn SliceHolder) -> Result<(), SliceError> {
        if is_planted(PlantedBug::NamedNotHeld) {
            return Ok(());
        }
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        let end = offset_bytes + u64::from(len_bytes);
        // A slice inside a written range needs no hold: the writer's reference keeps its bytes, and the hold
        // on the segment keeps them in place.
        let before = self.written.range((segment, 0)..=(segment, offset_bytes)).next_back();
        if before.is_none_or(|((_, start), len)| *start + u64::from(*len) < end) {
            holder.hold(&[slice])?;
            self.held.push(slice);
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.written.is_empty() && self.held.is_empty()
    }

    /// Ends the holds. Returns the written ranges; the caller releases their references.
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

    /// Refuses writes from now on. Kept slices stay kept until the end.
    pub fn seal(&self) {
        self.state.lock().is_sealed = true;
    }

    /// Ends the holds and releases the references of everything written. A caller that wants the slices to
    /// stay commits their names below first. A second call does nothing.
    pub fn end(&self) {
        let kept = {
            let mut state = self.state.lock();
            state.is_ended = true;
            std::mem::take(&mut state.kept)
        };
        // Outside the lock: the store below may take long, and writes of other threads must learn of the end.
        self.below.release(&kept.end(&*self.below.holder()));
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
        for (number, slice) in slices.iter().enumerate() {
            // The transaction may have ended during the write. Then nobody else would release the new slices.
            let kept = if state.is_ended { Err(ended()) } else { state.kept.add_written(*slice, &*holder) };
            if let Err(e) = kept {
                // The slices before `number` are in `written`, so `end` releases them.
                self.below.release(slices.get(number..).expect("a slice of the write"));
                return Err(e);
            }
        }
        Ok(slices)
    }

    /// Does nothing: the transaction keeps its written slices until it ends.
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
    fn written_neighbours_are_joined_and_only_slices_of_others_are_held() {
        let (mut held, holder) = (KeptSlices::default(), Counting::default());
        held.add_written(slice(100, 10), &holder).unwrap();
        held.add_written(slice(110, 10), &holder).unwrap();
        held.add_written(slice(200, 10), &holder).unwrap();
        assert_eq!(*holder.held.lock(), [slice(100, 10)]);
        held.add_named(slice(105, 15), &holder).unwrap();
        assert_eq!(holder.held.lock().len(), 1, "the transaction wrote these bytes itself");
        held.add_named(slice(115, 10), &holder).unwrap();
        held.add_named(slice(0, 10), &holder).unwrap();
        assert_eq!(holder.held.lock().len(), 3);
        assert_eq!(held.end(&holder), [slice(100, 20), slice(200, 10)]);
        assert!(holder.held.lock().is_empty());
    }

    #[test]
    fn kept_slices_are_returned_once_at_the_end() {
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
        assert_eq!(below.released.lock().len(), 1, "the reference of the refused write is released at once");
        private.end();
        assert_eq!(below.released.lock().len(), 1, "the end does not release it again");
    }
}
