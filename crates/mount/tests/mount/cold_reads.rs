//! The device reads of small files of which nothing is in memory.

use std::fs;

use warpfire_fs::NewMode;
use warpfire_fs::acl::Caller;

use crate::fixture::MountFixture;

const FILES: u64 = 40_000;

/// The cache has room for a part of the records, and for what finds them.
const CACHE_BYTES: u64 = 3 << 20;

fn name(n: u64) -> String {
    format!("file {n:08}")
}

fn content(n: u64) -> Vec<u8> {
    [n.to_le_bytes().as_slice(), &[7; 992]].concat()
}

/// A mount of files that the kernel does not know and that are in no memory.
fn filled() -> Option<MountFixture> {
    let fixture = MountFixture::with_cache(CACHE_BYTES)?;
    let fs = fixture.fs();
    for n in 0..FILES {
        let (name, mode) = (name(n), NewMode::exact(0o644));
        fs.create_file(&Caller::ROOT, &fs.root(), name.as_bytes(), mode, &content(n)).unwrap();
    }
    fs.engine().flush().unwrap();
    fs.engine().compact().unwrap();
    Some(fixture)
}

/// Device reads a file, of as many files as `numbers` has.
fn device_reads(
    fixture: &MountFixture,
    numbers: impl ExactSizeIterator<Item = u64>,
    use_file: impl Fn(u64),
) -> f64 {
    let (before, count) = (fixture.device_reads(), numbers.len());
    numbers.for_each(use_file);
    (fixture.device_reads() - before) as f64 / count as f64
}

#[test]
fn a_file_that_is_looked_up_and_read_costs_one_device_read() {
    let Some(fixture) = filled() else { return };
    let read = |n: u64| assert_eq!(fs::read(fixture.at(&name(n))).unwrap(), content(n), "file {n}");
    let stat = |n: u64| assert_eq!(fs::metadata(fixture.at(&name(n))).unwrap().len(), 1000, "file {n}");
    let drawn = |turn: u64| turn * 7_919_111 % FILES;
    // The indexes come into memory.
    (0..5000).map(drawn).for_each(read);
    let reads = device_reads(&fixture, (5000..10_000).map(|turn| drawn(turn as u64)), read);
    assert!(reads <= 1.05, "{reads:.3} device reads a file");
    // Attributes in order: one device read brings those of many files, also just after files were read.
    let stats = device_reads(&fixture, (20_000..24_000).map(|n| n as u64), stat);
    assert!(stats <= 0.1, "{stats:.3} device reads for the attributes of a file");
}
