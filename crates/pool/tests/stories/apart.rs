//! Devices that were written apart: they are refused together, a device that only missed something is taken
//! back, and a state that may be older is not opened unasked.

use std::sync::Arc;

use warpfire_env::Device;
use warpfire_format::crc32c;
use warpfire_format::root::Unsupported;
use warpfire_pool::{DeviceSetError, Pool, PoolError, SegmentStream};
use warpfire_sim_env::{DistinctNumbers, Fault, SimWorld};
use warpfire_units::{BLOCK_BYTES, DeviceIndex};

use crate::opening::refusal;
use crate::rig::{DEVICE_BYTES, ZONE_BYTES, devices_without, id, open, world, write_segment};

/// One device of each world.
fn joined(a: &SimWorld, b: &SimWorld) -> Vec<Arc<dyn Device>> {
    vec![a.devices()[0].clone(), b.devices()[1].clone()]
}

/// The world after a session, of which the last part, `torn`, did not reach `device`.
fn cut_off(device: usize, world: &SimWorld, whole: impl FnOnce(&Pool), torn: impl FnOnce(&Pool)) -> SimWorld {
    let after = world.fork();
    let (pool, _) = open(after.devices()).unwrap();
    whole(&pool);
    let before_cut = after.fork();
    torn(&pool);
    for at in (0..DEVICE_BYTES).step_by(BLOCK_BYTES) {
        after.sims()[device].poke(at, &before_cut.sims()[device].peek(at, BLOCK_BYTES));
    }
    after
}

/// Begins a session, which writes no root but the inherited one.
fn begin_session(pool: &Pool) {
    let _epoch_is_durable = pool.allocate(id(7), SegmentStream::Large).unwrap();
}

fn write_roots(devices: Vec<Arc<dyn Device>>, count: u32) {
    let (pool, _) = open(devices).unwrap();
    for n in 0..count {
        pool.write_root(&n.to_le_bytes()).unwrap();
    }
}

/// The roots of two sessions with one epoch were compared by their numbers alone: after 128 roots of one of
/// them nothing was left to compare.
#[test]
fn halves_that_were_written_apart_are_told_apart_however_much_each_wrote() {
    let (world, pool) = world(46, 2, 1, 1);
    drop(pool);
    for (sessions, roots) in
        [([1, 1], [1, 1]), ([1, 1], [200, 1]), ([1, 1], [1, 200]), ([20, 1], [3, 1]), ([2, 20], [1, 70])]
    {
        let (left, right) = (world.fork(), world.fork());
        for (side, half, without) in [(0, &left, [1]), (1, &right, [0])] {
            for _ in 0..sessions[side] {
                write_roots(devices_without(half, &without), roots[side]);
            }
        }
        let DeviceSetError::Diverged { one, other } = refusal(open(joined(&left, &right))) else {
            panic!("{sessions:?} sessions, {roots:?} roots");
        };
        assert_eq!((one.len(), other.len()), (1, 1));
        let reader = Pool::open_for_reading(joined(&left, &right));
        assert!(matches!(refusal(reader), DeviceSetError::Diverged { .. }));
        for (half, without) in [(&left, [1]), (&right, [0])] {
            open(devices_without(half, &without)).unwrap();
        }
    }
}

/// A session lost a device and went on without it; the device was opened alone later. No session number
/// shows it: only the root that the first session wrote when it lost the device.
#[test]
fn a_session_that_goes_on_without_a_device_is_told_apart_from_that_device() {
    let (world, pool) = world(60, 2, 1, 1);
    pool.write_root(b"both").unwrap();
    let before = world.fork();
    world.sims()[1].inject(Fault::Vanish { after: 0 });
    write_segment(&pool, id(1), &[1000]);
    drop(pool);
    write_roots(devices_without(&before, &[0]), 1);
    let devices = joined(&world, &before);
    assert!(matches!(refusal(open(devices)), DeviceSetError::Diverged { .. }));
    // Its other device had nothing that this one lacks.
    let (_, root) = open(joined(&world, &world.fork().cut(&warpfire_sim_env::Cut::KeepAll))).unwrap();
    assert_eq!(root.payload, b"both");
}

/// A root that reached one device, and a second session whose only root reached the same device, are
/// promised to nobody. The other device goes on alone. Once this left a pool that refused to open with all
/// its devices.
#[test]
fn two_power_cuts_and_an_absent_device_leave_a_pool_that_opens() {
    let (world, pool) = world(61, 2, 1, 1);
    pool.write_root(b"both").unwrap();
    drop(pool);
    let both = |pool: &Pool| pool.write_root(b"both").unwrap();
    let first_cut = cut_off(1, &world, both, |pool| pool.write_root(b"of one").unwrap());
    let second_cut = cut_off(1, &first_cut, |_| {}, begin_session);
    for (roots, sessions) in [(1, 1), (2, 1), (150, 1), (1, 20)] {
        for cut in [&first_cut, &second_cut] {
            let cut = cut.fork();
            for _ in 0..sessions {
                write_roots(devices_without(&cut, &[0]), roots);
            }
            let (pool, root) =
                open(cut.devices()).unwrap_or_else(|e| panic!("{roots} roots, {sessions}: {e}"));
            assert_eq!(root.payload, (roots - 1).to_le_bytes(), "of the device that went on");
            assert_eq!(pool.status().lost(), 0);
            pool.write_root(b"together").unwrap();
            for missing in 0..2 {
                let (_, root) = open(devices_without(&cut, &[missing])).unwrap();
                assert_eq!(root.payload, b"together");
            }
        }
    }
}

/// The first root of a session that is not inherited reached one device only. The session had written its
/// inherited root to both.
#[test]
fn a_session_whose_first_own_root_reached_one_device_is_taken_back() {
    let (world, pool) = world(63, 2, 1, 1);
    pool.write_root(b"both").unwrap();
    drop(pool);
    let mut cut = world;
    // As often as a history has room for more than once.
    for _ in 0..20 {
        cut = cut_off(1, &cut, begin_session, |_| {});
    }
    let cut = cut_off(1, &cut, begin_session, |pool| pool.write_root(b"of one").unwrap());
    for (roots, sessions) in [(1, 1), (150, 1), (1, 20)] {
        let cut = cut.fork();
        for _ in 0..sessions {
            write_roots(devices_without(&cut, &[0]), roots);
        }
        let (pool, root) = open(cut.devices()).unwrap_or_else(|e| panic!("{roots} roots, {sessions}: {e}"));
        assert_eq!(root.payload, (roots - 1).to_le_bytes(), "of the device that went on");
        assert_eq!(pool.status().lost(), 0);
    }
}

/// A mirror's devices went on one after the other from one inherited root.
#[test]
fn halves_that_went_on_from_one_inherited_root_are_told_apart() {
    let (world, pool) = world(64, 2, 1, 1);
    pool.write_root(b"both").unwrap();
    drop(pool);
    let left = world.fork();
    let (pool, _) = open(left.devices()).unwrap();
    begin_session(&pool);
    let right = left.fork();
    left.sims()[1].inject(Fault::Vanish { after: 0 });
    pool.write_root(b"left").unwrap();
    drop(pool);
    write_roots(devices_without(&right, &[0]), 1);
    assert!(matches!(refusal(open(joined(&left, &right))), DeviceSetError::Diverged { .. }));
}

/// Sessions that were cut off at once leave higher epochs and numbers than the session that wrote something.
#[test]
fn what_a_session_wrote_counts_more_than_a_later_session_that_wrote_nothing() {
    let (world, pool) = world(38, 2, 1, 1);
    pool.write_root(b"both").unwrap();
    drop(pool);
    for _ in 0..5 {
        begin_session(&open(devices_without(&world, &[1])).unwrap().0);
    }
    write_roots(devices_without(&world, &[0]), 1);
    let (pool, root) = open(world.devices()).unwrap();
    assert_eq!((root.payload, root.epoch), (vec![0; 4], 2));
    assert_eq!(pool.epoch(), 7, "no epoch is used twice");
}

#[test]
fn a_device_that_was_away_for_many_sessions_is_taken_back() {
    let (world, pool) = world(62, 3, 2, 1);
    drop(pool);
    for _ in 0..40 {
        write_roots(devices_without(&world, &[1]), 2);
    }
    write_roots(world.devices(), 1);
    write_roots(devices_without(&world, &[0]), 1);
    assert_eq!(open(world.devices()).unwrap().0.status().lost(), 0);
}

/// Each half of a mirror can go on without the other. So neither alone proves that its state is the newest.
#[test]
fn a_state_that_may_be_older_is_opened_for_writing_only_on_request() {
    for (data, parity, away) in [(1u16, 1u8, vec![1]), (1, 2, vec![1]), (2, 2, vec![0, 3])] {
        let (world, pool) = world(63, usize::from(data) + usize::from(parity), data, parity);
        drop(pool);
        let some = || devices_without(&world, &away);
        let DeviceSetError::MayBeOlder { missing, .. } = refusal(Pool::open(some(), &DistinctNumbers)) else {
            panic!("{data}+{parity}");
        };
        let missing: Vec<usize> = missing.iter().map(|(index, _)| usize::from(index.0)).collect();
        assert_eq!(missing, away);
        Pool::open_for_reading(some()).unwrap();
        write_roots(some(), 2);
        // Its roots say now that the others are offline. These go on only on request too.
        Pool::open(some(), &DistinctNumbers).unwrap();
    }
    let (world, _) = world(64, 3, 2, 1);
    Pool::open(devices_without(&world, &[2]), &DistinctNumbers).unwrap();
    let (world, _) = crate::rig::world(65, 4, 2, 2);
    Pool::open(devices_without(&world, &[2]), &DistinctNumbers).unwrap();
}

/// The root that a session begins with goes to all devices before the session has given the device that was
/// away what it missed.
#[test]
fn a_device_that_was_just_taken_back_is_no_pool_by_itself() {
    let (world, pool) = world(66, 2, 1, 1);
    drop(pool);
    write_roots(devices_without(&world, &[1]), 2);
    let (pool, _) = open(world.devices()).unwrap();
    begin_session(&pool);
    let alone = refusal(open(devices_without(&world, &[0])));
    assert!(matches!(alone, DeviceSetError::Missing { .. }), "{alone:?}");
    pool.write_root(b"caught up").unwrap();
    let (_, root) = open(devices_without(&world, &[0])).unwrap();
    assert_eq!(root.payload, b"caught up");
    let status = open(world.devices()).unwrap().0.status();
    assert_eq!(status.devices[1].index, DeviceIndex(1));
    assert_eq!(status.lost(), 0);
}

#[test]
fn pools_of_another_format_or_with_unknown_features_are_refused_by_name() {
    let (fresh, pool) = world(67, 1, 1, 0);
    drop(pool);
    let with = |at: usize, value: u8| {
        let world = fresh.fork();
        let mut block = world.sims()[0].peek(0, BLOCK_BYTES);
        block[at] = value;
        let crc = crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        world.sims()[0].poke(0, &block);
        world
    };
    for (at, value, found, words) in [
        (8, 1, Unsupported::Version(1), "format 1"),
        (8, 3, Unsupported::Version(3), "format 3"),
        (81, 0x14, Unsupported::Features(0x1400), "10, 12"),
    ] {
        let world = with(at, value);
        let error = refusal(open(world.devices()));
        assert_eq!(error, DeviceSetError::Unsupported { device: "flash0".into(), found });
        assert!(error.to_string().contains(words), "{error}");
        let made = crate::rig::create(&world, &crate::rig::options(1, 0)).map(|_| ());
        assert!(matches!(made, Err(PoolError::Devices(DeviceSetError::Unsupported { .. }))), "{made:?}");
    }
    let world = with(88, 1);
    assert_eq!(refusal(open(world.devices())), DeviceSetError::WriteFeatures { features: 1 });
    Pool::open_for_reading(world.devices()).unwrap();
}

/// The roots of two sessions are lost, and a stripe of theirs stays. Once the next session had the epoch of
/// that stripe, and could take it for its own.
#[test]
fn a_session_over_an_older_state_has_a_later_epoch_than_the_lost_ones() {
    let (world, pool) = world(63, 2, 1, 1);
    pool.write_root(b"kept").unwrap();
    drop(pool);
    let roots = |sim: &warpfire_sim_env::SimDevice| sim.peek(0, 2 * ZONE_BYTES as usize);
    let kept: Vec<Vec<u8>> = world.sims().iter().map(|sim| roots(sim)).collect();
    let mut last = 0;
    for n in 0..2 {
        let (pool, _) = open(world.devices()).unwrap();
        pool.look_for_newer_session();
        assert_eq!(pool.newer_session(), None, "nothing is lost yet");
        write_segment(&pool, id(10 + n), &[1000]);
        last = pool.epoch();
    }
    for (sim, kept) in world.sims().iter().zip(&kept) {
        sim.poke(0, kept);
    }
    let (reader, root) = Pool::open_for_reading(world.devices()).unwrap();
    reader.look_for_newer_session();
    assert_eq!((reader.newer_session(), &root.payload[..]), (Some(last), &b"kept"[..]));
    let (pool, _) = open(world.devices()).unwrap();
    assert!(pool.epoch() <= last, "the roots alone say so");
    pool.look_for_newer_session();
    assert_eq!((pool.newer_session(), pool.epoch()), (Some(last), last + 1));
    let written = write_segment(&pool, id(20), &[1000]);
    assert_eq!(written.descriptor.epoch, last + 1);
    drop(pool);
    let (pool, _) = open(world.devices()).unwrap();
    pool.look_for_newer_session();
    assert_eq!(
        (pool.newer_session(), pool.epoch()),
        (None, last + 2),
        "the state that was written is the newest"
    );
}
