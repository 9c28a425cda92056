//! A small life with a bookmark: after a power cut at every boundary of the devices' writes and flushes, a
//! receiver of the snapshot gets the changes since, by the bookmark or by the snapshot.

use std::ops::ControlFlow;
use std::sync::Arc;

use warpfire_format::Uuid;
use warpfire_fs::acl::Caller;
use warpfire_fs::{
    Follow, FsError, NewMode, NodeRef, Position, ReceiveTarget, RenameMode, STREAM_MARK_BYTES, SendBase,
    SendOrder,
};
use warpfire_sim::observe::listing;
use warpfire_sim::stack::{MediaKind, Shape, SimFs, overwrite};
use warpfire_sim_env::{Cut, Event, SimWorld, mix};

const ROOT: Caller<'static> = Caller::ROOT;

fn node(fs: &SimFs, path: &[u8]) -> NodeRef {
    fs.resolve(&ROOT, &fs.root(), path, Follow::No).expect("it is there")
}

fn put(fs: &SimFs, dir: &[u8], name: &[u8], bytes: &[u8]) {
    fs.create_file(&ROOT, &node(fs, dir), name, NewMode::exact(0o644), bytes).expect("made");
}

/// The stream of a snapshot, since a snapshot or a bookmark.
fn stream(fs: &SimFs, name: &[u8], base: Option<SendBase<'_>>) -> Vec<u8> {
    let snapshot = fs.snapshot(name).expect("there is one");
    let order = SendOrder {
        pool: Uuid::new(1).expect("one is a number"),
        snapshot: &snapshot,
        base,
        root: b"/",
        continued_at: None,
        mark_bytes: STREAM_MARK_BYTES,
    };
    let mut stream = Vec::new();
    let sent = fs.send(&order, &mut |bytes| {
        stream.extend_from_slice(bytes);
        ControlFlow::Continue(())
    });
    sent.expect("sent");
    stream
}

fn receive(fs: &Arc<SimFs>, stream: &[u8]) -> Result<(), String> {
    let target = ReceiveTarget::new(b"/copy").expect("a path");
    let mut receiver = fs.receive(&target, None).map_err(|e| e.to_string())?;
    receiver.feed(stream).map_err(|e| e.to_string())?;
    receiver.finish(&|tx| tx.commit()).map(drop).map_err(|e| e.to_string())
}

/// The steps of the life, after the snapshot `then` was sent.
const STEPS: [fn(&SimFs); 12] = [
    |fs| drop(fs.create_bookmark(b"then", b"mark").expect("made")),
    |fs| fs.unlink(&ROOT, &node(fs, b"/work"), b"small").expect("removed"),
    |fs| drop(fs.delete_snapshot(b"then").expect("deleted")),
    |fs| drop(fs.write(&ROOT, &node(fs, b"/work/large"), Position::At(4096), &[9; 5000])),
    |fs| fs.engine().flush().expect("flushed"),
    |fs| fs.engine().compact().expect("compacted"),
    |fs| put(fs, b"/work", b"small", b"other"),
    |fs| {
        let (root, replace) = (fs.root(), RenameMode::Replace);
        fs.rename(&ROOT, (&root, b"work"), (&root, b"moved"), replace).expect("moved");
    },
    |fs| fs.truncate(&ROOT, &node(fs, b"/moved/large"), 10_000).expect("cut"),
    |fs| fs.sync().expect("synced"),
    |fs| drop(fs.delete_bookmark(b"mark").expect("deleted")),
    |fs| fs.engine().compact().expect("compacted"),
];

/// The step that deletes the bookmark.
const GOES: u64 = 10;

#[test]
fn a_cut_at_every_write_leaves_a_bookmark_or_its_snapshot_and_all_changes_since() {
    let mut tried = 0;
    for kind in [MediaKind::Conventional, MediaKind::AppendOnly] {
        tried += try_life(&Shape { kind, ..Shape::TINY });
    }
    assert!(tried > 200, "only {tried} crash states");
}

fn try_life(shape: &Shape) -> u64 {
    let world = shape.world(7);
    let fs = shape.make(&world).expect("made");
    fs.mkdir(&ROOT, &fs.root(), b"work", NewMode::exact(0o755)).expect("made");
    put(&fs, b"/work", b"small", b"bytes");
    put(&fs, b"/work", b"large", &[7; 40_000]);
    fs.create_snapshot(b"then").expect("made");
    let full = stream(&fs, b"then", None);
    fs.close().expect("closed");
    drop(fs);
    let copy = shape.world(8);
    let fs = Arc::new(shape.make(&copy).expect("made"));
    receive(&fs, &full).expect("received");
    fs.close().expect("closed");
    drop(fs);

    let mut world: SimWorld = world.fork();
    world.record();
    let fs = shape.open(&world).expect("opened");
    for (n, step) in STEPS.iter().enumerate() {
        world.mark(n as u64);
        step(&fs);
    }
    let recording = world.take_recording().expect("a recording was begun");
    let mut replay = recording.replay();
    let (mut tried, mut step) = (0, 0);
    loop {
        if replay.at_boundary() {
            let drawn = (0..3).map(|n| Cut::Seeded(mix(replay.point() as u64 * 8 + n)));
            for cut in [Cut::LoseAll, Cut::KeepAll].into_iter().chain(drawn) {
                let what = format!("{shape}, step {step}, at {} with {cut:?}", replay.point());
                try_state(shape, &replay.cut(&cut), &copy, step, &what);
                tried += 1;
            }
        }
        match replay.advance() {
            None => return tried,
            Some(Event::Mark(mark)) => step = *mark,
            Some(_) => {}
        }
    }
}

/// Sends the changes that a cut has left, and compares the receiver.
fn try_state(shape: &Shape, world: &SimWorld, copy: &SimWorld, step: u64, what: &str) {
    let fs = shape.open(world).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (snapshot, bookmark) = (fs.snapshot(b"then"), fs.bookmark(b"mark"));
    let base = match (&snapshot, &bookmark) {
        (_, Ok(bookmark)) => SendBase::Bookmark(bookmark),
        (Ok(snapshot), _) => SendBase::Snapshot(snapshot),
        (Err(FsError::NotFound), Err(FsError::NotFound)) if step >= GOES => return,
        lost => panic!("{what}: {lost:?}"),
    };
    assert!(step > 0 || snapshot.is_ok(), "{what}: nobody has deleted it");
    fs.create_snapshot(b"now").expect("made");
    let changes = stream(&fs, b"now", Some(base));
    let other = Arc::new(shape.open(&copy.fork()).expect("opened"));
    receive(&other, &changes).unwrap_or_else(|e| panic!("{what}: {e}"));
    let shown = |fs: &SimFs, top: &[u8]| listing(fs, &node(fs, top)).expect("readable");
    assert_eq!(shown(&other, b"/copy"), shown(&fs, b"/"), "{what}");
    assert_eq!(overwrite(world), None, "{what}");
}
