//! Health: errors and damage that a pool remembers from session to session.
//!
//! The record is written when the pool is closed and at the end of a scrub. After a crash the errors since
//! the last of these are forgotten; the damage itself is found again.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use warpfire_env::{Clock, SystemClock, Timestamp};
use warpfire_format::fs::{DAMAGED_FILES_MAX, DeviceErrors, HealthRecord, LastScrub};

use crate::open_pool::OpenPool;
use crate::scrub::ScrubReport;
use crate::{Result, Stats, Warpfire};

/// The errors and damage of a pool that are known, from the moment it was made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Health {
    /// Errors by device, in the order of the devices.
    pub devices: Vec<DeviceHealth>,
    /// Blocks that were reconstructed from parity.
    pub rebuilt_blocks: u64,
    /// The last scrub that ended.
    pub last_scrub: Option<ScrubOutcome>,
    /// Bad blocks that were met after the last scrub, or ever if there was none.
    pub bad_blocks_since: u64,
    /// Files that have lost bytes, as far as they are known and exist; at most 16.
    pub damaged_files: Vec<PathBuf>,
    /// Number of further damaged files.
    pub more_damaged_files: u64,
}

/// Errors of a device since the pool was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceHealth {
    /// Operations that failed or had no answer in time.
    pub errors: u64,
    /// Blocks that did not match their checksum.
    pub bad_blocks: u64,
}

/// The outcome of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ScrubOutcome {
    /// Its end.
    pub ended: Timestamp,
    /// Segments in which something did not verify.
    pub damaged_segments: u64,
    /// Segments among them that could not be repaired.
    pub unrepaired_segments: u64,
    /// Devices that were missing or had failed.
    pub lost_devices: u64,
}

/// The record of an open pool.
pub(crate) struct HealthBook {
    /// The record without this session's errors.
    before: Mutex<HealthRecord>,
    /// The record as it is in the pool.
    stored: Mutex<HealthRecord>,
}

impl HealthBook {
    /// The book of a pool that was just opened. A record that cannot be read counts as none.
    pub fn new(open_pool: &OpenPool) -> HealthBook {
        let record = open_pool.fs.health().unwrap_or_default();
        HealthBook { before: Mutex::new(record.clone()), stored: Mutex::new(record) }
    }

    /// The record with this session's errors.
    fn now(&self, stats: &Stats) -> HealthRecord {
        let mut record = self.before.lock().clone();
        record.rebuilt_blocks = record.rebuilt_blocks.saturating_add(stats.rebuilt_blocks);
        let devices = record.devices.len().max(stats.devices.len());
        record.devices.resize(devices, DeviceErrors::default());
        for (total, device) in record.devices.iter_mut().zip(&stats.devices) {
            let counters = &device.counters;
            total.errors = total.errors.saturating_add(counters.errors).saturating_add(counters.late);
            total.bad_blocks = total.bad_blocks.saturating_add(counters.checksum_errors);
        }
        while record.devices.last() == Some(&DeviceErrors::default()) {
            record.devices.pop();
        }
        record
    }

    /// Writes the record if it has changed. The caller syncs.
    pub fn store(&self, open_pool: &OpenPool) -> Result<()> {
        let record = self.now(&open_pool.stats());
        let mut stored = self.stored.lock();
        if *stored != record {
            open_pool.fs.put_health(&record)?;
            *stored = record;
        }
        Ok(())
    }

    /// Takes the outcome of a scrub. The files that an earlier one found damaged are forgotten.
    pub fn take_scrub(&self, scrub: &ScrubReport, stats: &Stats) {
        let bad_blocks = self.now(stats).bad_blocks();
        let ended = SystemClock.now();
        let mut before = self.before.lock();
        before.damaged_files.clear();
        before.more_damaged_files = 0;
        before.scrub = Some(LastScrub {
            ended_seconds: ended.seconds,
            damaged_segments: scrub.damaged_segments,
            unrepaired_segments: scrub.unrepaired_segments,
            lost_devices: scrub.lost_devices as u64,
            bad_blocks,
        });
    }

    fn take_damaged_files(&self, paths: &[&Path], more: u64, unrepaired_segments: u64) {
        let mut before = self.before.lock();
        let listed = paths.iter().take(DAMAGED_FILES_MAX);
        before.damaged_files = listed.map(|path| path.as_os_str().as_bytes().to_vec()).collect();
        before.more_damaged_files = more.saturating_add(paths.len().saturating_sub(DAMAGED_FILES_MAX) as u64);
        if let Some(scrub) = &mut before.scrub {
            scrub.unrepaired_segments = unrepaired_segments;
        }
    }
}

impl Warpfire {
    /// What the pool remembers of errors, damage and scrubs, this session's errors included.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// assert!(fs.health().last_scrub.is_none());
    /// fs.scrub(|_| ())?;
    /// assert_eq!(fs.health().last_scrub.map(|scrub| scrub.damaged_segments), Some(0));
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        let record = self.shared.health.now(&self.stats());
        let seen = record.scrub.map_or(0, |scrub| scrub.bad_blocks);
        let exists = |path: &PathBuf| self.symlink_metadata(path).is_ok();
        let paths = record.damaged_files.iter().map(|path| PathBuf::from(OsStr::from_bytes(path)));
        Health {
            devices: (record.devices.iter())
                .map(|device| DeviceHealth { errors: device.errors, bad_blocks: device.bad_blocks })
                .collect(),
            rebuilt_blocks: record.rebuilt_blocks,
            last_scrub: record.scrub.map(|scrub| ScrubOutcome {
                ended: Timestamp { seconds: scrub.ended_seconds, nanos: 0 },
                damaged_segments: scrub.damaged_segments,
                unrepaired_segments: scrub.unrepaired_segments,
                lost_devices: scrub.lost_devices,
            }),
            bad_blocks_since: record.bad_blocks().saturating_sub(seen),
            damaged_files: paths.filter(exists).collect(),
            more_damaged_files: record.more_damaged_files,
        }
    }

    /// Remembers the files that a check after a scrub found damaged: up to 16 of them by path, and the number
    /// of the others. `unrepaired_segments` are the damaged segments that something needs.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`.
    pub fn remember_damaged_files(&self, paths: &[&Path], more: u64, unrepaired_segments: u64) -> Result<()> {
        self.shared.health.take_damaged_files(paths, more, unrepaired_segments);
        self.shared.health.store(&self.shared.open_pool)?;
        self.sync()
    }
}
