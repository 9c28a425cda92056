//! The newest roots of a pool are lost, and an older state opens: every verb says so.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::fixture::{Fixture, bytes};
use crate::mounted::{MountedFixture, can_mount};

/// The root zones of an image.
const ROOTS_BYTES: usize = 2 << 20;
const SAID: &str = "warpfire: this is an older state of the pool: its devices hold data of a later session, \
                    whose roots are lost; reconnect missing devices, or restore later changes from a backup\n";

/// The root zones of all devices.
fn roots(fixture: &Fixture) -> Vec<Vec<u8>> {
    let of_device = |number| {
        let mut roots = vec![0; ROOTS_BYTES];
        let image = File::open(fixture.path(&format!("pool/{number}.img"))).expect("the image is there");
        image.read_exact_at(&mut roots, 0).expect("inside the image");
        roots
    };
    (0..3).map(of_device).collect()
}

fn put_back(fixture: &Fixture, roots: &[Vec<u8>]) {
    for (number, roots) in roots.iter().enumerate() {
        let image = fixture.path(&format!("pool/{number}.img"));
        let image = OpenOptions::new().write(true).open(image).expect("the image is there");
        image.write_all_at(roots, 0).expect("inside the image");
    }
}

/// A pool that has lost the roots of its last sessions.
fn rolled_back(sessions: u64) -> Fixture {
    let fixture = Fixture::pool(3, 2, 1, 32);
    fixture.local("a", bytes(1, 300_000));
    fixture.run(["cp", "a", "pool:/a"]).succeeded();
    let before = roots(&fixture);
    for session in 0..sessions {
        fixture.run(["cp", "a", &format!("pool:/later{session}")]).succeeded();
    }
    put_back(&fixture, &before);
    fixture
}

fn status(fixture: &Fixture) -> Value {
    serde_json::from_str(&fixture.run(["status", "--json", "pool"]).succeeded()).expect("JSON")
}

#[test]
fn every_verb_says_that_it_reads_an_older_state() {
    for sessions in [1, 7] {
        let fixture = rolled_back(sessions);
        for words in [
            &["ls", "pool:/"][..],
            &["cat", "pool:/a"],
            &["stat", "pool:/a"],
            &["cp", "pool:/a", "out"],
            &["du", "pool:/"],
            &["find", "pool:/"],
            &["df", "pool"],
        ] {
            let ran = fixture.run(words);
            assert!(ran.stderr.starts_with(SAID), "{words:?} after {sessions} sessions: {}", ran.stderr);
            assert_eq!((ran.code, ran.stderr.matches(SAID).count()), (0, 1), "{words:?}");
        }
        let said = fixture.run(["status", "pool"]).succeeded();
        let verdict = "LOST: this is an older state of the pool: its devices hold data of a later session, \
                       whose roots are lost\nnext: reconnect missing devices, or restore later changes from a \
                       backup; 'warpfire fsck' shows where\n";
        assert!(said.starts_with(verdict), "{said}");
        let said = status(&fixture);
        assert_eq!((&said["state_age"], &said["health"]["verdict"]), (&"older".into(), &"lost".into()));
        assert_eq!(fixture.run(["status", "--check", "pool"]).code, 2);
        assert!(fixture.run(["fsck", "pool"]).failed(4).contains("contradicts itself"));
        if can_mount() {
            std::fs::create_dir(fixture.path("mnt")).expect("a new directory");
            let ran = fixture.run(["mount", "pool", "mnt"]);
            let mounted = MountedFixture(fixture);
            assert!(ran.code == 0 && ran.stderr.contains(SAID), "{}", ran.stderr);
            mounted.0.run(["umount", "mnt"]).succeeded();
        }
    }
}

#[test]
fn a_state_that_nothing_speaks_against_is_the_newest() {
    let fixture = rolled_back(0);
    let ran = fixture.run(["ls", "pool:/"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(status(&fixture)["state_age"], "newest");
}

/// The session that writes an older state has a later number than the lost ones, so none of their data is
/// taken for its own.
#[test]
fn an_older_state_that_is_written_becomes_the_newest() {
    let fixture = rolled_back(3);
    fixture.run(["cp", "a", "pool:/b"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "a\nb\n");
    assert_eq!(status(&fixture)["state_age"], "newest");
    fixture.run(["fsck", "pool"]).succeeded();
}

#[test]
fn half_of_a_mirror_says_that_its_state_may_be_older() {
    let fixture = Fixture::pool(2, 1, 1, 32);
    std::fs::remove_file(fixture.path("pool/1.img")).expect("a device goes");
    let ran = fixture.run(["ls", "pool:/"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.starts_with("warpfire: this may be an older state of the pool: "), "{}", ran.stderr);
    let said = status(&fixture);
    assert_eq!(
        (&said["state_age"], &said["health"]["verdict"]),
        (&"may_be_older".into(), &"degraded".into())
    );
    let reason = said["health"]["reason"].as_str().expect("text");
    assert!(
        reason.ends_with("; they are enough to have gone on alone, so this may be an older state"),
        "{reason}"
    );
}
