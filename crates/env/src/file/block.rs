//! The ioctls of block devices, from `linux/fs.h` and `linux/blkzoned.h`.

#![expect(unsafe_code, reason = "the compiler cannot check that the argument of an ioctl fits its number")]

use std::fs::File;
use std::mem::size_of;

use rustix::io::Errno;
use rustix::ioctl::{self, Getter, Opcode, Setter, Updater, opcode};

const GROUP: u8 = 0x12;
const SECTOR_BYTES: u64 = 512;

const BLKDISCARD: Opcode = opcode::none(GROUP, 119);
const BLKREPORTZONE: Opcode = opcode::read_write::<ReportHeader>(GROUP, 130);
const BLKRESETZONE: Opcode = opcode::write::<ZoneRange>(GROUP, 131);
const BLKGETZONESZ: Opcode = opcode::read::<u32>(GROUP, 132);
const BLKFINISHZONE: Opcode = opcode::write::<ZoneRange>(GROUP, 136);

/// `struct blk_zone_range`.
#[repr(C)]
struct ZoneRange {
    sector: u64,
    nr_sectors: u64,
}

/// `struct blk_zone_report` without the array that follows it.
#[repr(C)]
struct ReportHeader {
    sector: u64,
    nr_zones: u32,
    flags: u32,
}

/// `struct blk_zone`: one zone, in sectors of 512 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct BlkZone {
    start: u64,
    len: u64,
    wp: u64,
    kind: u8,
    cond: u8,
    non_seq: u8,
    reset: u8,
    resv: [u8; 4],
    capacity: u64,
    reserved: [u8; 24],
}

/// Zones in one report: 64 KiB of them.
const REPORTED_MAX: usize = 1024;

/// A report with room for many zones.
#[repr(C)]
struct ZonesReport {
    header: ReportHeader,
    zones: [BlkZone; REPORTED_MAX],
}

const _: () = assert!(
    size_of::<BlkZone>() == 64
        && size_of::<ReportHeader>() == 16
        && size_of::<ZonesReport>() == 16 + 64 * REPORTED_MAX
);

const REPORT_HAS_CAPACITY: u32 = 1;
const TYPE_CONVENTIONAL: u8 = 1;
const TYPE_SEQUENTIAL_REQUIRED: u8 = 2;
const COND_EMPTY: u8 = 1;
/// Open by a write, open by a command, closed: what these three hold counts against the drive's limit.
const CONDS_ACTIVE: std::ops::RangeInclusive<u8> = 2..=4;
const COND_READ_ONLY: u8 = 0xd;
const COND_FULL: u8 = 0xe;
const COND_OFFLINE: u8 = 0xf;

impl BlkZone {
    /// Whether the zone takes writes at its write pointer only.
    pub fn is_sequential(&self) -> bool {
        self.kind == TYPE_SEQUENTIAL_REQUIRED
    }

    /// Whether the zone takes writes anywhere.
    pub fn is_conventional(&self) -> bool {
        self.kind == TYPE_CONVENTIONAL
    }

    /// Whether the zone counts against the limit of active zones.
    pub fn is_active(&self) -> bool {
        !self.is_conventional() && CONDS_ACTIVE.contains(&self.cond)
    }

    /// The byte at which it starts.
    pub fn start_bytes(&self) -> u64 {
        self.start * SECTOR_BYTES
    }

    /// Bytes of the zone that can be written.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity * SECTOR_BYTES
    }

    /// Bytes before the write pointer; `None` if the zone takes no more writes.
    pub fn written_bytes(&self) -> Option<u64> {
        match self.cond {
            COND_READ_ONLY | COND_OFFLINE => None,
            // It has no write pointer.
            _ if self.is_conventional() => Some(self.len * SECTOR_BYTES),
            COND_EMPTY => Some(0),
            // The write pointer of a full zone is undefined.
            COND_FULL => Some(self.len * SECTOR_BYTES),
            _ => Some(self.wp.checked_sub(self.start)? * SECTOR_BYTES),
        }
    }
}

/// Bytes in a zone; zero if the device is not zoned.
pub(super) fn zone_bytes(file: &File) -> Result<u64, Errno> {
    // SAFETY: BLKGETZONESZ stores one u32, the size that the opcode names.
    match unsafe { ioctl::ioctl(file, Getter::<BLKGETZONESZ, u32>::new()) } {
        Ok(sectors) => Ok(u64::from(sectors) * SECTOR_BYTES),
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(0),
        Err(errno) => Err(errno),
    }
}

/// At most `max` zones from the one that starts at `offset_bytes` on, without a gap. At least one.
pub(super) fn report_zones(file: &File, offset_bytes: u64, max: usize) -> Result<Vec<BlkZone>, Errno> {
    let wanted = u32::try_from(max.min(REPORTED_MAX)).expect("no more than fit");
    let header = ReportHeader { sector: offset_bytes / SECTOR_BYTES, nr_zones: wanted, flags: 0 };
    let mut report = Box::new(ZonesReport { header, zones: [BlkZone::default(); REPORTED_MAX] });
    // SAFETY: BLKREPORTZONE reads the header and stores at most `nr_zones` zones after it. `ZonesReport` is a
    // header and `REPORTED_MAX` zones, and `nr_zones` is no more.
    unsafe { ioctl::ioctl(file, Updater::<BLKREPORTZONE, ZonesReport>::new(&mut report)) }?;
    let count = report.header.nr_zones.min(wanted) as usize;
    let mut zones = report.zones.get(..count).unwrap_or_default().to_vec();
    let mut next = offset_bytes / SECTOR_BYTES;
    for zone in &mut zones {
        if zone.start != next || zone.len == 0 {
            return Err(Errno::INVAL);
        }
        next += zone.len;
        // Kernels before the capacity field leave it zero: every sector is writable then.
        if report.header.flags & REPORT_HAS_CAPACITY == 0 {
            zone.capacity = zone.len;
        }
    }
    if zones.is_empty() { Err(Errno::INVAL) } else { Ok(zones) }
}

/// Calls `take` with every zone of a device of so many bytes, in order.
pub(super) fn for_each_zone<E: From<Errno>>(
    file: &File,
    size_bytes: u64,
    mut take: impl FnMut(BlkZone) -> Result<(), E>,
) -> Result<(), E> {
    let mut at = 0;
    while at < size_bytes {
        for zone in report_zones(file, at, REPORTED_MAX)? {
            at = zone.start_bytes() + zone.len * SECTOR_BYTES;
            take(zone)?;
        }
    }
    Ok(())
}

/// Makes the zones of a range full.
pub(super) fn finish_zones(file: &File, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
    let range = ZoneRange { sector: offset_bytes / SECTOR_BYTES, nr_sectors: len_bytes / SECTOR_BYTES };
    // SAFETY: BLKFINISHZONE reads one `blk_zone_range`.
    unsafe { ioctl::ioctl(file, Setter::<BLKFINISHZONE, ZoneRange>::new(range)) }
}

/// Empties the zones of a range.
pub(super) fn reset_zones(file: &File, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
    let range = ZoneRange { sector: offset_bytes / SECTOR_BYTES, nr_sectors: len_bytes / SECTOR_BYTES };
    // SAFETY: BLKRESETZONE reads one `blk_zone_range`.
    unsafe { ioctl::ioctl(file, Setter::<BLKRESETZONE, ZoneRange>::new(range)) }
}

/// Discards a range.
pub(super) fn discard(file: &File, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two u64, offset and length in bytes.
    unsafe { ioctl::ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([offset_bytes, len_bytes])) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_opcodes_are_those_of_the_kernel_headers() {
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            assert_eq!(BLKDISCARD, 0x1277);
            assert_eq!(BLKREPORTZONE, 0xc010_1282);
            assert_eq!(BLKRESETZONE, 0x4010_1283);
            assert_eq!(BLKGETZONESZ, 0x8004_1284);
            assert_eq!(BLKFINISHZONE, 0x4010_1288);
        }
    }

    #[test]
    fn the_condition_of_a_zone_decides_its_written_bytes() {
        let zone = |cond, wp| BlkZone { start: 1000, len: 80, wp, cond, ..BlkZone::default() };
        assert_eq!(zone(COND_EMPTY, 0).written_bytes(), Some(0));
        assert_eq!(zone(2, 1016).written_bytes(), Some(8192));
        assert_eq!(zone(COND_FULL, 0).written_bytes(), Some(40_960));
        assert_eq!(zone(COND_READ_ONLY, 1016).written_bytes(), None);
        assert_eq!(zone(COND_OFFLINE, 1016).written_bytes(), None);
        let conventional = BlkZone { kind: TYPE_CONVENTIONAL, ..zone(0, 0) };
        assert_eq!(conventional.written_bytes(), Some(40_960), "a write may begin anywhere");
    }

    #[test]
    fn open_and_closed_zones_count_against_the_limit() {
        let zone = |cond| BlkZone { kind: TYPE_SEQUENTIAL_REQUIRED, cond, ..BlkZone::default() };
        let active = [0, COND_EMPTY, 2, 3, 4, COND_READ_ONLY, COND_FULL, COND_OFFLINE];
        let active = active.into_iter().filter(|cond| zone(*cond).is_active());
        assert_eq!(active.collect::<Vec<_>>(), [2, 3, 4]);
    }
}
