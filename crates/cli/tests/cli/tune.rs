//! The shape of a pool is changed, mounted and not.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{Fixture, bytes, documents};
use crate::mounted::{MountedFixture, can_mount};

/// Any two of five devices can be lost, and the files are there.
fn assert_two_may_be_lost(fixture: &Fixture, files: &[(&str, Vec<u8>)]) {
    for (one, other) in [(0, 1), (2, 4), (3, 0)] {
        let kept: Vec<String> =
            (0..5).filter(|n| *n != one && *n != other).map(|n| format!("pool/{n}.img")).collect();
        for (name, content) in files {
            let back = format!("{name}-without-{one}-{other}");
            fixture.run(["cp", &format!("{}:/{name}", kept.join(",")), &back]).succeeded();
            assert!(std::fs::read(fixture.path(&back)).expect("copied") == *content, "{back}");
        }
    }
}

#[test]
fn a_pool_gets_another_shape_by_a_plan_and_a_device_may_leave_then() {
    let fixture = Fixture::pool(5, 3, 1, 32);
    let content = bytes(1, 9 << 20);
    fixture.local("file", &content);
    fixture.run(["cp", "file", "pool:/"]).succeeded();
    let planned =
        fixture.run(["tune", "pool", "--data", "2", "--parity", "2", "--convert", "--dry-run"]).succeeded();
    assert!(planned.starts_with("new data      2 + 2: 2 devices may be lost\n"), "{planned}");
    assert!(planned.contains(": rewritten, "), "{planned}");
    let shape = documents(&fixture.run(["tune", "--json", "pool"]).succeeded());
    assert_eq!((&shape[0]["data"], &shape[0]["parity"]), (&3.into(), &1.into()), "nothing was changed");

    let refused = fixture.run(["tune", "pool", "--data", "4", "--parity", "2"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("4+2 needs 6 devices, and the pool has 5"), "{}", refused.stderr);
    fixture.run(["tune", "pool", "--data", "2", "--parity", "2", "--convert"]).succeeded();
    let status = fixture.run(["status", "pool"]).succeeded();
    assert!(status.contains("2 data and 2 parity over 5 devices"), "{status}");
    let upkeep = fixture.run(["upkeep", "pool", "wait"]).succeeded();
    assert!(upkeep.contains("has nothing to do"), "{upkeep}");
    assert_two_may_be_lost(&fixture, &[("file", content.clone())]);

    // Three devices would be too few for 2 + 2, and are enough for 1 + 2.
    fixture.run(["device", "remove", "pool", "4"]).succeeded();
    let refused = fixture.run(["device", "remove", "pool", "3"]);
    assert!(refused.stderr.contains("'warpfire tune POOL --data 1 --parity 2'"), "{}", refused.stderr);
    fixture.run(["tune", "pool", "--data", "1", "--parity", "2"]).succeeded();
    fixture.run(["device", "remove", "pool", "3"]).succeeded();
    fixture.run(["fsck", "pool/0.img,pool/1.img,pool/2.img"]).succeeded();
    fixture.run(["cp", "pool/0.img,pool/1.img,pool/2.img:/file", "back"]).succeeded();
    assert!(std::fs::read(fixture.path("back")).expect("copied") == content);
}

#[test]
fn a_mounted_pool_gets_another_shape_while_it_is_written() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(5, 3, 1, 64);
    let before = bytes(3, 12 << 20);
    fixture.local("before", &before);
    fixture.run(["cp", "before", "pool:/"]).succeeded();
    let pool = MountedFixture::of(fixture);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            let mut count = 0u64;
            while !ended.load(Ordering::Relaxed) && count < 40 {
                let path = pool.0.path(&format!("mnt/{}", count % 4));
                std::fs::write(path, bytes(count, 1 << 20)).expect("written");
                count += 1;
            }
            count
        });
        pool.0.run(["upkeep", "mnt", "pause"]).succeeded();
        pool.0.run(["tune", "mnt", "--data", "2", "--parity", "2", "--convert"]).succeeded();
        let status = pool.0.run(["status", "mnt"]).succeeded();
        assert!(status.contains("1 may be lost: "), "the older data has one parity device: {status}");
        pool.0.run(["upkeep", "mnt", "resume"]).succeeded();
        pool.0.run(["upkeep", "mnt", "wait"]).succeeded();
        ended.store(true, Ordering::Relaxed);
        assert!(written.join().expect("no panic") > 0);
    });
    pool.0.run(["upkeep", "mnt", "wait"]).succeeded();
    let status = pool.0.run(["status", "mnt"]).succeeded();
    assert!(!status.contains("1 may be lost"), "{status}");
    pool.0.run(["umount", "mnt"]).succeeded();
    pool.0.run(["fsck", "pool"]).succeeded();
    assert_two_may_be_lost(&pool.0, &[("before", before)]);
}

/// After m was raised, the older data can spare one device only.
#[test]
fn older_data_may_need_devices_that_newer_data_does_not() {
    let fixture = Fixture::pool(6, 4, 1, 32);
    let content = bytes(1, 5 << 20);
    fixture.local("file", &content);
    fixture.run(["cp", "file", "pool:/"]).succeeded();
    fixture.run(["tune", "pool", "--data", "3", "--parity", "2"]).succeeded();
    for away in [1, 2] {
        std::fs::rename(fixture.path(&format!("pool/{away}.img")), fixture.path(&format!("{away}.img")))
            .expect("a device goes");
    }
    let refused = fixture.run(["touch", "pool:/new"]);
    assert_eq!(refused.code, 3);
    for words in ["2 devices are missing, and some data cannot be read without: device 1", "--degraded"] {
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    for away in [1, 2] {
        std::fs::rename(fixture.path(&format!("{away}.img")), fixture.path(&format!("pool/{away}.img")))
            .expect("the device is back");
    }
    fixture.run(["touch", "pool:/new"]).succeeded();
    fixture.run(["cp", "pool:/file", "back"]).succeeded();
    assert!(std::fs::read(fixture.path("back")).expect("copied") == content);
}
