//! The order of a sync's steps, each against a cut or a failure that shows the wrong order.

mod rig;

use std::sync::Arc;

use rig::hooked::Hooked;
use rig::{Client, SHAPES, content, open, shape};
use warpfire_env::{Device, Timestamp};
use warpfire_format::root::RootHeader;
use warpfire_log::{Log, LogStore, Stream};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{Cut, DeviceSpec, Fault, OpClass, SimWorld};
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

/// While a group writes the streams, bytes arrive in one that is written already, and a record that names
/// them. The group must not hold the record.
#[test]
fn a_record_never_arrives_in_a_group_before_its_bytes() {
    let size = rig::ZONES * rig::ZONE_BYTES;
    let world = SimWorld::of(1, 1, &DeviceSpec::append_only("flash", size));
    let device = Hooked::new(world.devices()[0].clone());
    let options = CreateOptions { data: 1, parity: 0, zone_bytes: Some(rig::ZONE_BYTES), force: false };
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    let pool = Pool::create(devices, &options, &*world.random(), Timestamp::default()).unwrap();
    let log = Arc::new(Log::create(pool).unwrap().0);
    log.append(Stream::Small, &content(1, 600)).unwrap();
    log.append(Stream::Table, &content(2, 600)).unwrap();
    log.log(b"").unwrap();
    let late = Arc::clone(&log);
    // A thread of its own: the one that syncs holds locks.
    let arrive = move || {
        let slice = late.append(Stream::Small, &content(3, 600)).unwrap()[0];
        late.log(&[slice.segment.get(), slice.offset_bytes].map(u64::to_le_bytes).concat()).unwrap();
    };
    // The first write is that of the small stream, which comes first.
    let armed = Arc::clone(&device);
    device.before_write(move || {
        armed.before_write(move || std::thread::spawn(arrive).join().expect("an append in between"));
    });
    log.sync().unwrap();
    assert!(device.is_done());
    let (cut, recovered) = open(&world.cut(&Cut::LoseAll)).unwrap();
    let records: Vec<Vec<u8>> = recovered.records.map(|record| record.unwrap().1).collect();
    for record in records.iter().filter(|record| !record.is_empty()) {
        let number = |n: usize| u64::from_le_bytes(record[8 * n..8 * n + 8].try_into().unwrap());
        let segment = SegmentId::new(number(0)).unwrap();
        let slice = SlicePtr { segment, offset_bytes: number(1), len_bytes: 600 };
        let mut found = vec![0; 600];
        cut.read(slice, &mut found).expect("the bytes of a recovered record");
        assert!(found == content(3, 600));
    }
    assert!(!records.is_empty(), "the synced record is there");
}
