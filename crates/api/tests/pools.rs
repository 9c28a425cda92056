//! The life of pools on real files: make, close, open again, share between threads, refuse.

use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use tempfile::TempDir;
use warpfire::{
    DeviceContent, ErrorKind, Identity, OpenOptions, Pool, SetMetadata, Timestamp, device_content,
    device_label,
};

const DEVICE_BYTES: u64 = 64 << 20;

/// Paths of image files in a temporary directory.
fn images(directory: &TempDir, count: usize) -> Vec<PathBuf> {
    (0..count).map(|number| directory.path().join(format!("{number}.img"))).collect()
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[test]
fn files_are_there_after_the_last_handle_was_dropped() {
    let directory = directory();
    let images = images(&directory, 1);
    let options = Pool::options().size_bytes(DEVICE_BYTES);
    let fs = options.create(&images).expect("made");
    fs.create_dir("/d").expect("made");
    for number in 0..500 {
        fs.write(format!("/d/{number}"), number.to_string()).expect("written");
    }
    drop(fs);
    let fs = options.open(&images).expect("opened");
    assert_eq!(fs.read_dir("/d").expect("listed").count(), 500);
    assert_eq!(fs.read("/d/321").expect("read"), b"321");
}

#[test]
fn devices_may_be_named_in_any_order_and_two_may_be_missing() {
    let directory = directory();
    let images = images(&directory, 6);
    let options = Pool::options().data(4).parity(2).size_bytes(DEVICE_BYTES);
    let fs = options.create(&images).expect("made");
    let bytes: Vec<u8> = (0..5_000_000u32).map(|n| (n / 7) as u8).collect();
    fs.write("/large", &bytes).expect("written");
    fs.close().expect("closed");
    let some = [5, 0, 3, 2].map(|number: usize| images[number].clone());
    let fs = options.open(&some).expect("opened without two");
    assert_eq!(fs.stats().lost_devices(), 2);
    assert_eq!(fs.read("/large").expect("read"), bytes);
    drop(fs);
    let error = options.open(&some[..3]).expect_err("one more is too many");
    assert_eq!(error.kind(), ErrorKind::NotAPool);
    assert!(error.to_string().contains("3 devices are missing"), "{error}");
}

#[test]
fn an_open_pool_is_not_opened_again() {
    let directory = directory();
    let images = images(&directory, 1);
    let options = Pool::options().size_bytes(DEVICE_BYTES);
    let fs = options.create(&images).expect("made");
    let error = options.open(&images).expect_err("in use");
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.hint().is_some());
    let label = device_label(&images[0]).expect("readable").expect("a member");
    assert_eq!(label.pool, fs.stats().pool);
}

#[test]
fn a_device_with_data_is_not_overwritten_and_no_image_of_a_failed_pool_is_left() {
    let directory = directory();
    let images = images(&directory, 2);
    std::fs::write(&images[1], vec![7; 1 << 20]).expect("written");
    assert_eq!(device_content(&images[1]).expect("readable").0, DeviceContent::Unknown);
    let options = Pool::options().parity(1).size_bytes(DEVICE_BYTES);
    let error = options.create(&images).expect_err("a device holds data");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(!images[0].exists());
    assert_eq!(std::fs::read(&images[1]).expect("read"), vec![7; 1 << 20]);
}

#[test]
fn an_impossible_geometry_is_refused() {
    for (data, parity) in [(0, 0), (1, 9), (249, 2)] {
        let made = Pool::options().data(data).parity(parity).size_bytes(16 << 20).in_memory();
        assert_eq!(made.expect_err("impossible").kind(), ErrorKind::InvalidInput, "{data}+{parity}");
    }
}

#[test]
fn threads_that_append_lose_nothing_and_overlap_nowhere() {
    let fs = Pool::options().size_bytes(DEVICE_BYTES).in_memory().expect("made");
    let log = OpenOptions::new().read(true).append(true).create(true).open(&fs, "/log").expect("made");
    std::thread::scope(|scope| {
        for letter in b'a'..=b'd' {
            let log = &log;
            scope.spawn(move || {
                for _ in 0..250 {
                    log.append(&[letter; 16]).expect("appended");
                }
            });
        }
    });
    let bytes = log.read_to_end().expect("read");
    assert_eq!(bytes.len(), 4 * 250 * 16);
    assert!(bytes.chunks(16).all(|piece| piece.iter().all(|byte| *byte == piece[0])));
}

#[test]
fn an_open_file_outlives_its_name() {
    let fs = Pool::options().size_bytes(DEVICE_BYTES).in_memory().expect("made");
    fs.write("/a", b"still here").expect("written");
    let file = fs.open("/a").expect("opened");
    fs.remove_file("/a").expect("removed");
    assert!(!fs.exists("/a"));
    assert_eq!(file.read_to_end().expect("read"), b"still here");
    assert_eq!(file.metadata().expect("known").nlink(), 0);
}

#[test]
fn handles_allow_what_they_were_opened_for() {
    let fs = Pool::options().size_bytes(DEVICE_BYTES).in_memory().expect("made");
    fs.write("/a", b"1").expect("written");
    let reader = fs.open("/a").expect("opened");
    assert_eq!(reader.write_all_at(b"2", 0).expect_err("read only").kind(), ErrorKind::InvalidInput);
    let writer = fs.create("/b").expect("made");
    assert_eq!(writer.read_to_end().expect_err("write only").errno(), Errno::BADF.raw_os_error());
    let neither = OpenOptions::new().open(&fs, "/a").expect_err("for nothing");
    assert_eq!(neither.kind(), ErrorKind::InvalidInput);
    let again = OpenOptions::new().write(true).create_new(true).open(&fs, "/a").expect_err("it is there");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
}

#[test]
fn ranges_are_punched_inserted_and_taken_out() {
    let fs = Pool::options().size_bytes(DEVICE_BYTES).in_memory().expect("made");
    fs.write("/a", b"one three four").expect("written");
    let file = OpenOptions::new().read(true).write(true).open(&fs, "/a").expect("opened");
    file.insert_range(4..8).expect("inserted");
    file.write_all_at(b"two ", 4).expect("written");
    assert_eq!(file.read_to_end().expect("read"), b"one two three four");
    file.remove_range(0..4).expect("taken out");
    assert_eq!(file.read_to_end().expect("read"), b"two three four");
    file.punch_hole(4..9).expect("punched");
    assert_eq!(file.read_to_end().expect("read"), b"two \0\0\0\0\0 four");
}

#[test]
fn another_identity_is_bound_by_permissions() {
    let options = Pool::options().size_bytes(DEVICE_BYTES).identity(Identity::superuser());
    let fs = options.in_memory().expect("made");
    fs.write("/secret", b"x").expect("written");
    fs.set_mode("/secret", 0o600).expect("set");
    let guest = fs.acting_as(Identity::new(1000, 1000));
    assert_eq!(guest.read("/secret").expect_err("not theirs").kind(), ErrorKind::PermissionDenied);
    fs.set_metadata("/secret", &SetMetadata::new().owner(1000)).expect("root changes the owner");
    assert_eq!(guest.read("/secret").expect("theirs"), b"x");
}

#[test]
fn times_are_kept_to_the_nanosecond_also_before_1970() {
    let fs = Pool::options().size_bytes(DEVICE_BYTES).in_memory().expect("made");
    fs.write("/a", b"").expect("written");
    let long_ago = Timestamp { seconds: -86_400, nanos: 123_456_789 };
    fs.set_metadata("/a", &SetMetadata::new().modified(long_ago)).expect("set");
    assert_eq!(fs.metadata("/a").expect("known").modified(), long_ago);
}

#[test]
fn a_tree_is_removed_however_deep_it_is() {
    let fs = Pool::options().size_bytes(DEVICE_BYTES).in_memory().expect("made");
    let deep: PathBuf = std::iter::once("/").chain(std::iter::repeat_n("d", 500)).collect();
    fs.create_dir_all(&deep).expect("made");
    fs.write(deep.join("file"), b"x").expect("written");
    fs.symlink("/nowhere", "/d/link").expect("made");
    fs.remove_dir_all("/d").expect("removed");
    assert_eq!(fs.read_dir("/").expect("listed").count(), 0);
}

#[test]
fn a_sync_interval_makes_changes_durable_without_a_sync() {
    let options = Pool::options().size_bytes(DEVICE_BYTES).sync_interval(Duration::from_millis(10));
    let fs = options.in_memory().expect("made");
    fs.write("/a", b"x").expect("written");
    let flushes = || fs.stats().counters().flushes;
    let before = flushes();
    let clock = warpfire_env::SystemClock;
    let began = warpfire_env::Clock::monotonic_nanos(&clock);
    while flushes() == before {
        let waited = warpfire_env::Clock::monotonic_nanos(&clock) - began;
        assert!(waited < 20_000_000_000, "no sync within 20 seconds");
        std::thread::yield_now();
    }
}
