//! The bytes of the ioctls that rearrange files.
//!
//! The caller makes them on an open file. Each passes one block, which the answer overwrites. Integers are in
//! the byte order of the machine. `include/warpfire.h` has the same in C.
//!
//! ```text
//! offset  bytes  field    in                                           out
//!      0      4  version  1                                            1
//!      4      4  flags    PASTE: 1 at the end of the file, else 0      0
//!      8      8  offset   in the file; JOIN, DROP: 0                   PASTE: the offset it was written at
//!     16      8  length   in bytes, 2^64 - 1 for all                   bytes of the slice or the range
//!     24      8  slice    number; YANK, REMOVE: 0; INSERT: 0 is zeros  YANK, JOIN: number of the new one
//!     32      8  other    JOIN: number of the second slice, else 0     0
//!     40      8  from     PASTE, INSERT: first byte in the slice       0
//!     48      4  seconds  YANK, JOIN: lease, 0 for 60                  0
//!     52      4  zero     0                                            0
//!
//! ioctl    number                effect
//! YANK     _IOWR('W', 0x50, 56)  takes a range of the file as a slice, clipped to the end of the file
//! PASTE    _IOWR('W', 0x51, 56)  writes a part of a slice at the offset, or at the end
//! INSERT   _IOWR('W', 0x52, 56)  inserts a part of a slice, or zeros, at the offset; the bytes there move up
//! REMOVE   _IOWR('W', 0x53, 56)  removes a range of the file; the bytes after it move down
//! REPLACE  _IOWR('W', 0x54, 56)  replaces the content of the file by a slice
//! JOIN     _IOWR('W', 0x55, 56)  makes one slice of two
//! DROP     _IOWR('W', 0x56, 56)  ends the lease of a slice
//! ```
//!
//! Each call is one commit and moves no data. Errors:
//! - `EINVAL`: another version, a field that has to be 0, a lease above a day, no regular file, INSERT past
//!   the end;
//! - `EACCES`: the caller may not read (YANK) or write (PASTE, INSERT, REMOVE, REPLACE) the file;
//! - `EROFS`: the mount is read-only;
//! - `ENOENT`: this user has no such slice on this mount;
//! - `EAGAIN`: too many slices are kept, or too many requests wait;
//! - `EDQUOT`: too many slices of this user are kept;
//! - otherwise as write(2).

use warpfire_fs::Position;

/// Version of this block.
const VERSION: u32 = 1;

/// Length of a block, in bytes.
const BLOCK_BYTES: usize = 56;

/// The argument of a slice ioctl.
pub(crate) type SliceBlock = [u8; BLOCK_BYTES];

/// Flag of PASTE: at the end of the file.
const AT_END: u32 = 1;

/// Lease of a slice if the request has 0.
const SECONDS_DEFAULT: u32 = 60;
/// Longest lease.
const SECONDS_MAX: u32 = 24 * 60 * 60;

/// The number of the ioctl with this function: `_IOWR('W', function, BLOCK_BYTES)`.
const fn number(function: u32) -> u32 {
    const READ_WRITE: u32 = 3 << 30;
    READ_WRITE | (BLOCK_BYTES as u32) << 16 | (b'W' as u32) << 8 | function
}

pub(super) const YANK: u32 = number(0x50);
pub(super) const PASTE: u32 = number(0x51);
pub(super) const INSERT: u32 = number(0x52);
pub(super) const REMOVE: u32 = number(0x53);
pub(super) const REPLACE: u32 = number(0x54);
pub(super) const JOIN: u32 = number(0x55);
pub(super) const DROP: u32 = number(0x56);

/// A part of a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlicePart {
    pub(crate) slice: u64,
    pub(crate) from: u64,
    pub(crate) len: u64,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SliceRequest {
    Yank { offset: u64, len: u64, seconds: u32 },
    Paste { part: SlicePart, position: Position },
    Insert { part: SlicePart, offset: u64 },
    InsertZeros { len: u64, offset: u64 },
    Remove { offset: u64, len: u64 },
    Replace { slice: u64 },
    Join { slice: u64, other: u64, seconds: u32 },
    Drop { slice: u64 },
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SliceReply {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) slice: u64,
}

/// A block's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct SliceBlockFields {
    flags: u32,
    offset: u64,
    len: u64,
    slice: u64,
    other: u64,
    from: u64,
    seconds: u32,
}

impl SliceBlockFields {
    fn decode(given: &[u8]) -> Option<SliceBlockFields> {
        let (version, rest) = given.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (slice, rest) = rest.split_first_chunk()?;
        let (other, rest) = rest.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (seconds, rest) = rest.split_first_chunk()?;
        if u32::from_ne_bytes(*version) != VERSION || rest != [0; 4] {
            return None;
        }
        Some(SliceBlockFields {
            flags: u32::from_ne_bytes(*flags),
            offset: u64::from_ne_bytes(*offset),
            len: u64::from_ne_bytes(*len),
            slice: u64::from_ne_bytes(*slice),
            other: u64::from_ne_bytes(*other),
            from: u64::from_ne_bytes(*from),
            seconds: u32::from_ne_bytes(*seconds),
        })
    }

    fn encode(&self) -> SliceBlock {
        let mut block = [0; BLOCK_BYTES];
        block[..4].copy_from_slice(&VERSION.to_ne_bytes());
        block[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        let words = [self.offset, self.len, self.slice, self.other, self.from];
        for (place, word) in block[8..48].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        block[48..52].copy_from_slice(&self.seconds.to_ne_bytes());
        block
    }
}

impl SliceRequest {
    /// Whether the number is that of a slice ioctl.
    pub(crate) fn is_known(command: u32) -> bool {
        [YANK, PASTE, INSERT, REMOVE, REPLACE, JOIN, DROP].contains(&command)
    }

    /// Decodes a request; `None` if it is malformed.
    pub(crate) fn decode(command: u32, given: &[u8]) -> Option<SliceRequest> {
        let fields = SliceBlockFields::decode(given)?;
        let SliceBlockFields { flags, offset, len, slice, other, from, .. } = fields;
        let seconds = if fields.seconds == 0 { SECONDS_DEFAULT } else { fields.seconds };
        let part = SlicePart { slice, from, len };
        // `rest` is the block without the fields that the request uses. All of it must be zero, so that these
        // fields can get a meaning later.
        let (request, rest) = match command {
            YANK => (
                SliceRequest::Yank { offset, len, seconds },
                SliceBlockFields { offset: 0, len: 0, seconds: 0, ..fields },
            ),
            PASTE => {
                let position = if flags == AT_END { Position::End } else { Position::At(offset) };
                let rest = SliceBlockFields { flags: flags & !AT_END, len: 0, slice: 0, from: 0, ..fields };
                let offset = if flags == AT_END { offset } else { 0 };
                (SliceRequest::Paste { part, position }, SliceBlockFields { offset, ..rest })
            }
            INSERT if slice == 0 => {
                (SliceRequest::InsertZeros { len, offset }, SliceBlockFields { offset: 0, len: 0, ..fields })
            }
            INSERT => (
                SliceRequest::Insert { part, offset },
                SliceBlockFields { offset: 0, len: 0, slice: 0, from: 0, ..fields },
            ),
            REMOVE => {
                (SliceRequest::Remove { offset, len }, SliceBlockFields { offset: 0, len: 0, ..fields })
            }
            REPLACE => (SliceRequest::Replace { slice }, SliceBlockFields { slice: 0, ..fields }),
            JOIN => (
                SliceRequest::Join { slice, other, seconds },
                SliceBlockFields { slice: 0, other: 0, seconds: 0, ..fields },
            ),
            DROP => (SliceRequest::Drop { slice }, SliceBlockFields { slice: 0, ..fields }),
            _ => return None,
        };
        (rest == SliceBlockFields::default() && seconds <= SECONDS_MAX).then_some(request)
    }
}

impl SliceRequest {
    /// The ioctl's number and block.
    pub(crate) fn encode(self) -> (u32, SliceBlock) {
        let fields = SliceBlockFields::default();
        let with = |part: SlicePart| SliceBlockFields {
            slice: part.slice,
            from: part.from,
            len: part.len,
            ..fields
        };
        let (command, fields) = match self {
            SliceRequest::Yank { offset, len, seconds } => {
                (YANK, SliceBlockFields { offset, len, seconds, ..fields })
            }
            SliceRequest::Paste { part, position: Position::At(offset) } => {
                (PASTE, SliceBlockFields { offset, ..with(part) })
            }
            SliceRequest::Paste { part, position: Position::End } => {
                (PASTE, SliceBlockFields { flags: AT_END, ..with(part) })
            }
            SliceRequest::Insert { part, offset } => (INSERT, SliceBlockFields { offset, ..with(part) }),
            SliceRequest::InsertZeros { len, offset } => (INSERT, SliceBlockFields { offset, len, ..fields }),
            SliceRequest::Remove { offset, len } => (REMOVE, SliceBlockFields { offset, len, ..fields }),
            SliceRequest::Replace { slice } => (REPLACE, SliceBlockFields { slice, ..fields }),
            SliceRequest::Join { slice, other, seconds } => {
                (JOIN, SliceBlockFields { slice, other, seconds, ..fields })
            }
            SliceRequest::Drop { slice } => (DROP, SliceBlockFields { slice, ..fields }),
        };
        (command, fields.encode())
    }
}

impl SliceReply {
    /// Decodes an answer; `None` if it is malformed.
    pub(crate) fn decode(block: &SliceBlock) -> Option<SliceReply> {
        let SliceBlockFields { offset, len, slice, .. } = SliceBlockFields::decode(block)?;
        Some(SliceReply { offset, len, slice })
    }

    /// Encodes the answer.
    pub(crate) fn encode(&self) -> SliceBlock {
        let SliceReply { offset, len, slice } = *self;
        SliceBlockFields { offset, len, slice, ..SliceBlockFields::default() }.encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(words: [u64; 5], flags: u32, seconds: u32) -> SliceBlock {
        let mut block = [0; BLOCK_BYTES];
        block[..4].copy_from_slice(&1u32.to_ne_bytes());
        block[4..8].copy_from_slice(&flags.to_ne_bytes());
        for (place, word) in block[8..48].chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        block[48..52].copy_from_slice(&seconds.to_ne_bytes());
        block
    }

    #[test]
    fn the_numbers_are_those_of_the_c_macros() {
        assert_eq!(YANK, 0xc038_5750);
        assert_eq!(DROP, 0xc038_5756);
    }

    #[test]
    fn requests_are_read_field_by_field() {
        let part = SlicePart { slice: 3, from: 5, len: 2 };
        let of =
            |command, words, flags, seconds| SliceRequest::decode(command, &block(words, flags, seconds));
        assert_eq!(
            of(YANK, [1, 2, 0, 0, 0], 0, 7),
            Some(SliceRequest::Yank { offset: 1, len: 2, seconds: 7 })
        );
        assert_eq!(
            of(PASTE, [1, 2, 3, 0, 5], 0, 0),
            Some(SliceRequest::Paste { part, position: Position::At(1) })
        );
        assert_eq!(
            of(PASTE, [0, 2, 3, 0, 5], 1, 0),
            Some(SliceRequest::Paste { part, position: Position::End })
        );
        assert_eq!(of(INSERT, [1, 2, 3, 0, 5], 0, 0), Some(SliceRequest::Insert { part, offset: 1 }));
        assert_eq!(of(INSERT, [1, 2, 0, 0, 0], 0, 0), Some(SliceRequest::InsertZeros { len: 2, offset: 1 }));
        assert_eq!(of(REMOVE, [1, 2, 0, 0, 0], 0, 0), Some(SliceRequest::Remove { offset: 1, len: 2 }));
        assert_eq!(of(REPLACE, [0, 0, 3, 0, 0], 0, 0), Some(SliceRequest::Replace { slice: 3 }));
        assert_eq!(
            of(JOIN, [0, 0, 3, 4, 0], 0, 0),
            Some(SliceRequest::Join { slice: 3, other: 4, seconds: 60 })
        );
        assert_eq!(of(DROP, [0, 0, 3, 0, 0], 0, 0), Some(SliceRequest::Drop { slice: 3 }));
    }

    #[test]
    fn requests_come_back_as_they_were_sent() {
        let part = SlicePart { slice: 3, from: 5, len: u64::MAX };
        for request in [
            SliceRequest::Yank { offset: 1, len: 2, seconds: 3 },
            SliceRequest::Paste { part, position: Position::At(9) },
            SliceRequest::Paste { part, position: Position::End },
            SliceRequest::Insert { part, offset: 9 },
            SliceRequest::InsertZeros { len: 4, offset: 9 },
            SliceRequest::Remove { offset: 1, len: 2 },
            SliceRequest::Replace { slice: 1 },
            SliceRequest::Join { slice: 1, other: 2, seconds: 60 },
            SliceRequest::Drop { slice: 1 },
        ] {
            let (command, block) = request.encode();
            assert_eq!(SliceRequest::decode(command, &block), Some(request));
        }
        let reply = SliceReply { offset: 1, len: 2, slice: 3 };
        assert_eq!(SliceReply::decode(&reply.encode()), Some(reply));
    }

    #[test]
    fn malformed_requests_are_refused() {
        let good = block([1, 2, 0, 0, 0], 0, 0);
        assert!(SliceRequest::decode(YANK, &good).is_some());
        assert_eq!(SliceRequest::decode(YANK, &good[..55]), None, "too short");
        assert_eq!(SliceRequest::decode(0x5401, &good), None, "another ioctl");
        let refused = [
            (YANK, block([1, 2, 9, 0, 0], 0, 0)),
            (YANK, block([1, 2, 0, 0, 0], 2, 0)),
            (YANK, block([1, 2, 0, 0, 0], 0, SECONDS_MAX + 1)),
            (PASTE, block([1, 2, 3, 0, 5], 1, 0)),
            (INSERT, block([1, 2, 0, 0, 5], 0, 0)),
            (DROP, block([0, 1, 3, 0, 0], 0, 0)),
        ];
        for (command, block) in refused {
            assert_eq!(SliceRequest::decode(command, &block), None, "{block:?}");
        }
        for byte in [0, 52] {
            let mut bad = good;
            bad[byte] = 2;
            assert_eq!(SliceRequest::decode(YANK, &bad), None, "version, and the field that is zero");
        }
    }
}
