use warpfire_units::BLOCK_BYTES;

use super::*;
use crate::store::RecoveredLog;

fn small() -> MemLog {
    MemLog::with_options(MemLogOptions { capacity_bytes: 1 << 20, segment_bytes: 64 << 10 })
}

fn read(log: &MemLog, slices: &Slices) -> Result<Vec<u8>, LogError> {
    let mut all = Vec::new();
    for &slice in slices {
        let mut part = vec![0; slice.len_bytes as usize];
        log.read(slice, &mut part)?;
        all.extend(part);
    }
    Ok(all)
}

fn records(recovered: RecoveredLog) -> Vec<Vec<u8>> {
    recovered.records.map(|r| r.unwrap().1).collect()
}

#[test]
fn appended_bytes_read_back_at_once() {
    let log = MemLog::new();
    let packed = log.append(Stream::Small, b"abc").unwrap();
    let beside = log.append(Stream::Small, b"defg").unwrap();
    assert!(packed[0].is_followed_by(beside[0]));
    assert_eq!(read(&log, &beside).unwrap(), b"defg");
}

#[test]
fn large_appends_start_on_a_block_and_split_at_a_segments_end() {
    let log = small();
    log.append(Stream::Large, &[1; 100]).unwrap();
    let long = vec![7; 100 << 10];
    let slices = log.append(Stream::Large, &long).unwrap();
    assert!(slices.len() == 2 && slices.iter().all(|s| s.offset_bytes % BLOCK_BYTES as u64 == 0));
    assert_eq!(read(&log, &slices).unwrap(), long);
}

#[test]
fn up_to_64_kib_are_never_split() {
    let log = small();
    log.append(Stream::Small, &[1; 100]).unwrap();
    assert_eq!(log.append(Stream::Small, &[2; 64 << 10]).unwrap().len(), 1);
}

#[test]
fn a_split_append_fills_its_segment() {
    let log = small();
    let segment_bytes = log.segment_bytes() as usize;
    let first = log.append(Stream::Small, &vec![1; segment_bytes - BLOCK_BYTES]).unwrap();
    let split = log.append_split(Stream::Small, &[2; 2 * BLOCK_BYTES]).unwrap();
    assert_eq!(split.len(), 2);
    assert!(first[0].is_followed_by(split[0]) && split[0].len_bytes as usize == BLOCK_BYTES);
    assert_eq!(read(&log, &split).unwrap(), [2; 2 * BLOCK_BYTES]);
    log.append(Stream::Small, &vec![1; segment_bytes - 2 * BLOCK_BYTES + 1]).unwrap();
    assert_eq!(log.append_split(Stream::Small, &[2; BLOCK_BYTES]).unwrap().len(), 1);
}

#[test]
fn a_crash_keeps_synced_bytes_and_nothing_else() {
    let log = MemLog::new();
    let kept = log.append(Stream::Small, b"kept").unwrap();
    log.log(b"one").unwrap();
    log.sync().unwrap();
    let lost = log.append(Stream::Small, b"lost").unwrap();
    log.log(b"two").unwrap();
    let (after, recovered) = log.crash();
    assert_eq!(records(recovered), [b"one"]);
    assert_eq!(read(&after, &kept).unwrap(), b"kept");
    assert!(matches!(read(&after, &lost), Err(LogError::BadPointer(_))));
}

#[test]
fn a_seeded_crash_keeps_a_prefix_and_the_bytes_before_it() {
    let mut lengths_seen = [false; 4];
    for seed in 0..64 {
        let log = MemLog::new();
        log.log(b"synced").unwrap();
        log.sync().unwrap();
        let data: Vec<Slices> = (0..3u8)
            .map(|n| {
                let slices = log.append(Stream::Small, &[n; 10]).unwrap();
                log.log(&[n]).unwrap();
                slices
            })
            .collect();
        let (after, recovered) = log.crash_seeded(seed);
        let kept = records(recovered).len() - 1;
        lengths_seen[kept] = true;
        for (n, slices) in data.iter().enumerate() {
            assert_eq!(read(&after, slices).is_ok(), n < kept, "seed {seed}");
        }
    }
    assert_eq!(lengths_seen, [true; 4]);
}

#[test]
fn named_bytes_survive() {
    for is_synced in [true, false] {
        let log = MemLog::new();
        let [named, other] = [b"named", b"other"].map(|bytes| log.append(Stream::Small, bytes).unwrap());
        let elsewhere = log.append(Stream::Table, b"elsewhere").unwrap();
        log.need(named[0]);
        log.log_named(b"record").unwrap();
        if is_synced {
            log.sync_records().unwrap();
        }
        // The seed that keeps all records.
        let kept = |seed: &u64| records(log.crash_seeded(*seed).1) == [b"record"];
        let (after, _) = log.crash_seeded((0..64).find(kept).unwrap());
        assert_eq!(read(&after, &named).unwrap(), b"named");
        assert!(read(&after, &other).is_err() && read(&after, &elsewhere).is_err());
        // A record that needs all appends takes the rest along.
        log.log(b"edit").unwrap();
        log.sync_records().unwrap();
        let (after, _) = log.crash();
        assert_eq!(read(&after, &elsewhere).unwrap(), b"elsewhere");
    }
}

#[test]
fn a_checkpoint_replaces_the_records_before_it() {
    let log = MemLog::new();
    log.log(b"old").unwrap();
    let from = log.log(b"new").unwrap();
    log.checkpoint(b"state", from).unwrap();
    let (after, recovered) = log.crash();
    assert_eq!(recovered.state, b"state");
    assert_eq!(records(recovered), [b"new"]);
    assert_eq!(after.position(), LogPos(from.0 + 1));
}

#[test]
fn places_go_on_after_a_crash_behind_a_checkpoint_of_everything() {
    let log = MemLog::new();
    log.log(b"old").unwrap();
    let end = log.position();
    log.checkpoint(b"state", end).unwrap();
    log.log(b"lost").unwrap();
    assert_eq!(log.crash().0.position(), end);
}

#[test]
fn a_released_segment_is_freed_once_it_is_sealed_and_unpinned() {
    let log = small();
    let first = log.append(Stream::Small, &[1; 60 << 10]).unwrap();
    let pin = log.pin();
    log.release(first[0].segment, u64::from(first[0].len_bytes));
    log.append(Stream::Small, &[2; 60 << 10]).unwrap();
    assert!(read(&log, &first).is_ok());
    drop(pin);
    log.space();
    assert!(matches!(read(&log, &first), Err(LogError::BadPointer(_))));
}

#[test]
fn a_full_log_returns_an_error_and_the_reserve_is_for_deletions() {
    let log = small();
    let mut written = Vec::new();
    while log.admit(60 << 10, Admit::User).is_ok() {
        written.push(log.append(Stream::Small, &[1; 60 << 10]).unwrap());
    }
    assert!(log.admit(60 << 10, Admit::Reserve).is_ok());
    while let Ok(slices) = log.append(Stream::Small, &[1; 60 << 10]) {
        written.push(slices);
    }
    assert_eq!(log.space().live_bytes, written.len() as u64 * (60 << 10));
    log.release(written[0][0].segment, 60 << 10);
    assert!(log.append(Stream::Large, &[1; 60 << 10]).is_ok());
}

#[test]
fn space_adds_up() {
    let log = small();
    let slices = log.append(Stream::Small, &[1; 1000]).unwrap();
    log.release(slices[0].segment, 400);
    let space = log.space();
    assert_eq!((space.live_bytes, space.garbage_bytes), (600, 400));
    assert_eq!(space.live_bytes + space.garbage_bytes + space.free_bytes, space.total_bytes);
}

#[test]
fn a_failed_sync_latches() {
    let log = MemLog::new();
    log.fail_sync_after(1);
    log.sync().unwrap();
    assert!(matches!(log.sync(), Err(LogError::ReadOnly(_))));
    assert!(matches!(log.append(Stream::Small, b"x"), Err(LogError::ReadOnly(_))));
}

#[test]
fn victims_are_sealed_and_least_live_first() {
    let log = small();
    let slices: Vec<_> = (0..4).map(|_| log.append(Stream::Small, &[1; 60 << 10]).unwrap()[0]).collect();
    log.release(slices[1].segment, 50 << 10);
    log.release(slices[0].segment, 20 << 10);
    assert_eq!(log.victims(9), [slices[1].segment, slices[0].segment]);
}

#[test]
fn an_open_segment_of_garbage_is_sealed_for_cleaning() {
    let log = small();
    let kept = log.append(Stream::Small, &[1; 10 << 10]).unwrap()[0];
    let gone = log.append(Stream::Small, &[2; 50 << 10]).unwrap()[0];
    let other = log.append(Stream::Large, &[3; 50 << 10]).unwrap()[0];
    assert!(!log.seal_victim().unwrap(), "no byte is garbage");
    log.release(gone.segment, u64::from(gone.len_bytes));
    assert!(log.victims(9).is_empty(), "the segment is open");
    assert!(log.seal_victim().unwrap());
    assert_eq!(log.victims(9), [kept.segment]);
    assert!(!log.seal_victim().unwrap(), "the other one has no garbage");
    // One without references is freed at once.
    log.release(other.segment, u64::from(other.len_bytes));
    let free_bytes = log.space().free_bytes;
    assert!(log.seal_victim().unwrap());
    assert!(log.space().free_bytes > free_bytes && log.victims(9) == [kept.segment]);
}
