//! The requests of programs that read snapshots.

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::Duration;

use warpfire_test_needs::{Need, skip};

use crate::counts::{count, kernel_prunes, start_counting, take_counts};
use crate::fixture::MountFixture;

#[test]
fn the_kernel_keeps_what_it_has_seen_of_a_snapshot() {
    let _counting = start_counting();
    let Some(mount) = MountFixture::new() else { return };
    fs::create_dir_all(mount.at("dir/below")).unwrap();
    for n in 0..50 {
        fs::write(mount.at(&format!("dir/below/file{n}")), b"then").unwrap();
    }
    mount.fs().create_snapshot(b"s").unwrap();
    let below = mount.at("dir/.snapshots/s/below");
    let path = |n: u32| below.join(format!("file{n}"));
    // Not by the standard library, which also asks for the time of birth: the kernel never keeps that.
    let stat_all = || (0..50).for_each(|n| assert_eq!(rustix::fs::stat(path(n)).unwrap().st_size, 4));
    let read_all = || (0..50).for_each(|n| assert_eq!(fs::read(path(n)).unwrap(), b"then"));
    let again = |work: &dyn Fn()| {
        work();
        take_counts();
        work();
        // Each path asks for `.snapshots` and `s`. Nothing below is asked for again.
        let counts = take_counts();
        assert_eq!(counts.keys().collect::<Vec<_>>(), ["lookup"], "{counts:?}");
        assert_eq!(counts["lookup"], 100);
    };
    // After a read the kernel asks once for the time of access.
    again(&stat_all);
    again(&|| (0..50).for_each(|n| drop(File::open(path(n)).unwrap())));
    read_all();
    take_counts();
    read_all();
    assert!(!take_counts().contains_key("read"), "the content is kept too");
}

#[test]
fn ways_into_snapshots_that_nobody_uses_are_forgotten() {
    const DIRECTORIES: u32 = 3000;
    if !kernel_prunes() {
        skip(Need::FusePrune, "the kernel drops no inodes when a server asks");
        return;
    }
    let _counting = start_counting();
    let Some(mount) = MountFixture::new() else { return };
    let way = |n: u32| mount.at(&format!("dir{n}/.snapshots/s"));
    for n in 0..DIRECTORIES {
        fs::create_dir(mount.at(&format!("dir{n}"))).unwrap();
    }
    mount.fs().create_snapshot(b"s").unwrap();
    take_counts();
    let held = File::open(way(0)).unwrap();
    for n in 0..DIRECTORIES {
        assert_eq!(fs::read_dir(way(n)).unwrap().count(), 0);
    }
    // The kernel is asked on another thread.
    let is_enough = || count("forget") >= DIRECTORIES / 3;
    let waits =
        (0..1000).take_while(|_| !is_enough()).map(|_| thread::park_timeout(Duration::from_millis(10)));
    waits.for_each(drop);
    assert!(is_enough(), "{} of {DIRECTORIES} ways are forgotten", count("forget"));
    // A directory in use stays.
    assert_eq!(fs::read_link(path_of(&held)).unwrap(), way(0));
    assert_eq!(fs::read_dir(way(0)).unwrap().count(), 0);
}

/// The link to the path of an open file.
fn path_of(file: &File) -> impl AsRef<Path> {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
