//! Transactions through the mount: the content of a view, its visibility to others, and its end.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use warpfire_mount::{ChangeKind, MountOptions, TransactionClient, TransactionReport, TransactionState};

use crate::fixture::{Mapping, MountFixture, c_program};

/// Tries of `wait_until`: ten seconds in all.
const TRIES_MAX: u32 = 500;
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until a condition holds, and fails with its name if it does not.
pub fn wait_until(name: &str, mut condition: impl FnMut() -> bool) {
    let holds = (0..TRIES_MAX).any(|_| {
        thread::park_timeout(PAUSE);
        condition()
    });
    assert!(holds, "{name}");
}

/// Commits. Tries again while a starting child process of another test has a copy of a descriptor in the
/// view.
pub fn commit(control: &TransactionClient, id: u64) -> TransactionReport {
    for _ in 0..TRIES_MAX {
        match control.commit(id, false) {
            Err(e) if is(&e, Errno::BUSY) => thread::park_timeout(PAUSE),
            committed => return committed.unwrap(),
        }
    }
    control.commit(id, false).unwrap()
}

pub fn is(e: &std::io::Error, errno: Errno) -> bool {
    e.raw_os_error() == Some(errno.raw_os_error())
}

pub fn begun(fixture: &MountFixture) -> (TransactionClient, u64, PathBuf) {
    let control = TransactionClient::open(fixture.path()).unwrap();
    let report = control.begin(false).unwrap();
    assert_eq!(report.state, TransactionState::Open);
    (control, report.id, report.path)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// How far the kernel reads ahead on the mount of this directory, in KiB; `None` if the system does not say.
fn readahead_kib(at: &Path) -> Option<u64> {
    let device = fs::metadata(at).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let setting = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).ok()?;
    setting.trim().parse().ok()
}

#[test]
fn the_kernel_reads_ahead_less_in_a_view_than_on_the_mount() {
    let Some(fixture) = MountFixture::new() else { return };
    let (control, id, view) = begun(&fixture);
    let (Some(of_mount), Some(of_view)) = (readahead_kib(fixture.path()), readahead_kib(&view)) else {
        return;
    };
    // Bytes read ahead in a view count as read. Only root can raise the kernel's 128 KiB, and a container
    // may forbid it.
    assert!([(4096, 1024), (128, 128)].contains(&(of_mount, of_view)), "{of_mount} and {of_view}");
    control.abort(id).unwrap();
}

#[test]
fn others_see_nothing_before_the_commit_and_everything_after() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("changed"), b"before").unwrap();
    fs::write(fixture.at("removed"), b"x").unwrap();
    fs::create_dir(fixture.at("old")).unwrap();
    let (control, id, view) = begun(&fixture);
    assert_eq!(fs::read(view.join("changed")).unwrap(), b"before");

    fs::write(view.join("changed"), b"after, and longer").unwrap();
    fs::remove_file(view.join("removed")).unwrap();
    fs::create_dir(view.join("new")).unwrap();
    fs::write(view.join("new/file"), b"y").unwrap();
    fs::rename(view.join("old"), view.join("moved")).unwrap();
    assert_eq!(names(&view), ["changed", "moved", "new"]);

    // The kernel has cached which of these names exist.
    assert_eq!(names(fixture.path()), ["changed", "old", "removed"]);
    assert!(!fixture.at("new").exists() && !fixture.at("moved").exists());
    assert_eq!(fs::read(fixture.at("changed")).unwrap(), b"before");
    assert_eq!(fs::metadata(fixture.at("changed")).unwrap().len(), 6);

    assert_eq!(commit(&control, id).state, TransactionState::Committed);
    assert_eq!(fs::read(fixture.at("new/file")).unwrap(), b"y");
    assert!(fixture.at("moved").exists() && !fixture.at("old").exists() && !fixture.at("removed").exists());
    assert_eq!(fs::read(fixture.at("changed")).unwrap(), b"after, and longer");
    assert_eq!(names(fixture.path()), ["changed", "moved", "new"]);
    assert_eq!(fixture.shown(), Vec::<String>::new(), "no view shows it any more");
}

#[test]
fn a_file_that_is_open_and_cached_outside_shows_the_new_content_after_the_commit() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("file"), vec![1; 3 << 20]).unwrap();
    let open = File::open(fixture.at("file")).unwrap();
    let mut content = Vec::new();
    (&open).read_to_end(&mut content).unwrap();
    let (control, id, view) = begun(&fixture);
    let inside = File::options().write(true).open(view.join("file")).unwrap();
    inside.write_all_at(&[2; 4096], 1 << 20).unwrap();
    inside.set_len(2 << 20).unwrap();
    drop(inside);
    let mut piece = [0; 4096];
    open.read_exact_at(&mut piece, 1 << 20).unwrap();
    assert_eq!(piece, [1; 4096]);
    commit(&control, id);
    open.read_exact_at(&mut piece, 1 << 20).unwrap();
    assert_eq!(piece, [2; 4096]);
    assert_eq!(open.metadata().unwrap().len(), 2 << 20);
}

#[test]
fn writes_through_a_mapping_of_the_view_are_committed() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("file"), vec![1; 8192]).unwrap();
    let (control, id, view) = begun(&fixture);
    let file = File::options().read(true).write(true).open(view.join("file")).unwrap();
    let mut mapping = Mapping::new(&file, 8192);
    mapping.bytes()[5000] = 9;
    mapping.sync();
    let change = control.changes(id).next().unwrap().unwrap();
    assert_eq!((change.data.bytes, change.data.ranges[0].start), (1, 5000), "it is listed too");
    mapping.bytes()[4998] = 8;
    drop((mapping, file));
    commit(&control, id);
    let content = fs::read(fixture.at("file")).unwrap();
    assert_eq!(content[4997..5002], [1, 8, 1, 9, 1]);
}

#[test]
fn an_aborted_transaction_leaves_nothing() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("file"), b"before").unwrap();
    let (control, id, view) = begun(&fixture);
    fs::write(view.join("file"), b"changed").unwrap();
    fs::write(view.join("new"), b"x").unwrap();
    assert_eq!(control.abort(id).unwrap().state, TransactionState::Aborted);
    assert_eq!(fs::read(fixture.at("file")).unwrap(), b"before");
    assert_eq!(names(fixture.path()), ["file"]);
    assert_eq!(fixture.views(), 0);
}

#[test]
fn a_true_conflict_refuses_the_second_and_names_the_path() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::create_dir(fixture.at("d")).unwrap();
    fs::write(fixture.at("d/count"), b"1").unwrap();
    let (control, first, first_view) = begun(&fixture);
    let second = control.begin(false).unwrap();
    for view in [&first_view, &second.path] {
        assert_eq!(fs::read(view.join("d/count")).unwrap(), b"1");
        fs::write(view.join("d/count"), b"2").unwrap();
    }
    fs::write(second.path.join("only-second"), b"x").unwrap();
    assert_eq!(commit(&control, first).state, TransactionState::Committed);
    let refused = commit(&control, second.id);
    assert_eq!((refused.state, refused.path), (TransactionState::Conflict, PathBuf::from("/d/count")));
    assert!(!refused.call.is_empty());
    assert_eq!(fs::read(fixture.at("d/count")).unwrap(), b"2");
    assert!(!fixture.at("only-second").exists());
    assert_eq!(control.status(second.id).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn transactions_that_make_different_files_in_one_directory_both_commit() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::create_dir(fixture.at("d")).unwrap();
    let (control, first, first_view) = begun(&fixture);
    let second = control.begin(false).unwrap();
    fs::write(first_view.join("d/a"), b"1").unwrap();
    fs::write(second.path.join("d/b"), b"2").unwrap();
    fs::write(fixture.at("d/c"), b"3").unwrap();
    assert_eq!(commit(&control, first).state, TransactionState::Committed);
    assert_eq!(commit(&control, second.id).state, TransactionState::Committed);
    assert_eq!(names(&fixture.at("d")), ["a", "b", "c"]);
}

/// Two shells that work in two transactions at the same time, on a mount for root and on a shared one. Both
/// commit.
fn both_commit(in_first: &str, in_second: &str, outside: &str, check: impl Fn(&MountFixture)) {
    for fixture in [MountFixture::new(), MountFixture::shared()] {
        let Some(fixture) = fixture else { return };
        fs::create_dir(fixture.at("d")).unwrap();
        fs::write(fixture.at("log"), b"").unwrap();
        let run = |directory: &Path, command: &str| {
            let done = Command::new("sh").args(["-c", command]).current_dir(directory).status().unwrap();
            assert!(done.success(), "{command}");
        };
        let (control, first, first_view) = begun(&fixture);
        let second = control.begin(false).unwrap();
        run(&first_view, in_first);
        run(&second.path, in_second);
        run(fixture.path(), outside);
        for id in [first, second.id] {
            let report = commit(&control, id);
            assert_eq!(
                (report.state, report.call),
                (TransactionState::Committed, String::new()),
                "{in_first}"
            );
        }
        check(&fixture);
    }
}

#[test]
fn directories_made_in_one_directory_are_no_conflict() {
    both_commit("mkdir d/a", "mkdir d/b", "mkdir d/c", |fixture| {
        assert_eq!(names(&fixture.at("d")), ["a", "b", "c"]);
        assert_eq!(fs::metadata(fixture.at("d")).unwrap().nlink(), 5);
    });
}

#[test]
fn lines_that_shells_append_to_one_log_are_no_conflict() {
    both_commit("echo one >> log; echo 1 >> log", "echo two >> log", "echo outside >> log", |fixture| {
        assert_eq!(fs::read_to_string(fixture.at("log")).unwrap(), "outside\none\n1\ntwo\n");
    });
}

#[test]
fn a_program_that_asks_for_the_size_of_a_log_depends_on_it() {
    for fixture in [MountFixture::new(), MountFixture::shared()] {
        let Some(fixture) = fixture else { return };
        fs::write(fixture.at("log"), b"old\n").unwrap();
        let (control, id, view) = begun(&fixture);
        let mut log = fs::File::options().append(true).open(view.join("log")).unwrap();
        assert_eq!(log.metadata().unwrap().len(), 4);
        log.write_all(b"inside\n").unwrap();
        drop(log);
        fs::File::options().append(true).open(fixture.at("log")).unwrap().write_all(b"outside\n").unwrap();
        let refused = commit(&control, id);
        assert_eq!((refused.state, refused.path), (TransactionState::Conflict, PathBuf::from("/log")));
        // Before the file is opened, too.
        let (control, id, view) = begun(&fixture);
        assert_eq!(fs::metadata(view.join("log")).unwrap().len(), 12);
        fs::File::options().append(true).open(view.join("log")).unwrap().write_all(b"inside\n").unwrap();
        fs::File::options().append(true).open(fixture.at("log")).unwrap().write_all(b"outside\n").unwrap();
        assert_eq!(commit(&control, id).state, TransactionState::Conflict);
    }
}

/// Looks up names in turn that are all cached as missing, while commits make them.
#[test]
fn a_reader_that_sees_one_name_of_a_commit_sees_all() {
    const NAMES: usize = 20;
    let Some(fixture) = MountFixture::new() else { return };
    let (stop, mounted) = (AtomicBool::new(false), fixture.path());
    let name = |round: usize, n: usize| format!("{round}-{n}");
    let reader = |round: &dyn Fn() -> usize| {
        while !stop.load(Ordering::Relaxed) {
            let round = round();
            let seen: Vec<bool> = (0..NAMES).map(|n| mounted.join(name(round, n)).exists()).collect();
            assert!(seen.is_sorted(), "once one is there the later ones are: {seen:?}");
        }
    };
    let round = std::sync::atomic::AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| reader(&|| round.load(Ordering::Relaxed)));
        }
        for now in 0..15 {
            round.store(now, Ordering::Relaxed);
            let (control, id, view) = begun(&fixture);
            for n in 0..NAMES {
                fs::write(view.join(name(now, n)), b"x").unwrap();
            }
            assert_eq!(commit(&control, id).state, TransactionState::Committed);
            assert!((0..NAMES).all(|n| fixture.at(&name(now, n)).exists()));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Reads cached data of two files, attributes first, while commits change both.
#[test]
fn a_reader_that_sees_new_data_of_one_file_sees_it_of_the_other() {
    let Some(fixture) = MountFixture::new() else { return };
    let write = |at: &Path, value: u64| {
        for name in ["a", "b"] {
            fs::write(at.join(name), value.to_le_bytes()).unwrap();
        }
    };
    write(fixture.path(), 0);
    let (stop, mounted) = (AtomicBool::new(false), fixture.path());
    let value = |name: &str| u64::from_le_bytes(fs::read(mounted.join(name)).unwrap().try_into().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (a, b) = (value("a"), value("b"));
                assert!(a <= b, "{a} was read before {b}");
            }
        });
        for round in 1..20 {
            let (control, id, view) = begun(&fixture);
            // Overwritten without a truncation: each file has eight bytes at any time.
            for name in ["b", "a"] {
                let file = File::options().write(true).open(view.join(name)).unwrap();
                file.write_all_at(&u64::to_le_bytes(round), 0).unwrap();
            }
            assert_eq!(commit(&control, id).state, TransactionState::Committed);
            assert_eq!((value("a"), value("b")), (round, round));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_view_in_use_is_not_committed_and_goes_on() {
    let Some(fixture) = MountFixture::new() else { return };
    let (control, id, view) = begun(&fixture);
    let mut open = File::create(view.join("file")).unwrap();
    assert!(is(&control.commit(id, false).unwrap_err(), Errno::BUSY));
    open.write_all(b"goes on").unwrap();
    drop(open);
    commit(&control, id);
    assert_eq!(fs::read(fixture.at("file")).unwrap(), b"goes on");
    assert!(is(&control.commit(id, false).unwrap_err(), Errno::NOENT), "it is committed once");
}

#[test]
fn open_files_of_an_aborted_transaction_get_errors() {
    let Some(fixture) = MountFixture::new() else { return };
    let (control, id, view) = begun(&fixture);
    let mut open = File::create(view.join("file")).unwrap();
    control.abort(id).unwrap();
    assert!(open.write_all(b"too late").is_err());
    assert_eq!(names(fixture.path()), Vec::<String>::new());
}

#[test]
fn transactions_are_listed_with_their_views() {
    let Some(fixture) = MountFixture::new() else { return };
    let (control, first, first_view) = begun(&fixture);
    let second = control.begin(true).unwrap();
    let list = control.list().unwrap();
    let shown: Vec<(u64, Option<u32>)> = list.iter().map(|report| (report.id, report.pid)).collect();
    assert_eq!((shown.len(), shown[0]), (2, (first, None)));
    assert_eq!(control.status(first).unwrap().path, first_view);
    control.abort(first).unwrap();
    assert_eq!(control.list().unwrap().len(), 1);
    control.abort(second.id).unwrap();
    assert!(control.list().unwrap().is_empty());
}

#[test]
fn a_transaction_that_any_thread_begins_ends_with_its_process() {
    let Some(fixture) = MountFixture::new() else { return };
    let control = TransactionClient::open(fixture.path()).unwrap();
    // The number of a thread other than the first is not that of a process.
    let begun = thread::scope(|scope| scope.spawn(|| control.begin(true)).join()).unwrap().unwrap();
    assert_eq!(control.status(begun.id).unwrap().pid, Some(std::process::id()));
    // The reaper looks several times in this while.
    thread::park_timeout(Duration::from_millis(600));
    assert_eq!(commit(&control, begun.id).state, TransactionState::Committed);
}

#[test]
fn an_idle_transaction_is_aborted() {
    let timeout = Duration::from_millis(600);
    let Some(fixture) =
        MountFixture::mounted(&MountOptions { transaction_timeout: timeout, ..Default::default() })
    else {
        return;
    };
    let (control, id, view) = begun(&fixture);
    fs::write(view.join("file"), b"x").unwrap();
    wait_until("the transaction ends by itself", || control.status(id).is_err());
    assert_eq!(fixture.views(), 0);
    assert!(!fixture.at("file").exists());
}

#[test]
fn the_end_of_the_mount_aborts_what_is_open() {
    let Some(mut fixture) = MountFixture::new() else { return };
    let (control, _, view) = begun(&fixture);
    fs::write(view.join("file"), b"x").unwrap();
    drop(control);
    fixture.end();
    assert_eq!(fixture.views(), 0);
    assert!(!view.exists());
}

#[test]
fn the_end_of_the_mount_waits_for_no_commit_of_a_view_in_use() {
    let Some(mut fixture) = MountFixture::new() else { return };
    let (control, id, view) = begun(&fixture);
    let open = fs::File::create(view.join("file")).unwrap();
    let state = TransactionClient::open(fixture.path()).unwrap();
    thread::scope(|scope| {
        let committing = scope.spawn(|| control.commit(id, false));
        wait_until("the commit has begun", || {
            state.status(id).is_ok_and(|report| report.state == TransactionState::Ending)
        });
        fixture.end();
        assert!(committing.join().unwrap().is_err(), "the file is in use");
    });
    drop(open);
    assert!(!view.exists());
}

#[test]
fn a_view_has_no_transactions_and_other_files_have_no_ioctls() {
    let Some(fixture) = MountFixture::new() else { return };
    let (control, id, view) = begun(&fixture);
    let inner = TransactionClient::open(&view).unwrap();
    assert!(is(&inner.begin(false).unwrap_err(), Errno::NOTTY));
    drop(inner);
    fs::create_dir(fixture.at("d")).unwrap();
    let below = TransactionClient::open(&fixture.at("d")).unwrap();
    assert!(is(&below.begin(false).unwrap_err(), Errno::NOTTY));
    control.abort(id).unwrap();
}

#[test]
fn a_mount_that_is_read_only_begins_none() {
    let Some(fixture) = MountFixture::mounted(&MountOptions { read_only: true, ..Default::default() }) else {
        return;
    };
    let control = TransactionClient::open(fixture.path()).unwrap();
    assert!(is(&control.begin(false).unwrap_err(), Errno::ROFS));
}

#[test]
fn a_view_belongs_to_the_user_who_began_it() {
    let Some(fixture) = MountFixture::shared() else { return };
    fs::set_permissions(fixture.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let (control, id, view) = begun(&fixture);
    fs::write(view.join("file"), b"x").unwrap();
    fs::write(fixture.at("plain"), b"x").unwrap();
    assert!(fixture.can_read(&fixture.at("plain"), 1000), "the main mount is open to all");
    assert!(!fixture.can_read(&view.join("file"), 1000));
    control.abort(id).unwrap();
}

#[test]
fn listing_names_in_a_view_conflicts_with_other_names_and_not_with_changes_of_the_files() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::create_dir(fixture.at("d")).unwrap();
    for n in 0..300 {
        fs::write(fixture.at("d").join(format!("{n}")), b"x").unwrap();
    }
    let listed = |what: &dyn Fn(&Path), meanwhile: &dyn Fn()| {
        let (control, id, view) = begun(&fixture);
        assert_eq!(names(&view.join("d")).len(), fs::read_dir(fixture.at("d")).unwrap().count());
        what(&view.join("d"));
        fs::write(view.join("done"), b"x").unwrap();
        meanwhile();
        commit(&control, id).state
    };
    let grow = || fs::write(fixture.at("d/7"), b"longer").unwrap();
    assert_eq!(listed(&|_| {}, &grow), TransactionState::Committed);
    let mode = || fs::set_permissions(fixture.at("d/8"), std::os::unix::fs::PermissionsExt::from_mode(0o600));
    assert_eq!(listed(&|_| {}, &|| mode().unwrap()), TransactionState::Committed);
    let look = |d: &Path| _ = fs::metadata(d.join("9")).unwrap();
    assert_eq!(listed(&look, &grow), TransactionState::Committed, "it looked at another");
    let grow = || fs::write(fixture.at("d/9"), b"longer").unwrap();
    assert_eq!(listed(&look, &grow), TransactionState::Conflict);
    let more = || fs::write(fixture.at("d/new"), b"x").unwrap();
    assert_eq!(listed(&|_| {}, &more), TransactionState::Conflict);
}

/// Each change as one word and its path.
fn changes(control: &TransactionClient, id: u64) -> Vec<String> {
    let lines = control.changes(id).map(|change| {
        let change = change.unwrap();
        let path = change.path.display();
        match &change.kind {
            ChangeKind::Created => format!("created {path}"),
            ChangeKind::Deleted => format!("deleted {path}"),
            ChangeKind::Renamed(from) => format!("renamed {} to {path}", from.display()),
            ChangeKind::Linked(_) => format!("linked {path}"),
            ChangeKind::Changed => format!("changed {path} {:?}", change.aspects()),
        }
    });
    lines.collect()
}

#[test]
fn changes_in_a_view_are_listed_before_the_commit() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::create_dir(fixture.at("d")).unwrap();
    for name in ["d/kept", "gone", "grown", "moved", "swapped"] {
        fs::write(fixture.at(name), b"before").unwrap();
    }
    let (control, id, view) = begun(&fixture);
    assert_eq!(changes(&control, id), Vec::<String>::new());
    fs::rename(view.join("d"), view.join("e")).unwrap();
    fs::write(view.join("e/new"), b"x").unwrap();
    fs::remove_file(view.join("gone")).unwrap();
    File::options().append(true).open(view.join("grown")).unwrap().write_all(b", and after").unwrap();
    fs::set_permissions(view.join("grown"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(view.join("moved"), view.join("swapped")).unwrap();
    std::os::unix::fs::symlink("target", view.join("symlink")).unwrap();
    fs::hard_link(view.join("grown"), view.join("z")).unwrap();
    let all = [
        "renamed /d to /e",
        "created /e/new",
        "deleted /gone",
        "changed /grown [Data, Size, Mode, ModifiedTime]",
        "deleted /swapped",
        "renamed /moved to /swapped",
        "created /symlink",
        "linked /z",
    ];
    assert_eq!(changes(&control, id), all);
    let inner = TransactionClient::open(&view).unwrap();
    assert_eq!(changes(&inner, 0), all, "in a view, id 0 is its own");
    drop(inner);
    assert_eq!(commit(&control, id).state, TransactionState::Committed);
    assert!(is(&control.changes(id).next().unwrap().unwrap_err(), Errno::NOENT));
    assert!(is(&control.changes(0).next().unwrap().unwrap_err(), Errno::NOENT));
}

#[test]
fn many_changes_are_listed_page_by_page_in_order() {
    const FILES: usize = 3000;
    let Some(fixture) = MountFixture::new() else { return };
    let (control, id, view) = begun(&fixture);
    for n in 0..FILES {
        fs::write(view.join(format!("{n:05}")), b"x").unwrap();
    }
    let expected: Vec<String> = (0..FILES).map(|n| format!("created /{n:05}")).collect();
    assert_eq!(changes(&control, id), expected);
    // A second listing replaces the first, which then cannot continue.
    let mut first = control.changes(id);
    first.next().unwrap().unwrap();
    assert_eq!(changes(&control, id).len(), FILES);
    let ended = first.find_map(Result::err).unwrap();
    assert!(is(&ended, Errno::STALE));
    assert_eq!(commit(&control, id).state, TransactionState::Committed);
}

#[test]
fn only_the_user_who_began_a_transaction_can_list_its_changes() {
    let Some(fixture) = MountFixture::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = c_program("transaction", directory.path()) else { return };
    fs::set_permissions(fixture.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (control, id, view) = begun(&fixture);
    fs::write(view.join("file"), b"x").unwrap();
    let ran = std::os::unix::process::CommandExt::uid(&mut std::process::Command::new(program), 1234)
        .args(["stranger", &id.to_string()])
        .arg(fixture.path())
        .current_dir("/")
        .status()
        .unwrap();
    assert!(ran.success());
    control.abort(id).unwrap();
}

#[test]
fn a_program_in_c_works_in_transactions() {
    let Some(fixture) = MountFixture::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = c_program("transaction", directory.path()) else { return };
    assert!(std::process::Command::new(program).arg("story").arg(fixture.path()).status().unwrap().success());
    assert_eq!(names(fixture.path()), ["one", "two"]);
}
