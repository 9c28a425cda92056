//! Reserved ranges: room is kept for their first write, on pools that are otherwise full, and across crashes.

use warpfire_log::{MemLog, MemLogOptions, RecoveredLog};

use super::check::check;
use super::engine::{Log, LogEngine, open};
use super::{TestRandom, world};
use crate::acl::Caller;
use crate::limits::REGIONS_PER_COMMIT;
use crate::{AllocMode, Fs, FsError, InsertSource, NewMode, NodeRef, Position, Seek};

const ROOT: Caller<'static> = Caller::ROOT;
const MIB: u64 = 1 << 20;

/// Refusals in a row after which a pool counts as full.
const REFUSALS: u32 = 8;

fn small_pool() -> Log {
    let options = MemLogOptions { capacity_bytes: 16 << 20, segment_bytes: 256 << 10 };
    (MemLog::with_options(options), RecoveredLog::empty())
}

fn make(fs: &Fs<LogEngine>, name: &[u8]) -> NodeRef {
    fs.create(&ROOT, &fs.root(), name, NewMode::exact(0o644)).unwrap()
}

/// Fills the pool with files of `len` bytes; returns how many there are.
fn fill(fs: &Fs<LogEngine>, prefix: &str, len: usize) -> u32 {
    let (mut made, mut refusals) = (0, 0);
    while refusals < REFUSALS {
        let name = format!("{prefix}{made}");
        match fs.create_file(&ROOT, &fs.root(), name.as_bytes(), NewMode::exact(0o644), &vec![7; len]) {
            Ok(_) => made += 1,
            Err(FsError::NoSpace) => refusals += 1,
            Err(e) => panic!("{name}: {e}"),
        }
    }
    made
}

fn fill_to_the_brim(fs: &Fs<LogEngine>, prefix: &str) {
    for len in [60_000, 9_000, 500] {
        fill(fs, &format!("{prefix} {len} "), len);
    }
}

#[test]
fn the_root_directory_belongs_to_the_owner_of_the_pool() {
    let fs = open(small_pool(), |engine, clock, _, _| Fs::format(engine, clock, 7, 8));
    let attr = fs.getattr(&fs.root());
    assert_eq!((attr.uid, attr.gid), (7, 8));
}

#[test]
fn the_first_write_of_a_reserved_range_finds_room_on_a_full_pool() {
    for (seed, piece, size) in
        [(1, 512, MIB), (2, 4096, 2 * MIB), (3, 100_000, 4 * MIB), (4, 1 << 20, 6 * MIB)]
    {
        let fs = open(small_pool(), Fs::format);
        let mut draw = TestRandom(seed);
        let node = make(&fs, b"reserved");
        fs.fallocate(&ROOT, &node, AllocMode::Allocate, 0, size).unwrap();
        let attr = fs.getattr(&node);
        assert_eq!((attr.size_bytes, attr.allocated_bytes), (size, size));
        fill_to_the_brim(&fs, "other");
        let mut offsets: Vec<u64> = (0..size).step_by(piece).collect();
        for i in 0..offsets.len() {
            let j = draw.below(offsets.len() as u64) as usize;
            offsets.swap(i, j);
        }
        for (n, offset) in offsets.into_iter().enumerate() {
            let len = (piece as u64).min(size - offset) as usize;
            fs.write(&ROOT, &node, Position::At(offset), &vec![3; len])
                .unwrap_or_else(|e| panic!("pieces of {piece}: write {n} at {offset}: {e}"));
            assert_eq!(fs.getattr(&node).allocated_bytes, size, "the write changes no allocated bytes");
            if n % 50 == 0 {
                fs.sync().unwrap();
            }
        }
        assert_eq!(fs.seek(&node, Seek::Hole, 0).unwrap(), size, "all of it is data");
        fs.sync().unwrap();
        check(&**fs.engine(), &format!("pieces of {piece}"));
        // Deleting still works: the writes have left the reserve to it.
        fs.unlink(&ROOT, &fs.root(), b"reserved").unwrap();
    }
}

#[test]
fn only_content_that_frees_room_replaces_a_file_of_a_full_pool() {
    let fs = open(small_pool(), Fs::format);
    let long = make(&fs, b"long");
    fs.write(&ROOT, &long, Position::At(0), &vec![1; 2 << 20]).unwrap();
    let sparse = make(&fs, b"sparse");
    fs.truncate(&ROOT, &sparse, 4 * MIB).unwrap();
    fill_to_the_brim(&fs, "beside");
    let refused = fs.overwrite(&ROOT, &sparse, &[2; 20_000]);
    assert!(matches!(refused, Err(FsError::NoSpace)), "a hole frees nothing: {refused:?}");
    fs.overwrite(&ROOT, &long, &[2; 20_000]).unwrap();
    assert_eq!(fs.getattr(&long).size_bytes, 20_000);
    fs.sync().unwrap();
    check(&**fs.engine(), "a short file");
}

#[test]
fn others_do_not_take_the_room_and_get_it_when_the_reservation_ends() {
    for end in ["unlink", "truncate", "punch", "overwrite", "abort"] {
        let fs = open(small_pool(), Fs::format);
        let node = make(&fs, b"reserved");
        let before = fs.statfs().unwrap();
        fs.fallocate(&ROOT, &node, AllocMode::KeepSize, 0, 4 * MIB).unwrap();
        let after = fs.statfs().unwrap();
        assert_eq!(fs.getattr(&node).size_bytes, 0);
        assert!(before.available_bytes - after.available_bytes >= 4 * MIB, "{before:?} {after:?}");
        assert_eq!(after.file_bytes - before.file_bytes, 4 * MIB);
        fill(&fs, "beside", 60_000);
        match end {
            "unlink" => {
                fs.unlink(&ROOT, &fs.root(), b"reserved").unwrap();
                drop(node);
                fs.reap().unwrap();
            }
            "truncate" => fs.truncate(&ROOT, &node, 0).unwrap(),
            "punch" => fs.fallocate(&ROOT, &node, AllocMode::PunchHole, 0, 4 * MIB).unwrap(),
            "overwrite" => fs.overwrite(&ROOT, &node, b"short").unwrap(),
            _ => {
                // A write that is refused leaves the reservation as it was.
                let past = fs.write(&ROOT, &node, Position::At(8 * MIB), &vec![1; 2 << 20]);
                assert!(matches!(past, Err(FsError::NoSpace)), "{past:?}");
                assert_eq!(fill(&fs, "refused", 60_000), 0);
                fs.write(&ROOT, &node, Position::At(0), &vec![1; 4 << 20]).unwrap();
                // The overhead that was kept for small pieces is free again.
                assert!(fill(&fs, "written", 60_000) <= 3);
                continue;
            }
        }
        assert_eq!(fs.deferred.sums()[2], 0, "nothing is reserved after {end}");
        let more = fill(&fs, "after", 60_000);
        assert!(more >= 60, "after {end} {more} more files fit");
        fs.sync().unwrap();
        check(&**fs.engine(), end);
    }
}

#[test]
fn more_than_is_free_is_refused_and_data_needs_no_room() {
    let fs = open(small_pool(), Fs::format);
    let [a, b] = [make(&fs, b"a"), make(&fs, b"b")];
    let free = fs.statfs().unwrap().available_bytes;
    fs.write(&ROOT, &b, Position::At(0), &vec![1; 2 << 20]).unwrap();
    for mode in [AllocMode::Allocate, AllocMode::KeepSize, AllocMode::ZeroRange { keep_size: false }] {
        let before = (fs.getattr(&a), fs.statfs().unwrap());
        for len in [free, 1 << 40, 1 << 62] {
            let refused = fs.fallocate(&ROOT, &a, mode, 0, len);
            assert!(matches!(refused, Err(FsError::NoSpace)), "{mode:?} {len}: {refused:?}");
        }
        assert_eq!((fs.getattr(&a), fs.statfs().unwrap()), before, "nothing is reserved");
    }
    // Two reservations do not share the same room.
    let most = fs.statfs().unwrap().available_bytes / 10 * 6;
    fs.fallocate(&ROOT, &a, AllocMode::KeepSize, 0, most).unwrap();
    assert!(matches!(fs.fallocate(&ROOT, &b, AllocMode::KeepSize, 2 * MIB, most), Err(FsError::NoSpace)));
    fill_to_the_brim(&fs, "other");
    // Both ranges have all their bytes: one is data, the other is reserved already.
    fs.fallocate(&ROOT, &b, AllocMode::Allocate, 0, 2 * MIB).unwrap();
    fs.fallocate(&ROOT, &a, AllocMode::Allocate, 0, most).unwrap();
    assert_eq!(fs.getattr(&a).allocated_bytes, most);
    fs.sync().unwrap();
    check(&**fs.engine(), "both");
}

#[test]
fn a_reservation_survives_a_crash_and_a_close() {
    let mut fs = open(small_pool(), Fs::format);
    let node = make(&fs, b"reserved");
    fs.write(&ROOT, &node, Position::At(0), &[1; 5000]).unwrap();
    fs.fallocate(&ROOT, &node, AllocMode::KeepSize, 0, 4 * MIB).unwrap();
    fs.sync().unwrap();
    drop(node);
    for round in 0..3 {
        let (log, recovered) = fs.engine().log().crash();
        fs = open((log, recovered), |_, _, _, _| Ok(()));
        fill_to_the_brim(&fs, &format!("round {round}"));
        let node = fs.lookup(&ROOT, &fs.root(), b"reserved").unwrap();
        assert_eq!(fs.getattr(&node).allocated_bytes, 4 * MIB);
        fs.write(&ROOT, &node, Position::End, &vec![2; 1 << 20]).unwrap();
        fs.sync().unwrap();
        check(&**fs.engine(), &format!("round {round}"));
    }
}

#[test]
fn a_transaction_reserves_when_it_commits() {
    let fs = std::sync::Arc::new(open(small_pool(), Fs::format));
    let node = make(&fs, b"file");
    let reserve = |len| {
        let tx = fs.begin().unwrap();
        let inside = tx.files().lookup(&ROOT, &tx.files().root(), b"file").unwrap();
        tx.files().fallocate(&ROOT, &inside, AllocMode::KeepSize, 0, len).unwrap();
        tx
    };
    let aborted = reserve(4 * MIB);
    assert_eq!(fs.deferred.sums()[2], 0);
    aborted.abort();
    let refused = reserve(4 * MIB);
    fill_to_the_brim(&fs, "other");
    assert!(matches!(refused.commit(), Err(FsError::NoSpace)));
    assert_eq!((fs.deferred.sums()[2], fs.getattr(&node).allocated_bytes), (0, 0));
    for n in 0..20 {
        fs.unlink(&ROOT, &fs.root(), format!("other 60000 {n}").as_bytes()).unwrap();
    }
    reserve(MIB).commit().unwrap();
    assert_eq!(fs.deferred.sums()[2], MIB.cast_signed());
    fill_to_the_brim(&fs, "more");
    fs.write(&ROOT, &node, Position::At(0), &vec![1; 1 << 20]).unwrap();
    fs.sync().unwrap();
    check(&**fs.engine(), "transaction");
}

/// A transaction keeps the old bytes beside the new ones until it ends, so the promised room is not enough.
#[test]
fn a_write_in_a_transaction_takes_no_reserved_room() {
    let fs = std::sync::Arc::new(open(small_pool(), Fs::format));
    let node = make(&fs, b"file");
    fs.fallocate(&ROOT, &node, AllocMode::Allocate, 0, MIB).unwrap();
    fill_to_the_brim(&fs, "other");
    let tx = fs.begin().unwrap();
    let inside = tx.files().lookup(&ROOT, &tx.files().root(), b"file").unwrap();
    let written = tx.files().write(&ROOT, &inside, Position::At(0), &vec![1; 1 << 20]);
    assert!(matches!(written, Err(FsError::NoSpace)), "{written:?}");
    tx.abort();
    fs.write(&ROOT, &node, Position::At(0), &vec![1; 1 << 20]).unwrap();
}

#[test]
fn a_range_may_be_inserted_into_as_many_regions_as_a_commit_takes() {
    let fs = world();
    let node = fs.create(&ROOT, &fs.root(), b"file", NewMode::exact(0o644)).unwrap();
    let most = REGIONS_PER_COMMIT as u64 * MIB;
    fs.fallocate(&ROOT, &node, AllocMode::Allocate, 0, most).unwrap();
    fs.insert_range(&ROOT, &node, 0, InsertSource::Hole(MIB)).unwrap();
    assert_eq!((fs.getattr(&node).size_bytes, fs.getattr(&node).allocated_bytes), (most + MIB, most));
    fs.fallocate(&ROOT, &node, AllocMode::Allocate, 0, MIB).unwrap();
    let refused = fs.insert_range(&ROOT, &node, 0, InsertSource::Hole(MIB));
    assert!(matches!(refused, Err(FsError::FileTooLarge)), "{refused:?}");
}

#[test]
fn a_range_of_more_regions_than_a_commit_takes_is_reserved_and_punched_in_steps() {
    let fs = world();
    let node = fs.create(&ROOT, &fs.root(), b"file", NewMode::exact(0o644)).unwrap();
    let most = (REGIONS_PER_COMMIT as u64 + 5) * MIB;
    fs.fallocate(&ROOT, &node, AllocMode::KeepSize, 1000, most).unwrap();
    assert_eq!(fs.getattr(&node).allocated_bytes, most);
    fs.write(&ROOT, &node, Position::At(most), &[1; 100]).unwrap();
    assert_eq!(fs.getattr(&node).allocated_bytes, most);
    fs.fallocate(&ROOT, &node, AllocMode::PunchHole, 0, 1 << 60).unwrap();
    assert_eq!((fs.getattr(&node).allocated_bytes, fs.getattr(&node).size_bytes), (0, most + 100));
    fs.fallocate(&ROOT, &node, AllocMode::KeepSize, 1000, most).unwrap();
    fs.truncate(&ROOT, &node, 10).unwrap();
    assert_eq!((fs.getattr(&node).allocated_bytes, fs.getattr(&node).size_bytes), (0, 10));
    fs.sync().unwrap();
    check(&**fs.engine(), "steps");
}
