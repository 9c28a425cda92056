//! State frames: the changes that make up the saved state, which is the segment table and the client's state.
//!
//! The state log holds these frames one after the other, and the end of a root holds those that are not in
//! the state log. Frames lie across stripes: the payloads of the state log's stripes are one string of bytes.
//!
//! ```text
//! offset  bytes
//!      0      1  type, not zero
//!      1      3  zero
//!      4      4  body bytes, n
//!      8      n  body
//!
//! type  body
//!   17  segment         segment descriptor (bulk); replaces the descriptor of the same id
//!   18  segment gone    u64 segment id
//!   19  client's state  pieces to the end of the body. A piece is varint bytes to pass over, varint bytes to
//!                       copy, both of the state so far, in order; varint n and n bytes to add
//! ```
//! Little-endian. A frame has no checksum of its own; that of the stripe or of the root's body covers it.

use std::collections::BTreeMap;

use warpfire_units::SegmentId;

use crate::segment::{SegmentDescriptor, SegmentKind};
use crate::{Corrupt, FieldErrors, Reader, varint};

const SHORT: Corrupt = Corrupt::new(246, "state frame ends early");
const TYPE: Corrupt = Corrupt::new(247, "unknown type of state frame");
const FIELD: Corrupt = Corrupt::new(248, "state frame with an impossible field");

static FIELDS: FieldErrors = FieldErrors { short: SHORT, varint: FIELD, trailing: FIELD };

/// Bytes of a frame before its body.
const HEAD_BYTES: usize = 8;

/// Bytes of a frame that says that a segment is gone.
pub const GONE_BYTES: usize = HEAD_BYTES + 8;

/// Most bytes that a frame adds to its descriptor, or to a client's state that it holds whole.
pub const STATE_FRAME_OVERHEAD_BYTES: usize = HEAD_BYTES + 32;

/// Most bytes of the frame of a segment with so many columns, lost columns and runs of stripes.
#[must_use]
pub const fn segment_frame_bytes_max(columns: usize, lost: usize, runs: usize) -> usize {
    HEAD_BYTES + SegmentDescriptor::encoded_bytes_max(columns, lost, runs)
}

/// One piece of a new client's state: a copied part of the old one, then new bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatePiece<'a> {
    /// Bytes of the old state that are dropped before the copied part.
    pub skipped: u32,
    /// Bytes of the old state that are copied.
    pub copied: u32,
    /// Bytes that follow them.
    pub added: &'a [u8],
}

/// One change of the saved state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateFrame<'a> {
    /// A bulk segment, as it is from now on.
    Segment(SegmentDescriptor),
    /// A bulk segment is no longer in the table.
    Gone(SegmentId),
    /// The client's state, made of the one before. Bytes of the old state behind the last piece are dropped.
    Client(Vec<StatePiece<'a>>),
}

impl<'a> StateFrame<'a> {
    /// Appends the encoding to `out`.
    ///
    /// # Panics
    /// If [`StateFrame::decode`] would refuse the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let kind = match self {
            StateFrame::Segment(_) => 17,
            StateFrame::Gone(_) => 18,
            StateFrame::Client(_) => 19,
        };
        // The length of the body is known only after it is encoded, so its four bytes are filled in
        // afterwards.
        out.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
        match self {
            StateFrame::Segment(descriptor) => {
                assert_eq!(descriptor.kind(), SegmentKind::Bulk, "only bulk segments are in the table");
                descriptor.encode(out);
            }
            StateFrame::Gone(id) => out.extend_from_slice(&id.get().to_le_bytes()),
            StateFrame::Client(pieces) => {
                for piece in pieces {
                    varint::put(out, piece.skipped.into());
                    varint::put(out, piece.copied.into());
                    varint::put(out, piece.added.len() as u64);
                    out.extend_from_slice(piece.added);
                }
            }
        }
        let body = u32::try_from(out.len() - start - HEAD_BYTES).expect("a frame is below 4 GiB");
        out[start + 4..start + 8].copy_from_slice(&body.to_le_bytes());
    }

    /// Decodes one frame from the front of `bytes` and returns it with the bytes after it.
    ///
    /// # Errors
    /// Codes 246 to 248, and codes 200 to 206 of the segment descriptor.
    pub fn decode(bytes: &'a [u8]) -> Result<(StateFrame<'a>, &'a [u8]), Corrupt> {
        let mut head = Reader::new(bytes, &FIELDS);
        let kind = head.u8()?;
        if head.array::<3>()? != [0; 3] {
            return Err(FIELD);
        }
        let len = usize::try_from(head.u32()?).map_err(|_| SHORT)?;
        let mut body = Reader::new(head.bytes(len)?, &FIELDS);
        let frame = match kind {
            17 => {
                let (descriptor, rest) = SegmentDescriptor::decode(body.rest())?;
                if descriptor.kind() != SegmentKind::Bulk {
                    return Err(FIELD);
                }
                body = Reader::new(rest, &FIELDS);
                StateFrame::Segment(descriptor)
            }
            18 => StateFrame::Gone(SegmentId::new(body.u64()?).ok_or(FIELD)?),
            19 => {
                let mut pieces = Vec::new();
                while !body.rest().is_empty() {
                    let (skipped, copied, added) = (body.varint32()?, body.varint32()?, body.varint32()?);
                    let added = body.bytes(usize::try_from(added).map_err(|_| SHORT)?)?;
                    pieces.push(StatePiece { skipped, copied, added });
                }
                StateFrame::Client(pieces)
            }
            _ => return Err(TYPE),
        };
        body.end()?;
        Ok((frame, head.rest()))
    }
}

/// The state that a checkpoint saves, without the position in the commit log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SavedState {
    /// Every bulk segment.
    pub segments: BTreeMap<SegmentId, SegmentDescriptor>,
    /// The client's state.
    pub client: Vec<u8>,
}

impl SavedState {
    /// Applies frames, one after the other. `next_segment` is above the id of every segment.
    ///
    /// # Errors
    /// As [`StateFrame::decode`]; code 248 for a change that the state does not allow.
    pub fn apply(&mut self, mut frames: &[u8], next_segment: SegmentId) -> Result<(), Corrupt> {
        while !frames.is_empty() {
            let (frame, rest) = StateFrame::decode(frames)?;
            match frame {
                StateFrame::Segment(descriptor) if descriptor.id < next_segment => {
                    _ = self.segments.insert(descriptor.id, descriptor);
                }
                StateFrame::Segment(_) => return Err(FIELD),
                StateFrame::Gone(id) => _ = self.segments.remove(&id).ok_or(FIELD)?,
                StateFrame::Client(pieces) => self.client = joined(&self.client, &pieces)?,
            }
            frames = rest;
        }
        Ok(())
    }

    /// The state as frames that make it of the empty state.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for descriptor in self.segments.values() {
            StateFrame::Segment(descriptor.clone()).encode(&mut out);
        }
        if !self.client.is_empty() {
            StateFrame::Client(vec![StatePiece { skipped: 0, copied: 0, added: &self.client }])
                .encode(&mut out);
        }
        out
    }
}

/// The client's state after a change. Each byte of the old state is copied at most once, so the result is no
/// longer than the frames that made it.
fn joined(old: &[u8], pieces: &[StatePiece<'_>]) -> Result<Vec<u8>, Corrupt> {
    let mut old = Reader::new(old, &FIELDS);
    let mut state = Vec::new();
    for piece in pieces {
        let mut take = |len: u32| old.bytes(usize::try_from(len).map_err(|_| FIELD)?).map_err(|_| FIELD);
        take(piece.skipped)?;
        state.extend_from_slice(take(piece.copied)?);
        state.extend_from_slice(piece.added);
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use warpfire_units::{DeviceIndex, ZoneIndex};

    use super::*;
    use crate::segment::{SegmentState, SegmentStream, StripeRun};

    fn id(n: u64) -> SegmentId {
        SegmentId::new(n).unwrap()
    }

    fn descriptor(stream: SegmentStream) -> SegmentDescriptor {
        SegmentDescriptor {
            id: id(9),
            epoch: 2,
            stream,
            data: 1,
            parity: 0,
            columns: vec![(DeviceIndex(0), ZoneIndex(2))].into(),
            lost: Vec::new(),
            stripes: Vec::new(),
            state: SegmentState::Open,
        }
    }

    fn samples() -> Vec<StateFrame<'static>> {
        vec![
            StateFrame::Segment(descriptor(SegmentStream::Small)),
            StateFrame::Client(vec![StatePiece { skipped: 0, copied: 0, added: b"one two three" }]),
            StateFrame::Client(vec![
                StatePiece { skipped: 0, copied: 4, added: b"2" },
                StatePiece { skipped: 3, copied: 6, added: b"" },
            ]),
            StateFrame::Gone(id(9)),
        ]
    }

    fn encoded(frame: &StateFrame<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    }

    #[test]
    fn the_frame_of_a_segment_is_no_longer_than_its_bound() {
        let mut segment = descriptor(SegmentStream::Small);
        assert_eq!(encoded(&StateFrame::Segment(segment.clone())).len(), segment_frame_bytes_max(1, 0, 0));
        segment.stripes = vec![StripeRun { rows: 255, count: 1 << 20 }];
        assert!(encoded(&StateFrame::Segment(segment)).len() <= segment_frame_bytes_max(1, 0, 1));
    }

    #[test]
    fn golden_bytes() {
        let all = samples();
        let segment = encoded(&all[0]);
        assert_eq!(segment[..9], [17, 0, 0, 0, 30, 0, 0, 0, 9]);
        assert_eq!(encoded(&all[2]), *b"\x13\0\0\0\x07\0\0\0\0\x04\x012\x03\x06\0");
        assert_eq!(encoded(&all[3]), *b"\x12\0\0\0\x08\0\0\0\x09\0\0\0\0\0\0\0");
        assert_eq!(encoded(&all[3]).len(), GONE_BYTES);
    }

    #[test]
    fn frames_change_the_state_in_order() {
        let mut state = SavedState::default();
        let all = samples();
        for frame in &all[..3] {
            state.apply(&encoded(frame), id(10)).unwrap();
        }
        assert_eq!(state.client, b"one 2 three");
        assert_eq!(state.segments.len(), 1);
        let mut again = SavedState::default();
        again.apply(&state.encode(), id(10)).unwrap();
        assert_eq!(again, state);
        state.apply(&encoded(&all[3]), id(10)).unwrap();
        assert!(state.segments.is_empty());
    }

    #[test]
    fn impossible_changes_are_refused() {
        let mut state = SavedState::default();
        let all = samples();
        assert_eq!(state.apply(&encoded(&all[3]), id(10)), Err(FIELD), "a segment that is not there goes");
        assert_eq!(state.apply(&encoded(&all[0]), id(9)), Err(FIELD), "an id from the future");
        assert_eq!(state.apply(&encoded(&all[2]), id(10)), Err(FIELD), "copies more than there is");
        let mut log = Vec::new();
        descriptor(SegmentStream::CommitLog).encode(&mut log);
        let mut bytes = vec![17, 0, 0, 0, u8::try_from(log.len()).unwrap(), 0, 0, 0];
        bytes.extend_from_slice(&log);
        assert_eq!(StateFrame::decode(&bytes), Err(FIELD), "only bulk segments are in the table");
        for (at, value, error) in [(0, 0, TYPE), (0, 20, TYPE), (1, 1, FIELD), (8, 0, FIELD), (4, 9, SHORT)] {
            let mut bytes = encoded(&all[3]);
            bytes[at] = value;
            assert_eq!(StateFrame::decode(&bytes).err(), Some(error), "byte {at} is {value}");
        }
    }

    #[test]
    fn no_prefix_of_a_frame_decodes() {
        for frame in samples() {
            let bytes = encoded(&frame);
            for len in 0..bytes.len() {
                assert_eq!(StateFrame::decode(&bytes[..len]), Err(SHORT), "{frame:?}");
            }
            assert_eq!(StateFrame::decode(&bytes), Ok((frame, &[][..])));
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_bytes(
            kind in 16u8..21,
            body in proptest::collection::vec(0u8..4, 0..64),
        ) {
            let mut bytes = vec![kind, 0, 0, 0];
            bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
            bytes.extend_from_slice(&body);
            if let Ok((frame, rest)) = StateFrame::decode(&bytes) {
                let mut again = encoded(&frame);
                again.extend_from_slice(rest);
                proptest::prop_assert_eq!(&again, &bytes);
            }
            let mut state = SavedState { client: b"some client".to_vec(), ..SavedState::default() };
            _ = state.apply(&bytes, id(99));
            proptest::prop_assert!(state.client.len() <= 11 + bytes.len());
        }
    }
}
