//! What people see besides answers: help, versions, zones, owners, and what happens inside.

use std::process::Stdio;

use crate::fixture::{Fixture, documents};

#[test]
fn help_begins_with_what_warpfire_is_and_has_topics_and_commands() {
    let fixture = Fixture::empty();
    let help = fixture.run(["help"]).succeeded();
    assert!(help.starts_with("Warpfire is a filesystem for flash."), "{help}");
    for listed in ["  man ", "  completions ", "  version ", "warpfire help topics"] {
        assert!(help.contains(listed), "{listed}: {help}");
    }
    let topics = fixture.run(["help", "topics"]).succeeded();
    assert_eq!(topics.lines().count(), 9, "{topics}");
    for line in topics.lines() {
        let name = line.split_whitespace().next().expect("a name");
        let page = fixture.run(["help", name]).succeeded();
        assert!(page.lines().count() > 8, "{name}: {page}");
    }
    assert!(fixture.run(["help", "tx", "run"]).succeeded().contains("--durable"));
    assert!(!fixture.run(["scrub", "--help"]).succeeded().contains("[default: \"\"]"));
    let said = fixture.run(["help", "absent"]).failed(2);
    assert!(said.contains("there is no command or topic 'absent'; 'warpfire help' lists"), "{said}");
}

#[test]
fn the_version_names_the_format() {
    let fixture = Fixture::empty();
    let said = fixture.run(["version"]).succeeded();
    assert!(said.starts_with("warpfire 0.") && said.contains("\nformat  "), "{said}");
    let version = documents(&fixture.run(["version", "--json"]).succeeded()).remove(0);
    assert_eq!(version["format"], warpfire::FORMAT_VERSION);
}

#[test]
fn times_are_local_unless_utc_is_asked_for() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let run = |zone: &str, words: &str| {
        let mut command = fixture.command(words.split(' '));
        let ran = command.env("TZ", zone).output().expect("the binary runs");
        assert!(ran.status.success(), "{words}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("text")
    };
    // A zone in the form of POSIX needs no files: 3 hours before UTC.
    let west = "WST3";
    run(west, "touch -d 2026-11-20T08:29:31 pool:/f");
    assert!(run(west, "ls -l pool").contains(" 2026-11-20 08:29:31 f\n"));
    assert!(run(west, "ls -l --utc pool").contains(" 2026-11-20 11:29:31 f\n"));
    assert!(run("UTC0", "ls -l pool").contains(" 2026-11-20 11:29:31 f\n"));
    assert!(run(west, "stat pool:/f").contains("modified  2026-11-20 08:29:31.000000000 -03:00\n"));
    assert!(run(west, "stat --json pool:/f").contains("\"modified\":\"2026-11-20T11:29:31.000000000Z\""));
    run(west, "touch --utc -d 2026-11-20 pool:/f");
    assert!(run(west, "ls -l pool").contains(" 2026-11-19 21:00:00 f\n"));
    assert_eq!(run(west, "find pool:/f --older-than 2026-11-19T21:00:01"), "pool:/f\n");
    assert_eq!(run(west, "find pool:/f --older-than 2026-11-19T21:00:00"), "");
}

#[test]
fn owners_have_names_unless_numbers_are_asked_for() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.run(["touch", "pool:/f"]).succeeded();
    fixture.run(["chown", "0:3999999999", "pool:/f"]).succeeded();
    let long = fixture.run(["ls", "-l", "pool"]).succeeded();
    assert!(long.contains(" root     3999999999 "), "{long}");
    let long = fixture.run(["ls", "-n", "pool"]).succeeded();
    assert!(long.contains(" 0        3999999999 "), "{long}");
    assert!(fixture.run(["stat", "pool:/f"]).succeeded().contains("owner root (0), group 3999999999\n"));
}

#[test]
fn verbosity_says_on_stderr_what_happens() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let ran = fixture.run(["-v", "ls", "pool"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert!(
        ran.stderr.starts_with("warpfire: ") && ran.stderr.contains("filesystem opened"),
        "{}",
        ran.stderr
    );
    assert_eq!(fixture.run(["ls", "pool"]).stderr, "");
    let ran = fixture.run(["-v", "--json", "ls", "pool"]);
    assert!(documents(&ran.stderr).iter().all(|document| document["note"]["message"].is_string()));
}

#[test]
fn a_closed_pipe_is_no_failure_of_any_verb() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("large", vec![b'x'; 8 << 20]);
    fixture.run(["cp", "large", "pool:/"]).succeeded();
    for words in [
        "ls pool",
        "ls -l pool",
        "ls --json pool",
        "find pool",
        "find --print0 pool",
        "du -a pool",
        "df pool",
        "stat pool:/large",
        "cat pool:/large",
        "cat --json pool:/large",
        "slice cat pool:/large",
        "status pool",
        "status --json pool",
        "fsck pool",
        "scrub pool",
        "inspect label pool",
        "help",
        "help topics",
        "version",
        "completions bash",
        "--help",
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = fixture.command(words.split(' '));
        let ran = command.stdout(writer).stderr(Stdio::piped()).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!((ran.status.code(), said.as_str()), (Some(0), ""), "{words}");
    }
}

#[test]
fn a_full_disk_behind_stdout_is_one_sentence() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.run(["touch", "pool:/f"]).succeeded();
    for words in [
        "ls pool",
        "ls --json pool",
        "find pool",
        "du pool",
        "df pool",
        "stat pool:/f",
        "status pool",
        "version",
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
        let mut command = fixture.command(words.split(' '));
        let ran = command.stdout(full).stderr(Stdio::piped()).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(1), "{words}: {said}");
        assert_eq!(said.lines().count(), 1, "{words}: {said}");
        assert!(said.contains("cannot write the answer: No space left on device"), "{words}: {said}");
    }
}

#[test]
fn ten_thousand_arguments_of_find_and_xargs_are_removed() {
    const FILES: usize = 10_000;
    let fixture = Fixture::pool(1, 1, 0, 64);
    let pool = warpfire::Pool::options().open([fixture.path("pool/0.img")]).expect("opened");
    pool.create_dir("/d").expect("made");
    for number in 0..FILES {
        pool.write(format!("/d/line\nbreak {number}"), b"").expect("written");
    }
    pool.close().expect("closed");
    let warpfire = env!("CARGO_BIN_EXE_warpfire");
    // xargs starts its first command while names are still in the pipe.
    let script = format!("{warpfire} find pool:/d --type file --print0 | xargs -0 -n 2000 {warpfire} rm");
    let mut shell = std::process::Command::new("sh");
    let ran = shell.args(["-c", &script]).current_dir(fixture.path("")).output().expect("sh runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(fixture.run(["find", "pool:/d"]).succeeded(), "pool:/d\n");
}

#[test]
fn mkfs_warns_of_little_space_and_of_images_larger_than_their_disk() {
    let fixture = Fixture::empty();
    let ran = fixture.run(["mkfs", "--size", "16M", "small.img"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains(" % of the space is left for files"), "{}", ran.stderr);
    assert!(ran.stdout.contains(" made: "), "{}", ran.stdout);
    let ran = fixture.run(["mkfs", "--size", "256M", "usual.img"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let ran = fixture.run(["mkfs", "--size", "8T", "large.img"]);
    assert!(ran.stderr.contains("the new image files take 8 TiB when they are full"), "{}", ran.stderr);
}
