//! One file by several ways at once: appending descriptors beside commits, mappings beside ioctls and seeks,
//! direct beside buffered I/O.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use warpfire_env::AlignedBuf;
use warpfire_mount::{MountOptions, MountedSlice, TransactionState, remove_range};

use crate::fixture::{Mapping, MountFixture, c_program};
use crate::views::{begun, commit};

/// Makes a change of `log` in a transaction and commits it.
fn in_a_transaction(fixture: &MountFixture, change: impl FnOnce(&File)) {
    let (control, id, view) = begun(fixture);
    change(&File::options().read(true).append(true).open(view.join("log")).unwrap());
    assert_eq!(commit(&control, id).state, TransactionState::Committed);
}

#[test]
fn a_descriptor_open_for_appending_appends_behind_what_a_transaction_appended() {
    let Some(fixture) = MountFixture::new() else { return };
    let mut log = File::options().append(true).create(true).open(fixture.at("log")).unwrap();
    log.write_all(b"a\n").unwrap();
    in_a_transaction(&fixture, |mut log| log.write_all(b"committed\n").unwrap());
    log.write_all(b"b\n").unwrap();
    log.write_all(b"c\n").unwrap();
    assert_eq!(fs::read_to_string(fixture.at("log")).unwrap(), "a\ncommitted\nb\nc\n");
    // The transaction makes the file shorter: no hole is left.
    in_a_transaction(&fixture, |log| log.set_len(2).unwrap());
    log.write_all(b"d\n").unwrap();
    assert_eq!(fs::read_to_string(fixture.at("log")).unwrap(), "a\nd\n");
}

#[test]
fn appends_of_whole_pages_go_behind_what_a_transaction_appended_on_every_path() {
    for threads in [1, 4] {
        let Some(fixture) = MountFixture::mounted(&MountOptions { threads, ..MountOptions::default() })
        else {
            return;
        };
        for direct in [false, true] {
            let _ = fs::remove_file(fixture.at("log"));
            let flags = if direct { libc::O_DIRECT } else { 0 };
            let mut options = File::options();
            let log = options.append(true).create(true).custom_flags(flags).open(fixture.at("log")).unwrap();
            let page = |byte: u8| PageOf([byte; 4096]);
            (&log).write_all(&page(1).0).unwrap();
            in_a_transaction(&fixture, |mut log| log.write_all(&[2; 5000]).unwrap());
            // Another program has filled pages of the kernel with the new content.
            assert_eq!(fs::read(fixture.at("log")).unwrap().len(), 9096);
            in_a_transaction(&fixture, |mut log| log.write_all(&[3; 3192]).unwrap());
            (&log).write_all(&page(4).0).unwrap();
            (&log).write_all(&page(5).0).unwrap();
            let expect = [vec![1; 4096], vec![2; 5000], vec![3; 3192], vec![4; 4096], vec![5; 4096]].concat();
            let at_once = fs::read(fixture.at("log")).unwrap();
            assert!(at_once == expect, "{threads} threads, direct: {direct}");
        }
    }
}

#[test]
fn direct_appends_of_two_transactions_follow_each_other() {
    for len in [4096, 1 << 20, 3 << 20] {
        let Some(fixture) = MountFixture::mounted(&MountOptions { threads: 4, ..MountOptions::default() })
        else {
            return;
        };
        fs::write(fixture.at("log"), [1; 4096]).unwrap();
        let transactions = [begun(&fixture), begun(&fixture)];
        for (byte, (_, _, view)) in (2..).zip(&transactions) {
            let mut unit = AlignedBuf::zeroed(len);
            unit.fill(byte);
            let mut options = File::options();
            let log = options.append(true).custom_flags(libc::O_DIRECT).open(view.join("log")).unwrap();
            (&log).write_all(&unit).unwrap();
        }
        for (control, id, _) in &transactions {
            assert_eq!(commit(control, *id).state, TransactionState::Committed, "{len} bytes");
        }
        let expect = [vec![1; 4096], vec![2; len], vec![3; len]].concat();
        assert!(fs::read(fixture.at("log")).unwrap() == expect, "{len} bytes");
    }
}

/// A page at an aligned address, as direct I/O may need it.
#[repr(align(4096))]
struct PageOf([u8; 4096]);

#[test]
fn an_append_after_an_ioctl_goes_to_the_new_end() {
    let Some(fixture) = MountFixture::new() else { return };
    let mut log = File::options().read(true).append(true).create(true).open(fixture.at("log")).unwrap();
    log.write_all(b"one two three ").unwrap();
    MountedSlice::yank(&log, 0..4).unwrap().paste(&log, None).unwrap();
    log.write_all(b"four ").unwrap();
    remove_range(&log, 0..4).unwrap();
    log.write_all(b"five").unwrap();
    assert_eq!(fs::read_to_string(fixture.at("log")).unwrap(), "two three one four five");
}

#[test]
fn a_slice_has_the_bytes_that_were_stored_through_a_mapping() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("from"), [b'.'; 10_000]).unwrap();
    let open = |name| {
        File::options().read(true).write(true).create(true).truncate(false).open(fixture.at(name)).unwrap()
    };
    let (from, to) = (open("from"), open("to"));
    let mut mapping = Mapping::new(&from, 10_000);
    mapping.bytes()[0..3].copy_from_slice(b"NEW");
    mapping.bytes()[9_000..9_003].copy_from_slice(b"END");
    MountedSlice::yank(&from, 0..10_000).unwrap().paste(&to, None).unwrap();
    let copied = fs::read(fixture.at("to")).unwrap();
    assert_eq!((&copied[..4], &copied[9_000..9_004]), (&b"NEW."[..], &b"END."[..]));
    // copy_file_range(2): the kernel writes its source back itself.
    mapping.bytes()[0..3].copy_from_slice(b"MOR");
    let mut at = 0;
    rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut 0), 4096).unwrap();
    assert_eq!(&fs::read(fixture.at("to")).unwrap()[..4], b"MOR.");
}

#[test]
fn seeking_finds_data_and_holes_at_every_byte_also_what_a_mapping_has_stored() {
    let Some(fixture) = MountFixture::new() else { return };
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(fixture.at("sparse")).unwrap();
    file.set_len(100_000).unwrap();
    file.write_all_at(b"x", 50_001).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(50_001));
    assert_eq!(seek(SeekFrom::Data(50_001)), Ok(50_001));
    assert_eq!(seek(SeekFrom::Hole(50_001)), Ok(50_002));
    assert_eq!(seek(SeekFrom::Hole(50_000)), Ok(50_000));
    assert_eq!(seek(SeekFrom::Data(50_002)), Err(Errno::NXIO));
    let mut mapping = Mapping::new(&file, 100_000);
    mapping.bytes()[70_000] = 1;
    let data = seek(SeekFrom::Data(50_002)).unwrap();
    assert!((50_002..=70_000).contains(&data), "{data}");
    assert_eq!(seek(SeekFrom::Hole(70_000)), Ok(69_632 + 4096), "the kernel writes whole pages back");
    mapping.bytes()[73_728] = 1;
    assert_eq!(seek(SeekFrom::Hole(70_000)), Ok(73_728 + 4096));
}

#[test]
fn buffered_reads_beside_direct_writes_see_no_old_data() {
    let Some(fixture) = MountFixture::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = c_program("coherence", directory.path()) else { return };
    assert!(Command::new(program).arg(fixture.at("file")).status().unwrap().success());
}
