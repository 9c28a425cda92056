//! `warpfire status` and `warpfire umount` believe the server of the pool, and nobody else that answers.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use warpfire_env::{Clock, SystemClock};
use warpfire_test_needs::{Need, skip};

use crate::fixture::{CommandResult, Fixture};
use crate::mounted::{MountedFixture, can_mount};

/// An ordinary user.
const USER: u32 = 1000;

fn pool_id(fixture: &Fixture, pool: &str) -> String {
    let status = fixture.run(["status", pool, "--json"]).succeeded();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    status["pool"].as_str().expect("an id").to_owned()
}

/// A name that any process can take, and that answers with a status of its own.
fn squat(pool: &str) {
    let address = SocketAddr::from_abstract_name(format!("warpfire/{pool}")).expect("a short name");
    let listener = UnixListener::bind_addr(&address).expect("the name is free");
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut client, b"{\"state\": \"whole\"}");
        }
    });
}

#[test]
fn a_name_that_somebody_else_has_taken_is_not_asked() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(3, 2, 1, 64);
    squat(&pool_id(&fixture, "pool"));
    std::fs::remove_file(fixture.path("pool/1.img")).expect("a device goes");
    assert!(fixture.run(["status", "pool"]).succeeded().contains("DEGRADED"));
    std::fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture.run(["mount", "pool", "mnt"]).succeeded();
    let pool = MountedFixture(fixture);
    assert!(pool.0.run(["status", "mnt"]).succeeded().contains("DEGRADED"));
    let started = SystemClock.monotonic_nanos();
    pool.0.run(["umount", "mnt"]).succeeded();
    let waited = Duration::from_nanos(SystemClock.monotonic_nanos() - started);
    assert!(waited < Duration::from_secs(60), "the wait was for the server alone");
}

#[test]
fn a_server_is_found_from_another_network_namespace_and_leaves_no_socket() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(Need::Root, "this needs root");
    }
    let pool = MountedFixture::new();
    let id = pool_id(&pool.0, "mnt");
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["-n", env!("CARGO_BIN_EXE_warpfire"), "status", "mnt"]).current_dir(pool.0.path("."));
    let said = CommandResult::from(elsewhere.output().expect("unshare runs")).succeeded();
    assert!(said.contains("mounted at"), "{said}");
    let sockets = || {
        let names = std::fs::read_dir("/run/warpfire").expect("made by the server").flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with(&id)).count()
    };
    assert_eq!(sockets(), 1);
    pool.0.run(["umount", "mnt"]).succeeded();
    assert_eq!(sockets(), 0);
}

/// The user mounts a copy of root's pool: its server has the same pool id, and holds other devices.
#[test]
fn a_stranger_that_answers_for_a_pool_is_ignored() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(Need::Root, "this needs root");
    }
    let device = std::fs::metadata("/dev/fuse").expect("checked above");
    if device.permissions().mode() & 0o006 != 0o006 {
        return skip(Need::UserMounts, "ordinary users cannot open /dev/fuse");
    }
    let fixture = Fixture::pool(2, 1, 1, 64);
    std::fs::set_permissions(fixture.path("."), PermissionsExt::from_mode(0o755)).expect("set");
    for directory in ["copy", "mnt"] {
        std::fs::create_dir(fixture.path(directory)).expect("a new directory");
        chown(fixture.path(directory), Some(USER), Some(USER)).expect("root may");
    }
    for image in ["0.img", "1.img"] {
        let (from, to) = (format!("pool/{image}"), format!("copy/{image}"));
        std::fs::copy(fixture.path(&from), fixture.path(&to)).expect("copied");
        chown(fixture.path(&to), Some(USER), Some(USER)).expect("root may");
    }
    std::fs::remove_file(fixture.path("pool/1.img")).expect("a device goes");
    let as_user = |words: &[&str]| {
        let mut command = fixture.command(words);
        command.uid(USER).gid(USER).env_remove("XDG_RUNTIME_DIR");
        CommandResult::from(command.output().expect("the binary runs"))
    };
    as_user(&["mount", "copy", "mnt"]).succeeded();
    let theirs = fixture.run(["status", "mnt"]);
    let ours = fixture.run(["status", "pool"]);
    as_user(&["umount", "mnt"]).succeeded();
    // The server of the mount is asked about the mount, and not about the devices of another pool.
    assert!(theirs.succeeded().contains("whole"));
    assert!(ours.succeeded().contains("DEGRADED"));
}
