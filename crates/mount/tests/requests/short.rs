//! The requests of short transactions in a view.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use warpfire_mount::{TransactionClient, TransactionState};

use crate::fixture::MountFixture;

/// The requests since the last look, by operation.
static COUNTS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

fn take_counts() -> BTreeMap<String, u32> {
    std::mem::take(&mut *COUNTS.lock().unwrap())
}

/// Counts the spans of requests.
struct Requests;

struct Operation(Option<String>);

impl Visit for Operation {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "operation" {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

impl Subscriber for Requests {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "request"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut operation = Operation(None);
        attributes.record(&mut operation);
        let operation = operation.0.expect("each request names its operation");
        *COUNTS.lock().unwrap().entry(operation).or_default() += 1;
        Id::from_u64(1)
    }

    fn event(&self, _: &Event<'_>) {}
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Whether this kernel forgets inodes one by one when it is asked: from Linux 6.18 on.
fn kernel_prunes() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut version = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (version.next(), version.next()) >= (Some(6), Some(18))
}

/// One test at a time counts.
static COUNTING: Mutex<()> = Mutex::new(());

fn start_counting() -> MutexGuard<'static, ()> {
    let counting = COUNTING.lock().unwrap();
    // Only the first test of the process sets it.
    let _ = tracing::subscriber::set_global_default(Requests);
    counting
}

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
        let count = |name| COUNTS.lock().unwrap().get(name).copied().unwrap_or(0);
        while count("release") < count("open") + count("create") {
            thread::park_timeout(Duration::from_millis(1));
        }
        counts = take_counts();
    }
    counts
}

fn counts_of<const N: usize>(expected: [(&str, u32); N]) -> BTreeMap<String, u32> {
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
