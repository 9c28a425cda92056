//! Garbage between bytes that files share, or that several snapshots keep, comes back.

use warpfire::{Pool, Warpfire};
use warpfire_meta::Store;
use warpfire_sim_env::{DeviceSpec, SimWorld};

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 48 * MIB;

/// Every second part of so many bytes is overwritten, so that each old segment keeps half of its bytes.
const PART_BYTES: usize = 64 << 10;

fn content(seed: u64, at: u64) -> Vec<u8> {
    let mut state = (seed << 40 | at) * 2 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..PART_BYTES / 8).flat_map(|_| next()).collect()
}

fn parts(first: u64) -> impl Iterator<Item = u64> {
    (first..FILE_BYTES / PART_BYTES as u64).map(|n| n * PART_BYTES as u64)
}

fn write(fs: &Warpfire, path: &str, seed: u64, first: u64, step: usize) {
    let file = fs.open_with(path).expect("it is there");
    for at in parts(first).step_by(step) {
        file.write_all_at(&content(seed, at), at).expect("there is room");
    }
}

trait OpenWith {
    fn open_with(&self, path: &str) -> warpfire::Result<warpfire::File>;
}

impl OpenWith for Warpfire {
    fn open_with(&self, path: &str) -> warpfire::Result<warpfire::File> {
        warpfire::OpenOptions::new().read(true).write(true).create(true).open(self, path)
    }
}

fn copy(fs: &Warpfire, from: &str, to: &str) {
    let (from, to) = (fs.open(from).expect("it is there"), fs.open_with(to).expect("made"));
    let mut done = 0;
    while done < FILE_BYTES {
        done += to.copy_range_from(&from, done, FILE_BYTES - done, done).expect("there is room");
    }
}

fn check(fs: &Warpfire, path: &str, seed: impl Fn(u64) -> u64) {
    let file = fs.open(path).expect("it is there");
    let mut bytes = vec![0; PART_BYTES];
    for (number, at) in (0..).zip(parts(0)) {
        file.read_exact_at(&mut bytes, at).expect("readable");
        assert!(bytes == content(seed(number), at), "{path} at {at}");
    }
}

/// Background work until there is none.
fn rest(fs: &Warpfire) {
    fs.sync().expect("a sound device does not fail");
    while fs.filesystem().engine().background_step().expect("a sound device does not fail") {}
    fs.sync().expect("a sound device does not fail");
}

fn used_bytes(fs: &Warpfire) -> u64 {
    let space = fs.stats().space;
    space.total_bytes - space.free_bytes - space.garbage_bytes
}

/// 48 MiB and a copy by pointers. Both lose every second part, so 24 MiB have no name any more. No segment of
/// the 48 MiB lost a reference more than it has bytes, so nothing was ever cleaned.
#[test]
fn half_of_a_file_and_of_its_copy_is_overwritten_and_the_old_half_is_free_again() {
    let world = SimWorld::of(1, 1, &DeviceSpec::conventional("flash", 256 * MIB));
    let options = Pool::options().data(1).parity(0).zone_bytes(2 * MIB).background(false);
    let fs = options.create_on(world.devices()).expect("a blank device makes a pool");
    write(&fs, "/a", 1, 0, 1);
    copy(&fs, "/a", "/b");
    rest(&fs);
    let (once, shared) = (used_bytes(&fs), fs.stats().space.shared_bytes);
    assert!(once < FILE_BYTES * 11 / 10 && shared >= FILE_BYTES, "{once} used, {shared} shared");
    write(&fs, "/a", 2, 0, 2);
    write(&fs, "/b", 3, 0, 2);
    fs.filesystem().engine().flush().expect("there is room");
    let before = world.sims()[0].counters();
    rest(&fs);
    // The common half once, and the new half of each.
    let wanted = FILE_BYTES / 2 * 3;
    let used = used_bytes(&fs);
    assert!(used < wanted + FILE_BYTES / 10, "{used} bytes are used by {wanted}: {:?}", fs.stats().space);
    let available = fs.space().expect("counted").available_bytes;
    let space = fs.stats().space;
    let unused = space.total_bytes - space.live_bytes - space.reserve_bytes;
    assert!(available + FILE_BYTES / 8 > unused, "{available} bytes are available of {unused} unused");
    fs.trim(|_| std::ops::ControlFlow::Continue(())).expect("a sound device does not fail");
    let space = fs.stats().space;
    assert!(space.free_bytes + wanted + FILE_BYTES / 3 > space.total_bytes, "{space:?} with {wanted}");
    let after = world.sims()[0].counters();
    let (read, written) = (after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes);
    // Each byte of the common half moves once, although it has two names.
    assert!(written < FILE_BYTES / 2 * 5 / 4, "{written} bytes were written to move {}", FILE_BYTES / 2);
    assert!(read < FILE_BYTES / 2 * 5 / 4, "{read} bytes were read to move {}", FILE_BYTES / 2);
    for (path, new) in [("/a", 2), ("/b", 3)] {
        check(&fs, path, |number| if number % 2 == 0 { new } else { 1 });
    }
    fs.close().expect("a sound device does not fail");
    let report = warpfire_check::check(
        &world.devices(),
        &warpfire_check::CheckOptions { counts_distinct: true, ..warpfire_check::CheckOptions::default() },
    )
    .expect("it can be checked");
    assert_eq!(
        (report.errors, report.totals.distinct_bytes / MIB),
        (0, wanted / MIB),
        "{:?}",
        report.findings
    );
}

/// The name of a small file holds its inode, and the inode names the file's bytes. When the file is renamed
/// between snapshots, each of them keeps a name of its own for the same bytes.
#[test]
fn versions_that_snapshots_keep_with_the_same_bytes_hide_no_garbage() {
    const FILES: u64 = 700;
    let world = SimWorld::of(2, 1, &DeviceSpec::conventional("flash", 256 * MIB));
    let options = Pool::options().data(1).parity(0).zone_bytes(2 * MIB).background(false);
    let fs = options.create_on(world.devices()).expect("a blank device makes a pool");
    let path_at = |round: u64, number: u64| format!("/file-{number}-{round}");
    let path = |number| path_at(0, number);
    for number in 0..FILES {
        fs.write(path(number), content(number, 0)).expect("there is room");
    }
    fs.sync().expect("a sound device does not fail");
    for number in (0..FILES).step_by(2) {
        fs.remove_file(path(number)).expect("it was made");
    }
    for (number, snapshot) in (0..).zip(["first", "second", "third"]) {
        fs.create_snapshot(snapshot).expect("there is room");
        for file in (1..FILES).step_by(2) {
            fs.rename(path_at(number, file), path_at(number + 1, file)).expect("it is there");
        }
    }
    fs.filesystem().engine().compact().expect("there is room");
    rest(&fs);
    let (live, space) = (FILES / 2 * PART_BYTES as u64, fs.stats().space);
    assert!(space.shared_bytes > 2 * live, "each version names the bytes: {space:?}");
    let used = used_bytes(&fs);
    assert!(used < live * 12 / 10, "{used} bytes are used by {live}: {space:?}");
    fs.trim(|_| std::ops::ControlFlow::Continue(())).expect("a sound device does not fail");
    let space = fs.stats().space;
    assert!(space.free_bytes + live * 13 / 10 + 8 * MIB > space.total_bytes, "{space:?} with {live}");
    for number in (1..FILES).step_by(2) {
        assert!(fs.read(path_at(3, number)).expect("it is there") == content(number, 0), "file {number}");
    }
    for snapshot in ["second", "first", "third"] {
        fs.delete_snapshot(snapshot).expect("it is there");
    }
    fs.filesystem().engine().compact().expect("there is room");
    rest(&fs);
    let space = fs.stats().space;
    assert!(space.shared_bytes < live / 10 && space.live_bytes < live * 12 / 10, "{space:?} with {live}");
    fs.close().expect("a sound device does not fail");
}
