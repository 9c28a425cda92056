//! Opening, creating and locking a file or block device.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use warpfire_units::BLOCK_BYTES;

use super::{BackingKind, FileDevice, LateCalls, block};
use crate::buf::AlignedBuf;
use crate::device::{DeviceInfo, ZoneInfo};
use crate::zone_map::ZoneMap;

/// Why a file or block device could not be opened or created.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open for writing, or it is mounted.
    #[error("{}: in use by another process", path.display())]
    InUse {
        /// The requested path.
        path: PathBuf,
    },
    /// Other processes have it open for reading, so it cannot be opened for writing.
    #[error("{}: open for reading in another process", path.display())]
    InUseByReaders {
        /// The requested path.
        path: PathBuf,
    },
    /// It is a directory, a pipe or something else without blocks.
    #[error("{}: neither a regular file nor a block device", path.display())]
    NotADevice {
        /// The requested path.
        path: PathBuf,
    },
    /// It is smaller than one block.
    #[error("{}: smaller than one block of {BLOCK_BYTES} bytes", path.display())]
    TooSmall {
        /// The requested path.
        path: PathBuf,
    },
    /// A zoned device with zones that are not supported.
    #[error("{}: unsupported zones: {reason}", path.display())]
    Zones {
        /// The requested path.
        path: PathBuf,
        /// The property that is not supported.
        reason: &'static str,
    },
    /// The system refused: no such file, no permission, it exists already, no space.
    #[error("{}: {source}", path.display())]
    System {
        /// The requested path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// The requested path.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            OpenError::InUse { path }
            | OpenError::InUseByReaders { path }
            | OpenError::NotADevice { path }
            | OpenError::TooSmall { path }
            | OpenError::Zones { path, .. }
            | OpenError::System { path, .. } => path,
        }
    }
}

/// Longest wait for a file that is locked. When a process is killed, the kernel ends its rings in the
/// background, and a ring holds the process's files open a little longer than the process lives.
const LINGER_MAX: Duration = Duration::from_secs(1);
const LINGER_STEP: Duration = Duration::from_millis(20);

#[expect(
    clippy::disallowed_methods,
    reason = "the kernel does not report when a lock is released; no simulation opens files"
)]
fn linger() {
    std::thread::sleep(LINGER_STEP);
}

/// The purpose of an open, which decides about the lock.
#[derive(Clone, Copy)]
enum Opening {
    /// Without a lock, to read only.
    ToLook,
    /// Under a lock that readers share.
    ForReading,
    /// Under a lock that nobody shares.
    ForWriting,
    /// A new file of so many bytes, for writing.
    OfNew(u64),
}

impl Opening {
    fn is_new(self) -> bool {
        matches!(self, Opening::OfNew(_))
    }

    fn writes(self) -> bool {
        !matches!(self, Opening::ForReading | Opening::ToLook)
    }
}

impl FileDevice {
    /// Opens an existing regular file or block device for reading and writing, and locks it.
    ///
    /// The size is that of the file or device, rounded down to whole blocks. If it is locked, waits up to a
    /// second for the kernel to end a killed process.
    ///
    /// # Errors
    /// `InUse` or `InUseByReaders` if another process has it; `System` with the kind `NotFound` or
    /// `PermissionDenied`, and others.
    pub fn open(path: &Path) -> Result<FileDevice, OpenError> {
        Self::open_patiently(path, Opening::ForWriting)
    }

    /// Opens an existing regular file or block device for reading, and locks it against writers. Other
    /// processes may open it for reading too. The kernel refuses every write to it.
    ///
    /// # Errors
    /// `InUse` if another process has it open for writing; otherwise as `open`.
    pub fn open_for_reading(path: &Path) -> Result<FileDevice, OpenError> {
        Self::open_patiently(path, Opening::ForReading)
    }

    /// Opens an existing regular file or block device for reading without a lock, while another process may
    /// write to it: two reads may see two moments. The kernel refuses every write to it.
    ///
    /// # Errors
    /// `System`, `NotADevice` and `TooSmall`, as `open`.
    pub fn open_to_look(path: &Path) -> Result<FileDevice, OpenError> {
        Self::open_with(path, Opening::ToLook)
    }

    /// Whether another process has it open for writing now. Does not wait, as the calls that open it do.
    #[must_use]
    pub fn is_in_use(path: &Path) -> bool {
        matches!(Self::open_with(path, Opening::ForReading), Err(OpenError::InUse { .. }))
    }

    fn open_patiently(path: &Path, opening: Opening) -> Result<FileDevice, OpenError> {
        for _ in 0..LINGER_MAX.as_millis() / LINGER_STEP.as_millis() {
            match Self::open_with(path, opening) {
                Err(OpenError::InUse { .. } | OpenError::InUseByReaders { .. }) => linger(),
                opened => return opened,
            }
        }
        Self::open_with(path, opening)
    }

    /// Creates, opens and locks a regular file of `size_bytes`, rounded down to whole blocks. The file is
    /// sparse: it takes space when it is written.
    ///
    /// # Errors
    /// `TooSmall`; `System` with the kind `AlreadyExists` if something exists at `path`, and others.
    pub fn create(path: &Path, size_bytes: u64) -> Result<FileDevice, OpenError> {
        let size_bytes = whole_blocks(size_bytes);
        if size_bytes == 0 {
            return Err(OpenError::TooSmall { path: path.to_owned() });
        }
        Self::open_with(path, Opening::OfNew(size_bytes))
    }

    fn open_with(path: &Path, opening: Opening) -> Result<FileDevice, OpenError> {
        let system = |source: io::Error| OpenError::System { path: path.to_owned(), source };
        let (mut file, mut direct) = open_file(path, opening)?;
        // Before anything is changed: another process may be using the file.
        lock(&file, path, opening)?;
        if let Opening::OfNew(size_bytes) = opening {
            file.set_len(size_bytes).map_err(system)?;
        }
        let is_block = file.metadata().map_err(system)?.file_type().is_block_device();
        // The end of a block device is its size; its metadata says zero.
        let size_bytes = whole_blocks(file.seek(SeekFrom::End(0)).map_err(system)?);
        if size_bytes == 0 {
            return Err(OpenError::TooSmall { path: path.to_owned() });
        }
        // Cleared on the open descriptor: a second open would need a second lock.
        if direct && !reads_directly(&file) {
            let flags = rustix::fs::fcntl_getfl(&file).map_err(|e| system(e.into()))?;
            rustix::fs::fcntl_setfl(&file, flags - OFlags::DIRECT).map_err(|e| system(e.into()))?;
            direct = false;
        }
        let zoned = if is_block { zones_of(&file, path, size_bytes)? } else { None };
        let zones = zoned.map(|(zones, _)| zones);
        let zone_map = zoned.map_or(ZoneMap::PLAIN, |(_, zone_map)| zone_map);
        let kind = match (is_block, zones) {
            (false, _) => BackingKind::Regular,
            (true, None) => BackingKind::Block,
            (true, Some(_)) => BackingKind::Zoned,
        };
        let size_bytes = zone_map.seen_bytes(size_bytes);
        let info = DeviceInfo { name: path.display().to_string(), size_bytes, zones };
        Ok(FileDevice { file: file.into(), info, kind, direct, zone_map, late: LateCalls::default() })
    }
}

fn whole_blocks(bytes: u64) -> u64 {
    bytes - bytes % BLOCK_BYTES as u64
}

/// Opens with `O_DIRECT` if the filesystem allows it. Returns the file, and whether it is open with
/// `O_DIRECT`.
fn open_file(path: &Path, opening: Opening) -> Result<(File, bool), OpenError> {
    let is_block = match path.metadata() {
        Ok(found) if found.file_type().is_block_device() => true,
        Ok(found) if !found.is_file() => return Err(OpenError::NotADevice { path: path.to_owned() }),
        Ok(_) | Err(_) => false,
    };
    // On a block device, O_EXCL without O_CREAT fails if the device is mounted or open with O_EXCL elsewhere.
    // Readers do without, because O_EXCL keeps them from each other too.
    let is_exclusive = is_block && opening.writes() && !opening.is_new();
    let exclusive = if is_exclusive { OFlags::EXCL } else { OFlags::empty() };
    let open = |create: bool, direct: OFlags| {
        let flags = (exclusive | direct).bits().cast_signed();
        OpenOptions::new()
            .read(true)
            .write(opening.writes())
            .create_new(create)
            .mode(0o600)
            .custom_flags(flags)
            .open(path)
    };
    let create = opening.is_new();
    let opened = match open(create, OFlags::DIRECT) {
        // The kernel may have created the file before the filesystem refused the flag.
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

fn lock(file: &File, path: &Path, opening: Opening) -> Result<(), OpenError> {
    if matches!(opening, Opening::ToLook) {
        return Ok(());
    }
    let shared = || rustix::fs::flock(file, FlockOperation::NonBlockingLockShared);
    let locked = if opening.writes() {
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
    } else {
        shared()
    };
    match locked {
        Ok(()) => Ok(()),
        // Readers would share a lock with this process: so they are what keeps it out.
        Err(Errno::WOULDBLOCK) if opening.writes() && shared().is_ok() => {
            Err(OpenError::InUseByReaders { path: path.to_owned() })
        }
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(errno) => Err(OpenError::System { path: path.to_owned(), source: errno.into() }),
    }
}

/// Whether a direct read works: some filesystems accept the flag and refuse the reads.
fn reads_directly(file: &File) -> bool {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    rustix::io::pread(file, &mut block[..], 0) != Err(Errno::INVAL)
}

/// The zones of a block device, and where their writable bytes lie; `None` if it is not zoned. Refuses
/// devices with zones that differ in kind or capacity: the pool needs zones of one size, and sequential ones.
fn zones_of(file: &File, path: &Path, size_bytes: u64) -> Result<Option<(ZoneInfo, ZoneMap)>, OpenError> {
    let system = |errno: Errno| OpenError::System { path: path.to_owned(), source: errno.into() };
    let refuse = |reason| Err(OpenError::Zones { path: path.to_owned(), reason });
    let stride_bytes = block::zone_bytes(file).map_err(system)?;
    if stride_bytes == 0 {
        return Ok(None);
    }
    if !stride_bytes.is_multiple_of(BLOCK_BYTES as u64) || !size_bytes.is_multiple_of(stride_bytes) {
        return refuse("the device is not whole zones of whole blocks");
    }
    let (mut conventional_zones, mut capacity_bytes, mut refused) = (0, None, None);
    block::for_each_zone(file, size_bytes, |zone| {
        if zone.is_conventional() && zone.start_bytes() == u64::from(conventional_zones) * stride_bytes {
            conventional_zones += 1;
        } else if zone.is_conventional() {
            refused = Some("a zone that takes writes anywhere lies behind one that does not");
        } else if !zone.is_sequential() {
            refused = Some("a zone is not for sequential writes");
        } else if zone.written_bytes().is_some()
            && *capacity_bytes.get_or_insert(zone.capacity_bytes()) != zone.capacity_bytes()
        {
            // A zone that takes no more writes may have any capacity.
            refused = Some("zones differ in capacity");
        }
        Ok::<(), Errno>(())
    })
    .map_err(system)?;
    let zone_bytes = capacity_bytes.unwrap_or(stride_bytes);
    if zone_bytes == 0 || zone_bytes > stride_bytes || !zone_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        refused = refused.or(Some("the capacity of a zone is not whole blocks of it"));
    }
    if let Some(reason) = refused {
        return refuse(reason);
    }
    let active_zones_max = active_zones_max(file).map_err(system)?;
    let zones = ZoneInfo { zone_bytes, conventional_zones, active_zones_max };
    Ok(Some((zones, ZoneMap::new(zone_bytes, stride_bytes))))
}

/// Most zones of the device that may be active at once, as the kernel reports; 0 if there is no limit.
fn active_zones_max(file: &File) -> Result<u32, Errno> {
    let device = rustix::fs::fstat(file)?.st_rdev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has the limit of its drive. Kernels before 5.9 report none.
    let queue = |above: &str| format!("/sys/dev/block/{major}:{minor}/{above}queue/max_active_zones");
    let told = ["", "../"].iter().find_map(|above| std::fs::read_to_string(queue(above)).ok());
    Ok(told.and_then(|number| number.trim().parse().ok()).unwrap_or(0))
}
