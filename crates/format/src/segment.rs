//! The descriptor of a segment: the zones of its columns and the lengths of its stripes.
//!
//! ```text
//! offset  bytes
//!      0      8  segment id, not zero
//!      8      4  epoch of the session that allocated it, not zero
//!     12      1  kind: 1 bulk, 2 mirror
//!     13      1  state: 1 open, 2 sealed
//!     14      1  m, parity columns (mirror: further copies)
//!     15      1  stream; bulk: 1 small, 2 large, 3 table, 4 cold; mirror: 1 commit log, 2 state log
//!     16      2  k, data columns (mirror: 1)
//!     18      2  number of lost columns, l
//!     20      4  number of stripe runs, r
//!     24  6(k+m) columns: device index u16, zone index u32 (2 or more)
//!      …      6l lost columns, ascending: column u16, first stripe u32
//!      …      …  r stripe runs: rows varint (0 to 255), count varint (not zero)
//! ```
//! Little-endian. A descriptor has no checksum of its own; the structure that holds it has one.

use warpfire_units::{COLUMNS_MAX, DeviceIndex, PARITY_MAX, SegmentId, ZoneIndex};

pub use crate::segment_columns::SegmentColumns;

use crate::{Corrupt, FieldErrors, Reader, varint};

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
const LOST: Corrupt = Corrupt::new(206, "impossible lost column");

static FIELDS: FieldErrors = FieldErrors { short: SHORT, varint: RUN, trailing: SHORT };

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

/// The kind of bytes in a segment. A segment takes appends of one stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SegmentStream {
    /// Small file data (bulk).
    Small,
    /// Large file data (bulk).
    Large,
    /// Metadata tables (bulk).
    Table,
    /// Bytes that cleaning moved (bulk).
    Cold,
    /// The commit log (mirror).
    CommitLog,
    /// The state log (mirror).
    StateLog,
}

impl SegmentStream {
    /// The kind of the stream's segments.
    #[must_use]
    pub const fn kind(self) -> SegmentKind {
        match self {
            SegmentStream::CommitLog | SegmentStream::StateLog => SegmentKind::Mirror,
            _ => SegmentKind::Bulk,
        }
    }

    /// The number on flash. Streams of the two kinds are numbered apart.
    #[must_use]
    pub const fn to_raw(self) -> u8 {
        match self {
            SegmentStream::Small | SegmentStream::CommitLog => 1,
            SegmentStream::Large | SegmentStream::StateLog => 2,
            SegmentStream::Table => 3,
            SegmentStream::Cold => 4,
        }
    }

    /// `None` for a number that no stream of this kind has.
    #[must_use]
    pub const fn from_raw(kind: SegmentKind, raw: u8) -> Option<Self> {
        match (kind, raw) {
            (SegmentKind::Bulk, 1) => Some(SegmentStream::Small),
            (SegmentKind::Bulk, 2) => Some(SegmentStream::Large),
            (SegmentKind::Bulk, 3) => Some(SegmentStream::Table),
            (SegmentKind::Bulk, 4) => Some(SegmentStream::Cold),
            (SegmentKind::Mirror, 1) => Some(SegmentStream::CommitLog),
            (SegmentKind::Mirror, 2) => Some(SegmentStream::StateLog),
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

/// A column that missed a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LostColumn {
    /// Its number in the segment.
    pub column: u16,
    /// Stripes from this one on may be missing on the column.
    pub first_stripe: u32,
}

impl LostColumn {
    /// Adds the column to a list in ascending order. Returns whether the list did not say as much yet.
    pub fn note_in(self, list: &mut Vec<LostColumn>) -> bool {
        match list.binary_search_by_key(&self.column, |known| known.column) {
            Ok(at) if list[at].first_stripe <= self.first_stripe => return false,
            Ok(at) => list[at] = self,
            Err(at) => list.insert(at, self),
        }
        true
    }
}

/// The decoded descriptor: enough to find every byte of the segment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SegmentDescriptor {
    /// The segment's number.
    pub id: SegmentId,
    /// The epoch of the session that allocated the segment. Each stripe header repeats it.
    pub epoch: u32,
    /// The stream whose bytes it holds. It says whether the segment is bulk or mirror.
    pub stream: SegmentStream,
    /// Data columns; 1 in a mirror.
    pub data: u16,
    /// Parity columns, or further copies in a mirror.
    pub parity: u8,
    /// One zone on each of `data + parity` different devices, data columns first.
    pub columns: SegmentColumns,
    /// Columns that missed a write, by ascending number.
    pub lost: Vec<LostColumn>,
    /// Lengths of the stripes from the front of the zones, run-length coded.
    pub stripes: Vec<StripeRun>,
    /// Open or sealed.
    pub state: SegmentState,
}

impl SegmentDescriptor {
    /// Most bytes of the encoding of a descriptor with so many columns, lost columns and stripe runs. A run
    /// takes two bytes for its rows and five for its count at most.
    #[must_use]
    pub const fn encoded_bytes_max(columns: usize, lost: usize, runs: usize) -> usize {
        24 + 6 * columns + 6 * lost + 7 * runs
    }

    /// Bulk or mirror.
    #[must_use]
    pub const fn kind(&self) -> SegmentKind {
        self.stream.kind()
    }

    /// Records that stripes of a column may be missing from `lost.first_stripe` on. Returns whether the
    /// descriptor did not say so yet.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn note_lost(&mut self, lost: LostColumn) -> bool {
        assert!(usize::from(lost.column) < self.columns.len(), "a lost column is one of the segment's");
        lost.note_in(&mut self.lost)
    }

    /// Gives a column another zone, which holds all its stripes. Returns the place that it had.
    ///
    /// # Panics
    /// If there is no such column, or another column lies on the device.
    pub fn move_column(&mut self, column: u16, to: (DeviceIndex, ZoneIndex)) -> (DeviceIndex, ZoneIndex) {
        assert!(self.takes_column(column, to.0), "each column has a device of its own");
        self.lost.retain(|lost| lost.column != column);
        std::mem::replace(&mut self.columns[usize::from(column)], to)
    }

    /// Whether there is such a column, and no other one lies on the device.
    #[must_use]
    pub fn takes_column(&self, column: u16, device: DeviceIndex) -> bool {
        let others = (0u16..).zip(&self.columns).filter(|(n, _)| *n != column);
        usize::from(column) < self.columns.len() && others.into_iter().all(|(_, (d, _))| *d != device)
    }

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
        out.extend_from_slice(&[self.kind().to_raw(), state, self.parity, self.stream.to_raw()]);
        out.extend_from_slice(&self.data.to_le_bytes());
        // The counts of the variable part, k+m, l and r, stand before it.
        let lost = u16::try_from(self.lost.len()).expect("no more columns are lost than there are");
        out.extend_from_slice(&lost.to_le_bytes());
        let runs = u32::try_from(self.stripes.len()).expect("a zone has fewer than 2^32 stripes");
        out.extend_from_slice(&runs.to_le_bytes());
        for (device, zone) in &self.columns {
            out.extend_from_slice(&device.0.to_le_bytes());
            out.extend_from_slice(&zone.0.to_le_bytes());
        }
        debug_assert!(self.lost.is_sorted_by(|a, b| a.column < b.column), "a column is lost once");
        for lost in &self.lost {
            out.extend_from_slice(&lost.column.to_le_bytes());
            out.extend_from_slice(&lost.first_stripe.to_le_bytes());
        }
        for run in &self.stripes {
            varint::put(out, run.rows.into());
            varint::put(out, run.count.into());
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
        let stream = SegmentStream::from_raw(kind, c.u8()?).ok_or(KIND)?;
        let data = c.u16()?;
        let lost = c.u16()?;
        // The shape is verified before the columns are read: k+m says how much memory they take.
        let width = usize::from(data) + usize::from(parity);
        let one_copy = kind == SegmentKind::Bulk || data == 1;
        if data == 0 || usize::from(parity) > PARITY_MAX || width > COLUMNS_MAX || !one_copy {
            return Err(SHAPE);
        }
        let runs = c.u32()?;
        let columns = decode_columns(&mut c, width)?;
        let lost = decode_lost(&mut c, lost, width)?;
        let stripes = decode_runs(&mut c, runs, kind)?;
        let d = SegmentDescriptor { id, epoch, stream, data, parity, columns, lost, stripes, state };
        Ok((d, c.rest()))
    }
}

fn decode_columns(c: &mut Reader<'_>, width: usize) -> Result<SegmentColumns, Corrupt> {
    let mut columns = Vec::with_capacity(width);
    for _ in 0..width {
        columns.push((DeviceIndex(c.u16()?), ZoneIndex(c.u32()?)));
    }
    if !are_distinct(&columns) || columns.iter().any(|(_, z)| *z < FIRST_SEGMENT_ZONE) {
        return Err(COLUMN);
    }
    Ok(columns.into())
}

/// Whether each column has a device of its own.
fn are_distinct(columns: &[(DeviceIndex, ZoneIndex)]) -> bool {
    // Most device indices are small; a bit each finds a double without sorting.
    let mut seen = [0u64; COLUMNS_MAX.div_ceil(64)];
    let mut others: Vec<DeviceIndex> = Vec::new();
    for (device, _) in columns {
        let (word, bit) = (usize::from(device.0) / 64, 1u64 << (device.0 % 64));
        match seen.get_mut(word) {
            Some(seen) if *seen & bit != 0 => return false,
            Some(seen) => *seen |= bit,
            None => others.push(*device),
        }
    }
    others.sort_unstable();
    others.is_sorted_by(|a, b| a < b)
}

fn decode_lost(c: &mut Reader<'_>, count: u16, width: usize) -> Result<Vec<LostColumn>, Corrupt> {
    if usize::from(count) > width {
        return Err(LOST);
    }
    let mut lost: Vec<LostColumn> = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let next = LostColumn { column: c.u16()?, first_stripe: c.u32()? };
        let ascends = lost.last().is_none_or(|last| last.column < next.column);
        if !ascends || usize::from(next.column) >= width {
            return Err(LOST);
        }
        lost.push(next);
    }
    Ok(lost)
}

fn decode_runs(c: &mut Reader<'_>, runs: u32, kind: SegmentKind) -> Result<Vec<StripeRun>, Corrupt> {
    let mut stripes = Vec::new();
    let mut total = 0u32;
    for _ in 0..runs {
        let rows = u16::try_from(c.varint32()?).map_err(|_| RUN)?;
        let count = c.varint32()?;
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
            stream: SegmentStream::Table,
            data: 2,
            parity: 1,
            columns: vec![
                (DeviceIndex(0), ZoneIndex(2)),
                (DeviceIndex(4), ZoneIndex(9)),
                (DeviceIndex(1), ZoneIndex(258)),
            ]
            .into(),
            lost: vec![LostColumn { column: 0, first_stripe: 2 }, LostColumn { column: 2, first_stripe: 0 }],
            stripes: vec![StripeRun { rows: 255, count: 3 }, StripeRun { rows: 1, count: 1 }],
            state: SegmentState::Sealed,
        }
    }

    #[test]
    fn golden_bytes() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        let golden = [
            7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 2, 1, 3, 2, 0, 2, 0, 2, 0, 0, 0, // fixed part
            0, 0, 2, 0, 0, 0, 4, 0, 9, 0, 0, 0, 1, 0, 2, 1, 0, 0, // columns
            0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, // lost columns
            255, 1, 3, 1, 1, // runs
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
            (15, 0, KIND),
            (15, 5, KIND),
            (16, 0, SHAPE),
            (17, 1, SHAPE),
            (18, 4, LOST),
            (26, 1, COLUMN),
            (30, 0, COLUMN),
            (42, 3, LOST),
            (48, 0, LOST),
            (55, 2, RUN),
            (56, 0, RUN),
            (57, 0, RUN),
        ];
        for (at, value, error) in cases {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert_eq!(SegmentDescriptor::decode(&bad), Err(error), "byte {at} set to {value}");
        }
    }

    #[test]
    fn a_column_is_lost_from_its_first_missing_stripe_until_it_moves() {
        let mut d = sample();
        assert!(!d.note_lost(LostColumn { column: 0, first_stripe: 3 }), "it is lost from stripe 2 on");
        assert!(d.note_lost(LostColumn { column: 0, first_stripe: 1 }));
        assert!(d.note_lost(LostColumn { column: 1, first_stripe: 7 }));
        let lost = |d: &SegmentDescriptor| -> Vec<_> {
            d.lost.iter().map(|lost| (lost.column, lost.first_stripe)).collect()
        };
        assert_eq!(lost(&d), [(0, 1), (1, 7), (2, 0)]);
        assert!(d.takes_column(1, DeviceIndex(4)) && d.takes_column(1, DeviceIndex(9)));
        assert!(!d.takes_column(1, DeviceIndex(0)) && !d.takes_column(3, DeviceIndex(9)));
        assert_eq!(d.move_column(0, (DeviceIndex(7), ZoneIndex(5))), (DeviceIndex(0), ZoneIndex(2)));
        assert_eq!((d.columns[0], lost(&d)), ((DeviceIndex(7), ZoneIndex(5)), vec![(1, 7), (2, 0)]));
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
