//! Slices in a log on this machine.
//!
//! # Invariants
//! 1. The metadata engine admits a write before the log receives it, and learns of it afterwards
//!    (`tests::a_write_is_admitted_before_it_reaches_the_log`).
//! 2. The slices of a write hold its bytes, no more and no fewer, and none is empty (asserts in `write`).
//! 3. The writer has one reference to each slice of its write. `release` ends references of exactly these
//!    bytes; the log asserts that nobody releases more bytes than are referenced.
//! 4. A read of a slice with held bytes reads them where they are now (`read_resolved`).

use std::sync::Arc;

use warpfire_log::{Admit, LogError, LogStore, Pin, Slices, Space, Stream};
use warpfire_units::SlicePtr;

use crate::error::SliceError;
use crate::held::HeldSlices;
use crate::read_ahead::ReadAhead;
use crate::store::{SliceHolder, SliceRead, SliceStore};

/// The services that a slice store needs from the metadata engine: space, syncs and repair.
pub trait Upkeep: Send + Sync {
    /// Admits a write of `bytes`. If space is short, the engine first works for it on this thread.
    ///
    /// # Errors
    /// `NoSpace` if there is no room for callers of this kind; `ReadOnly` once the engine has latched.
    fn admit(&self, bytes: u64, admit: Admit) -> Result<(), SliceError>;

    /// A caller has written `bytes` of slices: the engine does not take them for bytes that its own work has
    /// failed to free.
    fn note_written(&self, bytes: u64);

    /// A read of slices has ended: the log may have met damage on the way.
    fn note_read(&self);
}

/// The slice store over a log on this machine.
pub struct LocalSlices<L> {
    log: Arc<L>,
    held: Arc<HeldSlices<L>>,
    ahead: Arc<ReadAhead>,
    upkeep: Arc<dyn Upkeep>,
}

impl<L: LogStore> LocalSlices<L> {
    /// A store over `log`. `held` are the holds of the same log, which cleaning moves. Other readers of the
    /// log may share `ahead`.
    #[must_use]
    pub fn new(
        log: Arc<L>,
        held: Arc<HeldSlices<L>>,
        ahead: Arc<ReadAhead>,
        upkeep: Arc<dyn Upkeep>,
    ) -> Self {
        LocalSlices { log, held, ahead, upkeep }
    }

    /// Reads slices where they are now, if one of them has held bytes that have moved. `None`: none has.
    fn read_resolved(&self, reads: &mut [SliceRead<'_>]) -> Option<Result<(), LogError>> {
        let places: Vec<Option<Slices>> = reads.iter().map(|(slice, _)| self.held.resolve(*slice)).collect();
        if places.iter().all(Option::is_none) {
            return None;
        }
        let mut parts: Vec<SliceRead<'_>> = Vec::new();
        for ((slice, buf), places) in reads.iter_mut().zip(places) {
            let mut rest: &mut [u8] = buf;
            for place in places.unwrap_or_else(|| Slices::from_buf([*slice])) {
                let (part, behind) = rest.split_at_mut(place.len_bytes as usize);
                rest = behind;
                parts.push((place, part));
            }
            debug_assert!(rest.is_empty(), "the places are the whole slice");
        }
        Some(self.log.read_many(&mut parts))
    }
}

impl<L: LogStore> SliceStore for LocalSlices<L> {
    fn write(&self, stream: Stream, bytes: &[u8], admit: Admit) -> Result<Slices, SliceError> {
        self.upkeep.admit(bytes.len() as u64, admit)?;
        let slices = self.log.append_split(stream, bytes)?;
        self.upkeep.note_written(bytes.len() as u64);
        debug_assert_eq!(
            slices.iter().map(|slice| slice.len_bytes as usize).sum::<usize>(),
            bytes.len(),
            "the slices of a write hold all of its bytes and no others"
        );
        debug_assert!(slices.iter().all(|slice| slice.len_bytes > 0), "a slice of a write is not empty");
        Ok(slices)
    }

    fn release(&self, slices: &[SlicePtr]) {
        for slice in slices {
            self.log.let_go(slice.segment, u64::from(slice.len_bytes));
        }
    }

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), SliceError> {
        debug_assert!(
            reads.iter().all(|(slice, buf)| slice.len_bytes as usize == buf.len()),
            "a buffer has the length of its slice"
        );
        let moved = if self.held.has_moved() { self.read_resolved(reads) } else { None };
        let done = moved.unwrap_or_else(|| match reads {
            [] => Ok(()),
            // One read alone may be the next of many short ones. Several go to the devices together.
            [(slice, buf)] => self.ahead.read(&*self.log, *slice, buf),
            reads => self.log.read_many(reads),
        });
        // Also after a failure: the damage that failed this read may have spared other slices of the segment.
        self.upkeep.note_read();
        Ok(done?)
    }

    fn read_ahead(&self, (slice, buf): &mut SliceRead<'_>) -> bool {
        // Held bytes that have moved are found by `read`.
        !self.held.has_moved() && self.ahead.read_chunks(&*self.log, *slice, buf)
    }

    fn may_share_batch(&self, len_bytes: usize) -> bool {
        self.log.may_share_batch(len_bytes)
    }

    fn pin(&self) -> Result<Pin, SliceError> {
        Ok(self.log.pin())
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder> {
        Arc::clone(&self.held) as Arc<dyn SliceHolder>
    }

    fn held_bytes(&self) -> u64 {
        self.held.held_bytes()
    }

    fn space(&self) -> Result<Space, SliceError> {
        Ok(self.log.space())
    }
}

impl<L> std::fmt::Debug for LocalSlices<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalSlices")
    }
}

#[cfg(test)]
mod tests {
    use warpfire_env::sync::Mutex;
    use warpfire_log::{MemLog, MemLogOptions};

    use super::*;

    /// Records each call, and refuses writes of more than `bytes_max`.
    struct Noting {
        calls: Mutex<Vec<String>>,
        bytes_max: u64,
    }

    impl Upkeep for Noting {
        fn admit(&self, bytes: u64, admit: Admit) -> Result<(), SliceError> {
            self.calls.lock().push(format!("admit {bytes} {admit:?}"));
            if bytes > self.bytes_max { Err(SliceError::NoSpace) } else { Ok(()) }
        }

        fn note_written(&self, _bytes: u64) {}

        fn note_read(&self) {
            self.calls.lock().push("read".into());
        }
    }

    fn store() -> (Arc<LocalSlices<MemLog>>, Arc<MemLog>, Arc<Noting>) {
        let log = Arc::new(MemLog::with_options(MemLogOptions {
            capacity_bytes: 1 << 20,
            segment_bytes: 64 << 10,
        }));
        let upkeep = Arc::new(Noting { calls: Mutex::default(), bytes_max: 100 << 10 });
        let held = Arc::new(HeldSlices::new(log.clone()));
        let slices = LocalSlices::new(log.clone(), held, Arc::new(ReadAhead::new(0)), upkeep.clone());
        (Arc::new(slices), log, upkeep)
    }

    #[test]
    fn a_write_is_admitted_before_it_reaches_the_log() {
        let (store, log, upkeep) = store();
        store.write(Stream::Large, b"bytes", Admit::User).unwrap();
        assert_eq!(*upkeep.calls.lock(), ["admit 5 User"]);
        let refused = store.write(Stream::Large, &vec![1; 200 << 10], Admit::Reserve);
        assert_eq!(refused, Err(SliceError::NoSpace));
        assert_eq!(upkeep.calls.lock().len(), 2, "a write asks once");
        assert_eq!(log.counters().appends, 1, "a refused write does not reach the log");
    }

    #[test]
    fn one_read_and_several_return_the_same_bytes_and_a_bad_pointer_is_damage() {
        let (store, _, upkeep) = store();
        let a = store.write(Stream::Small, b"first", Admit::User).unwrap()[0];
        let b = store.write(Stream::Small, b"second", Admit::User).unwrap()[0];
        let (mut one, mut two, mut alone) = ([0; 5], [0; 6], [0; 6]);
        store.read(&mut [(a, &mut one), (b, &mut two)]).unwrap();
        store.read(&mut [(b, &mut alone)]).unwrap();
        assert_eq!((&one, &two, &alone), (b"first", b"second", b"second"));
        let outside = SlicePtr { offset_bytes: 1 << 30, ..a };
        let answer = store.read(&mut [(outside, &mut one)]);
        assert!(matches!(answer, Err(SliceError::Damaged { code: 265, .. })), "{answer:?}");
        assert_eq!(upkeep.calls.lock().iter().filter(|call| *call == "read").count(), 3);
    }

    #[test]
    fn held_slices_stay_after_their_writer_released_them_until_the_hold_ends() {
        let (store, log, _) = store();
        let slices = store.write(Stream::Large, &[7; 60 << 10], Admit::User).unwrap();
        let holder = store.holder();
        holder.hold(&slices).unwrap();
        store.release(&slices);
        // The next append seals the first segment, so only the hold keeps that from being freed.
        log.append(Stream::Large, &[8; 60 << 10]).unwrap();
        log.sync().unwrap();
        let mut buf = vec![0; 60 << 10];
        store.read(&mut [(slices[0], &mut buf)]).unwrap();
        assert_eq!(buf, [7; 60 << 10]);
        holder.release_hold(&slices);
        assert_eq!(log.counters().segments_freed, 1);
    }

    #[test]
    fn a_write_fills_the_segment_that_it_begins_in() {
        let (store, log, _) = store();
        let segment_bytes = log.segment_bytes() as usize;
        let first = store.write(Stream::Small, &vec![1; segment_bytes - 5000], Admit::User).unwrap()[0];
        let split = store.write(Stream::Small, &[2; 20_000], Admit::User).unwrap();
        assert!(first.is_followed_by(split[0]));
        assert_eq!(split.iter().map(|slice| slice.len_bytes).collect::<Vec<_>>(), [5000, 15_000]);
        let (mut head, mut tail) = ([0; 5000], [0; 15_000]);
        store.read(&mut [(split[0], &mut head), (split[1], &mut tail)]).unwrap();
        assert!((head, tail) == ([2; 5000], [2; 15_000]));
    }

    #[test]
    fn a_read_finds_held_bytes_that_have_moved_among_others_that_have_not() {
        let (store, log, _) = store();
        let bytes: Vec<u8> = (0..60_000u32).map(|n| (n / 7) as u8).collect();
        let slice = store.write(Stream::Large, &bytes, Admit::User).unwrap()[0];
        let other = log.append(Stream::Large, &[8; 60 << 10]).unwrap()[0];
        store.holder().hold(&[slice.part(10_000, 30_000)]).unwrap();
        store.held.move_out(slice.segment, &mut |s| crate::KnownCopy::NoneOf(s.len_bytes)).unwrap();
        let (mut whole, mut beside, mut alone) = (vec![0; 60_000], [0; 100], [0; 500]);
        store.read(&mut [(slice, &mut whole), (other.part(0, 100), &mut beside)]).unwrap();
        store.read(&mut [(slice.part(39_800, 500), &mut alone)]).unwrap();
        assert!(whole == bytes);
        assert_eq!((&beside, &alone[..]), (&[8; 100], &bytes[39_800..40_300]));
        store.release(&[slice]);
        let mut held = vec![0; 30_000];
        store.read(&mut [(slice.part(10_000, 30_000), &mut held)]).unwrap();
        assert!(held == bytes[10_000..40_000]);
        assert!(log.read(slice, &mut whole).is_err(), "only the place of the held bytes is left");
    }
}
