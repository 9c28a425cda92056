//! The requests of short transactions in a view.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use warpfire_mount::{TransactionClient, TransactionState};

use crate::counts::{count, kernel_prunes, start_counting, take_counts};
use crate::fixture::MountFixture;

/// The requests of a transaction in a view that an earlier transaction has left.
fn requests_of(fixture: &MountFixture, work: impl Fn(&Path)) -> BTreeMap<String, u32> {
    let control = TransactionClient::open(fixture.path()).unwrap();
    let mut counts = BTreeMap::new();
    // The first one mounts the view. The second finds the kernel as the first has left it, and so on.
    for _ in 0..3 {
        take_counts();
        let begun = control.begin(true).unwrap();
        work(&begun.path);
        assert_eq!(control.commit(begun.id, false).unwrap().state, TransactionState::Committed);
        // Nobody waits for RELEASE: it may come after the answer of COMMIT.
        while count("release") < count("open") + count("create") {
            thread::park_timeout(Duration::from_millis(1));
        }
        counts = take_counts();
    }
    counts
}

pub fn counts_of<const N: usize>(expected: [(&str, u32); N]) -> BTreeMap<String, u32> {
    expected.map(|(name, count)| (name.to_owned(), count)).into()
}

#[test]
fn a_transaction_of_one_append_costs_seven_requests_that_it_waits_for() {
    let _counting = start_counting();
    let Some(fixture) = MountFixture::shared() else { return };
    fs::write(fixture.at("log"), b"old").unwrap();
    let counts = requests_of(&fixture, |view| {
        let mut log = File::options().append(true).open(view.join("log")).unwrap();
        log.write_all(&[b'x'; 65536]).unwrap();
    });
    let asks_again = u32::from(!kernel_prunes());
    let expected = [
        ("forget", 2),
        // The file, to check permissions.
        ("getattr", 1 + asks_again),
        ("ioctl", 2),
        // The transaction in its view, and the file.
        ("lookup", 2),
        ("open", 1),
        ("release", 1),
        ("write", 1),
    ];
    assert_eq!(counts, counts_of(expected));
    assert_eq!(fs::metadata(fixture.at("log")).unwrap().len(), 3 + 3 * 65536);
}

#[test]
fn a_chained_transaction_of_one_append_costs_two_requests() {
    let _counting = start_counting();
    let Some(fixture) = MountFixture::shared() else { return };
    fs::write(fixture.at("log"), b"old").unwrap();
    let control = TransactionClient::open(fixture.path()).unwrap();
    let begun = control.begin(true).unwrap();
    let mut log = File::options().append(true).open(begun.path.join("log")).unwrap();
    let mut id = begun.id;
    for n in 0..3 {
        take_counts();
        log.write_all(&[b'x'; 65536]).unwrap();
        let report = control.commit_and_chain(id, false).unwrap();
        assert_eq!(report.state, TransactionState::Committed);
        id = report.id;
        if n > 0 {
            assert_eq!(take_counts(), counts_of([("ioctl", 1), ("write", 1)]));
        }
    }
    control.abort(id).unwrap();
    assert_eq!(fs::metadata(fixture.at("log")).unwrap().len(), 3 + 3 * 65536);
}

#[test]
fn a_file_that_a_transaction_makes_is_made_and_opened_by_one_request() {
    let _counting = start_counting();
    let Some(fixture) = MountFixture::shared() else { return };
    let counts = requests_of(&fixture, |view| {
        let made = view.join(view.file_name().unwrap());
        File::options().write(true).create_new(true).mode(0o640).open(&made).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o7777, 0o640);
        let again = File::options().write(true).create_new(true).open(&made);
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
        // It is there: opened, and not made.
        File::options().append(true).create(true).open(&made).unwrap().write_all(b"made").unwrap();
    });
    let made = |name: &str| counts.get(name).copied().unwrap_or(0);
    assert_eq!((made("create"), made("mknod"), made("open"), made("release")), (1, 0, 1, 2), "{counts:?}");
    let contents = fs::read_dir(fixture.path()).unwrap().map(|made| fs::read(made.unwrap().path()).unwrap());
    assert_eq!(contents.collect::<Vec<_>>(), vec![b"made"; 3]);
}
