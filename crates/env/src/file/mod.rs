//! Regular files and block devices.
//!
//! 1. The descriptor holds a lock from open to drop: an exclusive one to write, a shared one to read. So one
//!    process at a time has the device for writing, and then none for reading (tests
//!    `a_second_opener_is_refused_until_the_first_is_gone`,
//!    `readers_share_a_device_and_never_with_a_writer`). A device that is open for reading has a descriptor
//!    without permission to write, so the kernel refuses every change. One that is open to look at
//!    (`open_to_look`) has no lock: its bytes may change while they are read.
//! 2. With `direct`, no byte passes through the page cache: a read or write with an unaligned buffer uses an
//!    aligned copy.
//! 3. A discard or reset that was too late holds the descriptor until it ends, and so the lock: nobody else
//!    opens the device before (`bounded`).
//! 4. An operation moves all its bytes or fails. A read past the end of the file fails.

// Waits for a call of the kernel for a limited time.
mod bounded;
// The calls of block devices.
mod block;
// Asks an NVMe drive for its health.
mod nvme;
mod open;

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use warpfire_units::BLOCK_BYTES;

use crate::buf::AlignedBuf;
use crate::device::{Device, DeviceError, DeviceInfo, ZoneReport};
use crate::zone_map::ZoneMap;

use bounded::LateCalls;

pub use nvme::DriveHealth;
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

/// A way to drop the bytes of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RangeDrop {
    Discard,
    Reset,
    Nothing,
}

impl RangeDrop {
    fn name(self) -> &'static str {
        match self {
            RangeDrop::Reset => "reset",
            RangeDrop::Discard | RangeDrop::Nothing => "discard",
        }
    }

    fn call(self, file: &File, kind: BackingKind, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
        let outcome = match (self, kind) {
            (RangeDrop::Reset, _) => return block::reset_zones(file, offset_bytes, len_bytes),
            (RangeDrop::Discard, BackingKind::Regular) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, offset_bytes, len_bytes)
            }
            (RangeDrop::Discard, BackingKind::Block) => block::discard(file, offset_bytes, len_bytes),
            (RangeDrop::Discard, BackingKind::Zoned) | (RangeDrop::Nothing, _) => Ok(()),
        };
        // A discard is advice. A device without it loses nothing.
        match outcome {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => Ok(()),
            outcome => outcome,
        }
    }
}

/// A regular file or a block device as a [`Device`]. See [`FileDevice::open`],
/// [`FileDevice::open_for_reading`] and [`FileDevice::create`].
#[derive(Debug)]
pub struct FileDevice {
    file: Arc<File>,
    info: DeviceInfo,
    kind: BackingKind,
    direct: bool,
    /// Where the bytes lie that callers see.
    zone_map: ZoneMap,
    /// Discards and resets that were too late and have not ended.
    late: LateCalls,
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

    /// How this device resets a zone. A file keeps its space: a write over it is up to three times as fast as
    /// a write for which the filesystem must allocate space again, and the next flush need not write the
    /// filesystem's journal.
    fn reset(&self, offset_bytes: u64) -> RangeDrop {
        match self.kind {
            // A zone that takes writes anywhere has no write pointer to reset.
            BackingKind::Zoned if self.info.zones.is_some_and(|z| z.is_conventional(offset_bytes)) => {
                RangeDrop::Nothing
            }
            BackingKind::Regular => RangeDrop::Nothing,
            BackingKind::Block => RangeDrop::Discard,
            BackingKind::Zoned => RangeDrop::Reset,
        }
    }

    /// Drops a range, and waits for that at most `limit`.
    fn drop_range(
        &self,
        how: RangeDrop,
        offset_bytes: u64,
        len_bytes: u64,
        limit: Option<Duration>,
    ) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, len_bytes)?;
        if len_bytes == 0 || how == RangeDrop::Nothing {
            return Ok(());
        }
        let (op, kind, file) = (how.name(), self.kind, Arc::clone(&self.file));
        let (place, whole_bytes) = match how {
            RangeDrop::Reset => (self.zone_map.place(offset_bytes), self.zone_map.stride_bytes()),
            RangeDrop::Discard | RangeDrop::Nothing => (offset_bytes, len_bytes),
        };
        let call = move || how.call(&file, kind, place, whole_bytes);
        let outcome = match limit {
            None => call(),
            Some(limit) => self.late.bounded(limit, call).ok_or_else(|| {
                let device = self.info.name.clone();
                DeviceError::Late { device, op, limit }
            })?,
        };
        outcome.map_err(|errno| self.error(op, offset_bytes, len_bytes, errno))
    }

    /// Whether the kernel accepts this buffer without a copy.
    fn takes(&self, buf: &[u8]) -> bool {
        !self.direct || buf.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
    }

    /// Reads bytes that lie in one piece.
    fn read_piece(&self, place: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if self.takes(buf) {
            return self.read_all(place, buf);
        }
        let mut bounce = AlignedBuf::zeroed(buf.len().min(BOUNCE_BYTES));
        let mut at = place;
        for out in buf.chunks_mut(BOUNCE_BYTES) {
            let bounce = &mut bounce[..out.len()];
            self.read_all(at, bounce)?;
            out.copy_from_slice(bounce);
            at += out.len() as u64;
        }
        Ok(())
    }

    /// Writes bytes that lie in one piece.
    fn write_piece(&self, place: u64, buf: &[u8]) -> Result<(), DeviceError> {
        if self.takes(buf) {
            return self.write_all(place, buf);
        }
        let mut bounce = AlignedBuf::zeroed(buf.len().min(BOUNCE_BYTES));
        let mut at = place;
        for from in buf.chunks(BOUNCE_BYTES) {
            let bounce = &mut bounce[..from.len()];
            bounce.copy_from_slice(from);
            self.write_all(at, bounce)?;
            at += from.len() as u64;
        }
        Ok(())
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
        let mut pieces = self.zone_map.pieces(offset_bytes, buf.len());
        pieces.try_for_each(|(place, range)| self.read_piece(place, &mut buf[range]))
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, buf.len() as u64)?;
        let mut pieces = self.zone_map.pieces(offset_bytes, buf.len());
        pieces.try_for_each(|(place, range)| self.write_piece(place, &buf[range]))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // Never repeated, not even on EINTR: the kernel reports a lost write once, and a second call would
        // succeed.
        rustix::fs::fdatasync(&self.file).map_err(|errno| self.error("flush", 0, 0, errno))
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.drop_range(RangeDrop::Discard, offset_bytes, len_bytes, None)
    }

    fn reset_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.drop_range(self.reset(offset_bytes), offset_bytes, len_bytes, None)
    }

    fn discard_within(&self, offset_bytes: u64, len_bytes: u64, limit: Duration) -> Result<(), DeviceError> {
        self.drop_range(RangeDrop::Discard, offset_bytes, len_bytes, Some(limit))
    }

    fn reset_zone_within(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        limit: Duration,
    ) -> Result<(), DeviceError> {
        self.drop_range(self.reset(offset_bytes), offset_bytes, len_bytes, Some(limit))
    }

    fn unanswered(&self) -> usize {
        self.late.count()
    }

    fn zone_report(&self, offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        let Some(zones) = self.info.zones else { return Ok(None) };
        self.info.check_range(offset_bytes, zones.zone_bytes)?;
        let failed = |errno| self.error("report", offset_bytes, zones.zone_bytes, errno);
        let place = self.zone_map.place(offset_bytes);
        let reported = block::report_zones(&self.file, place, 1).map_err(failed)?;
        let zone = reported.first().ok_or(Errno::INVAL).map_err(failed)?;
        match zone.written_bytes() {
            Some(written_bytes) => {
                let written_bytes = written_bytes.min(zones.zone_bytes);
                Ok(Some(ZoneReport { written_bytes, is_active: zone.is_active() }))
            }
            None => {
                let reason = "the zone is read-only or offline".to_owned();
                Err(DeviceError::Zone { device: self.info.name.clone(), offset_bytes, reason })
            }
        }
    }

    fn active_zones(&self) -> Result<Vec<u64>, DeviceError> {
        let mut active = Vec::new();
        if self.kind == BackingKind::Zoned {
            block::for_each_zone(&self.file, self.zone_map.place(self.info.size_bytes), |zone| {
                active.extend(zone.is_active().then(|| self.zone_map.seen_at(zone.start_bytes())));
                Ok::<(), Errno>(())
            })
            .map_err(|errno| self.error("report", 0, self.info.size_bytes, errno))?;
        }
        Ok(active)
    }

    fn finish_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, len_bytes)?;
        let Some(zones) = self.info.zones.filter(|zones| !zones.is_conventional(offset_bytes)) else {
            return Ok(());
        };
        debug_assert_eq!(zones.zone_bytes, len_bytes, "a whole zone is finished");
        let (place, whole_bytes) = (self.zone_map.place(offset_bytes), self.zone_map.stride_bytes());
        let finished = block::finish_zones(&self.file, place, whole_bytes);
        finished.map_err(|errno| self.error("finish", offset_bytes, len_bytes, errno))
    }

    fn resized(&self, size_bytes: Option<u64>) -> Result<Arc<dyn Device>, DeviceError> {
        let failed = |e: std::io::Error| {
            let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
            self.error("resize", 0, size_bytes.unwrap_or(0), errno)
        };
        if let Some(bytes) = size_bytes.filter(|_| self.kind == BackingKind::Regular) {
            self.file.set_len(bytes).and_then(|()| self.file.sync_all()).map_err(failed)?;
        }
        let mut file = &*self.file;
        let end_bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let found_bytes = self.zone_map.seen_bytes(end_bytes - end_bytes % BLOCK_BYTES as u64);
        if size_bytes.is_some_and(|wanted| wanted > found_bytes) {
            let (device, reason) = (self.info.name.clone(), format!("it has {found_bytes} bytes"));
            return Err(DeviceError::Invalid { device, reason });
        }
        let (kind, direct, zone_map) = (self.kind, self.direct, self.zone_map);
        let info = DeviceInfo { size_bytes: found_bytes, ..self.info.clone() };
        let (file, late) = (Arc::clone(&self.file), self.late.clone());
        Ok(Arc::new(FileDevice { file, info, kind, direct, zone_map, late }))
    }

    fn works_beside_others(&self) -> bool {
        self.kind == BackingKind::Zoned
    }

    fn raw_fd(&self) -> Option<RawFd> {
        (self.direct && self.kind != BackingKind::Zoned).then(|| self.file.as_raw_fd())
    }
}
