//! Small lives with clones: a power cut at every boundary of the devices' writes and flushes leaves the tree
//! of the pool and that of each clone as they were at one moment since the last sync.

use std::ops::ControlFlow;

use warpfire_fs::acl::Caller;
use warpfire_fs::{Follow, FsError, LimitChange, NewLimit, NewMode, NodeRef, Position, VolumeOrder};
use warpfire_meta::Store;
use warpfire_sim::observe::{Listing, listing};
use warpfire_sim::stack::{MediaKind, Shape, SimFs, overwrite};
use warpfire_sim_env::{Cut, Event, Recording, SimWorld, mix};

const ROOT: Caller<'static> = Caller::ROOT;

fn all(fs: &SimFs) -> Listing {
    listing(fs, &fs.root()).expect("readable")
}

fn node(fs: &SimFs, path: &[u8]) -> NodeRef {
    fs.resolve(&ROOT, &fs.root(), path, Follow::No).expect("it is there")
}

/// One step of a life, on an open filesystem, and whether everything is durable after it.
type Step = (fn(&SimFs), bool);

fn put(fs: &SimFs, dir: &[u8], name: &[u8], bytes: &[u8]) {
    fs.create_file(&ROOT, &node(fs, dir), name, NewMode::exact(0o644), bytes).expect("made");
}

fn order(fs: &SimFs, order: &VolumeOrder<'_>) {
    fs.change_volume(order, &mut |_| ()).expect("changed");
}

const CLONE: VolumeOrder<'static> = VolumeOrder::Clone { snapshot: None, source: b"/work", door: b"/try" };
const AGAIN: VolumeOrder<'static> = VolumeOrder::Clone { snapshot: None, source: b"/try", door: b"/two" };
const THEN: VolumeOrder<'static> =
    VolumeOrder::Clone { snapshot: Some(b"s"), source: b"/work", door: b"/then" };
const EMPTY: VolumeOrder<'static> = VolumeOrder::Create { door: b"/empty", owner: (0, 0) };

const LIMIT: VolumeOrder<'static> = VolumeOrder::Limit {
    door: b"/empty",
    change: LimitChange { bytes: NewLimit::Max(50_000), files: NewLimit::Same },
};

/// Appends so many bytes to a file, in one commit. They reach the limit: one more is refused before it and
/// after it.
fn reach_limit(fs: &SimFs, path: &[u8], len: usize) {
    let file = node(fs, path);
    let refused = |len| matches!(fs.append(&ROOT, &file, &vec![6; len]), Err(FsError::VolumeFull("bytes")));
    assert!(refused(len + 1), "one byte too many");
    fs.append(&ROOT, &file, &vec![6; len]).expect("they fit");
    assert!(refused(1), "the limit is reached");
}

/// Detaches the clone, for at most so many pages.
fn detach(fs: &SimFs, pages: u64) {
    let mut seen = 0;
    let detached = fs.detach_volume(b"/try", &mut |_| {
        seen += 1;
        if seen > pages { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(detached.expect("detached").is_some(), pages == u64::MAX);
}

/// The steps of each life. A sync follows the last one.
const LIVES: [&[Step]; 6] = [
    // A clone, and changes on both sides.
    &[
        (|fs| order(fs, &CLONE), false),
        (|fs| put(fs, b"/try", b"own", b"of the clone"), false),
        (|fs| drop(fs.write(&ROOT, &node(fs, b"/try/large"), Position::At(4096), &[9; 5000])), false),
        (|fs| fs.sync().expect("synced"), true),
        (|fs| drop(fs.write(&ROOT, &node(fs, b"/work/large"), Position::At(0), &[8; 300])), false),
        (|fs| fs.unlink(&ROOT, &node(fs, b"/work"), b"small").expect("removed"), false),
    ],
    // A clone of a clone, and the one between goes.
    &[
        (|fs| order(fs, &CLONE), false),
        (|fs| put(fs, b"/try", b"own", b"of the clone"), false),
        (|fs| order(fs, &AGAIN), false),
        (|fs| fs.engine().flush().expect("flushed"), false),
        (|fs| order(fs, &VolumeOrder::Delete { door: b"/try" }), true),
        (|fs| _ = fs.engine().background_step(), false),
        (|fs| _ = fs.forget_volumes().expect("forgotten"), false),
        (|fs| put(fs, b"/two", b"late", b"in the other"), false),
    ],
    // A clone of a snapshot, and the snapshot goes.
    &[
        (|fs| drop(fs.create_snapshot(b"s").expect("made")), false),
        (|fs| fs.unlink(&ROOT, &node(fs, b"/work"), b"small").expect("removed"), false),
        (|fs| order(fs, &THEN), false),
        (|fs| drop(fs.delete_snapshot(b"s").expect("deleted")), true),
        (|fs| fs.engine().flush().expect("flushed"), false),
        (|fs| fs.engine().compact().expect("compacted"), false),
        (|fs| fs.unlink(&ROOT, &node(fs, b"/then"), b"large").expect("removed"), false),
    ],
    // An empty volume that is filled, moved and deleted.
    &[
        (|fs| order(fs, &EMPTY), false),
        (|fs| put(fs, b"/empty", b"file", &[3; 10_000]), false),
        (|fs| fs.sync().expect("synced"), true),
        (
            |fs| {
                let root = fs.root();
                let replace = warpfire_fs::RenameMode::Replace;
                fs.rename(&ROOT, (&root, b"empty"), (&node(fs, b"/work"), b"moved"), replace).expect("moved");
            },
            false,
        ),
        (|fs| order(fs, &VolumeOrder::Delete { door: b"/work/moved" }), true),
        (|fs| while fs.engine().background_step().expect("a step") {}, false),
        (|fs| _ = fs.forget_volumes().expect("forgotten"), false),
    ],
    // A clone that is detached: at first not to its end, then with a snapshot from before, which goes.
    &[
        (|fs| order(fs, &CLONE), false),
        (|fs| put(fs, b"/try", b"own", b"of the clone"), false),
        (|fs| drop(fs.write(&ROOT, &node(fs, b"/try/large"), Position::At(4096), &[9; 5000])), false),
        (|fs| drop(fs.create_snapshot(b"s").expect("made")), false),
        (|fs| detach(fs, 1), false),
        (|fs| fs.engine().flush().expect("flushed"), false),
        (|fs| detach(fs, u64::MAX), false),
        (|fs| fs.unlink(&ROOT, &node(fs, b"/work"), b"large").expect("removed"), false),
        (|fs| put(fs, b"/try", b"late", b"after it"), false),
        (|fs| drop(fs.delete_snapshot(b"s").expect("deleted")), true),
        (|fs| fs.engine().compact().expect("compacted"), false),
        (|fs| fs.unlink(&ROOT, &node(fs, b"/try"), b"small").expect("removed"), false),
    ],
    // A volume with a limit, which it reaches.
    &[
        (|fs| order(fs, &EMPTY), false),
        (|fs| order(fs, &LIMIT), false),
        (|fs| put(fs, b"/empty", b"small", &[4; 2000]), false),
        (|fs| fs.sync().expect("synced"), true),
        (|fs| put(fs, b"/empty", b"large", &[5; 40_000]), false),
        (|fs| reach_limit(fs, b"/empty/small", 8000), false),
        (|fs| fs.sync().expect("synced"), true),
        (|fs| fs.unlink(&ROOT, &node(fs, b"/empty"), b"large").expect("removed"), false),
        (|fs| reach_limit(fs, b"/empty/small", 40_000), false),
        (|fs| fs.engine().flush().expect("flushed"), false),
    ],
];

/// A life, recorded: `2 i + 1` marks the beginning of the step that leads to state `i + 1`, and `2 i` its
/// end.
fn record(shape: &Shape, steps: &[Step]) -> (Recording, Vec<Listing>) {
    let world = shape.world(7);
    let fs = shape.make(&world).expect("made");
    fs.mkdir(&ROOT, &fs.root(), b"work", NewMode::exact(0o755)).expect("made");
    put(&fs, b"/work", b"small", b"bytes");
    put(&fs, b"/work", b"large", &[7; 40_000]);
    fs.close().expect("closed");
    drop(fs);
    let mut world: SimWorld = world.fork();
    world.record();
    let fs = shape.open(&world).expect("opened");
    let mut states = vec![all(&fs)];
    for (n, (step, _)) in steps.iter().enumerate() {
        world.mark(2 * n as u64 + 1);
        step(&fs);
        states.push(all(&fs));
        world.mark(2 * (n as u64 + 1));
    }
    (world.take_recording().expect("a recording was begun"), states)
}

#[test]
fn a_cut_at_every_write_of_small_lives_with_clones_leaves_each_tree_whole() {
    let mut tried = 0;
    for (life, steps) in LIVES.iter().enumerate() {
        for kind in [MediaKind::Conventional, MediaKind::AppendOnly] {
            let shape = Shape { kind, ..Shape::TINY };
            tried += try_life(&shape, steps, life);
        }
    }
    assert!(tried > 500, "only {tried} crash states");
}

fn try_life(shape: &Shape, steps: &[Step], life: usize) -> u64 {
    let (recording, states) = record(shape, steps);
    let mut replay = recording.replay();
    let (mut durable, mut newest, mut tried) = (0, 0, 0);
    loop {
        if replay.at_boundary() {
            let drawn = (0..3).map(|n| Cut::Seeded(mix(replay.point() as u64 * 8 + n)));
            for cut in [Cut::LoseAll, Cut::KeepAll].into_iter().chain(drawn) {
                let world = replay.cut(&cut);
                let what = format!("life {life} of {shape}, at {} with {cut:?}", replay.point());
                let fs = shape.open(&world).unwrap_or_else(|e| panic!("{what}: {e}"));
                let found = all(&fs);
                let allowed = &states[durable..=newest];
                assert!(allowed.contains(&found), "{what}: not since state {durable}: {found:?}");
                for volume in fs.volumes().expect("listed") {
                    assert_eq!(
                        node(&fs, &volume.path).ino(),
                        volume.root,
                        "{what}: a door leads to its volume"
                    );
                    if volume.origin.is_none() {
                        let inside = |path: &&Vec<u8>| path.starts_with(&[&volume.path[..], b"/"].concat());
                        let below = found.keys().filter(inside).map(|path| found[path].as_ref());
                        let bytes = below.clone().flatten().map(|bytes| bytes.len() as u64).sum::<u64>();
                        assert_eq!(
                            (volume.file_bytes, volume.inodes),
                            (bytes, 1 + below.count() as u64),
                            "{what}: the sums of a volume are exact"
                        );
                        assert!(volume.limits.bytes.is_none_or(|limit| bytes <= limit), "{what}: the limit");
                    }
                }
                assert_eq!(overwrite(&world), None, "{what}");
                tried += 1;
            }
        }
        match replay.advance() {
            None => return tried,
            Some(Event::Mark(mark)) => {
                let number = usize::try_from(mark / 2).expect("few");
                match mark % 2 {
                    1 => newest = number + 1,
                    _ if steps[number - 1].1 => durable = number,
                    _ => {}
                }
            }
            Some(_) => {}
        }
    }
}
