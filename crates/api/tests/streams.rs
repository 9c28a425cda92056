//! Streams between pools on simulated devices: power cuts of the receiver at its writes, and bytes that are
//! shared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use warpfire::{ErrorKind, Pool, PoolOptions, SendOptions, Storage, Warpfire};
use warpfire_sim_env::{Cut, DeviceSpec, Event, SimWorld};

const DEVICE_BYTES: u64 = 128 << 20;

fn options() -> PoolOptions {
    Pool::options().data(2).parity(1).background(false)
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(seed | 1) >> 7) as u8).collect()
}

/// Paths and contents below a directory.
fn tree<E: Storage>(pool: &Warpfire<E>, top: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![PathBuf::from(top)];
    while let Some(dir) = todo.pop() {
        for entry in pool.read_dir(&dir).expect("a directory") {
            let path = dir.join(entry.expect("an entry").file_name());
            if pool.metadata(&path).expect("it is there").is_dir() {
                todo.push(path);
            } else {
                let name = path.strip_prefix(top).expect("below").to_owned();
                found.insert(name, pool.read(&path).expect("readable"));
            }
        }
    }
    found
}

/// A pool with two snapshots, and the streams of both.
fn source() -> (Warpfire, Vec<u8>, Vec<u8>) {
    let pool = Pool::options().size_bytes(256 << 20).in_memory().expect("a pool");
    pool.create_dir("/d").expect("made");
    for n in 0..30 {
        pool.write(format!("/d/{n}"), content(n + 3, 5_000)).expect("written");
    }
    pool.create_snapshot("a").expect("made");
    pool.rename("/d/1", "/one").expect("renamed");
    pool.remove_file("/d/2").expect("removed");
    for n in 0..30 {
        pool.write(format!("/d/new{n}"), content(n + 90, 400_000)).expect("written");
    }
    pool.create_snapshot("b").expect("made");
    let send = |snapshot: &str, since: Option<&str>| {
        let options = SendOptions { since: since.map(Into::into), below: None };
        let mut stream = Vec::new();
        pool.send(snapshot, &options, &mut stream).expect("sent");
        stream
    };
    let (full, changes) = (send("a", None), send("b", Some("a")));
    (pool, full, changes)
}

/// Opens what a cut has left: it shows the old tree or the new one. Then the rest is received.
fn check_cut(
    world: &SimWorld,
    source: &Warpfire,
    trees: [&BTreeMap<PathBuf, Vec<u8>>; 2],
    what: &str,
) -> bool {
    let pool = options().open_on(world.devices()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = tree(&pool, "/copy");
    let is_new = found == *trees[1];
    assert!(is_new || found == *trees[0], "{what}: neither the old tree nor the new one");
    assert_eq!(
        pool.open_snapshot("b").is_ok(),
        is_new,
        "{what}: the snapshot is there with the new tree only"
    );
    if !is_new {
        let progress = pool.receive_progress("/copy").expect("readable");
        let mut rest = Vec::new();
        match progress {
            Some(progress) if progress.is_complete => {}
            Some(progress) => {
                source
                    .resume_send(&progress.token, &mut rest)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            None => {
                let options = SendOptions { since: Some("a".into()), below: None };
                source.send("b", &options, &mut rest).expect("sent");
            }
        }
        let received = pool.receive("/copy", None, &mut rest.as_slice());
        received.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(tree(&pool, "/copy") == *trees[1], "{what}: the rest has arrived");
    }
    pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    is_new
}

#[test]
fn a_power_cut_at_any_write_of_a_receiver_leaves_the_old_tree_or_the_new_one() {
    let (source, full, changes) = source();
    let trees = ["a", "b"].map(|name| tree(&*source.open_snapshot(name).expect("open"), "/"));
    let mut world = SimWorld::of(3, 3, &DeviceSpec::conventional("d", DEVICE_BYTES));
    let pool = options().create_on(world.devices()).expect("a pool");
    pool.receive("/copy", None, &mut full.as_slice()).expect("received");
    pool.sync().expect("synced");
    world.record();
    pool.receive("/copy", None, &mut changes.as_slice()).expect("received");
    let recording = world.take_recording().expect("it was begun");
    drop(pool);
    // Each cut opens a pool and receives the rest, so a few hundred of them are spread over the recording.
    let boundaries = recording.events().iter().filter(|event| matches!(event, Event::Flush { .. })).count();
    let every = (boundaries / 40).max(1);
    let (mut old, mut new, mut boundary) = (0, 0, 0usize);
    let mut replay = recording.replay();
    loop {
        if replay.at_boundary() {
            boundary += 1;
            if boundary.is_multiple_of(every) || replay.next_event().is_none() {
                for cut in [Cut::LoseAll, Cut::KeepAll, Cut::Seeded(boundary as u64)] {
                    let what = format!("event {}, {cut:?}", replay.point());
                    let shown = check_cut(&replay.cut(&cut), &source, [&trees[0], &trees[1]], &what);
                    *(if shown { &mut new } else { &mut old }) += 1;
                }
            }
        }
        if replay.advance().is_none() {
            break;
        }
    }
    assert!(old >= 10 && new > 0, "{old} cuts showed the old tree, {new} the new one");
}

#[test]
fn bytes_that_files_share_are_sent_and_stored_once() {
    let source = Pool::options().size_bytes(256 << 20).in_memory().expect("a pool");
    source.create_dir("/one").expect("made");
    for n in 0..40 {
        source.write(format!("/one/{n}"), content(n + 5, 100_000)).expect("written");
    }
    for copy in 0..9 {
        source.create_dir(format!("/copy{copy}")).expect("made");
        for n in 0..40 {
            source.copy(format!("/one/{n}"), format!("/copy{copy}/{n}")).expect("copied by pointers");
        }
    }
    source.create_snapshot("s").expect("made");
    let mut stream = Vec::new();
    source.send("s", &SendOptions::default(), &mut stream).expect("sent");
    let one = 40 * 100_000;
    assert!(stream.len() < one + one / 10, "{} bytes for {one}", stream.len());
    let world = SimWorld::of(4, 3, &DeviceSpec::conventional("d", DEVICE_BYTES));
    let pool = options().create_on(world.devices()).expect("a pool");
    let written = |world: &SimWorld| world.sims().iter().map(|sim| sim.counters().written_bytes).sum::<u64>();
    let before = written(&world);
    pool.receive("/copy", None, &mut stream.as_slice()).expect("received");
    pool.sync().expect("synced");
    // Two columns of data and one of parity.
    let most = one as u64 * 3 / 2 * 5 / 4;
    assert!(written(&world) - before < most, "{} bytes were written for {one}", written(&world) - before);
    assert!(tree(&pool, "/copy") == tree(&*source.open_snapshot("s").expect("open"), "/"));
    assert_eq!(pool.space().expect("known").file_bytes, 10 * one as u64);
}

#[test]
fn a_second_receiver_for_a_directory_waits_for_nobody_and_is_refused() {
    struct Asks<'a>(&'a Warpfire, Option<ErrorKind>);
    impl std::io::Read for Asks<'_> {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            self.1 = Some(self.0.receive("/x", None, &mut &b""[..]).expect_err("refused").kind());
            Ok(0)
        }
    }
    let pool = Pool::options().in_memory().expect("a pool");
    let mut first = Asks(&pool, None);
    let cut = pool.receive(Path::new("/x"), None, &mut first).expect_err("it has no bytes");
    assert_eq!((cut.kind(), first.1), (ErrorKind::StreamBroken, Some(ErrorKind::StreamRefused)));
}

#[test]
fn a_token_is_text_and_belongs_to_its_snapshot() {
    let (source, _, changes) = source();
    let pool = Pool::options().size_bytes(256 << 20).in_memory().expect("a pool");
    let mut full = Vec::new();
    source.send("b", &SendOptions::default(), &mut full).expect("sent");
    let cut = pool.receive("/copy", None, &mut full.get(..10_000_000).expect("longer"));
    assert_eq!(cut.expect_err("it was cut").kind(), ErrorKind::StreamBroken);
    let progress = pool.receive_progress("/copy").expect("readable").expect("begun");
    let token = progress.token.to_string();
    assert_eq!(token.parse::<warpfire::ResumeToken>().expect("a token"), progress.token);
    assert!(token.get(2..).expect("longer").parse::<warpfire::ResumeToken>().is_err());
    let foreign = pool.resume_send(&progress.token, &mut Vec::new()).expect_err("another pool");
    assert_eq!(foreign.to_string(), "the token is of a stream of another pool");
    source.delete_snapshot("b").expect("deleted");
    let gone = source.resume_send(&progress.token, &mut Vec::new()).expect_err("deleted");
    assert_eq!(
        gone.to_string(),
        "the snapshot or bookmark 'b' of this stream is deleted, so its rest cannot be sent"
    );
    let other = pool.receive("/copy", None, &mut changes.as_slice()).expect_err("another stream");
    assert_eq!(other.kind(), ErrorKind::StreamRefused);
    assert!(pool.abort_receive("/copy").expect("dropped"));
    assert!(!pool.abort_receive("/copy").expect("nothing is left"));
}
