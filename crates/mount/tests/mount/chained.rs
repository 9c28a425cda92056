//! Commits that begin the next transaction in the same view, with the files that programs have open there.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use warpfire_env::{Clock, SystemClock};
use warpfire_mount::{TransactionClient, TransactionReport, TransactionState};

use super::fixture::{Mapping, MountFixture, run_as};
use super::views::{begun, commit, is, wait_until};

/// Commits and goes on. Tries again while a starting child process of another test has a copy of a descriptor
/// of a directory.
fn chain(control: &TransactionClient, id: u64) -> TransactionReport {
    let mut report = None;
    wait_until("the chained commit ends", || match control.commit_and_chain(id, false) {
        Err(e) if is(&e, Errno::BUSY) => false,
        outcome => {
            report = Some(outcome.unwrap());
            true
        }
    });
    report.unwrap()
}

/// A chained commit that succeeds. Returns the number of the next transaction.
fn chained(control: &TransactionClient, id: u64) -> u64 {
    let report = chain(control, id);
    assert_eq!(report.state, TransactionState::Committed);
    assert!(report.id > id);
    report.id
}

fn append_to(path: &Path, bytes: &[u8]) {
    File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let len = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn open_files_belong_to_the_next_transaction() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::create_dir(fixture.at("d")).unwrap();
    fs::write(fixture.at("log"), b"0").unwrap();
    fs::write(fixture.at("d/read"), b"before").unwrap();
    let (control, first, view) = begun(&fixture);
    let mut log = File::options().append(true).open(view.join("log")).unwrap();
    let read = File::open(view.join("d/read")).unwrap();
    let mut made = File::options().read(true).write(true).create_new(true).open(view.join("made")).unwrap();
    assert_eq!(read_all(&read), b"before");
    log.write_all(b"1").unwrap();
    made.write_all(b"made").unwrap();
    let second = chained(&control, first);
    assert!(!view.exists());
    assert!(is(&control.status(first).unwrap_err(), Errno::NOENT));
    assert_eq!(fs::read(fixture.at("log")).unwrap(), b"01");
    assert_eq!(fs::read(fixture.at("made")).unwrap(), b"made");

    append_to(&fixture.at("log"), b"2");
    fs::write(fixture.at("d/read"), b"afterwards").unwrap();
    let third = chained(&control, second);
    assert_eq!(read_all(&read), b"afterwards");
    assert_eq!(read.metadata().unwrap().len(), 10);
    log.write_all(b"3").unwrap();
    made.write_all(b", and more").unwrap();
    assert_eq!(fs::read(fixture.at("log")).unwrap(), b"012", "nobody sees an open transaction");
    let next = control.status(third).unwrap();
    assert_eq!((next.state, next.path.parent()), (TransactionState::Open, view.parent()));
    assert_eq!(fs::read(next.path.join("log")).unwrap(), b"0123");
    fs::write(next.path.join("d/new"), b"by path").unwrap();
    let fourth = chained(&control, third);
    assert_eq!(fs::read(fixture.at("log")).unwrap(), b"0123");
    assert_eq!(fs::read(fixture.at("made")).unwrap(), b"made, and more");
    assert_eq!(fs::read(fixture.at("d/new")).unwrap(), b"by path");

    // An abort takes the changes since the last commit.
    log.write_all(b"lost").unwrap();
    control.abort(fourth).unwrap();
    assert!(log.write_all(b"x").is_err());
    assert_eq!(fs::read(fixture.at("log")).unwrap(), b"0123");
}

/// The kernel has the end of the file from before the commit, which another program has moved.
#[test]
fn an_append_that_goes_to_another_end_than_the_kernel_knows_is_read_where_it_is() {
    const PAGE: usize = 4096;
    let page = |byte: u8| [byte; PAGE];
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("log"), page(b'A')).unwrap();
    let (control, first, view) = begun(&fixture);
    let mut log = File::options().read(true).append(true).open(view.join("log")).unwrap();
    log.write_all(&page(b'B')).unwrap();
    append_to(&fixture.at("log"), &page(b'C'));
    let second = chained(&control, first);
    log.write_all(&page(b'X')).unwrap();
    // Page by page: a read across the end that the kernel knows would ask for the size and drop all pages.
    let seen = || {
        let mut bytes = page(0);
        let mut read = |n: usize| log.read_at(&mut bytes, (n * PAGE) as u64).map(|_| bytes[0]).unwrap();
        [read(0), read(1), read(2)]
    };
    // The pages are dropped after the write is answered.
    wait_until("the pages of the other end are dropped", || seen() == *b"ACB");
    drop(log);
    assert_eq!(commit(&control, second).state, TransactionState::Committed);
    let committed: Vec<u8> = [b'A', b'C', b'B', b'X'].into_iter().flat_map(page).collect();
    assert!(fs::read(fixture.at("log")).unwrap() == committed);
}

#[test]
fn the_last_commit_of_a_chain_is_like_any_other() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("log"), b"").unwrap();
    let (control, first, view) = begun(&fixture);
    let mut log = File::options().append(true).open(view.join("log")).unwrap();
    log.write_all(b"1").unwrap();
    let second = chained(&control, first);
    log.write_all(b"2").unwrap();
    drop(log);
    assert_eq!(commit(&control, second).state, TransactionState::Committed);
    assert_eq!(fs::read(fixture.at("log")).unwrap(), b"12");
    assert!(control.list().unwrap().is_empty());
    // The view is kept for the next transaction.
    let (control, id, again) = begun(&fixture);
    assert_eq!(again.parent(), view.parent());
    assert_eq!(fs::read(again.join("log")).unwrap(), b"12");
    control.abort(id).unwrap();
}

#[test]
fn a_conflict_begins_the_next_transaction_too() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("read"), b"old").unwrap();
    fs::write(fixture.at("log"), b"").unwrap();
    let (control, first, view) = begun(&fixture);
    let read = File::open(view.join("read")).unwrap();
    let mut log = File::options().append(true).open(view.join("log")).unwrap();
    assert_eq!(read_all(&read), b"old");
    fs::write(fixture.at("read"), b"new").unwrap();
    log.write_all(b"depends on old").unwrap();
    let report = chain(&control, first);
    assert_eq!((report.state, report.path.to_str()), (TransactionState::Conflict, Some("/read")));
    assert_eq!(fs::read(fixture.at("log")).unwrap(), b"");
    assert_eq!(read_all(&read), b"new");
    log.write_all(b"depends on new").unwrap();
    let third = chained(&control, report.id);
    assert_eq!(fs::read(fixture.at("log")).unwrap(), b"depends on new");
    control.abort(third).unwrap();
}

#[test]
fn a_file_that_others_have_moved_or_removed_is_stale_and_the_rest_goes_on() {
    let Some(fixture) = MountFixture::new() else { return };
    for name in ["moved", "removed", "linked", "stays"] {
        fs::write(fixture.at(name), name).unwrap();
    }
    fs::hard_link(fixture.at("linked"), fixture.at("linked-2")).unwrap();
    let (control, first, view) = begun(&fixture);
    let open = |name: &str| File::options().append(true).open(view.join(name)).unwrap();
    let [mut moved, mut removed, mut linked, mut stays] = ["moved", "removed", "linked", "stays"].map(open);
    fs::rename(fixture.at("moved"), fixture.at("elsewhere")).unwrap();
    fs::remove_file(fixture.at("removed")).unwrap();
    // It has its own record, so it is found by any name.
    fs::rename(fixture.at("linked"), fixture.at("linked-3")).unwrap();
    let second = chained(&control, first);
    for file in [&mut moved, &mut removed] {
        assert!(is(&file.write_all(b"x").unwrap_err(), Errno::STALE));
    }
    linked.write_all(b"+").unwrap();
    stays.write_all(b"+").unwrap();
    let third = chained(&control, second);
    assert_eq!(fs::read(fixture.at("elsewhere")).unwrap(), b"moved");
    assert_eq!(fs::read(fixture.at("linked-2")).unwrap(), b"linked+");
    assert_eq!(fs::read(fixture.at("stays")).unwrap(), b"stays+");
    control.abort(third).unwrap();
}

#[test]
fn mappings_show_each_transaction_and_take_no_commit_back() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("mapped"), [b'.'; 8192]).unwrap();
    let (control, first, view) = begun(&fixture);
    let file = File::options().read(true).write(true).open(view.join("mapped")).unwrap();
    let mut mapping = Mapping::new(&file, 8192);
    mapping.bytes()[0] = b'1';
    let second = chained(&control, first);
    assert_eq!(fs::read(fixture.at("mapped")).unwrap()[..2], *b"1.");
    // In the same page, by others.
    File::options().write(true).open(fixture.at("mapped")).unwrap().write_all_at(b"o", 1).unwrap();
    let third = chained(&control, second);
    assert_eq!(mapping.bytes()[..3], *b"1o.");
    mapping.bytes()[2] = b'3';
    let fourth = chained(&control, third);
    assert_eq!(fs::read(fixture.at("mapped")).unwrap()[..4], *b"1o3.");
    drop(mapping);
    control.abort(fourth).unwrap();
}

#[test]
fn a_working_directory_goes_on_into_the_next_transaction() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::create_dir(fixture.at("d")).unwrap();
    let (control, first, view) = begun(&fixture);
    let directory = tempfile::tempdir().unwrap();
    let script = "cd \"$1/d\"; echo 1 > first; : > \"$2/ready\"; until [ -e \"$2/go\" ]; do sleep 0.02; done; \
        cat first outside > second";
    let mut program = Command::new("sh")
        .args(["-c", script, "sh"])
        .args([view.as_path(), directory.path()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the program is in the view", || directory.path().join("ready").exists());
    let second = chained(&control, first);
    assert_eq!(fs::read(fixture.at("d/first")).unwrap(), b"1\n");
    fs::write(fixture.at("d/outside"), b"2\n").unwrap();
    let third = chained(&control, second);
    fs::write(directory.path().join("go"), b"").unwrap();
    assert!(program.wait().unwrap().success());
    assert_eq!(commit(&control, third).state, TransactionState::Committed);
    assert_eq!(fs::read(fixture.at("d/second")).unwrap(), b"1\n2\n");
}

#[test]
fn a_directory_that_is_listed_and_too_many_open_files_refuse_the_commit() {
    let Some(fixture) = MountFixture::new() else { return };
    let (control, first, view) = begun(&fixture);
    let mut listing = fs::read_dir(&view).unwrap();
    assert!(listing.next().is_none());
    assert!(is(&control.commit_and_chain(first, false).unwrap_err(), Errno::BUSY));
    drop(listing);
    let make = |n: u32| File::create_new(view.join(n.to_string())).unwrap();
    let mut files: Vec<File> = (0..100).map(make).collect();
    assert!(is(&control.commit_and_chain(first, false).unwrap_err(), Errno::BUSY));
    // The transaction goes on.
    files.push(make(100));
    files.truncate(50);
    let second = chained(&control, first);
    assert_eq!(fs::read_dir(fixture.path()).unwrap().count(), 101);
    files[7].write_all(b"7").unwrap();
    let third = chained(&control, second);
    assert_eq!(fs::read(fixture.at("7")).unwrap(), b"7");
    control.abort(third).unwrap();
}

/// Writes beside the commits: each is in the transaction before the commit or in the one after it.
#[test]
fn writes_of_other_threads_are_in_one_of_the_transactions() {
    let Some(fixture) = MountFixture::new() else { return };
    for name in ["appended", "written"] {
        fs::write(fixture.at(name), b"").unwrap();
    }
    let (control, first, view) = begun(&fixture);
    let mut appended = File::options().append(true).open(view.join("appended")).unwrap();
    let written = File::options().read(true).write(true).open(view.join("written")).unwrap();
    let enough = AtomicBool::new(false);
    let (lines, numbers, last) = thread::scope(|scope| {
        let appending = scope.spawn(|| {
            let mut lines = 0;
            while !enough.load(Ordering::Relaxed) {
                appended.write_all(b"line\n").unwrap();
                lines += 1;
            }
            lines
        });
        let writing = scope.spawn(|| {
            let mut n = 0u64;
            while !enough.load(Ordering::Relaxed) {
                written.write_all_at(&n.to_le_bytes(), n * 8).unwrap();
                let mut read = [0; 8];
                written.read_exact_at(&mut read, n * 8).unwrap();
                assert_eq!(u64::from_le_bytes(read), n);
                n += 1;
                // A commit is refused while pages come back in each of its rounds.
                if n.is_multiple_of(50) {
                    thread::park_timeout(Duration::from_millis(2));
                }
            }
            n
        });
        let chaining = scope.spawn(|| {
            let (mut id, mut commits) = (first, 0);
            let end = SystemClock.monotonic_nanos() + 60_000_000_000;
            while commits < 50 && SystemClock.monotonic_nanos() < end {
                match control.commit_and_chain(id, false) {
                    Ok(report) => {
                        assert_eq!(report.state, TransactionState::Committed);
                        (id, commits) = (report.id, commits + 1);
                    }
                    Err(e) if is(&e, Errno::BUSY) => {}
                    Err(e) => {
                        enough.store(true, Ordering::Relaxed);
                        panic!("{e}");
                    }
                }
            }
            enough.store(true, Ordering::Relaxed);
            assert_eq!(commits, 50, "commits that ran beside the writes in a minute");
            id
        });
        let last = chaining.join().unwrap();
        (appending.join().unwrap(), writing.join().unwrap(), last)
    });
    drop((appended, written));
    assert_eq!(commit(&control, last).state, TransactionState::Committed);
    assert_eq!(fs::read(fixture.at("appended")).unwrap(), b"line\n".repeat(lines));
    let numbers: Vec<u8> = (0..numbers).flat_map(u64::to_le_bytes).collect();
    assert_eq!(fs::read(fixture.at("written")).unwrap(), numbers);
}

#[test]
fn a_chain_ends_with_the_mount() {
    let Some(mut fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("log"), b"").unwrap();
    let (control, first, view) = begun(&fixture);
    let mut log = File::options().append(true).open(view.join("log")).unwrap();
    log.write_all(b"kept").unwrap();
    chained(&control, first);
    log.write_all(b"lost").unwrap();
    drop(control);
    fixture.end();
    assert!(log.write_all(b"x").is_err());
    let log = fixture.fs().read_file(&warpfire_fs::acl::Caller::ROOT, &fixture.fs().root(), b"log");
    assert_eq!(log.unwrap(), b"kept");
}

#[test]
fn users_chain_their_own_transactions_alone() {
    let Some(fixture) = MountFixture::shared() else { return };
    fs::write(fixture.at("log"), b"").unwrap();
    let (control, id, view) = begun(&fixture);
    let mut log = File::options().append(true).open(view.join("log")).unwrap();
    log.write_all(b"of root").unwrap();
    let mountpoint = fixture.path().to_owned();
    run_as(1001, || {
        let other = TransactionClient::open(&mountpoint).unwrap();
        assert!(is(&other.commit_and_chain(id, false).unwrap_err(), Errno::NOENT));
        // Files that this user may not write do not become writable by it.
        let begun = other.begin(false).unwrap();
        let mut file = File::open(begun.path.join("log")).unwrap();
        let next = chained(&other, begun.id);
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
        let path = other.status(next).unwrap().path;
        let refused = File::options().append(true).open(path.join("log")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        other.abort(next).unwrap();
    });
    let next = chained(&control, id);
    assert_eq!(fs::read(fixture.at("log")).unwrap(), b"of root");
    control.abort(next).unwrap();
}
