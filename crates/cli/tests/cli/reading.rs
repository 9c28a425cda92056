//! Commands that read need no permission to write, write nothing, and share a pool.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use warpfire::Pool;

use crate::fixture::{CommandResult, Fixture, bytes};
use crate::mounted::{MountedFixture, can_mount};

/// A user without rights on the images of root.
const NOBODY: u32 = 65_534;

const DEVICES: usize = 3;

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("the test owns it");
}

/// A pool of 2+1 with a file and a directory, that everyone may read and nobody may write.
fn readable_pool() -> Fixture {
    let fixture = Fixture::pool(DEVICES, 2, 1, 32);
    fixture.local("tree/a", bytes(1, 300_000));
    fixture.local("tree/deep/b", "bbb");
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    set_mode(&fixture.path(""), 0o755);
    set_mode(&fixture.path("pool"), 0o755);
    for number in 0..DEVICES {
        set_mode(&fixture.path(&format!("pool/{number}.img")), 0o444);
    }
    std::fs::create_dir(fixture.path("out")).expect("a new directory");
    set_mode(&fixture.path("out"), 0o777);
    fixture
}

fn images(fixture: &Fixture) -> Vec<Vec<u8>> {
    let image = |number| std::fs::read(fixture.path(&format!("pool/{number}.img"))).expect("readable");
    (0..DEVICES).map(image).collect()
}

/// The binary as an ordinary user. `root` may write whatever the mode says.
fn run_as_nobody(fixture: &Fixture, words: &[&str]) -> CommandResult {
    let mut command = fixture.command(words);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.output().expect("the binary runs").into()
}

#[test]
fn verbs_that_read_need_no_permission_to_write_and_write_nothing() {
    let fixture = readable_pool();
    let before = images(&fixture);
    for words in [
        &["ls", "pool:/"][..],
        &["ls", "-l", "pool:/tree"],
        &["cat", "pool:/tree/a"],
        &["stat", "pool:/tree/a", "pool:/tree/deep"],
        &["status", "pool"],
        &["find", "pool:/"],
        &["du", "pool:/tree"],
        &["df", "pool"],
        &["cp", "pool:/tree/a", "out/a"],
        &["cp", "-r", "pool:/tree", "out"],
        &["slice", "cat", "--from", "1000", "--len", "5", "pool:/tree/a"],
        &["inspect", "label", "pool"],
        &["inspect", "segments", "pool"],
        &["inspect", "inode", "pool:/tree/a"],
        &["fsck", "pool"],
        // One device is missing.
        &["cat", "pool/0.img,pool/2.img:/tree/deep/b"],
        &["status", "--json", "pool/0.img,pool/2.img"],
    ] {
        run_as_nobody(&fixture, words).succeeded();
        assert!(images(&fixture) == before, "{words:?} changed an image");
    }
    let copied = std::fs::read(fixture.path("out/tree/a")).expect("copied out");
    assert!(copied == bytes(1, 300_000));
    for words in [
        &["rm", "pool:/tree/a"][..],
        &["mkdir", "pool:/new"],
        &["cp", "tree/a", "pool:/b"],
        &["cp", "pool:/tree/a", "pool:/b"],
        &["slice", "cut", "--len", "5", "pool:/tree/a"],
        &["scrub", "pool"],
    ] {
        // A scrub has the exit codes of fsck.
        let code = if words[0] == "scrub" { 8 } else { 3 };
        let said = run_as_nobody(&fixture, words).failed(code);
        assert!(said.contains(".img") && said.contains("make the devices writable"), "{words:?}: {said}");
        assert!(images(&fixture) == before, "{words:?} changed an image");
    }
}

#[test]
fn a_user_who_may_not_read_the_devices_or_unmount_the_pool_learns_what_to_do() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let fixture = readable_pool();
    for number in 0..DEVICES {
        set_mode(&fixture.path(&format!("pool/{number}.img")), 0o600);
    }
    for words in [&["ls", "pool"][..], &["status", "pool"], &["cat", "pool:/tree/a"]] {
        let said = run_as_nobody(&fixture, words).failed(3);
        assert!(said.contains(".img") && said.contains("make the devices readable"), "{words:?}: {said}");
    }
    if !can_mount() {
        return;
    }
    std::fs::create_dir(fixture.path("mnt")).expect("made");
    fixture.run(["mount", "pool", "mnt"]).succeeded();
    let pool = MountedFixture(fixture);
    let said = run_as_nobody(&pool.0, &["umount", "mnt"]).failed(1);
    assert!(said.contains("mnt was mounted by user 0; run the command as that user or as root"), "{said}");
}

#[test]
fn sixteen_processes_read_one_pool_at_once() {
    let fixture = readable_pool();
    let before = images(&fixture);
    // A reader that stays while the others come and go.
    let paths = (0..DEVICES).map(|number| fixture.path(&format!("pool/{number}.img")));
    let reader = Pool::options().read_only(true).open(paths).expect("readers share a pool");
    let start = |number: usize| {
        let words: &[&str] = match number % 4 {
            0 => &["fsck", "pool"],
            1 => &["status", "pool"],
            _ => &["cat", "pool:/tree/a"],
        };
        fixture.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
    };
    let readers: Vec<_> = (0..16).map(|number| (number, start(number))).collect();
    for (number, child) in readers {
        let ended = child.wait_with_output().expect("it ends");
        assert!(ended.status.success(), "{number}: {}", String::from_utf8_lossy(&ended.stderr));
        assert!(number % 4 < 2 || ended.stdout == bytes(1, 300_000), "{number} read other bytes");
    }
    assert!(images(&fixture) == before, "a reader changed an image");
    drop(reader);
}

#[test]
fn readers_and_writers_keep_each_other_out_by_a_sentence_that_helps() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let image = fixture.path("pool/0.img");
    let reader = Pool::options().read_only(true).open([&image]).expect("nobody has it");
    fixture.run(["ls", "pool:/"]).succeeded();
    let said = fixture.run(["mkdir", "pool:/new"]).failed(3);
    assert!(said.contains("0.img: open for reading in another process; wait until"), "{said}");
    drop(reader);
    let writer = Pool::options().open([&image]).expect("nobody has it");
    for words in [&["ls", "pool:/"][..], &["status", "pool"], &["fsck", "pool"], &["cat", "pool:/x"]] {
        let ran = fixture.run(words);
        assert!(matches!(ran.code, 3 | 8), "{words:?} ended with {}", ran.code);
        let said = ran.stderr;
        assert!(said.contains("0.img: in use by another process; "), "{words:?}: {said}");
        assert!(said.contains("use its mount"), "{words:?}: {said}");
    }
    drop(writer);
    fixture.run(["mkdir", "pool:/new"]).succeeded();
}
