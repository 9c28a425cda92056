//! The mount as the system uses it: mount(8) and fstab, remount, systemd, the log.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use warpfire_test_needs::{Need, skip};

use crate::fixture::{CommandResult, Fixture, bytes};
use crate::mounted::{MountedFixture, can_mount};

const BINARY: &str = env!("CARGO_BIN_EXE_warpfire");

fn can_use_mount_8() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(Need::Root, "only root mounts by mount(8)");
    }
    root && can_mount()
}

/// Runs a script in a mount namespace of its own, in which mount(8) finds the helper, with `table` as fstab.
fn with_helper(fixture: &Fixture, table: &str, script: &str) -> CommandResult {
    std::fs::create_dir_all(fixture.path("sbin")).expect("made");
    for name in ["mount.warpfire", "mount.fuse.warpfire"] {
        symlink(BINARY, fixture.path("sbin").join(name)).expect("a new name");
    }
    fixture.local("fstab", table);
    let script = format!(
        "set -eu; warpfire={BINARY}; mount --bind sbin /sbin; mount --bind fstab /etc/fstab; {script}"
    );
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation", "private", "sh", "-c", &script]).current_dir(fixture.path("."));
    CommandResult::from(shell.output().expect("unshare runs"))
}

#[test]
fn a_line_of_fstab_mounts_and_remounts_a_pool() {
    if !can_use_mount_8() {
        return;
    }
    let fixture = Fixture::pool(2, 1, 1, 64);
    std::fs::create_dir(fixture.path("mnt")).expect("made");
    let at = |name: &str| fixture.path(name).canonicalize().expect("there").display().to_string();
    let (a, b, mnt) = (at("pool/0.img"), at("pool/1.img"), at("mnt"));
    let options = "noatime,noexec,commit=7,nofail,_netdev,x-systemd.device-timeout=5";
    let table = format!("{a},{b} {mnt} warpfire {options} 0 0\n");
    let script = format!(
        "mount {mnt}; echo kept > mnt/file; cp /bin/true mnt/true; ! mnt/true 2>/dev/null
         findmnt -no OPTIONS {mnt}; findmnt -no FSTYPE {mnt}
         mount {mnt}; mount -o remount,ro {mnt}; ! touch mnt/new 2>/dev/null
         mount -o remount,rw {mnt}; touch mnt/new; $warpfire umount mnt"
    );
    let said = with_helper(&fixture, &table, &script).succeeded();
    assert!(said.contains("noexec") && said.contains("nosuid") && said.contains("fuse.warpfire"), "{said}");
    assert_eq!(fixture.run(["cat", "pool:/file"]).succeeded(), "kept\n");
    fixture.run(["stat", "pool:/new"]).succeeded();
}

#[test]
fn a_line_of_fstab_names_a_pool_by_its_label() {
    if !can_use_mount_8() {
        return;
    }
    let fixture = Fixture::pool(2, 1, 1, 64);
    fixture.run(["label", "pool", "tank"]).succeeded();
    std::fs::create_dir(fixture.path("mnt")).expect("made");
    let at = |name: &str| fixture.path(name).canonicalize().expect("there").display().to_string();
    let (images, mnt) = (at("pool"), at("mnt"));
    // mount(8) keeps the words in capitals for itself.
    let table = format!("label=tank {mnt} warpfire noatime,search={images} 0 0\n");
    let script = format!(
        "mount {mnt}; echo kept > mnt/file; $warpfire umount mnt
         WARPFIRE_DEVICES=pool mount -t warpfire label=tank mnt; cat mnt/file; $warpfire umount mnt
         ! mount -t warpfire -o search={images} label=other mnt
         ! mount -t warpfire -o search={images} LABEL=tank mnt"
    );
    let ran = with_helper(&fixture, &table, &script);
    assert!(ran.stderr.contains("no pool with the name other was found"), "{}", ran.stderr);
    assert!(ran.stderr.contains("LABEL=tank"), "{}", ran.stderr);
    assert_eq!(ran.succeeded(), "kept\n");
}

#[test]
fn mount_8_names_a_directory_of_images_and_refuses_what_it_does_not_know() {
    if !can_use_mount_8() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    std::fs::create_dir(fixture.path("mnt")).expect("made");
    let script = "! mount -t warpfire -o nosiud pool mnt; ! mount -t warpfire nowhere.img mnt
         /sbin/mount.warpfire pool mnt -o ro,suid; findmnt -no OPTIONS mnt; ! mount -o remount,rw mnt
         $warpfire umount mnt";
    let ran = with_helper(&fixture, "", script);
    for expected in ["'nosiud' is not a mount option", "nowhere.img", "open for reading only"] {
        assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
    }
    let said = ran.succeeded();
    assert!(said.contains("ro,") && !said.contains("nosuid"), "{said}");
}

#[test]
fn a_read_only_mount_writes_no_device_and_leaves_the_pool_to_other_readers() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("a", bytes(1, 3 << 20));
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    std::fs::create_dir(fixture.path("mnt")).expect("made");
    let before = std::fs::read(fixture.path("pool/0.img")).expect("readable");
    fixture.run(["mount", "-o", "ro,strictatime,commit=1", "pool", "mnt"]).succeeded();
    let pool = MountedFixture(fixture);
    let image = || std::fs::read(pool.0.path("pool/0.img")).expect("readable");
    assert_eq!(pool.0.run(["ls", "pool:/"]).succeeded(), "a\n");
    pool.0.run(["fsck", "pool"]).succeeded();
    let said = pool.0.run(["rm", "pool:/a"]).failed(3);
    assert!(said.contains("the pool is mounted read-only at"), "{said}");
    assert!(std::fs::read(pool.0.path("mnt/a")).expect("readable") == bytes(1, 3 << 20));
    std::fs::write(pool.0.path("mnt/b"), b"x").expect_err("read-only");
    let directory = std::fs::File::open(pool.0.path("mnt")).expect("readable");
    rustix::fs::syncfs(&directory).expect("nothing to do");
    drop(directory);
    std::thread::park_timeout(Duration::from_millis(1500));
    assert!(image() == before, "a device was written while the pool was mounted");
    pool.0.run(["umount", "mnt"]).succeeded();
    assert!(image() == before, "a device was written when the pool was unmounted");
}

#[test]
fn access_times_on_a_mount_are_those_of_the_option() {
    use std::os::unix::fs::MetadataExt;
    if !can_mount() {
        return;
    }
    for (option, changes) in [("noatime", [false, false]), ("strictatime", [true, true])] {
        let fixture = Fixture::pool(1, 1, 0, 64);
        fixture.local("a", b"a");
        fixture.run(["cp", "a", "pool:/"]).succeeded();
        std::fs::create_dir(fixture.path("mnt")).expect("made");
        for changed in changes {
            // The kernel's cache answers a second read, so each read is one of a new mount.
            fixture.run(["mount", "-o", option, "pool", "mnt"]).succeeded();
            let pool = fixture.path("mnt/a");
            let time = || pool.metadata().map(|there| (there.atime(), there.atime_nsec())).expect("there");
            let before = time();
            std::fs::read(&pool).expect("readable");
            fixture.run(["umount", "mnt"]).succeeded();
            let stat = fixture.run(["stat", "--json", "pool:/a"]).succeeded();
            let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
            fixture.run(["mount", "-o", "noatime", "pool", "mnt"]).succeeded();
            let after = time();
            fixture.run(["umount", "mnt"]).succeeded();
            assert_eq!(before != after, changed, "{option}: {stat}");
        }
    }
}

#[test]
fn systemd_learns_of_readiness_and_of_the_end() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    std::fs::create_dir(fixture.path("mnt")).expect("made");
    let socket = UnixDatagram::bind(fixture.path("notify")).expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    let mut server = fixture.command(["mount", "--foreground", "pool", "mnt"]);
    let mut server = server.env("NOTIFY_SOCKET", fixture.path("notify")).spawn().expect("the binary runs");
    let state = || {
        let mut bytes = [0; 512];
        let len = socket.recv(&mut bytes).expect("a state");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let ready = state();
    assert!(ready.contains("READY=1") && ready.contains("STATUS=mounted at"), "{ready}");
    // A signal ends all mounts of the server, a second directory too.
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::fs::create_dir(fixture.path("again")).expect("made");
        fixture.run(["mount", "pool", "again"]).succeeded();
    }
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(state().contains("STOPPING=1"));
    assert!(server.wait().expect("a child").success());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("readable");
    let place = fixture.path("");
    assert!(!mounts.contains(&*place.to_string_lossy()), "{mounts}");
}

#[test]
fn the_unit_template_is_right() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skip(Need::Systemd, "systemd-analyze is not installed");
    }
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/systemd/warpfire@.service");
    let unit = std::fs::read_to_string(template).expect("in the repository");
    let fixture = Fixture::empty();
    let unit = unit.replace("/usr/bin/warpfire", BINARY);
    let path = fixture.local("warpfire@test.service", unit);
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
    let verified = CommandResult::from(verified.expect("it runs"));
    let about_it = verified.stderr.lines().filter(|line| line.contains("warpfire@")).collect::<Vec<_>>();
    assert!(about_it.is_empty(), "{about_it:?}");
    verified.succeeded();
}

#[test]
fn the_install_script_installs_everything_below_a_root() {
    let fixture = Fixture::empty();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/install");
    let ran = Command::new(script).arg(BINARY).arg(fixture.path("root")).output().expect("it runs");
    CommandResult::from(ran).succeeded();
    for name in ["usr/bin/warpfire", "usr/sbin/mount.warpfire", "usr/share/man/man1/warpfire-mount.1"] {
        assert!(fixture.path("root").join(name).exists(), "{name}");
    }
    let helper = Command::new(fixture.path("root/usr/sbin/mount.warpfire")).output().expect("it runs");
    assert_eq!(CommandResult::from(helper).code, 1, "a wrong call of a mount helper");
}

#[test]
fn a_pool_is_mounted_in_a_second_directory_by_the_same_server() {
    if !can_use_mount_8() {
        return;
    }
    let pool = MountedFixture::new();
    std::fs::create_dir(pool.0.path("again")).expect("made");
    pool.0.run(["mount", "-o", "ro", "pool", "again"]).succeeded();
    let (first, second) = (pool.0.path("mnt/file"), pool.0.path("again/file"));
    std::fs::write(&first, b"one").expect("writable");
    assert_eq!(std::fs::read(&second).expect("the same filesystem"), b"one");
    std::fs::write(&first, b"two, and longer").expect("writable");
    assert_eq!(std::fs::read(&second).expect("one cache"), b"two, and longer");
    std::fs::write(&second, b"x").expect_err("the second mount is read-only");
    assert!(pool.0.run(["status", "again"]).succeeded().contains("mounted at"));
    // A second call changes nothing.
    pool.0.run(["mount", "pool", "again"]).succeeded();
    pool.0.run(["umount", "again"]).succeeded();
    assert!(Path::new(&first).exists() && !second.exists());
    pool.0.run(["umount", "mnt"]).succeeded();
    pool.0.run(["ls", "pool:/"]).succeeded();
}

#[test]
fn a_second_directory_is_writable_only_if_the_server_can_write() {
    if !can_use_mount_8() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    for directory in ["mnt", "again"] {
        std::fs::create_dir(fixture.path(directory)).expect("made");
    }
    fixture.run(["mount", "-o", "ro", "pool", "mnt"]).succeeded();
    let pool = MountedFixture(fixture);
    let refused = pool.0.run(["mount", "pool", "again"]);
    assert!(refused.code != 0 && refused.stderr.contains("is mounted read-only at"), "{}", refused.stderr);
    assert!(!pool.0.run(["status", "again"]).stdout.contains("mounted at"), "it is not mounted there");
}

#[test]
fn a_bind_mount_of_a_part_of_a_pool_has_no_transactions() {
    if !can_use_mount_8() {
        return;
    }
    let pool = MountedFixture::new();
    for directory in ["mnt/d", "part"] {
        std::fs::create_dir(pool.0.path(directory)).expect("made");
    }
    std::fs::write(pool.0.path("mnt/d/a"), b"one").expect("writable");
    let part = format!("{}/part", pool.0.path(".").canonicalize().expect("there").display());
    let script =
        "mount --bind mnt/d part && $0 slice cat part/a && echo && ! $0 slice concat part/a part/b 2>&1 &&
        ! $0 tx run --in part -- touch part/c 2>&1; code=$?; umount part; exit $code";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, BINARY]).current_dir(pool.0.path("."));
    let said = CommandResult::from(shell.output().expect("a shell runs")).succeeded();
    let whole = format!("{part} shows a part of a mounted pool").replace("/./", "/");
    assert_eq!((said.starts_with("one\n"), said.matches(&whole).count()), (true, 2), "{said}");
    assert_eq!(said.matches("/mnt").count(), 2, "the whole mount is named: {said}");
    assert!(!pool.0.path("mnt/d/b").exists() && !pool.0.path("mnt/d/c").exists());
}

/// Containers put files of the host, such as resolv.conf, over files of their tree.
#[test]
fn mounts_on_and_of_a_file_stay_while_transactions_change_it() {
    if !can_use_mount_8() {
        return;
    }
    let pool = MountedFixture::new();
    for name in ["mnt/covered", "mnt/shown", "host", "view"] {
        std::fs::write(pool.0.path(name), name).expect("writable");
    }
    // The second transaction changes names beside the file's.
    let script = "mount --bind host mnt/covered && mount --bind mnt/shown view &&
        for change in 'echo two >> shown; chmod 600 covered' 'mv shown other; mv other shown; echo three >> shown'
        do (cd mnt && $0 tx run -- sh -ec \"$change\") || exit 1; done
        mountpoint mnt/covered && mountpoint view && cat mnt/covered view; code=$?
        umount mnt/covered view; exit $code";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, BINARY]).current_dir(pool.0.path("."));
    let said = CommandResult::from(shell.output().expect("a shell runs")).succeeded();
    assert!(said.ends_with("hostmnt/showntwo\nthree\n"), "{said}");
    assert_eq!(std::fs::read(pool.0.path("mnt/covered")).expect("readable"), b"mnt/covered");
}
