//! The log over devices that work.

mod rig;

use rig::{Client, SHAPES, ZONE_BYTES, ZONES, assert_append_only, content, open, shape};
use warpfire_env::Timestamp;
use warpfire_log::{Admit, Log, LogError, LogPos, LogStore, MemLog, MemLogOptions, Stream};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{DeviceSpec, SimRandom, SimWorld};
use warpfire_units::SlicePtr;

#[test]
fn synced_bytes_are_there_after_reopening_on_every_shape() {
    for shape in SHAPES {
        let world = shape.world(1);
        let mut client = Client::new(shape.create(&world).unwrap());
        for n in 0..40 {
            client.add([Stream::Small, Stream::Large, Stream::Table][n % 3], 100 + n * 700, n * 100).unwrap();
        }
        client.check("before the sync");
        client.sync().unwrap();
        client.check("after the sync");
        drop(client.log);
        let context = format!("{shape:?}");
        Client::recovered(open(&world).unwrap(), &client.history, client.acked, &context);
        assert_append_only(&world, &context);
    }
}

/// One group lists several stripes of one segment. Recovery verifies each of them.
#[test]
fn a_group_of_many_stripes_is_there_after_reopening() {
    let zone_bytes = 8 << 20;
    let world = SimWorld::of(2, 1, &DeviceSpec::append_only("flash", 20 * zone_bytes));
    let options = CreateOptions { data: 1, parity: 0, zone_bytes: Some(zone_bytes), force: false };
    let pool = Pool::create(world.devices(), &options, &*world.random(), Timestamp::default()).unwrap();
    let mut client = Client::new(Log::create(pool).unwrap().0);
    let before = client.log.pool().counters().total.writes;
    client.add(Stream::Large, 5 << 20, 0).unwrap();
    client.sync().unwrap();
    assert!(client.log.pool().counters().total.writes - before > 5, "no stripe is longer than 1 MiB");
    drop(client.log);
    Client::recovered(open(&world).unwrap(), &client.history, client.acked, "5 MiB in one group");
}

#[test]
fn one_small_record_costs_one_block_per_mirror_column_and_one_flush_each() {
    for shape in SHAPES {
        let world = shape.world(1);
        let mut log = shape.create(&world).unwrap();
        log.log(b"first").unwrap();
        log.sync().unwrap();
        let before = log.pool().counters().total;
        log.log(b"a small change").unwrap();
        log.sync().unwrap();
        let after = log.pool().counters().total;
        let copies = 1 + u64::from(shape.parity);
        assert_eq!(after.written_bytes - before.written_bytes, copies * 4096, "{shape:?}");
        assert_eq!(
            (after.writes - before.writes, after.flushes - before.flushes),
            (copies, copies),
            "{shape:?}"
        );
        log = open(&world).unwrap().0;
        assert_eq!(log.position().0, 3);
    }
}

#[test]
fn a_sync_of_nothing_touches_no_device() {
    let shape = shape(2, 1, 3);
    let world = shape.world(1);
    let log = shape.create(&world).unwrap();
    log.sync().unwrap();
    log.log(b"x").unwrap();
    log.sync().unwrap();
    let before = log.pool().counters().total;
    log.sync().unwrap();
    assert_eq!(log.pool().counters().total, before);
}

#[test]
fn small_bytes_are_packed_and_large_ones_start_on_blocks() {
    let shape = shape(2, 1, 3);
    let log = shape.create(&shape.world(1)).unwrap();
    let one = log.append(Stream::Small, &[1; 100]).unwrap();
    let two = log.append(Stream::Small, &[2; 100]).unwrap();
    assert!(one[0].is_followed_by(two[0]));
    log.append(Stream::Large, &[1; 100]).unwrap();
    assert_eq!(log.append(Stream::Large, &[1; 100]).unwrap()[0].offset_bytes, 4096);
}

#[test]
fn a_random_life_agrees_with_the_model_across_reopening() {
    for shape in SHAPES {
        for seed in 0..4 {
            let world = shape.world(seed);
            let random = SimRandom::new(seed);
            let mut client = Client::new(shape.create(&world).unwrap());
            for session in 0..4 {
                let context = format!("{shape:?}, seed {seed}, session {session}");
                for _ in 0..150 {
                    client.step(&random).unwrap_or_else(|e| panic!("{context}: {e}"));
                }
                client.check(&context);
                client.sync().unwrap();
                drop(client.log);
                client = Client::recovered(open(&world).unwrap(), &client.history, client.acked, &context);
                assert_append_only(&world, &context);
            }
        }
    }
}

#[test]
fn a_full_pool_returns_an_error_and_releasing_makes_room() {
    let shape = shape(2, 1, 3);
    let world = shape.world(1);
    let log = shape.create(&world).unwrap();
    let mut written: Vec<SlicePtr> = Vec::new();
    while log.admit(20 << 10, Admit::User).is_ok() {
        written.extend(log.append(Stream::Large, &content(1, 20 << 10)).unwrap());
    }
    assert!(log.space().reserve_bytes > 0 && log.admit(20 << 10, Admit::Reserve).is_ok());
    let error = loop {
        match log.append(Stream::Large, &content(1, 20 << 10)) {
            Ok(slices) => written.extend(slices),
            Err(e) => break e,
        }
    };
    assert!(matches!(error, LogError::NoSpace));
    // Bulk streams leave segments to the commit log, so that the deletions which make room can be synced.
    log.log(b"a full pool still takes records").unwrap();
    log.sync().unwrap();
    for slice in &written {
        log.release(slice.segment, u64::from(slice.len_bytes));
    }
    for _ in 0..written.len() / 2 {
        log.append(Stream::Large, &content(1, 20 << 10)).unwrap();
    }
    assert!(written.len() as u64 * (20 << 10) > ZONES * ZONE_BYTES, "most of the pool can be filled");
}

#[test]
fn a_full_pool_opens_again_and_again_and_can_be_emptied() {
    for shape in SHAPES {
        let world = shape.world(1);
        let context = format!("{shape:?}");
        let mut client = Client::new(shape.create(&world).unwrap());
        while client.add(Stream::Large, 30 << 10, 2_000).is_ok() {}
        client.checkpoint(0).unwrap();
        for _ in 0..10 {
            drop(client.log);
            client = Client::recovered(open(&world).unwrap(), &client.history, client.acked, &context);
        }
        for _ in 0..client.entries.len() - 1 {
            client.drop_entry(0).unwrap();
        }
        client.sync().unwrap();
        client.checkpoint(0).unwrap();
        client.add(Stream::Small, 30 << 10, 0).unwrap();
        client.sync().unwrap();
        client.check(&context);
        drop(client.log);
        Client::recovered(open(&world).unwrap(), &client.history, client.acked, &context);
        assert_append_only(&world, &context);
    }
}

#[test]
fn the_log_goes_on_over_many_segments_and_checkpoints_free_them() {
    let shape = shape(1, 1, 2);
    let world = shape.world(1);
    let mut client = Client::new(shape.create(&world).unwrap());
    for _ in 0..30 {
        for _ in 0..20 {
            client.add(Stream::Small, 0, 9_000).unwrap();
            client.sync().unwrap();
        }
        assert!(client.log.log_bytes() > 180_000);
        client.checkpoint(0).unwrap();
        assert_eq!(client.log.log_bytes(), 0);
    }
    drop(client.log);
    Client::recovered(open(&world).unwrap(), &client.history, client.acked, "many segments");
    assert_append_only(&world, "many segments");
}

#[test]
fn a_record_larger_than_a_log_segment_comes_back_whole() {
    let shape = shape(1, 1, 2);
    let world = shape.world(1);
    let mut client = Client::new(shape.create(&world).unwrap());
    client.add(Stream::Small, 10, 3 * usize::try_from(ZONE_BYTES).unwrap()).unwrap();
    client.sync().unwrap();
    drop(client.log);
    Client::recovered(open(&world).unwrap(), &client.history, 1, "a large record");
}

/// A segment was written, sealed and freed between two syncs. Recovery looked for its stripes after its zones
/// had been reset, and so lost the second sync.
#[test]
fn a_sync_that_frees_a_segment_written_since_the_last_one_is_not_lost() {
    for shape in SHAPES {
        let world = shape.world(1);
        let log = shape.create(&world).unwrap();
        let write = || log.append(Stream::Large, &content(1, 20 << 10)).unwrap();
        let mut slices = write();
        while slices.iter().all(|slice| slice.segment == slices[0].segment) {
            slices.extend(write());
        }
        for slice in &slices {
            log.release(slice.segment, u64::from(slice.len_bytes));
        }
        log.log(b"after a segment that is freed").unwrap();
        log.sync().unwrap();
        drop(log);
        let (log, recovered) = open(&world).unwrap();
        assert_eq!(recovered.records.count(), 1, "{shape:?}");
        assert_eq!(log.position().0, 2, "{shape:?}");
        assert_append_only(&world, &format!("{shape:?}"));
    }
}

#[test]
fn victims_are_the_emptiest_and_the_pinned_are_kept() {
    let shape = shape(2, 1, 3);
    let world = shape.world(1);
    let log = shape.create(&world).unwrap();
    let slices: Vec<SlicePtr> =
        (0..40).map(|n| log.append(Stream::Large, &content(n, 20 << 10)).unwrap()[0]).collect();
    log.sync().unwrap();
    assert!(log.victims(9).is_empty(), "no byte is garbage yet");
    let first = slices[0].segment;
    // All but one slice of the first segment become garbage: it is the only segment worth cleaning.
    let in_first: Vec<&SlicePtr> = slices.iter().filter(|s| s.segment == first).collect();
    for slice in &in_first[1..] {
        log.release(first, u64::from(slice.len_bytes));
    }
    assert_eq!(log.victims(9), [first]);
    let retired = || (log.has_retired(), log.has_unpinned());
    let pin = log.pin();
    assert_eq!(retired(), (false, false));
    log.release(first, u64::from(in_first[0].len_bytes));
    assert_eq!(retired(), (true, false));
    log.log(b"x").unwrap();
    log.sync().unwrap();
    let mut bytes = vec![0; 20 << 10];
    log.read(slices[0], &mut bytes).unwrap();
    assert_eq!(retired(), (true, false));
    drop(pin);
    assert_eq!(retired(), (true, true));
    log.log(b"y").unwrap();
    log.sync().unwrap();
    assert_eq!(retired(), (false, false));
    assert!(matches!(log.read(slices[0], &mut bytes), Err(LogError::BadPointer(_))));
}

#[test]
fn an_open_segment_of_garbage_is_sealed_for_cleaning() {
    let world = shape(2, 1, 3).world(1);
    let log = shape(2, 1, 3).create(&world).unwrap();
    let first: Vec<SlicePtr> =
        (0..5).map(|n| log.append(Stream::Large, &content(n, 20 << 10)).unwrap()[0]).collect();
    let second: Vec<SlicePtr> =
        (0..4).map(|n| log.append(Stream::Small, &content(n, 20 << 10)).unwrap()[0]).collect();
    log.sync().unwrap();
    assert!(!log.seal_victim().unwrap(), "no byte is garbage");
    for slice in first[1..].iter().chain(&second[1..]) {
        log.release(slice.segment, u64::from(slice.len_bytes));
    }
    assert!(log.victims(9).is_empty(), "both segments are open");
    // The one with the most garbage first.
    assert!(log.seal_victim().unwrap());
    assert_eq!(log.victims(9), [first[0].segment]);
    let mut bytes = vec![0; 20 << 10];
    log.read(first[0], &mut bytes).unwrap();
    assert_eq!(bytes, content(0, 20 << 10));
    assert!(log.seal_victim().unwrap());
    assert!(log.victims(9).contains(&second[0].segment));
    assert!(!log.seal_victim().unwrap(), "none is open");
    let next = log.append(Stream::Large, &content(9, 1 << 10)).unwrap()[0];
    assert!(next.segment > second[0].segment);
}

#[test]
fn bytes_that_are_referred_to_again_under_a_pin_stay() {
    let shape = shape(2, 1, 3);
    let world = shape.world(1);
    let log = shape.create(&world).unwrap();
    let slices: Vec<SlicePtr> =
        (0..40).map(|n| log.append(Stream::Large, &content(n, 20 << 10)).unwrap()[0]).collect();
    log.sync().unwrap();
    let first = slices[0].segment;
    let in_first: Vec<SlicePtr> = slices.iter().copied().filter(|s| s.segment == first).collect();
    let mut bytes = vec![0; 20 << 10];
    let log_and_sync = || {
        log.log(b"x").unwrap();
        log.sync().unwrap();
    };
    // The segment is retired, referred to again, and retired a second time, each time under a pin of its own.
    let old = log.pin();
    in_first.iter().for_each(|s| log.release(first, u64::from(s.len_bytes)));
    log.retain(in_first[0]);
    let young = log.pin();
    drop(old);
    log_and_sync();
    log.read(in_first[0], &mut bytes).unwrap();
    log.release(first, u64::from(in_first[0].len_bytes));
    log_and_sync();
    log.read(in_first[0], &mut bytes).unwrap();
    drop(young);
    log_and_sync();
    assert!(matches!(log.read(in_first[0], &mut bytes), Err(LogError::BadPointer(_))));
}

#[test]
fn a_checkpoint_that_keeps_records_needs_no_room_in_the_commit_log() {
    let shape = shape(1, 0, 1);
    let world = shape.world(1);
    let log = shape.create(&world).unwrap();
    let record = content(2, 5000);
    let mut synced = 0;
    for _ in 0..40 {
        synced = log.log(&record).unwrap().0;
        log.sync().unwrap();
    }
    while log.append(Stream::Table, &content(1, 20 << 10)).is_ok() {}
    let refused = loop {
        let pos = log.log(&record).unwrap();
        match log.sync() {
            Ok(()) => synced = pos.0,
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, LogError::NoSpace), "{refused}");
    let keep_from = LogPos(synced - 1);
    log.checkpoint(b"state", keep_from).unwrap();
    // The checkpoint has freed segments of the commit log, so the record that waited gets in.
    log.sync().unwrap();
    drop(log);
    let (log, recovered) = open(&world).unwrap();
    assert_eq!(recovered.state, b"state");
    let places: Vec<u64> = recovered.records.map(|r| r.unwrap().0.0).collect();
    assert_eq!(places, [synced - 1, synced, synced + 1]);
    assert_eq!(log.position(), LogPos(synced + 2));
}

#[test]
fn upkeep_goes_on_by_itself_unless_it_is_paused() {
    assert!(MemLog::with_options(MemLogOptions::default()).upkeep_may_work(), "a log without a limit");
    let log = SHAPES[0].create(&SHAPES[0].world(1)).unwrap();
    assert!(log.upkeep_may_work());
    log.upkeep_limit().pause(true);
    assert!(!log.upkeep_may_work());
    log.upkeep_limit().pause(false);
    assert!(log.upkeep_may_work());
}
