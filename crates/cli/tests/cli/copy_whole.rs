//! Copies that are whole: nothing half is left by a full pool or disk, damage, a signal or a kill.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use warpfire_test_needs::{Need, skip};

use crate::fixture::{CommandResult, Fixture, bytes, tree};

const BLOCK: usize = 4096;

/// Overwrites these blocks of `content` wherever the image has them. Each block is at one place only.
pub fn damage(fixture: &Fixture, image: &str, content: &[u8], blocks: &[usize]) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(fixture.path(image)).expect("opened");
    let all = std::fs::read(fixture.path(image)).expect("an image is read");
    for &block in blocks {
        let wanted = &content[block * BLOCK..(block + 1) * BLOCK];
        let at = all.chunks(BLOCK).position(|found| found == wanted).expect("the block is in the image");
        file.write_all_at(&[0xee; BLOCK], (at * BLOCK) as u64).expect("damaged");
    }
}

/// Everything in a directory but the directory itself, hidden names too.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory is read");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("read").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The moments of the tests that kill; more by WARPFIRE_COPY_MOMENTS.
pub fn moments() -> u64 {
    std::env::var("WARPFIRE_COPY_MOMENTS").ok().and_then(|count| count.parse().ok()).unwrap_or(6)
}

/// Starts a copy and sends a signal after a while that depends on the moment. Returns its exit code.
pub fn signalled(fixture: &Fixture, words: &[&str], moment: u64, signal: Signal) -> Option<i32> {
    let mut child = fixture.command(words).stderr(Stdio::null()).spawn().expect("the binary runs");
    let spread = u64::from(bytes(moment + 1, 2)[1]) * 700;
    std::thread::park_timeout(Duration::from_micros(spread));
    kill_process(Pid::from_child(&child), signal).expect("it has not been waited for");
    child.wait().expect("it ends").code()
}

/// A tree whose files all have other bytes, short and long.
pub fn make_tree(fixture: &Fixture, name: &str, seed: u64) {
    for number in 0..60 {
        let len = if number % 10 == 0 { 3 << 20 } else { 7000 * number };
        let path = format!("{name}/{}/{number}", number % 3);
        fixture.local(&path, bytes(seed + number as u64, len));
    }
}

/// Whether each file of a copy is a whole file of its source.
pub fn assert_whole(source: &Path, copy: &Path) {
    let whole: std::collections::HashMap<_, _> =
        tree(source).into_iter().map(|(path, _, content)| (path, content)).collect();
    for (path, _, content) in tree(copy) {
        assert!(whole.get(&path).is_some_and(|wanted| *wanted == content), "{} is half", path.display());
    }
}

#[test]
fn a_damaged_file_is_not_copied_and_the_failure_names_its_lost_bytes() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    let content = bytes(1, 5 << 20);
    fixture.local("tree/big", &content);
    fixture.local("tree/good", "good");
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    damage(&fixture, "pool/0.img", &content, &[700]);
    let said = fixture.run(["cp", "pool:/tree/big", "back"]).failed(1);
    assert!(said.contains("/tree/big: damaged: bytes 2867200..2871296 (4096 bytes)"), "{said}");
    assert!(said.contains("--salvage"), "{said}");
    assert!(!fixture.path("back").exists());
    std::fs::create_dir(fixture.path("dest")).expect("made");
    fixture.run(["cp", "-r", "pool:/tree", "dest"]).failed(1);
    assert_eq!(names(&fixture.path("dest/tree")), ["good"]);
    // The file that was there before stays.
    fixture.local("dest/tree/big", "before");
    fixture.run(["cp", "pool:/tree/big", "dest/tree/big"]).failed(1);
    assert_eq!(std::fs::read(fixture.path("dest/tree/big")).expect("there"), b"before");
}

#[test]
fn salvage_copies_every_block_that_verifies_and_lists_the_others() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    let content = bytes(1, (5 << 20) + 100);
    fixture.local("big", &content);
    fixture.run(["cp", "big", "pool:/"]).succeeded();
    let lost = [0, 1, 255, 256, 700, 702, 1023, 1279];
    damage(&fixture, "pool/0.img", &content, &lost);
    let ran = fixture.run(["--json", "cp", "--salvage", "pool:/big", "back"]);
    let said = ran.stdout.clone();
    let lines = ran.failed(1);
    let ranges = [(0, 2), (255, 257), (700, 701), (702, 703), (1023, 1024), (1279, 1280)];
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["damaged"][0]["path"], "/big");
    let missing = report["damaged"][0]["missing"].as_array().expect("a list");
    assert_eq!(missing.len(), ranges.len(), "{missing:?}");
    let mut expected = content.clone();
    for ((start, end), range) in ranges.into_iter().zip(missing) {
        let (start, end) = (start * BLOCK, end * BLOCK);
        assert_eq!((&range["start"], &range["end"]), (&start.into(), &end.into()));
        assert!(lines.contains(&format!("/big: bytes {start}..{end} (")), "{lines}");
        expected[start..end].fill(0);
    }
    assert!(std::fs::read(fixture.path("back")).expect("copied") == expected, "the rest is there");
}

#[test]
fn cat_prints_all_bytes_before_the_first_lost_one() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    let content = bytes(1, 5 << 20);
    fixture.local("big", &content);
    fixture.run(["cp", "big", "pool:/"]).succeeded();
    damage(&fixture, "pool/0.img", &content, &[300, 900]);
    for words in [&["cat", "pool:/big"][..], &["cp", "pool:/big", "-"]] {
        let output = fixture.command(words).output().expect("the binary runs");
        assert!(output.stdout == content[..300 * BLOCK], "{} bytes", output.stdout.len());
        let said = CommandResult::from(output).failed(1);
        assert!(said.contains("/big") && said.contains("1228800..1232896"), "{said}");
    }
}

#[test]
fn a_full_pool_keeps_no_part_of_a_file() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("tree/a", "small");
    fixture.local("tree/large", bytes(1, 60 << 20));
    let said = fixture.run(["cp", "-r", "tree", "pool:/"]).failed(1);
    assert!(said.contains("no space left"), "{said}");
    assert_eq!(fixture.run(["ls", "pool:/tree"]).succeeded(), "a\n");
    fixture.run(["cp", "-r", "--atomic", "tree", "pool:/again"]).failed(1);
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "tree\n");
    // The space of both copies is free again.
    fixture.local("fits", bytes(2, 10 << 20));
    fixture.run(["cp", "fits", "pool:/"]).succeeded();
}

#[test]
fn a_full_disk_keeps_no_part_of_a_file() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("tree/a", "small");
    fixture.local("tree/large", bytes(1, 20 << 20));
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    let place = fixture.path("place");
    std::fs::create_dir(&place).expect("made");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8M", "tmpfs"]).arg(&place).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return skip(Need::Root, "tmpfs cannot be mounted");
    }
    let ran = fixture.run(["cp", "-r", "pool:/tree", "place"]);
    let found = names(&place.join("tree"));
    let unmounted = Command::new("umount").arg(&place).status().expect("umount runs");
    assert!(unmounted.success());
    let said = ran.failed(1);
    assert!(said.contains("place/tree/large: No space left on device"), "{said}");
    assert_eq!(found, ["a"]);
}

#[test]
fn a_copy_that_is_killed_or_interrupted_leaves_whole_files_only() {
    let fixture = Fixture::pool(1, 1, 0, 256);
    make_tree(&fixture, "tree", 1);
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    std::fs::create_dir(fixture.path("out")).expect("made");
    for moment in 0..moments() {
        let signal = [Signal::KILL, Signal::INT, Signal::TERM][(moment % 3) as usize];
        let into = signalled(&fixture, &["cp", "-r", "tree", "pool:/in"], moment, signal);
        fixture.run(["cp", "-r", "pool:/", "back"]).succeeded();
        if fixture.path("back/in").exists() {
            assert_whole(&fixture.path("tree"), &fixture.path("back/in"));
        }
        std::fs::remove_dir_all(fixture.path("back")).expect("removed");
        fixture.run(["rm", "-rf", "pool:/in"]).succeeded();
        let out = signalled(&fixture, &["cp", "-r", "pool:/tree", "out"], moment, signal);
        if fixture.path("out/tree").exists() {
            // A name that the moment of a kill has left hidden would be found here.
            assert_whole(&fixture.path("tree"), &fixture.path("out/tree"));
            std::fs::remove_dir_all(fixture.path("out/tree")).expect("removed");
        }
        let expected = match signal {
            Signal::KILL => None,
            Signal::INT => Some(130),
            _ => Some(143),
        };
        // A signal that comes before the command watches for it ends the process: there is no code then.
        let is_right = |code: &Option<i32>| [expected, Some(0), None].contains(code);
        assert!([into, out].iter().all(is_right), "{into:?} {out:?}");
    }
}

#[test]
fn an_atomic_copy_that_is_killed_or_interrupted_is_whole_or_absent() {
    let fixture = Fixture::pool(1, 1, 0, 256);
    make_tree(&fixture, "tree", 1);
    for moment in 0..moments() {
        let signal = [Signal::KILL, Signal::INT][(moment % 2) as usize];
        let code = signalled(&fixture, &["cp", "-r", "--atomic", "tree", "pool:/in"], moment, signal);
        fixture.run(["cp", "-r", "pool:/", "back"]).succeeded();
        let is_there = fixture.path("back/in").exists();
        if is_there {
            assert_eq!(tree(&fixture.path("tree")), tree(&fixture.path("back/in")));
        }
        assert!(is_there || code != Some(0), "it succeeded, and nothing is there");
        std::fs::remove_dir_all(fixture.path("back")).expect("removed");
        fixture.run(["rm", "-rf", "pool:/in"]).succeeded();
    }
}

#[test]
fn two_atomic_copies_at_once_are_each_whole_or_absent() {
    let fixture = Fixture::pool(1, 1, 0, 256);
    make_tree(&fixture, "a", 1);
    make_tree(&fixture, "b", 1000);
    let start = |name: &str| {
        let words = ["cp", "-r", "--atomic", name, "pool:/"];
        fixture.command(words).stderr(Stdio::piped()).spawn().expect("the binary runs")
    };
    let copies =
        [start("a"), start("b")].map(|copy| CommandResult::from(copy.wait_with_output().expect("it ends")));
    fixture.run(["cp", "-r", "pool:/", "back"]).succeeded();
    for (name, ran) in ["a", "b"].into_iter().zip(copies) {
        let copied = fixture.path("back").join(name);
        // The pool is one process's: the second copy is refused, or comes after the first.
        assert!(matches!(ran.code, 0 | 3), "{}", ran.stderr);
        assert_eq!(copied.exists(), ran.code == 0, "{}", ran.stderr);
        if copied.exists() {
            assert_eq!(tree(&fixture.path(name)), tree(&copied));
        }
    }
}

#[test]
fn an_atomic_copy_with_one_bad_file_copies_nothing() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("tree/a", "a");
    fixture.local("tree/b/c", "c");
    fixture.run(["mkdir", "-p", "pool:/in/b/c"]).succeeded();
    let said = fixture.run(["cp", "-r", "--atomic", "tree/a", "tree/b", "pool:/in"]).failed(1);
    assert!(said.contains("nothing was copied"), "{said}");
    assert_eq!(fixture.run(["ls", "pool:/in"]).succeeded(), "b\n");
    fixture.run(["cp", "--atomic", "pool:/in", "out"]).failed(2);
}

#[test]
fn stdin_and_stdout_are_files_of_a_copy() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    let content = bytes(1, 9 << 20);
    let mut copy = fixture.command(["cp", "-", "pool:/in"]).stdin(Stdio::piped()).spawn().expect("it runs");
    let mut input = copy.stdin.take().expect("piped");
    input.write_all(&content).expect("written");
    drop(input);
    assert!(copy.wait().expect("it ends").success());
    let output = fixture.command(["cp", "-q", "pool:/in", "-"]).output().expect("it runs");
    assert!(output.status.success() && output.stdout == content);
    // A file of this name is meant by another path.
    fixture.local("-", "minus");
    fixture.run(["cp", "./-", "pool:/"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/-"]).succeeded(), "minus");
    // A signal ends a copy that waits for more: nothing is left of it.
    let mut copy = fixture.command(["cp", "-", "pool:/cut"]).stdin(Stdio::piped()).spawn().expect("it runs");
    copy.stdin.as_mut().expect("piped").write_all(&content[..5 << 20]).expect("written");
    std::thread::park_timeout(Duration::from_millis(300));
    kill_process(Pid::from_child(&copy), Signal::INT).expect("it runs");
    // `wait` would close the pipe, and the copy would end by itself.
    let input = copy.stdin.take();
    assert_eq!(copy.wait().expect("it ends").code(), Some(130));
    drop(input);
    fixture.run(["stat", "pool:/cut"]).failed(1);
    // A reader that has enough is no failure.
    let mut copy = fixture.command(["cp", "pool:/in", "-"]).stdout(Stdio::piped()).spawn().expect("it runs");
    drop(copy.stdout.take());
    assert!(copy.wait().expect("it ends").success());
}

#[test]
fn files_that_exist_are_left_or_replaced_as_the_options_say() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let age = |name: &str, seconds: u64| {
        let file = std::fs::File::options().write(true).open(fixture.path(name)).expect("opened");
        let at = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
        file.set_modified(at).expect("a time is set");
    };
    fixture.local("tree/old", "1");
    fixture.local("tree/new", "1");
    age("tree/old", 1000);
    age("tree/new", 1000);
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "-r", "pool:/tree", "out"]).succeeded();
    for name in ["tree/old", "tree/new", "tree/added"] {
        fixture.local(name, "2");
    }
    age("tree/old", 900);
    age("tree/new", 1100);
    let shown = |fixture: &Fixture| {
        ["old", "new", "added"].map(|name| fixture.run(["cat", &format!("pool:/tree/{name}")]).stdout)
    };
    let planned = fixture.run(["cp", "-ru", "--dry-run", "tree", "pool:/"]).succeeded();
    assert_eq!(planned, "tree/added -> /tree/added\ntree/new -> /tree/new\n");
    assert_eq!(shown(&fixture), ["1", "1", ""]);
    fixture.run(["cp", "-rn", "tree", "pool:/"]).succeeded();
    assert_eq!(shown(&fixture), ["1", "1", "2"]);
    let said = fixture.run(["cp", "-ru", "tree", "pool:/"]);
    assert!(said.stderr.contains("2 left as they are"), "{}", said.stderr);
    assert_eq!(shown(&fixture), ["1", "2", "2"]);
    fixture.run(["cp", "-rp", "tree", "pool:/"]).succeeded();
    assert_eq!(shown(&fixture), ["2", "2", "2"]);
    // The other way round: 'out' has what the pool had first.
    std::fs::create_dir(fixture.path("dest")).expect("made");
    std::fs::rename(fixture.path("out"), fixture.path("dest/tree")).expect("renamed");
    fixture.run(["cp", "-ru", "pool:/tree", "dest"]).succeeded();
    let there = |name: &str| std::fs::read_to_string(fixture.path("dest/tree").join(name)).expect("there");
    assert_eq!(["old", "new", "added"].map(there), ["1", "2", "2"]);
}

#[test]
fn what_a_pattern_names_is_left_out() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    for name in ["tree/a.tmp", "tree/b/a.tmp", "tree/b/c.txt", "tree/d/b/c.txt", "tree/cache/x"] {
        fixture.local(name, "x");
    }
    let words = ["--exclude", "*.tmp", "--exclude", "cache", "--exclude", "/b/*.txt"];
    fixture.run(["cp", "-r", "tree", "pool:/"].iter().chain(&words)).succeeded();
    assert_eq!(fixture.run(["find", "pool:/tree", "--type", "file"]).succeeded(), "pool:/tree/d/b/c.txt\n");
    fixture.run(["cp", "-r", "tree", "pool:/all"]).succeeded();
    fixture.run(["cp", "-r", "pool:/all", "back"].iter().chain(&words)).succeeded();
    let left: Vec<_> = tree(&fixture.path("back")).into_iter().map(|(path, ..)| path).collect();
    assert_eq!(left, ["b", "d", "d/b", "d/b/c.txt"].map(std::path::PathBuf::from));
}

#[test]
fn files_that_the_kernel_makes_up_are_copied_as_they_are_read() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.run(["cp", "/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled", "pool:/"]).succeeded();
    let version = std::fs::read_to_string("/proc/version").expect("read");
    assert_eq!(fixture.run(["cat", "pool:/version"]).succeeded(), version);
    assert!(!fixture.run(["cat", "pool:/enabled"]).succeeded().is_empty());
}

/// A filesystem without unnamed files gives a copy a hidden name, which a kill leaves behind.
#[test]
fn what_a_killed_copy_has_left_is_removed_by_the_next_that_needs_the_name() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("a", "new");
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    let left = fixture.local("dest/.warpfire-cp-0", "half");
    fixture.local("dest/a", "old");
    fixture.run(["cp", "pool:/a", "dest"]).succeeded();
    assert!(!left.exists());
    assert_eq!(std::fs::read(fixture.path("dest/a")).expect("there"), b"new");
    // A living process has a lock on its file.
    let file = std::fs::File::create(&left).expect("made");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    fixture.run(["cp", "pool:/a", "dest"]).succeeded();
    assert_eq!(names(&fixture.path("dest")), [".warpfire-cp-0", "a"]);
}
