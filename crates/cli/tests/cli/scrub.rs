//! Scrubs of damaged pools.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::fixture::{Fixture, bytes};

/// Size of an image file. Its zones have 1 MiB; zones 0 and 1 have the roots.
const IMAGE_BYTES: u64 = 32 << 20;
const FIRST_SEGMENT_AT: u64 = 2 << 20;

/// A pool of 2+1 devices with a few files.
pub fn filled() -> Fixture {
    let fixture = Fixture::pool(3, 2, 1, 32);
    for number in 0..6 {
        fixture.local(&format!("tree/{number}"), bytes(number, 700_000));
    }
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    fixture
}

/// Flips bits in every block after the roots.
pub fn rot(image: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(image).expect("the image is there");
    for at in (FIRST_SEGMENT_AT..IMAGE_BYTES).step_by(4096) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at + 100).expect("inside the image");
        file.write_all_at(&[!byte[0]], at + 100).expect("inside the image");
    }
}

#[test]
fn a_sound_pool_has_nothing_to_repair() {
    let fixture = filled();
    let said = fixture.run(["scrub", "pool"]).succeeded();
    assert!(said.contains("nothing damaged") && said.contains("/s)"), "{said}");
    let said: Value =
        serde_json::from_str(&fixture.run(["scrub", "--json", "pool"]).succeeded()).expect("JSON");
    assert!(said["read_bytes"].as_u64().expect("a number") > 6 * 700_000, "{said}");
    assert_eq!(said["damaged_segments"], 0);
}

#[test]
fn rot_is_repaired_before_the_next_device_rots() {
    let fixture = filled();
    for number in [0, 1, 2, 0] {
        rot(&fixture.path(&format!("pool/{number}.img")));
        let ran = fixture.run(["scrub", "pool"]);
        assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains(" 0 NOT REPAIRED"), "{}", ran.stdout);
        fixture.run(["fsck", "pool"]).succeeded();
    }
    fixture.run(["cp", "-r", "pool:/tree", "back"]).succeeded();
    for number in 0..6 {
        let back = std::fs::read(fixture.path(&format!("back/{number}"))).expect("copied");
        assert!(back == bytes(number, 700_000), "file {number}");
    }
}

/// Flips bits of the block of an image that holds the bytes of a file from 1 MiB on.
pub fn hurt_middle(image: &Path, file: &[u8]) {
    let content = std::fs::read(image).expect("the image is read");
    let piece = &file[1 << 20..][..64];
    let at = content.windows(64).position(|window| window == piece).expect("stored as it is");
    let image = OpenOptions::new().read(true).write(true).open(image).expect("the image is there");
    image.write_all_at(&[!piece[0]], at as u64).expect("inside the image");
}

#[test]
fn the_files_are_named_before_the_repair() {
    let fixture = filled();
    let content = bytes(3, 700_000);
    let piece = &content[8 * 4096..9 * 4096];
    for number in 0..3 {
        let image = fixture.path(&format!("pool/{number}.img"));
        let mut all = std::fs::read(&image).expect("the image is read");
        if let Some(at) = all.windows(4096).position(|found| found == piece) {
            all[at] ^= 1;
            std::fs::write(&image, all).expect("damaged");
        }
    }
    let checked: Value = serde_json::from_str(&fixture.run(["fsck", "--json", "pool"]).stdout).expect("JSON");
    let ran = fixture.run(["scrub", "--json", "pool"]);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    let said: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(said["damage"], checked["damage"], "both name the same");
    let weak = said["damage"]["files"].as_array().expect("a list");
    let hit = weak.iter().find(|file| file["paths"][0]["path"] == "/tree/3").expect("it has less redundancy");
    assert_eq!(hit["lost_bytes"], 0);
    let covers = |range: &Value| {
        (range["start"].as_u64() <= Some(8 * 4096)) && (range["end"].as_u64() >= Some(9 * 4096))
    };
    assert!(hit["weak"].as_array().expect("a list").iter().any(covers), "{hit}");
    // A second look is clean.
    assert!(fixture.run(["scrub", "pool"]).succeeded().contains("nothing damaged"));
    assert!(fixture.run(["fsck", "pool"]).succeeded().contains("clean: 0 errors, 0 repairable"));
}

#[test]
fn damage_beyond_parity_sets_the_exit_code() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("a", bytes(1, 3 << 20));
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    hurt_middle(&fixture.path("pool/0.img"), &bytes(1, 3 << 20));
    let ran = fixture.run(["scrub", "--json", "pool"]);
    assert_eq!(ran.code, 4, "{}{}", ran.stdout, ran.stderr);
    let said: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!((&said["damaged_segments"], &said["unrepaired_segments"]), (&1.into(), &1.into()));
    assert!(ran.stderr.contains("restore the files named above"), "{}", ran.stderr);
    let lost = &said["damage"]["files"][0];
    assert_eq!((&lost["paths"][0]["path"], &lost["lost_bytes"]), (&"/a".into(), &4096.into()), "{said}");
    let piece_at = (1 << 20) / 4096 * 4096;
    assert_eq!(lost["lost"], serde_json::json!([{ "start": piece_at, "end": piece_at + 4096 }]));
    // Both commands say it in the same words.
    let line = "/a: 4 KiB of 3 MiB lost, bytes 1048576..1052672";
    for command in ["scrub", "fsck"] {
        let ran = fixture.run([command, "pool"]);
        assert_eq!(ran.code, 4, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains(line), "{command}: {}", ran.stdout);
    }
    // Nobody misses the bytes of a removed file.
    fixture.run(["rm", "pool:/a"]).succeeded();
    let said = fixture.run(["fsck", "pool"]).succeeded();
    assert!(said.contains("nothing needs it") && said.contains("clean"), "{said}");
    // The damaged segment may be cleaned before the scrub, or by it.
    let ran = fixture.run(["scrub", "pool"]);
    assert!(ran.code <= 1, "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn a_stale_root_is_said_once_and_mended() {
    let fixture = filled();
    // The device loses the last roots of a session. One without any root of the session is an old copy.
    let image = fixture.path("pool/1.img");
    let images: Vec<_> = (0..3).map(|n| fixture.path(&format!("pool/{n}.img"))).collect();
    let fs = warpfire::Pool::options().background(false).open(&images).expect("a sound pool opens");
    fs.remove_file("/tree/0").and_then(|()| fs.sync()).expect("a sound device does not fail");
    let before = std::fs::read(&image).expect("the image is read");
    fs.close().expect("a sound device does not fail");
    let roots = &before[..usize::try_from(FIRST_SEGMENT_AT).expect("2 MiB")];
    let file = OpenOptions::new().write(true).open(&image).expect("the image is there");
    file.write_all_at(roots, 0).expect("inside the image");
    let ran = fixture.run(["fsck", "pool"]);
    assert_eq!(ran.code, 4, "{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stdout.matches("is the newest and is stale or damaged on").count(), 1, "{}", ran.stdout);
    assert!(ran.stderr.contains("warpfire scrub"), "{}", ran.stderr);
    fixture.run(["scrub", "pool"]).succeeded();
    let said = fixture.run(["fsck", "pool"]).succeeded();
    assert!(said.contains("clean: 0 errors, 0 repairable"), "{said}");
}

#[test]
fn what_was_written_without_a_device_gets_its_redundancy_and_the_scrub_says_so() {
    let fixture = Fixture::pool(2, 1, 1, 32);
    fixture.local("a", bytes(1, 700_000));
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    let (here, away) = (fixture.path("pool/1.img"), fixture.path("away"));
    std::fs::rename(&here, &away).expect("a device goes");
    let options = warpfire::Pool::options().degraded(true).background(false);
    let fs = options.open(&[fixture.path("pool/0.img")]).expect("the other device suffices");
    fs.write("/b", bytes(2, 700_000)).expect("there is room");
    fs.close().expect("a sound device does not fail");
    std::fs::rename(&away, &here).expect("the device comes back");
    let line = "/b: 684 KiB of 684 KiB with less redundancy, bytes 0..700000\n";
    let checked = fixture.run(["fsck", "pool"]);
    assert_eq!(checked.code, 4, "{}{}", checked.stdout, checked.stderr);
    assert!(checked.stdout.contains(line), "{}", checked.stdout);
    let ran = fixture.run(["scrub", "pool"]);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains(line), "{}", ran.stdout);
    let said = " had less redundancy than the devices allow: ";
    assert!(
        ran.stdout.contains(said) && ran.stdout.contains(" rewritten, 0 NOT REWRITTEN"),
        "{}",
        ran.stdout
    );
    fixture.run(["fsck", "pool"]).succeeded();
    let said = fixture.run(["scrub", "pool"]).succeeded();
    assert!(said.contains("\nnothing damaged\n"), "{said}");
}

#[test]
fn a_rate_bounds_a_scrub() {
    let fixture = filled();
    let said = fixture.run(["scrub", "--json", "--rate", "8M", "pool"]).succeeded();
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let number = |name: &str| said[name].as_u64().expect("a number");
    let least_nanos = number("read_bytes") * 1_000_000_000 / (8 << 20);
    assert!(number("nanos") >= least_nanos, "{said}");
    let refused = fixture.run(["scrub", "--rate", "1K", "pool"]).failed(2);
    assert!(refused.contains("use at least 4 KiB"), "{refused}");
}

#[test]
fn a_missing_device_sets_the_exit_code() {
    let fixture = filled();
    std::fs::remove_file(fixture.path("pool/1.img")).expect("a device goes");
    let ran = fixture.run(["scrub", "pool"]);
    assert_eq!(ran.code, 4, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("one device MISSING"), "{}", ran.stdout);
    fixture.run(["scrub", "nowhere.img"]).failed(8);
}
