//! Sizes of zones and stripes, the shape of segments, and the limits with their arithmetic.

use warpfire_format::segment::{ROWS_MAX, SegmentKind};
use warpfire_format::stripe::{payload_capacity, rows_for};
use warpfire_units::BLOCK_BYTES;

/// Zones on a device by default. The default zone is the largest power of two that makes at least this many.
const ZONES_WANTED: u64 = 256;

/// Fewest zones on a device: two for roots, four for the commit log, six for deletion, compaction and
/// cleaning on a full pool (`warpfire-log` reserves these ten segments), and four for the data of users.
pub const ZONES_MIN: u64 = 2 + 4 + 6 + 4;

/// Fewest payload bytes of a bulk segment: the log never splits an append of 64 KiB over two segments.
pub(crate) const SEGMENT_PAYLOAD_MIN_BYTES: u64 = 64 << 10;

/// Smallest and largest default zone. 1 MiB holds a full stripe of one column; 256 MiB is the largest common
/// zone of zoned drives.
const DEFAULT_ZONE_BYTES_MIN: u64 = 1 << 20;
const DEFAULT_ZONE_BYTES_MAX: u64 = 256 << 20;

/// Largest default zone of a device that would have more than 65,536 zones of 256 MiB: one of 16 TiB.
const LARGE_ZONE_BYTES_MAX: u64 = 1 << 30;

/// Wanted payload of a full bulk stripe: one write of 1 MiB on each of four columns.
const STRIPE_PAYLOAD_BYTES: usize = 4 << 20;

/// Fewest rows of a full bulk stripe: headers then take at most 1/32 of the space.
const FULL_ROWS_MIN: usize = 31;

/// Most zones of a device with the default zone size, while zones stay within their bound.
const ZONES_MAX: u64 = 65_536;

/// The default zone size, in bytes, for a set of devices; the smallest and the largest of them have so many
/// bytes.
pub(crate) fn default_zone_bytes(smallest_bytes: u64, largest_bytes: u64) -> u64 {
    let wanted = (smallest_bytes / ZONES_WANTED).max(1);
    let power = 1u64 << wanted.ilog2();
    let few = largest_bytes.div_ceil(ZONES_MAX).next_power_of_two();
    power.clamp(DEFAULT_ZONE_BYTES_MIN, DEFAULT_ZONE_BYTES_MAX).max(few.min(LARGE_ZONE_BYTES_MAX))
}

/// Bytes of the smallest device that can belong to a pool with zones of `zone_bytes`. `None` stands for the
/// smallest default zone: 16 zones of 1 MiB are 16 MiB.
#[must_use]
pub fn device_bytes_min(zone_bytes: Option<u64>) -> u64 {
    ZONES_MIN.saturating_mul(zone_bytes.unwrap_or(DEFAULT_ZONE_BYTES_MIN))
}

/// Rows of a full stripe in a zone with `blocks_left` blocks left; `None` if no stripe fits.
pub(crate) fn full_rows(kind: SegmentKind, data: u16, blocks_left: u32) -> Option<u16> {
    assert!(data > 0, "a segment has a data column");
    let fits = u16::try_from(blocks_left.checked_sub(1)?).unwrap_or(u16::MAX);
    let wanted = match kind {
        SegmentKind::Bulk => {
            let rows = STRIPE_PAYLOAD_BYTES / BLOCK_BYTES / usize::from(data);
            u16::try_from(rows.max(FULL_ROWS_MIN)).unwrap_or(ROWS_MAX).min(ROWS_MAX)
        }
        SegmentKind::Mirror => ROWS_MAX,
    };
    let rows = wanted.min(fits);
    // A mirror stripe without rows has its payload in the header block.
    (rows > 0 || kind == SegmentKind::Mirror).then_some(rows)
}

/// Shape and capacity of a new segment of one kind, on the devices that take writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Data columns; 1 in a mirror; 0 if no device takes writes.
    pub data: u16,
    /// Parity columns, or further copies.
    pub parity: u8,
    /// Payload bytes of a full stripe.
    pub stripe_payload_bytes: usize,
    /// Payload bytes of a segment made of full stripes.
    pub segment_payload_bytes: u64,
}

impl Geometry {
    /// The geometry of a segment with `data` and `parity` columns and `zone_blocks` blocks on each.
    pub(crate) fn new(kind: SegmentKind, data: u16, parity: u8, zone_blocks: u32) -> Self {
        let capacity = |rows: Option<u16>| rows.map_or(0, |rows| payload_capacity(kind, data, rows));
        let full = full_rows(kind, data.max(1), zone_blocks).filter(|_| data > 0);
        // A zone of 1 GiB has thousands of full stripes. A writer fills the rest with one that is shorter.
        let blocks = full.map_or(1, |rows| u32::from(rows) + 1);
        let shorter = full.and_then(|_| full_rows(kind, data, zone_blocks % blocks));
        let stripe_payload_bytes = capacity(full);
        let segment_payload_bytes =
            u64::from(zone_blocks / blocks) * stripe_payload_bytes as u64 + capacity(shorter) as u64;
        debug_assert!(stripe_payload_bytes as u64 <= segment_payload_bytes, "a stripe is part of a segment");
        Geometry { data, parity, stripe_payload_bytes, segment_payload_bytes }
    }

    /// Number of columns.
    #[must_use]
    pub fn width(&self) -> u64 {
        u64::from(self.data) + u64::from(self.parity)
    }
}

/// Shape of a new segment on `live` devices: data and parity columns. The pool's own shape if it fits;
/// otherwise fewer data columns, down to one, and only then fewer parity columns. So a pool that lost devices
/// keeps its protection and loses capacity.
pub(crate) fn shape(kind: SegmentKind, data: u16, parity: u8, live: usize) -> (u16, u8) {
    let live = u16::try_from(live).unwrap_or(u16::MAX);
    let wanted = match kind {
        SegmentKind::Bulk => data,
        SegmentKind::Mirror => 1,
    };
    let fitting_parity = u16::from(parity).min(live.saturating_sub(1));
    let fitting_data = wanted.min(live - fitting_parity);
    assert!(fitting_data + fitting_parity <= live, "each column has a device of its own");
    (fitting_data, u8::try_from(fitting_parity).expect("no more than the pool's parity"))
}

/// Rows of a stripe with this payload.
///
/// # Panics
/// If no stripe holds so many bytes.
pub(crate) fn rows_needed(kind: SegmentKind, data: u16, payload_bytes: usize) -> u16 {
    rows_for(kind, data, payload_bytes).expect("a stripe buffer holds no more than a stripe")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_powers_of_two_within_their_bounds() {
        let of_equal = |bytes| default_zone_bytes(bytes, bytes);
        assert_eq!(of_equal(16 << 20), 1 << 20);
        assert_eq!(of_equal(3 << 30), 8 << 20);
        assert_eq!(of_equal(1 << 44), 256 << 20);
        assert_eq!(of_equal(64_000_000_000_000), 1 << 30);
        assert_eq!(of_equal(1 << 50), 1 << 30);
        assert_eq!(default_zone_bytes(1 << 40, 1 << 45), 512 << 20, "the largest has 65,536 zones");
    }

    #[test]
    fn full_stripes_hold_four_mebibytes_where_they_can() {
        assert_eq!(full_rows(SegmentKind::Bulk, 1, 1 << 16), Some(255));
        assert_eq!(full_rows(SegmentKind::Bulk, 10, 1 << 16), Some(102));
        assert_eq!(full_rows(SegmentKind::Bulk, 242, 1 << 16), Some(31));
        assert_eq!(full_rows(SegmentKind::Bulk, 4, 10), Some(9));
        assert_eq!(full_rows(SegmentKind::Bulk, 4, 1), None);
        assert_eq!(full_rows(SegmentKind::Mirror, 1, 1), Some(0));
        assert_eq!(full_rows(SegmentKind::Mirror, 1, 0), None);
    }

    #[test]
    fn a_segment_holds_what_its_stripes_hold_one_by_one() {
        for kind in [SegmentKind::Bulk, SegmentKind::Mirror] {
            for data in [0, 1, 4, 10, 242].into_iter().filter(|data| kind == SegmentKind::Bulk || *data == 1)
            {
                for zone_blocks in (0..600).chain([1 << 12, 1 << 16, (1 << 18) - 1, 1 << 18]) {
                    let (mut left, mut sum, mut largest) = (zone_blocks, 0, 0);
                    while let Some(rows) = full_rows(kind, data.max(1), left).filter(|_| data > 0) {
                        let payload = payload_capacity(kind, data, rows);
                        (sum, largest) = (sum + payload as u64, largest.max(payload));
                        left -= u32::from(rows) + 1;
                    }
                    let geometry = Geometry::new(kind, data, 2, zone_blocks);
                    assert_eq!(
                        (geometry.segment_payload_bytes, geometry.stripe_payload_bytes),
                        (sum, largest),
                        "{kind:?} of {data} in {zone_blocks} blocks"
                    );
                }
            }
        }
    }

    #[test]
    fn data_columns_are_reduced_before_parity() {
        let bulk = |live| shape(SegmentKind::Bulk, 4, 2, live);
        assert_eq!([7, 6, 5, 3, 2, 1, 0].map(bulk), [(4, 2), (4, 2), (3, 2), (1, 2), (1, 1), (1, 0), (0, 0)]);
        assert_eq!(shape(SegmentKind::Mirror, 4, 2, 6), (1, 2));
        assert_eq!(shape(SegmentKind::Bulk, 1, 0, 3), (1, 0));
    }
}
