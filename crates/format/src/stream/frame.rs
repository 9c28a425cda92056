//! Frames of a stream.
//!
//! ```text
//!  0   4  CRC32C of all that follows
//!  4   4  length of the payload, at most 1,048,576
//!  8   1  kind
//!  9   3  zero
//! 12   *  payload
//! ```

use super::{BAD_CHECKSUM, BAD_FRAME};
use crate::decode::only_zeroes;
use crate::{Corrupt, crc32c};

/// Bytes before the payload of a frame.
pub const FRAME_HEADER_BYTES: usize = 12;

/// Most bytes of a payload.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The kind of a frame. Zero is never written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// The first frame: what the stream holds.
    Header = 1,
    /// Bytes of files.
    Data = 2,
    /// Records.
    Records = 3,
    /// A place at which the stream can be continued after a cut.
    Mark = 4,
    /// The last frame.
    End = 5,
}

/// The header of a frame, whose checksum is not verified yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Kind of frame.
    pub kind: FrameKind,
    /// Length of the payload in bytes.
    pub payload_bytes: usize,
}

impl FrameHeader {
    /// Decodes the header of a frame.
    ///
    /// # Errors
    /// Code 441.
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<FrameHeader, Corrupt> {
        let [_, _, _, _, l0, l1, l2, l3, kind, padding @ ..] = *bytes;
        only_zeroes(&padding, BAD_FRAME)?;
        let payload_bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if payload_bytes > FRAME_PAYLOAD_BYTES_MAX {
            return Err(BAD_FRAME);
        }
        let kind = match kind {
            1 => FrameKind::Header,
            2 => FrameKind::Data,
            3 => FrameKind::Records,
            4 => FrameKind::Mark,
            5 => FrameKind::End,
            _ => return Err(BAD_FRAME),
        };
        Ok(FrameHeader { kind, payload_bytes })
    }

    /// The payload of a whole frame, header included, if its checksum is right.
    ///
    /// # Errors
    /// Codes 440 and 441.
    pub fn verify(frame: &[u8]) -> Result<(FrameHeader, &[u8]), Corrupt> {
        let (head, payload) = frame.split_first_chunk::<FRAME_HEADER_BYTES>().ok_or(BAD_FRAME)?;
        let header = FrameHeader::decode(head)?;
        let (crc, sealed) = frame.split_first_chunk::<4>().ok_or(BAD_FRAME)?;
        if payload.len() != header.payload_bytes {
            return Err(BAD_FRAME);
        }
        if u32::from_le_bytes(*crc) != crc32c(sealed) { Err(BAD_CHECKSUM) } else { Ok((header, payload)) }
    }
}

/// Appends a frame. `fill` appends its payload.
///
/// # Panics
/// If the payload is too long.
pub fn put_frame(out: &mut Vec<u8>, kind: FrameKind, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    fill(out);
    let frame = out.get_mut(start..).expect("the frame begins there");
    let payload_bytes = frame.len() - FRAME_HEADER_BYTES;
    assert!(payload_bytes <= FRAME_PAYLOAD_BYTES_MAX, "a payload has a bound");
    let len = u32::try_from(payload_bytes).expect("bounded above").to_le_bytes();
    frame.get_mut(4..8).expect("a header").copy_from_slice(&len);
    *frame.get_mut(8).expect("a header") = kind as u8;
    let crc = crc32c(frame.get(4..).expect("a header")).to_le_bytes();
    frame.get_mut(..4).expect("a header").copy_from_slice(&crc);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let mut out = vec![7];
        put_frame(&mut out, FrameKind::Data, |out| out.extend_from_slice(b"abc"));
        assert_eq!(out.get(5..), Some(&[3, 0, 0, 0, 2, 0, 0, 0, b'a', b'b', b'c'][..]));
        assert_eq!(out.get(1..5), Some(&crc32c(&out[5..]).to_le_bytes()[..]));
        let header = FrameHeader { kind: FrameKind::Data, payload_bytes: 3 };
        assert_eq!(FrameHeader::verify(&out[1..]), Ok((header, &b"abc"[..])));
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_found(payload: Vec<u8>, at: prop::sample::Index, with in 1u8..) {
            let mut out = Vec::new();
            put_frame(&mut out, FrameKind::Records, |out| out.extend_from_slice(&payload));
            let at = at.index(out.len());
            out[at] ^= with;
            prop_assert!(FrameHeader::verify(&out).is_err());
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            let _ = FrameHeader::verify(&bytes);
        }
    }
}
