//! Identifiers, addresses and units that all crates share.
//!
//! Each identifier has its own type, so that two address spaces cannot be compared or added by accident. Zero
//! is never a valid identifier on flash: a zeroed block decodes to nothing.
//!
//! Sizes and offsets are plain integers. Their names end in the unit (`len_bytes`, `zone_blocks`).

#![forbid(unsafe_code)]

use std::fmt;
use std::num::NonZeroU64;

/// Bytes in a block. The block is the unit of checksums, of device writes and of alignment.
pub const BLOCK_BYTES: usize = 4096;

/// Most columns of one segment, data and parity together. Each column lies on a device of its own.
pub const COLUMNS_MAX: usize = 250;

/// Most parity columns in one segment.
pub const PARITY_MAX: usize = 8;

/// A device's place in the pool's device table. It stays the same while the device belongs to the pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceIndex(pub u16);

/// A zone on one device, counted from the front of the device. Zones 0 and 1 hold the roots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ZoneIndex(pub u32);

/// A segment's number. Numbers count up and are never reused, so a stale block names a segment that no longer
/// exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentId(NonZeroU64);

impl SegmentId {
    /// The first segment of a new pool.
    pub const FIRST: SegmentId = SegmentId(NonZeroU64::MIN);

    /// `None` if `raw` is zero, which is invalid on flash.
    #[must_use]
    pub const fn new(raw: u64) -> Option<Self> {
        match NonZeroU64::new(raw) {
            Some(n) => Some(SegmentId(n)),
            None => None,
        }
    }

    /// The number as it is written to flash.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number after this one.
    ///
    /// # Panics
    /// After 2^64 segments. No pool lives that long.
    #[must_use]
    pub const fn next(self) -> Self {
        SegmentId(self.0.checked_add(1).expect("fewer than 2^64 segments are ever made"))
    }
}

/// The number of a commit: its place in the order of all commits. A reader at `Seq(n)` sees commits up to n.
/// `Seq(0)` is before the first commit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// Later than every commit: a reader at this seq sees the newest version.
    pub const MAX: Seq = Seq(u64::MAX);
}

/// A *slice pointer*: the place and length of immutable bytes in a segment.
///
/// `offset_bytes` counts the segment's payload bytes, without headers and parity; see `docs/FORMAT.md`,
/// "Segment addresses".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlicePtr {
    /// The segment that holds the bytes.
    pub segment: SegmentId,
    /// Offset of the first byte in the segment's payload.
    pub offset_bytes: u64,
    /// Number of bytes; never zero on flash.
    pub len_bytes: u32,
}

impl SlicePtr {
    /// The part of this slice that begins `skip` bytes after its start and is `len` bytes long.
    ///
    /// # Panics
    /// If the part is not inside the slice.
    #[must_use]
    pub fn part(self, skip: u32, len: u32) -> SlicePtr {
        let end = skip.checked_add(len).expect("a part's end fits 32 bits");
        assert!(end <= self.len_bytes, "a part lies inside its slice");
        SlicePtr { segment: self.segment, offset_bytes: self.offset_bytes + u64::from(skip), len_bytes: len }
    }

    /// The last `len` bytes of this slice.
    ///
    /// # Panics
    /// If the slice is shorter.
    #[must_use]
    pub fn end(self, len: u32) -> SlicePtr {
        self.part(self.len_bytes.checked_sub(len).expect("an end is inside its slice"), len)
    }

    /// Whether this slice is the end of `whole`, which is longer.
    #[must_use]
    pub fn is_end_of(self, whole: SlicePtr) -> bool {
        self.len_bytes < whole.len_bytes && whole.end(self.len_bytes) == self
    }

    /// Whether `next` begins where this slice ends, in the same segment.
    #[must_use]
    pub fn is_followed_by(self, next: SlicePtr) -> bool {
        self.segment == next.segment && self.offset_bytes + u64::from(self.len_bytes) == next.offset_bytes
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}", self.0)
    }
}

impl fmt::Display for DeviceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}

impl fmt::Display for SlicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}..{}", self.segment, self.offset_bytes, self.offset_bytes + u64::from(self.len_bytes))
    }
}
