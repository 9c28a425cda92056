//! Progress on a terminal, and none elsewhere.

use std::process::Command;

use crate::fixture::{Fixture, bytes};

/// What a command shows on a terminal: script(1) gives it one.
fn on_terminal(fixture: &Fixture, words: &str) -> String {
    let command = format!("{} {words}", env!("CARGO_BIN_EXE_warpfire"));
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm").current_dir(fixture.path("."));
    let output = script.stdin(std::process::Stdio::null()).output().expect("script runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words}: {shown}");
    shown
}

#[test]
fn long_work_shows_its_progress_on_a_terminal_and_nowhere_else() {
    let fixture = Fixture::pool(2, 1, 1, 64);
    for number in 0..200 {
        fixture.local(&format!("tree/{number}"), bytes(number, 50_000));
    }
    let steps = [
        ("mkfs --prefill --size 64M made.img", " prefilled, "),
        ("cp -r tree pool:/", "copied 64 files, "),
        ("scrub pool", " segments damaged, "),
        ("fsck pool", " MiB read ("),
        ("rm -r pool:/tree", "64 of 201 files removed"),
        ("trim pool", " discarded"),
    ];
    for (words, progress) in steps {
        let shown = on_terminal(&fixture, words);
        assert!(shown.contains(progress), "{words}: {shown:?}");
    }
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    for (words, _) in steps {
        let ran = fixture.run(words.replace("made", "other").split(' '));
        assert!(ran.code == 0 && !ran.stderr.contains(['\r', '\u{1b}']), "{words}: {:?}", ran.stderr);
    }
}

#[test]
fn differences_quote_names_on_a_terminal_and_print_their_bytes_elsewhere() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.run(["touch", "pool:/old\u{1b}[2J"]).succeeded();
    fixture.run(["snapshot", "create", "pool", "monday"]).succeeded();
    fixture.run(["touch", "pool:/a\ndeleted  b"]).succeeded();
    fixture.run(["mv", "pool:/old\u{1b}[2J", "pool:/it's"]).succeeded();
    let shown = on_terminal(&fixture, "snapshot diff pool monday");
    assert_eq!(shown.lines().count(), 3, "one of the root, and one of each name: {shown:?}");
    assert!(!shown.contains('\u{1b}') && shown.contains("$'/a\\ndeleted  b'"), "{shown:?}");
    assert!(shown.contains("$'/old\\033[2J' -> $'/it\\'s'"), "{shown:?}");
    let plain = fixture.run(["snapshot", "diff", "pool", "monday"]).succeeded();
    assert!(plain.contains("/a\ndeleted  b") && plain.contains("/old\u{1b}[2J -> /it's"), "{plain:?}");
}
