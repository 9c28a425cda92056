//! Clones and volumes by the command: made, listed, changed and deleted, mounted and not.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::copy_tar::has_tar;
use crate::fixture::{Fixture, bytes, documents, tree};
use crate::mounted::{MountedFixture, can_mount};

/// A pool with a directory `work` of some files.
fn with_work() -> Fixture {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("small", b"then");
    fixture.local("large", bytes(1, 3 << 20));
    fixture.run(["mkdir", "pool:/work", "pool:/work/sub"]).succeeded();
    fixture.run(["cp", "small", "pool:/work"]).succeeded();
    fixture.run(["cp", "large", "pool:/work/sub"]).succeeded();
    fixture.run(["ln", "pool:/work/small", "pool:/work/also"]).succeeded();
    fixture
}

#[test]
fn a_clone_is_made_changed_listed_and_deleted() {
    let fixture = with_work();
    let said = fixture.run(["clone", "pool:/work", "pool:/try"]).succeeded();
    assert_eq!(said, "/try is a clone of /work\n");
    fixture.run(["cp", "-r", "pool:/work", "before"]).succeeded();
    fixture.run(["cp", "-r", "pool:/try", "shown"]).succeeded();
    assert_eq!(tree(&fixture.path("shown")), tree(&fixture.path("before")));
    fixture.local("small", b"changed");
    fixture.run(["cp", "small", "pool:/try/small"]).succeeded();
    fixture.run(["rm", "pool:/work/sub/large"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/work/small"]).succeeded(), "then");
    assert_eq!(fixture.run(["cat", "pool:/try/small"]).succeeded(), "changed");
    assert_eq!(fixture.run(["ls", "pool:/try/sub"]).succeeded(), "large\n");

    let listed = documents(&fixture.run(["volume", "list", "--json", "pool"]).succeeded());
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["path"], &listed[0]["number"]), (&"/try".into(), &2.into()));
    assert_eq!(listed[0]["origin"]["volume"], 1);
    let said = fixture.run(["volume", "list", "pool"]).succeeded();
    assert!(said.contains("/try") && said.contains("volume 1"), "{said}");
    fixture.run(["mv", "pool:/try", "pool:/moved"]).succeeded();
    let said = fixture.run(["mv", "pool:/moved/small", "pool:/outside"]).failed(1);
    assert!(said.contains("two volumes"), "{said}");
    fixture.run(["fsck", "pool"]).succeeded();
    let said = fixture.run(["volume", "delete", "pool:/moved"]).succeeded();
    assert_eq!(said, "volume /moved is deleted\n");
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "work\n");
    assert_eq!(
        fixture.run(["volume", "list", "pool"]).succeeded(),
        "the pool has one volume, that of its root\n"
    );
    fixture.run(["fsck", "pool"]).succeeded();
}

#[test]
fn snapshots_and_whole_pools_are_cloned_and_volumes_are_made_empty() {
    let fixture = with_work();
    fixture.run(["snapshot", "create", "pool", "monday"]).succeeded();
    fixture.run(["rm", "-r", "pool:/work"]).succeeded();
    for (source, target) in [
        ("pool:/.snapshots/monday/work", "pool:/old"),
        ("pool:/.snapshots/@2200-01-01/work/sub", "pool:/sub"),
    ] {
        fixture.run(["clone", source, target]).succeeded();
    }
    fixture.run(["snapshot", "delete", "pool", "monday"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/old/small"]).succeeded(), "then");
    // A directory of a volume has snapshots too, and is cloned from them.
    fixture.run(["snapshot", "create", "pool", "with"]).succeeded();
    fixture.run(["mv", "pool:/old/small", "pool:/old/renamed"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/old/sub/.snapshots"]).succeeded(), "with\n");
    assert_eq!(fixture.run(["cat", "pool:/old/.snapshots/with/small"]).succeeded(), "then");
    fixture.run(["clone", "pool:/old/.snapshots/with", "pool:/again"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/again/small"]).succeeded(), "then");
    let said = fixture.run(["clone", "pool:/old/.snapshots", "pool:/all"]).failed(2);
    assert!(said.contains("directory of the snapshots"), "{said}");
    fixture.run(["mv", "pool:/old/renamed", "pool:/old/small"]).succeeded();
    fixture.run(["volume", "delete", "pool:/again"]).succeeded();
    fixture.run(["snapshot", "delete", "pool", "with"]).succeeded();
    fixture.run(["cp", "pool:/sub/large", "copied"]).succeeded();
    assert_eq!(fs::read(fixture.path("copied")).expect("copied"), bytes(1, 3 << 20));
    let said = fixture.run(["clone", "pool:/", "pool:/whole"]).failed(1);
    assert!(said.contains("door"), "{said}");
    fixture.run(["volume", "delete", "pool:/old", "pool:/sub"]).succeeded();
    fixture.run(["mkdir", "pool:/work"]).succeeded();
    fixture.run(["clone", "pool:/", "pool:/whole"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/whole"]).succeeded(), "work\n");
    fixture.run(["volume", "create", "pool:/work/scratch"]).succeeded();
    fixture.run(["cp", "small", "pool:/work/scratch"]).succeeded();
    fixture.run(["fsck", "pool"]).succeeded();
    let said = fixture.run(["snapshot", "create", "pool", "tuesday"]).succeeded();
    assert!(said.contains("tuesday"), "{said}");
    let said = fixture.run(["send", "pool", "tuesday"]).failed(3);
    assert!(said.contains("door"), "{said}");
}

#[test]
fn a_clone_is_detached_and_its_origin_is_kept_for_snapshots_from_before() {
    let fixture = with_work();
    fixture.run(["clone", "pool:/work", "pool:/try"]).succeeded();
    fixture.run(["rm", "pool:/try/also"]).succeeded();
    fixture.run(["cp", "-r", "pool:/try", "before"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "monday"]).succeeded();
    let said = fixture.run(["volume", "detach", "pool:/try"]).succeeded();
    assert_eq!(said, "volume /try is detached\n");
    let listed = documents(&fixture.run(["volume", "list", "--json", "pool"]).succeeded());
    assert_eq!((listed[0].get("origin"), &listed[0]["former_origin"]["volume"]), (None, &1.into()));
    fixture.run(["rm", "-r", "pool:/work"]).succeeded();
    fixture.run(["cp", "-r", "pool:/try", "shown"]).succeeded();
    assert_eq!(tree(&fixture.path("shown")), tree(&fixture.path("before")));
    assert_eq!(fixture.run(["cat", "pool:/try/.snapshots/monday/small"]).succeeded(), "then");
    let said = fixture.run(["volume", "detach", "pool:/try"]).failed(1);
    assert!(said.contains("no origin"), "{said}");
    fixture.run(["snapshot", "delete", "pool", "monday"]).succeeded();
    let listed = documents(&fixture.run(["volume", "list", "--json", "pool"]).succeeded());
    assert_eq!((listed[0].get("origin"), listed[0].get("former_origin")), (None, None));
    fixture.run(["fsck", "pool"]).succeeded();
}

#[test]
fn what_cannot_be_done_with_volumes_is_refused_with_its_reason() {
    let fixture = with_work();
    for (arguments, reason) in [
        (&["clone", "pool:/none", "pool:/try"][..], "no such file"),
        (&["clone", "pool:/work/small", "pool:/try"], "not a directory"),
        (&["clone", "pool:/work", "pool:/work/small"], "exists"),
        (&["clone", "pool:/work", "pool:/none/try"], "no such file"),
        (&["clone", "pool:/.snapshots/none/work", "pool:/try"], "no such file"),
        (&["volume", "delete", "pool:/work"], "door"),
        (&["volume", "delete", "pool:/none"], "no such file"),
        (&["volume", "detach", "pool:/work"], "door"),
        (&["volume", "detach", "pool:/none"], "no such file"),
        (&["volume", "create", "pool:/work"], "exists"),
    ] {
        let said = fixture.run(arguments).failed(1);
        assert!(said.to_lowercase().contains(reason), "{arguments:?}: {said}");
    }
    fixture.run(["clone", "pool:/work", "other:/try"]).failed(2);
}

/// The inode numbers of everything below a directory.
fn numbers(directory: &Path, found: &mut BTreeSet<u64>) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let seen = fs::symlink_metadata(&path).expect("it is there");
        found.insert(seen.ino());
        count += 1;
        if seen.is_dir() {
            count += numbers(&path, found);
        }
    }
    count
}

#[test]
fn a_mount_shows_clones_at_once_and_programs_take_no_file_for_another() {
    if !can_mount() {
        return;
    }
    let fixture = with_work();
    fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture.run(["mount", "pool", "mnt"]).succeeded();
    let mounted = MountedFixture(fixture);
    let fixture = &mounted.0;
    let at = |path: &str| fixture.path(&format!("mnt/{path}"));
    fs::read(at("try")).expect_err("the kernel remembers that there is no such name");
    // Bytes that the kernel has not written back yet are in the clone.
    fs::write(at("work/fresh"), b"just now").expect("written");
    fixture.run(["clone", "mnt/work", "mnt/try"]).succeeded();
    assert_eq!(fs::read(at("try/fresh")).expect("read"), b"just now");
    assert_eq!(tree(&at("try")), tree(&at("work")));
    let mut found = BTreeSet::new();
    let count = numbers(&fixture.path("mnt"), &mut found);
    // `small` and `also` are one file, here and there.
    assert_eq!(count, found.len() + 2, "numbers are unique in the pool");
    if has_tar() {
        let mut both = Command::new("tar");
        both.arg("-cf").arg(fixture.path("both.tar")).arg("-C").arg(fixture.path("mnt"));
        assert!(both.args(["work", "try"]).status().expect("tar runs").success());
        fs::create_dir(fixture.path("out")).expect("a new directory");
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(fixture.path("both.tar")).arg("-C").arg(fixture.path("out"));
        assert!(unpack.status().expect("tar runs").success());
        assert_eq!(tree(&fixture.path("out/try")), tree(&at("work")));
        assert_eq!(fs::metadata(fixture.path("out/try/small")).expect("unpacked").nlink(), 2);
    }
    fs::write(at("try/small"), b"in the clone").expect("written");
    assert_eq!(fs::read(at("work/small")).expect("read"), b"then");
    assert_eq!(fs::read(at("try/also")).expect("read"), b"in the clone");
    let moved = fs::rename(at("try/small"), at("small")).expect_err("another volume");
    assert_eq!(moved.kind(), std::io::ErrorKind::CrossesDevices);
    let linked = fs::hard_link(at("work/small"), at("try/linked")).expect_err("another volume");
    assert_eq!(linked.kind(), std::io::ErrorKind::CrossesDevices);
    let removed = fs::remove_dir(at("try")).expect_err("it has files");
    assert_eq!(removed.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    let open = fs::File::open(at("try/sub/large")).expect("opened");
    fixture.run(["volume", "create", "mnt/empty"]).succeeded();
    fs::write(at("empty/file"), b"x").expect("written");
    let listed = documents(&fixture.run(["volume", "list", "--json", "mnt"]).succeeded());
    assert_eq!(listed.iter().map(|v| v["path"].clone()).collect::<Vec<_>>(), ["/try", "/empty"]);
    fixture.run(["snapshot", "create", "mnt", "monday"]).succeeded();
    let then = fs::read_dir(at(".snapshots/monday")).expect("a snapshot");
    let then: Vec<_> = then.map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(then, ["work"], "a mount shows snapshots without doors");
    let large = fs::read(at("try/sub/.snapshots/monday/large")).expect("read by the directory behind it");
    assert_eq!(large, bytes(1, 3 << 20));
    fixture.run(["clone", "mnt/.snapshots/monday/try/sub", "mnt/then"]).succeeded();
    assert_eq!(fs::read(at("then/large")).expect("read"), bytes(1, 3 << 20));
    let said = fixture.run(["volume", "detach", "mnt/then"]).succeeded();
    assert_eq!(said, "volume /then is detached\n");
    assert_eq!(fs::read(at("then/large")).expect("read"), bytes(1, 3 << 20));
    fixture.run(["volume", "delete", "mnt/try"]).succeeded();
    assert!(!at("try").exists());
    let mut buffer = [0; 16];
    let read = std::os::unix::fs::FileExt::read_at(&open, &mut buffer, 2 << 20);
    assert!(read.is_err() || buffer == bytes(1, 3 << 20)[2 << 20..][..16], "cached bytes, or ESTALE");
    drop(open);
    fixture.run(["fsck", "mnt"]).succeeded();
    fixture.run(["umount", "mnt"]).succeeded();
    fixture.run(["fsck", "pool"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "empty\nthen\nwork\n");
}

#[test]
fn limits_are_set_shown_obeyed_and_lifted() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("file", bytes(1, 100_000));
    fixture.run(["volume", "create", "pool:/jobs"]).succeeded();
    let said =
        fixture.run(["volume", "limit", "pool:/jobs", "--bytes", "150000", "--files", "3"]).succeeded();
    assert_eq!(said, "volume /jobs may have 146 KiB and 3 files\n");
    fixture.run(["cp", "file", "pool:/jobs/one"]).succeeded();
    let said = fixture.run(["cp", "file", "pool:/jobs/two"]).failed(1);
    assert!(said.contains("limit of bytes") && said.contains("volume limit"), "{said}");
    fixture.run(["mkdir", "pool:/jobs/dir"]).succeeded();
    let said = fixture.run(["mkdir", "pool:/jobs/more"]).failed(1);
    assert!(said.contains("limit of files"), "{said}");
    let listed = documents(&fixture.run(["volume", "list", "--json", "pool"]).succeeded());
    assert_eq!((&listed[0]["limit_bytes"], &listed[0]["limit_files"]), (&150_000.into(), &3.into()));
    assert_eq!((&listed[0]["file_bytes"], &listed[0]["inodes"]), (&100_000.into(), &3.into()));
    let said = fixture.run(["volume", "limit", "pool:/jobs", "--bytes", "none"]).succeeded();
    assert_eq!(said, "volume /jobs may have any number of bytes and 3 files\n");
    fixture.run(["rm", "-r", "pool:/jobs/dir"]).succeeded();
    fixture.run(["cp", "file", "pool:/jobs/two"]).succeeded();
    fixture.run(["volume", "limit", "pool:/jobs"]).failed(2);
    fixture.run(["volume", "limit", "pool:/", "--files", "1"]).failed(1);
    fixture.run(["volume", "limit", "pool:/jobs", "--files", "many"]).failed(2);
    fixture.run(["fsck", "pool"]).succeeded();
}

#[test]
fn the_root_is_not_deleted_and_rm_names_the_volume_that_it_meets() {
    let fixture = Fixture::pool(3, 2, 1, 64);
    let said = fixture.run(["volume", "delete", "pool:/"]).failed(1);
    assert!(said.contains("/: the root of the pool cannot be deleted; "), "{said}");
    fixture.run(["mkdir", "pool:/a"]).succeeded();
    fixture.run(["volume", "create", "pool:/a/v"]).succeeded();
    let check = |fixture: &Fixture, path: &str, named: &str| {
        let said = fixture.run(["rm", "-r", path]).failed(1);
        let expected = format!("{named} is the directory of a volume; 'warpfire volume delete' ");
        assert!(said.contains(&expected), "{path}: {said}");
    };
    check(&fixture, "pool:/a", "/a/v");
    if can_mount() {
        let pool = MountedFixture::of(fixture);
        check(&pool.0, "pool:/a", "/a/v");
        check(&pool.0, "mnt/a/v/", "/mnt/a/v");
        let said = pool.0.run(["volume", "delete", "pool:/"]).failed(1);
        assert!(said.contains("the root of the pool cannot be deleted"), "{said}");
    }
}
