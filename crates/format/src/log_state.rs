//! The log state: the payload of a root. It names the segments of the commit log and of the state log, and
//! the place where reading the commit log begins. The saved state (`state_frame`) is in the frames of the
//! state log and in the frames behind this structure.
//!
//! ```text
//! offset  bytes
//!      0      4  magic "WfLg"
//!      4      2  version: 5
//!      6      2  zero
//!      8      8  next segment id, not zero; all ids in the descriptors are smaller
//!     16      8  number of the next record, not zero
//!     24      8  number of the first record that is needed, not zero, not above that of the next record
//!     32      8  last barrier that this state includes; 0 before the first
//!     40      8  sequence of the last log stripe that this state includes; 0 before the first
//!     48      8  checkpoint number, not zero, counted up by one
//!     56      4  stripe of the first log segment at which reading begins
//!     60      4  c, number of log segments, not zero
//!     64      4  s, number of segments of the state log
//!     68      4  zero
//!     72      8  sequence of the last stripe of the state log; 0 before the first
//!     80      …  c descriptors of segments of the commit log, in its order
//!      …      …  s descriptors of segments of the state log, in its order
//!      …      …  state frames that follow those of the state log
//! ```
//! Little-endian. The checksum of the root's body covers it.

use warpfire_units::SegmentId;

use crate::root::Unsupported;
use crate::segment::{SegmentDescriptor, SegmentStream};
use crate::{Corrupt, FieldErrors, Reader};

const MAGIC: [u8; 4] = *b"WfLg";
pub(crate) const VERSION: u16 = 5;

/// Bytes before the descriptors.
const HEAD_BYTES: usize = 80;

const SHORT: Corrupt = Corrupt::new(240, "log state ends early");
const MAGIC_BAD: Corrupt = Corrupt::new(241, "not a log state");
const VERSION_BAD: Corrupt = Corrupt::new(242, "log state of an unknown version");
const FIELD: Corrupt = Corrupt::new(243, "log state with an impossible field");
const PADDING: Corrupt = Corrupt::new(244, "log state padding is not zero");
const TABLE: Corrupt = Corrupt::new(245, "log state with an impossible segment");

static FIELDS: FieldErrors = FieldErrors::all(SHORT);

/// Whether the payload of a root is a log state of another version.
#[must_use]
pub fn unsupported(payload: &[u8]) -> Option<Unsupported> {
    let mut c = Reader::new(payload, &FIELDS);
    let is_log_state = c.array().ok()? == MAGIC;
    let version = c.u16().ok()?;
    (is_log_state && version != VERSION).then_some(Unsupported::LogState(version))
}

/// The log state, without the state frames that follow it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogState {
    /// The id of the next segment to be allocated.
    pub next_segment: SegmentId,
    /// The number of the next record to be written.
    pub next_pos: u64,
    /// The number of the first record that recovery still needs.
    pub keep_from: u64,
    /// The last barrier that is part of this state.
    pub barrier: u64,
    /// The sequence of the last log stripe that is part of this state. The next stripe has the next number.
    pub sequence: u64,
    /// The number of this checkpoint.
    pub checkpoint: u64,
    /// Stripe of the first log segment at which reading begins.
    pub first_stripe: u32,
    /// The sequence of the last stripe of the state log. The next one has the next number.
    pub state_sequence: u64,
    /// The commit log's segments, oldest first.
    pub chain: Vec<SegmentDescriptor>,
    /// The state log's segments, oldest first, each with exactly the stripes that belong to the state.
    pub state_chain: Vec<SegmentDescriptor>,
}

impl LogState {
    /// The encoding, followed by state frames.
    ///
    /// # Panics
    /// If [`LogState::decode`] would refuse the bytes.
    #[must_use]
    pub fn encode(&self, frames: &[u8]) -> Vec<u8> {
        self.verify().expect("only a log state that decodes is written");
        // The counts and numbers stand in one block of fixed width; the descriptors follow without lengths,
        // because each of them says where it ends.
        let count = |n: usize| u32::try_from(n).expect("fewer than 2^32 segments").to_le_bytes();
        let mut out =
            Vec::with_capacity(128 + frames.len() + 64 * (self.chain.len() + self.state_chain.len()));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        let numbers = [
            self.next_segment.get(),
            self.next_pos,
            self.keep_from,
            self.barrier,
            self.sequence,
            self.checkpoint,
        ];
        for number in numbers {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.first_stripe.to_le_bytes());
        out.extend_from_slice(&count(self.chain.len()));
        out.extend_from_slice(&count(self.state_chain.len()));
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.state_sequence.to_le_bytes());
        debug_assert_eq!(out.len(), HEAD_BYTES, "the descriptors follow the fixed fields");
        for descriptor in self.chain.iter().chain(&self.state_chain) {
            descriptor.encode(&mut out);
        }
        out.extend_from_slice(frames);
        out
    }

    /// Decodes a root's payload and returns the log state with the state frames after it.
    ///
    /// # Errors
    /// Codes 240 to 245, and codes 200 to 206 of the segment descriptor.
    pub fn decode(bytes: &[u8]) -> Result<(LogState, &[u8]), Corrupt> {
        let mut c = Reader::new(bytes, &FIELDS);
        if c.array()? != MAGIC {
            return Err(MAGIC_BAD);
        }
        if c.u16()? != VERSION {
            return Err(VERSION_BAD);
        }
        if c.u16()? != 0 {
            return Err(PADDING);
        }
        let mut state = LogState {
            next_segment: SegmentId::new(c.u64()?).ok_or(FIELD)?,
            next_pos: c.u64()?,
            keep_from: c.u64()?,
            barrier: c.u64()?,
            sequence: c.u64()?,
            checkpoint: c.u64()?,
            first_stripe: c.u32()?,
            state_sequence: 0,
            chain: Vec::new(),
            state_chain: Vec::new(),
        };
        let (chain, state_chain) = (c.u32()?, c.u32()?);
        if c.u32()? != 0 {
            return Err(PADDING);
        }
        state.state_sequence = c.u64()?;
        // The counts are not verified yet. The vectors grow as descriptors decode, so a false count ends with
        // the bytes and makes no large allocation.
        let mut rest = c.rest();
        for (count, list) in [(chain, &mut state.chain), (state_chain, &mut state.state_chain)] {
            for _ in 0..count {
                let (descriptor, after) = SegmentDescriptor::decode(rest)?;
                list.push(descriptor);
                rest = after;
            }
        }
        state.verify()?;
        Ok((state, rest))
    }

    /// The number of stripes of the state log.
    #[must_use]
    pub fn state_stripes(&self) -> u64 {
        self.state_chain.iter().map(|d| u64::from(d.stripe_count())).sum()
    }

    fn verify(&self) -> Result<(), Corrupt> {
        if self.next_pos == 0 || self.keep_from == 0 || self.keep_from > self.next_pos || self.checkpoint == 0
        {
            return Err(FIELD);
        }
        // Reading begins inside the first log segment or directly after its last stripe.
        let begins = self.chain.first().is_some_and(|d| self.first_stripe <= d.stripe_count());
        let is_of = |list: &[SegmentDescriptor], stream| {
            list.iter().all(|d| d.stream == stream && d.id < self.next_segment)
                && list.is_sorted_by_key(|d| d.id)
        };
        let chained = is_of(&self.chain, SegmentStream::CommitLog);
        let stated =
            is_of(&self.state_chain, SegmentStream::StateLog) && self.state_stripes() <= self.state_sequence;
        if begins && chained && stated { Ok(()) } else { Err(TABLE) }
    }
}

#[cfg(test)]
mod tests {
    use warpfire_units::{DeviceIndex, ZoneIndex};

    use super::*;
    use crate::segment::{SegmentState, SegmentStream};

    fn descriptor(id: u64, stream: SegmentStream) -> SegmentDescriptor {
        SegmentDescriptor {
            id: SegmentId::new(id).unwrap(),
            epoch: 1,
            stream,
            data: 1,
            parity: 0,
            columns: vec![(DeviceIndex(0), ZoneIndex(u32::try_from(id).unwrap() + 2))].into(),
            lost: Vec::new(),
            stripes: Vec::new(),
            state: SegmentState::Open,
        }
    }

    fn sample() -> LogState {
        LogState {
            next_segment: SegmentId::new(9).unwrap(),
            next_pos: 8,
            keep_from: 7,
            barrier: 6,
            sequence: 5,
            checkpoint: 4,
            first_stripe: 0,
            chain: vec![descriptor(1, SegmentStream::CommitLog)],
            state_sequence: 3,
            state_chain: vec![descriptor(2, SegmentStream::StateLog), descriptor(3, SegmentStream::StateLog)],
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = sample().encode(b"frames");
        let golden = [
            b'W', b'f', b'L', b'g', 5, 0, 0, 0, // magic, version
            9, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, // next, next, keep
            6, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0,
            0, // barrier, sequence, number
            0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, // first stripe, counts
            3, 0, 0, 0, 0, 0, 0, 0, // state log
        ];
        assert_eq!(bytes[..80], golden);
        assert_eq!(LogState::decode(&bytes), Ok((sample(), &b"frames"[..])));
        assert_eq!(unsupported(&bytes), None);
        let other = [&bytes[..4], &[2], &bytes[5..]].concat();
        assert_eq!(unsupported(&other), Some(Unsupported::LogState(2)));
    }

    #[test]
    fn every_shorter_prefix_is_refused() {
        let bytes = sample().encode(b"");
        for len in 0..bytes.len() {
            assert!(LogState::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn each_field_is_held_to_its_range() {
        let cases = [
            (0, 0, MAGIC_BAD),
            (4, 1, VERSION_BAD),
            (6, 1, PADDING),
            (8, 0, FIELD),
            (8, 3, TABLE),
            (16, 0, FIELD),
            (16, 6, FIELD),
            (24, 0, FIELD),
            (48, 0, FIELD),
            (56, 1, TABLE),
            (60, 0, TABLE),
            (68, 1, PADDING),
            (80 + 15, 2, TABLE),
            (80 + 30 + 15, 1, TABLE),
        ];
        for (at, value, error) in cases {
            let mut bytes = sample().encode(b"");
            bytes[at] = value;
            assert_eq!(LogState::decode(&bytes).err(), Some(error), "byte {at} is {value}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_bytes(edits in proptest::collection::vec((0usize..170, 0u8..=9), 0..8)) {
            let mut bytes = sample().encode(b"frames");
            for (at, value) in edits {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            if let Ok((state, frames)) = LogState::decode(&bytes) {
                proptest::prop_assert_eq!(state.encode(frames), bytes);
            }
        }
    }
}
