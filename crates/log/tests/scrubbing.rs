//! A scrub beside calls that free the segments it reads.

mod rig;

use std::sync::{Arc, Mutex};

use warpfire_env::{Device, DeviceError, DeviceInfo, Timestamp, ZoneReport};
use warpfire_log::{Log, LogStore, Stream};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{DeviceSpec, SimWorld};

type Action = Box<dyn FnOnce() + Send>;

/// A device that does something before its next read.
struct Hooked {
    inner: Arc<dyn Device>,
    before_read: Mutex<Option<Action>>,
}

impl Device for Hooked {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let action = self.before_read.lock().unwrap().take();
        if let Some(action) = action {
            action();
        }
        self.inner.read(offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(offset_bytes, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset_bytes, len_bytes)
    }
    fn reset_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.inner.reset_zone(offset_bytes, len_bytes)
    }
    fn zone_report(&self, offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        self.inner.zone_report(offset_bytes)
    }
}

#[test]
fn a_segment_that_is_freed_under_a_scrub_is_not_damaged() {
    let size = rig::ZONES * rig::ZONE_BYTES;
    let world = SimWorld::of(1, 1, &DeviceSpec::zoned("flash", size, rig::ZONE_BYTES));
    let device = Arc::new(Hooked { inner: world.devices()[0].clone(), before_read: Mutex::new(None) });
    let options = CreateOptions { data: 1, parity: 0, zone_bytes: None, force: false };
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    let pool = Pool::create(devices, &options, &*world.random(), Timestamp::default()).unwrap();
    let log = Arc::new(Log::create(pool).unwrap().0);
    let slices = log.append(Stream::Large, &[7; 60_000]).unwrap();
    log.log(b"named").unwrap();
    log.sync().unwrap();
    let freeing = Arc::clone(&log);
    *device.before_read.lock().unwrap() = Some(Box::new(move || {
        for slice in slices {
            freeing.release(slice.segment, u64::from(slice.len_bytes));
        }
        freeing.log(b"freed").unwrap();
        freeing.sync().unwrap();
    }));
    let scrubbed = log.scrub(None).unwrap().expect("there is a segment");
    assert!(device.before_read.lock().unwrap().is_none(), "the segment was freed under the scrub");
    assert!(scrubbed.is_whole);
    assert!(log.pool().damaged_segments().is_empty());
    assert!(log.damaged().unwrap().is_empty());
}
