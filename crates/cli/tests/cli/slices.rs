//! Files rearranged by pointers, in a pool and on a mounted one.

use serde_json::Value;

use crate::fixture::{Fixture, bytes};
use crate::mounted::{MountedFixture, can_mount};

/// Runs all commands on the files `PLACE/a` and `PLACE/b`; `read` returns the bytes of a file.
fn rearrange(fixture: &Fixture, place: &str, read: &dyn Fn(&str) -> Vec<u8>) {
    let at = |name: &str| format!("{place}{name}");
    let slice = |words: &[&str]| fixture.run(std::iter::once("slice").chain(words.iter().copied()));
    let (a, b) = (read("a"), read("b"));

    let [a_at, b_at, joined, cut] = ["a", "b", "joined", "cut"].map(at);
    let answer = slice(&["concat", &a_at, &b_at, &a_at, &joined, "--json"]).succeeded();
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let mut expected = [&a[..], &b, &a].concat();
    assert_eq!((&answer["parts"], &answer["bytes"]), (&3.into(), &expected.len().into()));
    assert!(read("joined") == expected);

    slice(&["cut", "--from", "1001", "--len", "250007", &joined, &cut]).succeeded();
    let taken: Vec<u8> = expected.drain(1001..251_008).collect();
    assert!(read("joined") == expected && read("cut") == taken);

    slice(&["paste", "--from", "7", "--len", "99", "--insert", "12345", &cut, &joined]).succeeded();
    expected.splice(12_345..12_345, taken[7..106].to_vec());
    slice(&["paste", "--over", "3", &cut, &joined]).succeeded();
    expected.splice(3..3 + taken.len(), taken.iter().copied());
    slice(&["paste", "--from", "250000", &cut, &joined]).succeeded();
    expected.extend_from_slice(&taken[250_000..]);
    slice(&["paste", "--len", "10", "--insert", "5", &joined, &joined]).succeeded();
    expected.splice(5..5, expected[..10].to_vec());
    assert!(read("joined") == expected);

    slice(&["shuffle", "--size", "1000", "--seed", "3", &cut, &at("mixed")]).succeeded();
    slice(&["shuffle", "--size", "1000", "--seed", "3", &cut, &cut]).succeeded();
    let mixed = read("mixed");
    assert!(mixed == read("cut") && mixed != taken);
    let sorted = |bytes: &[u8]| {
        let mut parts: Vec<Vec<u8>> = bytes.chunks(1).map(<[u8]>::to_vec).collect();
        parts.sort();
        parts
    };
    assert!(sorted(&mixed) == sorted(&taken), "every byte once");
    let printed = fixture.command(["slice", "cat", "--from", "50", "--len", "60", &at("mixed")]).output();
    assert!(printed.expect("it runs").stdout == mixed[50..110]);
}

#[test]
fn files_of_a_pool_are_rearranged_by_pointers() {
    let fixture = Fixture::pool(3, 2, 1, 64);
    fixture.local("a", bytes(1, 300_000));
    fixture.local("b", bytes(2, 77));
    fixture.run(["cp", "a", "b", "pool:/"]).succeeded();
    let read =
        |name: &str| fixture.command(["cat", &format!("pool:/{name}")]).output().expect("it runs").stdout;
    rearrange(&fixture, "pool:/", &read);
    fixture.run(["fsck", "pool"]).succeeded();
}

#[test]
fn files_on_a_mounted_pool_are_rearranged_by_pointers() {
    if !can_mount() {
        return;
    }
    // By local paths, and by the name of the pool through its mount.
    for place in ["mnt/", "pool:/"] {
        let pool = MountedFixture::new();
        std::fs::write(pool.0.path("mnt/a"), bytes(1, 300_000)).expect("written");
        std::fs::write(pool.0.path("mnt/b"), bytes(2, 77)).expect("written");
        let read = |name: &str| std::fs::read(pool.0.path("mnt").join(name)).expect("readable");
        rearrange(&pool.0, place, &read);
        let outside = pool.0.local("outside", bytes(3, 10));
        std::os::unix::fs::symlink(&outside, pool.0.path("mnt/link")).expect("made");
        pool.0.run(["slice", "concat", "pool:/a", "pool:/link"]).failed(1);
        assert_eq!(std::fs::read(&outside).expect("untouched"), bytes(3, 10));
        pool.0.run(["umount", "mnt"]).succeeded();
        pool.0.run(["fsck", "pool"]).succeeded();
    }
}

#[test]
fn each_slice_command_on_a_mounted_pool_is_one_transaction() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    std::fs::write(pool.0.path("mnt/a"), bytes(1, 300_000)).expect("written");
    std::fs::write(pool.0.path("mnt/b"), bytes(2, 77)).expect("written");
    let commits = || {
        let status = pool.0.run(["status", "mnt", "--json"]).succeeded();
        let status: Value = serde_json::from_str(&status).expect("JSON");
        status["transactions"]["commits"].as_u64().expect("a number")
    };
    let before = commits();
    let commands = [
        "slice concat mnt/a mnt/b mnt/a mnt/joined",
        "slice cut --from 10 --len 1000 mnt/joined mnt/cut",
        "slice paste --len 5 --insert 0 mnt/cut mnt/joined",
        "slice shuffle --size 1000 mnt/a mnt/mixed",
    ];
    for (number, command) in commands.into_iter().enumerate() {
        pool.0.run(command.split(' ')).succeeded();
        assert_eq!(commits(), before + number as u64 + 1, "{command}");
    }
    // A command that fails changes nothing, also not in part.
    let joined = std::fs::metadata(pool.0.path("mnt/joined")).expect("there").len();
    pool.0.run(["slice", "concat", "mnt/a", "mnt/missing", "mnt/joined"]).failed(1);
    pool.0.run(["slice", "paste", "--insert", "99999999", "mnt/a", "mnt/new"]).failed(1);
    assert_eq!(std::fs::metadata(pool.0.path("mnt/joined")).expect("there").len(), joined);
    assert!(!pool.0.path("mnt/new").exists(), "the target of a failed paste was made");
    let said = pool.0.run(["slice", "concat", "mnt/a", "pool/0.img", "mnt/x"]).failed(1);
    assert!(said.contains("different mounts"), "{said}");
    // Inside of a transaction the command is a part of it.
    let words =
        ["tx", "run", "--in", "mnt", "--", env!("CARGO_BIN_EXE_warpfire"), "slice", "cut", "--len", "7"];
    let before = commits();
    let mnt = pool.0.path("mnt/cut").display().to_string();
    pool.0.run(words.iter().copied().chain([mnt.as_str()])).succeeded();
    assert_eq!(commits(), before + 1);
    assert_eq!(std::fs::metadata(&mnt).expect("there").len(), 993);
}

#[test]
fn an_impossible_slice_call_is_refused_and_changes_nothing() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("a", b"ten bytes.");
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    let said = fixture.run(["slice", "concat", "a", "pool:/b"]).failed(2);
    assert!(said.contains("not all in one pool"), "{said}");
    let said = fixture.run(["slice", "cut", "--len", "3", "pool:/a", "pool:/a"]).failed(2);
    assert!(said.contains("another file"), "{said}");
    let said = fixture.run(["slice", "paste", "--insert", "11", "pool:/a", "pool:/a"]).failed(1);
    assert!(said.contains("/a"), "{said}");
    fixture.run(["slice", "paste", "--over", "9223372036854775800", "pool:/a", "pool:/a"]).failed(1);
    fixture.run(["slice", "shuffle", "--size", "0", "pool:/a", "pool:/b"]).failed(2);
    fixture.run(["slice", "concat", "pool:/missing", "pool:/b"]).failed(1);
    assert_eq!(fixture.run(["cat", "pool:/a"]).succeeded(), "ten bytes.");
    fixture.run(["slice", "cut", "--from", "100", "pool:/a"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/a"]).succeeded(), "ten bytes.", "past the end there is nothing");
}
