//! Devices are taken offline and online, mounted and not.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{Fixture, bytes, documents};
use crate::mounted::{MountedFixture, can_mount};

fn states(fixture: &Fixture, pool: &str) -> Vec<String> {
    let listed = documents(&fixture.run(["device", "list", "--json", pool]).succeeded());
    listed.iter().map(|d| d["state"].as_str().expect("a word").to_owned()).collect()
}

fn refused(fixture: &Fixture, words: &str) -> String {
    let said = fixture.run(["device"].into_iter().chain(words.split(' ')));
    assert_ne!(said.code, 0, "{words}");
    said.stderr.lines().last().unwrap_or_default().to_owned()
}

/// Each one of the devices but those of the numbers can be lost, and the files are there.
fn assert_each_may_be_lost(fixture: &Fixture, devices: usize, files: &[(&str, Vec<u8>)]) {
    for lost in 0..devices {
        let kept: Vec<String> =
            (0..devices).filter(|n| *n != lost).map(|n| format!("pool/{n}.img")).collect();
        for (name, content) in files {
            let back = format!("{name}-without-{lost}");
            fixture.run(["cp", &format!("{}:/{name}", kept.join(",")), &back]).succeeded();
            assert!(std::fs::read(fixture.path(&back)).expect("copied") == *content, "{name} without {lost}");
        }
    }
}

#[test]
fn a_device_is_left_alone_while_it_is_offline_and_gets_what_it_missed() {
    let fixture = Fixture::pool(3, 1, 1, 32);
    let (before, after) = (bytes(1, 5 << 20), bytes(2, 6 << 20));
    fixture.local("before", &before);
    fixture.run(["cp", "before", "pool:/"]).succeeded();
    let said = fixture.run(["device", "offline", "--dry-run", "pool", "pool/1.img"]).succeeded();
    assert_eq!(said, "the pool can go on without pool/1.img\n");
    assert_eq!(states(&fixture, "pool"), ["present", "present", "present"]);
    let said = fixture.run(["device", "offline", "pool", "pool/1.img"]).succeeded();
    assert_eq!(said.lines().next(), Some("pool/1.img is offline: 0 more devices may be lost"));
    let image = std::fs::read(fixture.path("pool/1.img")).expect("an image");
    assert_eq!(states(&fixture, "pool"), ["present", "offline", "present"]);
    fixture.local("after", &after);
    fixture.run(["cp", "after", "pool:/"]).succeeded();
    fixture.run(["cp", "pool:/before", "back"]).succeeded();
    assert!(std::fs::read(fixture.path("back")).expect("copied") == before);
    assert!(std::fs::read(fixture.path("pool/1.img")).expect("an image") == image, "nothing is written");
    let status = fixture.run(["status", "pool"]).succeeded();
    assert!(status.contains("DEGRADED: 1 offline, 0 more may be lost"), "{status}");
    assert!(status.contains("'warpfire device online' takes it back"), "{status}");
    fixture.run(["fsck", "pool"]).succeeded();
    // It may be away, too.
    std::fs::rename(fixture.path("pool/1.img"), fixture.path("1.img")).expect("renamed");
    assert_eq!(states(&fixture, "pool"), ["present", "offline", "present"]);
    let needed = refused(&fixture, "offline pool pool/0.img");
    assert!(needed.starts_with("warpfire: device 0 is needed: "), "{needed}");
    let planned =
        documents(&fixture.run(["device", "online", "--dry-run", "--json", "pool", "1.img"]).succeeded());
    assert_eq!((planned[0]["index"].as_u64(), planned[0]["path"].as_str()), (Some(1), Some("1.img")));
    let said = fixture.run(["device", "online", "pool", "1.img"]).succeeded();
    assert!(said.contains("1.img is online as device 1: "), "{said}");
    std::fs::rename(fixture.path("1.img"), fixture.path("pool/1.img")).expect("renamed");
    assert_eq!(states(&fixture, "pool"), ["present", "present", "present"]);
    let online = refused(&fixture, "online pool pool/1.img");
    assert_eq!(online, "warpfire: pool/1.img is online already");
    fixture.run(["fsck", "pool"]).succeeded();
    assert_each_may_be_lost(&fixture, 3, &[("before", before), ("after", after)]);
}

#[test]
fn a_pool_that_needs_the_device_that_is_offline_opens_with_it_online() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    fixture.local("file", bytes(1, 5 << 20));
    fixture.run(["cp", "file", "pool:/"]).succeeded();
    fixture.run(["device", "offline", "pool", "1"]).succeeded();
    std::fs::rename(fixture.path("pool/0.img"), fixture.path("0.img")).expect("renamed");
    let said = fixture.run(["ls", "pool"]).failed(3);
    assert!(said.contains("missing and parity covers 1"), "{said}");
    fixture.run(["device", "online", "pool", "pool/1.img"]).succeeded();
    fixture.run(["cp", "pool:/file", "back"]).succeeded();
    assert!(std::fs::read(fixture.path("back")).expect("copied") == bytes(1, 5 << 20));
}

/// The copy was taken for the device: status said "whole", and then the loss of another device lost the file.
#[test]
fn an_old_copy_in_the_place_of_a_device_is_named_and_not_used() {
    let fixture = Fixture::pool(4, 2, 2, 32);
    let image = fixture.path("pool/1.img");
    std::fs::copy(&image, fixture.path("old.img")).expect("copied");
    fixture.local("file", bytes(1, 5 << 20));
    fixture.run(["cp", "file", "pool:/"]).succeeded();
    std::fs::rename(&image, fixture.path("1.img")).expect("renamed");
    std::fs::rename(fixture.path("old.img"), &image).expect("renamed");
    assert_eq!(states(&fixture, "pool"), ["present", "missing", "present", "present"]);
    let said = fixture.run(["status", "pool"]).succeeded();
    assert!(said.contains("pool/1.img is not used: it is an old copy of device 1\n"), "{said}");
    assert!(said.contains("DEGRADED: 1 missing or failed, 1 more may be lost"), "{said}");
    // Below the pool's redundancy, the answer names the copy and no file is lost by surprise.
    fixture.run(["device", "offline", "pool", "2"]).succeeded();
    std::fs::rename(fixture.path("pool/0.img"), fixture.path("0.img")).expect("renamed");
    let said = fixture.run(["ls", "pool"]).failed(3);
    for words in ["pool/1.img has an older state than device 1 had", "'warpfire device online' takes back"] {
        assert!(said.contains(words), "{said}");
    }
    std::fs::rename(fixture.path("0.img"), fixture.path("pool/0.img")).expect("renamed");
    // The device itself is used again.
    std::fs::rename(fixture.path("1.img"), &image).expect("renamed");
    fixture.run(["device", "online", "pool", "pool/2.img"]).succeeded();
    assert_eq!(states(&fixture, "pool"), ["present"; 4]);
    assert_each_may_be_lost(&fixture, 4, &[("file", bytes(1, 5 << 20))]);
}

#[test]
fn only_the_device_that_left_comes_online() {
    let fixture = Fixture::pool(3, 1, 2, 32);
    let image = fixture.path("pool/1.img");
    fixture.run(["mkfs", "--size", "32M", "other.img"]).succeeded();
    fixture.local("blank.img", vec![0; 32 << 20]);
    std::fs::copy(&image, fixture.path("old.img")).expect("copied");
    fixture.local("file", bytes(1, 3 << 20));
    fixture.run(["cp", "file", "pool:/"]).succeeded();
    fixture.run(["device", "offline", "pool", "pool/1.img"]).succeeded();
    std::fs::rename(&image, fixture.path("1.img")).expect("renamed");
    std::fs::copy(fixture.path("1.img"), fixture.path("apart.img")).expect("copied");
    fixture.run(["scrub", "--degraded", "apart.img"]);
    for (device, words) in [
        ("other.img", " belongs to pool "),
        ("blank.img", " belongs to no pool; 'warpfire device add' makes it a new device of the pool"),
        ("apart.img", " were written separately, each without the other"),
        ("old.img", "it may be an old copy; remove it from the pool with 'warpfire device remove'"),
        ("pool/0.img", " is online already"),
        ("absent.img", "absent.img: "),
    ] {
        let said = fixture.run(["device", "online", "pool", device]);
        assert_ne!(said.code, 0, "{device}");
        assert!(said.stderr.contains(words), "{device}: {}", said.stderr);
    }
    assert_eq!(states(&fixture, "pool"), ["present", "offline", "present"]);
    fixture.run(["device", "online", "pool", "1.img"]).succeeded();
}

#[test]
fn a_device_of_a_mounted_pool_goes_offline_and_online_while_it_is_written() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    std::fs::write(pool.0.path("mnt/before"), bytes(8, 4 << 20)).expect("written");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).take_while(|_| !is_done.load(Ordering::Relaxed)) {
                std::fs::write(pool.0.path(&format!("mnt/{}", n % 8)), bytes(n % 8, 100_000))
                    .expect("written");
            }
        });
        for _ in 0..3 {
            let said = pool.0.run(["device", "offline", "mnt", "pool/1.img"]).succeeded();
            assert!(said.starts_with("pool/1.img is offline: 0 more devices may be lost\n"), "{said}");
            assert_eq!(states(&pool.0, "mnt"), ["present", "offline", "present"]);
            std::fs::write(pool.0.path("mnt/during"), bytes(9, 4 << 20)).expect("written");
            let needed = refused(&pool.0, "offline mnt pool/2.img");
            assert!(needed.contains("device 2 is needed: "), "{needed}");
            let said = pool.0.run(["device", "online", "mnt", "pool/1.img"]).succeeded();
            assert!(said.contains("pool/1.img is online as device 1: it has missed "), "{said}");
            assert_eq!(states(&pool.0, "mnt"), ["present", "present", "present"]);
        }
        is_done.store(true, Ordering::Relaxed);
    });
    // The background work may not have given the device yet all that it missed. The scrub does the rest.
    let scrub = pool.0.run(["scrub", "mnt"]);
    assert!(matches!(scrub.code, 0 | 1), "{}{}", scrub.stdout, scrub.stderr);
    assert!(scrub.stdout.contains("nothing damaged"), "{}", scrub.stdout);
    pool.0.run(["scrub", "mnt"]).succeeded();
    pool.0.run(["umount", "mnt"]).succeeded();
    pool.0.run(["fsck", "pool"]).succeeded();
    assert_each_may_be_lost(&pool.0, 3, &[("before", bytes(8, 4 << 20)), ("during", bytes(9, 4 << 20))]);
}

#[test]
fn online_takes_the_path_of_a_device_and_not_its_index() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    let said = fixture.run(["device", "online", "pool", "1"]).failed(2);
    assert!(said.contains("1 is no path of a device") && said.contains("by its path"), "{said}");
}
