//! The costs of a pool with very many segments, at a thirtieth of the size of `examples/petabytes`.

#[path = "../examples/petabytes/fabricate.rs"]
mod fabricate;
mod rig;

use std::cmp::Reverse;
use std::collections::HashMap;

use fabricate::{Shape, fabricate, live_bytes};
use warpfire_log::{Log, LogStore, Stream};
use warpfire_pool::Pool;
use warpfire_sim_env::{DeviceSpec, SimWorld};
use warpfire_units::SegmentId;

fn opened(shape: Shape) -> (SimWorld, Log, u64) {
    let size_bytes = shape.zones(64) * shape.zone_bytes;
    let world = SimWorld::of(1, usize::from(shape.devices), &DeviceSpec::conventional("wide", size_bytes));
    let table_bytes = fabricate(world.devices(), shape);
    let (pool, root) = Pool::open(world.devices(), &*world.random()).expect("the pool is there");
    let (log, _) = Log::open(pool, &root).expect("the log is there");
    log.set_live(&live_bytes(shape).collect());
    (world, log, table_bytes)
}

/// The most bytes that a device gets in each of four checkpoints, each after a new segment.
fn checkpoint_bytes(world: &SimWorld, log: &Log) -> u64 {
    let written = || world.sims().iter().map(|d| d.counters().written_bytes).collect::<Vec<u64>>();
    let streams = [Stream::Large, Stream::Small, Stream::Table, Stream::Cold];
    let copies = (0u8..).zip(streams).flat_map(|(round, stream)| {
        log.append(stream, &[round; 100_000]).expect("there is room");
        log.sync().expect("no device fails");
        let before = written();
        log.checkpoint(&[round; 100], log.position()).expect("no device fails");
        written().into_iter().zip(before).map(|(after, before)| after - before).collect::<Vec<u64>>()
    });
    copies.max().expect("checkpoints write")
}

#[test]
fn a_checkpoint_of_a_wide_pool_writes_the_changes() {
    let shape = Shape { devices: 250, data: 242, parity: 8, zone_bytes: 1 << 26, segments: 2000, runs: 1 };
    let (world, log, table_bytes) = opened(shape);
    let most = checkpoint_bytes(&world, &log);
    assert!(table_bytes > 3_000_000, "a long table: {table_bytes} bytes");
    assert!(most < 64 << 10, "{most} bytes a copy, beside a table of {table_bytes}");
}

#[test]
fn a_checkpoint_beside_segments_of_many_runs_writes_a_twentieth_of_them() {
    let shape = Shape { devices: 1, data: 1, parity: 0, zone_bytes: 1 << 26, segments: 400, runs: 1000 };
    let (world, log, table_bytes) = opened(shape);
    let most = checkpoint_bytes(&world, &log);
    assert!(most * 20 < table_bytes, "{most} bytes, beside a table of {table_bytes}");
}

#[test]
fn the_victims_of_a_long_table_are_those_of_a_sort() {
    let shape = Shape { devices: 4, data: 2, parity: 1, zone_bytes: 1 << 20, segments: 3000, runs: 1 };
    let (_world, log, _) = opened(shape);
    let live: HashMap<SegmentId, u64> = live_bytes(shape).collect();
    let capacity = log.pool().bulk_payload_bytes(2);
    let newest = live.keys().max().expect("there are segments").get();
    // The oracle: every segment with less than 85 % of live bytes, by (1-u)·age/(1+u), the oldest first.
    let mut sorted: Vec<(Reverse<u64>, SegmentId)> = live
        .iter()
        .filter(|(_, live)| **live * 100 < capacity * 85)
        .map(|(id, live)| {
            let age = newest - id.get() + 1;
            (Reverse((capacity - live) * age * 1000 / (capacity + live)), *id)
        })
        .collect();
    sorted.sort_unstable();
    assert!((100..3000).contains(&sorted.len()), "some segments are full: {}", sorted.len());
    let of = |max: usize| -> Vec<Reverse<u64>> {
        let by_id: HashMap<SegmentId, Reverse<u64>> = sorted.iter().map(|(gain, id)| (*id, *gain)).collect();
        log.victims(max).iter().map(|id| by_id[id]).collect()
    };
    // Equal in thousandths: the table counts in millionths.
    let gains: Vec<Reverse<u64>> = sorted.iter().map(|(gain, _)| *gain).collect();
    assert_eq!(of(usize::MAX), gains);
    assert_eq!(of(7), gains[..7]);
}
