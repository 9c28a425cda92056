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

/// A report with room for one zone.
#[repr(C)]
struct OneZoneReport {
    header: ReportHeader,
    zone: BlkZone,
}

const _: () = assert!(
    size_of::<BlkZone>() == 64 && size_of::<ReportHeader>() == 16 && size_of::<OneZoneReport>() == 80
);

const REPORT_HAS_CAPACITY: u32 = 1;
const TYPE_SEQUENTIAL_REQUIRED: u8 = 2;
const COND_EMPTY: u8 = 1;
const COND_READ_ONLY: u8 = 0xd;
const COND_FULL: u8 = 0xe;
const COND_OFFLINE: u8 = 0xf;

impl BlkZone {
    /// Whether the zone takes writes at its write pointer only.
    pub fn is_sequential(&self) -> bool {
        self.kind == TYPE_SEQUENTIAL_REQUIRED
    }

    /// Whether every sector of the zone can be written.
    pub fn is_wholly_writable(&self) -> bool {
        self.capacity == self.len
    }

    /// Bytes before the write pointer; `None` if the zone takes no more writes.
    pub fn written_bytes(&self) -> Option<u64> {
        match self.cond {
            COND_READ_ONLY | COND_OFFLINE => None,
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

/// The zone that starts at `offset_bytes`.
pub(super) fn report_zone(file: &File, offset_bytes: u64) -> Result<BlkZone, Errno> {
    let header = ReportHeader { sector: offset_bytes / SECTOR_BYTES, nr_zones: 1, flags: 0 };
    let mut report = OneZoneReport { header, zone: BlkZone::default() };
    // SAFETY: BLKREPORTZONE reads the header and stores at most `nr_zones` zones after it. `OneZoneReport` is
    // a header and one zone, and `nr_zones` is one.
    unsafe { ioctl::ioctl(file, Updater::<BLKREPORTZONE, OneZoneReport>::new(&mut report)) }?;
    if report.header.nr_zones != 1 || report.zone.start != offset_bytes / SECTOR_BYTES {
        return Err(Errno::INVAL);
    }
    // Kernels before the capacity field leave it zero: every sector is writable then.
    if report.header.flags & REPORT_HAS_CAPACITY == 0 {
        report.zone.capacity = report.zone.len;
    }
    Ok(report.zone)
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
    }
}
