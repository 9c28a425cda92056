//! How many more devices may be lost: what the log says, against openings without them.

mod rig;

use std::collections::BTreeSet;

use rig::filled::{Filled, checkpoint, lose};
use rig::{open, shape};
use warpfire_log::{Log, LogStore, Stream};
use warpfire_sim_env::{Fault, SimWorld};
use warpfire_units::DeviceIndex;

/// Every set of `count` of the devices.
fn sets(devices: &[usize], count: u32) -> Vec<Vec<usize>> {
    let set = |bits: u32| devices.iter().copied().filter(move |n| bits >> n & 1 == 1);
    let all = devices.iter().fold(0, |bits, n| bits | 1 << n);
    let bits = (0u32..=all).filter(|bits| bits & !all == 0 && bits.count_ones() == count);
    bits.map(|bits| set(bits).collect()).collect()
}

fn opens_without(world: &SimWorld, lost: &[usize]) -> bool {
    let world = world.fork();
    lost.iter().for_each(|n| world.sims()[*n].inject(Fault::Vanish { after: 0 }));
    open(&world).is_ok()
}

/// A pool that has lost some devices, one after the other, opens without as many more as it says.
#[test]
fn a_pool_without_segments_opens_without_as_many_devices_as_it_says() {
    for (data, parity, devices) in
        [(1, 0, 2), (1, 1, 2), (1, 1, 3), (1, 1, 5), (2, 2, 4), (2, 2, 7), (2, 3, 6)]
    {
        let world = shape(data, parity, devices).world(1);
        let log = shape(data, parity, devices).create(&world).expect("blank devices take a log");
        for lost in 0..devices {
            let context = format!("{data} + {parity} on {devices} without {lost}");
            checkpoint(&log);
            let left = u32::from(log.losses_left().unwrap_or_else(|| panic!("{context}: it works")));
            let others: Vec<usize> = (lost..devices).collect();
            let without = |more: &[usize]| [&(0..lost).collect::<Vec<_>>(), more].concat();
            for more in sets(&others, left) {
                assert!(
                    opens_without(&world, &without(&more)),
                    "{context}: {left} more may be lost, {more:?}"
                );
            }
            assert!(left <= u32::from(parity), "{context}: segments have so many columns to lose");
            if left < u32::from(parity) && others.len() > left as usize + 1 {
                let opens = sets(&others, left + 1).iter().all(|more| opens_without(&world, &without(more)));
                assert!(!opens, "{context}: more than {left} may be lost");
            }
            if left == 0 {
                break;
            }
            lose(&world, &log, DeviceIndex(u16::try_from(lost).expect("few devices")));
        }
    }
}

fn create(devices: usize) -> (SimWorld, Log) {
    let world = shape(1, 1, devices).world(5);
    let log = shape(1, 1, devices).create(&world).expect("blank devices take a log");
    (world, log)
}

/// The devices of the commit log behind the last checkpoint.
fn log_devices(log: &Log) -> Vec<DeviceIndex> {
    checkpoint(log);
    log.log(b"a record").and_then(|_| log.sync()).expect("nothing fails");
    (0..log.pool().status().devices.len())
        .map(|n| DeviceIndex(u16::try_from(n).expect("few devices")))
        .filter(|device| log.segments_on(*device) > 0)
        .collect()
}

#[test]
fn old_segments_of_the_log_hold_the_guarantee_back_until_a_checkpoint() {
    let (world, log) = create(5);
    let devices = log_devices(&log);
    assert_eq!(devices.len(), 2);
    assert_eq!(
        (log.losses_left(), log.is_held_back_by_leftovers(), log.is_log_at_risk()),
        (Some(1), false, false)
    );
    log.vacate(BTreeSet::from([devices[0]]));
    assert!(!log.is_log_at_risk(), "the device takes writes");
    lose(&world, &log, devices[0]);
    assert_eq!(
        (log.losses_left(), log.is_held_back_by_leftovers(), log.is_log_at_risk()),
        (Some(0), true, true)
    );
    log.vacate(BTreeSet::new());
    assert!(!log.is_log_at_risk(), "the device may come back");
    log.vacate(BTreeSet::from([devices[0]]));
    checkpoint(&log);
    assert_eq!(
        (log.losses_left(), log.is_held_back_by_leftovers(), log.is_log_at_risk()),
        (Some(1), false, false)
    );
}

#[test]
fn a_device_that_the_log_does_not_use_puts_nothing_at_risk() {
    let (world, log) = create(5);
    let devices = log_devices(&log);
    let other = (0..5).map(DeviceIndex).find(|device| !devices.contains(device)).expect("two of five");
    lose(&world, &log, other);
    log.vacate(BTreeSet::from([other]));
    assert_eq!(
        (log.losses_left(), log.is_held_back_by_leftovers(), log.is_log_at_risk()),
        (Some(1), false, false)
    );
}

/// A segment without live bytes may be read under a pin, and goes with the next checkpoint otherwise.
#[test]
fn dead_segments_hold_the_guarantee_back_until_a_checkpoint() {
    let (world, log) = create(5);
    let filled = Filled::new(&log, Stream::Large, 3);
    lose(&world, &log, *filled.devices.first().expect("it has columns"));
    checkpoint(&log);
    assert_eq!((log.losses_left(), log.is_held_back_by_leftovers()), (Some(0), false), "it is alive");
    let pin = log.pin();
    filled.keep(&log, 0);
    assert_eq!((log.losses_left(), log.is_held_back_by_leftovers()), (Some(0), false), "a reader keeps it");
    drop(pin);
    assert_eq!((log.losses_left(), log.is_held_back_by_leftovers()), (Some(0), true));
    checkpoint(&log);
    assert_eq!((log.losses_left(), log.is_held_back_by_leftovers()), (Some(1), false));
}

/// A checkpoint would change nothing: a segment with live bytes may lose no more devices either.
#[test]
fn leftovers_hold_nothing_back_that_live_segments_hold_too() {
    let (world, log) = create(4);
    let live: Vec<Filled> = (1..4).map(|rows| Filled::new(&log, Stream::Large, rows)).collect();
    let dead: Vec<Filled> = (1..4).map(|rows| Filled::new(&log, Stream::Large, rows)).collect();
    let devices = log_devices(&log);
    let is_on =
        |filled: &[Filled], device: &DeviceIndex| filled.iter().any(|one| one.devices.contains(device));
    let device =
        *devices.iter().find(|device| is_on(&live, device) && is_on(&dead, device)).expect("one of two");
    dead.iter().for_each(|one| one.keep(&log, 0));
    lose(&world, &log, device);
    assert!(log.has_unpinned());
    assert_eq!((log.losses_left(), log.is_held_back_by_leftovers()), (Some(0), false));
    live.iter().for_each(|one| one.keep(&log, 0));
    assert_eq!((log.losses_left(), log.is_held_back_by_leftovers()), (Some(0), true));
}

/// Two devices with columns of a segment of one parity column are lost.
#[test]
fn a_segment_that_has_lost_too_much_leaves_no_guarantee() {
    let (world, log) = create(6);
    let filled = Filled::new(&log, Stream::Large, 3);
    checkpoint(&log);
    for device in &filled.devices {
        assert!(log.losses_left().is_some());
        world.sims()[usize::from(device.0)].inject(Fault::Vanish { after: 0 });
        let label = warpfire_pool::PoolLabel::new(&format!("x{}", device.0)).expect("a short name");
        log.pool().set_label(label).expect("four devices take it");
    }
    assert_eq!((log.losses_left(), log.is_held_back_by_leftovers()), (None, false));
}
