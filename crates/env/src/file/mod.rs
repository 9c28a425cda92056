//! Regular files and block devices.
//!
//! 1. The descriptor holds a lock from open to drop: an exclusive one to write, a shared one to read. So one
//!    process at a time has the device for writing, and then none for reading (tests
//!    `a_second_opener_is_refused_until_the_first_is_gone`,
//!    `readers_share_a_device_and_never_with_a_writer`). A device that is open for reading has a descriptor
//!    without permission to write, so the kernel refuses every change.
//! 2. With `direct`, no byte passes through the page cache: a read or write with an unaligned buffer uses an
//!    aligned copy.
//! 3. An operation moves all its bytes or fails. A read past the end of the file fails.

mod block;
mod open;

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use warpfire_units::BLOCK_BYTES;

use crate::buf::AlignedBuf;
use crate::device::{Device, DeviceError, DeviceInfo, ZoneReport};

pub use open::OpenError;

/// Bytes in the aligned copy of an unaligned buffer; longer buffers are copied part by part.
const BOUNCE_BYTES: usize = 1024 * 1024;

/// The kind of file. It decides the system calls for discards and resets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BackingKind {
    /// A regular file: discards punch holes.
    Regular,
    /// A conventional block device.
    Block,
    /// A zoned block device. Writes to a zone must arrive one at a time and in order, so it has no `raw_fd`.
    Zoned,
}

/// A regular file or a block device as a [`Device`]. See [`FileDevice::open`],
/// [`FileDevice::open_for_reading`] and [`FileDevice::create`].
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    info: DeviceInfo,
    kind: BackingKind,
    direct: bool,
}

impl FileDevice {
    /// Whether reads and writes bypass the page cache. Not every filesystem allows it.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    fn error(&self, op: &'static str, offset_bytes: u64, len_bytes: u64, errno: Errno) -> DeviceError {
        DeviceError::from_errno(&self.info, op, offset_bytes, len_bytes, errno)
    }

    /// Whether the kernel accepts this buffer without a copy.
    fn takes(&self, buf: &[u8]) -> bool {
        !self.direct || buf.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
    }

    fn read_all(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let (at, len) = (offset_bytes + done as u64, rest.len() as u64);
            match rustix::io::pread(&self.file, rest, at) {
                // The range is inside the device, so somebody truncated the file. Zeros would be wrong bytes.
                Ok(0) => {
                    let reason = "the file ends here".to_owned();
                    let device = self.info.name.clone();
                    return Err(DeviceError::Io {
                        device,
                        op: "read",
                        offset_bytes: at,
                        len_bytes: len,
                        reason,
                    });
                }
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.error("read", at, len, errno)),
            }
        }
        Ok(())
    }

    fn write_all(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        let mut done = 0;
        while let Some(rest) = buf.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset_bytes + done as u64;
            match rustix::io::pwrite(&self.file, rest, at) {
                // POSIX allows 0 for an empty buffer only. The loop must not depend on it to end.
                Ok(0) => return Err(self.error("write", at, rest.len() as u64, Errno::IO)),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.error("write", at, rest.len() as u64, errno)),
            }
        }
        Ok(())
    }
}

impl Device for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, buf.len() as u64)?;
        if self.takes(buf) {
            return self.read_all(offset_bytes, buf);
        }
        let mut bounce = AlignedBuf::zeroed(buf.len().min(BOUNCE_BYTES));
        let mut at = offset_bytes;
        for out in buf.chunks_mut(BOUNCE_BYTES) {
            let bounce = &mut bounce[..out.len()];
            self.read_all(at, bounce)?;
            out.copy_from_slice(bounce);
            at += out.len() as u64;
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, buf.len() as u64)?;
        if self.takes(buf) {
            return self.write_all(offset_bytes, buf);
        }
        let mut bounce = AlignedBuf::zeroed(buf.len().min(BOUNCE_BYTES));
        let mut at = offset_bytes;
        for from in buf.chunks(BOUNCE_BYTES) {
            let bounce = &mut bounce[..from.len()];
            bounce.copy_from_slice(from);
            self.write_all(at, bounce)?;
            at += from.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // Never repeated, not even on EINTR: the kernel reports a lost write once, and a second call would
        // succeed.
        rustix::fs::fdatasync(&self.file).map_err(|errno| self.error("flush", 0, 0, errno))
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let outcome = match self.kind {
            BackingKind::Regular => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, offset_bytes, len_bytes)
            }
            BackingKind::Block => block::discard(&self.file, offset_bytes, len_bytes),
            BackingKind::Zoned => Ok(()),
        };
        // A discard is advice. A device without it loses nothing.
        match outcome {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => Ok(()),
            Err(errno) => Err(self.error("discard", offset_bytes, len_bytes, errno)),
        }
    }

    fn reset_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, len_bytes)?;
        match self.kind {
            // A file keeps its space. A write over it is up to three times as fast as a write for which the
            // filesystem must allocate space again, and the next flush need not write the filesystem's
            // journal.
            BackingKind::Regular => Ok(()),
            BackingKind::Block => self.discard(offset_bytes, len_bytes),
            BackingKind::Zoned => block::reset_zones(&self.file, offset_bytes, len_bytes)
                .map_err(|errno| self.error("reset", offset_bytes, len_bytes, errno)),
        }
    }

    fn zone_report(&self, offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        let Some(zones) = self.info.zones else { return Ok(None) };
        self.info.check_range(offset_bytes, zones.zone_bytes)?;
        let zone = block::report_zone(&self.file, offset_bytes)
            .map_err(|errno| self.error("report", offset_bytes, zones.zone_bytes, errno))?;
        match zone.written_bytes() {
            Some(written_bytes) => Ok(Some(ZoneReport { written_bytes })),
            None => {
                let reason = "the zone is read-only or offline".to_owned();
                Err(DeviceError::Zone { device: self.info.name.clone(), offset_bytes, reason })
            }
        }
    }

    fn raw_fd(&self) -> Option<RawFd> {
        (self.direct && self.kind != BackingKind::Zoned).then(|| self.file.as_raw_fd())
    }
}
