//! What the server of a mounted pool says: damage, its log, its state; and the ends of mounts.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use warpfire_test_needs::{Need, skip};

use crate::fixture::{Fixture, bytes, documents};
use crate::mounted::{MountedFixture, can_mount, server_of};

/// Tries of `wait_until`: ten seconds in all.
const TRIES_MAX: u32 = 500;
const PAUSE: Duration = Duration::from_millis(20);

fn wait_until(name: &str, mut condition: impl FnMut() -> bool) {
    let holds = (0..TRIES_MAX).any(|_| {
        thread::park_timeout(PAUSE);
        condition()
    });
    assert!(holds, "{name}");
}

fn log(fixture: &Fixture, name: &str) -> String {
    fs::read_to_string(fixture.path(name)).unwrap_or_default()
}

/// Overwrites every block of an image that holds this byte alone, as the file does.
fn damage(image: &Path, byte: u8) {
    let content = fs::read(image).expect("the image is read");
    let file = fs::File::options().write(true).open(image).expect("writable");
    let mut damaged = 0;
    for (index, block) in content.chunks(4096).enumerate() {
        if block.iter().all(|there| *there == byte) {
            file.write_all_at(&[!byte; 4096], index as u64 * 4096).expect("written");
            damaged += 1;
        }
    }
    assert!(damaged > 0, "the file is in the image");
}

#[test]
fn damage_is_logged_once_with_file_and_process_and_counted_in_the_status() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("bad", vec![0xa5; 300_000]);
    fixture.run(["mkdir", "pool:/dir"]).succeeded();
    fixture.run(["cp", "bad", "pool:/dir/bad \u{1b}[31m"]).succeeded();
    damage(&fixture.path("pool/0.img"), 0xa5);
    fs::create_dir(fixture.path("mnt")).expect("a new directory");
    let mounted = fixture.run(["mount", "--log", "log", "pool", "mnt"]);
    assert!(mounted.stderr.contains("mounted at /") && mounted.stdout.is_empty(), "{}", mounted.stderr);
    mounted.succeeded();
    let pool = MountedFixture(fixture);
    for _ in 0..3 {
        let mut cat = Command::new("cat");
        let read = cat.arg(pool.0.path("mnt/dir/bad \u{1b}[31m")).stdout(Stdio::null()).output();
        assert!(!read.expect("cat runs").status.success());
    }
    let status = pool.0.run(["status", "mnt", "--json"]).succeeded();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let errors = status["errors"].as_array().expect("a list");
    let total: u64 = errors.iter().map(|error| error["count"].as_u64().expect("a number")).sum();
    assert!(!errors.is_empty() && total >= 3, "{errors:?}");
    for error in errors {
        assert_eq!(error["path"], "/dir/bad \u{1b}[31m");
        assert_eq!((&error["program"], &error["operation"]), (&"cat".into(), &"read".into()));
        assert!(error["process"].as_u64() > Some(0) && error["inode"].as_u64() > Some(1), "{error}");
        assert!(error["offset_bytes"].as_u64() < Some(300_000), "{error}");
        assert!(error["error"].as_str().expect("text").contains("damaged"), "{error}");
        // Each request reads a part of the file, all of which is damaged.
        let lost = &error["lost"][0];
        assert_eq!(lost["start"], error["offset_bytes"], "{error}");
        assert!(lost["end"].as_u64() > lost["start"].as_u64(), "{error}");
    }
    let said = pool.0.run(["status", "mnt"]).succeeded();
    assert!(said.contains("read of /dir/bad") && said.contains("by cat ("), "{said}");
    assert!(!said.contains('\u{1b}'), "no name drives the terminal");
    let log = log(&pool.0, "log");
    let events: Vec<_> = log.lines().filter(|line| line.contains("a request failed")).collect();
    assert_eq!(events.len(), errors.len(), "{log}");
    assert!(events[0].contains("path=\"/dir/bad") && events[0].contains("program=\"cat\""), "{log}");
    assert!(!log.contains('\u{1b}'), "{log}");
}

#[test]
fn the_log_file_is_opened_again_at_a_hangup_and_has_the_level_that_is_asked_for() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture
        .run(["mount", "--log", "log", "--log-level", "warn,warpfire_mount=debug", "pool", "mnt"])
        .succeeded();
    let pool = MountedFixture(fixture);
    fs::write(pool.0.path("mnt/a"), b"").expect("written");
    wait_until("debug events of the mount", || log(&pool.0, "log").contains("request received"));
    assert!(!log(&pool.0, "log").contains("pool opened"), "events of other parts have another level");
    fs::rename(pool.0.path("log"), pool.0.path("log.1")).expect("rotated");
    let server = server_of(&pool.0.path("pool/0.img"));
    let hung_up = Command::new("kill").args(["-HUP", &server.to_string()]).status();
    assert!(hung_up.expect("kill runs").success());
    wait_until("a new log", || pool.0.path("log").exists());
    fs::write(pool.0.path("mnt/b"), b"").expect("the mount goes on");
    wait_until("events in the new log", || log(&pool.0, "log").contains("request received"));
    pool.0.run(["umount", "mnt"]).succeeded();

    let refused = pool.0.run(["mount", "--log-level", "loud", "pool", "mnt"]).failed(2);
    assert!(refused.contains("'loud' names no level of events; write error, warn, info"), "{refused}");
    let mut quiet = pool.0.command(["mount", "-o", "log=quiet", "pool", "mnt"]);
    assert!(quiet.env("RUST_LOG", "error").status().expect("the binary runs").success());
    pool.0.run(["umount", "mnt"]).succeeded();
    assert_eq!(log(&pool.0, "quiet"), "", "RUST_LOG sets the level where --log-level does not");
}

#[test]
fn an_unmount_names_the_processes_in_the_way_and_the_transactions_that_it_ends() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    fs::write(pool.0.path("mnt/open"), bytes(1, 100)).expect("written");
    // Here the command closes the file after the spawn.
    let held = fs::File::open(pool.0.path("mnt/open")).expect("opened");
    let mut sleeper = Command::new("sleep").arg("600").stdin(held).spawn().expect("sleep runs");
    let said = pool.0.run(["umount", "mnt"]);
    let mut inside =
        Command::new("sleep").arg("600").current_dir(pool.0.path("mnt")).spawn().expect("it runs");
    let both = pool.0.run(["umount", "mnt"]);
    for child in [&mut sleeper, &mut inside] {
        child.kill().expect("it runs");
        child.wait().expect("a child");
    }
    let said = said.failed(1);
    assert!(said.contains("mnt is in use by ") && said.contains("; end these processes"), "{said}");
    assert!(said.contains(&format!("sleep ({})", sleeper.id())), "{said}");
    let both = both.failed(1);
    assert!(both.contains(&sleeper.id().to_string()) && both.contains(&inside.id().to_string()), "{both}");

    pool.0.run(["tx", "begin", "--in", "mnt"]).succeeded();
    pool.0.run(["tx", "begin", "--in", "mnt"]).succeeded();
    let said = pool.0.run(["umount", "mnt"]).failed(1);
    assert!(said.contains("2 transactions are open"), "{said}");
    let ended = pool.0.run(["umount", "--force", "mnt"]);
    assert!(ended.stderr.contains("2 open transactions were aborted"), "{}", ended.stderr);
    ended.succeeded();
    let json =
        |words: &[&str]| -> Value { serde_json::from_str(&pool.0.run(words).succeeded()).expect("JSON") };
    let mounted = json(&["mount", "--json", "pool", "mnt"]);
    let at = pool.0.path("mnt").canonicalize().expect("mounted");
    assert_eq!((&mounted["mounted_at"], &mounted["already"]), (&at.to_str().into(), &false.into()));
    assert_eq!(json(&["mount", "--json", "pool", "mnt"])["already"], true);
    assert_eq!(json(&["umount", "--json", "mnt"])["aborted_transactions"], 0);
}

#[test]
fn the_status_without_a_pool_is_that_of_all_mounted_pools() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(Need::Root, "pools of other users may be mounted");
    }
    let (one, two) = (MountedFixture::new(), MountedFixture::new());
    one.0.run(["tx", "begin", "--in", "mnt"]).succeeded();
    // The code is not checked: other tests mount and unmount pools at the same time.
    let status = one.0.run(["status", "--json"]);
    let list = documents(&status.stdout);
    for pool in [&one, &two] {
        let at = pool.0.path("mnt").canonicalize().expect("mounted");
        let of_pool = list.iter().filter(|report| report["mounted_at"] == *at.to_string_lossy());
        assert_eq!(of_pool.count(), 1, "{list:?}");
    }
}
