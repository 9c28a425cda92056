//! Pools on image files for the cases: files with known bytes, and images that can be unplugged.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use warpfire::{Pool, PoolOptions, Warpfire};
use warpfire_env::{Clock, Device, DeviceError, DeviceInfo, FileDevice, SystemClock, ZoneReport};

pub type Outcome<T> = Result<T, Box<dyn Error>>;

pub const MIB: u64 = 1 << 20;
/// MiB of a file.
pub const FILE_MIB: u64 = 4;

pub fn seconds_since(start_nanos: u64) -> f64 {
    (now_nanos() - start_nanos) as f64 / 1e9
}

pub fn now_nanos() -> u64 {
    SystemClock.monotonic_nanos()
}

/// Bytes that do not repeat.
pub fn content(file: u64) -> Vec<u8> {
    let mut state = file + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..FILE_MIB * MIB / 8).flat_map(|_| next()).collect()
}

pub fn fill(fs: &Warpfire, files: u64) -> Outcome<()> {
    for file in 0..files {
        fs.write(format!("/{file}"), content(file))?;
    }
    Ok(fs.sync()?)
}

pub fn verify(fs: &Warpfire, files: u64) -> Outcome<()> {
    for file in 0..files {
        if fs.read(format!("/{file}"))? != content(file) {
            return Err(format!("file {file} has other bytes").into());
        }
    }
    Ok(())
}

/// Waits until the condition holds. Returns the seconds that took.
///
/// # Errors
/// It does not hold within ten minutes.
pub fn wait(what: &str, holds: impl Fn() -> bool) -> Outcome<f64> {
    let start_nanos = now_nanos();
    while !holds() {
        if seconds_since(start_nanos) > 600.0 {
            return Err(format!("in vain for 10 minutes: {what}").into());
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    Ok(seconds_since(start_nanos))
}

/// Prints one figure of a case, and whether it is within its bound.
pub fn show(case: u32, holds: bool, text: &str) {
    println!("{case}  {}  {text}", if holds { "holds" } else { "DOES NOT HOLD" });
}

pub fn images(directory: &Path, count: u64) -> Vec<PathBuf> {
    (0..count).map(|n| directory.join(format!("{n}.img"))).collect()
}

pub fn make(options: &PoolOptions, images: &[PathBuf], files: u64) -> Outcome<()> {
    let fs = options.create(images)?;
    fill(&fs, files)?;
    Ok(fs.close()?)
}

pub fn remove(images: &[PathBuf]) {
    // One that was removed before is no error.
    images.iter().for_each(|image| drop(std::fs::remove_file(image)));
}

/// An image file that can be unplugged.
pub struct Plug {
    file: FileDevice,
    is_out: AtomicBool,
}

impl Plug {
    pub fn open(image: &Path) -> Outcome<Arc<Plug>> {
        Ok(Arc::new(Plug { file: FileDevice::open(image)?, is_out: AtomicBool::new(false) }))
    }

    pub fn pull(&self) {
        self.is_out.store(true, Ordering::Release);
    }

    fn file(&self) -> Result<&FileDevice, DeviceError> {
        match self.is_out.load(Ordering::Acquire) {
            true => Err(DeviceError::Gone { device: self.file.info().name.clone() }),
            false => Ok(&self.file),
        }
    }
}

impl Device for Plug {
    fn info(&self) -> &DeviceInfo {
        self.file.info()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.file()?.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.file()?.write(offset_bytes, buf)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.file()?.flush()
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.file()?.discard(offset_bytes, len_bytes)
    }

    fn reset_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.file()?.reset_zone(offset_bytes, len_bytes)
    }

    fn zone_report(&self, offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        self.file()?.zone_report(offset_bytes)
    }
}

/// Opens a pool on images that can be unplugged. A lost one is given up at once.
pub fn plugged(images: &[PathBuf]) -> Outcome<(Warpfire, Vec<Arc<Plug>>)> {
    let plugs = images.iter().map(|image| Plug::open(image)).collect::<Outcome<Vec<_>>>()?;
    let devices = plugs.iter().map(|plug| Arc::clone(plug) as Arc<dyn Device>).collect();
    Ok((Pool::options().spare_after(Duration::ZERO).open_on(devices)?, plugs))
}
