//! Health: errors and damage that a pool remembers from session to session.
//!
//! # Invariants
//! 1. The record is written when the pool is closed, at the end of a scrub, and while the pool is open after
//!    errors: once [`HEALTH_INTERVAL`] after the first, then at most once in [`STORE_NANOS_MIN`]
//!    (`store_if_worse`). A crash forgets the errors after the last of these. The damage itself is found
//!    again.
//! 2. A pool without errors gets no write and no flush for its health (`store`, `store_if_worse`).
//! 3. A pool that is open for reading stores nothing: what a reader meets is known until it closes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    /// Segments in which something did not verify, or with less redundancy than the devices allowed.
    pub damaged_segments: u64,
    /// Segments among them that could not be repaired.
    pub unrepaired_segments: u64,
    /// Devices that were missing or had failed.
    pub lost_devices: u64,
}

/// How often an open pool looks whether it has met errors.
pub(crate) const HEALTH_INTERVAL: Duration = Duration::from_secs(5);

/// Least time between two writes of the record because of errors, in nanoseconds.
const STORE_NANOS_MIN: u64 = 60_000_000_000;

/// The record of an open pool.
pub(crate) struct HealthBook {
    /// The record without this session's errors.
    before: Mutex<HealthRecord>,
    /// The record as it is in the pool.
    stored: Mutex<HealthRecord>,
    /// When errors were stored last, in monotonic nanoseconds.
    errors_stored: Mutex<Option<u64>>,
}

impl HealthBook {
    /// The book of a pool that was just opened. A record that cannot be read counts as none.
    pub fn new(open_pool: &OpenPool) -> HealthBook {
        let record = open_pool.fs.health().unwrap_or_default();
        let (before, stored) = (Mutex::new(record.clone()), Mutex::new(record));
        HealthBook { before, stored, errors_stored: Mutex::new(None) }
    }

    /// The record with this session's errors.
    fn now(&self, stats: &Stats) -> HealthRecord {
        let mut record = self.before.lock().clone();
        record.rebuilt_blocks = record.rebuilt_blocks.saturating_add(stats.rebuilt_blocks);
        let indexes = stats.devices.last().map_or(0, |device| usize::from(device.index) + 1);
        record.devices.resize(record.devices.len().max(indexes), DeviceErrors::default());
        for device in &stats.devices {
            let total = &mut record.devices[usize::from(device.index)];
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
        // Under the lock: of two records that are stored at once, the newer one is stored last.
        let mut stored = self.stored.lock();
        let record = self.now(&open_pool.stats());
        if *stored != record {
            open_pool.fs.put_health(&record)?;
            *stored = record;
        }
        Ok(())
    }

    /// Stores errors that the record does not have yet, durably. A burst of errors is stored once at its
    /// beginning, and then once in [`STORE_NANOS_MIN`].
    pub fn store_if_worse(&self, open_pool: &OpenPool, now_nanos: u64) -> Result<()> {
        let mut errors_stored = self.errors_stored.lock();
        let is_due = errors_stored.is_none_or(|at| now_nanos.saturating_sub(at) >= STORE_NANOS_MIN);
        if !is_due || self.now(&open_pool.stats()) == *self.stored.lock() {
            return Ok(());
        }
        *errors_stored = Some(now_nanos);
        self.store(open_pool)?;
        Ok(open_pool.fs.sync()?)
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
            damaged_segments: scrub.damaged_segments + scrub.weak_segments,
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
    /// Errors are stored some seconds after the first, then about once a minute, and at the close; a crash
    /// forgets those since then. Without [`background`](crate::PoolOptions::background) threads they are
    /// stored at the close only. A pool that is open for reading only forgets the errors that it meets.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// assert!(fs.health().last_scrub.is_none());
    /// fs.scrub(|_| std::ops::ControlFlow::Continue(()))?;
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

#[cfg(test)]
mod tests {
    use warpfire_sim_env::{Cut, DeviceSpec, SimWorld};

    use crate::Pool;

    use super::*;

    const FILE_BYTES: usize = 1 << 20;

    /// A pool of 2+1 devices that was closed with a file in it, open again.
    fn reopened() -> (SimWorld, Warpfire) {
        let world = SimWorld::of(7, 3, &DeviceSpec::conventional("flash", 32 << 20));
        let options = Pool::options().data(2).parity(1).background(false);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| (at / 4096 * 7 + at) as u8).collect();
        fs.write("/a", bytes).expect("there is room");
        fs.close().expect("sound devices do not fail");
        let fs = options.open_on(world.devices()).expect("a closed pool opens");
        (world, fs)
    }

    /// Overwrites a part of what the first device holds after its roots.
    fn hurt(world: &SimWorld, from: u64, to: u64) {
        let sim = &world.sims()[0];
        let held = |at: &u64| sim.peek(*at, 4096).iter().filter(|byte| **byte != 0).count() > 4000;
        for at in (from..to).step_by(4096).filter(held) {
            sim.poke(at, &[0xA5; 4096]);
        }
    }

    /// The bad blocks that the pool remembers after a power cut now.
    fn bad_blocks_after_crash(world: &SimWorld) -> u64 {
        let crashed = world.cut(&Cut::LoseAll);
        let fs = Pool::options().read_only(true).open_on(crashed.devices()).expect("one device is damaged");
        fs.shared.health.stored.lock().bad_blocks()
    }

    #[test]
    fn errors_survive_a_crash_and_a_burst_is_stored_once_a_minute() {
        let (world, fs) = reopened();
        let store = |now_nanos| {
            let stored = fs.shared.health.store_if_worse(&fs.shared.open_pool, now_nanos);
            stored.expect("sound devices take a record");
        };
        let counters = fs.stats().counters();
        store(1);
        let after = fs.stats().counters();
        assert_eq!((after.writes, after.flushes), (counters.writes, counters.flushes), "nothing has failed");
        hurt(&world, 2 << 20, 32 << 20);
        assert_eq!(fs.read("/a").expect("parity covers one device").len(), FILE_BYTES);
        assert!(fs.health().bad_blocks_since > 0, "the read met the damage");
        assert_eq!(bad_blocks_after_crash(&world), 0);
        store(2);
        let first = bad_blocks_after_crash(&world);
        assert!(first > 0);
        fs.read("/a").expect("parity covers one device");
        fs.scrub(|_| std::ops::ControlFlow::Continue(())).expect("the scrub reads parity too");
        hurt(&world, 2 << 20, 32 << 20);
        fs.read("/a").expect("parity covers one device");
        let now = fs.health().devices[0].bad_blocks;
        let stored = bad_blocks_after_crash(&world);
        assert!(stored < now, "{stored} of {now} were stored by the scrub");
        store(STORE_NANOS_MIN);
        assert_eq!(bad_blocks_after_crash(&world), stored, "less than a minute after the first");
        store(STORE_NANOS_MIN + 2);
        assert_eq!(bad_blocks_after_crash(&world), now);
    }

    #[test]
    fn an_open_pool_stores_its_errors_without_a_call() {
        let (world, fs) = reopened();
        drop(fs);
        let fs = Pool::options().open_on(world.devices()).expect("a closed pool opens");
        hurt(&world, 2 << 20, 32 << 20);
        fs.read("/a").expect("parity covers one device");
        for _ in 0..100 {
            if bad_blocks_after_crash(&world) > 0 {
                return;
            }
            std::thread::park_timeout(HEALTH_INTERVAL / 10);
        }
        panic!("nothing was stored in {:?}", HEALTH_INTERVAL * 10);
    }
}
