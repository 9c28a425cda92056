//! A mount by root that several users share: nobody gets more than the permissions of the files give.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use warpfire_meta::MemoryLimits;
use warpfire_mount::{MountError, MountOptions, MountedSlice, TransactionClient, TransactionState};

use crate::fixture::{MountFixture, run_as};
use crate::views::wait_until;

const USER: u32 = 1000;
const OTHER: u32 = 1001;

/// A mount by root where all users may make files.
fn shared() -> Option<MountFixture> {
    shared_with(MemoryLimits::default())
}

/// As `shared`. A user has a sixteenth of this memory.
fn shared_with(memory: MemoryLimits) -> Option<MountFixture> {
    let fixture = MountFixture::shared_with(memory)?;
    fs::set_permissions(fixture.path(), Permissions::from_mode(0o1777)).expect("it succeeds in this test");
    Some(fixture)
}

/// Begins a transaction as a user, on the thread of that user.
fn begin(mountpoint: &Path) -> (TransactionClient, u64, PathBuf) {
    let control = TransactionClient::open(mountpoint).expect("it succeeds in this test");
    let begun = control.begin(false).expect("it succeeds in this test");
    (control, begun.id, begun.path)
}

/// Options of the mount on a directory, as the kernel shows them.
fn options_of(mountpoint: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("it succeeds in this test");
    let mut words = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = words.find(|words| words[4] == mountpoint.to_str().expect("it succeeds in this test"));
    found.expect("it is mounted")[5].to_owned()
}

#[test]
fn the_user_who_began_it_cannot_change_the_place_of_a_view() {
    let Some(fixture) = shared() else { return };
    let (mountpoint, base) = (fixture.path().to_owned(), fixture.base_of_views());
    run_as(USER, || {
        let (control, id, view) = begin(&mountpoint);
        fs::write(view.join("file"), b"x").unwrap();
        // The root of the view, the directory that it is mounted in, and that of all views.
        let (root, directory) = (view.parent().unwrap(), view.ancestors().nth(2).unwrap());
        assert_eq!(directory.parent().unwrap(), base);
        let refused = [
            fs::remove_dir(root),
            fs::rename(root, directory.join("other")),
            fs::rename(&view, root.join("other")),
            symlink("/", root.join("link")),
            fs::create_dir(root.join("d")),
            File::create(root.join("f")).map(drop),
            fs::set_permissions(root, Permissions::from_mode(0o777)),
            fs::read_dir(root).map(drop),
            fs::remove_dir(&view),
            fs::rename(&view, directory.join("other")),
            fs::rename(directory, base.join("other")),
            symlink("/", directory.join("link")),
            symlink("/", base.join("link")),
            fs::create_dir(directory.join("d")),
            File::create(directory.join("f")).map(drop),
            fs::set_permissions(directory, Permissions::from_mode(0o777)),
            fs::read_dir(directory).map(drop),
            fs::read_dir(&base).map(drop),
        ];
        for (step, refused) in refused.into_iter().enumerate() {
            assert!(refused.is_err(), "step {step}");
        }
        assert_eq!([root, directory].map(|at| fs::metadata(at).unwrap().uid()), [0, 0]);
        assert_eq!(control.commit(id, false).unwrap().state, TransactionState::Committed);
    });
    assert_eq!(fs::read(fixture.at("file")).unwrap(), b"x");
    assert_eq!(fixture.shown(), Vec::<String>::new(), "no view shows it any more");
}

#[test]
fn another_user_cannot_enter_a_view_and_root_can() {
    let Some(fixture) = shared() else { return };
    let mountpoint = fixture.path().to_owned();
    let (control, id, view) = run_as(USER, || begin(&mountpoint));
    run_as(USER, || fs::write(view.join("file"), b"x").unwrap());
    let seen = run_as(OTHER, || fs::read(view.join("file")));
    assert_eq!(seen.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(run_as(OTHER, || fs::metadata(&view).unwrap_err().kind()), ErrorKind::PermissionDenied);
    assert_eq!(fs::read(view.join("file")).unwrap(), b"x");
    control.abort(id).unwrap();
}

#[test]
fn a_mount_by_root_ignores_set_user_id_programs_and_devices() {
    let Some(fixture) = shared() else { return };
    let (control, id, view) = begin(fixture.path());
    for mounted in [fixture.path(), view.parent().unwrap()] {
        let options = options_of(mounted);
        assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
    }
    control.abort(id).unwrap();
    let asked = MountOptions { suid: true, dev: true, allow_other: true, ..MountOptions::default() };
    let Some(fixture) = MountFixture::mounted(&asked) else { return };
    let options = options_of(fixture.path());
    assert!(!options.contains("nosuid") && !options.contains("nodev"), "{options}");
}

/// Two mounts of one process have transactions with the same numbers, and may share the base of views.
#[test]
fn views_of_two_mounts_in_one_process_do_not_collide() {
    let Some(first) = MountFixture::new() else { return };
    let base = MountOptions { views_at: Some(first.base_of_views()), ..MountOptions::default() };
    let Some(second) = MountFixture::mounted(&base) else { return };
    let both = [&first, &second].map(|fixture| begin(fixture.path()));
    let [(_, _, one), (_, _, other)] = &both;
    fs::write(one.join("one"), b"1").unwrap();
    assert!(!other.join("one").exists());
    for (control, id, _) in &both {
        control.abort(*id).unwrap();
    }
    assert_eq!(first.views(), 0);
}

#[test]
fn a_mount_with_open_transactions_is_in_use() {
    let Some(mut fixture) = MountFixture::new() else { return };
    let (control, first, _) = begin(fixture.path());
    let second = control.begin(false).unwrap().id;
    let said = fixture.try_unmount().unwrap_err();
    assert!(matches!(said, MountError::TransactionsOpen { count: 2, .. }), "{said}");
    control.abort(first).unwrap();
    control.abort(second).unwrap();
}

#[test]
fn one_user_cannot_take_the_transactions_of_others() {
    let Some(fixture) = shared() else { return };
    let mountpoint = fixture.path().to_owned();
    let ids = run_as(USER, || {
        let control = TransactionClient::open(&mountpoint).unwrap();
        let ids: Vec<u64> = (0..16).map(|_| control.begin(false).unwrap().id).collect();
        let refused = control.begin(false).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
        ids
    });
    let (control, id, _) = run_as(OTHER, || begin(&mountpoint));
    control.abort(id).unwrap();
    let (control, id, _) = begin(&mountpoint);
    control.abort(id).unwrap();
    for id in ids {
        control.abort(id).unwrap();
    }
}

/// A file that is open in an aborted view keeps the threads of the view.
#[test]
fn aborted_views_that_files_keep_open_count_until_they_end() {
    let Some(fixture) = shared() else { return };
    let mountpoint = fixture.path().to_owned();
    run_as(USER, || {
        let control = TransactionClient::open(&mountpoint).unwrap();
        let open: Vec<File> = (0..16)
            .map(|_| {
                let begun = control.begin(false).unwrap();
                let file = File::create(begun.path.join("file")).unwrap();
                control.abort(begun.id).unwrap();
                file
            })
            .collect();
        let refused = control.begin(false).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
        drop(open);
        wait_until("the views have ended", || {
            control.begin(false).is_ok_and(|begun| control.abort(begun.id).is_ok())
        });
    });
    assert_eq!(fixture.views(), 0);
}

#[test]
fn one_user_cannot_take_the_slices_of_others() {
    let Some(fixture) = shared() else { return };
    fs::write(fixture.at("file"), b"bytes of a slice").unwrap();
    let path = fixture.at("file");
    run_as(USER, || {
        let file = File::open(&path).unwrap();
        let refused = (0..257).find_map(|_| MountedSlice::yank(&file, 0..4).err());
        assert_eq!(refused.unwrap().raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    });
    let file = File::open(&path).unwrap();
    MountedSlice::yank(&file, 0..4).unwrap().release(&file).unwrap();
}

#[test]
fn one_user_cannot_take_the_memory_of_others_with_transactions() {
    let Some(fixture) = shared_with(MemoryLimits::of_total(16 << 20)) else { return };
    let mountpoint = fixture.path().to_owned();
    // Makes files in a view until that is refused; returns how many, and the error.
    let fill = |view: &Path| {
        let made = |n: u32| File::create(view.join(format!("file {n}"))).map(drop);
        let refused = (0..).find_map(|n| made(n).err().map(|e| (n, e))).expect("it is refused at some time");
        (refused.0, refused.1.raw_os_error())
    };
    let dquot = Some(Errno::DQUOT.raw_os_error());
    let (control, first, second) = run_as(USER, || {
        let (control, first, view) = begin(&mountpoint);
        let (made, refused) = fill(&view);
        assert!(made > 300 && refused == dquot, "{made} {refused:?}");
        // A name that was not looked up before takes a little memory too: there may be just so much left.
        let missing = fs::metadata(view.join("other")).unwrap_err();
        assert!(missing.kind() == ErrorKind::NotFound || missing.raw_os_error() == dquot, "{missing}");
        let begun = control.begin(false).unwrap();
        let (more, refused) = fill(&begun.path);
        assert!(more < made / 2 && refused == dquot, "{more} {refused:?}: one share for both");
        (control, first, begun.id)
    });
    run_as(OTHER, || {
        let (control, id, view) = begin(&mountpoint);
        (0..100).for_each(|n| fs::write(view.join(format!("other {n}")), b"x").unwrap());
        assert_eq!(control.commit(id, false).unwrap().state, TransactionState::Committed);
    });
    control.abort(second).unwrap();
    assert_eq!(control.commit(first, false).unwrap().state, TransactionState::Committed);
    run_as(USER, || {
        let (control, id, view) = begin(&mountpoint);
        (0..100).for_each(|n| fs::write(view.join(format!("again {n}")), b"x").unwrap());
        assert_eq!(control.commit(id, false).unwrap().state, TransactionState::Committed);
    });
}

#[test]
fn one_user_cannot_take_the_memory_of_others_with_open_directories() {
    let Some(fixture) = shared_with(MemoryLimits::of_total(16 << 20)) else { return };
    let mountpoint = fixture.path().to_owned();
    let opened = run_as(USER, || {
        let (mut opened, mut refused) = (Vec::new(), None);
        while refused.is_none() {
            match File::open(&mountpoint) {
                Ok(directory) => opened.push(directory),
                Err(e) => refused = Some(e),
            }
        }
        assert_eq!(refused.and_then(|e| e.raw_os_error()), Some(Errno::MFILE.raw_os_error()));
        opened
    });
    // A sixteenth of 16 MiB, in steps of 4 KiB.
    assert_eq!(opened.len(), 256);
    assert!(run_as(OTHER, || fs::read_dir(&mountpoint).is_ok()));
    assert!(fs::read_dir(&mountpoint).is_ok());
    drop(opened);
    run_as(USER, || {
        wait_until("the directories are closed", || fs::read_dir(&mountpoint).is_ok());
    });
}
