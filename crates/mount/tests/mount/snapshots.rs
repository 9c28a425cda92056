//! Snapshots below the `.snapshots` of the directories of a mount.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::io::Errno;
use warpfire_fs::acl::Caller;
use warpfire_fs::{CloneSource, NewMode, gmt_name};
use warpfire_mount::{MountOptions, SnapshotDirectories, SnapshotNames};

use crate::fixture::MountFixture;

fn names(directory: impl AsRef<std::path::Path>) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_snapshot_is_a_directory_that_shows_its_moment() {
    let Some(mount) = MountFixture::new() else { return };
    fs::create_dir_all(mount.at("dir/below")).unwrap();
    fs::write(mount.at("dir/small"), b"then").unwrap();
    fs::write(mount.at("dir/below/large"), vec![7; 3 << 20]).unwrap();
    mount.fs().create_snapshot(b"monday").unwrap();
    fs::write(mount.at("dir/small"), b"now, and longer").unwrap();
    fs::remove_file(mount.at("dir/below/large")).unwrap();
    fs::write(mount.at("dir/new"), b"").unwrap();

    assert_eq!(names(mount.path()), ["dir"], "no listing shows it");
    assert_eq!(names(mount.at(".snapshots")), ["monday"]);
    let then = mount.at(".snapshots/monday");
    assert_eq!(names(then.join("dir")), ["below", "small"]);
    assert_eq!(fs::read(then.join("dir/small")).unwrap(), b"then");
    assert_eq!(fs::read(mount.at("dir/small")).unwrap(), b"now, and longer");
    assert_eq!(fs::read(then.join("dir/below/large")).unwrap(), vec![7; 3 << 20]);
    let numbers: BTreeSet<u64> =
        [mount.at("dir"), mount.at("dir/small"), then.join("dir"), then.join("dir/small")]
            .iter()
            .map(|path| fs::metadata(path).unwrap().ino())
            .collect();
    assert_eq!(numbers.len(), 4, "files of then and now are different files");
    // A program of the system copies it, and finds the same.
    let copy = tempfile::tempdir().unwrap();
    assert!(Command::new("cp").arg("-a").arg(&then).arg(copy.path()).status().unwrap().success());
    assert_eq!(fs::read(copy.path().join("monday/dir/below/large")).unwrap(), vec![7; 3 << 20]);
    // Back into the pool.
    assert!(
        Command::new("cp").arg("-a").arg(then.join("dir")).arg(mount.at("back")).status().unwrap().success()
    );
    assert_eq!(fs::read(mount.at("back/below/large")).unwrap(), vec![7; 3 << 20]);
}

#[test]
fn a_rollback_shows_at_once_to_programs_on_the_mount() {
    shows_a_rollback(0);
}

/// The kernel then looks all names up again.
#[test]
fn a_rollback_of_very_many_changes_shows_at_once_too() {
    shows_a_rollback(1500);
}

/// Rolls back and undoes it, with so many changes beside those that are looked at.
fn shows_a_rollback(more: usize) {
    let Some(mount) = MountFixture::new() else { return };
    let names = |at: &Path| -> Vec<_> { names(at).into_iter().filter(|name| name != "many").collect() };
    fs::create_dir(mount.at("dir")).unwrap();
    fs::create_dir(mount.at("many")).unwrap();
    let many = |n: usize| mount.at("many").join(n.to_string());
    fs::write(mount.at("changed"), b"then").unwrap();
    fs::write(mount.at("dir/moved"), vec![1; 1 << 20]).unwrap();
    fs::write(mount.at("removed"), vec![2; 1 << 20]).unwrap();
    mount.fs().sync().unwrap();
    mount.fs().create_snapshot(b"s").unwrap();
    fs::write(mount.at("changed"), b"now, and longer").unwrap();
    fs::rename(mount.at("dir/moved"), mount.at("elsewhere")).unwrap();
    fs::remove_file(mount.at("removed")).unwrap();
    fs::create_dir(mount.at("new")).unwrap();
    fs::write(mount.at("new/file"), vec![3; 1 << 20]).unwrap();
    for n in 0..more {
        fs::write(many(n), b"now").unwrap();
        assert!(fs::metadata(many(n)).is_ok());
    }
    let open_new = File::open(mount.at("new/file")).unwrap();
    let open_changed = File::open(mount.at("changed")).unwrap();
    // The kernel caches names, attributes, content and listings.
    assert!(fs::metadata(mount.at("removed")).is_err());
    assert_eq!(names(mount.path()), ["changed", "dir", "elsewhere", "new"]);
    assert_eq!(fs::read(mount.at("changed")).unwrap(), b"now, and longer");
    let before_root = fs::metadata(mount.path()).unwrap().mtime_nsec();

    mount.roll_back(b"s", b"kept");
    assert_eq!(names(mount.path()), ["changed", "dir", "removed"]);
    assert_eq!(names(&mount.at("dir")), ["moved"]);
    assert_ne!(fs::metadata(mount.path()).unwrap().mtime_nsec(), before_root, "attributes too");
    assert!((0..more).all(|n| fs::metadata(many(n)).is_err()));
    assert_eq!(fs::read(mount.at("changed")).unwrap(), b"then");
    assert_eq!(fs::metadata(mount.at("changed")).unwrap().len(), 4);
    assert_eq!(fs::read(mount.at("removed")).unwrap(), vec![2; 1 << 20]);
    assert_eq!(fs::read(mount.at("dir/moved")).unwrap(), vec![1; 1 << 20]);
    assert!(fs::metadata(mount.at("new/file")).is_err() && fs::metadata(mount.at("elsewhere")).is_err());
    let mut bytes = vec![0; 16];
    assert_eq!(open_changed.read_at(&mut bytes, 0).unwrap(), 4);
    assert_eq!(
        open_new.read_at(&mut bytes, 1000).unwrap(),
        16,
        "a file without a name stays while it is open"
    );
    assert_eq!(bytes, [3; 16]);
    assert_eq!(open_new.metadata().unwrap().nlink(), 0);
    drop((open_new, open_changed));
    // Undone, with programs that go on.
    mount.roll_back(b"kept", b"again");
    assert_eq!(names(mount.path()), ["changed", "dir", "elsewhere", "new"]);
    assert_eq!(fs::read(mount.at("new/file")).unwrap(), vec![3; 1 << 20]);
    assert!((0..more).all(|n| fs::read(many(n)).is_ok_and(|bytes| bytes == b"now")));
    fs::write(mount.at("new/other"), b"works").unwrap();
    mount.fs().settle_rollbacks(&mut || true).unwrap();
    assert_eq!(names(mount.path()), ["changed", "dir", "elsewhere", "new"]);
    assert!((0..more).all(|n| fs::read(many(n)).is_ok_and(|bytes| bytes == b"now")));
}

#[test]
fn a_moment_leads_to_the_newest_snapshot_then() {
    let Some(mount) = MountFixture::new() else { return };
    for name in ["one", "two"] {
        fs::write(mount.at("file"), name).unwrap();
        mount.fs().create_snapshot(name.as_bytes()).unwrap();
    }
    let then = |name: &str| fs::read(mount.at(".snapshots").join(name).join("file"));
    assert_eq!(then("@99999999999").unwrap(), b"two");
    // While another one is in use.
    let _held = File::open(mount.at(".snapshots/one/file")).unwrap();
    assert_eq!(then("@99999999999").unwrap(), b"two");
    mount.fs().delete_snapshot(b"two").unwrap();
    assert_eq!(then("@99999999999").unwrap(), b"one");
    for none in ["@1000", "@", "@monday"] {
        assert_eq!(then(none).unwrap_err().kind(), ErrorKind::NotFound, "{none}");
    }
}

#[test]
fn nothing_below_the_directory_of_snapshots_changes() {
    let Some(mount) = MountFixture::new() else { return };
    fs::write(mount.at("file"), b"then").unwrap();
    mount.fs().create_snapshot(b"s").unwrap();
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    let read_only = Errno::ROFS.raw_os_error();
    for below in [".snapshots", ".snapshots/s"] {
        let at = mount.at(below);
        assert_eq!(errno(fs::write(at.join("new"), b"")), read_only, "{below}");
        assert_eq!(errno(fs::create_dir(at.join("new"))), read_only, "{below}");
        assert_eq!(errno(fs::set_permissions(&at, fs::Permissions::from_mode(0o700))), read_only, "{below}");
    }
    let then = mount.at(".snapshots/s/file");
    assert_eq!(errno(fs::remove_file(&then)), read_only);
    let writing = File::options().write(true).open(&then).map(|file| file.write_at(b"x", 0).map(drop));
    assert_eq!(errno(writing.and_then(|written| written)), read_only);
    assert_eq!(errno(fs::remove_dir(mount.at(".snapshots/s"))), read_only);
    let across = Errno::XDEV.raw_os_error();
    assert_eq!(errno(fs::rename(&then, mount.at("moved"))), across);
    assert_eq!(errno(fs::rename(mount.at("file"), mount.at(".snapshots/s/moved"))), across);
    assert_eq!(errno(fs::hard_link(&then, mount.at("linked"))), across);
    assert_eq!(fs::read(&then).unwrap(), b"then");
    assert_eq!(fs::metadata(mount.at(".snapshots/absent")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_name_that_is_used_again_leads_to_the_new_snapshot() {
    let Some(mount) = MountFixture::new() else { return };
    for round in 0..20u8 {
        fs::write(mount.at("file"), [round; 5000]).unwrap();
        mount.fs().create_snapshot(b"s").unwrap();
        let path = mount.at(".snapshots/s/file");
        assert_eq!(fs::read(&path).unwrap(), [round; 5000]);
        let open = File::open(&path).unwrap();
        mount.fs().delete_snapshot(b"s").unwrap();
        assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::NotFound, "it is deleted");
        fs::write(mount.at("file"), [99; 5000]).unwrap();
        let mut bytes = [0; 5000];
        open.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [round; 5000], "an open file of a deleted snapshot");
    }
}

#[test]
fn every_directory_has_its_snapshots_wherever_it_was_then() {
    let Some(mount) = MountFixture::new() else { return };
    fs::create_dir_all(mount.at("a/b")).unwrap();
    fs::write(mount.at("a/b/file"), b"first").unwrap();
    mount.fs().create_snapshot(b"first").unwrap();
    fs::write(mount.at("a/b/file"), b"second").unwrap();
    fs::create_dir(mount.at("new")).unwrap();
    fs::rename(mount.at("a/b"), mount.at("new/c")).unwrap();
    mount.fs().create_snapshot(b"second").unwrap();
    fs::write(mount.at("new/c/file"), b"third").unwrap();

    for dir in ["", "a", "new", "new/c"] {
        assert!(!names(mount.at(dir)).contains(&".snapshots".to_owned()), "no listing shows it");
    }
    assert_eq!(names(mount.at("new/c/.snapshots")), ["first", "second"]);
    assert_eq!(names(mount.at("new/.snapshots")), ["second"], "only those that show the directory");
    let read = |path: &str| fs::read_to_string(mount.at(path)).unwrap();
    assert_eq!(read("new/c/.snapshots/first/file"), "first");
    assert_eq!(read("new/c/.snapshots/second/file"), "second");
    assert_eq!(read("new/c/.snapshots/@99999999999/file"), "second");
    assert_eq!(read("new/c/file"), "third");
    let absent = fs::metadata(mount.at("new/.snapshots/first")).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    // Snapshots have none themselves.
    assert!(fs::metadata(mount.at("new/c/.snapshots/first/.snapshots")).is_err());
    assert!(fs::metadata(mount.at(".snapshots/first/.snapshots")).is_err());
    let errno = fs::create_dir(mount.at("new/c/.snapshots/mine")).unwrap_err();
    assert_eq!(errno.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    // The directory goes as if there were no other name in it.
    fs::remove_file(mount.at("new/c/file")).unwrap();
    fs::remove_dir(mount.at("new/c")).unwrap();
}

#[test]
fn a_directory_of_a_volume_has_its_snapshots_and_no_number_is_that_of_another_file() {
    let Some(mount) = MountFixture::new() else { return };
    fs::create_dir_all(mount.at("work/sub")).unwrap();
    fs::write(mount.at("work/sub/file"), b"first").unwrap();
    mount.fs().create_snapshot(b"before").unwrap();
    let root = mount.fs().root();
    let work = mount.fs().lookup(&Caller::ROOT, &root, b"work").unwrap();
    mount.fs().clone_directory(CloneSource::Directory(&work), &root, b"try").unwrap();
    let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // More volumes, so that the bits of volumes and of slots have several values each.
    for name in ["two", "three"] {
        mount.fs().create_volume(&root, name.as_bytes(), user).unwrap();
        fs::create_dir(mount.at(name).join("sub")).unwrap();
    }
    fs::write(mount.at("try/sub/file"), b"second").unwrap();
    mount.fs().create_snapshot(b"after").unwrap();
    fs::write(mount.at("try/sub/file"), b"third").unwrap();

    assert_eq!(names(mount.at("try/.snapshots")), ["after"], "the volume is newer than the other one");
    assert_eq!(names(mount.at("try/sub/.snapshots")), ["after"]);
    assert_eq!(names(mount.at("work/sub/.snapshots")), ["after", "before"]);
    let read = |path: &str| fs::read_to_string(mount.at(path)).unwrap();
    assert_eq!(read("try/.snapshots/after/sub/file"), "second");
    assert_eq!(read("try/sub/.snapshots/after/file"), "second");
    assert_eq!(read("work/sub/.snapshots/after/file"), "first");
    assert_eq!(read("try/sub/file"), "third");
    let absent = fs::metadata(mount.at("try/sub/.snapshots/before")).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    assert_eq!(names(mount.at(".snapshots/after")), ["work"], "snapshots are shown without doors");
    let places = [
        "work/sub",
        "try/sub",
        "two/sub",
        "three/sub",
        "work/.snapshots",
        "try/.snapshots",
        "try/sub/.snapshots",
        ".snapshots/after/work/sub",
        "work/.snapshots/after/sub",
        "work/sub/.snapshots/after",
        "try/.snapshots/after/sub",
        "try/sub/.snapshots/after",
        "two/.snapshots/after/sub",
        "three/.snapshots/after/sub",
        "three/sub/.snapshots/@99999999999",
    ];
    let open = places.map(|place| File::open(mount.at(place)).unwrap());
    let numbers: BTreeSet<u64> = open.iter().map(|open| open.metadata().unwrap().ino()).collect();
    assert_eq!(numbers.len(), places.len(), "each is a directory of its own");
    for (place, open) in places.iter().zip(&open) {
        let path = fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).unwrap();
        assert_eq!(path, mount.at(place));
    }
    let copy = tempfile::tempdir().unwrap();
    let then = mount.at("try/.snapshots/after");
    assert!(Command::new("cp").arg("-a").arg(&then).arg(copy.path()).status().unwrap().success());
    assert_eq!(fs::read(copy.path().join("after/sub/file")).unwrap(), b"second");
}

#[test]
fn ways_into_a_snapshot_do_not_move_each_other() {
    let Some(mount) = MountFixture::new() else { return };
    fs::create_dir_all(mount.at("a/b/c")).unwrap();
    fs::write(mount.at("a/b/c/file"), b"then").unwrap();
    mount.fs().create_snapshot(b"s").unwrap();
    let ways = [
        ".snapshots/s/a/b/c",
        ".snapshots/@99999999999/a/b/c",
        "a/.snapshots/s/b/c",
        "a/b/.snapshots/s/c",
        "a/b/c/.snapshots/s",
        "a/b/c/.snapshots/@99999999999",
    ];
    let open = ways.map(|way| File::open(mount.at(way)).unwrap());
    let inodes: BTreeSet<u64> = open.iter().map(|open| open.metadata().unwrap().ino()).collect();
    assert_eq!(inodes.len(), ways.len(), "programs such as tar take each for a directory of its own");
    for _ in 0..2 {
        for (way, open) in ways.iter().zip(&open) {
            // The kernel's path of an open directory.
            let path = fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).unwrap();
            assert_eq!(path, mount.at(way));
            assert_eq!(fs::read(mount.at(way).join("file")).unwrap(), b"then");
        }
    }
}

#[test]
fn a_file_with_the_name_of_the_directory_of_snapshots_comes_first() {
    let Some(mount) = MountFixture::new() else { return };
    for dir in ["in-dir", "as-file"] {
        fs::create_dir(mount.at(dir)).unwrap();
    }
    mount.fs().create_snapshot(b"s").unwrap();
    let taken = fs::create_dir(mount.at("in-dir/.snapshots")).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    // As a program that uses the library makes them.
    let root = Caller::ROOT;
    let of = |name: &str| mount.fs().lookup(&root, &mount.fs().root(), name.as_bytes()).unwrap();
    let own = mount.fs().mkdir(&root, &of("in-dir"), b".snapshots", NewMode::exact(0o755)).unwrap();
    mount.fs().create_file(&root, &own, b"s", NewMode::exact(0o644), b"own").unwrap();
    mount.fs().create_file(&root, &of("as-file"), b".snapshots", NewMode::exact(0o644), b"file").unwrap();
    assert_eq!(fs::read(mount.at("in-dir/.snapshots/s")).unwrap(), b"own");
    assert_eq!(fs::read(mount.at("as-file/.snapshots")).unwrap(), b"file");
    assert_eq!(names(mount.at("in-dir")), [".snapshots"], "a file is listed");
    fs::write(mount.at("in-dir/.snapshots/new"), b"more").unwrap();
    // When they are gone, the name leads to the snapshots again.
    fs::remove_dir_all(mount.at("in-dir/.snapshots")).unwrap();
    fs::remove_file(mount.at("as-file/.snapshots")).unwrap();
    for dir in ["in-dir", "as-file"] {
        assert_eq!(names(mount.at(dir).join(".snapshots")), ["s"]);
        assert_eq!(names(mount.at(dir)), [""; 0]);
    }
}

#[test]
fn a_mount_without_the_name_lets_programs_use_it() {
    let options =
        MountOptions { snapshot_directories: SnapshotDirectories::Nowhere, ..MountOptions::default() };
    let Some(mount) = MountFixture::mounted(&options) else { return };
    mount.fs().create_snapshot(b"s").unwrap();
    assert!(fs::metadata(mount.at(".snapshots")).is_err());
    fs::create_dir(mount.at(".snapshots")).unwrap();
    fs::write(mount.at(".snapshots/s"), b"own").unwrap();
    drop(mount);
    let options = MountOptions { snapshot_directories: SnapshotDirectories::Root, ..MountOptions::default() };
    let Some(mount) = MountFixture::mounted(&options) else { return };
    fs::create_dir_all(mount.at("dir/.snapshots")).unwrap();
    mount.fs().create_snapshot(b"s").unwrap();
    assert_eq!(names(mount.at("dir/.snapshots")), [""; 0]);
    assert_eq!(names(mount.at(".snapshots/s/dir")), [".snapshots"]);
}

#[test]
fn names_by_time_are_those_that_samba_reads() {
    let options = MountOptions { snapshot_names: SnapshotNames::Gmt, ..MountOptions::default() };
    let Some(mount) = MountFixture::mounted(&options) else { return };
    fs::create_dir(mount.at("dir")).unwrap();
    fs::write(mount.at("dir/file"), b"then").unwrap();
    let made = mount.fs().create_snapshot(b"monday").unwrap();
    fs::write(mount.at("dir/file"), b"now").unwrap();
    let name = gmt_name(made.made).unwrap();
    for dir in ["", "dir/"] {
        assert_eq!(names(mount.at(&format!("{dir}.snapshots"))), [&*name]);
    }
    let then = |name: &str| fs::read(mount.at("dir/.snapshots").join(name).join("file"));
    assert_eq!(then(&name).unwrap(), b"then");
    assert_eq!(then("monday").unwrap(), b"then", "its own name leads to it too");
    assert_eq!(then("@GMT-2001.01.01-00.00.00").unwrap_err().kind(), ErrorKind::NotFound);
    // Several of one second: the name leads to the last one.
    let mut last = made;
    let mut seconds = BTreeSet::from([last.made.seconds]);
    for round in 0..5 {
        fs::write(mount.at("dir/file"), format!("round {round}")).unwrap();
        last = mount.fs().create_snapshot(format!("s{round}").as_bytes()).unwrap();
        seconds.insert(last.made.seconds);
    }
    assert_eq!(names(mount.at(".snapshots")).len(), seconds.len(), "each second is listed once");
    assert_eq!(then(&gmt_name(last.made).unwrap()).unwrap(), b"round 4");
}

/// Sets a flag when it is dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn programs_browse_snapshots_while_others_write_and_snapshots_come_and_go() {
    let Some(mount) = MountFixture::new() else { return };
    for n in 0..200u32 {
        fs::write(mount.at(&format!("file{n}")), n.to_le_bytes()).unwrap();
    }
    mount.fs().create_snapshot(b"kept").unwrap();
    let done = AtomicBool::new(false);
    let (fs_of_mount, root) = (mount.fs(), mount.path().to_owned());
    let at = |name: &str| root.join(name);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Also if the writer fails: the readers end.
            let _end = Done(&done);
            for round in 0..200u32 {
                fs::write(at(&format!("file{}", round % 200)), b"overwritten").unwrap();
                let name = format!("s{round}").into_bytes();
                fs_of_mount.create_snapshot(&name).unwrap();
                names(at(&format!(".snapshots/s{round}")));
                fs_of_mount.delete_snapshot(&name).unwrap();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let kept = at(".snapshots/kept");
                    assert_eq!(names(&kept).len(), 200);
                    for n in (0..200u32).step_by(17) {
                        let found = fs::read(kept.join(format!("file{n}"))).unwrap();
                        assert_eq!(found, n.to_le_bytes(), "file {n} of then");
                    }
                }
            });
        }
    });
    assert_eq!(names(mount.at(".snapshots")), ["kept"]);
}

#[test]
fn another_user_sees_in_a_snapshot_what_the_permissions_of_then_admit() {
    let Some(mount) = MountFixture::shared() else { return };
    fs::write(mount.at("open"), b"bytes").unwrap();
    fs::write(mount.at("closed"), b"bytes").unwrap();
    fs::set_permissions(mount.at("open"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(mount.at("closed"), fs::Permissions::from_mode(0o600)).unwrap();
    mount.fs().create_snapshot(b"s").unwrap();
    let path = |name: &str| mount.at(&format!(".snapshots/s/{name}")).display().to_string();
    assert!(mount.as_user(1000, &format!("cat {}", path("open"))));
    assert!(mount.as_user(1000, &format!("ls {}", mount.at(".snapshots").display())));
    assert!(!mount.as_user(1000, &format!("cat {}", path("closed"))));
    assert!(!mount.as_user(1000, &format!("rm -f {}", path("open"))));
}

#[test]
fn nobody_enters_a_directory_of_a_snapshot_past_one_that_was_closed() {
    let Some(mount) = MountFixture::shared() else { return };
    let set = |name: &str, mode| {
        fs::set_permissions(mount.at(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    fs::create_dir_all(mount.at("closed/dir")).unwrap();
    fs::write(mount.at("closed/dir/file"), b"secret").unwrap();
    set("closed", 0o700);
    set("closed/dir", 0o755);
    set("closed/dir/file", 0o644);
    mount.fs().create_snapshot(b"secret").unwrap();
    fs::write(mount.at("closed/dir/file"), b"for all").unwrap();
    fs::rename(mount.at("closed/dir"), mount.at("dir")).unwrap();
    mount.fs().create_snapshot(b"open").unwrap();
    let cat = |snapshot: &str| format!("cat {}/.snapshots/{snapshot}/file", mount.at("dir").display());
    assert!(mount.as_user(1000, &cat("open")));
    assert!(!mount.as_user(1000, &cat("secret")));
    // Also while somebody else is in it.
    let held = File::open(mount.at("dir/.snapshots/secret/file")).unwrap();
    assert!(!mount.as_user(1000, &cat("secret")));
    drop(held);
}
