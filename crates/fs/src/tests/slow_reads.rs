//! Reads inside a transaction whose device does not answer for a while.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{Engine, TestFs, Ticking, world_with};
use crate::acl::Caller;
use crate::{Fs, FsError, FsOptions, NewMode, NodeRef, Position, Transaction};

const ROOT: Caller<'static> = Caller::ROOT;
const MODE: NewMode = NewMode { mode: 0o644, umask: 0 };
/// More than is inline, so that a read needs a slice.
static BYTES: [u8; 20_000] = [7; 20_000];

/// A device that answers a read only after the test has let it.
struct SlowDevice {
    /// A read has reached the device.
    asked: Receiver<()>,
    /// Lets one read go on.
    answer: Sender<()>,
}

impl SlowDevice {
    fn install(engine: &Engine) -> SlowDevice {
        let ((ask, asked), (answer, answered)) = (channel(), channel());
        let (ask, answered) = (Mutex::new(ask), Mutex::new(answered));
        engine.wait_before_reads(move || {
            // Without a test that waits, reads are not held up.
            let asked = ask.lock().unwrap().send(()).is_ok();
            if asked {
                _ = answered.lock().unwrap().recv();
            }
        });
        SlowDevice { asked, answer }
    }

    fn await_read(&self) {
        self.asked.recv_timeout(Duration::from_secs(60)).expect("a read reaches the device");
    }

    fn let_one_go_on(&self) {
        self.answer.send(()).expect("the device waits");
    }
}

/// A filesystem with a file "file".
fn filled() -> (Arc<Engine>, Arc<Ticking>, Arc<TestFs>) {
    let (engine, clock) = world_with();
    let fs = Arc::new(Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap());
    fs.create_file(&ROOT, &fs.root(), b"file", MODE, &BYTES).unwrap();
    (engine, clock, fs)
}

fn file_of(tx: &Transaction<Engine>) -> NodeRef {
    tx.files().lookup(&ROOT, &tx.files().root(), b"file").unwrap()
}

fn read_all(tx: &Transaction<Engine>, node: &NodeRef) -> Result<Vec<u8>, FsError> {
    let mut bytes = vec![0; BYTES.len()];
    let len = tx.files().read(node, 0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

#[test]
fn other_calls_of_a_transaction_go_on_while_a_device_is_read() {
    let (engine, _, fs) = filled();
    let tx = fs.begin().unwrap();
    let node = file_of(&tx);
    let device = SlowDevice::install(&engine);
    let read = thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(&tx, &node).unwrap());
        device.await_read();
        // None of these waits for the device.
        let files = tx.files();
        files.create_file(&ROOT, &files.root(), b"new", MODE, b"x").unwrap();
        assert_eq!(files.getattr(&node).size_bytes, BYTES.len() as u64);
        files.write(&ROOT, &node, Position::At(0), b"later").unwrap();
        device.let_one_go_on();
        reader.join().unwrap()
    });
    assert_eq!(read, BYTES, "a write that came after the read is not in its answer");
    drop(device);
    tx.commit().unwrap();
    assert!(fs.lookup(&ROOT, &fs.root(), b"new").is_ok());
}

/// The journal has the read before the write, with the answer that came later: a replay answers the same.
#[test]
fn a_read_keeps_its_place_among_the_calls_and_its_answer_counts() {
    for changes_the_bytes in [false, true] {
        let (engine, _, fs) = filled();
        let tx = fs.begin().unwrap();
        let node = file_of(&tx);
        let device = SlowDevice::install(&engine);
        thread::scope(|scope| {
            let reader = scope.spawn(|| read_all(&tx, &node).unwrap());
            device.await_read();
            tx.files().write(&ROOT, &node, Position::At(0), b"inside").unwrap();
            device.let_one_go_on();
            reader.join().unwrap();
        });
        drop(device);
        // Somebody else changes the file, so that the commit makes the calls again.
        let outside = fs.lookup(&ROOT, &fs.root(), b"file").unwrap();
        let byte = if changes_the_bytes { [8] } else { [7] };
        fs.write(&ROOT, &outside, Position::At(10_000), &byte).unwrap();
        let outcome = tx.commit();
        assert!(
            if changes_the_bytes {
                matches!(outcome, Err(FsError::Conflict { .. }))
            } else {
                outcome.is_ok()
            },
            "{outcome:?}"
        );
    }
}

#[test]
fn a_commit_and_an_abort_wait_for_reads_that_have_no_answer() {
    for commits in [true, false] {
        let (engine, _, fs) = filled();
        let tx = fs.begin().unwrap();
        let node = file_of(&tx);
        let files = Arc::clone(tx.files());
        files.create_file(&ROOT, &files.root(), b"new", MODE, b"x").unwrap();
        let device = SlowDevice::install(&engine);
        let (ended, is_ended) = channel();
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut bytes = vec![0; BYTES.len()];
                files.read(&node, 0, &mut bytes).map(|_| bytes)
            });
            device.await_read();
            scope.spawn(move || {
                if commits {
                    tx.commit().unwrap()
                } else {
                    tx.abort()
                }
                ended.send(()).unwrap();
            });
            assert!(is_ended.recv_timeout(Duration::from_millis(50)).is_err(), "the read has no answer yet");
            device.let_one_go_on();
            assert_eq!(reader.join().unwrap().unwrap(), BYTES);
            is_ended.recv_timeout(Duration::from_secs(60)).expect("the transaction ends after the read");
        });
        assert_eq!(fs.lookup(&ROOT, &fs.root(), b"new").is_ok(), commits);
        assert!(matches!(files.read(&node, 0, &mut [0]), Err(FsError::Ended)), "the transaction has ended");
    }
}
