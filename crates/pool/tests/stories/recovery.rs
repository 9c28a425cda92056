//! The walk of segments that a crash left open.

use warpfire_pool::{Pool, PoolError, SegmentDescriptor, SegmentState, SegmentStream, StripeHealth};
use warpfire_sim_env::{Cut, Fault, OpClass, SimWorld, cuts};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, ZoneIndex};

use crate::rig::{
    DEVICE_BYTES, ZONE_BYTES, block_at, id, open, open_with, pattern, read, world, write_segment,
};

/// One stripe of a walk, with a copy of its payload.
#[derive(Clone, PartialEq, Eq, Debug)]
struct SeenStripe {
    index: u32,
    sequence: u64,
    rows: u16,
    payload_bytes: usize,
    health: StripeHealth,
    payload: Option<Vec<u8>>,
}

fn walk(pool: &Pool, d: &SegmentDescriptor, from: u32) -> Vec<SeenStripe> {
    let mut seen = Vec::new();
    let count = pool
        .walk_open_segment(d, from, &mut |s| {
            seen.push(SeenStripe {
                index: s.index,
                sequence: s.sequence,
                rows: s.rows,
                payload_bytes: s.payload_bytes,
                health: s.health,
                payload: s.payload.map(<[u8]>::to_vec),
            });
        })
        .unwrap();
    assert_eq!(count as usize, from as usize + seen.len());
    seen
}

/// The descriptor at the time of allocation.
fn opened(mut d: SegmentDescriptor) -> SegmentDescriptor {
    d.stripes.clear();
    d.state = SegmentState::Open;
    d
}

#[test]
fn a_segment_with_a_column_outside_of_its_device_is_not_walked() {
    let (world, pool) = world(60, 3, 2, 1);
    let whole = opened(write_segment(&pool, id(1), &[10]).descriptor);
    let (pool, _) = open(world.devices()).unwrap();
    let zones = u32::try_from(DEVICE_BYTES / ZONE_BYTES).unwrap();
    let walked = |device: u16, zone: u32| {
        let mut moved = whole.clone();
        moved.columns[0] = (DeviceIndex(device), ZoneIndex(zone));
        pool.walk_open_segment(&moved, 0, &mut |_| {})
    };
    walked(0, zones - 1).unwrap();
    for (device, zone) in [(0, zones), (0, u32::MAX), (3, 0)] {
        match walked(device, zone) {
            Err(PoolError::Misfit { source, .. }) => assert_eq!(source.code, 213),
            other => panic!("device {device}, zone {zone}: {other:?}"),
        }
    }
}

/// Writes, flushes and seals a mirror segment with payloads of these lengths.
fn write_mirror(pool: &Pool, segment: SegmentId, lengths: &[usize]) -> (SegmentDescriptor, Vec<Vec<u8>>) {
    let mut writer = pool.allocate(segment, SegmentStream::CommitLog).unwrap();
    let mut buf = writer.buffer();
    let mut payloads = Vec::new();
    for (n, len) in (1u64..).zip(lengths) {
        writer.begin(&mut buf);
        let bytes = pattern(n, *len);
        assert_eq!(buf.append(&bytes), *len);
        writer.write_stripe(&mut buf, n).unwrap();
        payloads.push(bytes);
    }
    pool.flush().unwrap();
    (writer.seal(), payloads)
}

#[test]
fn any_one_copy_of_a_mirror_has_every_payload_in_order() {
    let lengths = [1, 4032, 4033, 20_000, 4028 + 4096, 100];
    let (world, pool) = world(20, 5, 3, 2);
    let (d, payloads) = write_mirror(&pool, id(1), &lengths);
    assert_eq!(d.columns.len(), 3, "one copy and two more");
    for lost in 0..3 {
        for other in 0..3 {
            let without = [d.columns[lost].0.0.into(), d.columns[other].0.0.into()];
            let (pool, _) = open(crate::rig::devices_without(&world, &without)).unwrap();
            let seen = walk(&pool, &opened(d.clone()), 0);
            let got: Vec<_> = seen.iter().map(|s| s.payload.clone().unwrap()).collect();
            assert!(got == payloads);
            assert!(seen.iter().all(|s| s.health == StripeHealth::Degraded));
        }
    }
    let (pool, _) = open(world.devices()).unwrap();
    let seen = walk(&pool, &opened(d), 0);
    assert!(seen.iter().all(|s| s.health == StripeHealth::Intact));
    assert_eq!(seen.iter().map(|s| s.sequence).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(seen[0].rows, 0, "a small record costs the header block alone");
}

#[test]
fn many_small_stripes_are_walked_with_few_reads_of_each_copy() {
    let (world, pool) = world(29, 3, 2, 1);
    let (d, payloads) = write_mirror(&pool, id(1), &[100; 60]);
    let (pool, _) = open(world.devices()).unwrap();
    let before = pool.counters().total.reads;
    let seen = walk(&pool, &opened(d), 0);
    assert!(seen.iter().map(|s| s.payload.clone().unwrap()).eq(payloads));
    assert!(seen.iter().all(|s| s.health == StripeHealth::Intact));
    let reads = pool.counters().total.reads - before;
    assert!(reads <= 2 * 7, "{reads} reads for 60 stripes on two columns");
}

#[test]
fn stripes_of_a_few_blocks_are_walked_with_few_reads_and_rot_in_them_is_found() {
    let (world, pool) = world(31, 3, 2, 1);
    let (d, payloads) = write_mirror(&pool, id(1), &[10_000; 20]);
    let (device, zone) = d.columns[0];
    let stripe_blocks = 1 + u64::from(d.stripes[0].rows);
    for rotten in [0, 5, 19] {
        let block = rotten * stripe_blocks + 1;
        world.sims()[usize::from(device.0)]
            .rot(u64::from(zone.0) * ZONE_BYTES + block * BLOCK_BYTES as u64, 5);
    }
    let (pool, _) = open(world.devices()).unwrap();
    let before = pool.counters().total.reads;
    let seen = walk(&pool, &opened(d), 0);
    let reads = pool.counters().total.reads - before;
    assert!(seen.iter().map(|s| s.payload.clone().unwrap()).eq(payloads));
    let rebuilt: Vec<_> = seen.iter().filter(|s| s.health != StripeHealth::Intact).map(|s| s.index).collect();
    assert_eq!(rebuilt, [0, 5, 19]);
    assert!(reads <= 2 * 12, "{reads} reads for 20 stripes on two columns");
}

#[test]
fn blocks_that_cannot_be_read_together_are_read_alone() {
    let (world, pool) = world(30, 1, 1, 0);
    let (d, _) = write_mirror(&pool, id(1), &[100; 60]);
    // Read 0 is of one block. A test of its own has it.
    for after in 1..6 {
        let (pool, _) = open(world.devices()).unwrap();
        world.sims()[0].inject(Fault::Fail { op: OpClass::Read, after, lasting: false });
        let seen = walk(&pool, &opened(d.clone()), 0);
        assert_eq!(pool.counters().total.errors, 1, "read {after}");
        assert_eq!(seen.len(), 60, "read {after}");
        assert!(seen.iter().all(|s| s.health == StripeHealth::Intact), "read {after}");
    }
}

#[test]
fn a_block_that_fails_alone_is_asked_for_once() {
    let (world, pool) = world(32, 1, 1, 0);
    let (d, _) = write_mirror(&pool, id(1), &[100; 60]);
    let (pool, _) = open(world.devices()).unwrap();
    world.sims()[0].inject(Fault::Fail { op: OpClass::Read, after: 0, lasting: false });
    let seen = walk(&pool, &opened(d), 0);
    assert_eq!((seen.len(), pool.counters().total.errors), (60, 1));
    let damaged = seen.iter().filter(|s| s.health == StripeHealth::Damaged).map(|s| s.index);
    assert_eq!(damaged.collect::<Vec<_>>(), [0], "the only copy of its header was unreadable");
}

#[test]
fn a_small_mirror_stripe_is_one_block_on_each_copy() {
    let (_world, pool) = world(21, 3, 2, 1);
    let before = pool.counters();
    write_mirror(&pool, id(1), &[4000]);
    let after = pool.counters();
    assert_eq!(after.total.writes - before.total.writes, 2);
    assert_eq!(after.total.written_bytes - before.total.written_bytes, 2 * BLOCK_BYTES as u64);
    assert_eq!(after.total.flushes - before.total.flushes, 2, "only the devices that were written");
}

#[test]
fn an_open_bulk_segment_is_walked_to_its_end_and_reads_once_adopted() {
    let (world, pool) = world(22, 6, 4, 2);
    let written = write_segment(&pool, id(1), &[5, 70_000, 4096, 123_456]);
    let (pool, _) = open(world.devices()).unwrap();
    let mut d = opened(written.descriptor.clone());
    for from in 0..=4 {
        let seen = walk(&pool, &written.descriptor, from);
        let lengths: Vec<_> = seen.iter().map(|s| s.payload_bytes).collect();
        assert_eq!(lengths, [5, 70_000, 4096, 123_456][from as usize..]);
        assert!(seen.iter().all(|s| s.health == StripeHealth::Intact && s.payload.is_none()));
    }
    for stripe in walk(&pool, &d, 0) {
        d.push_stripe(stripe.rows);
    }
    assert_eq!(d.stripes, written.descriptor.stripes);
    pool.adopt(&d).unwrap();
    crate::rig::assert_reads(&pool, &written);
}

#[test]
fn a_stripe_without_any_header_is_damaged_and_later_stripes_keep_their_addresses() {
    let (world, pool) = world(23, 4, 3, 1);
    let written = write_segment(&pool, id(1), &[9000, 50_000, 7000, 60_000]);
    for column in 0..4 {
        let (device, at) = block_at(&written, 1, column, None);
        world.sims()[device].rot(at, 5);
    }
    let (pool, _) = open(world.devices()).unwrap();
    let mut d = opened(written.descriptor.clone());
    let seen = walk(&pool, &d, 0);
    let health: Vec<_> = seen.iter().map(|s| s.health).collect();
    assert_eq!(
        health,
        [StripeHealth::Intact, StripeHealth::Damaged, StripeHealth::Intact, StripeHealth::Intact]
    );
    seen.iter().for_each(|s| d.push_stripe(s.rows));
    assert_eq!(d.stripes, written.descriptor.stripes);
    pool.adopt(&d).unwrap();
    let last = *written.slices().last().unwrap();
    assert_eq!(read(&pool, last).unwrap(), written.expected(last));
}

#[test]
fn a_stripe_is_degraded_within_parity_and_damaged_beyond_it() {
    let (world, pool) = world(24, 4, 3, 1);
    let written = write_segment(&pool, id(1), &[50_000, 50_000]);
    let d = opened(written.descriptor.clone());
    let rot = |stripe, column, row| {
        let (device, at) = block_at(&written, stripe, column, Some(row));
        world.sims()[device].rot(at, 9);
    };
    rot(0, 0, 1);
    rot(1, 0, 2);
    rot(1, 3, 2);
    let (pool, _) = open(world.devices()).unwrap();
    let health: Vec<_> = walk(&pool, &d, 0).iter().map(|s| s.health).collect();
    assert_eq!(health, [StripeHealth::Degraded, StripeHealth::Damaged]);
}

/// After any power cut, a stripe that was written before a completed flush is intact. Every other stripe is
/// intact, degraded or reported as damaged. No stripe consists of bytes from an earlier use of its zone.
#[test]
fn after_any_cut_flushed_stripes_are_whole_and_no_stripe_is_wrong() {
    for seed in 0..12 {
        let (mut world, pool) = world(100 + seed, 4, 2, 1);
        // Earlier segments in the same zones, with stripes of the same lengths.
        for n in 1..=30 {
            write_segment(&pool, id(n), &[9000, 20_000, 9000]);
        }
        (1..=30).for_each(|n| pool.free(id(n)).unwrap());
        pool.write_root(b"").unwrap();
        world.record();
        let mut writer = pool.allocate(id(31), SegmentStream::Large).unwrap();
        let d = writer.descriptor();
        let mut buf = writer.buffer();
        let mut write = |n: u64, len: usize| {
            writer.begin(&mut buf);
            buf.append(&pattern(n, len));
            writer.write_stripe(&mut buf, n).unwrap();
        };
        write(1, 9000);
        pool.flush().unwrap();
        world.mark(1);
        write(2, 20_000);
        write(3, 9000);
        let recording = world.take_recording().unwrap();
        let mut replay = recording.replay();
        let mut flushed = false;
        loop {
            for cut in replay.cuts(12, seed) {
                verify_cut(&replay.cut(&cut), &d, flushed, &cut);
            }
            match replay.advance() {
                Some(event) => flushed |= matches!(event, warpfire_sim_env::Event::Mark(1)),
                None => break,
            }
        }
    }
}

fn verify_cut(world: &SimWorld, d: &SegmentDescriptor, flushed: bool, cut: &Cut) {
    let (pool, _) = open(world.devices()).unwrap();
    let seen = walk(&pool, d, 0);
    assert!(seen.len() <= 3, "{cut:?}: {seen:?}");
    if flushed {
        assert_eq!(seen[0].health, StripeHealth::Intact, "{cut:?}");
    }
    let mut sealed = d.clone();
    seen.iter().for_each(|s| sealed.push_stripe(s.rows));
    pool.adopt(&sealed).unwrap();
    let mut at = 0;
    for s in &seen {
        if s.health != StripeHealth::Damaged {
            let len_bytes = u32::try_from(s.payload_bytes).unwrap();
            let slice = warpfire_units::SlicePtr { segment: d.id, offset_bytes: at, len_bytes };
            let got = read(&pool, slice).unwrap();
            assert!(got == pattern(s.sequence, s.payload_bytes), "{cut:?}: stripe {} is wrong", s.index);
        }
        at += u64::from(s.rows) * u64::from(d.data) * BLOCK_BYTES as u64;
    }
}

/// The bug: a session crashed before its first root and left stripes in a zone. The next session had the same
/// epoch and assigned the same segment number. Columns of the old session completed a torn stripe of the new
/// one.
#[test]
fn two_sessions_that_crash_never_write_under_one_identity() {
    let (world, pool) = world(25, 3, 2, 1);
    drop(pool);
    let mut epochs = Vec::new();
    let mut world = world;
    for _ in 0..3 {
        let (pool, _) = open(world.devices()).unwrap();
        let mut writer = pool.allocate(id(1), SegmentStream::Large).unwrap();
        let mut buf = writer.buffer();
        buf.append(&[1; 9000]);
        writer.write_stripe(&mut buf, 1).unwrap();
        epochs.push(pool.epoch());
        let all = cuts(0, 0, 0).next();
        world = world.cut(&all.unwrap_or(Cut::LoseAll));
    }
    assert_eq!(epochs, [2, 3, 4]);
}

#[test]
fn stale_columns_of_a_device_that_missed_writes_are_reconstructed() {
    let (world, pool) = world(26, 3, 2, 1);
    let sim = &world.sims()[1];
    sim.inject(warpfire_sim_env::Fault::LoseWrite { after: 0 });
    let written = write_segment(&pool, id(1), &[30_000]);
    sim.heal();
    let pool = open_with(world.devices(), &[&written]);
    crate::rig::assert_reads(&pool, &written);
    let counters = pool.counters();
    assert_eq!(counters.devices[1].identity_errors, 1);
}

/// The search behind a lost stripe reads as far as the longest stripe reaches.
#[test]
fn a_stripe_behind_a_lost_one_of_the_longest_length_is_found() {
    let zone_bytes = 2 << 20;
    let world = SimWorld::of(95, 2, &warpfire_sim_env::DeviceSpec::append_only("flash", 32 * zone_bytes));
    let options = warpfire_pool::CreateOptions { zone_bytes: Some(zone_bytes), ..crate::rig::options(1, 1) };
    let pool = crate::rig::create(&world, &options).unwrap();
    let longest = pool.allocate(id(9), SegmentStream::CommitLog).unwrap().next_stripe_capacity();
    let (d, payloads) = write_mirror(&pool, id(10), &[longest, 100]);
    assert_eq!(d.stripes[0].rows, 255);
    for (device, zone) in &d.columns {
        world.sims()[usize::from(device.0)].poke(u64::from(zone.0) * zone_bytes, &[0; BLOCK_BYTES]);
    }
    let (pool, _) = open(world.devices()).unwrap();
    let seen = walk(&pool, &opened(d), 0);
    assert_eq!(
        seen.iter().map(|s| s.health).collect::<Vec<_>>(),
        [StripeHealth::Damaged, StripeHealth::Intact]
    );
    assert_eq!(seen[1].payload.as_ref(), payloads.get(1));
}

/// A read of many blocks fails for one that is unreadable. The stripes behind it are there nevertheless.
#[test]
fn an_unreadable_header_hides_no_stripe_behind_it() {
    let (world, pool) = world(96, 1, 1, 0);
    let written = write_segment(&pool, id(1), &[1; 30]);
    assert_eq!(written.descriptor.stripe_count(), 30);
    for lost in [0, 7, 28] {
        let world = world.fork();
        let (device, offset_bytes) = block_at(&written, lost, 0, None);
        world.sims()[device].inject(Fault::Unreadable { offset_bytes, len_bytes: BLOCK_BYTES as u64 });
        let (pool, _) = open(world.devices()).unwrap();
        let seen = walk(&pool, &opened(written.descriptor.clone()), 0);
        assert_eq!(seen.len(), 30, "stripe {lost} is lost");
        let damaged = seen.iter().filter(|s| s.health == StripeHealth::Damaged).map(|s| s.index as usize);
        assert_eq!(damaged.collect::<Vec<_>>(), [lost]);
    }
}
