//! What a pool remembers of errors, damage and scrubs, and what `status` says of it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::fixture::{Fixture, bytes};

/// The verdict of `status --json`, and the exit code of `status --check`, which prints nothing.
fn verdict(fixture: &Fixture) -> (String, i32) {
    let ran = fixture.run(["status", "--check", "pool"]);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    let said = fixture.run(["status", "--json", "pool"]);
    let said: Value = serde_json::from_str(&said.stdout).unwrap_or_default();
    (said["health"]["verdict"].as_str().unwrap_or("none").to_owned(), ran.code)
}

fn filled(data: usize, parity: usize) -> Fixture {
    let fixture = Fixture::pool(data + parity, data, parity, 32);
    fixture.local("a", bytes(1, 2 << 20));
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    fixture
}

/// Changes a byte of the file `a` on its device.
fn hurt(fixture: &Fixture) {
    let piece = &bytes(1, 2 << 20)[1 << 20..][..64];
    for number in 0.. {
        let image = fixture.path(&format!("pool/{number}.img"));
        let content = std::fs::read(&image).expect("a device has the piece");
        let Some(at) = content.windows(64).position(|window| window == piece) else { continue };
        let file = OpenOptions::new().write(true).open(&image).expect("the image is there");
        return file.write_all_at(&[!piece[0]], at as u64).expect("inside the image");
    }
}

#[test]
fn a_whole_pool_is_good_and_remembers_its_scrub() {
    let fixture = filled(2, 1);
    assert_eq!(verdict(&fixture), ("good".to_owned(), 0));
    assert!(fixture.run(["status", "pool"]).succeeded().contains("last scrub: never"));
    fixture.run(["scrub", "pool"]).succeeded();
    assert!(!fixture.run(["status", "pool"]).succeeded().contains("last scrub: never"));
    assert_eq!(verdict(&fixture), ("good".to_owned(), 0));
    fixture.run(["fsck", "pool"]).succeeded();
}

#[test]
fn a_missing_device_is_degraded_and_more_than_parity_is_lost() {
    let fixture = filled(2, 1);
    std::fs::remove_file(fixture.path("pool/1.img")).expect("a device goes");
    assert_eq!(verdict(&fixture), ("degraded".to_owned(), 1));
    let said = fixture.run(["status", "pool"]).succeeded();
    assert!(said.starts_with("DEGRADED: 1 device is missing") && said.contains("next: reconnect"), "{said}");
    std::fs::remove_file(fixture.path("pool/2.img")).expect("a device goes");
    assert_eq!(verdict(&fixture), ("none".to_owned(), 2));
    let ran = fixture.run(["status", "pool"]);
    assert!(
        ran.stderr.contains("LOST: pool ") && ran.stderr.contains("device 0 of the pool"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("not found: devices 1, 2"), "{}", ran.stderr);
}

#[test]
fn damage_within_parity_is_remembered_until_a_scrub_has_repaired_it() {
    let fixture = filled(2, 1);
    hurt(&fixture);
    fixture.run(["scrub", "pool"]);
    let said: Value =
        serde_json::from_str(&fixture.run(["status", "--json", "pool"]).succeeded()).expect("JSON");
    assert_eq!(said["health"]["last_scrub"]["damaged_segments"], 1, "{said}");
    let devices = said["devices"].as_array().expect("a list");
    let bad: u64 = devices.iter().filter_map(|device| device["bad_blocks_ever"].as_u64()).sum();
    assert!(bad > 0, "{said}");
    assert_eq!(verdict(&fixture), ("good".to_owned(), 0));
}

/// Errors that a read-only command meets are not stored: it writes nothing.
#[test]
fn damage_within_parity_that_a_read_met_is_told_until_a_scrub() {
    let fixture = filled(2, 1);
    hurt(&fixture);
    fixture.run(["cp", "pool:/a", "back"]).succeeded();
    assert_eq!(verdict(&fixture), ("good".to_owned(), 0), "a read-only command stores nothing");
    let images: Vec<_> = (0..3).map(|number| fixture.path(&format!("pool/{number}.img"))).collect();
    // Without background work nothing moves the bytes out of the damaged segment.
    let fs = warpfire::Pool::options().background(false).open(&images).expect("the pool opens");
    assert!(fs.read("/a").expect("parity covers it") == bytes(1, 2 << 20));
    fs.close().expect("sound devices do not fail");
    assert_eq!(verdict(&fixture), ("damaged".to_owned(), 1));
    let said = fixture.run(["status", "pool"]).succeeded();
    assert!(
        said.starts_with("DAMAGED: 1 bad block met since the last scrub\nnext: 'warpfire scrub'"),
        "{said}"
    );
    assert_eq!(fixture.run(["scrub", "pool"]).code, 1, "the scrub repairs it");
    assert_eq!(verdict(&fixture), ("good".to_owned(), 0));
}

#[test]
fn lost_bytes_are_remembered_with_the_file_until_it_is_removed() {
    let fixture = filled(1, 0);
    hurt(&fixture);
    assert_eq!(fixture.run(["scrub", "pool"]).code, 4);
    assert_eq!(verdict(&fixture), ("lost".to_owned(), 2));
    let said = fixture.run(["status", "pool"]).succeeded();
    assert!(said.starts_with("LOST: 1 file lost bytes: /a\n"), "{said}");
    fixture.run(["rm", "pool:/a"]).succeeded();
    let ran = fixture.run(["scrub", "pool"]);
    assert!(ran.code <= 1, "nothing needs the damaged block: {}{}", ran.stdout, ran.stderr);
    assert_eq!(verdict(&fixture), ("good".to_owned(), 0));
}

#[test]
fn a_pool_that_cannot_be_opened_is_lost_to_a_monitor() {
    let fixture = filled(2, 1);
    std::fs::create_dir(fixture.path("bare")).expect("a new directory");
    fixture.local("blank.img", vec![0; 32 << 20]);
    for (pool, reason) in
        [("nowhere", "no such image"), ("bare", "has no *.img file"), ("blank.img", "no pool found")]
    {
        let ran = fixture.run(["status", "--check", pool]);
        assert!(ran.stderr.contains(reason) && ran.stdout.is_empty(), "{pool}: {}", ran.stderr);
        assert_eq!(ran.code, 2, "{pool}: {}", ran.stderr);
    }
    // Without --check the exit code is that of any command.
    fixture.run(["status", "nowhere"]).failed(3);
}

#[test]
fn a_check_passes_over_files_that_are_no_devices_and_says_how_lost_roots_come_back() {
    let fixture = filled(4, 2);
    std::fs::File::create(fixture.path("pool/backup.img")).and_then(|f| f.set_len(50 << 20)).expect("made");
    let said = fixture.run(["fsck", "pool"]).succeeded();
    assert!(said.contains("note 503: pool/backup.img: is not a device of this pool"), "{said}");
    std::fs::remove_file(fixture.path("pool/backup.img")).expect("removed");
    // A device that has left.
    let replace = ["device", "replace", "pool", "pool/1.img", "pool/new.img"];
    fixture.run(replace).succeeded();
    let said = fixture.run(["fsck", "pool"]).succeeded();
    assert!(said.contains("note 503: pool/1.img: is not a device of this pool"), "{said}");
    std::fs::remove_file(fixture.path("pool/1.img")).expect("removed");
    // A device that has lost its roots.
    let image = OpenOptions::new().write(true).open(fixture.path("pool/0.img")).expect("the image is there");
    image.write_all_at(&vec![0; 2 << 20], 0).expect("inside the image");
    let ran = fixture.run(["fsck", "pool"]);
    assert!(ran.stdout.contains("repairable 503: pool/0.img: has no root"), "{}", ran.stdout);
    assert!(ran.failed(4).contains("'warpfire recover rebuild-roots'"), "it says how they come back");
    fixture.run(["recover", "rebuild-roots", "--yes", "pool"]).succeeded();
    fixture.run(["fsck", "pool"]).succeeded();
    // A device of another pool.
    fixture.run(["mkfs", "--size", "32M", "other.img"]).succeeded();
    let said = fixture.run(["fsck", "pool,other.img"]).failed(4);
    assert!(said.contains("leave them out, and check again"), "{said}");
}
