//! A range of bytes as a value.
//!
//! # Terms
//! A *run* is a part of a value with one source: a hole, inline bytes in memory, or a slice with its hold.
//!
//! # Invariants
//! 1. No run is empty, and `len_bytes` is the sum of their lengths (assert in `of`).
//! 2. Every run with a slice has the hold that keeps it: a part or a clone keeps its bytes though the rest of
//!    the value is dropped (`tests::slice_model`).

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Weak};

use warpfire_env::Timestamp;
use warpfire_format::fs as format;
use warpfire_slices::{HoldUse, SliceError, SliceHold, SliceHolder};
use warpfire_units::{SegmentId, SlicePtr};

use crate::data::FilePiece;
use crate::error::FsError;
use crate::limits::FILE_BYTES_MAX;
use crate::op::{Digestible, HeapBytes};

/// Bytes of files, as pointers. A clone is cheap. The value keeps its bytes until its last clone and its last
/// part are dropped, or its lease ends, whatever happens to the files. It names its pool and does not keep it
/// open; after the pool is closed it has no bytes.
#[derive(Clone)]
pub struct YankedSlice {
    pool: Weak<dyn SliceHolder>,
    runs: Arc<[YankedRun]>,
    len_bytes: u64,
}

struct YankedRun {
    len_bytes: u64,
    source: YankedSource,
}

enum YankedSource {
    Hole,
    /// Bytes that were inline in metadata, from this offset on.
    Bytes(Arc<[u8]>, usize),
    Slice(Arc<SliceHold>, SegmentId, u64),
}

impl YankedRun {
    fn part(&self, start: u64, end: u64) -> YankedRun {
        debug_assert!(start < end && end <= self.len_bytes, "a part is within its run and not empty");
        let source = match &self.source {
            YankedSource::Hole => YankedSource::Hole,
            YankedSource::Bytes(bytes, from) => {
                let skip = usize::try_from(start).expect("bytes in memory");
                YankedSource::Bytes(Arc::clone(bytes), from + skip)
            }
            YankedSource::Slice(hold, segment, offset) => {
                YankedSource::Slice(Arc::clone(hold), *segment, offset + start)
            }
        };
        YankedRun { len_bytes: end - start, source }
    }
}

impl YankedSlice {
    /// Takes pieces that follow each other. The caller has had a pin since metadata named them.
    ///
    /// # Errors
    /// As holding slices in the store.
    pub(super) fn take(holder: &Arc<dyn SliceHolder>, pieces: &[FilePiece<'_>]) -> Result<Self, SliceError> {
        let pointers = pieces.iter().filter_map(|piece| match piece.source {
            format::ExtentSource::Slice(segment, offset_bytes) => {
                let len_bytes = u32::try_from(piece.len).expect("an extent is no longer than a region");
                Some(SlicePtr { segment, offset_bytes, len_bytes })
            }
            format::ExtentSource::Hole | format::ExtentSource::Reserved | format::ExtentSource::Bytes(_) => {
                None
            }
        });
        // One hold for all slices: they were taken together, and a lease is for the whole value.
        let hold = SliceHold::take(holder, pointers.collect())?;
        let run = |piece: &FilePiece<'_>| {
            let source = match piece.source {
                format::ExtentSource::Hole | format::ExtentSource::Reserved => YankedSource::Hole,
                format::ExtentSource::Bytes(bytes) => YankedSource::Bytes(bytes.into(), 0),
                format::ExtentSource::Slice(segment, offset) => {
                    YankedSource::Slice(Arc::clone(&hold), segment, offset)
                }
            };
            YankedRun { len_bytes: piece.len, source }
        };
        Ok(Self::of(Arc::downgrade(holder), pieces.iter().map(run).collect()))
    }

    fn of(pool: Weak<dyn SliceHolder>, runs: Arc<[YankedRun]>) -> Self {
        debug_assert!(runs.iter().all(|run| run.len_bytes > 0), "no run is empty");
        let len_bytes = runs.iter().map(|run| run.len_bytes).sum();
        debug_assert!(len_bytes <= FILE_BYTES_MAX, "a value fits in a file");
        YankedSlice { pool, runs, len_bytes }
    }

    /// The same bytes with a hold of their own: a lease on one value is none on the other. The bytes of
    /// this value are still kept: it is in use, or new and without a lease.
    ///
    /// # Errors
    /// As holding slices in the store.
    pub(super) fn with_own_hold(&self, holder: &Arc<dyn SliceHolder>) -> Result<Self, SliceError> {
        let pointers = self.runs.iter().filter_map(|run| match run.source {
            YankedSource::Slice(_, segment, offset_bytes) => {
                let len_bytes = u32::try_from(run.len_bytes).expect("a run of a value is below 4 GiB");
                Some(SlicePtr { segment, offset_bytes, len_bytes })
            }
            YankedSource::Hole | YankedSource::Bytes(..) => None,
        });
        let hold = SliceHold::take(holder, pointers.collect())?;
        let run = |run: &YankedRun| match run.source {
            YankedSource::Slice(_, segment, offset) => YankedRun {
                len_bytes: run.len_bytes,
                source: YankedSource::Slice(Arc::clone(&hold), segment, offset),
            },
            YankedSource::Hole | YankedSource::Bytes(..) => run.part(0, run.len_bytes),
        };
        let own = Self::of(self.pool.clone(), self.runs.iter().map(run).collect());
        debug_assert_eq!(own.len_bytes, self.len_bytes, "both values are the same bytes");
        Ok(own)
    }

    /// Bytes of files that the value has in memory: those that were inline in metadata.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        let bytes = self.runs.iter().filter(|run| matches!(run.source, YankedSource::Bytes(..)));
        bytes.map(|run| usize::try_from(run.len_bytes).expect("bytes in memory")).sum()
    }

    /// Whether the value was taken from this pool.
    pub(super) fn is_of(&self, holder: &Arc<dyn SliceHolder>) -> bool {
        std::ptr::addr_eq(self.pool.as_ptr(), Arc::as_ptr(holder))
    }

    /// Length in bytes, holes included.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Number of bytes that are not in holes.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let data = self.runs.iter().filter(|run| !matches!(run.source, YankedSource::Hole));
        data.map(|run| run.len_bytes).sum()
    }

    /// Number of runs: slices, inline bytes and holes. Each takes some 50 bytes of memory.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Whether every run is a slice.
    pub(crate) fn is_of_slices(&self) -> bool {
        self.runs.iter().all(|run| matches!(run.source, YankedSource::Slice(..)))
    }

    /// The part in a range of the value, clipped to its length.
    #[must_use]
    pub fn part(&self, range: Range<u64>) -> YankedSlice {
        let mut at = 0;
        let parts = self.runs.iter().filter_map(|run| {
            let start = at;
            at += run.len_bytes;
            let from = range.start.max(start);
            let to = range.end.min(at);
            (from < to).then(|| run.part(from - start, to - start))
        });
        let part = Self::of(self.pool.clone(), parts.collect());
        let clipped_bytes = range.end.min(self.len_bytes).saturating_sub(range.start);
        debug_assert_eq!(part.len_bytes, clipped_bytes, "the part is the range, clipped");
        part
    }

    /// The part before the offset `at` in the value, and the part from there on.
    #[must_use]
    pub fn split_at(&self, at: u64) -> (YankedSlice, YankedSlice) {
        (self.part(0..at), self.part(at..u64::MAX))
    }

    /// Joins values, one after the other; `None` if there are none.
    ///
    /// # Errors
    /// `ForeignSlice` if the values are of several pools; `FileTooLarge` if they have more than 2^63 - 1
    /// bytes together.
    pub fn join(parts: &[YankedSlice]) -> Result<Option<YankedSlice>, FsError> {
        let Some(first) = parts.first() else { return Ok(None) };
        if parts.iter().any(|part| !Weak::ptr_eq(&part.pool, &first.pool)) {
            return Err(FsError::ForeignSlice);
        }
        let sum = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.len_bytes));
        if sum.is_none_or(|sum| sum > FILE_BYTES_MAX) {
            return Err(FsError::FileTooLarge);
        }
        let runs = parts.iter().flat_map(|part| part.runs.iter().map(|run| run.part(0, run.len_bytes)));
        let joined = Self::of(first.pool.clone(), runs.collect());
        debug_assert_eq!(
            joined.len_bytes,
            parts.iter().map(|part| part.len_bytes).sum::<u64>(),
            "the joined value is as long as its parts"
        );
        Ok(Some(joined))
    }

    /// The holds of the runs, in order. A hold that neighbouring runs share is returned once.
    pub(super) fn holds(&self) -> impl Iterator<Item = &Arc<SliceHold>> {
        let mut last: Option<&Arc<SliceHold>> = None;
        self.runs.iter().filter_map(move |run| {
            let YankedSource::Slice(hold, ..) = &run.source else { return None };
            let is_new = last.is_none_or(|last| !Arc::ptr_eq(last, hold));
            last = Some(hold);
            is_new.then_some(hold)
        })
    }

    /// Begins a use of the value: its bytes are kept until the result is dropped, also if its lease expires
    /// before.
    ///
    /// # Errors
    /// `LeaseExpired`.
    pub(crate) fn in_use(&self, now: Timestamp) -> Result<SliceInUse<'_>, FsError> {
        let uses: Option<Vec<HoldUse>> = self.holds().map(|hold| hold.begin_use(now)).collect();
        Ok(SliceInUse { slice: self, _uses: uses.ok_or(FsError::LeaseExpired)? })
    }
}

/// A value whose bytes are kept by a use of its holds.
pub(crate) struct SliceInUse<'a> {
    slice: &'a YankedSlice,
    _uses: Vec<HoldUse>,
}

impl SliceInUse<'_> {
    /// The value's pieces at the offset `at` of a file. The caller has a pin, and has checked that the end is
    /// within the largest file.
    pub(crate) fn pieces(&self, at: u64) -> Vec<FilePiece<'_>> {
        let mut offset = at;
        let pieces = self.slice.runs.iter().map(|run| {
            let source = match &run.source {
                YankedSource::Hole => format::ExtentSource::Hole,
                YankedSource::Bytes(bytes, from) => {
                    let len = usize::try_from(run.len_bytes).expect("bytes in memory");
                    format::ExtentSource::Bytes(
                        bytes.get(*from..from + len).expect("a run is inside its bytes"),
                    )
                }
                YankedSource::Slice(_, segment, offset) => format::ExtentSource::Slice(*segment, *offset),
            };
            let piece = FilePiece { offset, len: run.len_bytes, source };
            offset += run.len_bytes;
            piece
        });
        let pieces: Vec<FilePiece<'_>> = pieces.collect();
        debug_assert_eq!(offset, at + self.slice.len_bytes, "the pieces are the whole value");
        pieces
    }
}

/// The most memory that a value may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct YankLimit {
    /// Runs that are no holes.
    pub runs: usize,
    /// Bytes of records: inline bytes of the file, and pointers.
    pub bytes: usize,
}

impl YankLimit {
    /// No limit beyond that of every value.
    pub(crate) const NONE: YankLimit = YankLimit { runs: usize::MAX, bytes: usize::MAX };
}

impl HeapBytes for YankedSlice {
    /// The runs, and the pointers of the hold, which this value may be the last to have.
    fn heap_bytes(&self) -> usize {
        self.runs.len() * (size_of::<YankedRun>() + size_of::<SlicePtr>())
    }
}

impl Digestible for YankedSlice {
    /// The length alone. The store chooses where bytes are, so pointers do not belong to the answer, and the
    /// replay compares the bytes.
    fn add_to(&self, state: &mut impl Hasher) {
        self.len_bytes.hash(state);
    }
}

impl std::fmt::Debug for YankedSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes in {} runs", self.len_bytes, self.runs.len())
    }
}
