//! Slices that a mount keeps for programs between two ioctls.
//!
//! A *run* is a piece of a slice that is contiguous on flash. The memory of a slice is in its runs.
//!
//! # Invariants
//! 1. Only the user that yanked a slice, and root, can get it by its number, until its lease expires or it is
//!    dropped (`get`).
//! 2. A number is used once in a process, so the number of a slice on another mount or in another view is
//!    unknown here.
//! 3. The memory is bounded: [`SLICES_MAX`] slices with [`RUNS_MAX`] runs in all, about 50 MB (assert in
//!    `put`).
//! 4. `runs` is the sum over all slices (assert in `remove`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use warpfire_fs::YankedSlice;

/// Most slices at a time.
const SLICES_MAX: usize = 1024;

/// Most runs of all slices.
const RUNS_MAX: usize = 1 << 20;

/// The last number in use, over all mounts of the process.
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
            let runs = shelved.slice.runs();
            assert!(runs <= self.runs, "the runs of a slice were counted when it was put here");
            self.runs -= runs;
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
    /// Keeps a slice for a user until a time, and returns its number.
    ///
    /// # Errors
    /// `EAGAIN` if too many slices or runs are kept.
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
        let replaced = slices.by_number.insert(number, ShelvedSlice { uid, slice, expires_at_nanos });
        assert!(replaced.is_none(), "a number is used once");
        assert!(slices.by_number.len() <= SLICES_MAX && slices.runs <= RUNS_MAX, "the memory is bounded");
        Ok(number)
    }

    /// A slice that this user yanked; any slice for root.
    ///
    /// # Errors
    /// `ENOENT` if there is none, also if it is another user's: numbers of others cannot be probed.
    pub(crate) fn get(&self, uid: u32, number: u64, now_nanos: u64) -> Result<YankedSlice, Errno> {
        let mut slices = self.0.lock();
        slices.expire(now_nanos);
        let shelved = slices.by_number.get(&number).filter(|shelved| uid == 0 || shelved.uid == uid);
        Ok(shelved.ok_or(Errno::NOENT)?.slice.clone())
    }

    /// Gives slices of a user the deadline of another slice of that user. Numbers without a slice stay so.
    pub(crate) fn share_deadline(&self, uid: u32, of: u64, with: [u64; 2]) {
        let mut slices = self.0.lock();
        let Some(expires_at_nanos) = slices.by_number.get(&of).map(|shelved| shelved.expires_at_nanos) else {
            return;
        };
        for number in with {
            if let Some(shelved) = slices.by_number.get_mut(&number).filter(|s| uid == 0 || s.uid == uid) {
                shelved.expires_at_nanos = expires_at_nanos;
            }
        }
    }

    /// Drops a slice that this user yanked.
    ///
    /// # Errors
    /// As [`SliceShelf::get`].
    pub(crate) fn remove(&self, uid: u32, number: u64, now_nanos: u64) -> Result<(), Errno> {
        self.get(uid, number, now_nanos)?;
        self.0.lock().remove(number);
        Ok(())
    }
}
