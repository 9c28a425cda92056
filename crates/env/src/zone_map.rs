//! Where the writable bytes of a zoned drive lie.
//!
//! A zone of a drive may have less *capacity* than size: its last bytes exist as addresses only. A device
//! shows its callers zones of the capacity, one right behind the other, so that nobody else has to know.
//!
//! ```text
//!   callers   |--- zone 0 ---|--- zone 1 ---|--- zone 2 ---|
//!   drive     |--- zone 0 ---|.....|--- zone 1 ---|.....|--- zone 2 ---|.....|
//! ```

use std::ops::Range;

/// The place of each byte that callers see, on the drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneMap {
    capacity_bytes: u64,
    stride_bytes: u64,
}

impl ZoneMap {
    /// Every byte lies where callers see it.
    pub const PLAIN: ZoneMap = ZoneMap { capacity_bytes: u64::MAX, stride_bytes: u64::MAX };

    /// Zones that begin every `stride_bytes`, of which the first `capacity_bytes` can be written.
    ///
    /// # Panics
    /// If the capacity is zero or more than the stride.
    #[must_use]
    pub const fn new(capacity_bytes: u64, stride_bytes: u64) -> ZoneMap {
        assert!(
            capacity_bytes > 0 && capacity_bytes <= stride_bytes,
            "a zone has room, and no more than its size"
        );
        ZoneMap { capacity_bytes, stride_bytes }
    }

    /// Bytes from the start of a zone to the start of the next, on the drive.
    #[must_use]
    pub const fn stride_bytes(&self) -> u64 {
        self.stride_bytes
    }

    /// The place of a byte.
    #[must_use]
    pub const fn place(&self, at: u64) -> u64 {
        at / self.capacity_bytes * self.stride_bytes + at % self.capacity_bytes
    }

    /// The byte at which callers see the zone that starts at this place.
    #[must_use]
    pub const fn seen_at(&self, zone_start: u64) -> u64 {
        zone_start / self.stride_bytes * self.capacity_bytes
    }

    /// Bytes that callers see of a drive of so many bytes.
    #[must_use]
    pub const fn seen_bytes(&self, drive_bytes: u64) -> u64 {
        if self.capacity_bytes == self.stride_bytes { drive_bytes } else { self.seen_at(drive_bytes) }
    }

    /// The parts of a range that lie in one piece on the drive: the place of each, and its bytes within the
    /// range.
    pub fn pieces(self, at: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let start = done;
            if start == len {
                return None;
            }
            let from = at + start as u64;
            let in_zone = self.capacity_bytes - from % self.capacity_bytes;
            let piece = usize::try_from(in_zone).unwrap_or(usize::MAX).min(len - start);
            done += piece;
            Some((self.place(from), start..done))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_follow_each_other_for_callers_and_lie_apart_on_the_drive() {
        let map = ZoneMap::new(100, 128);
        assert_eq!([0, 99, 100, 250].map(|at| map.place(at)), [0, 99, 128, 306]);
        assert_eq!([0, 128, 256].map(|start| map.seen_at(start)), [0, 100, 200]);
        assert_eq!(map.seen_bytes(128 * 7), 700);
        assert_eq!(map.pieces(90, 120).collect::<Vec<_>>(), [(90, 0..10), (128, 10..110), (256, 110..120)]);
        assert_eq!(map.pieces(100, 100).collect::<Vec<_>>(), [(128, 0..100)]);
        assert_eq!(map.pieces(5, 0).count(), 0);
    }

    #[test]
    fn a_plain_map_moves_nothing() {
        for at in [0, 4096, u64::MAX - 1] {
            assert_eq!(ZoneMap::PLAIN.place(at), at);
        }
        assert_eq!(ZoneMap::PLAIN.seen_bytes(12345), 12345);
        assert_eq!(ZoneMap::PLAIN.pieces(4096, 1 << 20).collect::<Vec<_>>(), [(4096, 0..1 << 20)]);
        let whole = ZoneMap::new(4096, 4096);
        assert_eq!((whole.place(5000), whole.seen_bytes(8192)), (5000, 8192));
    }
}
