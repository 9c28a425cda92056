//! Holds that last while a pool fills with garbage.

use std::time::Duration;

use warpfire_log::{LogStore, MemLog, MemLogOptions, RecoveredLog};

use super::TestRandom;
use super::engine::open;
use crate::acl::Caller;
use crate::{Fs, NewMode, NodeRef, Position, YankedSlice};

const ROOT: Caller<'static> = Caller::ROOT;

/// A reader with many slices of one byte must not keep the pool from getting its garbage back.
#[test]
fn one_byte_of_each_file_yanked_for_a_day_keeps_no_garbage() {
    const FILES: usize = 200;
    const FILE_BYTES: usize = 256 << 10;
    let options = MemLogOptions { capacity_bytes: 64 << 20, segment_bytes: 256 << 10 };
    let fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|i| (i / 251) as u8 ^ (i % 251) as u8).collect();
    let files: Vec<NodeRef> = (0..FILES)
        .map(|n| {
            let name = format!("file {n}");
            let node = fs.create(&ROOT, &fs.root(), name.as_bytes(), NewMode::exact(0o644)).unwrap();
            fs.write(&ROOT, &node, Position::End, &bytes).unwrap();
            node
        })
        .collect();
    let yanked: Vec<YankedSlice> = files
        .iter()
        .enumerate()
        .map(|(n, file)| {
            let slice = fs.yank(file, n as u64 * 1000, 1).unwrap();
            fs.lease(&slice, Duration::from_secs(86_400)).unwrap();
            slice
        })
        .collect();
    let mut draw = TestRandom(5);
    for n in 0..2500 {
        let file = &files[draw.below(FILES as u64) as usize];
        let at = draw.below((FILE_BYTES - 40_000) as u64);
        let len = 33_000 + draw.below(7000) as usize;
        if let Err(e) = fs.write(&ROOT, file, Position::At(at), &vec![9; len]) {
            panic!("write {n}: {e}; {:?}; {:?}", fs.statfs().unwrap(), fs.engine().log().space());
        }
        if n % 50 == 0 {
            fs.sync().unwrap();
        }
    }
    for (n, slice) in yanked.iter().enumerate() {
        let mut byte = [0];
        fs.read_yanked_slice(slice, 0, &mut byte).unwrap();
        assert_eq!(byte[0], bytes[n * 1000], "file {n}");
    }
    let free_before = fs.statfs().unwrap().free_bytes;
    drop(yanked);
    assert!(fs.statfs().unwrap().free_bytes >= free_before);
}
