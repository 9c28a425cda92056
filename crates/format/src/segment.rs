//! The descriptor of a segment: the zones of its columns and the lengths of its stripes.
//!
//! ```text
//! offset  bytes
//!      0      8  segment id, not zero
//!      8      4  epoch of the session that allocated it, not zero
//!     12      1  kind: 1 bulk, 2 mirror
//!     13      1  state: 1 open, 2 sealed
//!     14      1  m, parity columns (mirror: further copies)
//!     15      1  zero
//!     16      2  k, data columns (mirror: 1)
//!     18      2  zero
//!     20      4  number of stripe runs, r
//!     24  6(k+m) columns: device index u16, zone index u32 (2 or more)
//!      …     8r  stripe runs: rows u16 (0 to 255), zero u16, count u32 (not zero)
//! ```
//! Little-endian. A descriptor has no checksum of its own; the structure that holds it has one.

use warpfire_units::{COLUMNS_MAX, DeviceIndex, PARITY_MAX, SegmentId, ZoneIndex};

use crate::{Corrupt, FieldErrors, Reader};

/// Most rows in one stripe, the header block not counted.
pub const ROWS_MAX: u16 = 255;

/// The first zone that a segment may use; the zones before it hold the roots.
pub const FIRST_SEGMENT_ZONE: ZoneIndex = ZoneIndex(2);

const SHORT: Corrupt = Corrupt::new(200, "segment descriptor ends early");
const ID: Corrupt = Corrupt::new(201, "segment descriptor without id or epoch");
const KIND: Corrupt = Corrupt::new(202, "unknown segment kind or state");
const SHAPE: Corrupt = Corrupt::new(203, "impossible number of columns");
const COLUMN: Corrupt = Corrupt::new(204, "two columns on one device, or a column in a root zone");
const RUN: Corrupt = Corrupt::new(205, "impossible stripe run");
const PADDING: Corrupt = Corrupt::new(206, "segment descriptor padding is not zero");

static FIELDS: FieldErrors = FieldErrors::all(SHORT);

/// How a segment adds redundancy to its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SegmentKind {
    /// k data columns and m parity columns; addressed by slice pointers.
    Bulk,
    /// 1+m equal copies. The payload begins in the header block. It is read front to back and has no
    /// addresses.
    Mirror,
}

impl SegmentKind {
    /// The number on flash.
    #[must_use]
    pub const fn to_raw(self) -> u8 {
        match self {
            SegmentKind::Bulk => 1,
            SegmentKind::Mirror => 2,
        }
    }

    /// `None` for a number that no kind has.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(SegmentKind::Bulk),
            2 => Some(SegmentKind::Mirror),
            _ => None,
        }
    }
}

/// Whether the descriptor lists every stripe of the segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SegmentState {
    /// The segment takes more stripes, or took them until power failed. The listed stripes are a prefix.
    Open,
    /// The segment takes no more stripes. All of them are listed.
    Sealed,
}

/// Neighbouring stripes of equal length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StripeRun {
    /// Rows of each stripe, the header block not counted.
    pub rows: u16,
    /// Number of these stripes, never zero.
    pub count: u32,
}

/// The decoded descriptor: enough to find every byte of the segment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SegmentDescriptor {
    /// The segment's number.
    pub id: SegmentId,
    /// The epoch of the session that allocated the segment. Each stripe header repeats it.
    pub epoch: u32,
    /// Bulk or mirror.
    pub kind: SegmentKind,
    /// Data columns; 1 in a mirror.
    pub data: u16,
    /// Parity columns, or further copies in a mirror.
    pub parity: u8,
    /// One zone on each of `data + parity` different devices, data columns first.
    pub columns: Vec<(DeviceIndex, ZoneIndex)>,
    /// Lengths of the stripes from the front of the zones, run-length coded.
    pub stripes: Vec<StripeRun>,
    /// Open or sealed.
    pub state: SegmentState,
}

impl SegmentDescriptor {
    /// Number of listed stripes.
    #[must_use]
    pub fn stripe_count(&self) -> u32 {
        self.stripes.iter().map(|r| r.count).sum()
    }

    /// Adds a stripe at the end of the list.
    ///
    /// # Panics
    /// If `rows` is above [`ROWS_MAX`].
    pub fn push_stripe(&mut self, rows: u16) {
        assert!(rows <= ROWS_MAX, "a stripe has at most {ROWS_MAX} rows");
        match self.stripes.last_mut() {
            Some(run) if run.rows == rows => run.count += 1,
            _ => self.stripes.push(StripeRun { rows, count: 1 }),
        }
    }

    /// Removes all stripes from number `count` on from the list.
    pub fn truncate_stripes(&mut self, count: u32) {
        let mut left = count;
        self.stripes.retain_mut(|run| {
            run.count = run.count.min(left);
            left -= run.count;
            run.count > 0
        });
        debug_assert!(self.stripe_count() <= count, "no stripe from number {count} on is listed");
    }

    /// Payload capacity of all listed stripes of a bulk segment: rows × k blocks, padding included. Offsets
    /// of slice pointers count these bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        let rows: u64 = self.stripes.iter().map(|r| u64::from(r.rows) * u64::from(r.count)).sum();
        rows * u64::from(self.data) * warpfire_units::BLOCK_BYTES as u64
    }

    /// Blocks of each zone that the listed stripes occupy, headers included.
    #[must_use]
    pub fn zone_blocks_used(&self) -> u64 {
        self.stripes.iter().map(|r| (u64::from(r.rows) + 1) * u64::from(r.count)).sum()
    }

    /// Appends the encoding to `out`.
    ///
    /// # Panics
    /// If there are not k + m columns.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert_eq!(self.columns.len(), usize::from(self.data) + usize::from(self.parity), "k+m columns");
        debug_assert!(self.epoch > 0, "a session has an epoch from 1 on");
        out.extend_from_slice(&self.id.get().to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        let state = match self.state {
            SegmentState::Open => 1,
            SegmentState::Sealed => 2,
        };
        out.extend_from_slice(&[self.kind.to_raw(), state, self.parity, 0]);
        out.extend_from_slice(&self.data.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        // Both lengths of the variable part, k+m and r, stand before it, so a reader knows where it ends.
        let runs = u32::try_from(self.stripes.len()).expect("a zone has fewer than 2^32 stripes");
        out.extend_from_slice(&runs.to_le_bytes());
        for (device, zone) in &self.columns {
            out.extend_from_slice(&device.0.to_le_bytes());
            out.extend_from_slice(&zone.0.to_le_bytes());
        }
        for run in &self.stripes {
            out.extend_from_slice(&run.rows.to_le_bytes());
            out.extend_from_slice(&[0, 0]);
            out.extend_from_slice(&run.count.to_le_bytes());
        }
    }

    /// Decodes one descriptor from the front of `bytes` and returns it with the bytes after it.
    ///
    /// # Errors
    /// Codes 200 to 206.
    pub fn decode(bytes: &[u8]) -> Result<(SegmentDescriptor, &[u8]), Corrupt> {
        let mut c = Reader::new(bytes, &FIELDS);
        let id = SegmentId::new(c.u64()?).ok_or(ID)?;
        let epoch = c.u32()?;
        if epoch == 0 {
            return Err(ID);
        }
        let kind = SegmentKind::from_raw(c.u8()?).ok_or(KIND)?;
        let state = match c.u8()? {
            1 => SegmentState::Open,
            2 => SegmentState::Sealed,
            _ => return Err(KIND),
        };
        let parity = c.u8()?;
        let pad = c.u8()?;
        let data = c.u16()?;
        if pad != 0 || c.u16()? != 0 {
            return Err(PADDING);
        }
        // The shape is verified before the columns are read: k+m says how much memory they take.
        let width = usize::from(data) + usize::from(parity);
        let one_copy = kind == SegmentKind::Bulk || data == 1;
        if data == 0 || usize::from(parity) > PARITY_MAX || width > COLUMNS_MAX || !one_copy {
            return Err(SHAPE);
        }
        let runs = c.u32()?;
        let columns = decode_columns(&mut c, width)?;
        let stripes = decode_runs(&mut c, runs, kind)?;
        let d = SegmentDescriptor { id, epoch, kind, data, parity, columns, stripes, state };
        Ok((d, c.rest()))
    }
}

fn decode_columns(c: &mut Reader<'_>, width: usize) -> Result<Vec<(DeviceIndex, ZoneIndex)>, Corrupt> {
    let mut columns = Vec::with_capacity(width);
    for _ in 0..width {
        columns.push((DeviceIndex(c.u16()?), ZoneIndex(c.u32()?)));
    }
    let mut devices: Vec<DeviceIndex> = columns.iter().map(|(d, _)| *d).collect();
    devices.sort_unstable();
    devices.dedup();
    if devices.len() != width || columns.iter().any(|(_, z)| *z < FIRST_SEGMENT_ZONE) {
        return Err(COLUMN);
    }
    Ok(columns)
}

fn decode_runs(c: &mut Reader<'_>, runs: u32, kind: SegmentKind) -> Result<Vec<StripeRun>, Corrupt> {
    let mut stripes = Vec::new();
    let mut total = 0u32;
    for _ in 0..runs {
        let rows = c.u16()?;
        let pad = c.u16()?;
        let count = c.u32()?;
        if pad != 0 {
            return Err(PADDING);
        }
        // A mirror stripe without rows is usual: its payload fits the header block.
        let empty = rows == 0 && kind == SegmentKind::Bulk;
        total = total.checked_add(count).ok_or(RUN)?;
        if rows > ROWS_MAX || count == 0 || empty {
            return Err(RUN);
        }
        stripes.push(StripeRun { rows, count });
    }
    Ok(stripes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SegmentDescriptor {
        SegmentDescriptor {
            id: SegmentId::new(7).unwrap(),
            epoch: 3,
            kind: SegmentKind::Bulk,
            data: 2,
            parity: 1,
            columns: vec![
                (DeviceIndex(0), ZoneIndex(2)),
                (DeviceIndex(4), ZoneIndex(9)),
                (DeviceIndex(1), ZoneIndex(258)),
            ],
            stripes: vec![StripeRun { rows: 255, count: 3 }, StripeRun { rows: 1, count: 1 }],
            state: SegmentState::Sealed,
        }
    }

    #[test]
    fn golden_bytes() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        let golden = [
            7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 2, 1, 0, 2, 0, 0, 0, 2, 0, 0, 0, // fixed part
            0, 0, 2, 0, 0, 0, 4, 0, 9, 0, 0, 0, 1, 0, 2, 1, 0, 0, // columns
            255, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, // runs
        ];
        assert_eq!(bytes, golden);
        bytes.push(42);
        assert_eq!(SegmentDescriptor::decode(&bytes), Ok((sample(), &[42][..])));
    }

    #[test]
    fn every_shorter_prefix_is_refused() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        for len in 0..bytes.len() {
            assert_eq!(SegmentDescriptor::decode(&bytes[..len]), Err(SHORT), "{len} bytes");
        }
    }

    #[test]
    fn each_field_is_held_to_its_range() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        let cases = [
            (0, 0, ID),
            (8, 0, ID),
            (12, 3, KIND),
            (13, 0, KIND),
            (14, 9, SHAPE),
            (15, 1, PADDING),
            (16, 0, SHAPE),
            (17, 1, SHAPE),
            (18, 1, PADDING),
            (26, 1, COLUMN),
            (30, 0, COLUMN),
            (43, 1, RUN),
            (44, 1, PADDING),
            (46, 0, RUN),
        ];
        for (at, value, error) in cases {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert_eq!(SegmentDescriptor::decode(&bad), Err(error), "byte {at} set to {value}");
        }
    }

    #[test]
    fn stripes_are_counted_pushed_and_truncated_as_a_list_would_be() {
        let mut d = sample();
        let mut list = vec![255, 255, 255, 1];
        d.push_stripe(1);
        d.push_stripe(9);
        list.extend([1, 9]);
        while let Some(_cut) = list.pop() {
            d.truncate_stripes(u32::try_from(list.len()).unwrap());
            let unrolled: Vec<u16> =
                d.stripes.iter().flat_map(|r| std::iter::repeat_n(r.rows, r.count as usize)).collect();
            assert_eq!(unrolled, list);
            assert_eq!(d.payload_bytes(), list.iter().map(|r| u64::from(*r) * 2 * 4096).sum::<u64>());
            assert_eq!(d.zone_blocks_used(), list.iter().map(|r| u64::from(*r) + 1).sum::<u64>());
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_bytes(bytes in proptest::collection::vec(0u8..4, 0..200)) {
            if let Ok((d, rest)) = SegmentDescriptor::decode(&bytes) {
                let mut encoded_again = Vec::new();
                d.encode(&mut encoded_again);
                encoded_again.extend_from_slice(rest);
                proptest::prop_assert_eq!(encoded_again, bytes);
            }
        }
    }
}
