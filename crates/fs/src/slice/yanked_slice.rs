//! A range of bytes as a value.

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Weak};

use warpfire_env::Timestamp;
use warpfire_format::fs as format;
use warpfire_slices::{SliceError, SliceHold, SliceHolder};
use warpfire_units::{SegmentId, SlicePtr};

use crate::data::FilePiece;
use crate::error::FsError;
use crate::op::{Digestible, HeapBytes};

/// Bytes that were taken from files, as pointers. Cheap to clone; keeps its bytes until the last clone and the last part of it is gone, whatever
/// becomes of the files, or until its lease ends. It knows its pool, and does not keep it open; nothing of it survives closing.
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
    /// What rode in metadata, from this byte on.
    Bytes(Arc<[u8]>, usize),
    Slice(Arc<SliceHold>, SegmentId, u64),
}

impl YankedRun {
    fn part(&self, start: u64, end: u64) -> YankedRun {
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
    /// Takes pieces that lie one after the other. The caller has had a pin since metadata named them.
    pub(super) fn take(holder: &Arc<dyn SliceHolder>, pieces: &[FilePiece<'_>]) -> Result<Self, SliceError> {
        let pointers = pieces.iter().filter_map(|piece| match piece.source {
            format::ExtentSource::Slice(segment, offset_bytes) => {
                let len_bytes = u32::try_from(piece.len).expect("an extent is no longer than a region");
                Some(SlicePtr { segment, offset_bytes, len_bytes })
            }
            format::ExtentSource::Hole | format::ExtentSource::Bytes(_) => None,
        });
        let hold = SliceHold::take(holder, pointers.collect())?;
        let run = |piece: &FilePiece<'_>| {
            let source = match piece.source {
                format::ExtentSource::Hole => YankedSource::Hole,
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
        let len_bytes = runs.iter().map(|run| run.len_bytes).sum();
        YankedSlice { pool, runs, len_bytes }
    }

    /// The same bytes, kept by a hold of its own: a lease on one is none on the other. The caller has had a pin since this was taken.
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
        Ok(Self::of(self.pool.clone(), self.runs.iter().map(run).collect()))
    }

    /// Bytes of files that it has in memory: those that rode in metadata.
    pub(super) fn content_bytes(&self) -> usize {
        let bytes = self.runs.iter().filter(|run| matches!(run.source, YankedSource::Bytes(..)));
        bytes.map(|run| usize::try_from(run.len_bytes).expect("bytes in memory")).sum()
    }

    /// Whether it was taken from there.
    pub(super) fn is_of(&self, holder: &Arc<dyn SliceHolder>) -> bool {
        std::ptr::addr_eq(self.pool.as_ptr(), Arc::as_ptr(holder))
    }

    /// Length in bytes, holes included.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Bytes that are not holes.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let data = self.runs.iter().filter(|run| !matches!(run.source, YankedSource::Hole));
        data.map(|run| run.len_bytes).sum()
    }

    /// Stretches that it is made of: pointers, bytes, holes. Each takes some 50 bytes of memory.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The part of it in a range, cut to its length.
    #[must_use]
    pub fn part(&self, range: Range<u64>) -> YankedSlice {
        let mut at = 0;
        let parts = self.runs.iter().filter_map(|run| {
            let start = at;
            at += run.len_bytes;
            let (from, to) = (range.start.max(start), range.end.min(at));
            (from < to).then(|| run.part(from - start, to - start))
        });
        Self::of(self.pool.clone(), parts.collect())
    }

    /// What lies before a place in it, and what from there on.
    #[must_use]
    pub fn split_at(&self, at: u64) -> (YankedSlice, YankedSlice) {
        (self.part(0..at), self.part(at..u64::MAX))
    }

    /// Values one after the other, as one; `None` for none.
    ///
    /// # Errors
    /// `ForeignSlice` if they are not all of one pool.
    pub fn join(parts: &[YankedSlice]) -> Result<Option<YankedSlice>, FsError> {
        let Some(first) = parts.first() else { return Ok(None) };
        if parts.iter().any(|part| !Weak::ptr_eq(&part.pool, &first.pool)) {
            return Err(FsError::ForeignSlice);
        }
        let runs = parts.iter().flat_map(|part| part.runs.iter().map(|run| run.part(0, run.len_bytes)));
        Ok(Some(Self::of(first.pool.clone(), runs.collect())))
    }

    /// Its holds, one after the other; neighbours that are one are given once.
    pub(super) fn holds(&self) -> impl Iterator<Item = &Arc<SliceHold>> {
        let mut last: Option<&Arc<SliceHold>> = None;
        self.runs.iter().filter_map(move |run| {
            let YankedSource::Slice(hold, ..) = &run.source else { return None };
            let is_new = last.is_none_or(|last| !Arc::ptr_eq(last, hold));
            last = Some(hold);
            is_new.then_some(hold)
        })
    }

    /// Its pieces at a place in a file, for who has a pin. The end is within what a file may have.
    pub(super) fn pieces(&self, at: u64, now: Timestamp) -> Result<Vec<FilePiece<'_>>, FsError> {
        if self.holds().any(|hold| !hold.is_live(now)) {
            return Err(FsError::LeaseExpired);
        }
        let mut offset = at;
        let pieces = self.runs.iter().map(|run| {
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
        Ok(pieces.collect())
    }
}

impl HeapBytes for YankedSlice {
    /// Its runs, and the pointers of the hold that it may be the last to have.
    fn heap_bytes(&self) -> usize {
        self.runs.len() * (size_of::<YankedRun>() + size_of::<SlicePtr>())
    }
}

impl Digestible for YankedSlice {
    /// Where bytes lie is for the store to choose, so two of a length may differ or not: the replay compares them.
    fn add_to(&self, state: &mut impl Hasher) {
        self.len_bytes.hash(state);
    }
}

impl std::fmt::Debug for YankedSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes in {} runs", self.len_bytes, self.runs.len())
    }
}
