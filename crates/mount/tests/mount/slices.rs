//! Files rearranged by ioctls: from a program in C that knows only `include/warpfire.h`, and in views of
//! transactions.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;
use warpfire_mount::{MountedSlice, TransactionState, remove_range};

use crate::fixture::{MountFixture, c_program};
use crate::views::{begun, commit, is};

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn a_program_in_c_rearranges_files() {
    let Some(fixture) = MountFixture::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = c_program("slicing", directory.path()) else { return };
    let ran = Command::new(program).arg("story").arg(fixture.path()).status().unwrap();
    assert!(ran.success());
    // The result outlives the program.
    assert_eq!(fs::read(fixture.at("copy")).unwrap(), b"\0TWOtwo ");
    assert!(!fixture.at("text").exists());
}

#[test]
fn a_user_without_permission_cannot_rearrange_an_open_file() {
    let Some(fixture) = MountFixture::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = c_program("slicing", directory.path()) else { return };
    fs::set_permissions(fixture.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(fixture.at("secret"), b"secret").unwrap();
    fs::set_permissions(fixture.at("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let ran = std::os::unix::process::CommandExt::uid(&mut Command::new(program), 1234)
        .args(["refused", "it is open"])
        .current_dir("/")
        .stdin(fs::File::open(fixture.at("secret")).unwrap())
        .status()
        .unwrap();
    assert!(ran.success());
    assert_eq!(fs::read(fixture.at("secret")).unwrap(), b"secret");
}

#[test]
fn a_slice_is_of_the_mount_or_the_view_that_it_was_taken_in() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("file"), b"one two three").unwrap();
    let (control, id, view) = begun(&fixture);
    let (outside, inside) = (open(&fixture.at("file")), open(&view.join("file")));
    let taken_outside = MountedSlice::yank(&outside, 0..4).unwrap();
    let taken_inside = MountedSlice::yank(&inside, 4..8).unwrap();
    for (slice, file) in [(taken_outside, &inside), (taken_inside, &outside)] {
        assert!(is(&slice.paste(file, None).unwrap_err(), Errno::NOENT));
        assert!(is(&slice.insert(file, 0).unwrap_err(), Errno::NOENT));
        assert!(is(&slice.replace(file).unwrap_err(), Errno::NOENT));
        assert!(is(&slice.join(file, slice).unwrap_err(), Errno::NOENT));
    }
    taken_outside.paste(&outside, None).unwrap();
    drop((outside, inside));
    control.abort(id).unwrap();
    assert_eq!(fs::read(fixture.at("file")).unwrap(), b"one two threeone ");
    let file = open(&fixture.at("file"));
    assert!(is(&taken_inside.paste(&file, None).unwrap_err(), Errno::NOENT), "a slice ends with its view");
}

/// Moves "two " from the middle of the file to its beginning, and copies it into another file.
fn rearrange(directory: &Path) {
    let (file, other) = (open(&directory.join("file")), open(&directory.join("other")));
    let word = MountedSlice::yank(&file, 4..8).unwrap();
    remove_range(&file, 4..8).unwrap();
    word.insert(&file, 0).unwrap();
    word.paste(&other, None).unwrap();
    word.join(&other, word).unwrap().paste(&other, None).unwrap();
    assert_eq!(fs::read(directory.join("file")).unwrap(), b"two one three");
    assert_eq!(fs::read(directory.join("other")).unwrap(), b"two two two ");
}

#[test]
fn a_rearrangement_in_a_view_is_there_after_the_commit_and_not_after_an_abort() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("file"), b"one two three").unwrap();
    for commits in [false, true] {
        let (control, id, view) = begun(&fixture);
        rearrange(&view);
        assert_eq!(fs::read(fixture.at("file")).unwrap(), b"one two three");
        assert!(!fixture.at("other").exists());
        if commits {
            assert_eq!(commit(&control, id).state, TransactionState::Committed);
        } else {
            control.abort(id).unwrap();
        }
    }
    assert_eq!(fs::read(fixture.at("file")).unwrap(), b"two one three");
    assert_eq!(fs::read(fixture.at("other")).unwrap(), b"two two two ");
}

#[test]
fn a_paste_in_a_view_does_not_conflict_with_appends_to_other_files() {
    let Some(fixture) = MountFixture::new() else { return };
    for name in ["file", "log"] {
        fs::write(fixture.at(name), b"one two three").unwrap();
    }
    let (control, id, view) = begun(&fixture);
    rearrange(&view);
    let log = open(&fixture.at("log"));
    MountedSlice::yank(&log, 0..4).unwrap().paste(&log, None).unwrap();
    fs::write(fixture.at("new"), b"x").unwrap();
    assert_eq!(commit(&control, id).state, TransactionState::Committed);
    assert_eq!(fs::read(fixture.at("log")).unwrap(), b"one two threeone ");
    assert_eq!(fs::read(fixture.at("file")).unwrap(), b"two one three");
}

/// To open a file the kernel reads its size, so the transaction has read the size.
#[test]
fn a_paste_into_a_file_that_others_append_to_is_refused_whole_and_succeeds_when_it_is_done_again() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("file"), b"one ").unwrap();
    let append_in_view = || {
        let (control, id, view) = begun(&fixture);
        let file = open(&view.join("file"));
        MountedSlice::yank(&file, 0..4).unwrap().paste(&file, None).unwrap();
        drop(file);
        (control, id)
    };
    let (control, id) = append_in_view();
    let file = open(&fixture.at("file"));
    MountedSlice::yank(&file, 0..4).unwrap().paste(&file, None).unwrap();
    let refused = commit(&control, id);
    assert_eq!((refused.state, refused.path.as_path()), (TransactionState::Conflict, Path::new("/file")));
    assert_eq!(fs::read(fixture.at("file")).unwrap(), b"one one ");
    let (control, id) = append_in_view();
    assert_eq!(commit(&control, id).state, TransactionState::Committed);
    assert_eq!(fs::read(fixture.at("file")).unwrap(), b"one one one ");
}

/// Another process reads two files in turn without a pause, while transactions paste slices into both.
#[test]
fn another_process_sees_slices_pasted_in_a_view_in_all_files_or_in_none() {
    const ROUNDS: usize = 8;
    let Some(fixture) = MountFixture::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::write(fixture.at(name), b"x").unwrap();
    }
    let script = "until [ -e \"$2/stop\" ]; do echo $(cat \"$1/b\") $(cat \"$1/a\") $(cat \"$1/b\"); done > \"$2/seen\"";
    let mut watcher = Command::new("sh")
        .args(["-c", script, "sh"])
        .args([fixture.path(), directory.path()])
        .spawn()
        .unwrap();
    for _ in 0..ROUNDS {
        let (control, id, view) = begun(&fixture);
        for name in ["a", "b"] {
            let file = open(&view.join(name));
            MountedSlice::yank(&file, 0..1).unwrap().paste(&file, None).unwrap();
        }
        assert_eq!(commit(&control, id).state, TransactionState::Committed);
    }
    fs::write(directory.path().join("stop"), b"").unwrap();
    assert!(watcher.wait().unwrap().success());
    let seen = fs::read_to_string(directory.path().join("seen")).unwrap();
    let lines: BTreeSet<Vec<usize>> =
        seen.lines().map(|line| line.split(' ').map(str::len).collect()).collect();
    for line in lines {
        let [before, middle, after] = line[..] else { panic!("three are read: {line:?}") };
        assert!(before <= middle && middle <= after && after <= ROUNDS + 1, "{line:?}");
    }
}
