//! Devices that come back while the pool is in use: they are looked for, and taken back.
//!
//! # Invariants
//! 1. A device is taken back only if it is the device that left (`warpfire_pool::Pool::take_online`). Before
//!    that nothing is locked and nothing is written: its label is read (`ReturningDevices::look`).
//! 2. A device that has left [`DEPARTURES_MAX`] times within [`DEPARTURES_SPAN`] is kept offline, durably,
//!    until a person takes it online. So it does not have its columns rebuilt again and again
//!    (`Departures::note`).
//! 3. A device that a person took offline, or that has failed and is still there, is not taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use warpfire_env::FileDevice;
use warpfire_pool::DeviceState;
use warpfire_units::DeviceIndex;

use crate::open_pool::OpenPool;
use crate::{Result, device_label};

/// How often an open pool looks for devices that are back.
pub(crate) const RETURN_INTERVAL: Duration = Duration::from_secs(10);

/// Departures within [`DEPARTURES_SPAN`] after which a device is kept offline.
const DEPARTURES_MAX: usize = 3;

/// The time in which departures count.
const DEPARTURES_SPAN: Duration = Duration::from_hours(1);

/// The devices that are away, and how often each has left.
#[derive(Default)]
struct Departures {
    /// `None` before the first look: a device that is away then has not left in this session.
    away: Option<BTreeSet<DeviceIndex>>,
    /// When each left, in monotonic nanoseconds.
    at_nanos: BTreeMap<DeviceIndex, Vec<u64>>,
}

impl Departures {
    /// Takes note of the devices that are away now, and returns those that have left too often.
    fn note(&mut self, away: BTreeSet<DeviceIndex>, now_nanos: u64) -> Vec<DeviceIndex> {
        let before = self.away.replace(away.clone());
        let Some(before) = before else { return Vec::new() };
        let span_nanos = u64::try_from(DEPARTURES_SPAN.as_nanos()).unwrap_or(u64::MAX);
        let left = away.difference(&before).copied();
        let leaves_too_often = |device: &DeviceIndex| {
            let at_nanos = self.at_nanos.entry(*device).or_default();
            at_nanos.retain(|at| now_nanos.saturating_sub(*at) < span_nanos);
            at_nanos.push(now_nanos);
            at_nanos.len() >= DEPARTURES_MAX
        };
        left.filter(leaves_too_often).collect()
    }
}

/// Looks for devices that are back.
#[derive(Default)]
pub(crate) struct ReturningDevices {
    departures: Mutex<Departures>,
    /// Why each device was refused last. A reason is logged once.
    refused: Mutex<BTreeMap<PathBuf, String>>,
}

impl ReturningDevices {
    /// Keeps devices offline that leave too often, and takes those back that are there again.
    ///
    /// # Errors
    /// The pool takes no changes.
    pub fn look(&self, open_pool: &OpenPool, now_nanos: u64) -> Result<()> {
        let pool = open_pool.fs.engine().log().pool();
        let away = |state| matches!(state, DeviceState::Failed | DeviceState::Gone | DeviceState::Missing);
        let devices = pool.status().devices;
        let lost: BTreeSet<DeviceIndex> = devices.iter().filter(|d| away(d.state)).map(|d| d.index).collect();
        for index in self.departures.lock().note(lost.clone(), now_nanos) {
            let device = open_pool.device_name(index);
            tracing::warn!(
                name: "device_leaves_too_often",
                device,
                "a device has left the pool {DEPARTURES_MAX} times within an hour: it is kept offline, until \
                 'warpfire device online'"
            );
            pool.take_offline(index)?;
        }
        let is_wanted = |index| pool.status().devices.iter().any(|d| d.index == index && away(d.state));
        let mut found = false;
        for path in places(&devices, &lost) {
            let label = device_label(&path).ok().flatten();
            let is_ours = label.filter(|label| label.pool == pool.uuid().to_string());
            let is_lost = is_ours.is_some_and(|label| is_wanted(DeviceIndex(label.device)));
            // A device that has failed and is still there is held by the pool itself: it cannot be opened.
            let Some(device) = is_lost.then(|| FileDevice::open(&path).ok()).flatten() else { continue };
            match pool.take_online(Arc::new(device)) {
                Ok(_) => found = true,
                Err(error) => self.note_refused(&path, &error.to_string()),
            }
        }
        if found { open_pool.settle_devices() } else { Ok(()) }
    }

    fn note_refused(&self, path: &Path, reason: &str) {
        let before = self.refused.lock().insert(path.to_path_buf(), reason.to_owned());
        if before.as_deref() != Some(reason) {
            let device = path.display();
            tracing::warn!(name: "device_not_taken_back", %device, reason, "a device is back and is not used");
        }
    }
}

/// Where lost devices may be again: each at its path, and those without a path beside the images of others.
fn places(devices: &[warpfire_pool::DeviceStatus], lost: &BTreeSet<DeviceIndex>) -> BTreeSet<PathBuf> {
    let is_lost = |device: &&warpfire_pool::DeviceStatus| lost.contains(&device.index);
    let mut places: BTreeSet<PathBuf> = devices
        .iter()
        .filter(is_lost)
        .filter_map(|device| Some(PathBuf::from(device.name.as_ref()?)))
        .collect();
    if devices.iter().filter(is_lost).any(|device| device.name.is_none()) {
        let used: BTreeSet<PathBuf> =
            devices.iter().filter_map(|device| Some(PathBuf::from(device.name.as_ref()?))).collect();
        let is_image = |path: &Path| path.extension().is_some_and(|extension| extension == "img");
        let directories: BTreeSet<&Path> =
            used.iter().filter(|path| is_image(path)).filter_map(|path| path.parent()).collect();
        let entries = directories.into_iter().flat_map(std::fs::read_dir).flatten().flatten();
        places
            .extend(entries.map(|entry| entry.path()).filter(|path| is_image(path) && !used.contains(path)));
    }
    places
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;

    use warpfire_env::{Device, DeviceError, DeviceInfo, ZoneReport};

    use crate::{Pool, Warpfire};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn devices(numbers: &[u16]) -> BTreeSet<DeviceIndex> {
        numbers.iter().map(|number| DeviceIndex(*number)).collect()
    }

    #[test]
    fn a_device_leaves_too_often_with_its_third_departure_within_an_hour() {
        let mut departures = Departures::default();
        let mut note = |away: &[u16], minute: u64| departures.note(devices(away), minute * 60 * SECOND);
        assert_eq!(note(&[7], 0), [], "it was away before");
        assert_eq!((note(&[], 1), note(&[7], 2), note(&[7], 3)), (vec![], vec![], vec![]));
        assert_eq!((note(&[], 4), note(&[7], 5)), (vec![], vec![]));
        assert_eq!((note(&[3], 61), note(&[3, 7], 63)), (vec![], vec![]), "the first is an hour ago");
        assert_eq!((note(&[3], 64), note(&[3, 7], 64)), (vec![], vec![DeviceIndex(7)]));
    }

    /// An image file that can be unplugged.
    struct Unplugged {
        info: DeviceInfo,
        file: Mutex<Option<Arc<FileDevice>>>,
    }

    impl Unplugged {
        fn plugged(path: &Path) -> Arc<Unplugged> {
            let file = FileDevice::open(path).expect("the image is there");
            Arc::new(Unplugged { info: file.info().clone(), file: Mutex::new(Some(Arc::new(file))) })
        }

        fn file(&self) -> std::result::Result<Arc<FileDevice>, DeviceError> {
            self.file.lock().clone().ok_or(DeviceError::Gone { device: self.info.name.clone() })
        }
    }

    impl Device for Unplugged {
        fn info(&self) -> &DeviceInfo {
            &self.info
        }

        fn read(&self, at: u64, buf: &mut [u8]) -> std::result::Result<(), DeviceError> {
            self.file()?.read(at, buf)
        }

        fn write(&self, at: u64, buf: &[u8]) -> std::result::Result<(), DeviceError> {
            self.file()?.write(at, buf)
        }

        fn flush(&self) -> std::result::Result<(), DeviceError> {
            self.file()?.flush()
        }

        fn discard(&self, at: u64, len: u64) -> std::result::Result<(), DeviceError> {
            self.file()?.discard(at, len)
        }

        fn reset_zone(&self, at: u64, len: u64) -> std::result::Result<(), DeviceError> {
            self.file()?.reset_zone(at, len)
        }

        fn zone_report(&self, at: u64) -> std::result::Result<Option<ZoneReport>, DeviceError> {
            self.file()?.zone_report(at)
        }
    }

    fn pool_of(directory: &Path) -> [PathBuf; 3] {
        let images = ["0.img", "1.img", "2.img"].map(|name| directory.join(name));
        let options = Pool::options().data(2).parity(1).size_bytes(32 << 20).background(false);
        options.create(&images).and_then(Warpfire::close).expect("new images make a pool");
        images
    }

    fn state(fs: &Warpfire, index: usize) -> DeviceState {
        fs.stats().devices[index].state
    }

    fn write(fs: &Warpfire, n: usize) {
        fs.write(format!("/{n}"), vec![n as u8; 1 << 20])
            .and_then(|()| fs.sync())
            .expect("one is lost at most");
    }

    fn assert_written(fs: &Warpfire, count: usize) {
        (0..count)
            .for_each(|n| assert_eq!(fs.read(format!("/{n}")).expect("covered"), vec![n as u8; 1 << 20]));
    }

    #[test]
    fn a_missing_image_that_is_back_beside_the_others_is_taken_back() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let images = pool_of(directory.path());
        let away = directory.path().join("away");
        fs::rename(&images[1], &away).expect("renamed");
        let options = Pool::options().background(false);
        let fs = options.open([&images[0], &images[2]]).expect("one is missing");
        write(&fs, 0);
        let returning = ReturningDevices::default();
        let look = |seconds| returning.look(&fs.shared.open_pool, seconds * SECOND).expect("nothing fails");
        look(0);
        assert_eq!(state(&fs, 1), DeviceState::Missing);
        fs::rename(&away, &images[1]).expect("renamed");
        look(10);
        assert_eq!(state(&fs, 1), DeviceState::Present);
        fs.regain_redundancy(|_| ControlFlow::Continue(())).expect("all are there");
        fs.close().expect("nothing fails");
        let fs = Pool::options().background(false).degraded(true).open(&images[1..]).expect("one is missing");
        assert_written(&fs, 1);
    }

    #[test]
    fn a_device_that_is_unplugged_three_times_within_an_hour_waits_for_a_person() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let images = pool_of(directory.path());
        let plugged = Unplugged::plugged(&images[2]);
        let others = [0, 1].map(|n| Unplugged::plugged(&images[n]) as Arc<dyn Device>);
        let all = others.into_iter().chain([Arc::clone(&plugged) as Arc<dyn Device>]).collect();
        let fs = Pool::options().background(false).open_on(all).expect("all are there");
        let returning = ReturningDevices::default();
        let look = |seconds| returning.look(&fs.shared.open_pool, seconds * SECOND).expect("nothing fails");
        look(0);
        // The file is the device of the pool after the first return, so it is held by the pool then.
        *plugged.file.lock() = None;
        write(&fs, 0);
        assert_eq!(state(&fs, 2), DeviceState::Gone);
        look(10);
        assert_eq!(state(&fs, 2), DeviceState::Present, "it is back, and nobody has asked for it");
        for (n, seconds) in [(1, 20), (2, 30)] {
            fs.take_offline(2).expect("the others are there");
            let again = Unplugged::plugged(&images[2]);
            let pool = fs.fs().engine().log().pool();
            pool.take_online(Arc::clone(&again) as Arc<dyn Device>).expect("it is the device that left");
            look(seconds);
            *again.file.lock() = None;
            write(&fs, n);
            assert_eq!(state(&fs, 2), DeviceState::Gone);
            look(seconds + 5);
            let wanted = if n == 1 { DeviceState::Present } else { DeviceState::Offline };
            assert_eq!(state(&fs, 2), wanted, "after departure {}", n + 1);
        }
        look(50);
        assert_eq!(state(&fs, 2), DeviceState::Offline, "until a person says otherwise");
        assert_eq!(fs.take_online(&images[2]).expect("a person"), 2);
        assert_written(&fs, 3);
    }
}
