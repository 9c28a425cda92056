//! Slices that a mount keeps for programs between two ioctls.
//!
//! A *run* is a piece of a slice that is contiguous on flash. The memory of a slice is in its runs.
//!
//! # Invariants
//! 1. Only the user that yanked a slice, and root, can get it by its number, until its lease expires or it is
//!    dropped (`get`).
//! 2. A number is used once in a process, so the number of a slice on another mount or in another view is
//!    unknown here.
//! 3. The memory is bounded: [`WHOLE`] in all, about 300 MB (assert in `put`).
//! 4. An ordinary user has at most a share of it ([`SHARE`]), so one user alone cannot take the place of the
//!    others (`tests::a_share_is_a_part_of_the_whole`, and
//!    `two_users::one_user_cannot_take_the_slices_of_others` in `tests/mount`). Root and the user of the
//!    server have no share.
//! 5. The sums are those over all slices (assert in `Sizes::subtract`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use warpfire_fs::{YankLimit, YankedSlice};

use crate::caller::has_no_share;

/// What slices take.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Sizes {
    slices: usize,
    runs: usize,
    /// Bytes of files that slices have in memory.
    bytes: usize,
}

/// The most that all slices take.
const WHOLE: Sizes = Sizes { slices: 1024, runs: 1 << 20, bytes: 128 << 20 };

/// The most that the slices of one user take.
const SHARE: Sizes = Sizes { slices: 256, runs: 1 << 18, bytes: 32 << 20 };

/// The most that one YANK takes: a user's share.
pub(super) const YANK_MAX: YankLimit = YankLimit { runs: SHARE.runs, bytes: SHARE.bytes };

impl Sizes {
    fn of(slice: &YankedSlice) -> Sizes {
        Sizes { slices: 1, runs: slice.runs(), bytes: slice.content_bytes() }
    }

    fn plus(self, other: Sizes) -> Sizes {
        let Sizes { slices, runs, bytes } = other;
        Sizes { slices: self.slices + slices, runs: self.runs + runs, bytes: self.bytes + bytes }
    }

    fn fits(self, limit: Sizes) -> bool {
        self.slices <= limit.slices && self.runs <= limit.runs && self.bytes <= limit.bytes
    }

    fn subtract(&mut self, other: Sizes) {
        assert!(other.fits(*self), "what a slice takes was counted when it was put here");
        self.slices -= other.slices;
        self.runs -= other.runs;
        self.bytes -= other.bytes;
    }
}

/// The last number in use, over all mounts of the process.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The slices of one mount.
#[derive(Default)]
pub(crate) struct SliceShelf(Mutex<ShelfState>);

#[derive(Default)]
struct ShelfState {
    by_number: BTreeMap<u64, ShelvedSlice>,
    whole: Sizes,
    by_user: BTreeMap<u32, Sizes>,
}

struct ShelvedSlice {
    uid: u32,
    slice: YankedSlice,
    expires_at_nanos: u64,
}

impl ShelfState {
    fn remove(&mut self, number: u64) {
        if let Some(shelved) = self.by_number.remove(&number) {
            let sizes = Sizes::of(&shelved.slice);
            self.whole.subtract(sizes);
            let of_user = self.by_user.get_mut(&shelved.uid).expect("a user with a slice is counted");
            of_user.subtract(sizes);
            if *of_user == Sizes::default() {
                self.by_user.remove(&shelved.uid);
            }
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
    /// `EDQUOT` if the user's slices take too much, `EAGAIN` if all slices do.
    pub(crate) fn put(
        &self,
        uid: u32,
        slice: YankedSlice,
        expires_at_nanos: u64,
        now_nanos: u64,
    ) -> Result<u64, Errno> {
        let mut slices = self.0.lock();
        slices.expire(now_nanos);
        let sizes = Sizes::of(&slice);
        let of_user = slices.by_user.get(&uid).copied().unwrap_or_default().plus(sizes);
        let whole = slices.whole.plus(sizes);
        if !has_no_share(uid) && !of_user.fits(SHARE) {
            return Err(Errno::DQUOT);
        }
        if !whole.fits(WHOLE) {
            return Err(Errno::AGAIN);
        }
        slices.whole = whole;
        slices.by_user.insert(uid, of_user);
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let replaced = slices.by_number.insert(number, ShelvedSlice { uid, slice, expires_at_nanos });
        assert!(replaced.is_none(), "a number is used once");
        assert!(slices.whole.fits(WHOLE), "the memory is bounded");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_part_of_the_whole() {
        assert!(SHARE.plus(SHARE).plus(SHARE).fits(WHOLE), "a user leaves room for two others");
        let one = Sizes { slices: 1, runs: 7, bytes: 9 };
        let mut two = one.plus(one);
        two.subtract(one);
        assert_eq!(two, one);
        assert!(!Sizes { bytes: SHARE.bytes + 1, ..one }.fits(SHARE));
        assert!(!Sizes { runs: SHARE.runs + 1, ..one }.fits(SHARE));
    }
}
