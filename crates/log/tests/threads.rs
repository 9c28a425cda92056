//! Many threads at once: every call from each of them, and no bytes lost, torn or stuck.

mod rig;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rig::{ZONE_BYTES, content, open, shape};
use warpfire_log::{Log, LogError, LogStore, Stream};
use warpfire_sim_env::{Fault, OpClass, SimWorld};
use warpfire_units::SlicePtr;

const WRITERS: u64 = 4;
const EACH: u64 = 150;

fn assert_reads_back(log: &impl LogStore, key: u64, slices: &[SlicePtr]) {
    let mut at = 0;
    let len = slices.iter().map(|s| s.len_bytes as usize).sum();
    let expected = content(key, len);
    for slice in slices {
        let mut bytes = vec![0; slice.len_bytes as usize];
        log.read(*slice, &mut bytes).expect("a slice that is referred to can be read");
        assert!(bytes == expected[at..at + bytes.len()], "key {key}");
        at += bytes.len();
    }
}

#[test]
fn appends_reads_syncs_and_checkpoints_run_beside_each_other() {
    let shape = shape(2, 1, 3);
    let world = shape.world(1);
    let log = shape.create(&world).expect("blank devices take a log");
    run_everything_at_once(&world, log);
}

#[test]
fn and_beside_a_writer_thread() {
    let shape = shape(2, 1, 3);
    let world = shape.world(2);
    let log = shape.create(&world).expect("blank devices take a log");
    run_everything_at_once(&world, log.with_writer_thread());
}

#[test]
fn bytes_that_wait_for_the_writer_thread_read_back() {
    let shape = shape(2, 1, 3);
    let world = shape.world(3);
    let log = shape.create(&world).expect("blank devices take a log");
    let log = log.with_writer_thread();
    let len = narrow(ZONE_BYTES);
    let all: Vec<_> = (0..6).map(|key| (key, log.append(Stream::Large, &content(key, len)))).collect();
    for (key, slices) in &all {
        assert_reads_back(&log, *key, slices.as_ref().expect("there is room"));
    }
    log.sync().expect("nothing fails");
    for (key, slices) in &all {
        assert_reads_back(&log, *key, slices.as_ref().expect("there was room"));
    }
}

#[test]
fn a_write_that_fails_on_the_writer_thread_latches() {
    let shape = shape(1, 0, 1);
    let world = shape.world(4);
    let log = shape.create(&world).expect("blank devices take a log");
    let log = log.with_writer_thread();
    log.sync().expect("nothing fails yet");
    world.sims()[0].inject(Fault::Fail { op: OpClass::Write, after: 2, lasting: true });
    let fill = || {
        for key in 0.. {
            log.append(Stream::Large, &content(key, narrow(ZONE_BYTES) / 2))?;
        }
        Ok::<_, LogError>(())
    };
    assert!(matches!(fill(), Err(LogError::ReadOnly(_))));
    assert!(matches!(log.sync(), Err(LogError::ReadOnly(_))));
}

#[test]
fn a_write_that_fails_after_its_append_returned_fails_the_sync() {
    let shape = shape(1, 0, 1);
    let world = shape.world(6);
    let log = shape.create(&world).expect("blank devices take a log");
    let log = log.with_writer_thread();
    log.sync().expect("nothing fails yet");
    world.sims()[0].inject(Fault::Fail { op: OpClass::Write, after: 0, lasting: false });
    // The queue holds two stripes: these appends wait for no device, so they may return before the failure.
    let failed_appends = (0..2).map(|key| log.append(Stream::Large, &content(key, narrow(ZONE_BYTES) / 2)));
    let failed_appends = failed_appends.filter(Result::is_err).count();
    assert!(
        matches!(log.sync(), Err(LogError::ReadOnly(_))),
        "a sync fails, after {failed_appends} appends that failed"
    );
    assert!(matches!(log.append(Stream::Large, b"more"), Err(LogError::ReadOnly(_))));
}

/// Writes when it is dropped, as a mount does that its owner's scope closes.
struct Closing<'l>(&'l Log, &'l Mutex<Option<Result<(), LogError>>>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let written = self.0.append(Stream::Small, &content(1, 100)).and_then(|_| self.0.sync());
        *self.1.lock().expect("no thread panics under this lock") = Some(written);
    }
}

/// This hung: the driver of the write queue took a panic that was already under way for its own, and waited
/// for a lock that it held.
#[test]
fn a_thread_that_panicked_can_still_write_while_it_unwinds() {
    let shape = shape(2, 1, 3);
    let log = shape.create(&shape.world(5)).expect("blank devices take a log");
    let written = Mutex::new(None);
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _closing = Closing(&log, &written);
        panic!("a panic of the owner, not of the log");
    }));
    assert!(unwound.is_err());
    let written = written.into_inner().expect("no thread panicked under this lock");
    written.expect("the owner's scope closed it").expect("its bytes are durable");
    log.append(Stream::Small, &content(2, 100)).expect("the log goes on");
    log.sync().expect("the log goes on");
}

fn run_everything_at_once(world: &SimWorld, log: Log) {
    let written: Mutex<Vec<(u64, Vec<SlicePtr>)>> = Mutex::new(Vec::new());
    let acknowledged = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (log, written, acknowledged) = (&log, &written, &acknowledged);
                scope.spawn(move || {
                    for n in 0..EACH {
                        let key = writer * EACH + n;
                        let stream = [Stream::Small, Stream::Large, Stream::Table][narrow(n % 3)];
                        let len = if n % 50 == 0 { 20_000 } else { 1 + narrow(n) };
                        let slices = log.append(stream, &content(key, len)).expect("there is room").to_vec();
                        let pos = log.log(&key.to_le_bytes()).expect("nothing fails");
                        assert_reads_back(log, key, &slices);
                        written.lock().expect("no one panics").push((key, slices));
                        if n % 5 == 0 {
                            log.sync().expect("nothing fails");
                            acknowledged.fetch_max(pos.0, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        // Beside the writers: a reader under a pin, and checkpoints that free log segments at the same time.
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let _pin = log.pin();
                let known = written.lock().expect("no one panics").clone();
                for (key, slices) in known.iter().rev().take(20) {
                    assert_reads_back(&log, *key, slices);
                }
                let from = log.position();
                log.checkpoint(&[], from).expect("nothing fails");
                log.space();
                log.victims(3);
            }
        });
        for writer in writers {
            writer.join().expect("a writer ends well");
        }
        done.store(true, Ordering::SeqCst);
    });
    log.sync().expect("nothing fails");
    assert_eq!(log.position().0, WRITERS * EACH + 1);
    drop(log);
    let (log, _) = open(world).expect("the pool opens");
    assert_eq!(log.position().0, WRITERS * EACH + 1);
    for (key, slices) in written.into_inner().expect("no one panicked") {
        assert_reads_back(&log, key, &slices);
    }
}

#[test]
fn threads_that_wait_for_a_sync_share_it() {
    let shape = shape(1, 1, 2);
    let log = shape.create(&shape.world(1)).expect("blank devices take a log");
    let before = log.pool().counters().total.flushes;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    log.log(b"x").expect("nothing fails");
                    log.sync().expect("nothing fails");
                }
            });
        }
    });
    let flushes = log.pool().counters().total.flushes - before;
    assert!(flushes <= 2 * 200, "{flushes} flushes of two devices for 200 syncs");
}

fn narrow(n: u64) -> usize {
    usize::try_from(n).expect("the test's numbers are small")
}
