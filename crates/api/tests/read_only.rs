//! A pool that is open for reading only writes nothing, and many can read it at once. Access times are
//! renewed as the options say.

use warpfire::{AccessTimes, ErrorKind, OpenOptions, Pool, PoolOptions, Slice, Warpfire};
use warpfire_sim_env::{Cut, DeviceSpec, SimWorld};

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

/// Reads everything below the root, and checks the file that `fill` made.
fn read_all(fs: &Warpfire) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs.read_dir("/").expect("readable") {
        let entry = entry.expect("readable");
        let path = std::path::Path::new("/").join(entry.file_name());
        all.push((path.display().to_string(), fs.read(&path).expect("readable")));
        entry.metadata().expect("readable");
    }
    assert_eq!(fs.read_link("/link").expect("readable"), std::path::Path::new("target"));
    all
}

/// Makes every kind of change, and expects each to be refused.
fn expect_refusals(fs: &Warpfire) {
    let whole = |fs: &Warpfire, path: &str| {
        fs.open(path).expect("there").yank(0..FILE_BYTES as u64).expect("readable")
    };
    let open = |path| OpenOptions::new().read(true).write(true).open(fs, path);
    let refused = [
        fs.write("/new", b"x"),
        fs.write("/target", vec![1; 3 << 20]),
        fs.remove_file("/1"),
        fs.create_dir("/dir"),
        fs.set_mode("/1", 0o600),
        fs.rename("/1", "/one"),
        fs.hard_link("/1", "/one"),
        fs.symlink("1", "/one"),
        open("/1").and_then(|file| file.write_all_at(b"x", 0)),
        open("/1").and_then(|file| file.set_len(0)),
        open("/1").and_then(|file| file.replace(&whole(fs, "/target"))),
        fs.begin().and_then(|tx| {
            tx.remove_file("/1")?;
            tx.write("/new", vec![2; 3 << 20])?;
            tx.commit()
        }),
        fs.begin().and_then(|tx| {
            tx.remove_file("/1")?;
            tx.commit()
        }),
    ];
    for (number, result) in refused.into_iter().enumerate() {
        let error = result.expect_err("open for reading");
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "change {number}: {error}");
        assert_eq!(error.errno(), 30, "change {number}: {error}");
        assert_eq!(error.to_string(), "the pool is open for reading only", "change {number}");
    }
}

#[test]
fn a_pool_open_for_reading_only_issues_no_device_write() {
    let world = SimWorld::of(1, 1, &DeviceSpec::conventional("flash", 64 << 20));
    let fs = options().create_on(world.devices()).expect("a blank device makes a pool");
    fill(&fs);
    fs.sync().expect("sound devices do not fail");
    fs.write("/unsynced", b"x").expect("there is room");
    fs.remove_file("/99").expect("it is there");
    // A crash, which leaves a commit log to replay.
    let world = world.cut(&Cut::KeepAll);
    let opening = options().read_only(true).access_times(AccessTimes::Strict);
    let opening = opening.sync_interval(std::time::Duration::from_millis(1));
    let fs = opening.open_on(world.devices()).expect("the pool opens");
    let another = opening.open_on(world.devices()).expect("a second reader opens it");
    let before = fs.metadata("/target").expect("there").accessed();
    let first = read_all(&fs);
    for _ in 0..3 {
        assert_eq!(read_all(&fs), first);
        fs.sync().expect("nothing to do");
    }
    let then = fs.begin_read_only().expect("readers may begin one");
    assert_eq!(then.read("/1").expect("readable"), b"small");
    then.abort();
    expect_refusals(&fs);
    assert_eq!(fs.metadata("/target").expect("there").accessed(), before);
    assert_eq!(read_all(&fs), first);
    assert!(fs.stats().space.total_bytes > 0);
    fs.close().expect("nothing to do");
    assert_eq!(read_all(&another), first);
    drop(another);
    assert_eq!(world.changes_asked(), 0, "a device was changed");
    // The pool opens as usual afterwards, with the same content.
    let fs = options().open_on(world.devices()).expect("the pool opens");
    assert_eq!(read_all(&fs), first);
    fs.write("/new", b"x").expect("there is room");
}

#[test]
fn a_reader_reads_through_parity_and_repairs_nothing() {
    let world = SimWorld::of(2, 6, &DeviceSpec::conventional("flash", 32 << 20));
    let fs = options().data(4).parity(2).create_on(world.devices()).expect("blank devices make a pool");
    fill(&fs);
    fs.sync().expect("sound devices do not fail");
    let wanted = read_all(&fs);
    let world = world.cut(&Cut::KeepAll);
    // One device rots, one is missing.
    let rotten = &world.sims()[1];
    for block in (0..8192).step_by(3) {
        rotten.poke(block * 4096, &[0xa5; 4096]);
    }
    let devices: Vec<_> = world.devices().into_iter().skip(1).collect();
    for _ in 0..2 {
        let fs = options().read_only(true).open_on(devices.clone()).expect("two may be lost");
        assert_eq!(read_all(&fs), wanted);
        let stats = fs.stats();
        assert!(stats.rebuilt_blocks > 0 && stats.lost_devices() == 1);
    }
    let fs = options().read_only(true).open_on(devices[1..].to_vec()).expect("two may be missing");
    assert_eq!(read_all(&fs), wanted);
    drop(fs);
    let few = options().read_only(true).open_on(devices[2..].to_vec());
    assert_eq!(few.expect_err("three are missing").kind(), ErrorKind::NotAPool);
    assert_eq!(world.changes_asked(), 0, "a device was changed");
}

#[test]
fn readers_share_a_pool_and_never_with_a_writer() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let image = directory.path().join("a.img");
    let writer = options().size_bytes(64 << 20).create([&image]).expect("a new image");
    fill(&writer);
    let refused = options().read_only(true).open([&image]).expect_err("a writer has it");
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert!(refused.hint().is_some_and(|hint| hint.contains("use its mount")), "{refused}");
    writer.close().expect("sound devices do not fail");
    let bytes = std::fs::read(&image).expect("readable");
    let readers: Vec<_> =
        (0..16).map(|_| options().read_only(true).open([&image]).expect("readers share it")).collect();
    let wanted = read_all(&readers[0]);
    for reader in &readers {
        assert_eq!(read_all(reader), wanted);
    }
    let refused = options().open([&image]).expect_err("readers have it");
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert!(refused.to_string().contains("open for reading in another process"), "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("open it for reading too")), "{refused}");
    drop(readers);
    assert!(std::fs::read(&image).expect("readable") == bytes, "the image has changed");
    options().open([&image]).expect("nobody has it");
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
