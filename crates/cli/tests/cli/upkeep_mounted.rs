//! Trim of a mounted pool, by its server.

use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use crate::fixture::{Fixture, bytes};
use crate::mounted::{MountedFixture, can_mount};

/// Bytes of its disk that an image takes.
fn taken_bytes(fixture: &Fixture, image: &str) -> u64 {
    std::fs::metadata(fixture.path(image)).expect("the image is there").blocks() * 512
}

#[test]
fn a_mounted_pool_gives_back_the_space_of_removed_files() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    for round in 0..3 {
        let file = std::fs::File::create(pool.0.path("mnt/gone")).expect("made");
        std::io::Write::write_all(&mut &file, &bytes(round, 30 << 20)).expect("written");
        file.sync_all().expect("synced");
    }
    std::fs::write(pool.0.path("mnt/kept"), bytes(9, 1 << 20)).expect("written");
    std::fs::remove_file(pool.0.path("mnt/gone")).expect("removed");
    let before = taken_bytes(&pool.0, "pool/0.img");
    // By the devices, by the directory, and with the answer for a program.
    let said = pool.0.run(["trim", "pool"]).succeeded();
    assert!(said.contains(" discarded in "), "{said}");
    let after = taken_bytes(&pool.0, "pool/0.img");
    assert!(after * 2 < before, "{before} bytes before, {after} after");
    pool.0.run(["trim", "mnt"]).succeeded();
    let said: Value = serde_json::from_str(&pool.0.run(["trim", "--json", "mnt"]).succeeded()).expect("JSON");
    assert_eq!((&said["version"], &said["refused_devices"]), (&1.into(), &0.into()), "{said}");
    assert_eq!(std::fs::read(pool.0.path("mnt/kept")).expect("read"), bytes(9, 1 << 20));
    pool.0.run(["umount", "mnt"]).succeeded();
    pool.0.run(["fsck", "pool"]).succeeded();
}

#[test]
fn a_pool_that_is_mounted_for_reading_is_not_trimmed() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 32);
    std::fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture.run(["mount", "--read-only", "pool", "mnt"]).succeeded();
    let pool = MountedFixture(fixture);
    let said = pool.0.run(["trim", "mnt"]).failed(1);
    assert!(said.contains("the pool is mounted read-only at /") && said.contains("; unmount it"), "{said}");
    pool.0.run(["umount", "mnt"]).succeeded();
}
