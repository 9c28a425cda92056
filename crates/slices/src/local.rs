//! Slices in a log on this machine.
//!
//! # Invariants
//! 1. A write is admitted before it reaches the log, and reported after:
//!    `a_write_is_admitted_first_and_reported_after`.
//! 2. Each slice of a write has one reference of the writer's, and `release` returns exactly those bytes; the
//!    log asserts that no more is released than was referenced.

use std::sync::Arc;

use warpfire_log::{Admit, LogStore, Pin, Slices, Space, Stream};
use warpfire_units::SlicePtr;

use crate::ahead::ReadAhead;
use crate::error::SliceError;
use crate::store::{SliceHolder, SliceRead, SliceStore};

/// What a slice store needs from the metadata engine, which makes space, syncs and repairs.
pub trait Upkeep: Send + Sync {
    /// Lets `bytes` more be written, after as much work for space as that takes.
    ///
    /// # Errors
    /// `NoSpace` if there is no room for callers of this kind; `ReadOnly` once the engine has latched.
    fn admit(&self, bytes: u64, who: Admit) -> Result<(), SliceError>;

    /// A write that was admitted is in the log: the next sync has to make it durable.
    fn note_written(&self);

    /// Slices were read: the log may have met damage.
    fn note_read(&self);
}

/// Slices in a log.
pub struct LocalSlices<L> {
    log: Arc<L>,
    ahead: Arc<ReadAhead>,
    upkeep: Arc<dyn Upkeep>,
}

impl<L: LogStore> LocalSlices<L> {
    /// Slices in `log`, whose other readers may share the read-ahead.
    #[must_use]
    pub fn new(log: Arc<L>, ahead: Arc<ReadAhead>, upkeep: Arc<dyn Upkeep>) -> Self {
        LocalSlices { log, ahead, upkeep }
    }
}

impl<L: LogStore> SliceHolder for LocalSlices<L> {
    fn hold(&self, slices: &[SlicePtr]) -> Result<(), SliceError> {
        slices.iter().for_each(|slice| self.log.hold(*slice));
        Ok(())
    }

    fn release_hold(&self, slices: &[SlicePtr]) {
        slices.iter().for_each(|slice| self.log.release_hold(*slice));
    }
}

impl<L: LogStore> SliceStore for LocalSlices<L> {
    fn write(&self, stream: Stream, bytes: &[u8], who: Admit) -> Result<Slices, SliceError> {
        self.upkeep.admit(bytes.len() as u64, who)?;
        let slices = self.log.append(stream, bytes)?;
        debug_assert_eq!(
            slices.iter().map(|slice| slice.len_bytes as usize).sum::<usize>(),
            bytes.len(),
            "the slices of a write hold all of it"
        );
        self.upkeep.note_written();
        Ok(slices)
    }

    fn release(&self, slices: &[SlicePtr]) {
        for slice in slices {
            self.log.release(slice.segment, u64::from(slice.len_bytes));
        }
    }

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), SliceError> {
        let done = match reads {
            [] => Ok(()),
            // Several reads go to the devices together. One alone may be the next of many small ones.
            [(slice, buf)] => self.ahead.read(&*self.log, *slice, buf),
            reads => self.log.read_many(reads),
        };
        self.upkeep.note_read();
        Ok(done?)
    }

    fn pin(&self) -> Result<Pin, SliceError> {
        Ok(self.log.pin())
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder> {
        Arc::clone(self) as Arc<dyn SliceHolder>
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
    use parking_lot::Mutex;
    use warpfire_log::{MemLog, MemLogOptions};

    use super::*;

    /// Notes each call, and refuses writes of more than a number of bytes.
    struct Noting {
        calls: Mutex<Vec<String>>,
        bytes_max: u64,
    }

    impl Upkeep for Noting {
        fn admit(&self, bytes: u64, who: Admit) -> Result<(), SliceError> {
            self.calls.lock().push(format!("admit {bytes} {who:?}"));
            if bytes > self.bytes_max { Err(SliceError::NoSpace) } else { Ok(()) }
        }

        fn note_written(&self) {
            self.calls.lock().push("written".into());
        }

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
        let slices = LocalSlices::new(log.clone(), Arc::new(ReadAhead::new(0)), upkeep.clone());
        (Arc::new(slices), log, upkeep)
    }

    #[test]
    fn a_write_is_admitted_first_and_reported_after() {
        let (store, log, upkeep) = store();
        store.write(Stream::Large, b"bytes", Admit::User).unwrap();
        assert_eq!(*upkeep.calls.lock(), ["admit 5 User", "written"]);
        let refused = store.write(Stream::Large, &vec![1; 200 << 10], Admit::Reserve);
        assert_eq!(refused, Err(SliceError::NoSpace));
        assert_eq!(upkeep.calls.lock().len(), 3, "no report of what was refused");
        assert_eq!(log.counters().appends, 1, "nor did it reach the log");
    }

    #[test]
    fn one_read_and_many_give_the_same_bytes_and_a_bad_pointer_is_damage() {
        let (store, _, upkeep) = store();
        let a = store.write(Stream::Small, b"first", Admit::User).unwrap()[0];
        let b = store.write(Stream::Small, b"second", Admit::User).unwrap()[0];
        let (mut one, mut two, mut alone) = ([0; 5], [0; 6], [0; 6]);
        store.read(&mut [(a, &mut one), (b, &mut two)]).unwrap();
        store.read(&mut [(b, &mut alone)]).unwrap();
        assert_eq!((&one, &two, &alone), (b"first", b"second", b"second"));
        let outside = SlicePtr { offset_bytes: 1 << 30, ..a };
        let answer = store.read(&mut [(outside, &mut one)]);
        assert!(matches!(answer, Err(SliceError::Damaged { code: 264, .. })), "{answer:?}");
        assert_eq!(upkeep.calls.lock().iter().filter(|call| *call == "read").count(), 3);
    }

    #[test]
    fn what_is_held_stays_after_its_writer_released_it_and_goes_when_the_hold_ends() {
        let (store, log, _) = store();
        let slices = store.write(Stream::Large, &[7; 60 << 10], Admit::User).unwrap();
        let holder = store.holder();
        holder.hold(&slices).unwrap();
        store.release(&slices);
        // Another segment begins, so the first is sealed and could be freed.
        store.write(Stream::Large, &[8; 60 << 10], Admit::User).unwrap();
        log.sync().unwrap();
        let mut buf = vec![0; 60 << 10];
        store.read(&mut [(slices[0], &mut buf)]).unwrap();
        assert_eq!(buf, [7; 60 << 10]);
        holder.release_hold(&slices);
        assert_eq!(log.counters().segments_freed, 1);
    }
}
