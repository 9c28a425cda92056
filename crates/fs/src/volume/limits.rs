//! Limits of volumes, in bytes of files and in inodes.
//!
//! # Terms
//! The *use* of a volume is what its sums in the store say: inodes and bytes of files. A commit that adds
//! to the use of a limited volume *claims* what it adds first. A claim is *settled* when its commit has
//! succeeded or failed.
//!
//! ```text
//!             claim                  commit succeeds
//!   (nothing) ─────► claimed ───────────────────────► in the use
//!       ▲               │ commit fails
//!       └───────────────┘
//! ```
//!
//! # Invariants
//! 1. Use and claims together are never above a limit, unless the use was above it when it was set. So no
//!    number of threads adds one byte too much.
//! 2. A call is refused only if the use alone leaves no room for it: while claims of others could still fail,
//!    it waits for them. Whoever has a claim waits for the engine only, which takes no lock of this room but
//!    leaf locks, so it does not wait for the caller.
//! 3. The use here equals the sums in the store, except for commits in progress: it is read from the store
//!    while no call runs, and every later commit adds the same to both. The store has a commit with its sums
//!    or without both, so both are exact after a crash.
//! 4. What adds nothing is never refused.

use std::collections::BTreeMap;

use warpfire_env::sync::{Condvar, Mutex};
use warpfire_format::fs::{VolumeId, VolumeLimits};
use warpfire_meta::SUMS;

use crate::deferred::{BYTES, INODES};
use crate::error::FsError;

/// Inodes and bytes of files: those that a volume has, or a change of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct VolumeUse {
    pub(crate) files: i64,
    pub(crate) bytes: i64,
}

impl VolumeUse {
    pub(crate) fn of(sums: &[i64; SUMS]) -> VolumeUse {
        VolumeUse { files: sums[INODES], bytes: sums[BYTES] }
    }

    fn plus(self, other: VolumeUse) -> VolumeUse {
        VolumeUse {
            files: self.files.saturating_add(other.files),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn minus(self, other: VolumeUse) -> VolumeUse {
        self.plus(VolumeUse { files: other.files.saturating_neg(), bytes: other.bytes.saturating_neg() })
    }

    /// The part that needs room.
    fn added(self) -> VolumeUse {
        VolumeUse { files: self.files.max(0), bytes: self.bytes.max(0) }
    }
}

/// The limit that a change would exceed, if the volume has `used` before it.
fn exceeded(limits: &VolumeLimits, used: VolumeUse, added: VolumeUse) -> Option<FsError> {
    let exceeds = |limit: Option<u64>, used: i64, added: i64| {
        added > 0 && limit.is_some_and(|limit| used.saturating_add(added).max(0).cast_unsigned() > limit)
    };
    if exceeds(limits.bytes, used.bytes, added.bytes) {
        Some(FsError::VolumeFull("bytes"))
    } else if exceeds(limits.files, used.files, added.files) {
        Some(FsError::VolumeFull("files"))
    } else {
        None
    }
}

#[derive(Debug)]
struct LimitedVolume {
    limits: VolumeLimits,
    used: VolumeUse,
    claimed: VolumeUse,
}

/// The volumes that have a limit.
#[derive(Debug, Default)]
pub(crate) struct LimitedVolumes {
    volumes: Mutex<BTreeMap<VolumeId, LimitedVolume>>,
    /// A claim was settled.
    settled: Condvar,
}

/// What a commit may add to a volume, until it is dropped or kept.
#[must_use]
pub(crate) struct Claim<'a> {
    limited: &'a LimitedVolumes,
    volume: VolumeId,
    change: VolumeUse,
}

impl LimitedVolumes {
    /// Sets the limits of a volume with this use. The caller is alone in the base, or has not opened it yet.
    pub(crate) fn set(&self, volume: VolumeId, limits: VolumeLimits, used: VolumeUse) {
        let mut volumes = self.volumes.lock();
        let before = if limits.is_some() {
            volumes.insert(volume, LimitedVolume { limits, used, claimed: VolumeUse::default() })
        } else {
            volumes.remove(&volume)
        };
        assert!(
            before.is_none_or(|before| before.claimed == VolumeUse::default()),
            "limits change while no commit is in progress"
        );
    }

    /// The limits of a volume, and its use if it has one.
    pub(crate) fn get(&self, volume: VolumeId) -> Option<(VolumeLimits, VolumeUse)> {
        self.volumes.lock().get(&volume).map(|limited| (limited.limits, limited.used))
    }

    /// Claims what a commit adds to a volume; `None` for a volume without limits.
    ///
    /// # Errors
    /// `VolumeFull`.
    pub(crate) fn claim(&self, volume: VolumeId, change: VolumeUse) -> Result<Option<Claim<'_>>, FsError> {
        let added = change.added();
        let mut volumes = self.volumes.lock();
        loop {
            let Some(limited) = volumes.get_mut(&volume) else { return Ok(None) };
            if let Some(full) = exceeded(&limited.limits, limited.used, added) {
                return Err(full);
            }
            if exceeded(&limited.limits, limited.used.plus(limited.claimed), added).is_none() {
                limited.claimed = limited.claimed.plus(added);
                return Ok(Some(Claim { limited: self, volume, change }));
            }
            self.settled.wait(&mut volumes);
        }
    }

    fn settle(&self, volume: VolumeId, change: VolumeUse, is_committed: bool) {
        let mut volumes = self.volumes.lock();
        let limited = volumes.get_mut(&volume).expect("a volume with a claim keeps its limits");
        limited.claimed = limited.claimed.minus(change.added());
        if is_committed {
            limited.used = limited.used.plus(change);
        }
        drop(volumes);
        self.settled.notify_all();
    }
}

impl Claim<'_> {
    /// The commit has succeeded.
    pub(crate) fn keep(self) {
        self.limited.settle(self.volume, self.change, true);
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.limited.settle(self.volume, self.change, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(2);

    fn bytes(bytes: i64) -> VolumeUse {
        VolumeUse { files: 0, bytes }
    }

    fn limited(limit: u64, used: i64) -> LimitedVolumes {
        let volumes = LimitedVolumes::default();
        volumes.set(VOLUME, VolumeLimits { bytes: Some(limit), files: None }, bytes(used));
        volumes
    }

    #[test]
    fn a_limit_below_the_use_refuses_what_adds_and_nothing_else() {
        let volumes = limited(10, 20);
        assert!(volumes.claim(VOLUME, bytes(1)).is_err());
        volumes.claim(VOLUME, bytes(0)).unwrap().unwrap().keep();
        volumes.claim(VOLUME, bytes(-15)).unwrap().unwrap().keep();
        volumes.claim(VOLUME, bytes(5)).unwrap().unwrap().keep();
        assert!(volumes.claim(VOLUME, bytes(1)).is_err());
        assert!(volumes.claim(VolumeId(3), bytes(1)).unwrap().is_none());
    }

    #[test]
    fn a_call_that_would_fit_if_another_fails_waits_for_it() {
        let volumes = limited(10, 4);
        let first = volumes.claim(VOLUME, bytes(6)).unwrap().unwrap();
        warpfire_env::sync::thread::scope(|scope| {
            let second = scope.spawn(|| volumes.claim(VOLUME, bytes(6)).unwrap().map(Claim::keep));
            // The commit of the first one fails.
            drop(first);
            assert!(second.join().unwrap().is_some(), "the second one fits");
        });
        assert_eq!(volumes.get(VOLUME).unwrap().1, bytes(10));
        assert!(volumes.claim(VOLUME, bytes(1)).is_err());
    }
}
