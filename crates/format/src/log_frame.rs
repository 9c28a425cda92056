//! Log frames: the payload of the commit log's stripes.
//!
//! A log stripe holds whole frames, one after the other; no frame spans two stripes. A record that does not
//! fit into one frame is split into fragments.
//!
//! ```text
//! offset  bytes
//!      0      1  type, not zero
//!      1      1  record: fragment, 1 whole, 2 first, 3 middle, 4 last; other types: zero
//!      2      2  zero
//!      4      4  body bytes, n
//!      8      n  body
//!
//! type  body
//!    1  record          u64 record number (not zero), then the fragment's bytes
//!    2  barrier         u64 barrier number (not zero), u64 checkpoint number (not zero)
//!    3  segment opened  segment descriptor (bulk)
//!    4  segment grew    u64 segment id, u32 first new stripe, u32 number of runs r (not zero),
//!                       r × (rows u16 not zero, zero u16, count u32 not zero)
//!    5  segment sealed  u64 segment id
//!    6  segment freed   u64 segment id
//!    7  log continues   segment descriptor (mirror)
//!    8  column moved    u64 segment id, u16 column, u16 device index, u32 zone index (2 or more)
//!    9  column lost     u64 segment id, u16 column, u16 zero, u32 first stripe that may be missing
//!   10  root            copy of a root (`root_copy`)
//! ```
//! Little-endian. A frame has no checksum of its own; the checksums of its stripe cover it.

use warpfire_units::{COLUMNS_MAX, DeviceIndex, SegmentId, ZoneIndex};

use crate::root_copy::RootCopy;
use crate::segment::{
    FIRST_SEGMENT_ZONE, LostColumn, ROWS_MAX, SegmentDescriptor, SegmentKind, SegmentStream, StripeRun,
};
use crate::{Corrupt, FieldErrors, Reader};

/// Bytes of a frame before its body.
pub const FRAME_HEAD_BYTES: usize = 8;

/// Bytes of a record's fragment before the record's own bytes.
pub const RECORD_HEAD_BYTES: usize = FRAME_HEAD_BYTES + 8;

/// Bytes of a whole barrier frame.
pub const BARRIER_BYTES: usize = FRAME_HEAD_BYTES + 16;

/// Most stripe runs that one `Grew` frame lists, so that it fits any log stripe (16 + 256 × 8 = 2064 bytes).
pub const GREW_RUNS_MAX: usize = 256;

const SHORT: Corrupt = Corrupt::new(220, "log frame ends early");
const TYPE: Corrupt = Corrupt::new(221, "unknown type of log frame");
const FRAGMENT: Corrupt = Corrupt::new(222, "impossible record fragment");
const FIELD: Corrupt = Corrupt::new(223, "log frame with an impossible field");
const PADDING: Corrupt = Corrupt::new(224, "log frame padding is not zero");
const TRAILING: Corrupt = Corrupt::new(225, "log frame body is longer than its content");

static FIELDS: FieldErrors = FieldErrors { short: SHORT, varint: FIELD, trailing: TRAILING };

/// The place of a fragment in its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordFragment {
    /// The only fragment.
    Whole,
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
}

impl RecordFragment {
    const fn to_raw(self) -> u8 {
        match self {
            RecordFragment::Whole => 1,
            RecordFragment::First => 2,
            RecordFragment::Middle => 3,
            RecordFragment::Last => 4,
        }
    }

    const fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(RecordFragment::Whole),
            2 => Some(RecordFragment::First),
            3 => Some(RecordFragment::Middle),
            4 => Some(RecordFragment::Last),
            _ => None,
        }
    }
}

/// One frame of the commit log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogFrame<'a> {
    /// A fragment of one of the client's records.
    Record {
        /// Its place in the record.
        fragment: RecordFragment,
        /// The record's number, counted up by one from 1.
        pos: u64,
        /// The fragment's bytes.
        bytes: &'a [u8],
    },
    /// The end of a group. The frames since the previous barrier count together or not at all.
    Barrier {
        /// Counted up by one from 1.
        number: u64,
        /// The newest checkpoint when the barrier was written.
        checkpoint: u64,
    },
    /// A new bulk segment.
    Opened(SegmentDescriptor),
    /// Further stripes of a bulk segment.
    Grew {
        /// The segment.
        segment: SegmentId,
        /// Number of stripes that it had before, which is the number of the first new stripe.
        first_stripe: u32,
        /// The new stripes.
        runs: Vec<StripeRun>,
    },
    /// A bulk segment gets no further stripes.
    Sealed(SegmentId),
    /// A bulk segment is removed. Its zones become free when the next barrier is durable.
    Freed(SegmentId),
    /// The log continues in this mirror segment when the current one ends.
    LogNext(SegmentDescriptor),
    /// A column of a bulk segment has another zone, which holds all its stripes. The column is not lost any
    /// more. Its old zone becomes free when the next barrier is durable.
    Moved {
        /// The segment.
        segment: SegmentId,
        /// The column.
        column: u16,
        /// The column's new place.
        to: (DeviceIndex, ZoneIndex),
    },
    /// A column of a bulk segment missed a write.
    Lost {
        /// The segment.
        segment: SegmentId,
        /// The column, and the first stripe that it may lack.
        lost: LostColumn,
    },
    /// A copy of the root that was written next. It counts whether or not its group does, and only for a
    /// reader that finds no root.
    Root(&'a [u8]),
}

impl<'a> LogFrame<'a> {
    /// Appends the encoding to `out`.
    ///
    /// # Panics
    /// If [`LogFrame::decode`] would refuse the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let (kind, fragment) = match self {
            LogFrame::Record { fragment, .. } => (1, fragment.to_raw()),
            LogFrame::Barrier { .. } => (2, 0),
            LogFrame::Opened(_) => (3, 0),
            LogFrame::Grew { .. } => (4, 0),
            LogFrame::Sealed(_) => (5, 0),
            LogFrame::Freed(_) => (6, 0),
            LogFrame::LogNext(_) => (7, 0),
            LogFrame::Moved { .. } => (8, 0),
            LogFrame::Lost { .. } => (9, 0),
            LogFrame::Root(_) => (10, 0),
        };
        // The length of the body is known only after it is encoded, so its four bytes are filled in
        // afterwards.
        out.extend_from_slice(&[kind, fragment, 0, 0, 0, 0, 0, 0]);
        self.encode_body(out);
        let body = u32::try_from(out.len() - start - FRAME_HEAD_BYTES).expect("a frame is below 4 GiB");
        out[start + 4..start + 8].copy_from_slice(&body.to_le_bytes());
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            LogFrame::Record { pos, bytes, .. } => {
                assert!(*pos > 0, "records count from 1");
                out.extend_from_slice(&pos.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            LogFrame::Barrier { number, checkpoint } => {
                assert!(*number > 0 && *checkpoint > 0, "barriers and checkpoints count from 1");
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&checkpoint.to_le_bytes());
            }
            LogFrame::Opened(d) => {
                assert_eq!(d.kind(), SegmentKind::Bulk, "only bulk segments are in the segment table");
                d.encode(out);
            }
            LogFrame::LogNext(d) => {
                assert_eq!(d.stream, SegmentStream::CommitLog, "the log has segments of its own");
                d.encode(out);
            }
            LogFrame::Grew { segment, first_stripe, runs } => {
                assert!((1..=GREW_RUNS_MAX).contains(&runs.len()), "growth is split to fit a stripe");
                // A bulk stripe has payload rows, so neither number of a run is zero (`decode_grew`).
                debug_assert!(
                    runs.iter().all(|r| r.count > 0 && (1..=ROWS_MAX).contains(&r.rows)),
                    "whole runs"
                );
                out.extend_from_slice(&segment.get().to_le_bytes());
                out.extend_from_slice(&first_stripe.to_le_bytes());
                out.extend_from_slice(&u32::try_from(runs.len()).expect("checked above").to_le_bytes());
                for run in runs {
                    out.extend_from_slice(&run.rows.to_le_bytes());
                    out.extend_from_slice(&[0, 0]);
                    out.extend_from_slice(&run.count.to_le_bytes());
                }
            }
            LogFrame::Sealed(segment) | LogFrame::Freed(segment) => {
                out.extend_from_slice(&segment.get().to_le_bytes());
            }
            LogFrame::Moved { segment, column, to: (device, zone) } => {
                assert!(*zone >= FIRST_SEGMENT_ZONE, "the first zones of a device hold roots");
                debug_assert!(usize::from(*column) < COLUMNS_MAX, "a column is one of its segment's");
                out.extend_from_slice(&segment.get().to_le_bytes());
                out.extend_from_slice(&column.to_le_bytes());
                out.extend_from_slice(&device.0.to_le_bytes());
                out.extend_from_slice(&zone.0.to_le_bytes());
            }
            LogFrame::Lost { segment, lost } => {
                debug_assert!(usize::from(lost.column) < COLUMNS_MAX, "a column is one of its segment's");
                out.extend_from_slice(&segment.get().to_le_bytes());
                out.extend_from_slice(&lost.column.to_le_bytes());
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(&lost.first_stripe.to_le_bytes());
            }
            LogFrame::Root(copy) => {
                debug_assert!(RootCopy::decode(copy).is_ok(), "only a copy that decodes is written");
                out.extend_from_slice(copy);
            }
        }
    }

    /// Decodes one frame from the front of `bytes` and returns it with the bytes after it.
    ///
    /// # Errors
    /// Codes 220 to 225, codes 200 to 206 of the segment descriptor, and those of a copy of a root.
    pub fn decode(bytes: &'a [u8]) -> Result<(LogFrame<'a>, &'a [u8]), Corrupt> {
        let mut head = Reader::new(bytes, &FIELDS);
        let kind = head.u8()?;
        let fragment = head.u8()?;
        if head.u16()? != 0 {
            return Err(PADDING);
        }
        let len = usize::try_from(head.u32()?).map_err(|_| SHORT)?;
        let mut body = Reader::new(head.bytes(len)?, &FIELDS);
        // The fragment byte has a meaning in records only and is padding elsewhere.
        if kind != 1 && fragment != 0 {
            return Err(FRAGMENT);
        }
        let frame = match kind {
            1 => {
                let fragment = RecordFragment::from_raw(fragment).ok_or(FRAGMENT)?;
                let pos = not_zero(body.u64()?)?;
                LogFrame::Record { fragment, pos, bytes: body.take_rest() }
            }
            2 => LogFrame::Barrier { number: not_zero(body.u64()?)?, checkpoint: not_zero(body.u64()?)? },
            3 => LogFrame::Opened(descriptor(&mut body, |d| d.kind() == SegmentKind::Bulk)?),
            4 => decode_grew(&mut body)?,
            5 => LogFrame::Sealed(segment_id(&mut body)?),
            6 => LogFrame::Freed(segment_id(&mut body)?),
            7 => LogFrame::LogNext(descriptor(&mut body, |d| d.stream == SegmentStream::CommitLog)?),
            8 => {
                let (segment, column) = (segment_id(&mut body)?, column(&mut body)?);
                let to = (DeviceIndex(body.u16()?), ZoneIndex(body.u32()?));
                if to.1 < FIRST_SEGMENT_ZONE {
                    return Err(FIELD);
                }
                LogFrame::Moved { segment, column, to }
            }
            9 => {
                let (segment, column) = (segment_id(&mut body)?, column(&mut body)?);
                if body.u16()? != 0 {
                    return Err(PADDING);
                }
                LogFrame::Lost { segment, lost: LostColumn { column, first_stripe: body.u32()? } }
            }
            10 => {
                let copy = body.take_rest();
                RootCopy::decode(copy)?;
                LogFrame::Root(copy)
            }
            _ => return Err(TYPE),
        };
        body.end()?;
        Ok((frame, head.rest()))
    }
}

fn not_zero(n: u64) -> Result<u64, Corrupt> {
    if n == 0 { Err(FIELD) } else { Ok(n) }
}

fn segment_id(body: &mut Reader<'_>) -> Result<SegmentId, Corrupt> {
    SegmentId::new(body.u64()?).ok_or(FIELD)
}

fn column(body: &mut Reader<'_>) -> Result<u16, Corrupt> {
    let column = body.u16()?;
    if usize::from(column) < COLUMNS_MAX { Ok(column) } else { Err(FIELD) }
}

fn descriptor(
    body: &mut Reader<'_>,
    fits: impl Fn(&SegmentDescriptor) -> bool,
) -> Result<SegmentDescriptor, Corrupt> {
    let (descriptor, rest) = SegmentDescriptor::decode(body.rest())?;
    *body = Reader::new(rest, &FIELDS);
    if fits(&descriptor) { Ok(descriptor) } else { Err(FIELD) }
}

fn decode_grew(body: &mut Reader<'_>) -> Result<LogFrame<'static>, Corrupt> {
    let segment = segment_id(body)?;
    let first_stripe = body.u32()?;
    let count = usize::try_from(body.u32()?).map_err(|_| FIELD)?;
    if !(1..=GREW_RUNS_MAX).contains(&count) {
        return Err(FIELD);
    }
    let mut runs = Vec::with_capacity(count);
    let mut total = first_stripe;
    for _ in 0..count {
        let rows = body.u16()?;
        if body.u16()? != 0 {
            return Err(PADDING);
        }
        let count = body.u32()?;
        total = total.checked_add(count).ok_or(FIELD)?;
        if rows == 0 || rows > ROWS_MAX || count == 0 {
            return Err(FIELD);
        }
        runs.push(StripeRun { rows, count });
    }
    Ok(LogFrame::Grew { segment, first_stripe, runs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::SegmentState;

    fn id(n: u64) -> SegmentId {
        SegmentId::new(n).unwrap()
    }

    fn descriptor(stream: SegmentStream) -> SegmentDescriptor {
        SegmentDescriptor {
            id: id(9),
            epoch: 2,
            stream,
            data: 1,
            parity: 1,
            columns: vec![(DeviceIndex(0), ZoneIndex(2)), (DeviceIndex(1), ZoneIndex(3))].into(),
            lost: Vec::new(),
            stripes: Vec::new(),
            state: SegmentState::Open,
        }
    }

    fn root_copy() -> &'static [u8] {
        static COPY: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        COPY.get_or_init(crate::root_copy::samples::copy)
    }

    fn samples() -> Vec<LogFrame<'static>> {
        vec![
            LogFrame::Record { fragment: RecordFragment::Whole, pos: 5, bytes: b"hello" },
            LogFrame::Record { fragment: RecordFragment::First, pos: 6, bytes: b"" },
            LogFrame::Record { fragment: RecordFragment::Middle, pos: 6, bytes: b"x" },
            LogFrame::Record { fragment: RecordFragment::Last, pos: 6, bytes: b"y" },
            LogFrame::Barrier { number: 3, checkpoint: 1 },
            LogFrame::Opened(descriptor(SegmentStream::Small)),
            LogFrame::Grew {
                segment: id(9),
                first_stripe: 4,
                runs: vec![StripeRun { rows: 255, count: 2 }, StripeRun { rows: 1, count: 1 }],
            },
            LogFrame::Sealed(id(9)),
            LogFrame::Freed(id(258)),
            LogFrame::LogNext(descriptor(SegmentStream::CommitLog)),
            LogFrame::Moved { segment: id(9), column: 1, to: (DeviceIndex(3), ZoneIndex(4)) },
            LogFrame::Lost { segment: id(9), lost: LostColumn { column: 1, first_stripe: 6 } },
            LogFrame::Root(root_copy()),
        ]
    }

    #[test]
    fn golden_bytes() {
        let encoded = |frame: &LogFrame<'_>| {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            bytes
        };
        let all = samples();
        assert_eq!(encoded(&all[0]), *b"\x01\x01\0\0\x0d\0\0\0\x05\0\0\0\0\0\0\0hello");
        assert_eq!(encoded(&all[4]), *b"\x02\0\0\0\x10\0\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
        assert_eq!(encoded(&all[8]), *b"\x06\0\0\0\x08\0\0\0\x02\x01\0\0\0\0\0\0");
        let grew = [
            4, 0, 0, 0, 32, 0, 0, 0, // head
            9, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, // fixed part
            255, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, // runs
        ];
        assert_eq!(encoded(&all[6]), grew);
        assert_eq!(encoded(&all[10]), *b"\x08\0\0\0\x10\0\0\0\x09\0\0\0\0\0\0\0\x01\0\x03\0\x04\0\0\0");
        assert_eq!(encoded(&all[11]), *b"\x09\0\0\0\x10\0\0\0\x09\0\0\0\0\0\0\0\x01\0\0\0\x06\0\0\0");
    }

    #[test]
    fn frames_come_back_as_they_went_in_and_no_prefix_does() {
        let mut bytes = Vec::new();
        let all = samples();
        for frame in &all {
            let start = bytes.len();
            frame.encode(&mut bytes);
            for len in start..bytes.len() {
                assert_eq!(LogFrame::decode(&bytes[start..len]), Err(SHORT));
            }
        }
        let mut rest = &bytes[..];
        for frame in all {
            let (decoded, after) = LogFrame::decode(rest).unwrap();
            assert_eq!(decoded, frame);
            rest = after;
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn each_field_is_held_to_its_range() {
        // Frame, byte, value, error.
        let cases = [
            (4, 0, 0, TYPE),
            (4, 0, 11, TYPE),
            (0, 1, 0, FRAGMENT),
            (0, 1, 5, FRAGMENT),
            (0, 2, 1, PADDING),
            (0, 8, 0, FIELD),
            (4, 1, 1, FRAGMENT),
            (4, 8, 0, FIELD),
            (4, 16, 0, FIELD),
            (6, 8, 0, FIELD),
            (6, 20, 0, FIELD),
            (6, 20, 1, TRAILING),
            (6, 24, 0, FIELD),
            (6, 26, 1, PADDING),
            (6, 28, 0, FIELD),
            (7, 8, 0, FIELD),
            (9, 20, 1, FIELD),
            (10, 8, 0, FIELD),
            (10, 16, 250, FIELD),
            (10, 20, 1, FIELD),
            (11, 8, 0, FIELD),
            (11, 16, 250, FIELD),
            (11, 18, 1, PADDING),
        ];
        for (frame, at, value, error) in cases {
            let mut bytes = Vec::new();
            samples()[frame].encode(&mut bytes);
            bytes[at] = value;
            assert_eq!(LogFrame::decode(&bytes).err(), Some(error), "frame {frame}, byte {at} is {value}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_bytes(
            kind in 0u8..12,
            fragment in 0u8..6,
            body in proptest::collection::vec(0u8..4, 0..96),
        ) {
            let mut bytes = vec![kind, fragment, 0, 0];
            bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
            bytes.extend_from_slice(&body);
            if let Ok((frame, rest)) = LogFrame::decode(&bytes) {
                let mut encoded_again = Vec::new();
                frame.encode(&mut encoded_again);
                encoded_again.extend_from_slice(rest);
                proptest::prop_assert_eq!(encoded_again, bytes);
            }
        }
    }
}
