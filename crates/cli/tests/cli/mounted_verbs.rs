//! The verbs on files of a mounted pool: by `POOL:/path`, and by local paths below the mountpoint.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use warpfire_env::{Clock, SystemClock};
use warpfire_test_needs::{Need, skip};

use crate::fixture::{CommandResult, Fixture, bytes};
use crate::mounted::{MountedFixture, can_mount, server_of};

/// An ordinary user without files.
const NOBODY: u32 = 65534;

/// Commands that together change and show all that the verbs can. `P:` is the pool.
const SCRIPT: [&str; 46] = [
    "mkdir P:/a P:/b",
    "mkdir P:/a",
    "mkdir -p P:/a/deep/er P:/a",
    "touch -d 2026-01-02 P:/a/f P:/a/g P:/b/h",
    "touch -c P:/none",
    "touch -r P:/a/f P:/b/h",
    "truncate -s 5000 P:/a/f",
    "truncate -s +100 P:/a/f P:/new",
    "truncate -c -s 1 P:/none",
    "truncate -s 1 P:/a",
    "ln P:/a/f P:/again",
    "ln -s a/f P:/link",
    "ln -s a P:/to-a",
    "ln -s /b P:/to-b",
    "ln P:/a P:/dir",
    "ln -sf b/h P:/link",
    "chmod 640 P:/a/f P:/none",
    "chmod -R go-rwx P:/a",
    "chmod 600 P:/link",
    "chown 0:0 P:/a/f",
    "chown -h 0:0 P:/link",
    "stat P:/none",
    "mv P:/a/g P:/b",
    "mv P:/again P:/none/x",
    "mv P:/new P:/again P:/b",
    "mv -n P:/b/g P:/b/h",
    "mv P:/b P:/b/below",
    "mv --exchange P:/b/g P:/b/h",
    "mv P:/b/g P:/none P:/a",
    "cat P:/b/again P:/none P:/a",
    "cat P:/link",
    "cat P:/to-a/f",
    "ls P:/",
    "ls -R P:/",
    "ls -S P:/b",
    "ls -d P:/a P:/none",
    "find P:/ --type file",
    "find P:/ --name h --larger-than 0",
    "find P:/to-b",
    "du --apparent-size -a P:/",
    "du -s --apparent-size P:/b",
    "rm P:/a",
    "rm P:/none",
    "rm -f P:/none P:/link",
    "rm -r P:/a P:/to-b",
    "ls -R P:/",
];

/// Runs the script with another word for `P:`; the answers have that word replaced by `P:` again.
fn run_script(fixture: &Fixture, place: &str, in_messages: &[&str]) -> Vec<(String, i32, String, String)> {
    let answer = |line: &str| {
        let words = line.split(' ').map(|word| word.replacen("P:/", place, 1));
        let answer = fixture.run(words.collect::<Vec<_>>());
        let plain = |text: &str| {
            let text = in_messages.iter().fold(text.to_owned(), |text, from| text.replace(from, "/"));
            text.to_lowercase()
        };
        (line.to_owned(), answer.code, plain(&answer.stdout), plain(&answer.stderr))
    };
    SCRIPT.iter().map(|line| answer(line)).collect()
}

fn tree_of(mountpoint: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut waiting = vec![mountpoint.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).expect("listed").flatten() {
            let metadata = entry.metadata().expect("shown");
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
            let below = entry.path().strip_prefix(mountpoint).expect("below").to_path_buf();
            found.push((below, format!("{:o} {}", metadata.permissions().mode(), metadata.is_dir())));
        }
    }
    found.sort();
    found
}

#[test]
fn every_verb_answers_the_same_in_an_open_pool_on_a_mount_and_by_local_paths() {
    if !can_mount() {
        return;
    }
    let alone = Fixture::pool(3, 2, 1, 64);
    let expected = run_script(&alone, "pool:/", &["pool:/"]);
    fs::create_dir(alone.path("mnt")).expect("a new directory");
    alone.run(["mount", "pool", "mnt"]).succeeded();
    let alone = MountedFixture(alone);
    let by_name = MountedFixture::new();
    let by_path = MountedFixture::new();
    let at_name = format!("{}/", by_name.0.path("mnt").display());
    let at_path = format!("{}/", by_path.0.path("mnt").display());
    let got = [
        ("by name", run_script(&by_name.0, "pool:/", &["pool:/", &at_name])),
        ("by path", run_script(&by_path.0, &at_path, &[&at_path])),
    ];
    for (how, answers) in got {
        for (expected, answer) in expected.iter().zip(answers) {
            assert_eq!((&expected.0, expected.1, &expected.2), (&answer.0, answer.1, &answer.2), "{how}");
            assert_eq!(
                expected.3.lines().count(),
                answer.3.lines().count(),
                "{how}: {expected:?} {answer:?}"
            );
        }
    }
    let expected = tree_of(&alone.0.path("mnt"));
    assert!(!expected.is_empty());
    assert_eq!(tree_of(&by_name.0.path("mnt")), expected);
    assert_eq!(tree_of(&by_path.0.path("mnt")), expected);
}

#[test]
fn a_verb_in_a_mounted_pool_does_not_wait_for_the_lock_of_the_server() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    pool.0.run(["touch", "pool:/x"]).succeeded();
    // The shortest of some runs: other work on this machine makes one of them long. The wait is a second.
    let shortest = (0..3).map(|_| {
        let begin = SystemClock.monotonic_nanos();
        assert_eq!(pool.0.run(["ls", "pool:/"]).succeeded(), "x\n");
        SystemClock.monotonic_nanos() - begin
    });
    let shortest = shortest.min().expect("there were runs");
    assert!(shortest < 900_000_000, "it took {shortest} ns");
}

#[test]
fn a_link_in_a_mounted_pool_does_not_lead_out_of_it() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    let secret = pool.0.local("secret", b"outside");
    symlink(&secret, pool.0.path("mnt/absolute")).expect("made");
    symlink("../secret", pool.0.path("mnt/relative")).expect("made");
    for name in ["absolute", "relative"] {
        let said = pool.0.run(["cat".to_owned(), format!("pool:/{name}")]).failed(1);
        assert!(said.contains("No such file"), "{said}");
        let said = pool.0.run(["cat".to_owned(), format!("mnt/{name}")]).failed(1);
        assert!(said.contains("leads out of the mounted pool"), "{said}");
        pool.0.run(["chmod".to_owned(), "777".to_owned(), format!("pool:/{name}")]).failed(1);
        pool.0.run(["truncate".to_owned(), "-s0".to_owned(), format!("mnt/{name}")]).failed(1);
    }
    assert_eq!(fs::read(&secret).expect("untouched"), b"outside");
    assert_eq!(fs::metadata(&secret).expect("there").permissions().mode() & 0o111, 0);
    // A filesystem that is mounted over a directory of the pool is no part of it.
    fs::create_dir(pool.0.path("mnt/over")).expect("made");
    let over = pool.0.path("mnt/over");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&over).status();
    if !mounted.is_ok_and(|ended| ended.success()) {
        return skip(Need::Root, "a second filesystem cannot be mounted");
    }
    fs::write(over.join("foreign"), b"").expect("written");
    let found = pool.0.run(["find", "pool:/"]);
    let removed = pool.0.run(["rm", "-r", "--yes", "pool:/"]);
    let is_left = over.join("foreign").exists();
    Command::new("umount").arg(&over).status().expect("umount runs");
    assert!(found.code == 1 && found.stderr.contains("another filesystem"), "{}", found.stderr);
    assert!(!found.stdout.contains("foreign"), "{}", found.stdout);
    assert!(removed.code == 1 && is_left, "{}", removed.stderr);
}

#[test]
fn a_server_that_dies_ends_the_verb_with_one_sentence() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(3, 2, 1, 64);
    fixture.local("big", bytes(3, 48 << 20));
    fixture.run(["cp", "big", "pool:/"]).succeeded();
    fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture.run(["mount", "pool", "mnt"]).succeeded();
    let pool = MountedFixture(fixture);
    let server = server_of(&pool.0.path("pool/0.img"));
    let mut cat = pool.0.command(["cat", "pool:/big", "pool:/big", "pool:/big"]);
    let mut cat = cat.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut first = [0; 4096];
    let stdout = cat.stdout.as_mut().expect("a pipe");
    stdout.read_exact(&mut first).expect("the first bytes");
    assert!(Command::new("kill").args(["-9", &server.to_string()]).status().expect("kill runs").success());
    let rest = CommandResult::from(cat.wait_with_output().expect("it ends"));
    let said = rest.failed(3);
    assert!(
        said.contains("the server of") && said.contains("is not running; run 'warpfire umount"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    // The mount is dead now.
    for words in [["ls", "mnt"], ["ls", "mnt/x"], ["rm", "mnt/big"]] {
        let said = pool.0.run(words).failed(3);
        assert!(said.contains("is not running; run 'warpfire umount"), "{said}");
    }
}

#[test]
fn a_mount_of_another_user_or_namespace_is_named_in_the_refusal() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(Need::Root, "this needs root");
    }
    let pool = MountedFixture::new();
    let at = pool.0.path("mnt").canonicalize().expect("mounted");
    for open in [".", "pool", "pool/0.img", "pool/1.img", "pool/2.img"] {
        let mode = if open.ends_with("img") { 0o666 } else { 0o755 };
        fs::set_permissions(pool.0.path(open), PermissionsExt::from_mode(mode)).expect("set");
    }
    let as_nobody = |words: &[&str]| {
        let mut command = pool.0.command(words);
        command.uid(NOBODY).gid(NOBODY).env_remove("XDG_RUNTIME_DIR");
        CommandResult::from(command.output().expect("the binary runs"))
    };
    for words in [["ls", "pool:/"], ["ls", "mnt"], ["rm", "pool:/x"], ["cat", "mnt/x"]] {
        let said = as_nobody(&words).failed(3);
        assert!(said.contains(&format!("mounted at {}", at.display())), "{words:?}: {said}");
        assert!(said.contains("does not admit this user; run the command as"), "{words:?}: {said}");
    }
    let script = format!("umount -l mnt && exec {} ls pool:/", env!("CARGO_BIN_EXE_warpfire"));
    let elsewhere = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .current_dir(pool.0.path("."))
        .output()
        .expect("unshare runs");
    let said = CommandResult::from(elsewhere).failed(3);
    let server = server_of(&pool.0.path("pool/0.img"));
    assert!(said.contains("in another mount namespace, by process"), "{said}");
    assert!(said.contains(&format!("{}", at.display())) && said.contains(&server.to_string()), "{said}");
}

#[test]
fn a_pool_at_two_places_is_one_pool_and_a_path_in_a_view_belongs_to_its_transaction() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(Need::Root, "this needs root");
    }
    let pool = MountedFixture::new();
    fs::create_dir(pool.0.path("second")).expect("a new directory");
    pool.0.run(["mount", "pool", "second"]).succeeded();
    pool.0.run(["touch", "mnt/a"]).succeeded();
    let moved = pool.0.run(["mv", "mnt/a", "second/b"]);
    let listed = pool.0.run(["ls", "second:/"]);
    pool.0.run(["umount", "second"]).succeeded();
    moved.succeeded();
    assert_eq!(listed.succeeded(), "b\n");

    let begun = pool.0.run(["tx", "begin", "--in", "mnt"]).succeeded();
    let (id, view) = begun.trim().split_once(' ').expect("an id and a directory");
    pool.0.run(["mv", &format!("{view}/b"), &format!("{view}/c")]).succeeded();
    pool.0.run(["ln", "-s", "c", &format!("{view}/link")]).succeeded();
    assert_eq!(pool.0.run(["ls", view]).succeeded(), "c\nlink\n");
    assert_eq!(pool.0.run(["ls", "pool:/"]).succeeded(), "b\n");
    pool.0.run(["tx", "commit", "--in", "mnt", id]).succeeded();
    assert_eq!(pool.0.run(["ls", "pool:/"]).succeeded(), "c\nlink\n");
    // In a transaction the name of the pool is the transaction too.
    let script = format!(
        "{0} touch pool:/in && {0} mv mnt/in pool:/x; {0} mv mnt/in mnt/moved; {0} ls pool:/",
        env!("CARGO_BIN_EXE_warpfire")
    );
    let shown = pool.0.run(["tx", "run", "--in", "mnt", "--", "sh", "-c", &format!("{script}; exit 1")]);
    assert_eq!((shown.code, shown.stdout.as_str()), (1, "c\nlink\nmoved\n"), "{}", shown.stderr);
    assert_eq!(pool.0.run(["ls", "pool:/"]).succeeded(), "c\nlink\n");
}

#[test]
fn moves_of_several_files_on_a_mount_are_all_or_none() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    pool.0.run(["mkdir", "pool:/to"]).succeeded();
    pool.0.run(["touch", "pool:/1", "pool:/2"]).succeeded();
    let said = pool.0.run(["mv", "mnt/1", "mnt/2", "mnt/none", "mnt/to"]).failed(1);
    assert!(said.ends_with("nothing was moved\n"), "{said}");
    assert_eq!(pool.0.run(["ls", "mnt", "mnt/to"]).succeeded(), "mnt:\n1\n2\nto\n\nmnt/to:\n");
    pool.0.run(["mv", "mnt/1", "mnt/2", "mnt/to"]).succeeded();
    assert_eq!(pool.0.run(["ls", "pool:/to"]).succeeded(), "1\n2\n");
}

#[test]
fn commands_that_need_the_devices_say_where_the_pool_is_mounted() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    let at = pool.0.path("mnt").canonicalize().expect("mounted");
    let expected = format!(
        "the pool is mounted at {0}; 'warpfire scrub {0}' verifies it while it is in use; or run \
         'warpfire umount {0}' first",
        at.display()
    );
    for place in ["pool", "mnt"] {
        let answer = pool.0.run(["inspect", "segments", place]);
        assert!(answer.code != 0 && answer.stderr.contains(&expected), "{}", answer.stderr);
    }
    // A second mount at the same place changes nothing and succeeds.
    let again = pool.0.run(["mount", "pool", "mnt"]);
    assert!(again.stderr.contains("already"), "{}", again.stderr);
    again.succeeded();
}
