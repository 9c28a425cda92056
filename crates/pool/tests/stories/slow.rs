//! Devices that do not answer in time.

use std::time::Duration;

use warpfire_env::Clock;
use warpfire_pool::{DeviceState, Pool, PoolError, READ_WAIT_MAX, SegmentStream, WRITE_WAIT_MAX};
use warpfire_sim_env::{Fault, OpClass, SimWorld};

use crate::rig::{assert_reads, id, open_with, read, world, write_segment};

const HOUR: Duration = Duration::from_secs(3600);

fn hang(op: Option<OpClass>) -> Fault {
    Fault::Hang { op, after: 0, nanos: HOUR.as_nanos() as u64 }
}

fn now(world: &SimWorld) -> Duration {
    Duration::from_nanos(world.clock().monotonic_nanos())
}

fn slow_devices(pool: &Pool) -> Vec<usize> {
    (0..).zip(pool.status().devices).filter(|(_, d)| d.is_slow).map(|(n, _)| n).collect()
}

#[test]
fn a_device_that_hangs_is_read_round_until_it_answers() {
    for (data, parity) in [(4, 2), (1, 1)] {
        let (world, pool) = world(80, usize::from(data) + usize::from(parity), data, parity);
        let written = write_segment(&pool, id(1), &[20_000, 5000, 300]);
        let silent = usize::from(written.descriptor.columns[0].0.0);
        let sim = &world.sims()[silent];
        sim.inject(hang(None));
        assert_reads(&pool, &written);
        assert_eq!(now(&world), READ_WAIT_MAX, "one read waited, and then none");
        assert_eq!(slow_devices(&pool), [silent]);
        let reads = sim.counters().reads;
        assert_reads(&pool, &written);
        assert_eq!((now(&world), sim.counters().reads), (READ_WAIT_MAX, reads));
        assert_eq!((pool.status().lost(), pool.damaged_segments().len()), (0, 0));
        assert!(pool.status().devices[silent].counters.late > 0);
        assert_eq!(pool.status().devices[silent].counters.errors, 0);

        world.clock().advance(HOUR.as_nanos() as u64);
        let rebuilt = pool.counters().rebuilt_blocks;
        assert_reads(&pool, &written);
        assert!(sim.counters().reads > reads, "the device is read again");
        assert_eq!((slow_devices(&pool).len(), pool.counters().rebuilt_blocks), (0, rebuilt));
    }
}

#[test]
fn reads_share_a_batch_only_where_no_device_that_hangs_holds_up_those_of_others() {
    let may_share = |devices: usize, data: u16, parity: u8, len_bytes: usize| {
        let (_world, pool) = world(88, devices, data, parity);
        pool.may_share_batch(len_bytes)
    };
    assert!(may_share(1, 1, 0, 1 << 20), "every read needs the one device");
    assert!(may_share(3, 2, 1, 28 << 10), "the read has a time limit");
    assert!(!may_share(3, 2, 1, (28 << 10) + 1), "its blocks may be more than have one");
    assert!(!may_share(2, 2, 0, 4096), "no other column stands in");
}

#[test]
fn a_long_read_goes_round_a_slow_device_and_waits_for_one_that_is_not_known_to_be_slow() {
    let (world, pool) = world(84, 2, 1, 1);
    let written = write_segment(&pool, id(1), &[90_000, 5000]);
    let [long, short] = written.slices()[..] else { panic!("two stripes") };
    // The first reads take the checksums of the stripes from their headers.
    assert_reads(&pool, &written);
    let silent = usize::from(written.descriptor.columns[0].0.0);
    world.sims()[silent].inject(hang(Some(OpClass::Read)));
    assert_eq!(read(&pool, short).unwrap(), written.expected(short));
    assert_eq!(read(&pool, long).unwrap(), written.expected(long));
    assert_eq!((now(&world), slow_devices(&pool)), (READ_WAIT_MAX, vec![silent]));

    world.clock().advance(HOUR.as_nanos() as u64);
    let before = now(&world);
    world.sims()[silent].inject(hang(Some(OpClass::Read)));
    assert_eq!(read(&pool, long).unwrap(), written.expected(long));
    assert_eq!((now(&world) - before, slow_devices(&pool).len()), (HOUR, 0));
}

/// Together they are longer than a read that has a time limit for itself.
#[test]
fn short_reads_side_by_side_go_round_a_device_that_hangs() {
    let (world, pool) = world(85, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[usize::MAX]);
    let slices: Vec<_> = (0..20).map(|n| written.slice(n * 10_000, 10_000)).collect();
    let silent = usize::from(written.descriptor.columns[0].0.0);
    world.sims()[silent].inject(hang(Some(OpClass::Read)));
    let mut memory = vec![[0; 10_000]; slices.len()];
    let mut reads: Vec<_> = slices.iter().copied().zip(memory.iter_mut().map(|buf| &mut buf[..])).collect();
    pool.read_many(&mut reads).unwrap();
    for (slice, got) in reads {
        assert!(*got == *written.expected(slice), "{slice}");
    }
    assert_eq!((now(&world), slow_devices(&pool)), (READ_WAIT_MAX, vec![silent]));
}

#[test]
fn a_write_or_flush_without_an_answer_drops_the_device() {
    for (data, parity) in [(4, 2), (1, 1)] {
        for op in [OpClass::Write, OpClass::Flush] {
            let (world, pool) = world(81, usize::from(data) + usize::from(parity), data, parity);
            let before = write_segment(&pool, id(1), &[90_000]);
            world.sims()[0].inject(hang(Some(op)));
            let during = write_segment(&pool, id(2), &[90_000, 5000]);
            assert_eq!(now(&world), WRITE_WAIT_MAX, "{op:?}");
            let status = pool.status();
            assert_eq!((status.devices[0].state, status.lost()), (DeviceState::Failed, 1));
            let after = write_segment(&pool, id(3), &[90_000]);
            pool.write_root(b"root").unwrap();
            assert_eq!(now(&world), WRITE_WAIT_MAX, "it is not written again");
            for written in [&before, &during, &after] {
                assert_reads(&pool, written);
            }
            // What it did late harms nobody.
            world.sims()[0].heal();
            let again = open_with(world.devices(), &[&before, &during, &after]);
            for written in [&before, &during, &after] {
                assert_reads(&again, written);
            }
        }
    }
}

#[test]
fn a_reset_without_an_answer_drops_the_device() {
    let (world, pool) = world(86, 3, 2, 1);
    let before = write_segment(&pool, id(1), &[90_000]);
    world.sims()[0].inject(hang(Some(OpClass::Discard)));
    let during = write_segment(&pool, id(2), &[90_000, 5000]);
    assert_eq!((now(&world), pool.status().lost()), (WRITE_WAIT_MAX, 1));
    let after = write_segment(&pool, id(3), &[90_000]);
    assert_eq!(now(&world), WRITE_WAIT_MAX, "it is not asked again");
    pool.write_root(b"root").unwrap();
    // The reset takes place now, in a zone that no segment has.
    world.sims()[0].heal();
    let again = open_with(world.devices(), &[&before, &during, &after]);
    for written in [&before, &during, &after] {
        assert_reads(&again, written);
    }
}

#[test]
fn a_trim_without_an_answer_drops_the_device() {
    let (world, pool) = world(87, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[90_000]);
    world.sims()[0].inject(hang(Some(OpClass::Discard)));
    pool.trim(|_| std::ops::ControlFlow::Continue(())).unwrap();
    assert_eq!((now(&world), pool.status().lost()), (WRITE_WAIT_MAX, 1));
    assert_reads(&pool, &written);
}

#[test]
fn a_device_that_parity_cannot_spare_is_waited_for() {
    for (devices, data, parity, absent) in [(1, 1, 0, None), (2, 1, 1, Some(1)), (3, 3, 0, None)] {
        let (world, pool) = world(82, devices, data, parity);
        let before = write_segment(&pool, id(1), &[90_000]);
        if let Some(absent) = absent {
            world.sims()[absent].inject(Fault::Vanish { after: 0 });
            drop(write_segment(&pool, id(9), &[100]));
        }
        let lost = pool.status().lost();
        world.sims()[0].inject(hang(Some(OpClass::Write)));
        let during = write_segment(&pool, id(2), &[90_000]);
        assert_eq!((now(&world), pool.status().lost()), (HOUR, lost));
        world.sims()[0].inject(hang(Some(OpClass::Read)));
        assert_reads(&pool, &before);
        assert_reads(&pool, &during);
        assert_eq!((now(&world), pool.status().lost()), (2 * HOUR, lost));
        assert_eq!(slow_devices(&pool), []);
    }
}

/// Waiting is for devices that do not answer. An answer that is an error is final.
#[test]
fn a_loss_beyond_parity_is_reported_without_further_reads() {
    let (world, pool) = world(85, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[30_000]);
    // The first reads take the checksums of the stripe from its headers.
    assert_reads(&pool, &written);
    let sims: Vec<_> =
        written.descriptor.columns.iter().map(|(device, _)| &world.sims()[usize::from(device.0)]).collect();
    for sim in &sims[..2] {
        sim.inject(Fault::Unreadable { offset_bytes: 0, len_bytes: crate::rig::DEVICE_BYTES });
    }
    let reads = || sims.iter().map(|sim| sim.counters().reads).collect::<Vec<_>>();
    let before = reads();
    let slice = written.slice(0, 100);
    assert!(matches!(read(&pool, slice), Err(PoolError::Unreadable { .. })));
    let done: Vec<u64> = reads().iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(done[..2], [2, 1], "the wanted column is tried twice, the other lost one once");
    assert_eq!((now(&world), slow_devices(&pool).len()), (Duration::ZERO, 0));
}

/// Two of four columns of 2+1 are too many to do without.
#[test]
fn a_read_waits_when_too_few_other_columns_answer() {
    let (world, pool) = world(83, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[30_000]);
    for (device, _) in &written.descriptor.columns[..2] {
        world.sims()[usize::from(device.0)].inject(hang(Some(OpClass::Read)));
    }
    assert_reads(&pool, &written);
    // The second hang begins with the first read after the first one's limit.
    assert_eq!(now(&world), READ_WAIT_MAX + HOUR);
    assert_eq!((pool.damaged_segments().len(), slow_devices(&pool).len()), (0, 0));
    // Beside a lost device the rest is all that there is.
    let last = usize::from(written.descriptor.columns[2].0.0);
    world.sims()[last].inject(Fault::Vanish { after: 0 });
    drop(pool.allocate(id(2), SegmentStream::Large).map(|_| ()));
    let first = usize::from(written.descriptor.columns[0].0.0);
    world.sims()[first].inject(hang(Some(OpClass::Read)));
    assert_reads(&pool, &written);
}
