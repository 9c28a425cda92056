//! Trim, scrub and check of a mounted pool, by its server.

use std::os::unix::fs::MetadataExt;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::fixture::{Fixture, bytes};
use crate::mounted::{MountedFixture, can_mount};
use crate::scrub::{filled, hurt_middle, rot};

/// Bytes of its disk that an image takes.
fn taken_bytes(fixture: &Fixture, image: &str) -> u64 {
    std::fs::metadata(fixture.path(image)).expect("the image is there").blocks() * 512
}

#[test]
fn a_mounted_pool_is_named_by_its_server() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    pool.0.run(["label", "mnt", "tank"]).succeeded();
    assert!(pool.0.run(["status", "mnt"]).succeeded().contains("\npool tank, "));
    pool.0.run(["umount", "mnt"]).succeeded();
    assert!(pool.0.run(["label", "pool"]).succeeded().ends_with(" is named tank\n"));
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
    // A directory in the pool stands for it.
    std::fs::create_dir(pool.0.path("mnt/below")).expect("made");
    pool.0.run(["trim", "mnt/below"]).succeeded();
    pool.0.run(["scrub", "mnt/below"]).succeeded();
    assert_eq!(pool.0.run(["df", "mnt/below"]).succeeded().lines().count(), 2);
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
    for verb in [&["rm", "pool:/a"][..], &["trim", "pool"], &["touch", "pool:/a"]] {
        let said = pool.0.run(verb).failed(3);
        assert!(said.contains("the pool is mounted read-only at /"), "{verb:?}: {said}");
        assert!(said.contains("mnt' first, and mount it without --read-only"), "{verb:?}: {said}");
    }
    pool.0.run(["umount", "mnt"]).succeeded();
}

#[test]
fn a_mount_discards_free_space_at_its_interval() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::empty();
    for directory in ["pool", "mnt"] {
        std::fs::create_dir(fixture.path(directory)).expect("a new directory");
    }
    fixture.run(["mkfs", "--prefill", "--size", "64M", "pool/0.img"]).succeeded();
    let before = taken_bytes(&fixture, "pool/0.img");
    fixture.run(["mount", "-o", "trim=1", "pool", "mnt"]).succeeded();
    let pool = MountedFixture(fixture);
    std::fs::write(pool.0.path("mnt/kept"), bytes(1, 5 << 20)).expect("written");
    let is_discarded = (0..1000).any(|_| {
        std::thread::park_timeout(Duration::from_millis(20));
        taken_bytes(&pool.0, "pool/0.img") * 2 < before
    });
    assert!(is_discarded, "{before} bytes before, {} after", taken_bytes(&pool.0, "pool/0.img"));
    assert!(std::fs::read(pool.0.path("mnt/kept")).expect("read") == bytes(1, 5 << 20));
    pool.0.run(["umount", "mnt"]).succeeded();
    pool.0.run(["fsck", "pool"]).succeeded();
}

fn mount(fixture: Fixture) -> MountedFixture {
    std::fs::create_dir_all(fixture.path("mnt")).expect("a directory");
    fixture.run(["mount", "pool", "mnt"]).succeeded();
    MountedFixture(fixture)
}

#[test]
fn rot_in_a_mounted_pool_is_repaired_while_files_are_written() {
    if !can_mount() {
        return;
    }
    let fixture = filled();
    rot(&fixture.path("pool/1.img"));
    let pool = mount(fixture);
    let mut scrub = pool.0.command(["scrub", "pool"]);
    let scrub = scrub.stdout(Stdio::piped()).spawn().expect("the binary runs");
    for number in 0..20 {
        std::fs::write(pool.0.path(&format!("mnt/{number}")), bytes(number, 100_000)).expect("written");
    }
    let ran = crate::fixture::CommandResult::from(scrub.wait_with_output().expect("it ends"));
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains(" 0 NOT REPAIRED"), "{}", ran.stdout);
    let said = pool.0.run(["scrub", "mnt"]).succeeded();
    assert!(said.contains("nothing damaged") && said.contains("/s)"), "{said}");
    assert!(!pool.0.run(["status", "mnt"]).succeeded().contains("last scrub: never"));
    for number in 0..20 {
        let there = std::fs::read(pool.0.path(&format!("mnt/{number}"))).expect("read");
        assert!(there == bytes(number, 100_000), "file {number}");
    }
    pool.0.run(["umount", "mnt"]).succeeded();
    pool.0.run(["fsck", "pool"]).succeeded();
}

#[test]
fn lost_bytes_of_a_mounted_pool_are_named_as_in_one_that_is_not_mounted() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 32);
    let content = bytes(1, 3 << 20);
    fixture.local("a", &content);
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    fixture.run(["ln", "pool:/a", "pool:/b"]).succeeded();
    hurt_middle(&fixture.path("pool/0.img"), &content);
    let pool = mount(fixture);
    let mounted = pool.0.run(["scrub", "--json", "mnt"]);
    assert_eq!(mounted.code, 4, "{}{}", mounted.stdout, mounted.stderr);
    assert!(mounted.stderr.contains("restore the files named above"), "{}", mounted.stderr);
    let status = pool.0.run(["status", "--json", "mnt"]).succeeded();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["health"]["damaged_files"], serde_json::json!(["/a"]), "{status}");
    pool.0.run(["umount", "mnt"]).succeeded();
    let unmounted = pool.0.run(["scrub", "--json", "pool"]);
    assert_eq!(unmounted.code, 4, "{}{}", unmounted.stdout, unmounted.stderr);
    let [mounted, unmounted] = [mounted, unmounted].map(|ran| {
        let mut said: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        for changing in ["nanos", "read_bytes", "segments"] {
            said[changing] = Value::Null;
        }
        said
    });
    assert_eq!(mounted, unmounted);
}

#[test]
fn a_check_of_a_mounted_pool_finds_nothing_while_files_are_made_and_removed() {
    if !can_mount() {
        return;
    }
    let pool = mount(filled());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut made = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let name = |number: u64| pool.0.path(&format!("mnt/made-{}", number % 50));
                std::fs::write(name(made), bytes(made, 6000)).expect("written");
                if !made.is_multiple_of(2) {
                    std::fs::remove_file(name(made)).expect("removed");
                }
                if made.is_multiple_of(20) {
                    std::fs::File::open(pool.0.path("mnt")).and_then(|root| root.sync_all()).expect("synced");
                }
                made += 1;
                // The pool is small: it must not need the space that a check keeps.
                std::thread::park_timeout(Duration::from_millis(2));
            }
            made
        });
        let checks: Vec<_> =
            ["mnt", "pool"].repeat(5).iter().map(|place| pool.0.run(["fsck", place])).collect();
        // Before anything can fail: the writer ends.
        stop.store(true, Ordering::Relaxed);
        for check in checks {
            let said = check.succeeded();
            assert!(said.contains("\nclean: 0 errors, 0 repairable, "), "{said}");
        }
        assert!(writer.join().expect("it writes") > 0);
    });
    pool.0.run(["umount", "mnt"]).succeeded();
    pool.0.run(["fsck", "pool"]).succeeded();
}

#[test]
fn a_mounted_pool_names_damage_as_one_that_is_not_mounted() {
    if !can_mount() {
        return;
    }
    let fixture = filled();
    rot(&fixture.path("pool/1.img"));
    let damage = |ran: crate::fixture::CommandResult, code: i32| {
        assert_eq!(ran.code, code, "{}{}", ran.stdout, ran.stderr);
        let said: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        assert_eq!(said.get("unnamed").unwrap_or(&Value::Null), &Value::Null);
        said["damage"].clone()
    };
    let unmounted = damage(fixture.run(["fsck", "--json", "pool"]), 4);
    assert!(unmounted["files_weak"].as_u64().expect("a number") > 0, "{unmounted}");
    let pool = mount(fixture);
    assert_eq!(damage(pool.0.run(["fsck", "--json", "mnt"]), 4), unmounted);
    assert_eq!(damage(pool.0.run(["scrub", "--json", "mnt"]), 1), unmounted);
    let left = damage(pool.0.run(["fsck", "--json", "mnt"]), 0);
    assert_eq!((&left["files_weak"], &left["files_lost"]), (&0.into(), &0.into()));
}

/// A scrub that would last for long, and that the server has begun.
fn begin_slow_scrub(pool: &MountedFixture) -> Child {
    let start = || pool.0.command(["scrub", "--rate", "4K", "mnt"]).spawn().expect("the binary runs");
    let mut slow = start();
    let is_refused = || pool.0.run(["trim", "mnt"]).stderr.contains("the pool is busy with a scrub");
    let has_begun = (0..500).any(|_| {
        std::thread::park_timeout(Duration::from_millis(20));
        // A trim may have been in its way.
        if slow.try_wait().expect("it is a child").is_some() {
            slow = start();
        }
        is_refused()
    });
    assert!(has_begun, "the slow scrub runs");
    slow
}

#[test]
fn a_scrub_of_a_mounted_pool_keeps_its_rate_and_ends_with_its_command() {
    if !can_mount() {
        return;
    }
    let pool = mount(filled());
    let said = pool.0.run(["scrub", "--json", "--rate", "8M", "mnt"]).succeeded();
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let number = |name: &str| said[name].as_u64().expect("a number");
    assert!(number("nanos") >= number("read_bytes") * 1_000_000_000 / (8 << 20), "{said}");
    let mut slow = begin_slow_scrub(&pool);
    slow.kill().expect("it runs");
    slow.wait().expect("it has ended");
    let mut trims = (0..500).map(|_| pool.0.run(["trim", "mnt"]).code == 0);
    assert!(trims.any(|trimmed| trimmed), "the slow scrub has ended");
    // The end of the mount does not wait for a scrub.
    let mut slow = begin_slow_scrub(&pool);
    pool.0.run(["umount", "mnt"]).succeeded();
    assert!(!slow.wait().expect("it has ended").success());
}

fn upkeep(pool: &MountedFixture) -> Value {
    serde_json::from_str(&pool.0.run(["upkeep", "--json", "mnt"]).succeeded()).expect("JSON")
}

/// Waits for up to a minute.
fn becomes(pool: &MountedFixture, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..600 {
        last = upkeep(pool);
        if is_so(&last) {
            return last;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    panic!("{last}");
}

#[test]
fn upkeep_stands_while_it_is_paused_also_after_another_mount() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(5, 2, 1, 64);
    std::fs::create_dir(fixture.path("mnt")).expect("a new directory");
    let mount = ["mount", "--spare-after", "0", "pool", "mnt"];
    fixture.run(mount).succeeded();
    let pool = MountedFixture(fixture);
    let said = pool.0.run(["upkeep", "mnt"]).succeeded();
    assert_eq!(said, "upkeep        has nothing to do\nrate          auto\nscrub         by no schedule\n");
    for n in 0..8 {
        std::fs::write(pool.0.path(&format!("mnt/{n}")), bytes(n, 4 << 20)).expect("written");
    }
    pool.0.run(["upkeep", "mnt", "pause", "--rate", "64M"]).succeeded();
    pool.0.run(["device", "offline", "mnt", "pool/1.img"]).succeeded();
    let due = becomes(&pool, |upkeep| upkeep["work"][0]["reason"] == "risk");
    assert_eq!((&due["paused"], &due["percent"]), (&true.into(), &0.into()), "{due}");
    std::thread::park_timeout(Duration::from_secs(3));
    assert_eq!(upkeep(&pool)["work"], due["work"], "nothing moves");
    let said = pool.0.run(["status", "mnt"]).succeeded();
    assert!(
        said.contains("upkeep        is paused; 'warpfire upkeep POOL resume' lets it go on\n"),
        "{said}"
    );
    pool.0.run(["umount", "mnt"]).succeeded();
    pool.0.run(mount).succeeded();
    let due = becomes(&pool, |upkeep| upkeep["work"][0]["reason"] == "risk");
    assert_eq!((&due["paused"], &due["rate_limit_bytes"]), (&true.into(), &(64 << 20).into()), "{due}");
    std::thread::park_timeout(Duration::from_secs(2));
    assert_eq!(upkeep(&pool)["done_bytes"], 0);
    pool.0.run(["upkeep", "mnt", "resume"]).succeeded();
    let done = becomes(&pool, |upkeep| upkeep["work"].as_array().is_some_and(Vec::is_empty));
    assert_eq!((&done["paused"], &done["percent"]), (&false.into(), &Value::Null), "{done}");
    assert!(pool.0.run(["status", "mnt"]).succeeded().contains("1 more may be lost"));
    pool.0.run(["upkeep", "mnt", "--rate", "auto"]).succeeded();
    assert_eq!(upkeep(&pool)["rate_limit_bytes"], Value::Null);
    pool.0.run(["umount", "mnt"]).succeeded();
}

#[test]
fn a_scrub_by_schedule_goes_on_where_it_was_after_another_mount_and_repairs_rot() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(3, 2, 1, 64);
    for n in 0..8 {
        fixture.local("file", bytes(n, 4 << 20));
        fixture.run(["cp", "file", &format!("pool:/{n}")]).succeeded();
    }
    rot(&fixture.path("pool/1.img"));
    // The wish is taken without a mount too.
    let said = fixture.run(["scrub", "--every", "30d", "--rate", "4M", "pool"]).succeeded();
    assert_eq!(said, "scrub         every 30 days, 4 MiB/s\n");
    let pool = mount(fixture);
    let running = becomes(&pool, |upkeep| upkeep["scrub"]["segments"].as_u64() > Some(1));
    assert_eq!(running["scrub"]["ended"], false, "{running}");
    pool.0.run(["umount", "mnt"]).succeeded();
    pool.0.run(["mount", "pool", "mnt"]).succeeded();
    let again = upkeep(&pool);
    assert_eq!(again["scrub"]["began"], running["scrub"]["began"]);
    assert!(again["scrub"]["segments"].as_u64() >= running["scrub"]["segments"].as_u64(), "{again}");
    let limitless = ["scrub", "--every", "30d", "--window", "00:00-00:00", "mnt"];
    pool.0.run(limitless).succeeded();
    let ended = becomes(&pool, |upkeep| upkeep["scrub"]["ended"] == true);
    assert_eq!(ended["scrub"]["began"], running["scrub"]["began"], "{ended}");
    assert!(ended["scrub"]["damaged_segments"].as_u64() > Some(0), "{ended}");
    let said = pool.0.run(["scrub", "mnt"]).succeeded();
    assert!(said.contains("nothing damaged"), "{said}");
    let said = pool.0.run(["scrub", "--every", "never", "mnt"]).succeeded();
    assert!(said.starts_with("scrub         by no schedule\n"), "{said}");
    for wrong in [
        &["scrub", "--every", "5", "mnt"][..],
        &["scrub", "--every", "1s", "mnt"],
        &["scrub", "--window", "01:00-06:00", "mnt"],
        &["scrub", "--every", "1d", "--window", "1-6", "mnt"],
        &["scrub", "--every", "1d", "--window", "24:00-06:00", "mnt"],
        &["upkeep", "mnt", "--rate", "1K"],
        &["upkeep", "mnt", "stop"],
    ] {
        pool.0.run(wrong).failed(2);
    }
    pool.0.run(["umount", "mnt"]).succeeded();
}
