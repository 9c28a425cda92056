//! `write` over a file that exists is one commit.

use std::sync::atomic::{AtomicBool, Ordering};

use warpfire::{OpenOptions, Pool};
use warpfire_sim_env::{DeviceSpec, SimWorld};

const DEVICE_BYTES: u64 = 128 << 20;

/// Contents of all layouts: in the inode, in one region, in several.
fn contents() -> Vec<Vec<u8>> {
    [(b'a', 10), (b'b', 300 << 10), (b'c', 1200 << 10), (b'd', 5000)]
        .map(|(byte, len): (u8, usize)| vec![byte; len])
        .into()
}

#[test]
fn a_reader_finds_the_old_content_or_the_new() {
    let fs = Pool::options().size_bytes(DEVICE_BYTES).in_memory().expect("memory");
    let contents = contents();
    fs.write("/file", &contents[0]).expect("there is room");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let file = fs.open("/file").expect("there");
            let mut bytes = vec![0; 4 << 20];
            let mut seen = [0u32; 256];
            while !ended.load(Ordering::Relaxed) {
                let len = file.read_at(&mut bytes, 0).expect("readable");
                let found = contents.iter().any(|content| *content == bytes[..len]);
                assert!(found, "{len} bytes that begin with {:?}", bytes[..len].first());
                seen[usize::from(bytes[0])] += 1;
            }
            seen.iter().filter(|times| **times > 0).count()
        });
        let mut rounds = 0..300;
        let written = rounds.try_for_each(|round| fs.write("/file", &contents[round % contents.len()]));
        ended.store(true, Ordering::Relaxed);
        written.expect("there is room");
        assert!(reader.join().expect("no other content") > 1, "the reader ran beside the writer");
    });
}

#[test]
fn a_crash_leaves_the_old_content_or_the_new() {
    let options = Pool::options().zone_bytes(1 << 20).background(false);
    for new in contents() {
        let old = vec![b'o'; 70_000];
        let mut world = SimWorld::of(1, 1, &DeviceSpec::conventional("flash", 64 << 20));
        let fs = options.create_on(world.devices()).expect("a blank device makes a pool");
        fs.write("/file", &old).expect("there is room");
        fs.sync().expect("sound devices do not fail");
        world.record();
        fs.write("/file", &new).expect("there is room");
        fs.sync().expect("sound devices do not fail");
        let recording = world.take_recording().expect("it records");
        let mut replay = recording.replay();
        let mut seen = [0, 0];
        loop {
            for cut in &replay.cuts(1, replay.point() as u64).collect::<Vec<_>>() {
                let after = options.open_on(replay.cut(cut).devices()).expect("a power cut leaves the pool");
                let found = after.read("/file").expect("there");
                assert!(found == old || found == new, "{} bytes after a cut", found.len());
                seen[usize::from(found == new)] += 1;
            }
            if replay.advance().is_none() {
                break;
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "cuts before and after the commit: {seen:?}");
    }
}

#[test]
fn an_overwritten_file_keeps_its_inode_its_names_and_nothing_of_the_old_content() {
    let fs = Pool::options().size_bytes(DEVICE_BYTES).in_memory().expect("memory");
    let contents = contents();
    fs.write("/file", &contents[2]).expect("there is room");
    fs.hard_link("/file", "/again").expect("there is room");
    let ino = fs.metadata("/file").expect("there").ino();
    for content in contents.iter().chain([&Vec::new()]) {
        fs.write("/again", content).expect("there is room");
        assert!(fs.read("/file").expect("there") == *content);
        let there = fs.metadata("/file").expect("there");
        assert_eq!((there.ino(), there.len()), (ino, content.len() as u64));
        // The old content does not come back when the file grows.
        let file = OpenOptions::new().read(true).write(true).open(&fs, "/file").expect("there");
        file.set_len(4 << 20).expect("a hole");
        let mut rest = vec![1; 4096];
        file.read_exact_at(&mut rest, content.len() as u64).expect("a hole");
        assert!(rest.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_transaction_overwrites_and_replays() {
    let fs = Pool::options().size_bytes(DEVICE_BYTES).in_memory().expect("memory");
    fs.write("/file", b"a long old content").expect("there is room");
    let tx = fs.begin().expect("memory");
    tx.write("/file", b"new").expect("there is room");
    assert_eq!(fs.read("/file").expect("there"), b"a long old content");
    // Others change what the transaction looked up: its commit repeats its calls.
    fs.write("/file", b"of others, and much longer").expect("there is room");
    tx.commit().expect("a blind write conflicts with nothing");
    assert_eq!(fs.read("/file").expect("there"), b"new");
}
