//! `warpfire status` and `warpfire umount` believe the server of the pool, and nobody else that answers.

use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
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

/// An ordinary user that attacks, and the one that is attacked. No real user has these numbers.
const ATTACKER: u32 = 2_000_000_001;
/// See [`ATTACKER`].
const VICTIM: u32 = 2_000_000_002;

/// Runs some work on a thread of its own as another user, without groups and capabilities.
fn run_as<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    let as_user = move || {
        set_thread_groups(&[]).expect("root may");
        set_thread_res_gid(group, group, group).expect("root may");
        set_thread_res_uid(user, user, user).expect("root may");
        work()
    };
    std::thread::scope(|scope| scope.spawn(as_user).join()).expect("it does not panic")
}

/// The directory in which servers of the victim have their sockets, made by the attacker before they could.
struct SquattedDirectory(PathBuf);

impl SquattedDirectory {
    /// With a socket for this pool that answers with a status of its own.
    fn new(pool: &str) -> SquattedDirectory {
        let directory = PathBuf::from(format!("/tmp/warpfire-{VICTIM}"));
        let path = directory.join(format!("{pool}.0.1"));
        let squatted = SquattedDirectory(directory.clone());
        let listener = run_as(ATTACKER, || {
            std::fs::create_dir(&directory).expect("anybody may make it");
            let listener = UnixListener::bind(&path).expect("the name is free");
            std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).expect("the owner may");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).expect("the owner may");
            listener
        });
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let _ = std::io::Write::write_all(&mut client, b"{\"state\": \"whole\"}");
            }
        });
        squatted
    }
}

impl Drop for SquattedDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_socket_that_somebody_else_has_made_is_not_asked() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(Need::Root, "this needs root");
    }
    let fixture = Fixture::pool(3, 2, 1, 64);
    let id = pool_id(&fixture, "pool");
    std::fs::remove_file(fixture.path("pool/1.img")).expect("a device goes");
    std::fs::set_permissions(fixture.path("."), PermissionsExt::from_mode(0o755)).expect("set");
    for name in ["pool", "pool/0.img", "pool/2.img"] {
        chown(fixture.path(name), Some(VICTIM), Some(VICTIM)).expect("root may");
    }
    let _squatted = SquattedDirectory::new(&id);
    let mut command = fixture.command(["status", "pool"]);
    command.uid(VICTIM).gid(VICTIM).env_remove("XDG_RUNTIME_DIR");
    let status = CommandResult::from(command.output().expect("the binary runs"));
    assert!(status.succeeded().contains("DEGRADED"));

    std::fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture.run(["mount", "pool", "mnt"]).succeeded();
    let pool = MountedFixture(fixture);
    // The directory of root's servers is there now.
    let socket = format!("/run/warpfire/{id}.0.1");
    let bound = run_as(ATTACKER, || UnixListener::bind(socket).expect_err("root's directory").kind());
    assert_eq!(bound, ErrorKind::PermissionDenied);
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
