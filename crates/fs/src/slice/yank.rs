//! Calls that take slices, read them and limit how long they live.
//!
//! # Invariants
//! 1. A call that uses a value has a pin before it asks whether the value's holds are live, and until its
//!    commit. So a lease that ends in between frees nothing that the commit names (`use_slice`;
//!    `tests::slices`).

use std::cell::OnceCell;
use std::time::Duration;

use warpfire_env::Timestamp;
use warpfire_meta::{SliceRead, Storage};
use warpfire_units::SlicePtr;

use super::compare::pieces_from;
use super::yanked_slice::{YankLimit, YankedSlice};
use crate::data::{FilePiece, check_regular, pieces_of};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::NodeRef;
use crate::op::{HeapBytes, Operation, ReplayScene};

impl<E: Storage> Fs<E> {
    /// Takes a range of a file as a value, as it is now; offset and length are in bytes. A range past the end
    /// of the file is clipped. The caller of this function checks the permission to read.
    ///
    /// # Errors
    /// `IsDirectory`; `Invalid` for a node without content; `FileTooLarge` for more than 2^18 regions.
    pub fn yank(&self, node: &NodeRef, offset: u64, len: u64) -> Result<YankedSlice, FsError> {
        self.yank_within(node, offset, len, YankLimit::NONE)
    }

    /// As `yank`, within a limit of memory. The limit is checked while the pointers are read, so that a value
    /// beyond it takes no more memory than one within it.
    ///
    /// # Errors
    /// As `yank`, and `FileTooLarge` beyond the limit.
    pub fn yank_within(
        &self,
        node: &NodeRef,
        offset: u64,
        len: u64,
        limit: YankLimit,
    ) -> Result<YankedSlice, FsError> {
        let range = RangeToYank { offset, len, limit };
        let recorded = OnceCell::new();
        let run = || {
            let yanked = self.take_range(node, range)?;
            self.renew_atime_if_due(node)?;
            if self.call_gate.is_transaction() {
                // A lease on the caller's value must not end the bytes that a replay compares with.
                _ = recorded.set(yanked.with_own_hold(&self.engine.holder())?);
            }
            Ok(yanked)
        };
        self.call(|| YankRange { node: node.ino(), range, yanked: recorded.get().cloned() }, run)
    }

    /// As `yank`, for a server that keeps a copy of the file elsewhere and compares it later: this counts as
    /// no access, and a transaction does not have it.
    ///
    /// # Errors
    /// As `yank`.
    pub fn keep_content(&self, node: &NodeRef, offset: u64, len: u64) -> Result<YankedSlice, FsError> {
        assert!(!self.call_gate.is_transaction(), "only the base is compared with copies");
        let _guard = self.call_gate.enter();
        self.take_range(node, RangeToYank { offset, len, limit: YankLimit::NONE })
    }

    fn take_range(&self, node: &NodeRef, range: RangeToYank) -> Result<YankedSlice, FsError> {
        let RangeToYank { offset, len, limit } = range;
        check_regular(node)?;
        self.leases.expire(self.lease_time());
        // The pin keeps the bytes from the read of their pointers until the value holds them.
        let _pin = self.engine.pin()?;
        let state = node.state.read();
        let end = offset.saturating_add(len).min(state.attrs.size_bytes);
        let yanked = if offset < end {
            let values = self.values_within(node, &state, offset, end, limit)?;
            YankedSlice::take(&self.engine.holder(), &pieces_of(&values, offset, end, 0)?)?
        } else {
            YankedSlice::take(&self.engine.holder(), &[])?
        };
        debug_assert_eq!(yanked.len_bytes(), end.saturating_sub(offset), "the value is the whole range");
        Ok(yanked)
    }

    /// Fills `buf` with a value's bytes, from the offset `at` in the value on. Returns the number of bytes,
    /// which is less than `buf` has only at the end of the value.
    ///
    /// # Errors
    /// `ForeignSlice`, `LeaseExpired`; `Damaged` if bytes cannot be read.
    pub fn read_yanked_slice(&self, slice: &YankedSlice, at: u64, buf: &mut [u8]) -> Result<usize, FsError> {
        let now = self.use_slice(slice)?;
        let _pin = self.engine.pin()?;
        self.read_pieces(&slice.in_use(now)?.pieces(0), at, buf)
    }

    /// Fills `buf` with the bytes of pieces that follow each other, from the offset `at` on. Returns the
    /// number of bytes. The caller has a pin.
    pub(super) fn read_pieces(
        &self,
        pieces: &[FilePiece<'_>],
        at: u64,
        buf: &mut [u8],
    ) -> Result<usize, FsError> {
        // Holes and inline bytes are copied at once; slices are collected, so that the devices get one batch.
        let end = at.saturating_add(buf.len() as u64);
        let pieces = pieces_from(pieces, at).iter().map_while(|piece| piece.clip(at, end));
        let mut reads: Vec<SliceRead<'_>> = Vec::new();
        let mut rest = buf;
        let mut done = 0;
        for piece in pieces {
            let (place, behind) = rest.split_at_mut(usize::try_from(piece.len).expect("inside the buffer"));
            done += place.len();
            rest = behind;
            match piece.source {
                warpfire_format::fs::ExtentSource::Hole | warpfire_format::fs::ExtentSource::Reserved => {
                    place.fill(0)
                }
                warpfire_format::fs::ExtentSource::Bytes(bytes) => place.copy_from_slice(bytes),
                warpfire_format::fs::ExtentSource::Slice(segment, offset_bytes) => {
                    let len_bytes = u32::try_from(place.len()).expect("a run of a value is below 4 GiB");
                    reads.push((SlicePtr { segment, offset_bytes, len_bytes }, place));
                }
            }
        }
        self.engine.read(&mut reads)?;
        Ok(done)
    }

    /// Limits how long a value, with all its clones and parts, keeps its bytes: for `time` from now, even if
    /// the value lives longer. A later lease replaces an earlier one. A transaction in which the value was
    /// yanked keeps the bytes until the transaction ends. After the deadline the next call on slices, or the
    /// next `sync`, releases the bytes.
    ///
    /// # Errors
    /// `ForeignSlice`; `LeaseExpired` if the value's time is over already.
    pub fn lease(&self, slice: &YankedSlice, time: Duration) -> Result<(), FsError> {
        let now = self.use_slice(slice)?;
        if slice.holds().any(|hold| !hold.is_live(now)) {
            return Err(FsError::LeaseExpired);
        }
        let until = now.saturating_add(time);
        slice.holds().for_each(|hold| self.leases.add(hold, until));
        Ok(())
    }

    /// Checks that a value is of this pool, and expires leases. Returns the time to compare its leases with.
    pub(crate) fn use_slice(&self, slice: &YankedSlice) -> Result<Timestamp, FsError> {
        if !slice.is_of(&self.engine.holder()) {
            return Err(FsError::ForeignSlice);
        }
        let now = self.lease_time();
        self.leases.expire(now);
        Ok(now)
    }

    /// The time that leases are compared with: that of the monotonic clock, so that a step of the wall clock
    /// neither ends a lease nor makes it longer.
    pub(crate) fn lease_time(&self) -> Timestamp {
        let since_start = Duration::from_nanos(self.clock.monotonic_nanos());
        Timestamp::default().saturating_add(since_start)
    }
}

/// A range to yank, and the most memory that its value may take.
#[derive(Clone, Copy)]
struct RangeToYank {
    offset: u64,
    len: u64,
    limit: YankLimit,
}

/// The journal's form of [`Fs::yank_within`].
struct YankRange {
    node: u64,
    range: RangeToYank,
    /// The value that the caller got, with a hold of its own; `None` if the call failed.
    yanked: Option<YankedSlice>,
}

impl<E: Storage> Operation<Fs<E>> for YankRange {
    fn name(&self) -> &'static str {
        "yank"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.yanked.heap_bytes()
    }

    fn content_bytes(&self) -> usize {
        self.yanked.as_ref().map_or(0, YankedSlice::content_bytes)
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let RangeToYank { offset, len, limit } = self.range;
        let now = fs.yank_within(scene.node(self.node)?, offset, len, limit)?;
        // Pointers may differ where cleaning or packing moved the bytes, so the values are compared. Bytes
        // that cannot be read are not known to be the same.
        let is_same =
            self.yanked.as_ref().is_some_and(|then| fs.have_same_bytes(then, &now).unwrap_or(false));
        if !is_same {
            scene.note_other_bytes();
        }
        Ok(())
    }
}
