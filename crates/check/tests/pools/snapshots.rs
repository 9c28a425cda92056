//! Snapshots in the check: their records, and damage of bytes that only they show.

use warpfire_check::{CheckOptions, check};
use warpfire_fs::acl::Caller;
use warpfire_fs::{NewMode, Position};
use warpfire_sim_env::{DeviceSpec, DiscardBehavior, SimWorld};

use crate::rig::{PoolShape, SHAPES, ZONE_BYTES, ZONES, make};

const ROOT: Caller<'static> = Caller::ROOT;

/// Bytes that are found again on the devices.
const MARK: u8 = 0xC7;

/// A pool with a large file that was removed, after a snapshot or without one.
fn removed(shape: PoolShape, with_snapshot: bool) -> SimWorld {
    // A discard leaves the bytes.
    let old = DiscardBehavior::Old;
    let spec = DeviceSpec { discard_behavior: old, ..DeviceSpec::append_only("flash", ZONES * ZONE_BYTES) };
    let world = SimWorld::of(5, shape.2, &spec);
    let fs = make(&world, shape);
    let file = fs.create(&ROOT, &fs.root(), b"large", NewMode::exact(0o644)).expect("it is made");
    fs.write(&ROOT, &file, Position::At(0), &vec![MARK; 400_000]).expect("there is room");
    fs.sync().expect("sound devices do not fail");
    if with_snapshot {
        fs.create_snapshot(b"kept").expect("there is room");
    }
    drop(file);
    fs.unlink(&ROOT, &fs.root(), b"large").expect("it is there");
    fs.close().expect("sound devices do not fail");
    world
}

/// Overwrites every block that holds bytes of the file.
fn hurt(world: &SimWorld) -> usize {
    let mut hurt = 0;
    for sim in world.sims() {
        for at in (2 * ZONE_BYTES..ZONES * ZONE_BYTES).step_by(4096) {
            if sim.peek(at, 4096).iter().all(|byte| *byte == MARK) {
                sim.poke(at, &[0; 4096]);
                hurt += 1;
            }
        }
    }
    hurt
}

#[test]
fn damage_that_only_a_snapshot_meets_is_an_error() {
    let alone = SHAPES[0];
    for with_snapshot in [true, false] {
        let world = removed(alone, with_snapshot);
        let sound = check(&world.devices(), &CheckOptions::default()).expect("a pool");
        assert_eq!(sound.errors, 0, "{:?}", sound.findings);
        assert!(hurt(&world) > 90, "the bytes are there still");
        let report = check(&world.devices(), &CheckOptions::default()).expect("a pool");
        let lost = report.damage.metadata.iter().find(|m| m.place.starts_with("snapshots, "));
        assert_eq!(report.errors > 0, with_snapshot, "{:?}", report.findings);
        assert_eq!(lost.is_some_and(|m| m.is_lost), with_snapshot, "{:?}", report.damage);
    }
}
