//! Output of commands that report on pools, and of the manual pages.

use crate::fixture::{Fixture, bytes, documents};
use serde_json::Value;

#[test]
fn mkfs_prints_its_plan_and_the_room_for_files() {
    let fixture = Fixture::empty();
    let said = fixture.run(["mkfs", "--size", "32M", "0.img", "1.img", "2.img"]).succeeded();
    assert!(said.contains("2 data and 1 parity; any one device may be lost"), "{said}");
    assert!(said.contains("for files"), "{said}");
    assert_eq!(fixture.path("0.img").metadata().expect("made").len(), 32 << 20);
}

#[test]
fn a_device_whose_name_is_no_text_is_shown_in_json() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = Fixture::empty();
    let name = std::ffi::OsStr::from_bytes(b"odd\xff.img");
    let words = ["mkfs", "--json", "--size", "32M"].map(std::ffi::OsStr::new);
    let said = fixture.run(words.into_iter().chain([name])).succeeded();
    let plan: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(plan["devices"][0]["path"], "odd\u{fffd}.img");
    assert_eq!(plan["devices"][0]["path_bytes"], "b2Rk/y5pbWc=");
    assert_eq!(plan["pool"].as_str().map(str::len), Some(32));
    assert!(plan["file_bytes"].as_u64().expect("a number") > 16 << 20, "{plan}");
    let status = fixture.run([std::ffi::OsStr::new("status"), std::ffi::OsStr::new("--json"), name]);
    serde_json::from_str::<Value>(&status.succeeded()).expect("JSON");
}

#[test]
fn status_shows_devices_redundancy_and_space() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    fixture.local("a", bytes(1, 1 << 20));
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    let said = fixture.run(["status", "pool"]).succeeded();
    assert!(said.contains("2 data and 1 parity over 3 devices, whole"), "{said}");
    assert!(said.contains("pool/1.img") && said.contains("live"), "{said}");
    let status: Value =
        serde_json::from_str(&fixture.run(["status", "--json", "pool"]).succeeded()).expect("JSON");
    assert_eq!(status["devices"].as_array().map(Vec::len), Some(3));
    assert!(status["space"]["live_bytes"].as_u64().expect("a number") >= 1 << 20);
}

#[test]
fn status_shows_what_no_stripe_can_use_and_the_device_that_would_help() {
    let fixture = Fixture::empty();
    for (name, mib) in [("a.img", 64), ("b.img", 64), ("c.img", 256), ("d.img", 134)] {
        let image = std::fs::File::create(fixture.path(name)).expect("an image");
        image.set_len(mib << 20).expect("an image of this size");
    }
    let status_of = |images: &[&str]| {
        let words = ["mkfs", "--yes", "--force", "--data", "1", "--parity", "1", "--zone", "1M"];
        fixture.run(words.iter().chain(images)).succeeded();
        fixture.run(["status", &images.join(",")]).succeeded()
    };
    let said = status_of(&["a.img", "b.img", "c.img"]);
    assert!(said.contains("unusable      131 MiB of c.img: too few other devices are as large"), "{said}");
    assert!(said.contains("1 more device of 134 MiB would make it usable"), "{said}");
    let said = status_of(&["a.img", "b.img", "c.img", "d.img"]);
    assert!(!said.contains("unusable"), "{said}");
}

#[test]
fn a_pool_has_the_name_that_it_was_given() {
    let fixture = Fixture::empty();
    fixture.run(["mkfs", "--size", "32M", "--label", "my photos", "a.img"]).succeeded();
    assert!(fixture.run(["status", "a.img"]).succeeded().contains("\npool 'my photos', "));
    assert!(fixture.run(["label", "a.img"]).succeeded().ends_with(" is named 'my photos'\n"));
    assert!(fixture.run(["label", "a.img", "tank"]).succeeded().ends_with(" is named tank\n"));
    let said = documents(&fixture.run(["label", "--json", "a.img"]).succeeded());
    assert_eq!(said[0]["label"], "tank");
    assert!(fixture.run(["label", "--clear", "a.img"]).succeeded().ends_with(" has no name\n"));
    let said = fixture.run(["label", "a.img", &"x".repeat(65)]).failed(2);
    assert!(said.contains("a name has at most 64 bytes, and this one has 65"), "{said}");
    fixture.run(["fsck", "a.img"]).succeeded();
}

#[test]
fn status_shows_a_missing_device() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    std::fs::remove_file(fixture.path("pool/1.img")).expect("a device goes");
    let said = fixture.run(["status", "pool"]).succeeded();
    assert!(said.contains("DEGRADED: 1 missing or failed, 0 more may be lost"), "{said}");
    assert!(said.contains("missing"), "{said}");
}

#[test]
fn fsck_finds_a_whole_pool_clean_and_damage_within_parity_repairable() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    fixture.local("a", bytes(1, 3 << 20));
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    let said = fixture.run(["fsck", "pool"]).succeeded();
    assert!(
        said.contains("clean: 0 errors, 0 repairable, 0 notes")
            && said.contains("\n1 file, 1 directory, 0 links, 1 name in "),
        "{said}"
    );
    std::fs::remove_file(fixture.path("pool/1.img")).expect("a device goes");
    let ran = fixture.run(["fsck", "pool"]);
    assert_eq!(ran.code, 4, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("NOT CLEAN: 0 errors"), "{}", ran.stdout);
    fixture.run(["fsck", "nowhere.img"]).failed(8);
}

#[test]
fn inspect_shows_roots_segments_tables_and_files() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    fixture.local("a", bytes(1, 3 << 20));
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    for words in ["label pool", "segments pool", "tables pool", "inode pool:/a"] {
        let words = format!("inspect {words}");
        assert!(!fixture.run(words.split(' ')).succeeded().is_empty(), "{words}");
        let json = fixture.run(format!("{words} --json").split(' ')).succeeded();
        assert!(!documents(&json).is_empty(), "{words}");
    }
    fixture.run(["inspect", "segment", "pool", "999999"]).failed(1);
    fixture.run(["inspect", "key", "pool", "xyz"]).failed(2);
}

#[test]
fn manual_pages_and_completions_come_from_the_arguments() {
    let fixture = Fixture::empty();
    fixture.run(["man", "pages"]).succeeded();
    let page =
        std::fs::read_to_string(fixture.path("pages/warpfire-mkfs.1")).expect("a page for each command");
    assert!(page.contains("parity"), "{page}");
    let example = "\n.nf\n  warpfire mkfs a.img                            one file, no redundancy\n";
    assert!(page.contains(example), "the lines of a table stay lines: {page}");
    assert!(fixture.run(["completions", "bash"]).succeeded().contains("warpfire"));
}
