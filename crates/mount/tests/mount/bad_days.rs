//! Failures of transactions and slices on a mount, case by case as docs/IOCTLS.md lists them, and requests
//! that take long.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use warpfire_mount::{MountOptions, MountedSlice, TransactionClient, TransactionState};
use warpfire_test_needs::{Need, skip};
use warpfire_units::BLOCK_BYTES;

use crate::fixture::MountFixture;
use crate::views::{begun, commit, is, wait_until};

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_slice_of_another_mount_is_none() {
    let (Some(one), Some(other)) = (MountFixture::new(), MountFixture::new()) else { return };
    for fixture in [&one, &other] {
        fs::write(fixture.at("file"), b"content").unwrap();
    }
    let slice = MountedSlice::yank(&open(&other.at("file")), 0..4).unwrap();
    assert!(is(&slice.paste(&open(&one.at("file")), None).unwrap_err(), Errno::NOENT));
    assert_eq!(fs::read(one.at("file")).unwrap(), b"content");
}

#[test]
fn a_commit_after_an_abort_finds_nothing_and_the_other_way_round() {
    let Some(fixture) = MountFixture::new() else { return };
    let (control, id, view) = begun(&fixture);
    fs::write(view.join("file"), b"x").unwrap();
    control.abort(id).unwrap();
    assert!(is(&control.commit(id, true).unwrap_err(), Errno::NOENT));
    assert!(is(&control.abort(id).unwrap_err(), Errno::NOENT));
    assert!(!fixture.at("file").exists());
    let (control, id, view) = begun(&fixture);
    fs::write(view.join("file"), b"x").unwrap();
    assert_eq!(commit(&control, id).state, TransactionState::Committed);
    assert!(is(&control.abort(id).unwrap_err(), Errno::NOENT));
    assert!(fixture.at("file").exists());
}

#[test]
fn of_concurrent_commits_of_one_transaction_one_succeeds() {
    const ROUNDS: usize = 10;
    let Some(fixture) = MountFixture::new() else { return };
    let mounted = fixture.path();
    for round in 0..ROUNDS {
        let (control, id, view) = begun(&fixture);
        fs::write(view.join(format!("{round}")), b"x").unwrap();
        let one = || match TransactionClient::open(mounted).unwrap().commit(id, false) {
            Ok(report) => {
                assert_eq!(report.state, TransactionState::Committed);
                1
            }
            Err(e) => {
                assert!(is(&e, Errno::NOENT) || is(&e, Errno::BUSY), "{e}");
                0
            }
        };
        let committed: usize = thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|one| one.join().unwrap()).sum()
        });
        // None succeeds if a child process of another test has a copy of a descriptor in the view at that
        // moment.
        if committed == 0 {
            commit(&control, id);
        }
        assert!(committed <= 1);
        assert!(fixture.at(&format!("{round}")).exists());
        assert!(is(&control.commit(id, false).unwrap_err(), Errno::NOENT));
    }
}

#[test]
fn a_view_that_is_used_after_its_commit_is_gone() {
    let Some(fixture) = MountFixture::new() else { return };
    let (control, id, view) = begun(&fixture);
    fs::write(view.join("file"), b"x").unwrap();
    assert_eq!(commit(&control, id).state, TransactionState::Committed);
    assert!(is(&fs::read(view.join("file")).unwrap_err(), Errno::NOENT));
    assert!(is(&fs::write(view.join("late"), b"x").unwrap_err(), Errno::NOENT));
    assert!(!fixture.at("late").exists());
}

/// A mount namespace has its own copy of the view's mount, so the commit does not find the view in use.
#[test]
fn a_file_open_in_another_mount_namespace_gets_errors_after_the_commit() {
    let Some(fixture) = MountFixture::new() else { return };
    let (control, id, view) = begun(&fixture);
    fs::write(view.join("file"), b"x").unwrap();
    let directory = tempfile::tempdir().unwrap();
    // The script ends with 9 if it could not write.
    let script = "exec 3<> \"$1/file\"; : > \"$2/ready\"; until [ -e \"$2/go\" ]; do sleep 0.02; done; \
        echo late >&3 || exit 9";
    let started = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .args([view.as_path(), directory.path()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut other) = started else { return skip(Need::Namespaces, "there is no unshare") };
    let ready = || directory.path().join("ready").exists();
    let mut ended = None;
    wait_until("the script has the file open, or has no namespace", || {
        ended = other.try_wait().unwrap();
        ready() || ended.is_some()
    });
    if !ready() {
        control.abort(id).unwrap();
        return skip(Need::Namespaces, "unshare failed");
    }
    assert_eq!(commit(&control, id).state, TransactionState::Committed);
    fs::write(directory.path().join("go"), b"").unwrap();
    assert_eq!(other.wait().unwrap().code(), Some(9));
    assert_eq!(fs::read(fixture.at("file")).unwrap(), b"x");
}

#[test]
fn a_transaction_that_fills_the_pool_gets_an_error_and_others_go_on() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("others"), vec![1; 1 << 20]).unwrap();
    let (control, id, view) = begun(&fixture);
    let mut file = File::create(view.join("large")).unwrap();
    let full = (0..1000).find_map(|_| file.write_all(&[2; 1 << 20]).err()).expect("the pool has an end");
    assert!(is(&full, Errno::NOSPC), "{full}");
    drop(file);
    assert_eq!(fs::read(fixture.at("others")).unwrap(), vec![1; 1 << 20]);
    fs::remove_file(fixture.at("others")).unwrap();
    control.abort(id).unwrap();
    assert!(!fixture.at("large").exists());
    for _ in 0..50 {
        fs::write(fixture.at("more"), vec![3; 1 << 20]).unwrap();
    }
}

#[test]
fn a_transaction_whose_client_is_killed_is_aborted() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = crate::fixture::c_program("transaction", directory.path()) else { return };
    for (mode, what_stays) in [("wait", 0), ("chain", 1)] {
        let Some(fixture) = MountFixture::new() else { return };
        kill_client(&fixture, &program, mode);
        assert_eq!(fs::read_dir(fixture.path()).unwrap().count(), what_stays, "{mode}");
    }
}

/// Kills a program whose transaction has made a file `made`.
fn kill_client(fixture: &MountFixture, program: &Path, mode: &str) {
    let mut client = Command::new(program).arg(mode).arg(fixture.path()).spawn().unwrap();
    let control = TransactionClient::open(fixture.path()).unwrap();
    let mut view = None;
    wait_until("it has made a file", || {
        view = control.list().unwrap().pop();
        view.as_ref().is_some_and(|report| report.path.join("made").exists())
    });
    let report = view.unwrap();
    assert_eq!(report.pid, Some(client.id()));
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("the server has noticed", || control.list().unwrap().is_empty());
    assert!(!fixture.at("made").exists() && !report.path.exists());
}

/// Whether the mount waits while it reads a moment in a name.
static HELD: Mutex<bool> = Mutex::new(false);
static IS_ASKED: AtomicBool = AtomicBool::new(false);
static LET_GO: Condvar = Condvar::new();
/// It waits no longer than this, so that a test fails and does not hang.
const HELD_MAX: Duration = Duration::from_secs(20);

#[test]
fn a_request_that_takes_long_keeps_no_other_one_waiting() {
    let parse_moment = |_: &str| {
        IS_ASKED.store(true, Ordering::SeqCst);
        let held = HELD.lock().unwrap();
        drop(LET_GO.wait_timeout_while(held, HELD_MAX, |held| *held).unwrap());
        None
    };
    let options = MountOptions { threads: 2, parse_moment, ..MountOptions::default() };
    let Some(fixture) = MountFixture::mounted(&options) else { return };
    // One program after the other: one thread suffices, and the other one rests.
    for number in 0..200 {
        fs::write(fixture.at(&number.to_string()), b"x").unwrap();
    }
    *HELD.lock().unwrap() = true;
    thread::scope(|scope| {
        let path = fixture.at(".snapshots/@held");
        let long = scope.spawn(move || fs::metadata(path));
        wait_until("the request is served", || IS_ASKED.load(Ordering::SeqCst));
        // Each of these is a request, or several.
        for number in 0..100 {
            fs::write(fixture.at(&format!("other-{number}")), b"x").unwrap();
        }
        assert!(!long.is_finished(), "it is held up");
        *HELD.lock().unwrap() = false;
        LET_GO.notify_all();
        assert_eq!(long.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::NotFound);
    });
}

/// Direct reads, each of which is a request, by many threads at the same time.
#[test]
fn readers_of_sound_files_beside_a_damaged_one_get_their_bytes() {
    const FILES: usize = 8;
    const BLOCKS: usize = 32;
    const THREADS: usize = 16;
    let Some(fixture) = MountFixture::new() else { return };
    let block = |file: usize, number: usize| [(file * BLOCKS + number) as u8 | 1; BLOCK_BYTES];
    let mounted = fixture.path();
    let path = |file: usize| mounted.join(format!("file {file}"));
    for file in 0..FILES {
        let content: Vec<[u8; BLOCK_BYTES]> = (0..BLOCKS).map(|number| block(file, number)).collect();
        fs::write(path(file), content.concat()).unwrap();
    }
    let damaged = [0xAE; BLOCK_BYTES];
    fs::write(path(FILES), damaged.repeat(BLOCKS)).unwrap();
    fixture.fs().sync().unwrap();
    assert_eq!(fixture.destroy_blocks(&damaged), BLOCKS);
    let read_all = &|thread: usize| {
        let mut read = vec![0; BLOCK_BYTES];
        let mut direct = File::options();
        direct.read(true).custom_flags(libc::O_DIRECT);
        let files: Vec<File> = (0..=FILES).map(|file| direct.open(path(file)).unwrap()).collect();
        for turn in 0..20 * BLOCKS {
            let (file, number) = ((turn + thread) % (FILES + 1), turn * 7 % BLOCKS);
            let answer = files[file].read_exact_at(&mut read, (number * BLOCK_BYTES) as u64);
            if file == FILES {
                assert_eq!(answer.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
            } else {
                answer.unwrap();
                assert_eq!(read, block(file, number), "block {number} of file {file}");
            }
        }
    };
    thread::scope(|scope| {
        (0..THREADS).for_each(|thread| _ = scope.spawn(move || read_all(thread)));
    });
}
