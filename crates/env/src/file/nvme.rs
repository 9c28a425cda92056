//! The health log of an NVMe drive, by the admin command of `linux/nvme_ioctl.h`.
//!
//! The log page is that of the NVMe base specification, "SMART / Health Information": little-endian,
//! 512 bytes.

#![expect(unsafe_code, reason = "the compiler cannot check that the argument of an ioctl fits its number")]

use std::fs::File;
use std::path::Path;

use rustix::ioctl::{self, Opcode, Updater, opcode};

const PAGE_BYTES: usize = 512;
const NVME_IOCTL_ADMIN_CMD: Opcode = opcode::read_write::<AdminCommand>(b'N', 0x41);

const GET_LOG_PAGE: u8 = 0x02;
const SMART_PAGE: u32 = 0x02;
const ALL_NAMESPACES: u32 = u32::MAX;
const TIMEOUT_MS: u32 = 2_000;

/// A data unit of the log page.
const UNIT_BYTES: u128 = 512_000;

/// `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    rsvd1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

/// What a drive says about its own health. A field that it does not report is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriveHealth {
    /// Whether it says that it is failing.
    pub is_failing: bool,
    /// The share of its life that is used, in hundredths; it may exceed 100.
    pub worn_percent: Option<u8>,
    /// Its temperature.
    pub celsius: Option<i16>,
    /// Bytes that hosts have written in its life.
    pub written_bytes: Option<u64>,
    /// Errors of the medium that it could not correct.
    pub media_errors: Option<u64>,
}

impl DriveHealth {
    /// The health that a log page of an NVMe drive reports; `None` if it is no such page.
    #[must_use]
    pub fn of_nvme_page(page: &[u8]) -> Option<DriveHealth> {
        let number = |at: usize| Some(u128::from_le_bytes(page.get(at..at + 16)?.try_into().ok()?));
        let narrow = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        if page.len() != PAGE_BYTES || page.iter().all(|byte| *byte == 0) {
            return None;
        }
        let kelvin = i32::from(u16::from_le_bytes([*page.get(1)?, *page.get(2)?]));
        Some(DriveHealth {
            is_failing: *page.first()? != 0,
            worn_percent: page.get(5).copied(),
            celsius: i16::try_from(kelvin - 273).ok().filter(|_| kelvin > 0),
            written_bytes: Some(narrow(number(48)?.saturating_mul(UNIT_BYTES))),
            media_errors: Some(narrow(number(160)?)),
        })
    }

    /// Asks an NVMe drive; `None` if the path is none, or does not answer this user.
    #[must_use]
    pub fn of_nvme(path: &Path) -> Option<DriveHealth> {
        let file = File::open(path).ok()?;
        let mut page = [0u8; PAGE_BYTES];
        let dwords = u32::try_from(PAGE_BYTES / 4 - 1).expect("a page is short");
        let mut command = AdminCommand {
            opcode: GET_LOG_PAGE,
            nsid: ALL_NAMESPACES,
            addr: page.as_mut_ptr() as u64,
            data_len: u32::try_from(PAGE_BYTES).expect("a page is short"),
            cdw10: dwords << 16 | SMART_PAGE,
            timeout_ms: TIMEOUT_MS,
            ..AdminCommand::default()
        };
        // SAFETY: NVME_IOCTL_ADMIN_CMD reads and stores one `nvme_passthru_cmd`, and the drive stores at most
        // `data_len` bytes at `addr`, which is the page.
        unsafe { ioctl::ioctl(&file, Updater::<NVME_IOCTL_ADMIN_CMD, AdminCommand>::new(&mut command)) }
            .ok()?;
        DriveHealth::of_nvme_page(&page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of a page as a drive of 2 TB gives it, at 41 degrees and 3 hundredths of its life.
    fn page() -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        page[..6].copy_from_slice(&[0, 0x3a, 0x01, 100, 10, 3]);
        page[32..40].copy_from_slice(&81_033_912u64.to_le_bytes());
        page[48..56].copy_from_slice(&90_046_411u64.to_le_bytes());
        page[112..114].copy_from_slice(&[0x21, 0x01]);
        page[128..130].copy_from_slice(&[0x8c, 0x1e]);
        page
    }

    #[test]
    fn a_page_tells_wear_temperature_and_bytes() {
        let health = DriveHealth::of_nvme_page(&page()).expect("a page");
        let written_bytes = Some(90_046_411 * 512_000);
        let wanted = DriveHealth {
            is_failing: false,
            worn_percent: Some(3),
            celsius: Some(41),
            written_bytes,
            media_errors: Some(0),
        };
        assert_eq!(health, wanted);
        let mut failing = page();
        failing[0] = 4;
        failing[48..64].fill(255);
        let health = DriveHealth::of_nvme_page(&failing).expect("a page");
        assert_eq!((health.is_failing, health.written_bytes), (true, Some(u64::MAX)));
    }

    #[test]
    fn other_bytes_are_no_page_and_other_files_no_drive() {
        assert_eq!(DriveHealth::of_nvme_page(&[0; PAGE_BYTES]), None);
        assert_eq!(DriveHealth::of_nvme_page(&page()[..511]), None);
        assert_eq!(DriveHealth::of_nvme_page(&[]), None);
        assert_eq!(DriveHealth::of_nvme(Path::new("/dev/null")), None);
        assert_eq!(DriveHealth::of_nvme(Path::new("/nowhere")), None);
        assert_eq!(size_of::<AdminCommand>(), 72, "the size that the number of the call names");
    }
}
