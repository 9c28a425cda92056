//! Devices join a pool, mounted and not.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{Fixture, bytes, documents};
use crate::mounted::{MountedFixture, can_mount};

fn available(fixture: &Fixture) -> u64 {
    let said = fixture.run(["df", "--json", "pool"]).succeeded();
    documents(&said)[0]["available_bytes"].as_u64().expect("a number")
}

#[test]
fn a_device_that_is_added_is_listed_and_written_and_can_stand_in_for_another() {
    let fixture = Fixture::pool(2, 1, 1, 32);
    fixture.local("before", bytes(1, 5 << 20));
    fixture.run(["cp", "before", "pool:/"]).succeeded();
    let free = available(&fixture);
    let said = fixture.run(["device", "add", "--dry-run", "pool", "pool/2.img"]).succeeded();
    assert!(
        said.contains("gets 1 device; ")
            && said.contains(" will be free for files")
            && said.ends_with("  pool/2.img  32 MiB  new image file\n"),
        "{said}"
    );
    assert!(!fixture.path("pool/2.img").exists());
    let said = fixture.run(["device", "add", "pool", "pool/2.img"]).succeeded();
    assert!(said.contains("pool/2.img is device 2: "), "{said}");
    assert!(available(&fixture) > free, "there is more room");
    fixture.local("after", bytes(2, 12 << 20));
    fixture.run(["cp", "after", "pool:/"]).succeeded();
    let listed = documents(&fixture.run(["device", "list", "--json", "pool"]).succeeded());
    let used =
        |d: &serde_json::Value| d["size_bytes"].as_u64() > d["free_bytes"].as_u64().map(|b| b + (4 << 20));
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|d| d["state"] == "present" && used(d)), "{listed:?}");
    fixture.run(["fsck", "pool"]).succeeded();
    for lost in 0..3 {
        let kept: Vec<String> = (0..3).filter(|n| *n != lost).map(|n| format!("pool/{n}.img")).collect();
        for (name, seed, len) in [("before", 1, 5 << 20), ("after", 2, 12 << 20)] {
            let back = format!("back{lost}{name}");
            fixture.run(["cp", &format!("{}:/{name}", kept.join(",")), &back]).succeeded();
            assert_eq!(std::fs::read(fixture.path(&back)).expect("copied"), bytes(seed, len));
        }
    }
}

#[test]
fn every_device_that_cannot_join_is_refused_with_its_reason() {
    let fixture = Fixture::pool(2, 1, 1, 32);
    fixture.run(["mkfs", "--size", "32M", "other.img"]).succeeded();
    fixture.local("small.img", vec![0; 1 << 20]);
    fixture.local("letter.img", bytes(1, 32 << 20));
    for (words, code, sentence) in [
        (
            "pool pool/1.img",
            1,
            "pool/1.img belongs to the pool already; 'warpfire device list' shows its devices",
        ),
        (
            "pool other.img",
            1,
            "other.img contains a Warpfire pool; name another device, or overwrite this one with --force",
        ),
        (
            "pool letter.img",
            1,
            "letter.img contains data of an unknown kind; name another device, or overwrite this one with --force",
        ),
        (
            "pool small.img",
            1,
            "small.img is too small for this pool: it has 1 MiB, but 16 zones of 1 MiB take 16 MiB; choose a larger device",
        ),
        ("pool a.img a.img", 2, "a.img is named twice; name each device once"),
        (
            "absent a.img",
            3,
            "absent: no such image or device; check the path; in this directory are letter.img, other.img, pool, small.img",
        ),
    ] {
        let said = fixture.run(["device", "add"].into_iter().chain(words.split(' '))).failed(code);
        let first = said.lines().next().unwrap_or_default().to_lowercase();
        assert_eq!(first, format!("warpfire: {}", sentence.to_lowercase()), "{words}");
    }
    assert!(!fixture.path("a.img").exists());
    assert_eq!(documents(&fixture.run(["device", "list", "--json", "pool"]).succeeded()).len(), 2);
    let said = fixture.run(["device", "add", "--force", "--yes", "pool", "other.img"]).succeeded();
    assert!(said.contains("OVERWRITES a Warpfire pool"), "{said}");
    fixture.run(["fsck", "pool/0.img,pool/1.img,other.img"]).succeeded();
}

#[test]
fn a_device_joins_a_mounted_pool_while_it_is_written() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    let devices = || documents(&pool.0.run(["device", "list", "--json", "mnt"]).succeeded()).len();
    let before = devices();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).take_while(|_| !is_done.load(Ordering::Relaxed)) {
                std::fs::write(pool.0.path(&format!("mnt/{}", n % 8)), bytes(n % 8, 300_000))
                    .expect("written");
            }
        });
        let said = pool.0.run(["device", "add", "mnt", "pool/new.img"]).succeeded();
        is_done.store(true, Ordering::Relaxed);
        assert!(said.contains(&format!("pool/new.img is device {before}: ")), "{said}");
    });
    assert_eq!(devices(), before + 1);
    std::fs::write(pool.0.path("mnt/more"), bytes(9, 20 << 20)).expect("written");
    let said = pool.0.run(["device", "add", "mnt", "pool/new.img"]).failed(1);
    assert!(said.contains("pool/new.img belongs to the pool already"), "{said}");
    pool.0.run(["umount", "mnt"]).succeeded();
    pool.0.run(["fsck", "pool"]).succeeded();
    pool.0.run(["cp", "pool:/more", "back"]).succeeded();
    assert_eq!(std::fs::read(pool.0.path("back")).expect("copied"), bytes(9, 20 << 20));
}

fn refused(fixture: &Fixture, words: &str) -> String {
    let said = fixture.run(["device", "remove"].into_iter().chain(words.split(' '))).failed(1);
    said.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_device_is_removed_with_its_data_on_the_others_present_and_missing() {
    let fixture = Fixture::pool(4, 1, 1, 32);
    fixture.local("file", bytes(1, 12 << 20));
    fixture.run(["cp", "file", "pool:/"]).succeeded();
    let said = fixture.run(["device", "remove", "--dry-run", "pool", "pool/1.img"]).succeeded();
    assert!(said.starts_with("pool/1.img leaves the pool: "), "{said}");
    assert!(said.contains(" are moved to the other 3 devices, about "), "{said}");
    assert!(said.ends_with(" will be free for files\n"), "{said}");
    let dry_run = ["device", "remove", "--dry-run", "--json", "pool", "pool/1.img"];
    let planned = documents(&fixture.run(dry_run).succeeded())[0]["available_bytes"].as_u64();
    let said = fixture.run(["device", "remove", "pool", "pool/1.img"]).succeeded();
    let is_near = planned.expect("a number").abs_diff(available(&fixture)) <= 4 << 20;
    assert!(is_near, "{planned:?} was planned, and {} are free", available(&fixture));
    assert!(said.contains("pool/1.img is removed: "), "{said}");
    // Its label says that it has left, so it may lie where it is.
    fixture.run(["ls", "pool"]).succeeded();
    std::fs::remove_file(fixture.path("pool/1.img")).expect("removed");
    std::fs::remove_file(fixture.path("pool/3.img")).expect("lost");
    let said = fixture.run(["device", "remove", "pool", "3"]).succeeded();
    assert!(said.contains(" are reconstructed on the other 2 devices, about "), "{said}");
    fixture.run(["fsck", "pool"]).succeeded();
    let listed = documents(&fixture.run(["device", "list", "--json", "pool"]).succeeded());
    assert_eq!(listed.iter().map(|d| d["index"].as_u64()).collect::<Vec<_>>(), [Some(0), Some(2)]);
    for lost in ["pool/0.img", "pool/2.img"] {
        let kept = if lost == "pool/0.img" { "pool/2.img" } else { "pool/0.img" };
        fixture.run(["cp", &format!("{kept}:/file"), &format!("{lost}.back")]).succeeded();
        assert!(std::fs::read(fixture.path(&format!("{lost}.back"))).expect("copied") == bytes(1, 12 << 20));
    }
    assert_eq!(
        refused(&fixture, "pool pool/0.img"),
        "warpfire: pool/0.img cannot leave: 1 device would stay, and stripes of 1 data and 1 parity need 2; \
         add another device first with 'warpfire device add'"
    );
    assert_eq!(
        refused(&fixture, "pool 7"),
        "warpfire: 7 is no device of the pool; 'warpfire device list' shows the devices and their indexes"
    );
}

#[test]
fn a_device_leaves_a_mounted_pool_while_it_is_written() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    pool.0.run(["device", "add", "mnt", "pool/new.img"]).succeeded();
    std::fs::write(pool.0.path("mnt/more"), bytes(9, 8 << 20)).expect("written");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).take_while(|_| !is_done.load(Ordering::Relaxed)) {
                std::fs::write(pool.0.path(&format!("mnt/{}", n % 8)), bytes(n % 8, 300_000))
                    .expect("written");
            }
        });
        let said = pool.0.run(["device", "remove", "mnt", "pool/0.img"]);
        is_done.store(true, Ordering::Relaxed);
        let said = said.succeeded();
        assert!(said.contains("pool/0.img is removed: "), "{said}");
    });
    pool.0.run(["umount", "mnt"]).succeeded();
    std::fs::remove_file(pool.0.path("pool/0.img")).expect("removed");
    pool.0.run(["fsck", "pool"]).succeeded();
    pool.0.run(["cp", "pool:/more", "back"]).succeeded();
    assert!(std::fs::read(pool.0.path("back")).expect("copied") == bytes(9, 8 << 20));
}

#[test]
fn a_spare_of_a_mounted_pool_takes_the_place_of_a_device_that_stays_away() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(3, 2, 1, 64);
    std::fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture.run(["mount", "--spare-after", "0", "pool", "mnt"]).succeeded();
    let pool = MountedFixture(fixture);
    std::fs::write(pool.0.path("mnt/file"), bytes(1, 8 << 20)).expect("written");
    let said = pool.0.run(["device", "add", "--spare", "mnt", "pool/3.img"]).succeeded();
    assert!(said.contains("new image file, a spare\n"), "{said}");
    let states = || -> Vec<String> {
        let listed = documents(&pool.0.run(["device", "list", "--json", "mnt"]).succeeded());
        listed.iter().map(|device| device["state"].as_str().expect("a word").to_owned()).collect()
    };
    assert_eq!(states(), ["present", "present", "present", "spare"]);
    pool.0.run(["device", "offline", "mnt", "pool/1.img"]).succeeded();
    let is_rebuilt = (0..600).any(|_| {
        std::thread::park_timeout(std::time::Duration::from_millis(100));
        let status = pool.0.run(["status", "mnt"]).succeeded();
        states()[3] == "present" && status.contains("1 more may be lost") && !status.contains("to rebuild")
    });
    assert!(is_rebuilt, "{}", pool.0.run(["status", "mnt"]).succeeded());
    pool.0.run(["device", "remove", "mnt", "1"]).succeeded();
    assert_eq!(states(), ["present", "present", "present"]);
    pool.0.run(["umount", "mnt"]).succeeded();
    for lost in [0, 2, 3] {
        let kept: Vec<String> =
            [0, 2, 3].iter().filter(|n| **n != lost).map(|n| format!("pool/{n}.img")).collect();
        pool.0.run(["cp", &format!("{}:/file", kept.join(",")), "back"]).succeeded();
        assert!(std::fs::read(pool.0.path("back")).expect("copied") == bytes(1, 8 << 20), "without {lost}");
        std::fs::remove_file(pool.0.path("back")).expect("removed");
    }
}
