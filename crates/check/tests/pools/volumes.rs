//! Volumes and clones in the check: whole ones are clean, also after a cut, and what contradicts is found.

use std::ops::ControlFlow;

use warpfire_format::fs::{
    DoorVolume, InodeEdit, Key, RULE_PERIODS, SnapshotRuleRecord, VolumeId, VolumeLimits, VolumeOrigin,
    dentry_key, local_of, volume_of,
};
use warpfire_fs::acl::Caller;
use warpfire_fs::{CloneSource, NewMode, NodeRef};
use warpfire_meta::{Admit, Batch, Store};
use warpfire_sim_env::SimWorld;
use warpfire_units::Seq;

use crate::rig::{SHAPES, TestFs, assert_clean, checked, cut, live_below, make, reopen, world};

const ROOT: Caller<'static> = Caller::ROOT;

fn find(fs: &TestFs, name: &[u8]) -> NodeRef {
    fs.lookup(&ROOT, &fs.root(), name).expect("it is there")
}

fn clone(fs: &TestFs, source: &[u8], name: &[u8]) {
    let source = find(fs, source);
    fs.clone_directory(CloneSource::Directory(&source), &fs.root(), name).expect("there is room");
}

/// A pool with a directory, a clone of it and a clone of the clone, and random changes in all of them.
fn cloned(seed: u64) -> SimWorld {
    let shape = SHAPES[0];
    let world = world(shape, seed);
    let fs = make(&world, shape);
    fs.mkdir(&ROOT, &fs.root(), b"work", NewMode::exact(0o755)).expect("there is room");
    live_below(&fs, find(&fs, b"work"), seed, 60);
    clone(&fs, b"work", b"first");
    live_below(&fs, find(&fs, b"first"), seed + 1, 40);
    live_below(&fs, find(&fs, b"work"), seed + 2, 40);
    clone(&fs, b"first", b"second");
    fs.create_volume(&find(&fs, b"second"), b"within", (0, 0)).expect("there is room");
    live_below(&fs, find(&fs, b"second"), seed + 3, 40);
    fs.create_snapshot(b"kept").expect("there is room");
    live_below(&fs, find(&fs, b"first"), seed + 4, 40);
    fs.sync().expect("sound devices do not fail");
    assert_clean(&checked(&cut(&world).devices()), &format!("seed {seed}, cut"));
    fs.close().expect("sound devices do not fail");
    world
}

#[test]
fn volumes_and_clones_are_clean_whatever_happens_on_either_side() {
    for seed in 0..4 {
        let world = cloned(seed * 10);
        assert_clean(&checked(&world.devices()), &format!("seed {seed}"));
        let fs = reopen(&world);
        fs.delete_volume(&fs.root(), b"first", &mut |_| ()).expect("it is a door");
        assert_clean(&checked(&cut(&world).devices()), &format!("seed {seed}, cut after a deletion"));
        fs.engine().compact().expect("sound devices do not fail");
        fs.delete_snapshot(b"kept").expect("it is there");
        fs.delete_volume(&find(&fs, b"second"), b"within", &mut |_| ()).expect("it is a door");
        fs.delete_volume(&fs.root(), b"second", &mut |_| ()).expect("it is a door");
        fs.engine().compact().expect("sound devices do not fail");
        fs.forget_volumes().expect("sound devices do not fail");
        fs.close().expect("sound devices do not fail");
        assert_clean(&checked(&world.devices()), &format!("seed {seed}, without volumes"));
    }
}

/// The check once took the names of the snapshots for names of the clone too, and found them without
/// snapshots.
#[test]
fn a_clone_of_a_pool_with_snapshots_bookmarks_and_rules_is_clean() {
    let shape = SHAPES[0];
    let world = world(shape, 5);
    let fs = make(&world, shape);
    fs.mkdir(&ROOT, &fs.root(), b"work", NewMode::exact(0o755)).expect("there is room");
    live_below(&fs, find(&fs, b"work"), 5, 20);
    fs.create_snapshot(b"kept").expect("there is room");
    fs.create_bookmark(b"kept", b"mark").expect("there is room");
    let rule = SnapshotRuleRecord {
        every_seconds: 3600,
        keep: [0; RULE_PERIODS],
        expire_seconds: 0,
        free_permille: 0,
        is_only_after_change: false,
        believed_seconds: 0,
        doubted_seconds: None,
    };
    fs.put_snapshot_rule(b"hourly", &rule).expect("there is room");
    clone(&fs, b"work", b"first");
    clone(&fs, b"first", b"second");
    fs.sync().expect("sound devices do not fail");
    assert_clean(&checked(&cut(&world).devices()), "with clones");
    fs.detach_volume(b"/first", &mut |_| ControlFlow::Continue(())).expect("it is a clone");
    fs.close().expect("sound devices do not fail");
    assert_clean(&checked(&world.devices()), "with one of them detached");
}

/// Compaction drops what nobody reads of a deleted volume from one run before another. The check once folded
/// the operands that were left onto older values, and found that they contradict each other.
#[test]
fn versions_that_do_not_fold_are_found_but_in_a_deleted_volume() {
    let shape = SHAPES[0];
    let world = world(shape, 6);
    let fs = make(&world, shape);
    fs.mkdir(&ROOT, &fs.root(), b"work", NewMode::exact(0o755)).expect("there is room");
    clone(&fs, b"work", b"first");
    let first = find(&fs, b"first");
    fs.create_file(&ROOT, &first, b"small", NewMode::exact(0o644), b"bytes").expect("there is room");
    let key = dentry_key(volume_of(first.ino()), local_of(first.ino()), b"small");
    fs.create_snapshot(b"kept").expect("there is room");
    fs.sync().expect("sound devices do not fail");
    let (mut operand, mut batch) = (Vec::new(), Batch::new());
    // Too long for a small file.
    InodeEdit { size: Some((1 << 20, 0)), ..InodeEdit::default() }.encode(&mut operand);
    batch.merge(&key, &operand);
    fs.engine().commit(&batch, None, Admit::User).expect("there is room");
    fs.engine().sync(Seq::MAX).expect("sound devices do not fail");
    assert!(checked(&cut(&world).devices()).errors > 0, "in a volume that lives");
    drop(first);
    fs.delete_volume(&fs.root(), b"first", &mut |_| ()).expect("it is a door");
    assert_clean(&checked(&cut(&world).devices()), "in a deleted volume");
}

/// A name, and the changes that plant a contradiction.
type PlantedRecords<'a> = (&'a str, &'a dyn Fn(&mut Batch));

#[test]
fn a_detached_clone_is_clean_and_one_that_has_not_all_that_it_shows_is_found() {
    for seed in 0..3 {
        let world = cloned(seed * 10 + 5);
        let fs = reopen(&world);
        let detach = |fs: &TestFs, door: &[u8]| {
            let detached = fs.detach_volume(door, &mut |_| ControlFlow::Continue(()));
            detached.expect("there is room").expect("nobody stops it")
        };
        assert!(detach(&fs, b"/second").former_origin.is_some(), "a snapshot reads on");
        assert!(detach(&fs, b"/first").former_origin.is_some(), "a snapshot reads on");
        assert_clean(&checked(&cut(&world).devices()), &format!("seed {seed}, cut after a detach"));
        fs.delete_snapshot(b"kept").expect("it is there");
        assert!(fs.volumes().expect("listed").iter().all(|volume| volume.former_origin.is_none()));
        fs.engine().compact().expect("sound devices do not fail");
        fs.close().expect("sound devices do not fail");
        assert_clean(&checked(&world.devices()), &format!("seed {seed}, without origins"));
    }
    // A record that says so without the copies.
    let world = cloned(100);
    let fs = reopen(&world);
    let (key, mut value) = (Key::Volume(VolumeId(2)).encode(), Vec::new());
    assert!(fs.engine().get(&key, Seq::MAX, &mut value).expect("it reads"));
    let record = DoorVolume::decode(&value).expect("it decodes");
    let origin = record.origin.expect("a clone");
    let released_at = Some(Seq(origin.seq.0 + 1));
    let origin = Some(VolumeOrigin { released_at, ..origin });
    value.clear();
    DoorVolume { origin, is_detached: true, ..record }.encode(&mut value);
    let mut batch = Batch::new();
    batch.put(&key, &value);
    fs.engine().commit(&batch, None, Admit::User).expect("there is room");
    fs.engine().sync(Seq::MAX).expect("sound devices do not fail");
    drop(fs);
    assert!(checked(&cut(&world).devices()).errors > 0);
}

#[test]
fn records_that_contradict_a_door_are_found() {
    let record = |origin: Option<VolumeOrigin>| {
        let mut value = Vec::new();
        let made = warpfire_format::fs::InodeTime::default();
        let is_detached = origin.is_some_and(|origin: VolumeOrigin| origin.released_at.is_some());
        let limits = VolumeLimits::default();
        DoorVolume { made, root: 7, removed_at: None, origin, is_detached, limits }.encode(&mut value);
        value
    };
    let at = |volume, seq| Some(VolumeOrigin { volume: VolumeId(volume), seq: Seq(seq), released_at: None });
    let key = |volume| Key::Volume(VolumeId(volume)).encode();
    let doors =
        |batch: &mut Batch| batch.delete(&warpfire_format::fs::dentry_key(VolumeId::FIRST, 1, b"first"));
    let plants: [PlantedRecords<'_>; 4] = [
        ("a door is gone", &doors),
        ("a record is gone", &|batch| batch.delete(&key(2))),
        ("a volume without a door", &|batch| batch.put(&key(9), &record(None))),
        ("a circle of origins", &|batch| {
            batch.put(&key(9), &record(at(10, 3)));
            batch.put(&key(10), &record(at(9, 3)));
        }),
    ];
    for (what, plant) in plants {
        let world = cloned(100);
        let fs = reopen(&world);
        let mut batch = Batch::new();
        plant(&mut batch);
        fs.engine().commit(&batch, None, Admit::User).expect("there is room");
        fs.sync().expect("sound devices do not fail");
        drop(fs);
        let report = checked(&cut(&world).devices());
        assert!(report.errors > 0, "{what}: {:?}", report.findings);
    }
}
