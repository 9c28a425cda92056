//! The write queue of the log: stripes of several threads, a writer thread, and failures.

use std::sync::Mutex;

use shuttle::thread;
use warpfire_log::{LogError, LogStore, Stream};
use warpfire_schedules::{Stack, TestLog, ZONE_BYTES, content, draw, explore};
use warpfire_sim_env::{Fault, OpClass};
use warpfire_units::SlicePtr;

const WRITERS: u64 = 3;
const EACH: u64 = 4;

fn assert_reads_back(log: &TestLog, key: u64, slices: &[SlicePtr]) {
    let mut bytes = Vec::new();
    for slice in slices {
        let mut piece = vec![0; slice.len_bytes as usize];
        log.read(*slice, &mut piece).expect("an appended slice can be read");
        bytes.extend(piece);
    }
    assert!(bytes == content(key, bytes.len()), "the bytes of key {key}");
}

fn drawn_len() -> usize {
    usize::try_from(1 + draw(ZONE_BYTES)).expect("a zone fits in memory")
}

#[test]
fn bytes_read_back_before_and_after_their_stripe_is_written() {
    explore(200, || {
        let stack = Stack::draw();
        let log = stack.create_log();
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let log = &log;
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    for n in 0..EACH {
                        let key = writer * EACH + n;
                        let stream = if draw(2) == 0 { Stream::Small } else { Stream::Large };
                        let slices = log.append(stream, &content(key, drawn_len())).expect("there is room");
                        assert_reads_back(log, key, &slices);
                        mine.push((key, slices));
                        if draw(3) == 0 {
                            log.sync().expect("no device fails");
                        }
                    }
                    mine.iter().for_each(|(key, slices)| assert_reads_back(log, *key, slices));
                });
            }
        });
        log.sync().expect("no device fails");
    });
}

#[test]
fn after_a_failed_write_no_sync_succeeds_and_nobody_waits_for_ever() {
    explore(200, || {
        let stack = Stack::draw();
        let log = stack.create_log();
        log.sync().expect("nothing fails yet");
        for device in stack.world().sims() {
            device.inject(Fault::Fail { op: OpClass::Write, after: draw(6), lasting: true });
        }
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let log = &log;
                scope.spawn(move || {
                    let mut failed = false;
                    for n in 0..EACH {
                        let key = writer * EACH + n;
                        let done =
                            log.append(Stream::Large, &content(key, drawn_len())).and_then(|_| log.sync());
                        assert!(!(failed && done.is_ok()), "a log that has failed stays failed");
                        failed |= matches!(done, Err(LogError::ReadOnly(_)));
                    }
                });
            }
        });
        // Every device fails before long: more is written than the first writes that succeed.
        let after =
            (0..20).map(|key| log.append(Stream::Large, &content(key, drawn_len())).and_then(|_| log.sync()));
        assert!(after.last().expect("there are twenty").is_err(), "the caller learns of the failure");
    });
}

/// Several threads name their own slices in records and sync these, while others fill stripes that nothing
/// names. After a power cut every record that a sync covered is there with its slices.
#[test]
fn the_slices_of_a_synced_record_survive_a_power_cut_right_after_the_sync() {
    explore(200, || {
        let stack = Stack::draw();
        let log = stack.create_log();
        let covered: Mutex<Vec<(u64, Vec<SlicePtr>)>> = Mutex::new(Vec::new());
        let cut = thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (log, covered) = (&log, &covered);
                scope.spawn(move || {
                    for n in 0..EACH {
                        let key = writer * EACH + n;
                        let stream = match draw(3) {
                            0 => Stream::Small,
                            1 => Stream::Large,
                            _ => Stream::Table,
                        };
                        let len = usize::try_from(1 + draw(9000)).expect("a few blocks");
                        let slices = log.append(stream, &content(key, len)).expect("there is room");
                        if writer == 0 {
                            continue;
                        }
                        slices.iter().for_each(|slice| log.need(*slice));
                        log.log_named(&key.to_le_bytes()).expect("there is room");
                        log.sync_records().expect("no device fails");
                        covered.lock().expect("no thread panics").push((key, slices.to_vec()));
                    }
                });
            }
            let (stack, covered) = (&stack, &covered);
            scope
                .spawn(move || {
                    (0..draw(8)).for_each(|_| thread::yield_now());
                    let covered = covered.lock().expect("no thread panics").clone();
                    (stack.cut(), covered)
                })
                .join()
                .expect("a cut succeeds")
        });
        let (stack, covered) = cut;
        let (log, recovered) = stack.open_log();
        let keys: Vec<Vec<u8>> = recovered.records.map(|r| r.expect("the records are whole").1).collect();
        for (key, slices) in covered {
            assert!(keys.contains(&key.to_le_bytes().to_vec()), "the record of key {key}");
            assert_reads_back(&log, key, &slices);
        }
    });
}
