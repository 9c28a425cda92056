//! A pool that is open for reading only writes nothing; access times are renewed as the options say.

use warpfire::{AccessTimes, ErrorKind, OpenOptions, Pool, PoolOptions, Slice, Warpfire};
use warpfire_sim_env::{DeviceSpec, SimWorld};

const PIECE_BYTES: usize = 4096;
const FILE_BYTES: usize = 1 << 20;

fn options() -> PoolOptions {
    Pool::options().zone_bytes(1 << 20)
}

/// Fills a pool with a file whose pieces lie in reverse order, which a read would defragment.
fn fill(fs: &Warpfire) {
    let open = |name| OpenOptions::new().read(true).write(true).create(true).open(fs, name);
    let (source, target) = (open("/source").expect("there is room"), open("/target").expect("there is room"));
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|i| (i / 251) as u8 ^ (i % 251) as u8).collect();
    source.write_all_at(&bytes, 0).expect("there is room");
    let piece = |at: usize| source.yank(at as u64..(at + PIECE_BYTES) as u64).expect("in the file");
    let pieces: Vec<Slice> = (0..FILE_BYTES).step_by(PIECE_BYTES).rev().map(piece).collect();
    target.replace(&Slice::join(&pieces).expect("of one pool")).expect("there is room");
    for number in 0..100 {
        fs.write(format!("/{number}"), b"small").expect("there is room");
    }
    fs.symlink("target", "/link").expect("there is room");
}

#[test]
fn a_pool_open_for_reading_only_issues_no_device_write() {
    let mut world = SimWorld::of(1, 1, &DeviceSpec::conventional("flash", 64 << 20));
    let fs = options().create_on(world.devices()).expect("a blank device makes a pool");
    fill(&fs);
    fs.close().expect("sound devices do not fail");
    let fs = options().read_only(true).access_times(AccessTimes::Strict).open_on(world.devices());
    let fs = fs.expect("the pool opens");
    let before = fs.metadata("/target").expect("there").accessed();
    world.record();
    for _ in 0..3 {
        for name in fs.read_dir("/").expect("readable") {
            let path = std::path::Path::new("/").join(name.expect("readable").file_name());
            fs.read(path).expect("readable");
        }
        fs.read_link("/link").expect("readable");
        fs.sync().expect("nothing to do");
    }
    assert_eq!(fs.metadata("/target").expect("there").accessed(), before);
    let refused = [
        fs.write("/new", b"x"),
        fs.write("/target", b"x"),
        fs.remove_file("/1"),
        fs.create_dir("/dir"),
        fs.set_mode("/1", 0o600),
        fs.rename("/1", "/one"),
    ];
    for result in refused {
        assert_eq!(result.expect_err("read-only").kind(), ErrorKind::ReadOnly);
    }
    assert_eq!(fs.read("/1").expect("as before"), b"small");
    fs.close().expect("nothing to do");
    let recording = world.take_recording().expect("it records");
    assert!(recording.replay().advance().is_none(), "a device was written");
    // The pool opens as usual afterwards.
    let fs = options().open_on(world.devices()).expect("the pool opens");
    fs.write("/new", b"x").expect("there is room");
}

#[test]
fn access_times_are_renewed_as_the_option_says() {
    let world = SimWorld::of(1, 1, &DeviceSpec::conventional("flash", 64 << 20));
    let fs = options().create_on(world.devices()).expect("a blank device makes a pool");
    fs.write("/file", b"x").expect("there is room");
    fs.close().expect("sound devices do not fail");
    let times = |access_times: AccessTimes| {
        let opened = options().access_times(access_times).open_on(world.devices()).expect("the pool opens");
        let read = || {
            opened.read("/file").expect("readable");
            std::thread::park_timeout(std::time::Duration::from_millis(2));
            opened.metadata("/file").expect("there").accessed()
        };
        let before = opened.metadata("/file").expect("there").accessed();
        let times = [before, read(), read()];
        opened.close().expect("sound devices do not fail");
        times
    };
    let [before, once, twice] = times(AccessTimes::Never);
    assert!(before == once && once == twice);
    let [before, once, twice] = times(AccessTimes::Relatime);
    assert!(before != once && once == twice, "the first read after a change counts");
    let [before, once, twice] = times(AccessTimes::Strict);
    assert!(before != once && once != twice);
}
