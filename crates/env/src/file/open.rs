//! Opening a file or block device, and owning it.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use warpfire_units::BLOCK_BYTES;

use super::{BackingKind, FileDevice, block};
use crate::buf::AlignedBuf;
use crate::device::{DeviceInfo, ZoneInfo};

/// Why a file or block device can not be had.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds it, or it is mounted.
    #[error("{}: in use by another process", path.display())]
    InUse {
        /// What was to be opened.
        path: PathBuf,
    },
    /// It is a directory, a pipe or something else that holds no blocks.
    #[error("{}: neither a regular file nor a block device", path.display())]
    NotADevice {
        /// What was to be opened.
        path: PathBuf,
    },
    /// It has not a single block.
    #[error("{}: smaller than one block of {BLOCK_BYTES} bytes", path.display())]
    TooSmall {
        /// What was to be opened.
        path: PathBuf,
    },
    /// A zoned device of a make that is not supported.
    #[error("{}: unsupported zones: {reason}", path.display())]
    Zones {
        /// What was to be opened.
        path: PathBuf,
        /// What about them.
        reason: &'static str,
    },
    /// The system refused: no such file, no permission, it exists already, no space.
    #[error("{}: {source}", path.display())]
    System {
        /// What was to be opened.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// How long a file may stay locked after its process is gone: the kernel ends a killed process's ring, which holds its files,
/// in the background.
const LINGER_MAX: Duration = Duration::from_secs(1);
const LINGER_STEP: Duration = Duration::from_millis(20);

#[expect(
    clippy::disallowed_methods,
    reason = "the kernel tells nobody when a lock goes; no simulation opens files"
)]
fn linger() {
    std::thread::sleep(LINGER_STEP);
}

impl FileDevice {
    /// Opens a regular file or block device that exists, for reading and writing, and locks it.
    ///
    /// The size is that of the file or device, rounded down to whole blocks. If another process has it, waits up to
    /// a second for the kernel to clear away after one that was killed.
    ///
    /// # Errors
    /// `InUse` if another process has it; `System` with the kind `NotFound` or `PermissionDenied`, and others.
    pub fn open(path: &Path) -> Result<FileDevice, OpenError> {
        for _ in 0..LINGER_MAX.as_millis() / LINGER_STEP.as_millis() {
            match Self::open_with(path, None) {
                Err(OpenError::InUse { .. }) => linger(),
                opened => return opened,
            }
        }
        Self::open_with(path, None)
    }

    /// Creates a regular file of `size_bytes`, rounded down to whole blocks, opens and locks it. The file is
    /// sparse: it takes space as it is written.
    ///
    /// # Errors
    /// `System` with the kind `AlreadyExists` if there is something at `path`, and others.
    pub fn create(path: &Path, size_bytes: u64) -> Result<FileDevice, OpenError> {
        let size_bytes = whole_blocks(size_bytes);
        if size_bytes == 0 {
            return Err(OpenError::TooSmall { path: path.to_owned() });
        }
        Self::open_with(path, Some(size_bytes))
    }

    fn open_with(path: &Path, create_bytes: Option<u64>) -> Result<FileDevice, OpenError> {
        let system = |source: io::Error| OpenError::System { path: path.to_owned(), source };
        let (mut file, mut direct) = open_file(path, create_bytes.is_some())?;
        lock(&file, path)?;
        if let Some(size_bytes) = create_bytes {
            file.set_len(size_bytes).map_err(system)?;
        }
        let is_block = file.metadata().map_err(system)?.file_type().is_block_device();
        // The end of a block device is its size; its metadata says zero.
        let size_bytes = whole_blocks(file.seek(SeekFrom::End(0)).map_err(system)?);
        if size_bytes == 0 {
            return Err(OpenError::TooSmall { path: path.to_owned() });
        }
        if direct && !reads_directly(&file) {
            let flags = rustix::fs::fcntl_getfl(&file).map_err(|e| system(e.into()))?;
            rustix::fs::fcntl_setfl(&file, flags - OFlags::DIRECT).map_err(|e| system(e.into()))?;
            direct = false;
        }
        let zones = if is_block { zones_of(&file, path, size_bytes)? } else { None };
        let kind = match (is_block, zones) {
            (false, _) => BackingKind::Regular,
            (true, None) => BackingKind::Block,
            (true, Some(_)) => BackingKind::Zoned,
        };
        let info = DeviceInfo { name: path.display().to_string(), size_bytes, zones };
        Ok(FileDevice { file, info, kind, direct })
    }
}

fn whole_blocks(bytes: u64) -> u64 {
    bytes - bytes % BLOCK_BYTES as u64
}

/// Opens with `O_DIRECT` if the filesystem allows it: the file, and whether it did.
fn open_file(path: &Path, create: bool) -> Result<(File, bool), OpenError> {
    let is_block = match path.metadata() {
        Ok(found) if found.file_type().is_block_device() => true,
        Ok(found) if !found.is_file() => return Err(OpenError::NotADevice { path: path.to_owned() }),
        Ok(_) | Err(_) => false,
    };
    // On a block device without O_CREAT, O_EXCL refuses one that is mounted or held in the same way.
    let exclusive = if is_block && !create { OFlags::EXCL } else { OFlags::empty() };
    let open = |create: bool, direct: OFlags| {
        let flags = (exclusive | direct).bits().cast_signed();
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(create)
            .mode(0o600)
            .custom_flags(flags)
            .open(path)
    };
    let opened = match open(create, OFlags::DIRECT) {
        // The kernel may have made the file before its filesystem refused the flag.
        Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            open(create && !path.exists(), OFlags::empty()).map(|file| (file, false))
        }
        other => other.map(|file| (file, true)),
    };
    opened.map_err(|source| match Errno::from_io_error(&source) {
        Some(Errno::BUSY) => OpenError::InUse { path: path.to_owned() },
        _ => OpenError::System { path: path.to_owned(), source },
    })
}

fn lock(file: &File, path: &Path) -> Result<(), OpenError> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(errno) => Err(OpenError::System { path: path.to_owned(), source: errno.into() }),
    }
}

/// Whether a direct read works: some filesystems take the flag and refuse the calls.
fn reads_directly(file: &File) -> bool {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    rustix::io::pread(file, &mut block[..], 0) != Err(Errno::INVAL)
}

fn zones_of(file: &File, path: &Path, size_bytes: u64) -> Result<Option<ZoneInfo>, OpenError> {
    let system = |errno: Errno| OpenError::System { path: path.to_owned(), source: errno.into() };
    let refuse = |reason| Err(OpenError::Zones { path: path.to_owned(), reason });
    let zone_bytes = block::zone_bytes(file).map_err(system)?;
    if zone_bytes == 0 {
        return Ok(None);
    }
    if !zone_bytes.is_multiple_of(BLOCK_BYTES as u64) || !size_bytes.is_multiple_of(zone_bytes) {
        return refuse("the device is not whole zones of whole blocks");
    }
    for start in (0..size_bytes).step_by(usize::try_from(zone_bytes).expect("a zone fits memory")) {
        let zone = block::report_zone(file, start).map_err(system)?;
        if !zone.is_sequential() {
            return refuse("a zone is not for sequential writes");
        }
        if !zone.is_wholly_writable() {
            return refuse("a zone's capacity is less than its size");
        }
    }
    Ok(Some(ZoneInfo { zone_bytes }))
}
