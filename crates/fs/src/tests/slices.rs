//! Single behaviours of slicing calls: the bytes that they write, the time for which values keep bytes, and
//! the calls that they refuse.

use std::sync::Arc;
use std::time::Duration;

use warpfire_log::{LogStore, MemLog, MemLogCounters, MemLogOptions, RecoveredLog};
use warpfire_meta::{MapStore, Store};

use super::engine::{LogEngine, format, open};
use super::{Ticking, world, world_with};
use crate::acl::Caller;
use crate::limits::FILE_BYTES_MAX;
use crate::{
    Fs, FsError, FsOptions, FsSchema, InsertSource, NewMode, NodeRef, Position, YankLimit, YankedSlice,
};

const ROOT: Caller<'static> = Caller::ROOT;

fn make<E: warpfire_meta::Store + warpfire_meta::SliceStore>(fs: &Fs<E>, name: &[u8]) -> NodeRef {
    fs.create(&ROOT, &fs.root(), name, NewMode::exact(0o644)).unwrap()
}

/// Bytes that differ from the others near them, so that a wrong offset shows.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 251) as u8 ^ (i % 251) as u8).collect()
}

fn counters(fs: &Fs<LogEngine>) -> MemLogCounters {
    fs.engine().log().counters()
}

#[test]
fn no_slicing_call_reads_or_writes_data() {
    let fs = open(format(), Fs::format);
    let [a, b, c] = [b"a", b"b", b"c"].map(|name| make(&fs, name));
    let mut expect = pattern(5 << 20);
    fs.write(&ROOT, &a, Position::End, &expect).unwrap();
    fs.write(&ROOT, &b, Position::End, &pattern(300_000)).unwrap();
    let before = counters(&fs);
    let slice = fs.yank(&a, 1_234_567, 2_345_678).unwrap();
    fs.paste(&ROOT, &b, Position::At(77), &slice).unwrap();
    fs.paste(&ROOT, &b, Position::End, &slice.part(1..999_999)).unwrap();
    fs.insert_range(&ROOT, &a, 3, InsertSource::Slice(&slice)).unwrap();
    fs.remove_range(&ROOT, &a, 1_000_001, 2_000_003).unwrap();
    fs.copy_range(&ROOT, (&a, 13), (&c, 17), 3_000_001).unwrap();
    fs.concat(&ROOT, &c, &[a.clone(), b, a.clone()]).unwrap();
    let after = counters(&fs);
    assert_eq!(after.appended_bytes, before.appended_bytes, "nothing was written to any stream");
    assert_eq!(after.reads, before.reads, "nothing was read");
    let taken = expect[1_234_567..1_234_567 + 2_345_678].to_vec();
    expect.splice(3..3, taken);
    expect.drain(1_000_001..3_000_004);
    let mut bytes = vec![0; expect.len()];
    fs.read(&a, 0, &mut bytes).unwrap();
    assert!(bytes == expect);
}

#[test]
fn the_metadata_of_a_rearranged_file_is_all_that_a_sync_writes() {
    let fs = open(format(), Fs::format);
    let node = make(&fs, b"scenes");
    fs.write(&ROOT, &node, Position::End, &pattern(8 << 20)).unwrap();
    fs.sync().unwrap();
    let scenes: Vec<_> = (0..64).map(|n| fs.yank(&node, n * 131_072, 131_072).unwrap()).collect();
    let shuffled: Vec<_> = (0..64).map(|n| scenes[(n * 37 + 5) % 64].clone()).collect();
    let before = counters(&fs);
    fs.paste(&ROOT, &node, Position::At(0), &YankedSlice::join(&shuffled).unwrap().unwrap()).unwrap();
    fs.sync().unwrap();
    let after = counters(&fs);
    assert_eq!(after.appended_bytes, before.appended_bytes);
    let record_bytes = after.record_bytes - before.record_bytes;
    assert!(record_bytes < 64 * 40, "{record_bytes} bytes of metadata for 64 scenes");
}

#[test]
fn pointers_that_come_to_lie_side_by_side_fuse() {
    let fs = open(format(), Fs::format);
    let a = make(&fs, b"a");
    let b = make(&fs, b"b");
    fs.write(&ROOT, &a, Position::End, &pattern(1 << 20)).unwrap();
    let whole = fs.yank(&a, 0, 1 << 20).unwrap();
    for n in 0..256 {
        fs.paste(&ROOT, &b, Position::End, &whole.part(n * 4096..(n + 1) * 4096)).unwrap();
    }
    let read = |node: &NodeRef| {
        let before = counters(&fs).reads;
        let mut bytes = vec![0; 1 << 20];
        fs.read(node, 0, &mut bytes).unwrap();
        assert!(bytes == pattern(1 << 20));
        counters(&fs).reads - before
    };
    assert_eq!(read(&b), read(&a), "256 pastes are read as one write is");
}

#[test]
fn a_yanked_value_outlives_overwriting_deleting_and_cleaning() {
    let options = MemLogOptions { capacity_bytes: 64 << 20, segment_bytes: 256 << 10 };
    let fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
    let node = make(&fs, b"source");
    let first = pattern(2 << 20);
    fs.write(&ROOT, &node, Position::End, &first).unwrap();
    let slice = fs.yank(&node, 100_000, 1_500_000).unwrap();
    fs.write(&ROOT, &node, Position::At(0), &vec![1; 2 << 20]).unwrap();
    fs.unlink(&ROOT, &fs.root(), b"source").unwrap();
    drop(node);
    let clean = || {
        fs.sync().unwrap();
        fs.engine().compact().unwrap();
        while fs.engine().background_step().unwrap() {}
        fs.sync().unwrap();
    };
    clean();
    let target = make(&fs, b"target");
    fs.paste(&ROOT, &target, Position::At(0), &slice).unwrap();
    let mut bytes = vec![0; 1_500_000];
    fs.read(&target, 0, &mut bytes).unwrap();
    assert!(bytes == first[100_000..1_600_000]);
    drop(slice);
    clean();
    fs.read(&target, 0, &mut bytes).unwrap();
    assert!(bytes == first[100_000..1_600_000], "the file keeps the pasted bytes");
    fs.unlink(&ROOT, &fs.root(), b"target").unwrap();
    drop(target);
    clean();
    let live_bytes = fs.engine().log().space().live_bytes;
    assert!(live_bytes < 64 << 10, "{live_bytes} bytes are kept though nothing names them");
}

#[test]
fn a_held_segment_does_not_keep_others_from_being_cleaned() {
    let options = MemLogOptions { capacity_bytes: 24 << 20, segment_bytes: 256 << 10 };
    let fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
    let node = make(&fs, b"churn");
    fs.write(&ROOT, &node, Position::End, &pattern(1 << 20)).unwrap();
    let slice = fs.yank(&node, 0, 1 << 20).unwrap();
    // Ten times what the pool holds.
    for n in 0..240 {
        fs.write(&ROOT, &node, Position::At(0), &vec![n; 1 << 20]).unwrap();
        fs.sync().unwrap();
    }
    let mut bytes = vec![0; 1 << 20];
    fs.read_yanked_slice(&slice, 0, &mut bytes).unwrap();
    assert!(bytes == pattern(1 << 20));
}

#[test]
fn a_lease_keeps_until_its_deadline_and_no_longer() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
    let node = make(&fs, b"f");
    fs.write(&ROOT, &node, Position::End, &pattern(100_000)).unwrap();
    let slice = fs.yank(&node, 0, 100_000).unwrap();
    let minute = Duration::from_secs(60);
    fs.lease(&slice, minute).unwrap();
    fs.unlink(&ROOT, &fs.root(), b"f").unwrap();
    drop(node);
    fs.sync().unwrap();
    while engine.background_step().unwrap() {}
    clock.skip_seconds(40);
    let target = make(&fs, b"t");
    fs.paste(&ROOT, &target, Position::End, &slice.part(0..10)).unwrap();
    fs.lease(&slice, minute).unwrap();
    clock.skip_seconds(40);
    fs.paste(&ROOT, &target, Position::End, &slice.part(10..20)).unwrap();
    clock.skip_seconds(40);
    let refused = [
        fs.paste(&ROOT, &target, Position::End, &slice).map(|_| ()),
        fs.insert_range(&ROOT, &target, 0, InsertSource::Slice(&slice.part(5..6))),
        fs.lease(&slice, minute),
        fs.read_yanked_slice(&slice, 0, &mut [0; 10]).map(|_| ()),
    ];
    for outcome in refused {
        assert!(matches!(outcome, Err(FsError::LeaseExpired)), "{outcome:?}");
    }
    assert_eq!(fs.getattr(&target).size_bytes, 20);
    fs.unlink(&ROOT, &fs.root(), b"t").unwrap();
    drop(target);
    fs.sync().unwrap();
    while engine.background_step().unwrap() {}
    assert_eq!(engine.slices_stored(), 0, "an expired value keeps nothing, although it is still there");
}

#[test]
fn a_value_may_be_pasted_over_where_it_came_from() {
    let fs = world();
    let node = make(&fs, b"f");
    let mut expect = pattern(200_000);
    fs.write(&ROOT, &node, Position::End, &expect).unwrap();
    let slice = fs.yank(&node, 0, 150_000).unwrap();
    fs.paste(&ROOT, &node, Position::At(70_000), &slice).unwrap();
    let taken = expect[..150_000].to_vec();
    expect.truncate(70_000);
    expect.extend(taken);
    let mut bytes = vec![0; 220_000];
    fs.read(&node, 0, &mut bytes).unwrap();
    assert!(bytes == expect);
}

#[test]
fn a_file_may_be_concatenated_with_itself_onto_itself() {
    let fs = world();
    let node = make(&fs, b"f");
    let once = pattern(90_000);
    fs.write(&ROOT, &node, Position::End, &once).unwrap();
    let both = [node.clone(), node.clone()];
    assert_eq!(fs.concat(&ROOT, &node, &both).unwrap(), 180_000);
    let mut bytes = vec![0; 180_000];
    fs.read(&node, 0, &mut bytes).unwrap();
    assert!(bytes == [once.clone(), once].concat());
    assert_eq!(fs.concat(&ROOT, &node, &[]).unwrap(), 0);
    assert_eq!(fs.getattr(&node).size_bytes, 0);
}

#[test]
fn ranges_past_the_end_are_what_there_is_of_them() {
    let fs = world();
    let node = make(&fs, b"f");
    fs.write(&ROOT, &node, Position::End, b"0123456789").unwrap();
    assert_eq!(fs.yank(&node, 7, u64::MAX).unwrap().len_bytes(), 3);
    let nothing = fs.yank(&node, 10, 5).unwrap();
    assert!(nothing.is_empty());
    assert_eq!(fs.paste(&ROOT, &node, Position::At(1 << 40), &nothing).unwrap(), 1 << 40);
    fs.remove_range(&ROOT, &node, 10, 5).unwrap();
    assert_eq!(fs.getattr(&node).size_bytes, 10, "nothing taken, nothing put, nothing changed");
    let outside = fs.insert_range(&ROOT, &node, 11, InsertSource::Hole(1));
    assert!(matches!(outside, Err(FsError::Invalid(_))), "{outside:?}");
    fs.remove_range(&ROOT, &node, 4, u64::MAX).unwrap();
    assert_eq!(fs.getattr(&node).size_bytes, 4);
}

#[test]
fn files_do_not_grow_beyond_the_largest() {
    let fs = world();
    let node = make(&fs, b"f");
    let huge = make(&fs, b"huge");
    fs.write(&ROOT, &node, Position::End, &pattern(100_000)).unwrap();
    fs.truncate(&ROOT, &huge, FILE_BYTES_MAX - 10).unwrap();
    let slice = fs.yank(&node, 0, 11).unwrap();
    let outcomes = [
        fs.paste(&ROOT, &huge, Position::End, &slice).map(|_| ()),
        fs.paste(&ROOT, &huge, Position::At(u64::MAX), &slice).map(|_| ()),
        fs.insert_range(&ROOT, &huge, 5, InsertSource::Slice(&slice)),
        fs.insert_range(&ROOT, &huge, 5, InsertSource::Hole(u64::MAX)),
        fs.concat(&ROOT, &node, &[node.clone(), huge.clone()]).map(|_| ()),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(FsError::FileTooLarge)), "{outcome:?}");
    }
    assert_eq!(fs.getattr(&huge).size_bytes, FILE_BYTES_MAX - 10);
    fs.paste(&ROOT, &huge, Position::End, &slice.part(0..10)).unwrap();
    assert_eq!(fs.getattr(&huge).size_bytes, FILE_BYTES_MAX);
    assert_eq!(fs.yank(&huge, 0, u64::MAX).unwrap().data_bytes(), 10, "a hole costs nothing");
}

#[test]
fn a_full_pool_refuses_pasting_and_serves_removing() {
    let clock = Arc::new(Ticking::default());
    let engine = Arc::new(MapStore::with_capacity(FsSchema, 300_000));
    Fs::format(&*engine, &*clock, 0, 0).unwrap();
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let node = make(&fs, b"f");
    fs.write(&ROOT, &node, Position::End, &pattern(200_000)).unwrap();
    let slice = fs.yank(&node, 0, 100_000).unwrap();
    let full = (0..).find_map(|n| fs.write(&ROOT, &node, Position::End, &[n; 900]).err()).unwrap();
    assert!(matches!(full, FsError::NoSpace), "{full}");
    while fs.write(&ROOT, &node, Position::End, &[1]).is_ok() {}
    let before = fs.getattr(&node);
    let outcomes = [
        fs.paste(&ROOT, &node, Position::At(3), &slice).map(|_| ()),
        fs.insert_range(&ROOT, &node, 3, InsertSource::Slice(&slice)),
        fs.concat(&ROOT, &node, &[node.clone(), node.clone()]).map(|_| ()),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(FsError::NoSpace)), "{outcome:?}");
    }
    assert_eq!(fs.getattr(&node), before, "a refused call has changed nothing");
    fs.remove_range(&ROOT, &node, 10, 100_000).unwrap();
    fs.remove_range(&ROOT, &node, 10, u64::MAX).unwrap();
    assert_eq!(fs.getattr(&node).size_bytes, 10);
}

#[test]
fn a_pool_that_latched_read_only_still_gives_and_reads_values() {
    let fs = open(format(), Fs::format);
    let node = make(&fs, b"f");
    fs.write(&ROOT, &node, Position::End, &pattern(100_000)).unwrap();
    fs.sync().unwrap();
    fs.engine().log().fail_sync_after(0);
    fs.write(&ROOT, &node, Position::At(0), b"x").unwrap();
    fs.sync().unwrap_err();
    let slice = fs.yank(&node, 1, 1000).unwrap();
    let mut bytes = vec![0; 1000];
    fs.read_yanked_slice(&slice, 0, &mut bytes).unwrap();
    assert!(bytes == pattern(100_000)[1..1001]);
    let outcomes = [
        fs.paste(&ROOT, &node, Position::End, &slice).map(|_| ()),
        fs.insert_range(&ROOT, &node, 0, InsertSource::Hole(1)),
        fs.remove_range(&ROOT, &node, 0, 1),
        fs.concat(&ROOT, &node, std::slice::from_ref(&node)).map(|_| ()),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(FsError::ReadOnly(_))), "{outcome:?}");
    }
}

#[test]
fn values_of_two_pools_do_not_join() {
    let one = world();
    let other = world();
    let a = make(&one, b"a");
    let b = make(&other, b"b");
    let parts = [one.yank(&a, 0, 1).unwrap(), other.yank(&b, 0, 1).unwrap()];
    assert!(matches!(YankedSlice::join(&parts), Err(FsError::ForeignSlice)));
    assert!(YankedSlice::join(&[]).unwrap().is_none());
}

#[test]
fn only_regular_files_have_slices() {
    let fs = world();
    let file = make(&fs, b"f");
    let slice = fs.yank(&file, 0, 1).unwrap();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"d", NewMode::exact(0o755)).unwrap();
    let outcomes = [
        fs.yank(&dir, 0, 1).map(|_| ()),
        fs.paste(&ROOT, &dir, Position::End, &slice).map(|_| ()),
        fs.concat(&ROOT, &file, std::slice::from_ref(&dir)).map(|_| ()),
        fs.remove_range(&ROOT, &dir, 0, 1),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(FsError::IsDirectory)), "{outcome:?}");
    }
}

#[test]
fn a_long_hole_is_pasted_behind_the_end_of_a_short_file() {
    let fs = world();
    let (sparse, short) = (make(&fs, b"sparse"), make(&fs, b"short"));
    fs.truncate(&ROOT, &sparse, 1 << 40).unwrap();
    fs.write(&ROOT, &short, Position::End, b"0123456789").unwrap();
    let hole = fs.yank(&sparse, 0, 1 << 40).unwrap();
    for at in [1 << 20, (1 << 20) + 5, (3 << 20) - 1] {
        fs.paste(&ROOT, &short, Position::At(at), &hole).unwrap();
        let shown = fs.getattr(&short);
        assert_eq!((shown.size_bytes, shown.allocated_bytes), (at + (1 << 40), 10));
        let mut bytes = [1; 11];
        fs.read(&short, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"0123456789\0");
        fs.truncate(&ROOT, &short, 10).unwrap();
    }
}

#[test]
fn values_that_are_too_long_together_do_not_join() {
    let fs = world();
    let node = make(&fs, b"sparse");
    fs.truncate(&ROOT, &node, FILE_BYTES_MAX).unwrap();
    let longest = fs.yank(&node, 0, FILE_BYTES_MAX).unwrap();
    let byte = fs.yank(&node, 0, 1).unwrap();
    for parts in [vec![longest.clone(), byte.clone()], vec![longest.clone(); 3]] {
        assert!(matches!(YankedSlice::join(&parts), Err(FsError::FileTooLarge)));
    }
    assert_eq!(
        YankedSlice::join(&[longest.part(1..u64::MAX), byte]).unwrap().unwrap().len_bytes(),
        FILE_BYTES_MAX
    );
}

#[test]
fn a_value_beyond_the_limit_of_memory_is_refused_and_taken_in_parts() {
    let fs = world();
    let file = make(&fs, b"f");
    for index in 0..8 {
        fs.write(&ROOT, &file, Position::At(index << 20), &[1; 100]).unwrap();
    }
    let limit = YankLimit { runs: 4, bytes: 1 << 20 };
    assert!(matches!(fs.yank_within(&file, 0, u64::MAX, limit), Err(FsError::FileTooLarge)));
    assert_eq!(fs.yank_within(&file, 0, 4 << 20, limit).unwrap().len_bytes(), 4 << 20);
    let limit = YankLimit { runs: 100, bytes: 300 };
    assert!(matches!(fs.yank_within(&file, 0, u64::MAX, limit), Err(FsError::FileTooLarge)));
    assert!(fs.yank(&file, 0, u64::MAX).is_ok());
}
