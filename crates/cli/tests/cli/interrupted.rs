//! Verbs that are interrupted or killed at any moment: the pool is sound, each file is as before or as after,
//! no lock is left, and no broken progress line.
//!
//! The states before and after a verb come from a run that nothing interrupts.
//! `WARPFIRE_INTERRUPT_MOMENTS` is the number of moments of each verb.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use warpfire::{FileType, Pool, Warpfire};
use warpfire_env::{Clock, SystemClock};
use warpfire_test_needs::{Need, skip};

use crate::fixture::{Fixture, bytes, tree};

/// Verbs that change something, on the pool `p.img` and the local directories `tree` and `out`.
const VERBS: &[&str] = &[
    "mkdir -p p.img:/new/a/b",
    "touch p.img:/t1 p.img:/t2 p.img:/tree/0/3",
    "truncate -s 1000 p.img:/tree/0/9 p.img:/big",
    "chmod -R 700 p.img:/tree",
    "chown -R 7:8 p.img:/tree",
    "ln p.img:/big p.img:/hard",
    "ln -s big p.img:/soft",
    "mv p.img:/tree p.img:/big p.img:/dir",
    "rm -r p.img:/tree",
    "cp -r tree p.img:/in",
    "cp -r --atomic tree p.img:/in",
    "cp new p.img:/big",
    "cp -r p.img:/tree p.img:/copy",
    "cp -r p.img:/tree out",
    "slice concat p.img:/big p.img:/tree/0/9 p.img:/whole",
    "slice cut --from 4000 --len 100000 p.img:/big p.img:/part",
    "slice paste --insert 5000 p.img:/tree/0/9 p.img:/big",
    "slice shuffle --seed 7 p.img:/big p.img:/shuffled",
    "scrub p.img",
    "trim p.img",
];

/// What a path leads to: its mode and its content.
type State = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn add(fs: &Warpfire, at: &Path, found: &mut State) {
    for entry in fs.read_dir(at).expect("directories are readable") {
        let path = at.join(entry.expect("entries are readable").file_name());
        let metadata = fs.symlink_metadata(&path).expect("it was listed");
        let kind = metadata.file_type();
        let content = if kind == FileType::Dir {
            add(fs, &path, found);
            b"a directory".to_vec()
        } else if kind == FileType::Symlink {
            fs.read_link(&path).expect("links are readable").into_os_string().into_encoded_bytes()
        } else {
            fs.read(&path).expect("files are readable")
        };
        found.insert(path, (metadata.mode(), content));
    }
}

/// All of the pool, and the copies out of it.
fn state(fixture: &Fixture) -> State {
    let mut found = State::new();
    let fs = Pool::options().read_only(true).open([fixture.path("p.img")]).expect("no lock is left");
    add(&fs, Path::new("/"), &mut found);
    for (path, _, content) in tree(&fixture.path("out")) {
        found.insert(Path::new("out").join(path), (0, content));
    }
    found
}

fn made() -> Fixture {
    let fixture = Fixture::empty();
    for number in 0..30 {
        let len = if number % 10 == 9 { 1 << 20 } else { 5000 * number };
        fixture.local(&format!("tree/{}/{number}", number % 3), bytes(number as u64, len));
    }
    fixture.local("big", bytes(77, 2 << 20));
    fixture.local("new", bytes(78, 3 << 20));
    fixture.run(["mkfs", "--size", "64M", "p.img"]).succeeded();
    fixture.run(["cp", "-r", "tree", "big", "p.img:/"]).succeeded();
    fixture.run(["mkdir", "p.img:/dir"]).succeeded();
    std::fs::create_dir(fixture.path("out")).expect("made");
    std::fs::copy(fixture.path("p.img"), fixture.path("before.img")).expect("copied");
    fixture
}

/// The pool and the local directory as they were before the verb.
fn restore(fixture: &Fixture) {
    std::fs::copy(fixture.path("before.img"), fixture.path("p.img")).expect("copied");
    std::fs::remove_dir_all(fixture.path("out")).expect("removed");
    std::fs::create_dir(fixture.path("out")).expect("made");
}

fn moments() -> u64 {
    std::env::var("WARPFIRE_INTERRUPT_MOMENTS").ok().and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// The time that a run takes which nothing interrupts, in nanoseconds.
fn whole_run(fixture: &Fixture, words: &str) -> u64 {
    let began = SystemClock.monotonic_nanos();
    fixture.run(words.split(' ')).succeeded();
    SystemClock.monotonic_nanos() - began
}

/// Runs a verb, and sends a signal after a part of its time. Returns the exit code as a shell has it.
fn signalled(fixture: &Fixture, words: &str, after: Duration, signal: Signal) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let mut command = fixture.command(words.split(' '));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    std::thread::park_timeout(after);
    kill_process(Pid::from_child(&child), signal).expect("it has not been waited for");
    let status = child.wait().expect("it ends");
    status.code().or_else(|| status.signal().map(|number| 128 + number)).expect("it ended by one of them")
}

fn interrupt(verb: &str, seed: u64) -> u64 {
    let fixture = made();
    let before = state(&fixture);
    let nanos = whole_run(&fixture, verb);
    let after = state(&fixture);
    let mut stopped = 0;
    for moment in 0..moments() {
        restore(&fixture);
        let draw = bytes(seed * 1000 + moment + 1, 2);
        let wait = Duration::from_nanos(nanos * u64::from(draw[1]) / 256);
        let (signal, code) = [(Signal::INT, 130), (Signal::KILL, 137)][usize::from(draw[0] % 2)];
        let ended = signalled(&fixture, verb, wait, signal);
        assert!([0, code].contains(&ended), "{verb}: {ended} after {signal:?}");
        stopped += u64::from(ended == code);
        let found = state(&fixture);
        // A kill may leave the hidden name of a local copy. The next copy removes it.
        let is_left = |path: &Path| code == 137 && path.to_string_lossy().contains(".warpfire-cp-");
        let is_new = |path: &PathBuf| !before.contains_key(path) && !after.contains_key(path);
        for (path, now) in found.iter().filter(|(path, _)| !is_left(path)) {
            assert!(!is_new(path), "{verb}: {} after {wait:?}", path.display());
            let is_whole = [before.get(path), after.get(path)].contains(&Some(now));
            // A directory gets its mode last.
            let is_directory = now.1 == b"a directory";
            assert!(is_whole || is_directory, "{verb}: {} is half after {wait:?}", path.display());
        }
        for path in before.keys().filter(|path| after.contains_key(*path)) {
            assert!(found.contains_key(path), "{verb}: {} is gone after {wait:?}", path.display());
        }
        fixture.run(["fsck", "p.img"]).succeeded();
        fixture.run(["touch", "p.img:/afterwards"]).succeeded();
    }
    stopped
}

#[test]
fn a_verb_that_is_interrupted_or_killed_leaves_a_sound_pool_and_whole_files() {
    let stopped: u64 = (0..).zip(VERBS).map(|(seed, verb)| interrupt(verb, seed)).sum();
    println!("{stopped} of {} runs were stopped", moments() * VERBS.len() as u64);
    assert!(stopped > 0, "no signal came in time");
}

/// A pool that is half made is no pool: it can be made again, without `--force`.
#[test]
fn a_pool_whose_making_is_interrupted_can_be_made_again_or_is_whole() {
    for moment in 0..moments().max(3) {
        let fixture = Fixture::empty();
        let words = "mkfs --size 32M --data 2 --parity 1 a.img b.img c.img";
        let wait = Duration::from_micros(u64::from(bytes(moment + 1, 2)[1]) * 300);
        let signal = [Signal::INT, Signal::KILL][(moment % 2) as usize];
        signalled(&fixture, words, wait, signal);
        let again = fixture.run(words.split(' '));
        assert!(again.code == 0 || again.stderr.contains("contains a Warpfire pool"), "{}", again.stderr);
        if again.code != 0 {
            // Its devices may have been labelled in part only: then they are made again with --force.
            let forced = [words, "--force --yes"].join(" ");
            fixture.run(forced.split(' ')).succeeded();
        }
        fixture.run(["fsck", "a.img,b.img,c.img"]).succeeded();
    }
}

/// As a mkfs leaves it that is killed between the creation of an image file and the choice of its size.
#[test]
fn an_empty_file_becomes_an_image_file() {
    let fixture = Fixture::empty();
    std::fs::write(fixture.path("a.img"), b"").expect("an empty file");
    let said = fixture.run(["mkfs", "--size", "32M", "a.img", "b.img", "c.img"]).succeeded();
    assert!(said.contains("a.img  32 MiB  new image file"), "{said}");
    fixture.run(["fsck", "a.img,b.img,c.img"]).succeeded();
}

/// What a terminal shows of its last line.
fn last_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let line = text.rsplit('\n').next().unwrap_or_default();
    // Each of these clears the line, or begins to overwrite it.
    line.rsplit("\u{1b}[2K").next().unwrap_or_default().trim_start_matches('\r').to_owned()
}

/// Presses Ctrl-C at the first sign of a progress line.
#[test]
fn an_interrupted_command_leaves_no_progress_line_on_a_terminal() {
    if !Command::new("script").arg("--version").output().is_ok_and(|ran| ran.status.success()) {
        return skip(Need::Script, "no terminal can be made");
    }
    let fixture = Fixture::pool(1, 1, 0, 256);
    fixture.local("large", bytes(1, 60 << 20));
    fixture.run(["cp", "large", "pool:/"]).succeeded();
    for verb in ["scrub pool", "fsck pool", "cp large pool:/again", "cp pool:/large back"] {
        let line = format!("{} {verb}", env!("CARGO_BIN_EXE_warpfire"));
        let mut terminal = Command::new("script");
        terminal
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .current_dir(fixture.path("."));
        terminal.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = terminal.spawn().expect("script runs");
        let (mut keys, mut screen) =
            (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut said = vec![0; 4096];
        let first = screen.read(&mut said).expect("the terminal is readable");
        said.truncate(first);
        keys.write_all(b"\x03").expect("the terminal takes keys");
        screen.read_to_end(&mut said).expect("the terminal is readable");
        let status = child.wait().expect("it ends");
        let shown = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(status.code(), Some(130), "{verb}: {shown:?}");
        assert_eq!(last_line(&said), "", "{verb}: {shown:?}");
    }
    fixture.run(["fsck", "pool"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "large\n");
    assert!(!fixture.path("back").exists());
}
