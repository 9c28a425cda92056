//! Where in its segment an append may begin.

use warpfire_units::BLOCK_BYTES;

use crate::store::Stream;

/// Appends of this many bytes to the cold stream start on a block; smaller ones are packed.
pub(crate) const COLD_ALIGN_FROM_BYTES: usize = 4 * BLOCK_BYTES;

/// Appends up to this many bytes are never split over two segments.
pub(crate) const UNSPLIT_MAX_BYTES: usize = 64 << 10;

/// All streams, in the order of `slot`.
pub(crate) const STREAMS: [Stream; 4] = [Stream::Small, Stream::Large, Stream::Table, Stream::Cold];

/// A stream's place in an array of all streams.
pub(crate) fn slot(stream: Stream) -> usize {
    match stream {
        Stream::Small => 0,
        Stream::Large => 1,
        Stream::Table => 2,
        Stream::Cold => 3,
    }
}

/// Whether an append of `len_bytes` to `stream` starts on a block.
pub(crate) fn starts_on_block(stream: Stream, len_bytes: usize) -> bool {
    match stream {
        Stream::Small => false,
        Stream::Large | Stream::Table => true,
        Stream::Cold => len_bytes >= COLD_ALIGN_FROM_BYTES,
    }
}

/// Bytes of an append that a segment must have room for: all of one that must not be split, one block of
/// what is left of a longer one.
pub(crate) fn room_wanted_bytes(whole: usize, left: usize) -> usize {
    if whole <= UNSPLIT_MAX_BYTES { left } else { left.min(BLOCK_BYTES) }
}
