//! `warpfire tx` on a mounted pool.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use warpfire_test_needs::{Need, skip};

use crate::fixture::{CommandResult, Fixture, documents};
use crate::mounted::{MountedFixture, can_mount};

/// Tries of `wait_until`: ten seconds in all.
const TRIES_MAX: u32 = 500;
const PAUSE: Duration = Duration::from_millis(20);

/// An ordinary user without other processes.
const NOBODY: u32 = 65534;

fn wait_until(name: &str, mut condition: impl FnMut() -> bool) {
    let holds = (0..TRIES_MAX).any(|_| {
        thread::park_timeout(PAUSE);
        condition()
    });
    assert!(holds, "{name}");
}

/// `None`, with a message, where mount namespaces cannot be made.
fn pool() -> Option<MountedFixture> {
    if !can_mount() {
        return None;
    }
    let unshare = Command::new("unshare").args(["-rm", "true"]).status();
    if !unshare.is_ok_and(|ended| ended.success()) {
        skip(Need::Namespaces, "unshare failed");
        return None;
    }
    Some(MountedFixture::new())
}

fn run(pool: &MountedFixture, script: &str) -> CommandResult {
    pool.0.run(["tx", "run", "--in", "mnt", "--", "sh", "-c", script])
}

fn list(pool: &MountedFixture) -> Vec<Value> {
    let list = pool.0.run(["tx", "list", "--in", "mnt", "--json"]).succeeded();
    documents(&list)
}

/// Starts a script in a transaction.
fn start(pool: &MountedFixture, script: &str) -> Child {
    let mut command = pool.0.command(["tx", "run", "--in", "mnt", "--", "sh", "-c", script]);
    command.stderr(Stdio::null()).spawn().expect("the binary runs")
}

#[test]
fn a_program_that_succeeds_is_committed_whole_and_one_that_fails_changes_nothing() {
    let Some(pool) = pool() else { return };
    fs::write(pool.0.path("mnt/old"), b"before").expect("written");
    assert!(!pool.0.path("mnt/new").exists());
    run(&pool, "mkdir mnt/new && echo after > mnt/old && cp mnt/old mnt/new/file").succeeded();
    assert_eq!(fs::read(pool.0.path("mnt/new/file")).expect("committed"), b"after\n");
    assert_eq!(fs::read(pool.0.path("mnt/old")).expect("there"), b"after\n");

    let said = run(&pool, "rm -r mnt/old mnt/new; ls mnt | grep -q . && exit 9; exit 7").failed(7);
    assert!(said.contains("aborted"), "{said}");
    assert!(pool.0.path("mnt/old").exists() && pool.0.path("mnt/new/file").exists());
    assert!(list(&pool).is_empty());
}

#[test]
fn the_program_is_where_it_was_and_sees_the_transaction_there() {
    let Some(pool) = pool() else { return };
    fs::create_dir_all(pool.0.path("mnt/a/b")).expect("made");
    let mut inside = pool.0.command(["tx", "run", "--", "sh", "-c", "pwd > here; echo $WARPFIRE_TX > ../id"]);
    let ran =
        CommandResult::from(inside.current_dir(pool.0.path("mnt/a/b")).output().expect("the binary runs"));
    ran.succeeded();
    let here = fs::read_to_string(pool.0.path("mnt/a/b/here")).expect("committed");
    assert!(here.trim_end().ends_with("mnt/a/b"), "{here}");
    assert_eq!(fs::read(pool.0.path("mnt/a/id")).expect("committed"), b"1\n");
}

#[test]
fn exit_codes_name_the_failure() {
    let Some(pool) = pool() else { return };
    pool.0.run(["tx", "run", "--in", "mnt", "no-such-program"]).failed(127);
    pool.0.run(["tx", "run", "--in", "mnt", "--", "/"]).failed(126);
    run(&pool, "kill -TERM $$").failed(128 + 15);
    let said = run(&pool, &format!("{} tx run --in mnt true", env!("CARGO_BIN_EXE_warpfire"))).failed(125);
    assert!(said.contains("not nested"), "{said}");
    pool.0.run(["tx", "run", "--in", "pool", "true"]).failed(1);
    let said = pool.0.run(["tx", "commit", "--in", "mnt", "99"]).failed(1);
    assert!(said.contains("no transaction 99"), "{said}");
}

#[test]
fn of_two_that_conflict_the_second_is_refused_with_the_path() {
    let Some(pool) = pool() else { return };
    fs::write(pool.0.path("mnt/count"), b"1\n").expect("written");
    let first =
        "n=$(cat mnt/count); touch read; while [ ! -e go ]; do sleep 0.02; done; echo $((n + 1)) > mnt/count";
    let command = ["tx", "run", "--in", "mnt", "--", "sh", "-c", first];
    let slow = pool.0.command(command).stderr(Stdio::piped()).spawn().expect("the binary runs");
    wait_until("the first has read", || pool.0.path("read").exists());
    run(&pool, "echo 10 > mnt/count; echo x > mnt/other").succeeded();
    fs::write(pool.0.path("go"), b"").expect("written");
    let said = CommandResult::from(slow.wait_with_output().expect("it ends")).failed(75);
    assert!(said.contains("/count") && said.contains("nothing has changed"), "{said}");
    assert_eq!(fs::read(pool.0.path("mnt/count")).expect("read"), b"10\n");
}

#[test]
fn two_transactions_that_make_different_files_in_one_directory_both_commit() {
    let Some(pool) = pool() else { return };
    fs::create_dir(pool.0.path("mnt/d")).expect("made");
    let make = |name: &str| {
        start(
            &pool,
            &format!("echo {name} > mnt/d/{name}; touch {name}; while [ ! -e go ]; do sleep 0.02; done"),
        )
    };
    let mut both = [make("a"), make("b")];
    wait_until("both have made theirs", || ["a", "b"].iter().all(|name| pool.0.path(name).exists()));
    assert_eq!(fs::read_dir(pool.0.path("mnt/d")).expect("listed").count(), 0);
    fs::write(pool.0.path("go"), b"").expect("written");
    for one in &mut both {
        assert!(one.wait().expect("it ends").success());
    }
    assert_eq!(fs::read_dir(pool.0.path("mnt/d")).expect("listed").count(), 2);
}

#[test]
fn killing_tx_run_aborts() {
    let Some(pool) = pool() else { return };
    let mut killed = start(&pool, "echo x > mnt/file; touch begun; exec sleep 60");
    wait_until("it has begun", || pool.0.path("begun").exists());
    assert_eq!(list(&pool).len(), 1);
    killed.kill().expect("it runs");
    killed.wait().expect("it ends");
    wait_until("the server has noticed", || list(&pool).is_empty());
    assert!(!pool.0.path("mnt/file").exists());
}

/// Resets signals to their defaults: a shell makes its background programs ignore some.
const DEFAULT_SIGNALS: [&str; 2] = ["env", "--default-signal=INT,QUIT,TERM,HUP,USR1,USR2"];

/// Sends a signal to `tx run` alone once its program has made the file `begun`, and returns the exit code of
/// `tx run`.
fn signalled(pool: &MountedFixture, signal: &str, script: &str) -> Option<i32> {
    let _ = fs::remove_file(pool.0.path("begun"));
    let words = ["tx", "run", "--in", "mnt", "--"].iter().chain(&DEFAULT_SIGNALS);
    let mut command = pool.0.command(words.chain(&["sh", "-c", script]));
    let mut running = command.stderr(Stdio::null()).spawn().expect("the binary runs");
    wait_until("it has begun", || pool.0.path("begun").exists());
    let id = running.id().to_string();
    assert!(Command::new("kill").args([&format!("-{signal}"), &id]).status().expect("kill runs").success());
    running.wait().expect("it ends").code()
}

#[test]
fn a_signal_to_tx_run_alone_reaches_the_program_which_decides() {
    let Some(pool) = pool() else { return };
    for (signal, number) in [("INT", 2), ("QUIT", 3), ("TERM", 15), ("HUP", 1), ("USR1", 10), ("USR2", 12)] {
        let wait = "touch begun; while true; do sleep 0.02; done";
        let handled = format!("trap 'echo got > mnt/{signal}; exit 0' {signal}; {wait}");
        assert_eq!(signalled(&pool, signal, &handled), Some(0), "{signal}");
        assert_eq!(fs::read(pool.0.path("mnt").join(signal)).expect("committed"), b"got\n");
        let not_handled = format!("echo x > mnt/lost; {wait}");
        assert_eq!(signalled(&pool, signal, &not_handled), Some(128 + number), "{signal}");
        assert!(!pool.0.path("mnt/lost").exists(), "{signal}");
        assert!(list(&pool).is_empty());
    }
}

#[test]
fn processes_that_the_program_leaves_are_waited_for() {
    let Some(pool) = pool() else { return };
    run(&pool, "(sleep 0.5; echo late > mnt/late) & exit 0").succeeded();
    assert_eq!(fs::read(pool.0.path("mnt/late")).expect("committed"), b"late\n");
}

#[test]
fn a_program_that_leaves_a_process_that_stays_is_aborted() {
    let Some(pool) = pool() else { return };
    let script = "echo x > mnt/file; setsid sleep 30 > /dev/null 2>&1 & echo $! > left; exit 0";
    let said = run(&pool, script).failed(125);
    assert!(said.contains("left processes behind"), "{said}");
    assert!(!pool.0.path("mnt/file").exists());
    let left = fs::read_to_string(pool.0.path("left")).expect("written");
    assert!(Command::new("kill").arg(left.trim()).status().expect("kill runs").success());
}

#[test]
fn a_transaction_is_begun_worked_in_from_anywhere_and_committed() {
    let Some(pool) = pool() else { return };
    let begun = pool.0.run(["tx", "begin", "--in", "mnt"]).succeeded();
    let (id, view) = begun.trim_end().split_once(' ').expect("an id and a directory");
    fs::write(Path::new(view).join("file"), b"x").expect("written");
    assert!(!pool.0.path("mnt/file").exists());
    assert_eq!((list(&pool).len(), list(&pool)[0]["state"].as_str()), (1, Some("open")));
    assert!(pool.0.run(["tx", "status", "--in", "mnt", id]).succeeded().contains(view));
    let mut guest = Command::new("sleep").arg("60").current_dir(view).spawn().expect("sleep runs");
    let said = pool.0.run(["tx", "commit", "--in", "mnt", id]).failed(1);
    assert!(said.contains("in use"), "{said}");
    guest.kill().expect("it runs");
    guest.wait().expect("it ends");
    pool.0.run(["tx", "commit", "--durable", "--in", "mnt", id]).succeeded();
    assert_eq!(fs::read(pool.0.path("mnt/file")).expect("committed"), b"x");
    assert!(!Path::new(view).exists());
    assert!(pool.0.run(["tx", "list", "--in", "mnt"]).succeeded().contains("no transaction"));
}

#[test]
fn a_diff_says_in_lines_and_in_json_what_a_commit_would_change() {
    let Some(pool) = pool() else { return };
    fs::write(pool.0.path("mnt/grown"), vec![b'x'; 100]).expect("written");
    fs::write(pool.0.path("mnt/moved"), b"x").expect("written");
    pool.0.run(["tx", "diff", "--in", "mnt"]).failed(1);
    let begun = pool.0.run(["tx", "begin", "--in", "mnt"]).succeeded();
    let (id, view) = begun.trim_end().split_once(' ').expect("an id and a directory");
    assert_eq!(pool.0.run(["tx", "diff", "--in", "mnt", id]).succeeded(), "nothing would change\n");
    assert_eq!(pool.0.run(["tx", "diff", "--in", "mnt", id, "--json"]).succeeded(), "");
    let work = format!(
        "cd {view} && printf 0123456789 >> grown && chmod 600 grown && mkdir d && mv moved d/ && ln grown z"
    );
    assert!(Command::new("sh").args(["-c", &work]).status().expect("sh runs").success());
    let lines = "created  /d  (directory)\n\
        renamed  /moved -> /d/moved\n\
        changed  /grown  (10 bytes at 100, size 100 -> 110, mode 0644 -> 0600, time)\n\
        linked   /z  (another name of /grown)\n";
    assert_eq!(pool.0.run(["tx", "diff", "--in", "mnt", id]).succeeded(), lines);
    assert_eq!(pool.0.run(["tx", "diff", "--in", "mnt"]).succeeded(), lines, "it is the only one");
    let changes = pool.0.run(["tx", "diff", "--in", "mnt", id, "--json"]).succeeded();
    let changes = documents(&changes);
    let words: Vec<&str> = changes.iter().map(|one| one["change"].as_str().expect("a word")).collect();
    assert_eq!(words, ["created", "renamed", "changed", "linked"]);
    assert_eq!(
        (&changes[1]["from"], &changes[1]["path"]),
        (&Value::from("/moved"), &Value::from("/d/moved"))
    );
    assert_eq!(changes[2]["differs"], serde_json::json!(["data", "size", "mode", "modified"]));
    assert_eq!(changes[2]["data"], serde_json::json!({"bytes": 10, "ranges": 1, "first": [[100, 110]]}));
    assert_eq!(changes[2]["before"]["mode"], "0644");
    assert_eq!(changes[3]["from"], "/grown");
    pool.0.run(["tx", "commit", "--in", "mnt", id]).succeeded();
    pool.0.run(["tx", "diff", "--in", "mnt", id]).failed(1);
}

#[test]
fn a_program_in_a_transaction_asks_what_it_has_changed() {
    let Some(pool) = pool() else { return };
    let warpfire = env!("CARGO_BIN_EXE_warpfire");
    run(&pool, &format!("echo x > mnt/file && {warpfire} tx diff --in mnt > changes; echo more >> mnt/file"))
        .succeeded();
    let changes = fs::read_to_string(pool.0.path("changes")).expect("written");
    assert_eq!(changes, "created  /file  (file, 2 B)\n");
    assert_eq!(fs::read(pool.0.path("mnt/file")).expect("committed"), b"x\nmore\n");
}

#[test]
fn an_aborted_transaction_is_gone() {
    let Some(pool) = pool() else { return };
    let begun = pool.0.run(["tx", "begin", "--in", "mnt"]).succeeded();
    let (id, view) = begun.trim_end().split_once(' ').expect("an id and a directory");
    fs::write(Path::new(view).join("file"), b"x").expect("written");
    pool.0.run(["tx", "abort", "--in", "mnt", id]).succeeded();
    assert!(!pool.0.path("mnt/file").exists());
    pool.0.run(["tx", "abort", "--in", "mnt", id]).failed(1);
}

/// A directory that an ordinary user owns, with a copy of the binary that all users can run; `None`, with a
/// message, unless root runs the tests.
fn reachable(fixture: &Fixture, owner: u32) -> Option<()> {
    if !rustix::process::geteuid().is_root() {
        skip(Need::Root, "only root can run a command as another user");
        return None;
    }
    fs::copy(env!("CARGO_BIN_EXE_warpfire"), fixture.path("warpfire")).expect("copied");
    assert!(fixture.shell(0, &format!("chmod 755 . && chown -R {owner} .")).success());
    Some(())
}

impl Fixture {
    /// Runs a script in the directory as a user.
    fn shell(&self, uid: u32, script: &str) -> std::process::ExitStatus {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(self.path("")).uid(uid).gid(uid);
        shell.env_remove("XDG_RUNTIME_DIR").status().expect("sh runs")
    }
}

#[test]
fn an_ordinary_user_does_it_on_a_mount_of_root_and_on_his_own() {
    if pool().is_none() {
        return;
    }
    for own in [false, true] {
        let fixture = Fixture::empty();
        fs::create_dir(fixture.path("mnt")).expect("made");
        let mounter = if own { NOBODY } else { 0 };
        let Some(()) = reachable(&fixture, mounter) else { return };
        assert!(fixture.shell(mounter, "./warpfire mkfs --size 64M --data 1 --parity 0 pool").success());
        let mount = if own {
            "./warpfire mount pool mnt"
        } else {
            "./warpfire mount --allow-other pool mnt && chmod 777 mnt"
        };
        if !fixture.shell(mounter, mount).success() {
            assert!(own, "root can mount");
            return skip(Need::UserMounts, "warpfire mount failed as an ordinary user");
        }
        let done = fixture
            .shell(NOBODY, "./warpfire tx run --in mnt -- sh -c 'echo $(id -u) > mnt/file && mkdir mnt/d'");
        let look = "./warpfire tx run --in mnt -- sh -c 'rm mnt/file && ./warpfire tx diff --in mnt; exit 3'";
        let looked = fixture.shell(NOBODY, &format!("{look} > mnt/changes"));
        let changes = fixture.shell(NOBODY, "test \"$(cat mnt/changes)\" = 'deleted  /file  (file, 6 B)'");
        let mine = fixture.shell(NOBODY, "test $(cat mnt/file) = 65534 && test -O mnt/d");
        let refused = fixture.shell(NOBODY, "./warpfire tx run --in mnt -- sh -c 'rm mnt/file; exit 3'");
        let kept = fixture.shell(NOBODY, "test -e mnt/file");
        let others = !own && fixture.shell(0, "./warpfire tx begin --in mnt > begun").success();
        let not_mine = fixture.shell(NOBODY, "./warpfire tx abort --in mnt $(cut -d' ' -f1 begun)");
        let not_told = fixture.shell(NOBODY, "./warpfire tx diff --in mnt $(cut -d' ' -f1 begun)");
        let unmounted = fixture.shell(mounter, "./warpfire umount --force mnt");
        assert!(
            done.success() && mine.success() && kept.success() && unmounted.success(),
            "own mount: {own}"
        );
        assert_eq!(refused.code(), Some(3));
        assert_eq!((looked.code(), changes.success()), (Some(3), true), "own mount: {own}");
        if others {
            assert_eq!((not_mine.code(), not_told.code()), (Some(1), Some(1)), "it is root's");
        }
    }
}

#[test]
fn a_pool_with_open_transactions_is_unmounted_only_by_force() {
    let Some(pool) = pool() else { return };
    pool.0.run(["tx", "begin", "--in", "mnt"]).succeeded();
    let said = pool.0.run(["umount", "mnt"]).failed(1);
    assert!(said.contains("in use: 1 transaction is open") && said.contains("--force"), "{said}");
    assert_eq!(list(&pool).len(), 1);
    pool.0.run(["umount", "--force", "mnt"]).succeeded();
}
