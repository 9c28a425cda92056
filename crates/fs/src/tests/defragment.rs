//! Files in many small pieces: when their pieces are written next to each other, and when they are left
//! alone.

use std::sync::Arc;

use warpfire_log::{MemLog, MemLogOptions, RecoveredLog};
use warpfire_meta::{SliceStore, Storage};

use super::TestRandom;
use super::check::check;
use super::engine::{LogEngine, format, open};
use crate::acl::Caller;
use crate::{AllocMode, Attr, DefragmentCounts, Fs, NewMode, NodeRef, Position, YankedSlice};

const ROOT: Caller<'static> = Caller::ROOT;
const MEGABYTE: usize = 1 << 20;

fn make<E: Storage>(fs: &Fs<E>, name: &[u8]) -> NodeRef {
    fs.create(&ROOT, &fs.root(), name, NewMode::exact(0o644)).unwrap()
}

/// A file that is made of pieces of another in a shuffled order, and its bytes.
fn shredded(fs: &Fs<LogEngine>, len: usize, piece: usize) -> (NodeRef, Vec<u8>) {
    let bytes: Vec<u8> = (0..len).map(|i| (i / 251) as u8 ^ (i % 251) as u8).collect();
    let source = make(fs, b"source");
    let target = make(fs, b"target");
    fs.write(&ROOT, &source, Position::End, &bytes).unwrap();
    let count = len / piece;
    let order: Vec<usize> = (0..count).map(|n| n * 3 % count).collect();
    let taken: Vec<YankedSlice> =
        order.iter().map(|n| fs.yank(&source, (n * piece) as u64, piece as u64).unwrap()).collect();
    fs.paste(&ROOT, &target, Position::At(0), &YankedSlice::join(&taken).unwrap().unwrap()).unwrap();
    let shown = order.iter().flat_map(|n| bytes[n * piece..(n + 1) * piece].to_vec()).collect();
    (target, shown)
}

/// Reads a file in steps. Returns the number of slices that the log read.
fn read(fs: &Fs<LogEngine>, node: &NodeRef, expected: &[u8], step: usize) -> u64 {
    let before = fs.engine().log().counters().reads;
    let mut bytes = vec![0; step];
    for (n, expected) in expected.chunks(step).enumerate() {
        assert_eq!(fs.read(node, (n * step) as u64, &mut bytes).unwrap(), expected.len());
        assert!(bytes[..expected.len()] == *expected, "step {n}");
    }
    fs.engine().log().counters().reads - before
}

#[test]
fn a_file_of_small_pieces_is_read_as_one_piece_after_it_was_read_once() {
    let fs = open(format(), Fs::format);
    let (node, bytes) = shredded(&fs, 4 * MEGABYTE, 4096);
    fs.sync().unwrap();
    let before = (fs.getattr(&node), fs.engine().log().counters().appended_bytes);
    read(&fs, &node, &bytes, 128 << 10);
    let defragmented = DefragmentCounts { regions: 4, bytes: 4 << 20 };
    assert_eq!(fs.defragment_counts(), defragmented);
    assert_eq!(fs.engine().log().counters().appended_bytes - before.1, 4 << 20, "each byte was written once");
    let slices = read(&fs, &node, &bytes, MEGABYTE);
    assert!(slices <= 8, "{slices} slices for four regions");
    assert_eq!(fs.defragment_counts(), defragmented, "once is enough");
    let after = fs.getattr(&node);
    let seen = |attr: Attr| (attr.size_bytes, attr.allocated_bytes, attr.mtime, attr.ctime);
    assert_eq!(seen(after), seen(before.0), "defragmenting changes no attribute");
    fs.sync().unwrap();
    check(&**fs.engine(), "defragmented");
}

#[test]
fn reads_of_single_pieces_defragment_nothing() {
    let fs = open(format(), Fs::format);
    let (node, bytes) = shredded(&fs, 2 * MEGABYTE, 4096);
    let slices: u64 = (0..4).map(|_| read(&fs, &node, &bytes, 4096)).sum();
    assert_eq!(slices, 4 * 512);
    assert_eq!(fs.defragment_counts(), DefragmentCounts::default());
}

#[test]
fn a_region_is_defragmented_once_as_many_bytes_were_read_as_it_holds() {
    const PART: usize = MEGABYTE / 8;
    let fs = open(format(), Fs::format);
    let (node, bytes) = shredded(&fs, 2 * MEGABYTE, 4096);
    for n in 1..=8 {
        // The same part each time: the bytes that were read count, and not the part of the region.
        read(&fs, &node, &bytes[..PART], PART);
        assert_eq!(fs.defragment_counts().regions, u64::from(n == 8), "after {n} reads of an eighth");
    }
}

#[test]
fn large_pieces_and_pieces_that_holes_keep_apart_are_left_alone() {
    let fs = open(format(), Fs::format);
    let (node, bytes) = shredded(&fs, 2 * MEGABYTE, 64 << 10);
    read(&fs, &node, &bytes, MEGABYTE);
    let sparse = make(&fs, b"sparse");
    let mut holed = vec![7; 2 * MEGABYTE];
    fs.write(&ROOT, &sparse, Position::At(0), &holed).unwrap();
    for at in (0..2 * MEGABYTE).step_by(16 << 10) {
        fs.fallocate(&ROOT, &sparse, AllocMode::PunchHole, at as u64, 4096).unwrap();
        holed[at..at + 4096].fill(0);
    }
    for _ in 0..3 {
        read(&fs, &sparse, &holed, MEGABYTE);
    }
    assert_eq!(fs.defragment_counts(), DefragmentCounts::default());
}

#[test]
fn nothing_is_defragmented_while_a_transaction_is_open_and_its_slices_do_not_conflict() {
    let fs = Arc::new(open(format(), Fs::format));
    let (node, bytes) = shredded(&fs, 2 * MEGABYTE, 4096);
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let source = tx_fs.lookup(&ROOT, &tx_fs.root(), b"target").unwrap();
    let slice = tx_fs.yank(&source, 0, 1 << 20).unwrap();
    tx_fs.paste(&ROOT, &make(tx_fs, b"third"), Position::At(0), &slice).unwrap();
    let mut seen = vec![0; MEGABYTE];
    tx_fs.read(&source, 0, &mut seen).unwrap();
    for _ in 0..2 {
        read(&fs, &node, &bytes, MEGABYTE);
    }
    assert_eq!(fs.defragment_counts(), DefragmentCounts::default());
    drop(source);
    tx.commit().unwrap();
    assert_eq!(fs.read_file(&ROOT, &fs.root(), b"third").unwrap(), bytes[..MEGABYTE]);
    read(&fs, &node, &bytes, MEGABYTE);
    assert!(fs.defragment_counts().regions >= 2);
}

#[test]
fn a_pool_with_little_room_is_read_as_it_is() {
    let options = MemLogOptions { capacity_bytes: 16 << 20, segment_bytes: 256 << 10 };
    let fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
    let (node, bytes) = shredded(&fs, 2 * MEGABYTE, 4096);
    fs.write(&ROOT, &make(&fs, b"filler"), Position::At(0), &vec![1; 11 * MEGABYTE]).unwrap();
    let space = fs.engine().space().unwrap();
    assert!(space.free_bytes < space.total_bytes / 4, "the test fills the pool: {space:?}");
    read(&fs, &node, &bytes, MEGABYTE);
    assert_eq!(fs.defragment_counts(), DefragmentCounts::default());
}

#[test]
fn a_write_during_reads_is_never_lost_to_defragmentation() {
    const ROUNDS: u64 = 40;
    let fs = open(format(), Fs::format);
    let (node, mut bytes) = shredded(&fs, 2 * MEGABYTE, 4096);
    warpfire_env::sync::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut into = vec![0; MEGABYTE];
                for n in 0..ROUNDS {
                    fs.read(&node, (n % 2) << 20, &mut into).unwrap();
                }
            });
        }
        let mut draw = TestRandom(1);
        for n in 0..ROUNDS * 20 {
            // Pieces of its own source, so that the file stays in small pieces.
            let (at, len) = (draw.below(2 << 20) & !4095, 4096);
            let from = draw.below(2 << 20) & !4095;
            let slice = fs.yank(&node, from, len).unwrap();
            fs.paste(&ROOT, &node, Position::At(at), &slice).unwrap();
            let taken = bytes[from as usize..(from + len) as usize].to_vec();
            bytes[at as usize..(at + len) as usize].copy_from_slice(&taken);
            if n % 7 == 0 {
                fs.write(&ROOT, &node, Position::At(at + 3), &[n as u8; 10]).unwrap();
                bytes[at as usize + 3..at as usize + 13].fill(n as u8);
            }
        }
    });
    let defragmented = fs.defragment_counts().regions;
    assert!(defragmented > 0, "readers and the writer met");
    read(&fs, &node, &bytes, MEGABYTE);
    fs.sync().unwrap();
    check(&**fs.engine(), "written during defragmentation");
}
