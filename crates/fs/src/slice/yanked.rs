//! A range of bytes as a value.

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Weak};

use warpfire_env::Timestamp;
use warpfire_format::fs as format;
use warpfire_meta::Holder;
use warpfire_units::{SegmentId, SlicePtr};

use super::lease::Hold;
use crate::data::Piece;
use crate::error::FsError;
use crate::op::{Digestible, HeapBytes};

/// Bytes that were taken from files, as pointers. Cheap to clone; keeps its bytes until the last clone and the last part of it is gone, whatever
/// becomes of the files, or until its lease ends. It knows its pool, and does not keep it open; nothing of it survives closing.
#[derive(Clone)]
pub struct Yanked {
    pool: Weak<dyn Holder>,
    runs: Arc<[Run]>,
    len_bytes: u64,
}

struct Run {
    len_bytes: u64,
    source: Source,
}

enum Source {
    Hole,
    /// What rode in metadata, from this byte on.
    Bytes(Arc<[u8]>, usize),
    Slice(Arc<Hold>, SegmentId, u64),
}

impl Run {
    fn part(&self, start: u64, end: u64) -> Run {
        let source = match &self.source {
            Source::Hole => Source::Hole,
            Source::Bytes(bytes, from) => {
                let skip = usize::try_from(start).expect("bytes in memory");
                Source::Bytes(Arc::clone(bytes), from + skip)
            }
            Source::Slice(hold, segment, offset) => Source::Slice(Arc::clone(hold), *segment, offset + start),
        };
        Run { len_bytes: end - start, source }
    }
}

impl Yanked {
    /// Takes pieces that lie one after the other. The caller has had a pin since metadata named them.
    pub(super) fn take(holder: &Arc<dyn Holder>, pieces: &[Piece<'_>]) -> Self {
        let pointers = pieces.iter().filter_map(|piece| match piece.source {
            format::Source::Slice(segment, offset_bytes) => {
                let len_bytes = u32::try_from(piece.len).expect("an extent is no longer than a region");
                Some(SlicePtr { segment, offset_bytes, len_bytes })
            }
            format::Source::Hole | format::Source::Bytes(_) => None,
        });
        let hold = Hold::take(holder, pointers.collect());
        let run = |piece: &Piece<'_>| {
            let source = match piece.source {
                format::Source::Hole => Source::Hole,
                format::Source::Bytes(bytes) => Source::Bytes(bytes.into(), 0),
                format::Source::Slice(segment, offset) => Source::Slice(Arc::clone(&hold), segment, offset),
            };
            Run { len_bytes: piece.len, source }
        };
        Self::of(Arc::downgrade(holder), pieces.iter().map(run).collect())
    }

    fn of(pool: Weak<dyn Holder>, runs: Arc<[Run]>) -> Self {
        let len_bytes = runs.iter().map(|run| run.len_bytes).sum();
        Yanked { pool, runs, len_bytes }
    }

    /// The same bytes, kept by a hold of its own: a lease on one is none on the other. The caller has had a pin since this was taken.
    pub(super) fn kept_apart(&self, holder: &Arc<dyn Holder>) -> Self {
        let pointers = self.runs.iter().filter_map(|run| match run.source {
            Source::Slice(_, segment, offset_bytes) => {
                let len_bytes = u32::try_from(run.len_bytes).expect("a run of a value is below 4 GiB");
                Some(SlicePtr { segment, offset_bytes, len_bytes })
            }
            Source::Hole | Source::Bytes(..) => None,
        });
        let hold = Hold::take(holder, pointers.collect());
        let run = |run: &Run| match run.source {
            Source::Slice(_, segment, offset) => {
                Run { len_bytes: run.len_bytes, source: Source::Slice(Arc::clone(&hold), segment, offset) }
            }
            Source::Hole | Source::Bytes(..) => run.part(0, run.len_bytes),
        };
        Self::of(self.pool.clone(), self.runs.iter().map(run).collect())
    }

    /// Bytes of files that it has in memory: those that rode in metadata.
    pub(super) fn content_bytes(&self) -> usize {
        let bytes = self.runs.iter().filter(|run| matches!(run.source, Source::Bytes(..)));
        bytes.map(|run| usize::try_from(run.len_bytes).expect("bytes in memory")).sum()
    }

    /// Whether it was taken from there.
    pub(super) fn is_of(&self, holder: &Arc<dyn Holder>) -> bool {
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
        let data = self.runs.iter().filter(|run| !matches!(run.source, Source::Hole));
        data.map(|run| run.len_bytes).sum()
    }

    /// Stretches that it is made of: pointers, bytes, holes. Each takes some 50 bytes of memory.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The part of it in a range, cut to its length.
    #[must_use]
    pub fn part(&self, range: Range<u64>) -> Yanked {
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
    pub fn split_at(&self, at: u64) -> (Yanked, Yanked) {
        (self.part(0..at), self.part(at..u64::MAX))
    }

    /// Values one after the other, as one; `None` for none.
    ///
    /// # Errors
    /// `ForeignSlice` if they are not all of one pool.
    pub fn join(parts: &[Yanked]) -> Result<Option<Yanked>, FsError> {
        let Some(first) = parts.first() else { return Ok(None) };
        if parts.iter().any(|part| !Weak::ptr_eq(&part.pool, &first.pool)) {
            return Err(FsError::ForeignSlice);
        }
        let runs = parts.iter().flat_map(|part| part.runs.iter().map(|run| run.part(0, run.len_bytes)));
        Ok(Some(Self::of(first.pool.clone(), runs.collect())))
    }

    /// Its holds, one after the other; neighbours that are one are given once.
    pub(super) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        let mut last: Option<&Arc<Hold>> = None;
        self.runs.iter().filter_map(move |run| {
            let Source::Slice(hold, ..) = &run.source else { return None };
            let is_new = last.is_none_or(|last| !Arc::ptr_eq(last, hold));
            last = Some(hold);
            is_new.then_some(hold)
        })
    }

    /// Its pieces at a place in a file, for who has a pin. The end is within what a file may have.
    pub(super) fn pieces(&self, at: u64, now: Timestamp) -> Result<Vec<Piece<'_>>, FsError> {
        if self.holds().any(|hold| !hold.is_kept(now)) {
            return Err(FsError::LeaseExpired);
        }
        let mut offset = at;
        let pieces = self.runs.iter().map(|run| {
            let source = match &run.source {
                Source::Hole => format::Source::Hole,
                Source::Bytes(bytes, from) => {
                    let len = usize::try_from(run.len_bytes).expect("bytes in memory");
                    format::Source::Bytes(bytes.get(*from..from + len).expect("a run is inside its bytes"))
                }
                Source::Slice(_, segment, offset) => format::Source::Slice(*segment, *offset),
            };
            let piece = Piece { offset, len: run.len_bytes, source };
            offset += run.len_bytes;
            piece
        });
        Ok(pieces.collect())
    }
}

impl HeapBytes for Yanked {
    /// Its runs, and the pointers of the hold that it may be the last to have.
    fn heap_bytes(&self) -> usize {
        self.runs.len() * (size_of::<Run>() + size_of::<SlicePtr>())
    }
}

impl Digestible for Yanked {
    /// Where bytes lie is for the store to choose, so two of a length may differ or not: the replay compares them.
    fn add_to(&self, state: &mut impl Hasher) {
        self.len_bytes.hash(state);
    }
}

impl std::fmt::Debug for Yanked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes in {} runs", self.len_bytes, self.runs.len())
    }
}
