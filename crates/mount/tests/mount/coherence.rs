//! One file by several ways at once: appending descriptors beside commits, mappings beside ioctls and seeks,
//! direct beside buffered I/O.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

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
    for way in ["direct", "made"] {
        let status = Command::new(&program).arg(fixture.at(way)).arg(way).status().unwrap();
        assert!(status.success(), "{way}");
    }
}

#[test]
fn a_program_that_makes_a_file_for_writing_and_readers_of_it_see_the_same_bytes() {
    const LEN: usize = 20_000;
    for threads in [1, 4] {
        let Some(fixture) = MountFixture::mounted(&MountOptions { threads, ..MountOptions::default() })
        else {
            return;
        };
        let path = fixture.at("file");
        let mut writer = File::create(&path).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut expect = vec![0; LEN];
        writer.write_all(&expect).unwrap();
        let mut mapping = Mapping::new(&file, LEN);
        let mut draw = 1_u32;
        let mut below = |bound: usize| {
            draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (draw >> 8) as usize % bound
        };
        for round in 1..200_u8 {
            let (at, other) = (below(LEN - 6000), below(LEN));
            let len = 1 + below(6000);
            // The page of a store that was not written back yet is often that of a write.
            mapping.bytes()[other] = round;
            expect[other] = round;
            writer.write_all_at(&vec![round; len], at as u64).unwrap();
            expect[at..at + len].fill(round);
            assert!(mapping.bytes() == expect, "round {round}, {threads} threads");
            let mut seen = vec![0; LEN];
            file.read_exact_at(&mut seen, 0).unwrap();
            assert!(seen == expect, "round {round}, {threads} threads");
        }
        // The end of the file, with a last page that readers have.
        writer.write_all(b"more").unwrap();
        expect.extend(b"more");
        assert_eq!(file.metadata().unwrap().len(), expect.len() as u64);
        assert!(fs::read(&path).unwrap() == expect);
        let mut source = File::open(&path).unwrap();
        assert_eq!(
            std::io::copy(&mut source, &mut File::create(fixture.at("copy")).unwrap()).unwrap(),
            expect.len() as u64
        );
        assert!(fs::read(fixture.at("copy")).unwrap() == expect);
    }
}

/// Each block repeats its number and a version, so a mixed block is noticed. A reader finds no version that
/// is older than the last one written before its read.
#[test]
fn direct_reads_of_many_threads_beside_a_writer_see_whole_blocks_of_rising_versions() {
    const BLOCKS: u64 = 64;
    const BLOCK: usize = 4096;
    const VERSIONS: u64 = 20;
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("blocks");
    let direct = || {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
        options.open(&path).unwrap()
    };
    let write = |file: &File, block: u64, version: u64| {
        let mut bytes = AlignedBuf::zeroed(BLOCK);
        for word in bytes.chunks_exact_mut(16) {
            word[..8].copy_from_slice(&block.to_le_bytes());
            word[8..].copy_from_slice(&version.to_le_bytes());
        }
        file.write_all_at(&bytes, block * BLOCK as u64).unwrap();
    };
    let written: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(1)).collect();
    let first = direct();
    (0..BLOCKS).for_each(|block| write(&first, block, 1));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopper = Stop(&stop);
        for reader in 0..8 {
            let (direct, stop, written) = (&direct, &stop, &written);
            scope.spawn(move || {
                let (file, mut bytes) = (direct(), AlignedBuf::zeroed(BLOCK));
                let mut next: u64 = reader;
                while !stop.load(Ordering::Relaxed) {
                    next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let block = (next >> 33) % BLOCKS;
                    let before = written[usize::try_from(block).unwrap()].load(Ordering::Acquire);
                    file.read_exact_at(&mut bytes, block * BLOCK as u64).unwrap();
                    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
                    assert!(version >= before, "block {block}: {version} after {before}");
                    let mut words = bytes.chunks_exact(16);
                    assert!(words.all(|word| word == &bytes[..16]) && bytes[..8] == block.to_le_bytes());
                }
            });
        }
        for version in 2..=VERSIONS {
            for block in 0..BLOCKS {
                write(&first, block, version);
                written[usize::try_from(block).unwrap()].store(version, Ordering::Release);
            }
        }
        drop(stopper);
    });
}

/// Stops a loop when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_program_that_stores_into_a_page_without_a_pause_takes_no_commit_of_other_bytes_back() {
    const TRANSACTIONS: u64 = 10;
    /// Other files that each transaction changes. The kernel's caches of these are emptied after that of the
    /// page, so the program has the page again before the commit.
    const OTHERS: usize = 100;
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("page"), [0; 8192]).unwrap();
    for other in 0..OTHERS {
        fs::write(fixture.at(&other.to_string()), b"").unwrap();
    }
    let open = |path: &std::path::Path| File::options().read(true).write(true).open(path).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = c_program("storing", directory.path()) else { return };
    let mut storing = Command::new(program);
    storing.arg(fixture.at("page")).stdin(Stdio::piped()).stdout(Stdio::piped());
    // Its input ends when it is waited for, and also when an assert fails.
    let storing = storing.spawn().unwrap();
    let mut direct = File::options();
    let direct = direct.read(true).custom_flags(libc::O_DIRECT).open(fixture.at("page")).unwrap();
    for number in 1..=TRANSACTIONS {
        let (control, id, view) = begun(&fixture);
        open(&view.join("page")).write_all_at(&number.to_le_bytes(), 0).unwrap();
        for other in 0..OTHERS {
            fs::write(view.join(other.to_string()), number.to_le_bytes()).unwrap();
        }
        let report = commit(&control, id);
        assert_eq!(report.state, TransactionState::Committed, "{}", report.call);
        let mut page = PageOf([0; 4096]);
        direct.read_exact_at(&mut page.0, 0).unwrap();
        assert_eq!(page.0[..8], number.to_le_bytes());
    }
    let ended = storing.wait_with_output().unwrap();
    assert!(ended.status.success());
    let stored: u64 = String::from_utf8(ended.stdout).unwrap().trim().parse().unwrap();
    let content = fs::read(fixture.at("page")).unwrap();
    assert_eq!(content[..8], TRANSACTIONS.to_le_bytes());
    assert_eq!(content[96..104], stored.to_le_bytes(), "no store is lost either");
    assert!(content.len() == 8192 && content[104..].iter().all(|byte| *byte == 0));
}

/// In a view, a descriptor that can only append writes around the kernel's pages.
#[test]
fn reads_and_mappings_in_a_view_see_what_a_descriptor_appends() {
    for fixture in [MountFixture::new(), MountFixture::shared()] {
        let Some(fixture) = fixture else { return };
        fs::write(fixture.at("log"), [b'a'; 5000]).unwrap();
        let (control, id, view) = begun(&fixture);
        let mut log = File::options().append(true).open(view.join("log")).unwrap();
        let reader = File::options().read(true).write(true).open(view.join("log")).unwrap();
        // The kernel has a page that ends behind the end of the file, and one is changed in a mapping.
        assert_eq!(fs::read(view.join("log")).unwrap().len(), 5000);
        let mut mapping = Mapping::new(&reader, 8192);
        mapping.bytes()[4999] = b'm';
        for piece in [&[b'b'; 10][..], &[b'c'; 3000], &[b'd'; 70_000]] {
            log.write_all(piece).unwrap();
            let end = reader.metadata().unwrap().len();
            let mut seen = vec![0; piece.len()];
            reader.read_exact_at(&mut seen, end - piece.len() as u64).unwrap();
            assert!(seen == piece);
        }
        assert_eq!(&mapping.bytes()[4998..5012], b"ambbbbbbbbbbcc");
        mapping.sync();
        drop((mapping, reader, log));
        assert_eq!(commit(&control, id).state, TransactionState::Committed);
        let expect = [&[b'a'; 4999][..], b"m", &[b'b'; 10], &[b'c'; 3000], &[b'd'; 70_000]].concat();
        assert!(fs::read(fixture.at("log")).unwrap() == expect);
    }
}
