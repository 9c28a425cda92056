//! The one builder of pools: in memory, on one file, on many devices, new or existing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use warpfire_env::{Device, MemDevice};
use warpfire_format::Uuid;
use warpfire_fs::AtimeMode;
use warpfire_meta::{Background, MemoryLimits};
use warpfire_pool::CreateOptions;

use crate::cache_size;
use crate::devices::NewDevices;
use crate::open_pool::{OpenMode, OpenPool};
use crate::upkeep::SPARE_AFTER;
use crate::{Error, ErrorKind, Identity, Result, Warpfire};

/// The entry to this library: [`Pool::options`].
#[derive(Clone, Copy, Debug)]
pub struct Pool;

impl Pool {
    /// Options for making or opening a pool.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/hello", b"world")?;
    /// assert_eq!(fs.read("/hello")?, b"world");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    #[must_use]
    pub fn options() -> PoolOptions {
        PoolOptions::default()
    }
}

/// Bytes of each device in memory and of each new image file, unless the caller names a size.
const DEVICE_BYTES_DEFAULT: u64 = 1 << 30;

/// Which reads renew the access time of a file. The names are those of mount(8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// A read renews an access time that is not later than the last change, or that is a day old.
    #[default]
    Relatime,
    /// Each read renews it: `strictatime`.
    Strict,
    /// No read renews it: `noatime`.
    Never,
}

/// How to make or open a pool. [`open`](PoolOptions::open) ignores the options that only count for a new
/// pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    data: u16,
    parity: u8,
    device_bytes: u64,
    zone_bytes: Option<u64>,
    force: bool,
    identity: Identity,
    background: bool,
    access_times: AccessTimes,
    read_only: bool,
    degraded: bool,
    pub(crate) without_roots: bool,
    /// The pool to find where devices hold data of several.
    pub(crate) wanted_pool: Option<Uuid>,
    online: Option<u16>,
    sync_interval: Option<Duration>,
    memory: MemoryLimits,
    cache_bytes: Option<u64>,
    cache_files: bool,
    spare_after: Duration,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            data: 1,
            parity: 0,
            device_bytes: DEVICE_BYTES_DEFAULT,
            zone_bytes: None,
            force: false,
            identity: Identity::of_process(),
            background: true,
            access_times: AccessTimes::default(),
            read_only: false,
            degraded: false,
            without_roots: false,
            wanted_pool: None,
            online: None,
            sync_interval: None,
            memory: MemoryLimits::default(),
            cache_bytes: None,
            cache_files: true,
            spare_after: SPARE_AFTER,
        }
    }
}

impl PoolOptions {
    /// Devices of a stripe that hold data, from 1 to 250 with those for parity; 1 by default. For a new pool
    /// only.
    #[must_use]
    pub fn data(mut self, devices: u16) -> Self {
        self.data = devices;
        self
    }

    /// Devices of a stripe that hold parity, from 0 to 8; 0 by default. The pool survives the loss of as many
    /// devices. For a new pool only.
    #[must_use]
    pub fn parity(mut self, devices: u8) -> Self {
        self.parity = devices;
        self
    }

    /// Bytes of each new image file, or of each device in memory; 1 GiB by default. For a new pool only.
    #[must_use]
    pub fn size_bytes(mut self, bytes: u64) -> Self {
        self.device_bytes = bytes;
        self
    }

    /// Bytes of a zone, the unit in which the pool frees space: a power of two. By default 1/256 of the
    /// smallest device, but from 1 to 256 MiB, or up to 1 GiB on devices of more than 16 TiB. For a new pool
    /// only.
    #[must_use]
    pub fn zone_bytes(mut self, bytes: u64) -> Self {
        self.zone_bytes = Some(bytes);
        self
    }

    /// Whether to overwrite devices that hold data; `false` by default. For a new pool only.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// The identity that the handle acts as; by default the user and groups of this process. It owns the root
    /// directory of a new pool.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Whether the pool has threads of its own that compact and clean in the background; `true` by default.
    /// Without them the calls that need space or order do that work themselves.
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Which reads renew access times; [`AccessTimes::Relatime`] by default.
    #[must_use]
    pub fn access_times(mut self, access_times: AccessTimes) -> Self {
        self.access_times = access_times;
        self
    }

    /// Opens the pool for reading only; `false` by default. For an existing pool only.
    ///
    /// Nothing is written to the devices, not while opening either, so they need no permission to write. The
    /// handle shows the state that an opening for writing would show: what the last sync made durable, or
    /// newer. Every change is refused with [`ReadOnly`](crate::ErrorKind::ReadOnly). Reads renew no access
    /// time. Damaged bytes are reconstructed for the reader, and stay damaged on the devices.
    ///
    /// Any number of processes can have a pool open for reading at once, and none while one has it open for
    /// writing. Changes that were not yet in tables are kept in memory: as much as the last writer had for
    /// them, at most two memtables of 64 MiB and one commit.
    ///
    /// ```standalone_crate
    /// # let directory = tempfile::tempdir()?;
    /// # std::env::set_current_dir(&directory)?;
    /// use warpfire::{ErrorKind, Pool};
    ///
    /// let fs = Pool::options().size_bytes(64 << 20).create(["a.img"])?;
    /// fs.write("/model", b"weights")?;
    /// fs.close()?;
    ///
    /// let reader = Pool::options().read_only(true).open(["a.img"])?;
    /// let another = Pool::options().read_only(true).open(["a.img"])?;
    /// assert_eq!(reader.read("/model")?, another.read("/model")?);
    /// assert_eq!(reader.write("/model", b"").unwrap_err().kind(), ErrorKind::ReadOnly);
    ///
    /// let writer = Pool::options().open(["a.img"]);
    /// assert_eq!(writer.unwrap_err().kind(), ErrorKind::InUse);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Opens the pool for writing even if the missing devices may hold a newer state; `false` by default. For
    /// an existing pool only.
    ///
    /// The devices that are missing could be enough to go on by themselves: the other half of a mirror, for
    /// example. If they did, this opening shows an older state, and its changes can never be joined with
    /// theirs. One opening with this option is enough for a part of the pool that goes on alone. Reading does
    /// not need it.
    ///
    /// ```standalone_crate
    /// # let directory = tempfile::tempdir()?;
    /// # std::env::set_current_dir(&directory)?;
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().parity(1).size_bytes(64 << 20).create(["a.img", "b.img"])?;
    /// fs.close()?;
    ///
    /// std::fs::remove_file("b.img")?;
    /// assert!(Pool::options().open(["a.img"]).is_err());
    /// Pool::options().degraded(true).open(["a.img"])?.close()?;
    /// Pool::options().open(["a.img"])?.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn degraded(mut self, degraded: bool) -> Self {
        self.degraded = degraded;
        self
    }

    /// Uses the device with this position again, if it was taken offline
    /// ([`take_offline`](Warpfire::take_offline)); by default such a device stays offline. For an existing
    /// pool only.
    #[must_use]
    pub fn online(mut self, index: u16) -> Self {
        self.online = Some(index);
        self
    }

    /// Makes every change durable at most this long after it was made. By default only
    /// [`sync`](Warpfire::sync) and closing make changes durable.
    #[must_use]
    pub fn sync_interval(mut self, interval: Duration) -> Self {
        self.sync_interval = Some(interval);
        self
    }

    /// Memory that open transactions take together, at most; 2 GiB by default, in which a transaction of any
    /// size that is possible has room. Calls that need more fail with
    /// [`NoMemory`](crate::ErrorKind::NoMemory).
    #[must_use]
    pub fn transaction_memory(mut self, bytes: usize) -> Self {
        self.memory = MemoryLimits::of_total(bytes);
        self
    }

    /// Most bytes of memory for metadata and small files that were read, so that they need not be read
    /// again; by default a quarter of the memory of the machine, or of what its control group may use. While
    /// memory is short, the cache holds less, down to 64 MiB. What the cache holds is in
    /// [`Stats::cache`](crate::Stats::cache).
    ///
    /// Two memtables hold new commits, of 64 MiB each. With less than 128 MiB for metadata each has half of
    /// that, and at least 8 MiB.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = Some(bytes);
        self
    }

    /// Whether the cache holds small files too, which it does by default: files of up to about 32 KiB that
    /// were read whole. A caller that keeps in memory what it has read has no use for that.
    #[must_use]
    pub fn cache_files(mut self, whether: bool) -> Self {
        self.cache_files = whether;
        self
    }

    /// How long a device may be missing or failed, while the pool is open, until what it held is rebuilt on
    /// the other devices; 10 minutes by default. That takes their space, and gives the pool its redundancy
    /// back. With zero it begins at once. A pool without [`background`](PoolOptions::background) threads
    /// rebuilds nothing.
    #[must_use]
    pub fn spare_after(mut self, wait: Duration) -> Self {
        self.spare_after = wait;
        self
    }

    /// Makes a pool on block devices and image files and opens it. Image files that are missing are made.
    ///
    /// ```standalone_crate
    /// # let directory = tempfile::tempdir()?;
    /// # std::env::set_current_dir(&directory)?;
    /// use warpfire::Pool;
    ///
    /// let images = ["0.img", "1.img", "2.img", "3.img", "4.img", "5.img"];
    /// let fs = Pool::options().data(4).parity(2).size_bytes(64 << 20).create(images)?;
    /// fs.write("/kept", b"on any four of the six")?;
    /// fs.close()?;
    ///
    /// std::fs::remove_file("1.img")?;
    /// std::fs::remove_file("4.img")?;
    /// let fs = Pool::options().open(["0.img", "2.img", "3.img", "5.img"])?;
    /// assert_eq!(fs.read("/kept")?, b"on any four of the six");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists` if a device holds data and [`force`](PoolOptions::force) is not set; `InvalidInput`
    /// for an impossible geometry, or a device that is named twice; `InUse`; `NotFound`; `Device`. On an
    /// error the image files that this call made are removed.
    pub fn create<P: AsRef<Path>>(&self, paths: impl IntoIterator<Item = P>) -> Result<Warpfire> {
        let paths = collect_paths(paths)?;
        let new = NewDevices::prepare(&paths, self.device_bytes, |_| self.force)?;
        match self.create_on(new.devices.clone()) {
            Ok(pool) => Ok(pool),
            Err(error) => {
                new.discard();
                Err(error)
            }
        }
    }

    /// Opens a pool. The order of the devices does not matter. As many may be missing as the pool has parity.
    ///
    /// # Errors
    /// `NotAPool` if too many devices are missing, or those that are may hold a newer state
    /// ([`degraded`](PoolOptions::degraded)), or one belongs to no pool or to another, or is a copy of
    /// another, or was written apart from the others; `InvalidInput` if a device is named twice; `InUse` if
    /// another process has one open, unless both open it for reading; `NotFound` if a path does not exist;
    /// `Damaged` if the state of the pool cannot be read.
    pub fn open<P: AsRef<Path>>(&self, paths: impl IntoIterator<Item = P>) -> Result<Warpfire> {
        let is_read = self.read_only || self.without_roots;
        self.open_on(crate::devices::open_all(&collect_paths(paths)?, is_read)?)
    }

    /// Makes a pool of `data + parity` devices in memory, of [`size_bytes`](PoolOptions::size_bytes) each,
    /// and opens it. It is lost when its last handle is dropped.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible geometry.
    pub fn in_memory(&self) -> Result<Warpfire> {
        let count = usize::from(self.data) + usize::from(self.parity);
        let device = |number: usize| -> Arc<dyn Device> {
            Arc::new(MemDevice::new(format!("memory {number}"), self.device_bytes))
        };
        self.create_on((0..count).map(device).collect())
    }

    /// Makes a pool on devices that the caller has opened, such as simulated ones, and opens it.
    ///
    /// # Errors
    /// As [`create`](PoolOptions::create).
    pub fn create_on(&self, devices: Vec<Arc<dyn Device>>) -> Result<Warpfire> {
        let options = CreateOptions {
            data: self.data,
            parity: self.parity,
            zone_bytes: self.zone_bytes,
            force: self.force,
        };
        let mode = OpenMode { read_only: false, ..self.mode() };
        let open_pool = OpenPool::create(devices, &options, &self.identity, mode)?;
        self.handle(open_pool, self.sync_interval, mode.cache_bytes)
    }

    /// Opens a pool on devices that the caller has opened.
    ///
    /// # Errors
    /// As [`open`](PoolOptions::open).
    pub fn open_on(&self, devices: Vec<Arc<dyn Device>>) -> Result<Warpfire> {
        if self.without_roots {
            return Ok(self.open_found(&devices)?.1);
        }
        let mode = self.mode();
        let open_pool = OpenPool::open(devices, mode)?;
        // A reader has no changes to make durable.
        let sync_interval = self.sync_interval.filter(|_| !self.read_only);
        self.handle(open_pool, sync_interval, mode.cache_bytes)
    }

    fn handle(
        &self,
        open_pool: OpenPool,
        sync_interval: Option<Duration>,
        cache_bytes: u64,
    ) -> Result<Warpfire> {
        let cache_task = match self.background {
            true => Some(cache_size::keep_fitting(open_pool.fs.engine(), cache_bytes)?),
            false => None,
        };
        Warpfire::new(open_pool, self.identity.clone(), sync_interval, cache_task, self.spare_after)
    }

    fn mode(&self) -> OpenMode {
        let works = self.background && !self.read_only;
        let background = if works { Background::Threads } else { Background::Manual };
        let atime = match self.access_times {
            AccessTimes::Relatime => AtimeMode::Relatime,
            AccessTimes::Strict => AtimeMode::Strict,
            AccessTimes::Never => AtimeMode::Never,
        };
        let cache_bytes = self.cache_bytes.unwrap_or_else(cache_size::default_cache_bytes);
        OpenMode {
            background,
            atime,
            read_only: self.read_only,
            degraded: self.degraded,
            online: self.online,
            memory: self.memory,
            cache_bytes,
            cache_files: self.cache_files,
        }
    }
}

pub(crate) fn collect_paths<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = paths.into_iter().map(|path| path.as_ref().to_path_buf()).collect();
    if paths.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            Errno::INVAL.raw_os_error(),
            "a pool needs at least one device",
        ));
    }
    Ok(paths)
}
