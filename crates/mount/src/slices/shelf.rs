//! Slices that programs keep at the mount between two ioctls.
//!
//! # Invariants
//! 1. A slice is given to the user who took it, by its number, until its time is over or it is dropped. Numbers are not used twice in a process, so that
//!    one of another mount is none.
//! 2. What all of them take is bounded: [`SLICES_MAX`] of them, of [`RUNS_MAX`] runs together, some 50 MB.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use warpfire_fs::YankedSlice;

/// Slices kept at a time.
const SLICES_MAX: usize = 1024;

/// Runs of all of them.
const RUNS_MAX: usize = 1 << 20;

/// The number that was given last.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The slices of one mount.
#[derive(Default)]
pub(crate) struct SliceShelf(Mutex<ShelfState>);

#[derive(Default)]
struct ShelfState {
    by_number: BTreeMap<u64, ShelvedSlice>,
    runs: usize,
}

struct ShelvedSlice {
    uid: u32,
    slice: YankedSlice,
    expires_at_nanos: u64,
}

impl ShelfState {
    fn remove(&mut self, number: u64) {
        if let Some(shelved) = self.by_number.remove(&number) {
            self.runs -= shelved.slice.runs();
        }
    }

    fn expire(&mut self, now_nanos: u64) {
        let due = self.by_number.iter().filter(|(_, shelved)| shelved.expires_at_nanos <= now_nanos);
        for number in due.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.remove(number);
        }
    }
}

impl SliceShelf {
    /// Keeps a slice for a user until a time. Gives its number.
    pub(crate) fn put(
        &self,
        uid: u32,
        slice: YankedSlice,
        expires_at_nanos: u64,
        now_nanos: u64,
    ) -> Result<u64, Errno> {
        let mut slices = self.0.lock();
        slices.expire(now_nanos);
        let runs = slices.runs + slice.runs();
        if slices.by_number.len() >= SLICES_MAX || runs > RUNS_MAX {
            return Err(Errno::AGAIN);
        }
        slices.runs = runs;
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        slices.by_number.insert(number, ShelvedSlice { uid, slice, expires_at_nanos });
        Ok(number)
    }

    /// A slice of a user's; root has them all.
    pub(crate) fn get(&self, uid: u32, number: u64, now_nanos: u64) -> Result<YankedSlice, Errno> {
        let mut slices = self.0.lock();
        slices.expire(now_nanos);
        let shelved = slices.by_number.get(&number).filter(|shelved| uid == 0 || shelved.uid == uid);
        Ok(shelved.ok_or(Errno::NOENT)?.slice.clone())
    }

    /// Forgets a slice of a user's.
    pub(crate) fn remove(&self, uid: u32, number: u64, now_nanos: u64) -> Result<(), Errno> {
        self.get(uid, number, now_nanos)?;
        self.0.lock().remove(number);
        Ok(())
    }
}
