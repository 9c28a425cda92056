//! A scrub beside calls that free the segments it reads.

mod rig;

use std::sync::Arc;

use rig::hooked::Hooked;
use warpfire_env::{Device, Timestamp};
use warpfire_log::{Log, LogStore, Stream, WorkFor};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{DeviceSpec, SimWorld};

#[test]
fn a_segment_that_is_freed_under_a_scrub_is_not_damaged() {
    let size = rig::ZONES * rig::ZONE_BYTES;
    let world = SimWorld::of(1, 1, &DeviceSpec::zoned("flash", size, rig::ZONE_BYTES));
    let device = Hooked::new(world.devices()[0].clone());
    let options = CreateOptions { data: 1, parity: 0, zone_bytes: None, force: false };
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    let pool = Pool::create(devices, &options, &*world.random(), Timestamp::default()).unwrap();
    let log = Arc::new(Log::create(pool).unwrap().0);
    let slices = log.append(Stream::Large, &[7; 60_000]).unwrap();
    log.log(b"named").unwrap();
    log.sync().unwrap();
    let freeing = Arc::clone(&log);
    device.before_read(move || {
        for slice in slices {
            freeing.release(slice.segment, u64::from(slice.len_bytes));
        }
        freeing.log(b"freed").unwrap();
        freeing.sync().unwrap();
    });
    let scrubbed = log.scrub(None, WorkFor::Caller).unwrap().verified().expect("there is a segment");
    assert!(device.is_done(), "the segment was freed under the scrub");
    assert!(scrubbed.is_whole);
    assert!(log.pool().damaged_segments().is_empty());
    assert!(log.damaged().unwrap().is_empty());
}
