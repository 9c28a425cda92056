//! Pieces: runs of bytes at their offset in the whole file. And the sources of bytes that are to be written.

use smallvec::SmallVec;
use warpfire_format::fs::{self as format, Extent, ExtentMap, REGION_BYTES};
use warpfire_meta::{Admit, SliceStore, Storage, Stream};
use warpfire_units::SlicePtr;

use crate::error::FsError;
use crate::limits::INLINE_BYTES_MAX;
use crate::op::HeapBytes;

/// A run of bytes of a file, never empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilePiece<'a> {
    /// Offset in the file of the first byte.
    pub(crate) offset: u64,
    /// Length in bytes. Only holes and reserved pieces may be longer than a region.
    pub(crate) len: u64,
    /// Where the bytes are.
    pub(crate) source: format::ExtentSource<'a>,
}

pub(crate) type FilePieces<'a> = SmallVec<[FilePiece<'a>; 2]>;

impl<'a> FilePiece<'a> {
    pub(crate) fn hole(offset: u64, len: u64) -> Self {
        FilePiece { offset, len, source: format::ExtentSource::Hole }
    }

    pub(crate) fn reserved(offset: u64, len: u64) -> Self {
        FilePiece { offset, len, source: format::ExtentSource::Reserved }
    }

    /// An extent of the region with this index, at its offset in the file.
    pub(crate) fn of_extent(index: u64, extent: &Extent<'a>) -> Self {
        debug_assert!(extent.end() <= REGION_BYTES, "an extent is within its region");
        let offset = index * u64::from(REGION_BYTES) + u64::from(extent.offset);
        FilePiece { offset, len: u64::from(extent.len), source: extent.source }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }

    pub(crate) fn is_hole(&self) -> bool {
        self.source == format::ExtentSource::Hole
    }

    pub(crate) fn is_reserved(&self) -> bool {
        self.source == format::ExtentSource::Reserved
    }

    /// Whether the bytes have been written.
    pub(crate) fn is_data(&self) -> bool {
        !self.is_hole() && !self.is_reserved()
    }

    /// The part inside `start..end`, if there is one.
    pub(crate) fn clip(&self, start: u64, end: u64) -> Option<FilePiece<'a>> {
        let from = self.offset.max(start);
        let to = self.end().min(end);
        if from >= to {
            return None;
        }
        let skip = from - self.offset;
        let len = to - from;
        let source = match self.source {
            source @ (format::ExtentSource::Hole | format::ExtentSource::Reserved) => source,
            format::ExtentSource::Slice(segment, offset) => {
                format::ExtentSource::Slice(segment, offset + skip)
            }
            format::ExtentSource::Bytes(bytes) => {
                let range = skip as usize..(skip + len) as usize;
                format::ExtentSource::Bytes(bytes.get(range).expect("a piece is as long as its bytes"))
            }
        };
        Some(FilePiece { offset: from, len, source })
    }
}

/// The pieces of each region, by index and in order. `pieces` are in order. Each region that a piece
/// touches costs an entry, so long holes are clipped before.
pub(crate) fn by_region<'a>(pieces: &[FilePiece<'a>]) -> SmallVec<[(u64, ExtentMap<'a>); 2]> {
    let region = u64::from(REGION_BYTES);
    let mut regions: SmallVec<[(u64, ExtentMap<'a>); 2]> = SmallVec::new();
    for piece in pieces {
        for index in piece.offset / region..piece.end().div_ceil(region) {
            let start = index * region;
            let part = piece.clip(start, start + region).expect("the piece reaches into this region");
            let narrow = |n: u64| u32::try_from(n).expect("offsets in a region fit 32 bits");
            let extent =
                Extent { offset: narrow(part.offset - start), len: narrow(part.len), source: part.source };
            match regions.last_mut() {
                Some((last, map)) if *last == index => map.overlay(extent),
                last => {
                    debug_assert!(last.is_none_or(|(last, _)| *last < index), "pieces are in order");
                    regions.push((index, std::iter::once(extent).collect()));
                }
            }
        }
    }
    regions
}

/// The bytes of a caller's write. Short ones are inline in the commit; longer ones are in the slice store
/// already.
pub(crate) enum WriteSource<'a> {
    Bytes(&'a [u8]),
    Slices(Vec<SlicePtr>),
}

impl<'a> WriteSource<'a> {
    /// Writes long data to the slice store. The caller releases the source after the commit, also if that
    /// fails.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`: nothing stays in the store then.
    pub(crate) fn stage<E: Storage>(
        engine: &E,
        data: &'a [u8],
        admit: Admit,
    ) -> Result<WriteSource<'a>, FsError> {
        let is_short = data.len() <= INLINE_BYTES_MAX;
        if is_short && engine.may_inline(data.len()) {
            return Ok(WriteSource::Bytes(data));
        }
        let stream = if is_short { Stream::Small } else { Stream::Large };
        // In chunks of a region, so that an extent seldom has to be split between two regions.
        let mut slices = Vec::with_capacity(data.len().div_ceil(REGION_BYTES as usize));
        for chunk in data.chunks(REGION_BYTES as usize) {
            match engine.write(stream, chunk, admit) {
                Ok(written) => slices.extend(written),
                Err(e) => {
                    engine.release(&slices);
                    return Err(e.into());
                }
            }
        }
        let source = WriteSource::Slices(slices);
        assert_eq!(source.len(), data.len() as u64, "the slices hold all the data");
        Ok(source)
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            WriteSource::Bytes(bytes) => bytes.len() as u64,
            WriteSource::Slices(slices) => slices.iter().map(|slice| u64::from(slice.len_bytes)).sum(),
        }
    }

    /// Releases the references that staging took.
    pub(crate) fn release<E: SliceStore>(&self, engine: &E) {
        if let WriteSource::Slices(slices) = self {
            engine.release(slices);
        }
    }

    /// The data as pieces of a file, from `offset` on.
    pub(crate) fn pieces(&self, offset: u64) -> FilePieces<'a> {
        match self {
            WriteSource::Bytes([]) => FilePieces::new(),
            WriteSource::Bytes(bytes) => {
                let source = format::ExtentSource::Bytes(bytes);
                FilePieces::from_slice(&[FilePiece { offset, len: bytes.len() as u64, source }])
            }
            WriteSource::Slices(slices) => slices
                .iter()
                .scan(offset, |at, slice| {
                    let piece = FilePiece {
                        offset: *at,
                        len: u64::from(slice.len_bytes),
                        source: format::ExtentSource::Slice(slice.segment, slice.offset_bytes),
                    };
                    *at += piece.len;
                    Some(piece)
                })
                .collect(),
        }
    }
}

/// The journal's form of [`WriteSource`]: a copy of short bytes, or the slices, which the transaction holds.
pub(crate) enum RecordedContent {
    Bytes(Box<[u8]>),
    Slices(Box<[SlicePtr]>),
}

impl RecordedContent {
    pub(crate) fn of(source: &WriteSource<'_>) -> RecordedContent {
        match source {
            WriteSource::Bytes(bytes) => RecordedContent::Bytes((*bytes).into()),
            WriteSource::Slices(slices) => RecordedContent::Slices(slices.as_slice().into()),
        }
    }

    /// The copied bytes; empty if there are slices.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            RecordedContent::Bytes(bytes) => bytes,
            RecordedContent::Slices(_) => &[],
        }
    }

    /// The source, to make the call again.
    pub(crate) fn source(&self) -> WriteSource<'_> {
        match self {
            RecordedContent::Bytes(bytes) => WriteSource::Bytes(bytes),
            RecordedContent::Slices(slices) => WriteSource::Slices(slices.to_vec()),
        }
    }

    /// Bytes of files that this keeps in memory.
    pub(crate) fn content_bytes(&self) -> usize {
        self.bytes().len()
    }
}

impl HeapBytes for RecordedContent {
    fn heap_bytes(&self) -> usize {
        match self {
            RecordedContent::Bytes(_) => 0,
            RecordedContent::Slices(slices) => slices.heap_bytes(),
        }
    }
}
