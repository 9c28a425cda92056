//! `warpfire send` and `warpfire receive`: through pipes and files, mounted and not.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use crate::fixture::{CommandResult, Fixture, bytes, documents, tree};
use crate::mounted::{MountedFixture, can_mount};

/// Writes a stream to a file of the fixture.
fn send(fixture: &Fixture, words: &str, file: &str) -> CommandResult {
    let out = fs::File::create(fixture.path(file)).expect("made");
    let mut command = fixture.command(words.split(' '));
    CommandResult::from(command.stdout(out).output().expect("it runs"))
}

/// Runs a command with these bytes on stdin.
fn fed(fixture: &Fixture, words: &str, stream: &[u8]) -> CommandResult {
    let mut command = fixture.command(words.split(' '));
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it runs");
    // A receiver that refuses stops reading.
    let _ = child.stdin.take().expect("a pipe").write_all(stream);
    CommandResult::from(child.wait_with_output().expect("it ends"))
}

/// A pool with a snapshot of two files, and a second pool.
fn pair() -> Fixture {
    let fixture = Fixture::pool(1, 1, 0, 96);
    fs::create_dir(fixture.path("backup")).expect("made");
    fixture.run(["mkfs", "--size=96M", "backup/0.img"]).succeeded();
    fixture.local("tree/small", b"then");
    fixture.local("tree/deep/large", bytes(1, 20 << 20));
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "monday"]).succeeded();
    fixture
}

#[test]
fn a_snapshot_and_the_changes_since_it_arrive_through_files() {
    let fixture = pair();
    let sent = send(&fixture, "send pool monday", "full.stream");
    let hash = sent.stderr.rsplit(' ').next().expect("a hash").trim().to_owned();
    assert_eq!((sent.code, hash.len()), (0, 64), "{}", sent.stderr);
    let full = fs::read(fixture.path("full.stream")).expect("written");
    let said = fed(&fixture, "receive backup:/copy", &full).succeeded();
    assert!(said.starts_with("received 20 MiB of files in ") && said.contains(&hash), "{said}");
    assert!(said.contains("snapshot monday keeps /copy"), "{said}");

    fixture.local("tree/small", b"now");
    fixture.run(["cp", "tree/small", "pool:/tree/small"]).succeeded();
    fixture.run(["mv", "pool:/tree/deep", "pool:/deep"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "tuesday"]).succeeded();
    let sent = send(&fixture, "send --json pool tuesday --since monday", "changes.stream");
    let document = documents(&sent.stderr).pop().expect("one document");
    assert!(document["stream_bytes"].as_u64().expect("a number") < 10_000, "{document}");
    let changes = fs::read(fixture.path("changes.stream")).expect("written");
    let received = documents(&fed(&fixture, "receive --json backup:/copy", &changes).succeeded());
    assert_eq!(received[0]["hash"], document["hash"]);
    assert_eq!(received[0]["snapshot"], "tuesday");
    for (pool, to) in [("pool:/", "a"), ("backup:/copy", "b")] {
        fs::create_dir(fixture.path(to)).expect("made");
        fixture.run(["cp", "-r", &format!("{}/deep", pool.trim_end_matches('/')), to]).succeeded();
        fixture.run(["cp", "-r", &format!("{}/tree", pool.trim_end_matches('/')), to]).succeeded();
    }
    assert_eq!(tree(&fixture.path("a")), tree(&fixture.path("b")));
    assert_eq!(fixture.run(["ls", "backup:/"]).succeeded(), "copy\n");
    fixture.run(["fsck", "backup"]).succeeded();

    let again = fed(&fixture, "receive backup:/copy", &changes).failed(1);
    assert_eq!(
        again.lines().next().expect("a line"),
        "warpfire: /copy: the directory shows the snapshot 'tuesday' already; there is nothing to do"
    );
    let below = send(&fixture, "send pool tuesday --below /deep", "below.stream");
    assert_eq!(below.code, 0, "{}", below.stderr);
    let below = fs::read(fixture.path("below.stream")).expect("written");
    fed(&fixture, "receive backup:/only", &below).succeeded();
    assert_eq!(fixture.run(["ls", "backup:/only"]).succeeded(), "large\n");
}

#[test]
fn a_stream_that_was_cut_goes_on_from_its_token() {
    let fixture = pair();
    let none = fixture.run(["receive", "--token", "backup:/copy"]).failed(1);
    assert!(none.contains("/copy: no stream is received in part"), "{none}");
    let sent = send(&fixture, "send pool monday", "full.stream");
    let full = fs::read(fixture.path("full.stream")).expect("written");
    let cut = fed(&fixture, "receive backup:/copy", &full[..full.len() / 2 + 100_000]).failed(1);
    assert!(cut.contains("the stream was cut after") && cut.contains("receive --token"), "{cut}");
    let token = fixture.run(["receive", "--token", "backup:/copy"]).succeeded();
    let begun = fed(&fixture, "receive backup:/copy", &full).failed(1);
    assert!(begun.contains("this stream is received in part already"), "{begun}");
    let rest = send(&fixture, &format!("send pool --resume {}", token.trim()), "rest.stream");
    assert_eq!(rest.code, 0, "{}", rest.stderr);
    let rest = fs::read(fixture.path("rest.stream")).expect("written");
    assert!(rest.len() < full.len() * 2 / 3, "{} of {}", rest.len(), full.len());
    let said = fed(&fixture, "receive --snapshot kept backup:/copy", &rest).succeeded();
    assert!(said.contains("snapshot kept keeps /copy"), "{said}");
    let hash = sent.stderr.rsplit(' ').next().expect("a hash").trim();
    assert!(said.contains(hash), "the same hash: {said}");
    let cut = fed(&fixture, "receive backup:/other", &full[..full.len() / 2 + 100_000]);
    assert_eq!(cut.code, 1);
    let dropped = fixture.run(["receive", "--abort", "backup:/other"]).succeeded();
    assert_eq!(dropped, "the part for /other is dropped\n");
    let dropped = documents(&fixture.run(["receive", "--json", "--abort", "backup:/other"]).succeeded());
    assert_eq!(dropped[0]["dropped"], false);
}

#[test]
fn what_cannot_be_sent_or_received_is_refused_with_its_reason() {
    let fixture = pair();
    let refused = |words: &str, stream: &[u8]| {
        let said = fed(&fixture, words, stream);
        assert_ne!(said.code, 0, "{words}");
        said.stderr.lines().next().expect("a line").to_owned()
    };
    for (words, stream, wanted) in [
        (
            "send pool tuesday",
            &b""[..],
            "warpfire: the pool has no snapshot tuesday; 'warpfire snapshot list' shows them, and 'warpfire snapshot create' makes one",
        ),
        (
            "send pool monday --since monday",
            b"",
            "warpfire: the changes are those since an older snapshot; 'warpfire snapshot list' shows the snapshots in their order",
        ),
        (
            "send pool monday --below /no",
            b"",
            "warpfire: the snapshot has no directory /no; the path begins at the root of the pool",
        ),
        (
            "send pool monday --below /tree/small",
            b"",
            "warpfire: /tree/small is no directory of both snapshots; --below takes a directory, and not a link to one",
        ),
        (
            "send pool --resume 12345",
            b"",
            "warpfire: this is no token of 'warpfire receive --token'; copy all of its digits",
        ),
        (
            "receive backup:/x",
            b"hello, this is no stream",
            "warpfire: /x: this is no stream of 'warpfire send'; pipe in what 'warpfire send' writes, from its beginning",
        ),
        ("receive --snapshot a/b backup:/x", b"", "warpfire: /x: "),
    ] {
        let said = refused(words, stream);
        assert!(said.starts_with(wanted), "{words}: {said}");
    }
}

#[test]
fn changes_since_a_deleted_snapshot_are_sent_by_its_bookmark() {
    let fixture = pair();
    send(&fixture, "send pool monday", "full.stream");
    let full = fs::read(fixture.path("full.stream")).expect("written");
    fed(&fixture, "receive backup:/copy", &full).succeeded();
    let said = fixture.run(["snapshot", "bookmark", "pool", "monday", "sent"]).succeeded();
    assert_eq!(said, "bookmark sent of snapshot monday is made\n");
    for (words, wanted) in [
        ("snapshot bookmark pool monday monday", "the pool has a snapshot or bookmark monday already; "),
        ("snapshot create pool sent", "the pool has a snapshot or bookmark sent already; "),
        ("snapshot bookmark pool friday late", "the pool has no snapshot friday; "),
        ("snapshot bookmark pool monday @late", "@late is no name for a snapshot; "),
        ("snapshot diff pool sent", "the pool has no snapshot sent; "),
    ] {
        let refused = fixture.run(words.split(' '));
        assert!(refused.code != 0 && refused.stderr.contains(wanted), "{words}: {}", refused.stderr);
    }
    fixture.run(["snapshot", "delete", "pool", "monday"]).succeeded();
    let listed = fixture.run(["snapshot", "list", "pool"]).succeeded();
    assert!(listed.starts_with("the pool has no snapshots\n\nbookmark  ") && listed.contains("\nsent "));
    let document = documents(&fixture.run(["snapshot", "list", "--json", "pool"]).succeeded()).remove(0);
    assert_eq!((&document["bookmark"], &document["snapshot"]), (&"sent".into(), &"monday".into()));

    fixture.run(["rm", "-r", "pool:/tree/deep"]).succeeded();
    fixture.run(["mv", "pool:/tree/small", "pool:/tree/other"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "tuesday"]).succeeded();
    let sent = send(&fixture, "send pool sent --since tuesday", "none.stream");
    let hint = "that is a bookmark: it has no files, and only --since takes one";
    assert!(sent.stderr.contains(hint), "{}", sent.stderr);
    let sent = send(&fixture, "send --json pool tuesday --since sent", "changes.stream");
    let document = documents(&sent.stderr).pop().expect("one document");
    assert!(document["stream_bytes"].as_u64().expect("a number") < 10_000, "{document}");
    let changes = fs::read(fixture.path("changes.stream")).expect("written");
    fed(&fixture, "receive backup:/copy", &changes).succeeded();
    assert_eq!(fixture.run(["ls", "backup:/copy/tree"]).succeeded(), "other\n");
    assert_eq!(fixture.run(["cat", "backup:/copy/tree/other"]).succeeded(), "then");
    for pool in ["pool", "backup"] {
        fixture.run(["fsck", pool]).succeeded();
    }
    let dump = fixture.run(["inspect", "map", "pool"]);
    assert!(dump.code != 0 || dump.stdout.contains("monday"), "{}", dump.stdout);

    let would = fixture.run(["snapshot", "delete", "--dry-run", "pool", "sent", "tuesday"]).succeeded();
    assert_eq!(
        would,
        "snapshot tuesday would be deleted\nbookmark sent would be deleted\ndeleting 1 snapshot would free 0 B\n"
    );
    let refused = fixture.run(["snapshot", "delete", "pool", "sent", "no"]).failed(1);
    assert!(refused.contains("the pool has no snapshot no"), "{refused}");
    let deleted = fixture.run(["snapshot", "delete", "pool", "sent"]).succeeded();
    assert_eq!(deleted, "bookmark sent is deleted\n");
    let missing = send(&fixture, "send pool tuesday --since sent", "none.stream");
    assert!(missing.stderr.contains("the pool has no snapshot or bookmark sent; "), "{}", missing.stderr);
}

/// A stream since a snapshot has other records than one since its bookmark.
#[test]
fn a_cut_stream_goes_on_by_the_base_that_it_was_begun_with() {
    let fixture = pair();
    send(&fixture, "send pool monday", "full.stream");
    fed(&fixture, "receive backup:/copy", &fs::read(fixture.path("full.stream")).expect("written"))
        .succeeded();
    fixture.local("tree/deep/large", bytes(9, 20 << 20));
    fixture.run(["cp", "tree/deep/large", "pool:/tree/deep/large"]).succeeded();
    fixture.run(["snapshot", "bookmark", "pool", "monday", "sent"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "tuesday"]).succeeded();
    for (since, goes) in [("monday", "sent"), ("sent", "monday")] {
        send(&fixture, &format!("send pool tuesday --since {since}"), "changes.stream");
        let changes = fs::read(fixture.path("changes.stream")).expect("written");
        fed(&fixture, "receive backup:/copy", &changes[..changes.len() - 1000]).failed(1);
        let token = fixture.run(["receive", "--token", "backup:/copy"]).succeeded();
        let resume = format!("send pool --resume {}", token.trim());
        if since == "sent" {
            fixture.run(["snapshot", "delete", "pool", goes]).succeeded();
            assert_eq!(send(&fixture, &resume, "rest.stream").code, 0, "the bookmark is enough");
            let rest = fs::read(fixture.path("rest.stream")).expect("written");
            fed(&fixture, "receive backup:/copy", &rest).succeeded();
            assert_eq!(fixture.run(["cat", "backup:/copy/tree/small"]).succeeded(), "then");
        } else {
            fixture.run(["receive", "--abort", "backup:/copy"]).succeeded();
        }
    }
    let (before, after) = (fixture.path("a"), fixture.path("b"));
    fixture.run(["cp", "-r", "pool:/tree", "a"]).succeeded();
    fixture.run(["cp", "-r", "backup:/copy/tree", "b"]).succeeded();
    assert_eq!(tree(&before), tree(&after));
}

#[test]
fn the_server_of_a_mounted_pool_makes_bookmarks_and_sends_since_them() {
    if !can_mount() {
        return;
    }
    let mounted = MountedFixture::new();
    let fixture = &mounted.0;
    let mount = fixture.path("mnt");
    fs::create_dir(mount.join("d")).expect("made");
    fs::write(mount.join("d/file"), b"then").expect("written");
    fixture.run(["snapshot", "create", "mnt", "one"]).succeeded();
    send(fixture, "send mnt one --below /d", "one.stream");
    let one = fs::read(fixture.path("one.stream")).expect("written");
    fed(fixture, "receive mnt:/copy", &one).succeeded();
    fixture.run(["snapshot", "bookmark", "mnt", "one", "mark"]).succeeded();
    fixture.run(["snapshot", "delete", "mnt", "one"]).succeeded();
    fs::rename(mount.join("d/file"), mount.join("d/moved")).expect("renamed");
    fs::write(mount.join("d/file"), b"now").expect("written");
    fixture.run(["snapshot", "create", "mnt", "two"]).succeeded();
    let listed = documents(&fixture.run(["snapshot", "list", "--json", "mnt"]).succeeded());
    assert!(listed.iter().any(|one| one["bookmark"] == "mark"), "{listed:?}");
    let sent = send(fixture, "send mnt two --since mark --below /d", "two.stream");
    assert_eq!(sent.code, 0, "{}", sent.stderr);
    let two = fs::read(fixture.path("two.stream")).expect("written");
    fed(fixture, "receive mnt:/copy", &two).succeeded();
    assert_eq!(fs::read(mount.join("copy/moved")).expect("readable"), b"then");
    assert_eq!(fs::read(mount.join("copy/file")).expect("readable"), b"now");
    let deleted = fixture.run(["snapshot", "delete", "mnt", "mark"]).succeeded();
    assert_eq!(deleted, "bookmark mark is deleted\n");
}

#[test]
fn streams_flow_from_and_into_mounted_pools() {
    if !can_mount() {
        return;
    }
    let mounted = MountedFixture::new();
    let fixture = &mounted.0;
    let (mount, name) = (fixture.path("mnt"), "mnt");
    fs::create_dir(mount.join("d")).expect("made");
    fs::write(mount.join("d/file"), bytes(5, 3 << 20)).expect("written");
    fixture.run(["snapshot", "create", name, "one"]).succeeded();
    let sent = send(fixture, &format!("send {name} one --below /d"), "one.stream");
    assert_eq!(sent.code, 0, "{}", sent.stderr);
    let one = fs::read(fixture.path("one.stream")).expect("written");
    // The kernel has cached that the name is not there.
    assert!(!mount.join("copy").exists());
    fed(fixture, &format!("receive {name}:/copy"), &one).succeeded();
    assert_eq!(fs::read(mount.join("copy/file")).expect("readable"), bytes(5, 3 << 20));

    fs::write(mount.join("d/file"), b"short").expect("written");
    fs::write(mount.join("d/more"), b"more").expect("written");
    fixture.run(["snapshot", "create", name, "two"]).succeeded();
    let sent = send(fixture, &format!("send {name} two --since one --below /d"), "two.stream");
    assert_eq!(sent.code, 0, "{}", sent.stderr);
    let two = fs::read(fixture.path("two.stream")).expect("written");
    fed(fixture, &format!("receive {name}:/copy"), &two).succeeded();
    assert_eq!(fs::read(mount.join("copy/file")).expect("readable"), b"short");
    assert_eq!(fs::read(mount.join("copy/more")).expect("readable"), b"more");
    let names: Vec<_> =
        fs::read_dir(&mount).expect("listed").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(names.len(), 2, "no spool is listed: {names:?}");
    assert!(!mount.join(".receive").exists());

    fs::write(mount.join("copy/mine"), b"mine").expect("written");
    fixture.run(["snapshot", "create", name, "three"]).succeeded();
    send(fixture, &format!("send {name} three --since two --below /d"), "three.stream");
    let three = fs::read(fixture.path("three.stream")).expect("written");
    let refused = fed(fixture, &format!("receive {name}:/copy"), &three).failed(1);
    assert!(refused.contains("the directory has changed since it was received: /copy/mine"), "{refused}");
    let missing = send(fixture, &format!("send {name} no"), "no.stream");
    assert!(missing.stderr.contains("the pool has no snapshot no"), "{}", missing.stderr);
}

#[test]
fn a_stream_without_a_byte_has_not_arrived() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let mut receive = fixture.command(["receive", "pool:/new"]);
    let ended = receive.stdin(std::process::Stdio::null()).output().expect("the binary runs");
    let said = CommandResult::from(ended).failed(1);
    assert!(said.contains("/new: nothing has arrived on stdin; "), "{said}");
}
