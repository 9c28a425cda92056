//! The search for pools on image files and block devices.
//!
//! The content of every file is hostile, and a device may never answer. So each one is read on a thread of
//! its own, and the search goes on without those that take longer than [`ANSWER_MAX`]. It reads root zones
//! only: at most two zones of a device, and one root of them at a time is in memory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use warpfire_env::{Device, FileDevice, OpenError};
use warpfire_pool::{Pool, ScannedDevice, ScannedPool};

use super::DeviceIdentity;
use crate::Error;

/// Longest wait for the devices that are read at one time.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Devices that are read at one time.
const AT_ONCE: usize = 32;

/// Most files and devices of one search.
const FILES_MAX: usize = 1 << 16;

/// The kernel's list of block devices.
const BLOCK_DEVICES: &str = "/sys/class/block";

/// The pools that a search has found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Scan {
    /// The pools, by their uuids.
    pub pools: Vec<FoundPool>,
    /// Files and devices that could not be read, with the reason.
    pub skipped: Vec<(PathBuf, Error)>,
}

/// A pool that a search has found.
#[derive(Debug)]
#[non_exhaustive]
pub struct FoundPool {
    /// The number that identifies the pool, in hexadecimal.
    pub pool: String,
    /// Its name; empty if it has none.
    pub label: String,
    /// Data columns of a new segment.
    pub data: u16,
    /// Parity columns of a new segment.
    pub parity: u8,
    /// Bytes of a zone.
    pub zone_bytes: u64,
    /// The devices of the pool, missing ones too, without those that were removed.
    pub devices: Vec<FoundDevice>,
    /// Devices that once were in the pool, and second copies of one.
    pub strangers: Vec<PathBuf>,
    /// Whether the pool can be opened, as far as its roots say.
    pub opens: Opens,
}

/// Whether the devices that were found are enough to open their pool.
#[derive(Debug)]
pub enum Opens {
    /// It can be opened to write.
    ForWriting,
    /// It can be opened to read, and to write only if that is forced.
    ForReading(Error),
    /// It cannot be opened.
    No(Error),
}

/// A device of a pool that a search has found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FoundDevice {
    /// Its position in the pool, from 0.
    pub index: u16,
    /// The number that identifies it, in hexadecimal.
    pub uuid: String,
    /// Where it is; `None` if it was not found.
    pub path: Option<PathBuf>,
    /// Bytes in its zones; `None` if no root of the pool is whole.
    pub size_bytes: Option<u64>,
    /// Whether the newest root says that the pool went on without the device.
    pub is_offline: bool,
    /// Whether the device is to leave the pool.
    pub is_leaving: bool,
}

impl FoundPool {
    /// The paths of its devices, those of strangers left out.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.devices.iter().filter_map(|device| device.path.clone()).collect()
    }

    fn new(scanned: ScannedPool, paths: &[PathBuf]) -> FoundPool {
        let path = |place: usize| paths.get(place).cloned();
        let device = |member: &warpfire_pool::ScannedMember| FoundDevice {
            index: member.index.0,
            uuid: member.uuid.to_string(),
            path: member.found.and_then(path),
            size_bytes: member.zones.map(|zones| u64::from(zones) * scanned.zone_bytes),
            is_offline: member.is_offline,
            is_leaving: member.is_leaving,
        };
        FoundPool {
            pool: scanned.uuid.to_string(),
            label: scanned.label.as_str().to_owned(),
            data: scanned.data,
            parity: scanned.parity,
            zone_bytes: scanned.zone_bytes,
            devices: scanned.members.iter().map(device).collect(),
            strangers: scanned.strangers.iter().filter_map(|place| path(*place)).collect(),
            opens: match (scanned.writing, scanned.reading) {
                (Ok(()), _) => Opens::ForWriting,
                (Err(error), Ok(())) => Opens::ForReading(error.into()),
                (_, Err(error)) => Opens::No(error.into()),
            },
        }
    }
}

/// Searches files, block devices and directories for pools. A directory stands for its files and block
/// devices and for those in its directories, but not for deeper ones. Nothing is written, and no lock is
/// taken: pools that are in use are found too.
#[must_use]
pub fn scan(places: &[PathBuf]) -> Scan {
    let mut scan = Scan::default();
    let mut files: Vec<(DeviceIdentity, PathBuf)> = Vec::new();
    for place in places {
        let found = if place.is_dir() { files_in(place, &mut scan.skipped) } else { vec![place.clone()] };
        files.extend(found.into_iter().map(|path| (DeviceIdentity::of(&path), path)));
    }
    // A file is read once, by the first of its names.
    let mut seen = std::collections::BTreeSet::new();
    files.retain(|(identity, _)| seen.insert(identity.clone()));
    if files.len() > FILES_MAX {
        let (_, first_left) = files.swap_remove(FILES_MAX);
        let said = format!("more than {FILES_MAX} files: this one and later ones are left out");
        scan.skipped.push((first_left, Error::invalid(said).with_hint("name fewer directories")));
        files.truncate(FILES_MAX);
    }
    let paths: Vec<PathBuf> = files.into_iter().map(|(_, path)| path).collect();
    let mut pools: BTreeMap<_, (Vec<ScannedDevice>, Vec<PathBuf>)> = BTreeMap::new();
    for (path, read) in read_all(paths) {
        match read {
            Ok(None) => {}
            Ok(Some(device)) => {
                let (devices, paths) = pools.entry(device.pool()).or_default();
                devices.push(device);
                paths.push(path);
            }
            Err(error) => scan.skipped.push((path, error)),
        }
    }
    scan.pools =
        pools.into_values().map(|(devices, paths)| FoundPool::new(Pool::scan(&devices), &paths)).collect();
    scan
}

/// The block devices of this machine in which a pool can be. Devices without bytes are left out, and so are
/// those that another block device is made of: it has their content.
#[must_use]
pub fn block_devices() -> Vec<PathBuf> {
    let entries = fs::read_dir(BLOCK_DEVICES).into_iter().flatten().flatten();
    let mut devices: Vec<PathBuf> = entries
        .filter(|entry| {
            let size = fs::read_to_string(entry.path().join("size")).unwrap_or_default();
            let mut holders = fs::read_dir(entry.path().join("holders")).into_iter().flatten();
            size.trim() != "0" && holders.next().is_none()
        })
        // In the names of the kernel's list an exclamation mark stands for a slash.
        .map(|entry| Path::new("/dev").join(entry.file_name().to_string_lossy().replace('!', "/")))
        .collect();
    devices.sort();
    devices
}

/// The files and block devices of a directory and of its directories, in order.
fn files_in(directory: &Path, skipped: &mut Vec<(PathBuf, Error)>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut inner = Vec::new();
    let mut list = |directory: &Path, inner: Option<&mut Vec<PathBuf>>| {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) => return skipped.push((directory.to_path_buf(), Error::of_path(directory, &error))),
        };
        let mut inner = inner;
        // Beyond the limit the search ends anyway. Entries are counted before they are sorted.
        for entry in entries.flatten().take(FILES_MAX + 1) {
            let path = entry.path();
            let Ok(metadata) = path.metadata() else { continue };
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if metadata.is_file() || metadata.file_type().is_block_device() {
                files.push(path);
            } else if let Some(inner) = inner.as_mut().filter(|_| metadata.is_dir() && !is_link) {
                inner.push(path);
            }
        }
    };
    list(directory, Some(&mut inner));
    inner.sort();
    for directory in &inner {
        list(directory, None);
    }
    files.sort();
    files
}

/// One device's answer, or the reason why there is none.
type DeviceAnswer = Result<Option<ScannedDevice>, Error>;

/// Reads the roots of files, some at one time.
fn read_all(paths: Vec<PathBuf>) -> Vec<(PathBuf, DeviceAnswer)> {
    let mut answers = Vec::with_capacity(paths.len());
    for paths in paths.chunks(AT_ONCE) {
        let asked: Vec<(PathBuf, Receiver<DeviceAnswer>)> =
            paths.iter().map(|path| (path.clone(), ask(path))).collect();
        for (path, answer) in asked {
            let answer = answer.recv_timeout(ANSWER_MAX).unwrap_or_else(|_| {
                let seconds = ANSWER_MAX.as_secs();
                Err(Error::of_path(&path, &std::io::Error::other(format!("no answer for {seconds} s")))
                    .with_hint("the device hangs; look for its errors in the kernel's log"))
            });
            answers.push((path, answer));
        }
    }
    answers
}

/// Reads the roots of one file on a thread of its own. The thread outlives the search if the device hangs.
fn ask(path: &Path) -> Receiver<DeviceAnswer> {
    let (sender, receiver) = sync_channel(1);
    let own = path.to_path_buf();
    let threaded = sender.clone();
    let work = move || {
        // The search may have given up.
        let _ = threaded.send(read(&own));
    };
    if std::thread::Builder::new().name("warpfire-scan".to_owned()).spawn(work).is_err() {
        let _ = sender.try_send(read(path));
    }
    receiver
}

fn read(path: &Path) -> DeviceAnswer {
    let device: Arc<dyn Device> = match FileDevice::open_to_look(path) {
        // Too small for a root.
        Err(OpenError::TooSmall { .. }) => return Ok(None),
        opened => Arc::new(opened?),
    };
    Ok(Pool::scan_device(device)?)
}
