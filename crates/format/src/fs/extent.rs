//! Extents: where the bytes of a file are. They lie in the inode of a small file or in the regions of a
//! larger one.
//!
//! ```text
//! region value            region operand           extent
//!  0   1  tag, 1           0   1  tag, 2            distance from the previous extent's end (varint)
//!  1   *  extents          1   *  extents           length × 4 + source (varint)
//!                                                   source 1: the bytes themselves
//!                                                          2: segment (varint), offset in it (varint)
//!                                                          3: a hole: nothing follows; in operands only
//!                                                          0: reserved: zeros with room; nothing follows
//! ```
//!
//! Extents are sorted, do not overlap, and fill the value to its end. Bytes that no extent covers are a hole
//! in a value, and unchanged in an operand. Neighbours that could be one extent are one extent, so that a map
//! has one encoding.

use crate::{Corrupt, Reader, varint};
use smallvec::SmallVec;
use warpfire_units::{SegmentId, SlicePtr};

use super::{BAD_EXTENT, BAD_SEGMENT, BAD_TAG, FIELDS, HOLE_IN_VALUE};

/// Bytes of a file that one region covers.
pub const REGION_BYTES: u32 = 1 << 20;

/// Largest size of a file with its extents in its inode, in bytes.
pub const SMALL_FILE_BYTES_MAX: u32 = 64 << 10;

const TAG_VALUE: u8 = 1;
const TAG_OPERAND: u8 = 2;

/// Where the bytes of an extent are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentSource<'a> {
    /// Nowhere: the bytes are zeros.
    Hole,
    /// Nowhere: the bytes are zeros, and room is kept for the first write of them.
    Reserved,
    /// In the value itself.
    Bytes(&'a [u8]),
    /// In a segment, from this payload offset on.
    Slice(SegmentId, u64),
}

/// A run of bytes of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent<'a> {
    /// First byte, counted from the start of the region or small file.
    pub offset: u32,
    /// Number of bytes, never zero.
    pub len: u32,
    /// Where the bytes are.
    pub source: ExtentSource<'a>,
}

impl<'a> Extent<'a> {
    /// An extent of bytes in the value itself.
    #[must_use]
    pub fn bytes(offset: u32, bytes: &'a [u8]) -> Self {
        let len = u32::try_from(bytes.len()).expect("bytes of a region fit 32 bits");
        Extent { offset, len, source: ExtentSource::Bytes(bytes) }
    }

    /// An extent of a slice's bytes.
    #[must_use]
    pub fn slice(offset: u32, slice: SlicePtr) -> Self {
        Extent {
            offset,
            len: slice.len_bytes,
            source: ExtentSource::Slice(slice.segment, slice.offset_bytes),
        }
    }

    /// An extent of zeros for which room is kept.
    #[must_use]
    pub fn reserved(offset: u32, len: u32) -> Self {
        Extent { offset, len, source: ExtentSource::Reserved }
    }

    /// An extent of zeros.
    #[must_use]
    pub fn hole(offset: u32, len: u32) -> Self {
        Extent { offset, len, source: ExtentSource::Hole }
    }

    /// First byte past the extent.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.offset + self.len
    }

    /// The slice that holds the bytes, if one does.
    #[must_use]
    pub fn pointer(&self) -> Option<SlicePtr> {
        match self.source {
            ExtentSource::Slice(segment, offset_bytes) => {
                Some(SlicePtr { segment, offset_bytes, len_bytes: self.len })
            }
            ExtentSource::Hole | ExtentSource::Reserved | ExtentSource::Bytes(_) => None,
        }
    }

    /// The part of the extent inside `start..end`.
    ///
    /// # Panics
    /// If the extent and the range do not overlap.
    #[must_use]
    pub fn clip(&self, start: u32, end: u32) -> Extent<'a> {
        let from = self.offset.max(start);
        let to = self.end().min(end);
        assert!(from < to, "only what overlaps is clipped");
        let skip = from - self.offset;
        let source = match self.source {
            ExtentSource::Hole => ExtentSource::Hole,
            ExtentSource::Reserved => ExtentSource::Reserved,
            ExtentSource::Bytes(b) => ExtentSource::Bytes(
                b.get(skip as usize..(to - self.offset) as usize).expect("bytes are as long as their extent"),
            ),
            ExtentSource::Slice(segment, offset) => ExtentSource::Slice(segment, offset + u64::from(skip)),
        };
        Extent { offset: from, len: to - from, source }
    }

    /// The same bytes at another offset.
    #[must_use]
    pub fn at(&self, offset: u32) -> Extent<'a> {
        Extent { offset, ..*self }
    }

    /// Whether `next` begins where this extent ends and the two could be one extent. Never for extents of
    /// bytes: those join when they are encoded.
    fn continues_into(&self, next: &Extent<'_>) -> bool {
        self.end() == next.offset
            && match (self.source, next.source) {
                (ExtentSource::Hole, ExtentSource::Hole)
                | (ExtentSource::Reserved, ExtentSource::Reserved) => true,
                (ExtentSource::Slice(s, o), ExtentSource::Slice(t, p)) => {
                    s == t && o.checked_add(u64::from(self.len)) == Some(p)
                }
                _ => false,
            }
    }
}

/// Extents of one region or small file.
///
/// Invariants
/// 1. Extents are sorted by offset, do not overlap, and are not empty (assert in `overlay`; test
///    `fold::tests::an_overlay_reads_like_bytes_written_in_order`).
/// 2. Neighbouring slices, holes and reserved extents that could be one extent are one extent (`join`).
///    Neighbouring bytes stay apart in memory, because joining them would copy them; `encode` writes them as
///    one extent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentMap<'a>(SmallVec<[Extent<'a>; 2]>);

impl<'a> ExtentMap<'a> {
    /// A map without extents.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The extents in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Extent<'a>> {
        self.0.iter()
    }

    /// Whether there is no extent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of extents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The slices that the extents name, in order.
    pub fn pointers(&self) -> impl Iterator<Item = SlicePtr> + '_ {
        self.0.iter().filter_map(Extent::pointer)
    }

    /// Number of bytes that have been written: neither holes nor reserved.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let is_data = |e: &&Extent<'_>| !matches!(e.source, ExtentSource::Hole | ExtentSource::Reserved);
        self.0.iter().filter(is_data).map(|e| u64::from(e.len)).sum()
    }

    /// Number of bytes that are reserved.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.0.iter().filter(|e| e.source == ExtentSource::Reserved).map(|e| u64::from(e.len)).sum()
    }

    /// First byte past the last extent of data. Reserved extents may follow.
    #[must_use]
    pub fn data_end(&self) -> u32 {
        self.0.iter().rev().find(|e| e.source != ExtentSource::Reserved).map_or(0, Extent::end)
    }

    /// Adds an extent. It replaces the parts of older extents that it covers.
    ///
    /// # Panics
    /// If the extent is empty.
    pub fn overlay(&mut self, new: Extent<'a>) {
        assert!(new.len > 0, "an extent is not empty");
        // Extents `first..past` overlap the new one. Of the first and the last of them a part may remain.
        let first = match self.0.last() {
            Some(last) if last.end() > new.offset => self.0.partition_point(|e| e.end() <= new.offset),
            _ => self.0.len(),
        };
        let past =
            first + self.0.get(first..).map_or(0, |tail| tail.partition_point(|e| e.offset < new.end()));
        let mut pieces: SmallVec<[Extent<'a>; 3]> = SmallVec::new();
        if let Some(e) = self.0.get(first).filter(|e| e.offset < new.offset) {
            pieces.push(e.clip(e.offset, new.offset));
        }
        pieces.push(new);
        if let Some(e) =
            past.checked_sub(1).and_then(|i| self.0.get(i)).filter(|e| past > first && e.end() > new.end())
        {
            pieces.push(e.clip(new.end(), e.end()));
        }
        // Most writes land past the end or replace exactly one extent.
        if first == self.0.len() {
            self.0.extend(pieces);
        } else {
            let tail: SmallVec<[Extent<'a>; 8]> = self.0.drain(first..).skip(past - first).collect();
            self.0.extend(pieces);
            self.0.extend(tail);
        }
        // At most three pieces went in at `first`; only they and their outer neighbours can be joined.
        let touched = (first + 3).min(self.0.len());
        self.join(first.saturating_sub(1), touched);
    }

    /// Joins neighbours among extents `from..=to`.
    fn join(&mut self, from: usize, to: usize) {
        let mut i = from;
        let mut left = to - from.min(to);
        while left > 0 && i + 1 < self.0.len() {
            left -= 1;
            let (Some(a), Some(b)) = (self.0.get(i).copied(), self.0.get(i + 1).copied()) else { return };
            if a.continues_into(&b) {
                if let Some(a) = self.0.get_mut(i) {
                    a.len += b.len;
                }
                self.0.remove(i + 1);
            } else {
                i += 1;
            }
        }
    }

    /// Removes the holes: a value has no extents for them.
    pub fn drop_holes(&mut self) {
        self.0.retain(|e| e.source != ExtentSource::Hole);
    }

    /// Appends the encoded extents. Neighbouring bytes become one extent.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut at = 0;
        let mut rest = self.0.as_slice();
        while let Some((first, mut tail)) = rest.split_first() {
            varint::put(out, u64::from(first.offset - at));
            let mut end = first.end();
            match first.source {
                ExtentSource::Hole => varint::put(out, u64::from(first.len) << 2 | 3),
                ExtentSource::Reserved => varint::put(out, u64::from(first.len) << 2),
                ExtentSource::Slice(segment, offset) => {
                    varint::put(out, u64::from(first.len) << 2 | 2);
                    varint::put(out, segment.get());
                    varint::put(out, offset);
                }
                ExtentSource::Bytes(bytes) => {
                    // The length of the joined extent stands before its bytes: count first, then copy.
                    let mut run = 0;
                    while let Some(next) = tail
                        .get(run)
                        .filter(|n| n.offset == end && matches!(n.source, ExtentSource::Bytes(_)))
                    {
                        end = next.end();
                        run += 1;
                    }
                    varint::put(out, u64::from(end - first.offset) << 2 | 1);
                    out.extend_from_slice(bytes);
                    let (joined, after) = tail.split_at(run);
                    for e in joined {
                        if let ExtentSource::Bytes(b) = e.source {
                            out.extend_from_slice(b);
                        }
                    }
                    tail = after;
                }
            }
            at = end;
            rest = tail;
        }
    }
}

impl<'a> FromIterator<Extent<'a>> for ExtentMap<'a> {
    fn from_iter<I: IntoIterator<Item = Extent<'a>>>(extents: I) -> Self {
        let mut map = ExtentMap::new();
        for extent in extents {
            map.overlay(extent);
        }
        map
    }
}

/// An iterator over encoded extents. After an error it ends.
#[derive(Clone, Copy, Debug)]
pub struct ExtentReader<'a> {
    rest: &'a [u8],
    at: u32,
    limit: u32,
    holes: bool,
}

impl<'a> ExtentReader<'a> {
    /// A reader of no extents.
    pub const EMPTY: ExtentReader<'static> = ExtentReader { rest: &[], at: 0, limit: 0, holes: false };

    pub(super) fn new(bytes: &'a [u8], limit: u32, holes: bool) -> Self {
        ExtentReader { rest: bytes, at: 0, limit, holes }
    }

    /// The bytes not read yet.
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.rest
    }

    /// Decodes all extents.
    ///
    /// # Errors
    /// The error of the first extent that does not decode.
    pub fn to_map(self) -> Result<ExtentMap<'a>, Corrupt> {
        let mut map = ExtentMap::new();
        for extent in self {
            map.0.push(extent?);
        }
        Ok(map)
    }

    fn read(&mut self) -> Result<Extent<'a>, Corrupt> {
        let mut reader = Reader::new(self.rest, &FIELDS);
        let distance = reader.varint32()?;
        let word = reader.varint()?;
        let len = u32::try_from(word >> 2).map_err(|_| BAD_EXTENT)?;
        let offset = self.at.checked_add(distance).ok_or(BAD_EXTENT)?;
        let end = offset.checked_add(len).ok_or(BAD_EXTENT)?;
        if len == 0 || end > self.limit {
            return Err(BAD_EXTENT);
        }
        // An error below leaves the reader where it is; the iterator ends after it (`next`).
        let source = match word & 3 {
            1 => ExtentSource::Bytes(reader.bytes(len as usize)?),
            2 => {
                let segment = SegmentId::new(reader.varint()?).ok_or(BAD_SEGMENT)?;
                let offset = reader.varint()?;
                offset.checked_add(u64::from(len)).ok_or(BAD_EXTENT)?;
                ExtentSource::Slice(segment, offset)
            }
            3 if self.holes => ExtentSource::Hole,
            3 => return Err(HOLE_IN_VALUE),
            _ => ExtentSource::Reserved,
        };
        self.at = end;
        self.rest = reader.rest();
        Ok(Extent { offset, len, source })
    }
}

impl<'a> Iterator for ExtentReader<'a> {
    type Item = Result<Extent<'a>, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.rest = &[];
        }
        Some(read)
    }
}

/// Appends a region's value or, with `is_operand`, an operand of one.
pub fn encode_region(out: &mut Vec<u8>, extents: &ExtentMap<'_>, is_operand: bool) {
    out.push(if is_operand { TAG_OPERAND } else { TAG_VALUE });
    extents.encode(out);
}

/// A reader of the extents of a region's value or operand.
///
/// # Errors
/// If the tag is wrong.
pub fn region_extents(bytes: &[u8], is_operand: bool) -> Result<ExtentReader<'_>, Corrupt> {
    let mut reader = Reader::new(bytes, &FIELDS);
    let tag = reader.u8()?;
    if tag != if is_operand { TAG_OPERAND } else { TAG_VALUE } {
        return Err(BAD_TAG);
    }
    Ok(ExtentReader::new(reader.take_rest(), REGION_BYTES, is_operand))
}

/// Decodes a region's value or operand.
///
/// # Errors
/// Codes 401 to 412, if the bytes are no region.
pub fn decode_region(bytes: &[u8], is_operand: bool) -> Result<ExtentMap<'_>, Corrupt> {
    region_extents(bytes, is_operand)?.to_map()
}
