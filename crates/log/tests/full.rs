//! Pools without a free segment: each opens, with all devices and with m of them lost, and each can be
//! emptied.

mod rig;

use rig::{Client, SHAPES, Shape, assert_append_only, open};
use warpfire_log::{Admit, LogError, LogStore, Stream};
use warpfire_sim_env::{Fault, OpClass, SimWorld};

/// Fills the pool with tables, and then the commit log until a sync finds no room.
fn fill(shape: Shape, world: &SimWorld) -> Client {
    fill_by(3_000, shape, world)
}

/// As `fill`, with groups of so many bytes.
fn fill_by(group_bytes: usize, shape: Shape, world: &SimWorld) -> Client {
    let mut client = Client::new(shape.create(world).expect("it succeeds in this test"));
    let refused = |result: Result<(), LogError>| match result {
        Ok(()) => false,
        Err(LogError::NoSpace) => true,
        Err(e) => panic!("{shape:?}: {e}"),
    };
    while !refused(client.add(Stream::Table, 30 << 10, 0)) {}
    // A full pool takes syncs as long as its log has room: each of these writes a stripe of its own.
    while !refused(client.add(Stream::Small, 0, group_bytes).and_then(|()| client.sync())) {}
    client
}

/// Opens the pool, and deletes every entry in small steps, as far as a checkpoint is allowed.
fn open_and_empty(world: &SimWorld, before: &Client, context: &str) {
    let opened = open(world).unwrap_or_else(|e| panic!("{context}: {e}"));
    let mut client = Client::recovered(opened, &before.history, before.acked, context);
    client.checkpoint(0).unwrap_or_else(|e| panic!("{context}, checkpoint: {e}"));
    while !client.entries.is_empty() {
        client.drop_entry(0).expect("it succeeds in this test");
        client.sync().unwrap_or_else(|e| panic!("{context}, a deletion: {e}"));
    }
    client.add(Stream::Small, 30 << 10, 0).unwrap_or_else(|e| panic!("{context}, going on: {e}"));
    client.sync().expect("it succeeds in this test");
    assert_append_only(world, context);
}

#[test]
fn a_pool_whose_log_took_the_last_segment_opens_and_can_be_emptied() {
    for shape in SHAPES {
        let world = shape.world(1);
        let client = fill(shape, &world);
        open_and_empty(&world.fork(), &client, &format!("{shape:?}"));
    }
}

/// The last group that is taken fills the log's last segment to any part.
#[test]
fn without_a_segment_for_the_log_a_group_of_any_size_is_written_or_refused() {
    let shape = SHAPES[0];
    for group_bytes in (1..40).map(|n| n * 1_500) {
        let world = shape.world(1);
        let client = fill_by(group_bytes, shape, &world);
        open_and_empty(&world, &client, &format!("groups of {group_bytes} bytes"));
    }
}

#[test]
fn a_full_pool_opens_and_can_be_emptied_after_devices_are_lost() {
    for shape in SHAPES {
        let world = shape.world(1);
        let client = fill(shape, &world);
        for first in 0..shape.devices {
            let world = world.fork();
            let lost: Vec<usize> =
                (first..).map(|n| n % shape.devices).take(usize::from(shape.parity)).collect();
            lost.iter().for_each(|device| world.sims()[*device].inject(Fault::Vanish { after: 0 }));
            open_and_empty(&world, &client, &format!("{shape:?} without {lost:?}"));
        }
    }
}

/// Zones that no reset makes empty fill the pool. It takes appends again once the devices reset zones again.
#[test]
fn a_pool_full_of_zones_that_cannot_be_reset_goes_on_when_they_can() {
    let shape = SHAPES[4];
    let world = shape.world(3);
    let mut client = Client::new(shape.create(&world).expect("it succeeds in this test"));
    while client.add(Stream::Large, 30 << 10, 0).is_ok() {}
    for device in world.sims() {
        device.inject(Fault::Fail { op: OpClass::Discard, after: 0, lasting: true });
    }
    while !client.entries.is_empty() {
        client.drop_entry(0).expect("it succeeds in this test");
    }
    client.checkpoint(0).expect("it succeeds in this test");
    client.checkpoint(0).expect("it succeeds in this test");
    let zones: u32 = client.log.pool().status().devices.iter().map(|d| d.retired_zones).sum();
    assert!(zones > 0);
    while client.log.admit(30 << 10, Admit::User).is_ok() {
        client.add(Stream::Large, 30 << 10, 0).expect("it is admitted");
    }
    world.sims().iter().for_each(|device| device.heal());
    // One of these calls resets the zones, which are fewer than it wants.
    assert!((0..1000).all(|_| client.log.admit(1 << 40, Admit::User).is_err()));
    client.log.admit(30 << 10, Admit::User).expect("the zones are free again");
    client.add(Stream::Large, 30 << 10, 0).expect("the zones are free");
    assert_eq!(client.log.pool().status().devices.iter().map(|d| d.retired_zones).sum::<u32>(), 0);
    client.sync().expect("nothing fails");
    client.check("after all");
}

/// Each opening seals the log that it finds. A crash after some syncs, again and again without a checkpoint,
/// uses the log's last segments up.
#[test]
fn a_full_pool_that_crashes_after_every_sync_opens_each_time() {
    for shape in SHAPES {
        let world = shape.world(1);
        let mut client = fill(shape, &world);
        for round in 0..8 {
            let context = format!("{shape:?}, round {round}");
            let opened = open(&world).unwrap_or_else(|e| panic!("{context}: {e}"));
            client = Client::recovered(opened, &client.history, client.acked, &context);
            // The log may be too full for a record. It stays pending then, and the crash drops it.
            let _synced_or_refused = client.drop_entry(0).and_then(|()| client.sync());
        }
        open_and_empty(&world, &client, &format!("{shape:?}, at last"));
    }
}
