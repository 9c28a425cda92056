//! Devices are replaced, mounted and not.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{Fixture, bytes, documents};
use crate::mounted::{MountedFixture, can_mount};

fn indexes(fixture: &Fixture, pool: &str) -> Vec<u64> {
    let listed = documents(&fixture.run(["device", "list", "--json", pool]).succeeded());
    listed.iter().map(|d| d["index"].as_u64().expect("a number")).collect()
}

#[test]
fn a_device_is_replaced_present_and_dead() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    fixture.local("file", bytes(1, 12 << 20));
    fixture.run(["cp", "file", "pool:/"]).succeeded();
    let said =
        fixture.run(["device", "replace", "--dry-run", "pool", "pool/1.img", "pool/new.img"]).succeeded();
    assert!(said.starts_with("pool/1.img is replaced: "), "{said}");
    assert!(
        said.contains(" move, to this device first, about ")
            && said.ends_with(" will be free for files\n  pool/new.img  32 MiB  new image file\n"),
        "{said}"
    );
    assert!(!fixture.path("pool/new.img").exists());
    let replace = ["device", "replace", "pool", "pool/1.img", "pool/new.img"];
    let said = fixture.run(replace).succeeded();
    assert!(said.contains("pool/1.img has left, pool/new.img is device 3: "), "{said}");
    assert_eq!(indexes(&fixture, "pool"), [0, 2, 3]);
    let said = fixture.run(replace).succeeded();
    assert_eq!(said, "pool/1.img has left the pool, and pool/new.img belongs to it\n");
    std::fs::remove_file(fixture.path("pool/1.img")).expect("removed");
    std::fs::remove_file(fixture.path("pool/2.img")).expect("dead");
    let said = fixture.run(["device", "replace", "--json", "pool", "2", "pool/next.img"]).succeeded();
    let replaced = &documents(&said)[0];
    assert_eq!((&replaced["index"], &replaced["new_index"]), (&2.into(), &4.into()), "{said}");
    assert!(replaced["moved_bytes"].as_u64() >= Some(6 << 20) && replaced["name"].is_null(), "{said}");
    assert_eq!(indexes(&fixture, "pool"), [0, 3, 4]);
    fixture.run(["fsck", "pool"]).succeeded();
    for kept in ["0.img,pool/new.img", "0.img,pool/next.img", "new.img,pool/next.img"] {
        let back = kept.replace('/', "-");
        fixture.run(["cp", &format!("pool/{kept}:/file"), &back]).succeeded();
        assert!(std::fs::read(fixture.path(&back)).expect("copied") == bytes(1, 12 << 20), "with {kept}");
    }
    let refused = |words: &str, code| {
        let said = fixture.run(["device", "replace"].into_iter().chain(words.split(' '))).failed(code);
        said.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(refused("pool pool/0.img pool/0.img", 2), "warpfire: a device cannot replace itself");
    assert!(refused("pool 9 pool/other.img", 1).starts_with("warpfire: 9 is no device of the pool; "));
    fixture.local("letter.img", bytes(1, 32 << 20));
    assert!(refused("pool pool/0.img letter.img", 1).contains(" contains data of an unknown kind; "));
    assert!(!fixture.path("pool/other.img").exists());
}

#[test]
fn a_device_of_a_mounted_pool_is_replaced_while_it_is_written() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    std::fs::write(pool.0.path("mnt/kept"), bytes(9, 8 << 20)).expect("written");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).take_while(|_| !is_done.load(Ordering::Relaxed)) {
                std::fs::write(pool.0.path(&format!("mnt/{}", n % 8)), bytes(n % 8, 300_000))
                    .expect("written");
            }
        });
        let said = pool.0.run(["device", "replace", "mnt", "pool/0.img", "pool/new.img"]);
        // As after a command that was interrupted when the new device had joined.
        pool.0.run(["device", "add", "mnt", "pool/more.img"]).succeeded();
        let next = pool.0.run(["device", "replace", "mnt", "pool/1.img", "pool/more.img"]);
        is_done.store(true, Ordering::Relaxed);
        let said = said.succeeded();
        assert!(said.contains("pool/0.img has left, pool/new.img is device 3: "), "{said}");
        let said = next.succeeded();
        assert!(said.contains("pool/1.img has left, pool/more.img is device 4: "), "{said}");
    });
    assert_eq!(indexes(&pool.0, "mnt"), [2, 3, 4]);
    pool.0.run(["umount", "mnt"]).succeeded();
    for old in ["pool/0.img", "pool/1.img"] {
        std::fs::remove_file(pool.0.path(old)).expect("removed");
    }
    pool.0.run(["fsck", "pool"]).succeeded();
    pool.0.run(["cp", "pool:/kept", "back"]).succeeded();
    assert!(std::fs::read(pool.0.path("back")).expect("copied") == bytes(9, 8 << 20));
}
