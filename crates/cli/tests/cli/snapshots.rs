//! Snapshots by the command: made, listed, read and deleted, mounted and not.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use warpfire_env::{Clock, SystemClock};

use crate::copy_tar::has_tar;
use crate::fixture::{Fixture, bytes, documents, tree};
use crate::mounted::{MountedFixture, can_mount};

/// Names of the snapshots of a pool.
fn names(fixture: &Fixture, pool: &str) -> Vec<String> {
    let listed = documents(&fixture.run(["snapshot", "list", "--json", pool]).succeeded());
    listed.iter().map(|s| s["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn files_of_a_snapshot_are_read_by_the_verbs_and_copied_back() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("small", b"then");
    fixture.local("large", bytes(1, 3 << 20));
    fixture.run(["mkdir", "pool:/docs"]).succeeded();
    fixture.run(["cp", "small", "large", "pool:/docs"]).succeeded();
    let said = fixture.run(["snapshot", "create", "pool", "monday"]).succeeded();
    assert!(said.starts_with("snapshot monday is made: 4 inodes, 3 MiB"), "{said}");
    fixture.local("small", b"changed");
    fixture.run(["cp", "small", "pool:/docs/small"]).succeeded();
    fixture.run(["rm", "pool:/docs/large"]).succeeded();

    assert_eq!(fixture.run(["cat", "pool:/.snapshots/monday/docs/small"]).succeeded(), "then");
    assert_eq!(fixture.run(["cat", "pool:/docs/small"]).succeeded(), "changed");
    assert_eq!(fixture.run(["ls", "pool:/.snapshots"]).succeeded(), "monday\n");
    assert_eq!(fixture.run(["ls", "pool:/.snapshots/monday/docs"]).succeeded(), "large\nsmall\n");
    let found = fixture.run(["find", "pool:/.snapshots/monday", "--type", "file"]).succeeded();
    assert_eq!(found.lines().count(), 2, "{found}");
    fixture.run(["stat", "pool:/.snapshots/monday/docs/large"]).succeeded();
    // Out of the pool, and back into it.
    fixture.run(["cp", "-r", "pool:/.snapshots/monday/docs", "back"]).succeeded();
    assert_eq!(fs::read(fixture.path("back/large")).expect("copied"), bytes(1, 3 << 20));
    fixture.run(["cp", "-r", "pool:/.snapshots/monday/docs", "pool:/restored"]).succeeded();
    fixture.run(["cp", "-r", "pool:/restored", "again"]).succeeded();
    assert_eq!(tree(&fixture.path("again")), tree(&fixture.path("back")));
    fixture.run(["fsck", "pool"]).succeeded();
}

#[test]
fn a_moment_stands_for_the_newest_snapshot_then() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("file", b"then");
    fixture.run(["cp", "file", "pool:/"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "monday"]).succeeded();
    fixture.run(["rm", "pool:/file"]).succeeded();
    for moment in ["@2200-01-01", "@2200-01-01T00:00", "@2200-01-01T00:00:00Z", "@7258118400"] {
        let path = format!("pool:/.snapshots/{moment}/file");
        assert_eq!(fixture.run(["cat", &path]).succeeded(), "then", "{moment}");
        assert_eq!(fixture.run(["ls", &path]).succeeded().lines().count(), 1, "{moment}");
    }
    fixture.run(["ls", "pool:/.snapshots/@2001-01-01"]).failed(1);
    if can_mount() {
        fs::create_dir(fixture.path("mnt")).expect("a new directory");
        fixture.run(["mount", "pool", "mnt"]).succeeded();
        let mounted = MountedFixture(fixture);
        let there = mounted.0.path("mnt/.snapshots/@2200-01-01T00:00/file");
        assert_eq!(fs::read(there).expect("read"), b"then");
    }
}

#[test]
fn every_directory_has_its_snapshots_mounted_and_not() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("file", b"then");
    fixture.run(["mkdir", "-p", "pool:/docs/old"]).succeeded();
    fixture.run(["cp", "file", "pool:/docs/old"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "monday"]).succeeded();
    fixture.local("file", b"now");
    fixture.run(["cp", "file", "pool:/docs/old"]).succeeded();
    fixture.run(["mkdir", "pool:/docs/later"]).succeeded();
    fixture.run(["mv", "pool:/docs/old", "pool:/moved"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "tuesday"]).succeeded();
    let second = |snapshot: &str| {
        let list = documents(&fixture.run(["snapshot", "list", "--json", "pool"]).succeeded());
        let of = list.iter().find(|found| found["name"] == snapshot).expect("it is listed");
        // 2026-11-24T21:56:00.000000000Z
        let text = of["made"].as_str().expect("a time")[..19].replace([':', '-'], ".").replace('T', "-");
        format!("@GMT-{text}")
    };
    let gmt = second("tuesday");
    let look = |fixture: &Fixture, pool: &str| {
        let run = |verb: &str, path: &str| fixture.run([verb, &format!("{pool}:/{path}")]).succeeded();
        assert_eq!(run("ls", "moved/.snapshots"), "monday\ntuesday\n");
        assert_eq!(run("ls", "docs/later/.snapshots"), "tuesday\n");
        assert_eq!(run("cat", "moved/.snapshots/monday/file"), "then");
        assert_eq!(run("cat", "moved/.snapshots/tuesday/file"), "now");
        assert_eq!(run("cat", "moved/.snapshots/@2200-01-01/file"), "now");
        assert_eq!(run("cat", &format!("moved/.snapshots/{gmt}/file")), "now");
        assert_eq!(run("ls", "docs/.snapshots/monday"), "old\n");
        let absent = format!("{pool}:/docs/later/.snapshots/monday");
        fixture.run(["ls", &absent]).failed(1);
        fixture.run(["rm", &format!("{pool}:/moved/.snapshots/monday/file")]).failed(1);
        fixture.run(["mkdir", &format!("{pool}:/moved/.snapshots")]).failed(1);
        assert!(!run("ls", "moved").contains("snapshots"));
        let found = run("find", "moved/.snapshots/monday");
        assert_eq!(found.lines().count(), 2, "{found}");
    };
    look(&fixture, "pool");
    fixture.run(["cp", "-r", "pool:/moved/.snapshots/monday", "pool:/back"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/back/file"]).succeeded(), "then");
    // A directory of that name comes with a copy, and is a directory like any other then.
    fixture.local("tree/.snapshots/own", b"own");
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/tree/.snapshots"]).succeeded(), "own\n");
    assert_eq!(fixture.run(["cat", "pool:/tree/.snapshots/own"]).succeeded(), "own");
    fixture.run(["touch", "pool:/tree/.snapshots/more"]).succeeded();
    if can_mount() {
        fs::create_dir(fixture.path("mnt")).expect("a new directory");
        fixture.run(["mount", "-o", "names=gmt", "pool", "mnt"]).succeeded();
        let mounted = MountedFixture(fixture);
        let there = |path: &str| mounted.0.path(&format!("mnt/{path}"));
        let listed = mounted.0.run(["ls", "pool:/docs/later/.snapshots"]).succeeded();
        assert_eq!(listed, format!("{gmt}\n"));
        assert_eq!(fs::read(there(&format!("moved/.snapshots/{gmt}/file"))).expect("read"), b"now");
        assert_eq!(fs::read(there("tree/.snapshots/own")).expect("read"), b"own");
        mounted.0.run(["umount", "mnt"]).succeeded();
        mounted.0.run(["mount", "pool", "mnt"]).succeeded();
        look(&mounted.0, "pool");
        mounted.0.run(["umount", "mnt"]).succeeded();
        mounted.0.run(["mount", "--snapshots", "nowhere", "pool", "mnt"]).succeeded();
        assert!(fs::metadata(there("moved/.snapshots")).is_err());
    }
}

#[test]
fn find_tar_and_rsync_take_snapshots_in_directories_for_what_they_are() {
    if !can_mount() || !has_tar() {
        return;
    }
    let pool = MountedFixture::new();
    let there = |name: &str| pool.0.path(&format!("mnt/{name}"));
    fs::create_dir_all(there("docs/below/deep")).expect("made");
    fs::write(there("docs/below/deep/one"), b"first").expect("written");
    fs::hard_link(there("docs/below/deep/one"), there("docs/below/other")).expect("linked");
    pool.0.run(["snapshot", "create", "mnt", "monday"]).succeeded();
    fs::write(there("docs/below/deep/one"), b"second").expect("written");
    pool.0.run(["snapshot", "create", "mnt", "tuesday"]).succeeded();
    let shell = |script: &str| {
        let ran = Command::new("sh").args(["-c", script]).current_dir(pool.0.path("")).output();
        let ran = ran.expect("sh runs");
        assert!(ran.status.success(), "{script}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("text")
    };
    // Without a look into it: nobody lists the name.
    assert_eq!(shell("find mnt | wc -l").trim(), "6");
    assert_eq!(shell("tar c -C mnt docs | tar t | wc -l").trim(), "5");
    // On purpose: each directory once, all links found.
    assert_eq!(shell("find mnt/docs/.snapshots -mindepth 1 | wc -l").trim(), "10");
    assert_eq!(shell("find mnt/docs/.snapshots mnt/docs/below/.snapshots -name one | wc -l").trim(), "4");
    shell("mkdir copy && tar c -C mnt docs/.snapshots | tar x -C copy");
    for (day, content) in [("monday", "first"), ("tuesday", "second")] {
        let of = |name: &str| pool.0.path(&format!("copy/docs/.snapshots/{day}/below/{name}"));
        assert_eq!(fs::read_to_string(of("deep/one")).expect("copied"), content);
        let [one, other] = ["deep/one", "other"].map(|name| fs::metadata(of(name)).expect("copied"));
        assert_eq!((one.ino(), one.nlink()), (other.ino(), 2), "{day}: the links of one state");
    }
    if Command::new("rsync").arg("--version").output().is_ok() {
        shell("rsync -aH mnt/docs/ mirror && rsync -aHn --itemize-changes mnt/docs/ mirror");
        assert_eq!(fs::read_dir(pool.0.path("mirror")).expect("made").count(), 1, "no .snapshots");
        assert_eq!(shell("rsync -aHcn --itemize-changes mnt/docs/.snapshots/tuesday/ mirror"), "");
    }
}

#[test]
fn a_list_says_what_deleting_each_snapshot_frees() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("old", bytes(1, 1 << 20));
    fixture.local("later", bytes(2, 2 << 20));
    fixture.run(["cp", "old", "pool:/"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "one"]).succeeded();
    fixture.run(["cp", "later", "pool:/"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "two"]).succeeded();
    fixture.run(["rm", "pool:/old"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "three"]).succeeded();
    fixture.run(["rm", "pool:/later"]).succeeded();

    let expected = [("one", 0, 0), ("two", 0, 1 << 20), ("three", 0, 3 << 20)];
    let check = |fixture: &Fixture, pool: &str| {
        let listed = documents(&fixture.run(["snapshot", "list", "--space", "--json", pool]).succeeded());
        for (snapshot, (name, alone, with_older)) in listed.iter().zip(expected) {
            assert_eq!(snapshot["name"], name);
            assert_eq!(snapshot["frees_alone_bytes"], alone, "{name}");
            assert_eq!(snapshot["frees_with_older_bytes"], with_older, "{name}");
        }
        let table = fixture.run(["snapshot", "list", "--space", pool]).succeeded();
        assert!(table.ends_with("3 snapshots hold 3 MiB that nothing else needs\n"), "{table}");
        let plan = fixture.run(["snapshot", "delete", "--dry-run", pool, "one", "two"]).succeeded();
        assert!(plan.ends_with("deleting 2 snapshots would free 1 MiB\n"), "{plan}");
        let plan =
            documents(&fixture.run(["snapshot", "delete", "--dry-run", "--json", pool, ".."]).succeeded());
        assert_eq!((plan.len(), &plan[3]["frees_bytes"]), (4, &(3 << 20).into()));
    };
    check(&fixture, "pool");
    let plain = documents(&fixture.run(["snapshot", "list", "--json", "pool"]).succeeded());
    assert!(plain[0].get("frees_alone_bytes").is_none(), "nobody has asked for it");
    if can_mount() {
        fs::create_dir(fixture.path("mnt")).expect("a new directory");
        fixture.run(["mount", "pool", "mnt"]).succeeded();
        let mounted = MountedFixture(fixture);
        check(&mounted.0, "mnt");
    }
}

#[test]
fn snapshots_are_listed_in_order_and_deleted_by_name() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    assert_eq!(fixture.run(["snapshot", "list", "pool"]).succeeded(), "the pool has no snapshots\n");
    for name in ["one", "two", "three"] {
        fixture.run(["snapshot", "create", "pool", name]).succeeded();
    }
    let made = documents(&fixture.run(["snapshot", "create", "--json", "pool"]).succeeded());
    let by_time = made[0]["name"].as_str().expect("a name").to_owned();
    assert!(by_time.starts_with("20") && by_time.ends_with('Z'), "{by_time}");
    assert_eq!(names(&fixture, "pool"), ["one", "two", "three", &by_time]);
    let plan = fixture.run(["snapshot", "delete", "--dry-run", "pool", "two.."]).succeeded();
    assert_eq!(plan.lines().count(), 4, "{plan}");
    assert!(plan.starts_with("snapshot two would be deleted\n"), "{plan}");
    assert!(plan.ends_with("deleting 3 snapshots would free 0 B\n"), "{plan}");
    assert_eq!(names(&fixture, "pool").len(), 4, "a plan deletes nothing");
    fixture.run(["snapshot", "delete", "pool", "two", &by_time]).succeeded();
    assert_eq!(names(&fixture, "pool"), ["one", "three"]);
    let refused = fixture.run(["snapshot", "delete", "pool", "three..one"]).failed(2);
    assert!(refused.contains("names no snapshot; the older one comes first"), "{refused}");
    fixture.run(["snapshot", "delete", "pool", "..three"]).succeeded();
    assert!(names(&fixture, "pool").is_empty());
    fixture.run(["fsck", "pool"]).succeeded();
}

#[test]
fn what_cannot_be_done_with_snapshots_is_refused_with_its_reason() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("file", b"bytes");
    fixture.run(["cp", "file", "pool:/"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "s"]).succeeded();
    for (words, code, sentence) in [
        (
            "snapshot create pool s",
            1,
            "the pool has a snapshot or bookmark s already; choose another name, or delete that one first",
        ),
        ("snapshot delete pool t", 1, "the pool has no snapshot t; 'warpfire snapshot list' shows them"),
        (
            "rm pool:/.snapshots/s/file",
            1,
            "/.snapshots/s/file: a snapshot does not change; copy the file out of the snapshot",
        ),
        (
            "mkdir pool:/.snapshots/s/new",
            1,
            "/.snapshots/s/new: a snapshot does not change; copy the file out of the snapshot",
        ),
        (
            "mkdir pool:/.snapshots",
            1,
            "/.snapshots: a snapshot does not change; copy the file out of the snapshot",
        ),
        (
            "cp file pool:/.snapshots/s/file",
            1,
            "/.snapshots/s/file: a snapshot does not change; copy the file out of the snapshot",
        ),
    ] {
        let said = fixture.run(words.split(' ')).failed(code);
        assert!(said.to_lowercase().contains(&sentence.to_lowercase()), "{words}: {said}");
    }
    for name in ["a/b", "..", "@now", ""] {
        let said = fixture.run(["snapshot", "create", "pool", name]).failed(2);
        assert!(said.contains("is no name for a snapshot"), "{name}: {said}");
    }
    fixture.run(["cat", "pool:/.snapshots/absent/file"]).failed(1);
    assert_eq!(fixture.run(["cat", "pool:/.snapshots/s/file"]).succeeded(), "bytes");
}

#[test]
fn the_server_of_a_mounted_pool_makes_and_deletes_snapshots() {
    if !can_mount() {
        return;
    }
    let mounted = MountedFixture::new();
    let fixture = &mounted.0;
    fs::write(fixture.path("mnt/file"), b"then").expect("written");
    fixture.run(["snapshot", "create", "mnt", "s"]).succeeded();
    fs::write(fixture.path("mnt/file"), b"now").expect("written");
    assert_eq!(names(fixture, "mnt"), ["s"]);
    assert_eq!(names(fixture, "pool"), ["s"], "by its devices too");
    assert_eq!(fixture.run(["cat", "pool:/.snapshots/s/file"]).succeeded(), "then");
    assert_eq!(fixture.run(["cat", "mnt/.snapshots/s/file"]).succeeded(), "then");
    assert_eq!(fixture.run(["ls", "pool:/.snapshots"]).succeeded(), "s\n");
    fixture.run(["cp", "pool:/.snapshots/s/file", "pool:/restored"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/restored"]).succeeded(), "then");
    let said = fixture.run(["snapshot", "create", "mnt", "s"]).failed(1);
    assert!(said.contains("already"), "{said}");
    fixture.run(["snapshot", "delete", "mnt", "s"]).succeeded();
    assert_eq!(names(fixture, "mnt"), [""; 0]);
}

#[test]
fn a_pool_that_snapshots_fill_gets_room_by_a_deletion() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("first", bytes(1, 30 << 20));
    fixture.local("second", bytes(2, 30 << 20));
    fixture.run(["cp", "first", "pool:/"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "s"]).succeeded();
    fixture.run(["rm", "pool:/first"]).succeeded();
    let said = fixture.run(["cp", "second", "pool:/"]).failed(1);
    assert!(said.contains("no space left"), "{said}");
    fixture.run(["cp", "pool:/.snapshots/s/first", "kept"]).succeeded();
    assert_eq!(fs::read(fixture.path("kept")).expect("copied"), bytes(1, 30 << 20));
    fixture.run(["snapshot", "delete", "pool", "s"]).succeeded();
    fixture.run(["cp", "second", "pool:/"]).succeeded();
    fixture.run(["cp", "pool:/second", "back"]).succeeded();
    assert_eq!(fs::read(fixture.path("back")).expect("copied"), bytes(2, 30 << 20));
    fixture.run(["fsck", "pool"]).succeeded();
}

#[test]
fn tar_takes_files_of_snapshots_for_other_files() {
    if !can_mount() || !has_tar() {
        return;
    }
    let pool = MountedFixture::new();
    let there = |name: &str| pool.0.path(&format!("mnt/{name}"));
    fs::create_dir(there("docs")).expect("made");
    fs::write(there("docs/one"), b"first").expect("written");
    fs::hard_link(there("docs/one"), there("docs/other")).expect("linked");
    pool.0.run(["snapshot", "create", "mnt", "monday"]).succeeded();
    fs::write(there("docs/one"), b"second").expect("written");
    fs::create_dir(pool.0.path("copy")).expect("made");
    let script = "tar c -C mnt docs .snapshots/monday/docs | tar x -C copy";
    let ran = Command::new("sh").args(["-c", script]).current_dir(pool.0.path("")).status();
    assert!(ran.expect("sh runs").success());
    // tar knows the links of a file by device and inode number.
    for (dir, content) in [("docs", "second"), (".snapshots/monday/docs", "first")] {
        let of = |name: &str| pool.0.path(&format!("copy/{dir}/{name}"));
        assert_eq!(fs::read_to_string(of("other")).expect("copied"), content, "{dir}");
        let [one, other] = ["one", "other"].map(|name| fs::metadata(of(name)).expect("copied"));
        assert_eq!((one.ino(), one.nlink()), (other.ino(), 2), "{dir}: the links of one state");
    }
}

#[test]
fn changes_between_snapshots_are_listed_alike_mounted_and_not() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("kept", b"the same");
    fixture.local("edited", bytes(1, 300_000));
    fixture.local("gone", b"gone");
    fixture.run(["mkdir", "pool:/docs"]).succeeded();
    fixture.run(["cp", "kept", "edited", "gone", "pool:/docs"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "monday"]).succeeded();
    assert_eq!(fixture.run(["snapshot", "diff", "pool", "monday"]).succeeded(), "nothing has changed\n");
    fixture.run(["rm", "pool:/docs/gone"]).succeeded();
    fixture.run(["mv", "pool:/docs/kept", "pool:/moved"]).succeeded();
    fixture.run(["truncate", "--size", "300100", "pool:/docs/edited"]).succeeded();
    fixture.run(["chmod", "600", "pool:/moved"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "tuesday"]).succeeded();
    fixture.run(["touch", "pool:/docs/later"]).succeeded();

    let of_two = fixture.run(["snapshot", "diff", "pool", "monday", "tuesday"]).succeeded();
    let lines: Vec<&str> = of_two.lines().filter(|line| !line.ends_with("  (time)")).collect();
    assert_eq!(
        lines,
        [
            "changed  /docs/edited  (size 300,000 -> 300,100, time)",
            "deleted  /docs/gone  (file, 4 B)",
            "renamed  /docs/kept -> /moved  (mode 0644 -> 0600)",
        ],
        "{of_two}"
    );
    let to_now = fixture.run(["snapshot", "diff", "pool", "monday"]).succeeded();
    assert!(to_now.contains("created  /docs/later  (file, 0 B)\n"), "{to_now}");
    let below = fixture.run(["snapshot", "diff", "pool", "@2200-01-01", "--below", "/docs"]).succeeded();
    assert!(below.starts_with("changed  /docs  (time)\ncreated  /docs/later"), "{below}");
    let below = fixture.run(["snapshot", "diff", "pool", "monday", "--below", "/docs/kept"]).succeeded();
    assert_eq!(below.lines().count(), 1, "the old name of a renamed file counts: {below}");
    let said = fixture.run(["snapshot", "diff", "pool", "tuesday", "monday"]).failed(2);
    assert!(
        said.contains("the first snapshot of a diff is the older one; name them in their order"),
        "{said}"
    );
    let said = fixture.run(["snapshot", "diff", "pool", "sunday"]).failed(1);
    assert!(said.contains("the pool has no snapshot sunday; 'warpfire snapshot list' shows them"), "{said}");
    let said = fixture.run(["snapshot", "diff", "--json", "pool", "monday", "tuesday"]).succeeded();
    let as_json = documents(&said);
    let renamed = as_json.iter().find(|change| change["change"] == "renamed").expect("one is renamed");
    assert_eq!((&renamed["from"], &renamed["path"]), (&"/docs/kept".into(), &"/moved".into()));
    assert_eq!(renamed["differs"], serde_json::json!(["mode"]));

    if can_mount() {
        fs::create_dir(fixture.path("mnt")).expect("a new directory");
        fixture.run(["mount", "pool", "mnt"]).succeeded();
        let mounted = MountedFixture(fixture);
        assert_eq!(mounted.0.run(["snapshot", "diff", "mnt", "monday", "tuesday"]).succeeded(), of_two);
        let said = mounted.0.run(["snapshot", "diff", "--json", "pool", "monday", "tuesday"]).succeeded();
        assert_eq!(documents(&said), as_json);
        // More changes than one part of an answer has.
        for number in 0..200 {
            fs::write(mounted.0.path(&format!("mnt/docs/many-{number}")), b"x").expect("written");
        }
        let said = mounted.0.run(["snapshot", "diff", "mnt", "tuesday", "--below", "/docs"]).succeeded();
        assert_eq!(said.matches("created  /docs/many-").count(), 200, "{said}");
        mounted.0.run(["umount", "mnt"]).succeeded();
        mounted.0.run(["fsck", "pool"]).succeeded();
    }
}

#[test]
fn a_held_snapshot_is_not_deleted() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.run(["snapshot", "create", "pool", "monday"]).succeeded();
    fixture.run(["snapshot", "hold", "pool", "monday", "backup"]).succeeded();
    fixture.run(["snapshot", "hold", "pool", "monday", "audit"]).succeeded();
    fixture.run(["snapshot", "hold", "pool", "monday", "audit"]).failed(1);
    let listed = documents(&fixture.run(["snapshot", "list", "--json", "pool"]).succeeded());
    assert_eq!(listed[0]["holds"].as_array().map(Vec::len), Some(2), "{listed:?}");
    let said = fixture.run(["snapshot", "delete", "pool", "monday"]).failed(1);
    assert!(said.contains("audit, backup") && said.contains("snapshot release"), "{said}");
    let said = fixture.run(["snapshot", "release", "pool", "monday", "backups"]).failed(1);
    assert!(said.contains("no hold backups"), "{said}");
    fixture.run(["snapshot", "release", "pool", "monday", "backup"]).succeeded();
    fixture.run(["fsck", "pool"]).succeeded();
    fixture.run(["snapshot", "delete", "pool", "monday"]).failed(1);
    fixture.run(["snapshot", "release", "pool", "monday", "audit"]).succeeded();
    fixture.run(["snapshot", "delete", "pool", "monday"]).succeeded();
    let said = fixture.run(["snapshot", "hold", "pool", "monday", "audit"]).failed(1);
    assert!(said.contains("has no snapshot monday"), "{said}");
}

#[test]
fn a_list_says_what_keeps_each_snapshot_mounted_or_not() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.run(["mkdir", "pool:/work"]).succeeded();
    for name in ["alone", "held", "cloned"] {
        fixture.run(["snapshot", "create", "pool", name]).succeeded();
        fixture.run(["mkdir", &format!("pool:/after-{name}")]).succeeded();
    }
    fixture.run(["snapshot", "hold", "pool", "held", "backup"]).succeeded();
    fixture.run(["clone", "pool:/.snapshots/cloned/work", "pool:/try"]).succeeded();
    let add =
        ["snapshot", "rule", "add", "pool", "yearly", "--every", "1d", "--keep", "2d", "--expire", "1d"];
    fixture.run(add).succeeded();
    fixture.run(["snapshot", "tick", "pool"]).succeeded();
    let check = |fixture: &Fixture, pool: &str| {
        let listed = documents(&fixture.run(["snapshot", "list", "--json", pool]).succeeded());
        let kept = |at: usize| (&listed[at]["kept_by"], &listed[at]["clones"], &listed[at]["outdated"]);
        let none = serde_json::json!([]);
        assert_eq!(kept(0), (&none, &none, &false.into()));
        assert_eq!(kept(1), (&serde_json::json!(["hold"]), &none, &false.into()));
        let expected = (&serde_json::json!(["clone"]), &serde_json::json!(["/try"]), &false.into());
        assert_eq!(kept(2), expected);
        assert_eq!(kept(3), (&serde_json::json!(["rule"]), &none, &false.into()));
        assert_eq!(listed[3]["rule_reason"], "day 1 of 2");
        let (made, until) = (listed[3]["made"].as_str().unwrap(), listed[3]["kept_until"].as_str().unwrap());
        // It expires before two days have passed.
        assert!(until > made && until.len() == made.len(), "{made} {until}");
        assert!(listed[..3].iter().all(|one| one.get("kept_until").is_none()), "{listed:?}");
        let table = fixture.run(["snapshot", "list", pool]).succeeded();
        let line = |name: &str| table.lines().find(|line| line.starts_with(name)).expect("listed").to_owned();
        for (name, kept) in [
            ("alone", "its user"),
            ("held", "hold backup"),
            ("cloned", "clone /try"),
            ("yearly-20", "day 1 of 2"),
        ] {
            assert!(line(name).contains(kept), "{table}");
        }
    };
    check(&fixture, "pool");
    if can_mount() {
        fs::create_dir(fixture.path("mnt")).expect("a new directory");
        fixture.run(["mount", "pool", "mnt"]).succeeded();
        let mounted = MountedFixture(fixture);
        check(&mounted.0, "mnt");
    }
}

#[test]
fn a_rollback_brings_the_files_back_mounted_or_not() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    let file = |content: &str| {
        fs::write(fixture.path("local"), content).expect("written");
        fixture.run(["cp", "local", "pool:/file"]).succeeded();
    };
    let content = |pool: &str| fixture.run(["cat", &format!("{pool}:/file")]).succeeded();
    file("then");
    fixture.run(["snapshot", "create", "pool", "monday"]).succeeded();
    file("now");
    let said = fixture.run(["snapshot", "rollback", "pool", "sunday"]).failed(1);
    assert!(said.contains("has no snapshot sunday"), "{said}");
    let said = fixture.run(["snapshot", "rollback", "pool", "monday", "--keep-as", "monday"]).failed(1);
    assert!(said.contains("already"), "{said}");
    let said = fixture.run(["snapshot", "rollback", "--json", "pool", "monday"]).succeeded();
    let done = documents(&said).remove(0);
    assert_eq!(done["rolled_back_to"]["name"], "monday");
    let kept = done["kept"]["name"].as_str().expect("a name").to_owned();
    assert!(kept.starts_with("before-rollback-20"), "{kept}");
    assert_eq!(content("pool"), "then");
    fixture.run(["fsck", "pool"]).succeeded();
    let said = fixture.run(["snapshot", "rollback", "pool", &kept, "--keep-as", "again"]).succeeded();
    assert!(said.contains(&format!("the files are those of snapshot {kept}")), "{said}");
    assert_eq!(content("pool"), "now");
    if can_mount() {
        fs::create_dir(fixture.path("mnt")).expect("a new directory");
        fixture.run(["mount", "pool", "mnt"]).succeeded();
        let mounted = MountedFixture(fixture);
        let fixture = &mounted.0;
        assert_eq!(fs::read(fixture.path("mnt/file")).expect("read"), b"now");
        fixture.run(["snapshot", "rollback", "mnt", "monday", "--keep-as", "of the mount"]).succeeded();
        assert_eq!(fs::read(fixture.path("mnt/file")).expect("read"), b"then");
        fixture.run(["snapshot", "rollback", "pool", "of the mount"]).succeeded();
        assert_eq!(fs::read(fixture.path("mnt/file")).expect("read"), b"now");
        let said = fixture.run(["snapshot", "rollback", "mnt", "none"]).failed(1);
        assert!(said.contains("has no snapshot none"), "{said}");
        fixture.run(["umount", "mnt"]).succeeded();
        fixture.run(["fsck", "pool"]).succeeded();
    }
}

/// Waits until a rule of one second is due again.
fn next_second() {
    let began = SystemClock.monotonic_nanos();
    while SystemClock.monotonic_nanos() - began < 1_100_000_000 {
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
}

#[test]
fn rules_make_and_delete_snapshots() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    assert_eq!(fixture.run(["snapshot", "tick", "pool"]).succeeded(), "");
    let add = ["snapshot", "rule", "add", "pool", "often", "--every", "1s", "--expire", "1s", "--if-changed"];
    let said = fixture.run(add).succeeded();
    assert_eq!(said, "rule often: a snapshot every 1s, kept: all\n");
    fixture.run(["snapshot", "create", "pool", "by-hand"]).succeeded();
    let tick = || fixture.run(["snapshot", "tick", "pool"]).succeeded();
    assert!(tick().starts_with("snapshot often-20"));
    let first = names(&fixture, "pool").pop().expect("made");
    assert!(first.starts_with("often-20") && first.ends_with('Z'), "{first}");
    next_second();
    assert_eq!(tick(), "", "nothing has changed");
    fixture.run(["mkdir", "pool:/new"]).succeeded();
    let said = tick();
    assert!(said.contains("is made") && said.contains(&format!("{first} is deleted")), "{said}");
    assert_eq!(names(&fixture, "pool").len(), 2);
    let explained = documents(&fixture.run(["snapshot", "rule", "explain", "--json", "pool"]).succeeded());
    assert_eq!(explained.len(), 1, "{explained:?}");
    assert_eq!(explained[0]["rule"], "often");
    fixture.run(["fsck", "pool"]).succeeded();

    let keep = ["snapshot", "rule", "add", "pool", "hourly", "--every", "1h", "--keep", "24h,30d"];
    fixture.run(keep).succeeded();
    let rules = documents(&fixture.run(["snapshot", "rule", "list", "--json", "pool"]).succeeded());
    let shown: Vec<_> = rules.iter().map(|rule| (rule["name"].as_str(), rule["keep"].as_str())).collect();
    assert_eq!(shown, [(Some("hourly"), Some("24h,30d")), (Some("often"), Some("all"))]);
    fixture.run(["snapshot", "rule", "remove", "pool", "often", "hourly"]).succeeded();
    fixture.run(["snapshot", "rule", "remove", "pool", "often"]).failed(1);
    next_second();
    assert_eq!(tick(), "", "the snapshots of a removed rule stay");
    assert_eq!(names(&fixture, "pool").len(), 2);
    let simulated =
        fixture.run(["snapshot", "rule", "simulate", "--every", "1h", "--keep", "24h,30d", "400d"]);
    let lines = simulated.succeeded().lines().count();
    assert!((53..=54).contains(&lines), "{lines}");
    fixture.run(["snapshot", "rule", "add", "pool", "@x", "--every", "1h"]).failed(2);
}

#[test]
fn the_server_of_a_mounted_pool_holds_snapshots_and_applies_rules() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    let add = ["snapshot", "rule", "add", "pool", "minutes", "--every", "1m", "--keep", "8q"];
    fixture.run(add).succeeded();
    fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture.run(["mount", "pool", "mnt"]).succeeded();
    let mounted = MountedFixture(fixture);
    let fixture = &mounted.0;
    // The server looks at the rules when it begins, on a thread of its own.
    let made = (0..100).find_map(|_| {
        let made = names(fixture, "mnt");
        if made.is_empty() {
            std::thread::park_timeout(std::time::Duration::from_millis(50));
        }
        Some(made).filter(|made| !made.is_empty())
    });
    let made = made.unwrap_or_default();
    assert!(made.len() == 1 && made[0].starts_with("minutes-20"), "{made:?}");
    fixture.run(["snapshot", "hold", "mnt", &made[0], "backup"]).succeeded();
    fixture.run(["snapshot", "delete", "mnt", &made[0]]).failed(1);
    let explained = fixture.run(["snapshot", "rule", "explain", "mnt"]).succeeded();
    assert!(explained.contains("held"), "{explained}");
    fixture.run(["snapshot", "tick", "mnt"]).succeeded();
    fixture.run(["snapshot", "release", "mnt", &made[0], "backup"]).succeeded();
    fixture.run(["snapshot", "rule", "remove", "mnt", "minutes"]).succeeded();
    assert_eq!(
        fixture.run(["snapshot", "rule", "list", "mnt"]).succeeded(),
        "the pool has no rules for snapshots\n"
    );
    fixture.run(["snapshot", "delete", "mnt", &made[0]]).succeeded();
}
