//! Increments of which the sender has a bookmark of the base, and not the base.

use warpfire_meta::SliceStore;

use super::trees::chain_by;
use super::*;
use crate::tests::engine::{LogEngine, format, open};
use crate::tests::world;

/// Makes a bookmark of a snapshot, which goes. Returns its name.
fn mark<E: Storage + SnapshotStore>(fs: &Fs<E>, snapshot: &str) -> String {
    let name = format!("mark of {snapshot}");
    fs.create_bookmark(snapshot.as_bytes(), name.as_bytes()).unwrap();
    fs.delete_snapshot(snapshot.as_bytes()).unwrap();
    name
}

fn logged() -> Fs<LogEngine> {
    open(format(), Fs::format)
}

#[test]
fn random_histories_arrive_since_bookmarks() {
    for seed in 300..330 {
        let (source, other) = (world(), Arc::new(world()));
        chain_by(&source, &other, (seed, 5), "/", &|_, _| {}, &|name| mark(&source, &name));
    }
}

#[test]
fn random_histories_of_one_directory_arrive_since_bookmarks() {
    for seed in 400..430 {
        let (source, other) = (world(), Arc::new(world()));
        chain_by(&source, &other, (seed, 6), "/n3", &|_, _| {}, &|name| mark(&source, &name));
    }
}

/// Versions fade, move and merge between the steps.
#[test]
fn random_histories_arrive_since_bookmarks_that_have_faded() {
    for seed in 500..512 {
        let (source, other) = (logged(), Arc::new(logged()));
        let between = |engine: &LogEngine, random: &mut TestRandom| match random.below(3) {
            0 => engine.compact().unwrap(),
            1 => engine.flush().unwrap(),
            _ => upkeep(engine, random),
        };
        chain_by(&source, &other, (seed, 5), "/", &between, &|name| mark(&source, &name));
    }
}

fn file(fs: &Fs<LogEngine>, name: &[u8], bytes: &[u8]) -> NodeRef {
    fs.create_file(&ROOT, &fs.root(), name, NewMode::exact(0o644), bytes).unwrap();
    fs.lookup(&ROOT, &fs.root(), name).unwrap()
}

/// The stream since a bookmark does not say whether its versions have faded, so a stream that was begun
/// before can be continued after.
#[test]
fn a_stream_since_a_bookmark_is_the_same_before_and_after_fading() {
    let fs = logged();
    let large = file(&fs, b"large", &[7; 3 << 20]);
    let small = file(&fs, b"small", &[8; 20_000]);
    file(&fs, b"same", &[9; 20_000]);
    fs.setxattr(&ROOT, &small, b"trusted.t", b"then", XattrMode::Either).unwrap();
    fs.create_snapshot(b"then").unwrap();
    fs.create_bookmark(b"then", b"mark").unwrap();
    fs.write(&ROOT, &large, Position::At(1 << 20), b"now").unwrap();
    fs.truncate(&ROOT, &large, (2 << 20) + 10).unwrap();
    fs.write(&ROOT, &small, Position::At(10), b"now").unwrap();
    fs.setxattr(&ROOT, &small, b"trusted.t", b"then", XattrMode::Either).unwrap();
    fs.create_snapshot(b"now").unwrap();
    fs.engine().compact().unwrap();
    let before = stream(&fs, Some("mark"), "now", "/");
    fs.delete_snapshot(b"then").unwrap();
    fs.engine().compact().unwrap();
    fs.engine().reclaim_all().unwrap();
    let after = stream(&fs, Some("mark"), "now", "/");
    assert!(before == after, "{} and {} bytes", before.len(), after.len());
    // All of the changed region and of the small file, and nothing of the others.
    assert!((1 << 20..(1 << 20) + 40_000).contains(&before.len()), "{}", before.len());
}

#[test]
fn the_bytes_of_a_base_that_is_gone_come_back() {
    let fs = logged();
    let large = file(&fs, b"large", &[7; 3 << 20]);
    file(&fs, b"gone", &[7; 3 << 20]);
    fs.create_snapshot(b"then").unwrap();
    fs.truncate(&ROOT, &large, 0).unwrap();
    fs.unlink(&ROOT, &fs.root(), b"gone").unwrap();
    fs.sync().unwrap();
    let live = || fs.engine().space().unwrap().live_bytes;
    fs.engine().compact().unwrap();
    assert!(live() > 6 << 20, "the snapshot holds them");
    mark(&fs, "then");
    fs.engine().reclaim_all().unwrap();
    assert!(live() < 100_000, "{} bytes are left", live());
}

#[test]
fn a_bookmark_that_is_deleted_while_it_is_sent_is_sent_to_the_end() {
    let fs = logged();
    file(&fs, b"gone", b"then");
    fs.create_snapshot(b"then").unwrap();
    let other = Arc::new(logged());
    receive(&other, "/copy", &stream(&fs, None, "then", "/")).unwrap();
    mark(&fs, "then");
    fs.unlink(&ROOT, &fs.root(), b"gone").unwrap();
    file(&fs, b"new", b"now");
    let snapshot = fs.create_snapshot(b"now").unwrap();
    let bookmark = fs.bookmark(b"mark of then").unwrap();
    let order = SendOrder {
        pool: pool(),
        snapshot: &snapshot,
        base: Some(SendBase::Bookmark(&bookmark)),
        root: b"/",
        continued_at: None,
        mark_bytes: STREAM_MARK_BYTES,
    };
    let mut out = Vec::new();
    fs.send(&order, &mut |bytes| {
        // With the header the sides are held.
        if out.is_empty() {
            fs.delete_bookmark(b"mark of then").unwrap();
            fs.engine().compact().unwrap();
            fs.engine().reclaim_all().unwrap();
        }
        out.extend_from_slice(bytes);
        ControlFlow::Continue(())
    })
    .unwrap();
    receive(&other, "/copy", &out).unwrap();
    let then = fs.open_snapshot(b"now").unwrap();
    same(&picture(&*other, "/copy"), &picture(&*then, "/"), "the receiver");
    let again = fs.send(&order, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(again, Err(crate::SendError::Files(FsError::NotFound))));
}

#[test]
fn a_receiver_takes_changes_since_a_bookmark_only_onto_its_snapshot() {
    let fs = logged();
    file(&fs, b"file", b"one");
    fs.create_snapshot(b"one").unwrap();
    let first = stream(&fs, None, "one", "/");
    let mark = mark(&fs, "one");
    file(&fs, b"more", b"two");
    fs.create_snapshot(b"two").unwrap();
    let changes = stream(&fs, Some(&mark), "two", "/");
    let other = Arc::new(logged());
    assert!(matches!(receive(&other, "/copy", &changes), Err(ReceiveError::NeverReceived(_))));
    receive(&other, "/copy", &first).unwrap();
    let copy = other.lookup(&ROOT, &other.root(), b"copy").unwrap();
    other.create_file(&ROOT, &copy, b"extra", NewMode::exact(0o644), b"").unwrap();
    assert!(matches!(receive(&other, "/copy", &changes), Err(ReceiveError::Changed(_))));
    other.abort_receive(&target("/copy")).unwrap();
    other.unlink(&ROOT, &copy, b"extra").unwrap();
    receive(&other, "/copy", &changes).unwrap();
    assert_eq!(other.read_file(&ROOT, &copy, b"more").unwrap(), b"two");
}

#[test]
fn changes_over_a_rollback_are_sent_since_a_bookmark() {
    let fs = logged();
    let node = file(&fs, b"file", &[1; 2 << 20]);
    fs.create_snapshot(b"first").unwrap();
    fs.write(&ROOT, &node, Position::At(0), &[2; 2 << 20]).unwrap();
    file(&fs, b"second", b"2");
    fs.create_snapshot(b"second").unwrap();
    let other = Arc::new(logged());
    receive(&other, "/copy", &stream(&fs, None, "second", "/")).unwrap();
    let mark = mark(&fs, "second");
    fs.roll_back(b"first", b"before", &mut |_| ()).unwrap();
    fs.delete_snapshot(b"before").unwrap();
    fs.engine().compact().unwrap();
    fs.create_snapshot(b"back").unwrap();
    receive(&other, "/copy", &stream(&fs, Some(&mark), "back", "/")).unwrap();
    same(&picture(&*other, "/copy"), &picture(&fs, "/"), "the receiver");
}

/// After each cut a copy gets the changes since its base: by the bookmark, or by the snapshot if the cut
/// took the bookmark back.
#[test]
fn a_power_cut_leaves_a_bookmark_or_its_snapshot() {
    for seed in 600..612 {
        let mut random = TestRandom(seed);
        let (mut source, other) = (logged(), Arc::new(logged()));
        // The name of the base of each copy, as a snapshot and as a bookmark.
        let mut bases: BTreeMap<String, (String, String)> = BTreeMap::new();
        for round in 0..6 {
            let what = format!("seed {seed}, round {round}");
            Changes { fs: &source, random: &mut random }.make(40);
            let now = format!("s{round}");
            source.create_snapshot(now.as_bytes()).unwrap();
            let then = source.open_snapshot(now.as_bytes()).unwrap();
            let wanted = picture(&*then, "/");
            bases.insert(format!("/copy{round}"), Default::default());
            for (copy, (snapshot, mark)) in &mut bases {
                let is_marked = source.bookmark(mark.as_bytes()).is_ok();
                let base = if is_marked { mark.as_str() } else { snapshot.as_str() };
                let base = Some(base).filter(|base| !base.is_empty());
                let bytes = stream(&source, base, &now, "/");
                receive(&other, copy, &bytes).unwrap_or_else(|e| panic!("{what}: {copy}: {e}"));
                same(&picture(&*other, copy), &wanted, &format!("{what}: {copy}"));
                if is_marked {
                    source.delete_bookmark(mark.as_bytes()).unwrap();
                }
                (*snapshot, *mark) = (now.clone(), format!("{now} for {}", &copy[1..]));
            }
            source.sync().unwrap();
            // With the snapshot the bookmark is durable; without, perhaps.
            let goes = random.below(3) > 0;
            for (_, mark) in bases.values() {
                source.create_bookmark(now.as_bytes(), mark.as_bytes()).unwrap();
            }
            drop(then);
            if goes {
                source.delete_snapshot(now.as_bytes()).unwrap();
            }
            Changes { fs: &source, random: &mut random }.make(30);
            match random.below(4) {
                0 => source.engine().compact().unwrap(),
                1 => source.engine().flush().unwrap(),
                2 => upkeep(&**source.engine(), &mut random),
                _ => {}
            }
            let cut = source.engine().log().crash_seeded(random.next());
            source = open(cut, |_, _, _, _| Ok(()));
            for (snapshot, mark) in bases.values() {
                let marks = source.bookmark(mark.as_bytes()).is_ok();
                assert!(marks || !goes && source.snapshot(snapshot.as_bytes()).is_ok(), "{what}: {mark}");
            }
        }
    }
}
