//! The shapes that a pool can have, and what its devices leave unused.

use std::sync::Arc;

use warpfire_env::{Device, Timestamp};
use warpfire_pool::{
    CreateOptions, DeviceSetError, Pool, PoolError, SegmentKind, SegmentStream, SegmentWriter,
};
use warpfire_sim_env::{DeviceSpec, Fault, SimWorld};
use warpfire_units::{DeviceIndex, SegmentId};

const ZONE_BYTES: u64 = 128 << 10;

fn create(devices: Vec<Arc<dyn Device>>, data: u16, parity: u8) -> Result<Pool, PoolError> {
    let options = CreateOptions { data, parity, zone_bytes: Some(ZONE_BYTES), force: false };
    Pool::create(devices, &options, &*SimWorld::new(3).random(), Timestamp::default())
}

fn world(zones: &[u64]) -> SimWorld {
    let mut world = SimWorld::new(3);
    for (n, zones) in zones.iter().enumerate() {
        world.add(DeviceSpec::conventional(format!("d{n}"), zones * ZONE_BYTES));
    }
    world
}

#[test]
fn a_pool_has_data_few_parity_columns_and_at_most_512_devices() {
    for (devices, data, parity) in [(2, 0, 1), (10, 1, 9), (2, 2, 1), (513, 1, 0)] {
        let refused = create(world(&vec![32; devices]).devices(), data, parity).map(|_| ());
        let is_impossible = matches!(refused, Err(PoolError::Devices(DeviceSetError::Impossible(_))));
        assert!(is_impossible, "{data}+{parity} on {devices}: {refused:?}");
    }
    create(world(&[32; 512]).devices(), 1, 0).expect("a pool of 512 devices");
}

#[test]
fn missing_devices_are_counted_in_words() {
    let names =
        |count: u16| (0..count).map(|n| (DeviceIndex(n), warpfire_format::Uuid::new(9).unwrap())).collect();
    let missing = |count| DeviceSetError::Missing {
        missing: names(count),
        parity: 0,
        offline: Vec::new(),
        old_copies: Vec::new(),
    };
    assert!(missing(1).to_string().starts_with("1 device is missing and parity covers 0: device 0 "));
    assert!(missing(2).to_string().starts_with("2 devices are missing and parity covers 0: device 0 "));
}

/// Each device keeps zones for roots and for the log that no stripe of user data takes.
#[test]
fn stranded_zones_leave_out_those_that_are_kept_on_each_device() {
    let pool = create(world(&[40, 40, 120]).devices(), 1, 1).expect("a pool");
    let stranded = pool.stranded();
    let [(DeviceIndex(2), zones)] = stranded.zones[..] else { panic!("{stranded:?}") };
    // As many zones are kept on the large device as on each small one.
    let kept = zones - (120 - 40 - 40);
    assert!((3..=4).contains(&kept), "two zones hold roots, and one or two are for the log: {kept}");
}

#[test]
fn a_device_that_is_gone_takes_no_writes() {
    let world = world(&[40; 3]);
    let pool = create(world.devices(), 1, 1).expect("a pool");
    assert!((0..3).all(|n| pool.takes_writes(DeviceIndex(n))));
    world.sims()[1].inject(Fault::Vanish { after: 0 });
    pool.write_root(b"state").expect("two devices are enough");
    assert!(!pool.takes_writes(DeviceIndex(1)));
    assert!(pool.takes_writes(DeviceIndex(0)) && pool.takes_writes(DeviceIndex(2)));
}

#[test]
fn free_bytes_are_those_of_the_segments_that_fit() {
    for (zones, data, parity) in [(vec![40], 1, 0), (vec![40, 40, 40], 2, 1), (vec![40, 30, 50, 60], 2, 1)] {
        let pool = create(world(&zones).devices(), data, parity).expect("a pool");
        let (fits, free_bytes) = (pool.free_segments(SegmentKind::Bulk), pool.free_bytes());
        assert!(fits > 1);
        let id = |n: usize| SegmentId::new(n as u64 + 1).expect("not zero");
        let mut writers = Vec::new();
        while let Ok(writer) = pool.allocate(id(writers.len()), SegmentStream::Large) {
            writers.push(writer);
        }
        assert_eq!(writers.len() as u64, fits, "{zones:?}");
        let bytes: u64 = writers.iter().map(SegmentWriter::remaining_bytes).sum();
        assert_eq!(bytes, free_bytes, "{zones:?}");
        assert_eq!((pool.free_segments(SegmentKind::Bulk), pool.free_bytes()), (0, 0), "{zones:?}");
    }
}

/// The last one is for a recovery.
#[test]
fn the_last_free_mirror_is_not_one_that_leaves_another() {
    for (zones, data, parity) in [(vec![24], 1, 0), (vec![24, 24, 24], 1, 1), (vec![24, 30, 24, 40], 2, 2)] {
        let world = world(&zones);
        let pool = create(world.devices(), data, parity).expect("a pool");
        let mut ids = (1..).map(|n| SegmentId::new(n).expect("not zero"));
        let mut next_id = || ids.next().expect("there are enough numbers");
        while pool.leaves_a_mirror() {
            pool.allocate(next_id(), SegmentStream::CommitLog).expect("there is another one");
        }
        if parity == 0 {
            assert_eq!(pool.free_segments(SegmentKind::Mirror), 1, "{zones:?}");
        }
        for lost in 0..usize::from(parity) {
            world.sims()[lost].inject(Fault::Vanish { after: 0 });
        }
        pool.write_root(b"state").expect("enough devices are left");
        let last = pool.allocate(next_id(), SegmentStream::CommitLog);
        assert!(last.is_ok(), "{zones:?}: the losses leave one");
    }
}
