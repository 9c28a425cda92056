//! Views that are kept after a commit and show the next transaction of their user.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use warpfire_mount::{TransactionClient, TransactionState};

use super::fixture::{MountFixture, run_as};
use super::views::{begun, commit, is, wait_until};

/// Commits a transaction whose view is kept: it shows the next one.
fn committed(control: &TransactionClient, id: u64) {
    assert_eq!(commit(control, id).state, TransactionState::Committed);
}

fn view_of(path: &Path) -> &Path {
    path.parent().unwrap()
}

#[test]
fn a_kept_view_shows_nothing_of_the_transaction_before() {
    let Some(fixture) = MountFixture::new() else { return };
    for name in ["read", "written", "removed"] {
        fs::write(fixture.at(name), name).unwrap();
    }
    fs::create_dir(fixture.at("d")).unwrap();
    let (control, id, first) = begun(&fixture);
    // The kernel caches content, attributes, names and their absence.
    assert_eq!(fs::read(first.join("read")).unwrap(), b"read");
    assert_eq!(fs::metadata(first.join("removed")).unwrap().len(), 7);
    assert!(!first.join("later").exists() && !first.join("d/later").exists());
    fs::write(first.join("written"), b"by the first").unwrap();
    fs::write(first.join("d/made"), b"by the first").unwrap();
    committed(&control, id);
    assert!(!first.exists());

    fs::write(fixture.at("read"), b"another content").unwrap();
    fs::write(fixture.at("written"), b"afterwards").unwrap();
    fs::write(fixture.at("later"), b"later").unwrap();
    fs::write(fixture.at("d/later"), b"later").unwrap();
    fs::remove_file(fixture.at("removed")).unwrap();
    let (control, id, second) = begun(&fixture);
    assert_eq!(view_of(&second), view_of(&first), "the view is kept");
    assert_ne!(second, first);
    assert!(!first.exists());
    assert_eq!(fs::read(second.join("read")).unwrap(), b"another content");
    assert_eq!(fs::metadata(second.join("read")).unwrap().len(), 15);
    assert_eq!(fs::read(second.join("written")).unwrap(), b"afterwards");
    assert_eq!(fs::read(second.join("d/made")).unwrap(), b"by the first");
    assert!(second.join("later").exists() && second.join("d/later").exists());
    assert!(!second.join("removed").exists());
    fs::write(second.join("read"), b"by the second").unwrap();
    committed(&control, id);
    assert_eq!(fs::read(fixture.at("read")).unwrap(), b"by the second");
}

/// A program whose working directory is in the view: the commit is refused and the program goes on.
#[test]
fn a_refused_commit_leaves_a_working_directory_usable() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::create_dir(fixture.at("d")).unwrap();
    let (control, id, view) = begun(&fixture);
    let directory = tempfile::tempdir().unwrap();
    let script = "cd \"$1/d\"; : > \"$2/ready\"; until [ -e \"$2/go\" ]; do sleep 0.02; done; \
        echo inside > made; echo path > \"$1/other\"";
    let mut program = Command::new("sh")
        .args(["-c", script, "sh"])
        .args([view.as_path(), directory.path()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the program is in the view", || directory.path().join("ready").exists());
    assert!(is(&control.commit(id, false).unwrap_err(), Errno::BUSY));
    assert_eq!(fs::read_dir(view.join("d")).unwrap().count(), 0);
    fs::write(directory.path().join("go"), b"").unwrap();
    assert!(program.wait().unwrap().success());
    committed(&control, id);
    assert_eq!(fs::read(fixture.at("d/made")).unwrap(), b"inside\n");
    assert_eq!(fs::read(fixture.at("other")).unwrap(), b"path\n");
}

#[test]
fn a_kept_view_serves_its_user_alone() {
    let Some(fixture) = MountFixture::shared() else { return };
    let mountpoint = fixture.path().to_owned();
    let view_of_one = |uid| {
        run_as(uid, || {
            let control = TransactionClient::open(&mountpoint).unwrap();
            let begun = control.begin(false).unwrap();
            assert!(begun.path.exists());
            committed(&control, begun.id);
            view_of(&begun.path).to_owned()
        })
    };
    let (first, other, again) = (view_of_one(1000), view_of_one(1001), view_of_one(1000));
    assert_ne!(first, other);
    assert_eq!(first, again);
    assert_eq!(fixture.views(), 2);
}

#[test]
fn kept_views_end_with_the_mount() {
    let Some(mut fixture) = MountFixture::new() else { return };
    let (control, id, view) = begun(&fixture);
    fs::write(view.join("file"), b"x").unwrap();
    committed(&control, id);
    drop(control);
    // A program may hold the root of a view that shows nothing.
    let root = File::open(view_of(&view)).unwrap();
    assert_eq!(fixture.views(), 1);
    fixture.end();
    assert_eq!(fixture.views(), 0);
    drop(root);
}
