//! A pool behind the kernel's FUSE interface. Without it the tests print that they are skipped.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use warpfire_test_needs::{Need, skip};

use crate::fixture::{Fixture, bytes};

/// Whether this process may mount.
pub fn can_mount() -> bool {
    let there = OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !there {
        skip(Need::Fuse, "/dev/fuse cannot be opened");
    }
    there
}

/// A pool that is mounted in the fixture's directory `mnt`; detached when the test ends, however it ends.
pub struct MountedFixture(pub Fixture);

impl MountedFixture {
    pub fn new() -> Self {
        MountedFixture::of(Fixture::pool(3, 2, 1, 64))
    }

    pub fn of(fixture: Fixture) -> Self {
        std::fs::create_dir(fixture.path("mnt")).expect("a new directory");
        fixture.run(["mount", "pool", "mnt"]).succeeded();
        MountedFixture(fixture)
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.0.run(["status", "mnt", "--json"]).succeeded()).expect("JSON")
    }
}

impl Drop for MountedFixture {
    fn drop(&mut self) {
        // Fails if the test has unmounted it already.
        let _ = Command::new("umount").arg("-l").arg(self.0.path("mnt")).output();
    }
}

#[test]
fn a_mounted_pool_keeps_what_was_written_and_answers_for_itself() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    std::fs::write(pool.0.path("mnt/a"), bytes(1, 300_000)).expect("written");
    assert_eq!(pool.status()["state"], "whole");
    assert_eq!(pool.0.run(["ls", "pool:/"]).succeeded(), "a\n");
    assert!(pool.0.run(["status", "pool"]).succeeded().contains("mounted at"));
    pool.0.run(["umount", "mnt"]).succeeded();
    assert!(!pool.0.path("mnt/a").exists());
    // The server has closed the pool, so it can be opened at once.
    pool.0.run(["cp", "pool:/a", "back"]).succeeded();
    assert_eq!(std::fs::read(pool.0.path("back")).expect("copied out"), bytes(1, 300_000));
}

#[test]
fn a_server_killed_with_9_loses_nothing_that_was_synced() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    let mut file = std::fs::File::create(pool.0.path("mnt/synced")).expect("made");
    file.write_all(&bytes(2, 100_000)).expect("written");
    file.sync_all().expect("synced");
    drop(file);
    let server = server_of(&pool.0.path("pool/0.img"));
    assert!(Command::new("kill").args(["-9", &server.to_string()]).status().expect("kill runs").success());
    // A new mount replaces the dead one, once the kernel has ended the old server and its locks. Until then
    // the pool is still mounted.
    let is_alive = || std::fs::metadata(pool.0.path("mnt/synced")).is_ok();
    let mounted_again = (0..50).any(|_| pool.0.run(["mount", "pool", "mnt"]).code == 0 && is_alive());
    assert!(mounted_again, "{}", pool.0.run(["mount", "pool", "mnt"]).stderr);
    assert_eq!(std::fs::read(pool.0.path("mnt/synced")).expect("read"), bytes(2, 100_000));
    pool.0.run(["umount", "mnt"]).succeeded();
}

#[test]
fn unmounting_an_unmounted_directory_is_refused() {
    let fixture = Fixture::empty();
    let said = fixture.run(["umount", "."]).failed(1);
    assert!(said.contains("no pool is mounted"), "{said}");
}

/// The process that holds an image file open.
pub fn server_of(image: &Path) -> u32 {
    let image = image.canonicalize().expect("the image exists");
    let processes = std::fs::read_dir("/proc").expect("Linux");
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let holds = |process: &u32| {
        let Ok(open) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        open.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target == image))
    };
    let found = numbers.collect::<Vec<_>>().into_iter().find(holds);
    found.expect("the server has the image open")
}
