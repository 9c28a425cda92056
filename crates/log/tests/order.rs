//! The order of a sync's steps, each against a cut or a failure that shows the wrong order.

mod rig;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rig::{Client, SHAPES, content, open, shape};
use warpfire_format::root::RootHeader;
use warpfire_log::{LogStore, Stream};
use warpfire_sim_env::{Cut, Fault, OpClass};
use warpfire_units::{SegmentId, SlicePtr};

/// The last acknowledged group lists the stripes of a segment that the next one frees. Until that one is
/// durable, recovery reads them.
#[test]
fn zones_are_reset_only_after_the_barrier_that_frees_them_is_durable() {
    for shape in SHAPES {
        let mut world = shape.world(1);
        let mut client = Client::new(shape.create(&world).unwrap());
        let whole = client.log.segment_bytes();
        for _ in 0..whole / (20 << 10) + 2 {
            client.add(Stream::Large, 20 << 10, 0).unwrap();
            client.drop_entry(0).unwrap();
        }
        client.sync().unwrap();
        world.record();
        world.mark(client.acked as u64);
        client.add(Stream::Small, 100, 0).unwrap();
        client.sync().unwrap();
        world.mark(client.acked as u64);
        let recording = world.take_recording().unwrap();
        let (mut replay, mut acked, mut resets) = (recording.replay(), 0, 0);
        while let Some(event) = replay.advance() {
            if let warpfire_sim_env::Event::Mark(n) = event {
                acked = usize::try_from(*n).unwrap();
            }
            let pending = replay.pending_changes();
            resets += usize::from(pending > 0);
            // Each subset of few changes: the reset may survive without the group that allows it.
            for subset in 0..1u64 << pending.min(8) {
                let context = format!("{shape:?}, event {}, subset {subset:b}", replay.point());
                let opened = open(&replay.cut(&Cut::Subset(subset))).unwrap();
                Client::recovered(opened, &client.history, acked, &context);
            }
        }
        assert!(resets > 0, "changes were pending");
    }
}

#[test]
fn a_log_that_knows_a_newer_root_than_is_left_is_refused() {
    for shape in SHAPES {
        let world = shape.world(1);
        let mut client = Client::new(shape.create(&world).unwrap());
        client.add(Stream::Small, 100, 0).unwrap();
        client.checkpoint(1).unwrap();
        client.add(Stream::Small, 100, 0).unwrap();
        client.sync().unwrap();
        drop(client);
        // The places of all roots, newest last.
        let mut roots: Vec<(u64, usize, u64)> = Vec::new();
        for (device, sim) in world.sims().iter().enumerate() {
            for at in (0..2 * rig::ZONE_BYTES).step_by(4096) {
                if let Ok(header) = RootHeader::decode(&sim.peek(at, 4096)) {
                    roots.push((header.sequence, device, at));
                }
            }
        }
        let newest = roots.iter().map(|(sequence, ..)| *sequence).max().unwrap();
        for (_, device, at) in roots.into_iter().filter(|(sequence, ..)| *sequence == newest) {
            world.sims()[device].rot(at, 99);
        }
        let refused = open(&world).map(|_| ()).expect_err("the newest root is lost");
        assert!(refused.contains("newer root"), "{shape:?}: {refused}");
    }
}

#[test]
fn the_log_leaves_a_segment_that_has_lost_a_column() {
    let shape = shape(1, 1, 3);
    for failing in 0..3 {
        let world = shape.world(1);
        let log = shape.create(&world).unwrap();
        let log_and_sync = || {
            log.log(b"a small change").unwrap();
            log.sync().unwrap();
        };
        log_and_sync();
        world.sims()[failing].inject(Fault::Fail { op: OpClass::Write, after: 0, lasting: true });
        (0..3).for_each(|_| log_and_sync());
        for _ in 0..3 {
            let before = log.pool().counters().total.writes;
            log_and_sync();
            assert_eq!(log.pool().counters().total.writes - before, 2, "device {failing} fails: both copies");
        }
    }
}

/// Records and bytes arrive while groups are written. Whatever group a cut leaves last, each record in it
/// names bytes that are there.
#[test]
fn a_record_never_arrives_in_a_group_before_its_bytes() {
    const BYTES: usize = 600;
    let shape = shape(1, 0, 1);
    let mut world = shape.world(1);
    let log = shape.create(&world).unwrap();
    world.record();
    let (done, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (log, done, ended) = (&log, &done, &ended);
            scope.spawn(move || {
                // Small enough that the pool has room for all.
                for n in 0..2500 {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = thread << 32 | n;
                    let slice = log.append(Stream::Small, &content(key, BYTES)).unwrap()[0];
                    let numbers = [key, slice.segment.get(), slice.offset_bytes];
                    log.log(&numbers.map(u64::to_le_bytes).concat()).unwrap();
                    std::thread::yield_now();
                }
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        while log.pool().counters().total.flushes < 40 && ended.load(Ordering::Relaxed) < 2 {
            log.sync().unwrap();
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    let recording = world.take_recording().unwrap();
    let (mut replay, mut states) = (recording.replay(), 0);
    while let Some(event) = replay.advance() {
        if !matches!(event, warpfire_sim_env::Event::Flush { .. }) {
            continue;
        }
        states += 1;
        let (log, recovered) = open(&replay.cut(&Cut::LoseAll)).unwrap();
        for record in recovered.records {
            let (pos, bytes) = record.unwrap();
            let number = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap());
            let segment = SegmentId::new(number(1)).unwrap();
            let slice = SlicePtr { segment, offset_bytes: number(2), len_bytes: BYTES as u32 };
            let mut found = vec![0; BYTES];
            log.read(slice, &mut found).unwrap_or_else(|e| panic!("{pos:?} after flush {states}: {e}"));
            assert!(found == content(number(0), BYTES), "{pos:?} after flush {states}");
        }
    }
    assert!(states > 10, "{states} groups were written");
}
