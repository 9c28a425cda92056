//! A mount as programs see it. Each test has its own filesystem in memory. Where mounting is not possible,
//! the tests print a message and are skipped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::process::Command;
use std::thread;

use crate::fixture::{self, Mapping, MountFixture, c_program};
use crate::views::wait_until;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::{Errno, ReadWriteFlags};
use warpfire_fs::{LimitChange, NewLimit};
use warpfire_mount::MountOptions;
use warpfire_test_needs::{Need, skip};

#[test]
fn a_file_is_made_written_and_read_back() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("file");
    fs::write(&path, b"some bytes").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"some bytes");
    let seen = fs::metadata(&path).unwrap();
    assert_eq!((seen.len(), seen.nlink(), seen.uid()), (10, 1, rustix::process::geteuid().as_raw()));
}

#[test]
fn create_new_refuses_a_name_that_is_there() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("file"), b"").unwrap();
    let again = OpenOptions::new().write(true).create_new(true).open(fixture.at("file"));
    assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn opening_with_truncation_empties_a_file() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("file");
    fs::write(&path, vec![7; 100_000]).unwrap();
    File::create(&path).unwrap().write_all(b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn an_unlinked_file_lives_as_long_as_it_is_open() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("file");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&vec![1; 200_000]).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    file.write_all(b"more").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let mut back = Vec::new();
    file.seek(SeekFrom::Start(199_999)).unwrap();
    file.read_to_end(&mut back).unwrap();
    assert_eq!(back, b"\x01more");
}

#[test]
fn a_file_that_another_was_renamed_over_stays_open_and_known() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("old"), b"old").unwrap();
    let old = File::open(fixture.at("old")).unwrap();
    fs::write(fixture.at("new"), b"new").unwrap();
    fs::rename(fixture.at("new"), fixture.at("old")).unwrap();
    assert_eq!(old.metadata().unwrap().nlink(), 0);
    let mut back = [0; 3];
    old.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"old");
    assert_eq!(fs::read(fixture.at("old")).unwrap(), b"new");
}

#[test]
fn rename_exchanges_or_refuses_as_its_flags_say() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("a"), b"a").unwrap();
    fs::create_dir(fixture.at("b")).unwrap();
    let here = File::open(fixture.path()).unwrap();
    let refused = rustix::fs::renameat_with(&here, "a", &here, "b", RenameFlags::NOREPLACE);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    rustix::fs::renameat_with(&here, "a", &here, "b", RenameFlags::EXCHANGE).unwrap();
    assert!(fs::metadata(fixture.at("a")).unwrap().is_dir());
    assert_eq!(fs::read(fixture.at("b")).unwrap(), b"a");
}

#[test]
fn a_directory_does_not_move_into_itself() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::create_dir_all(fixture.at("a/b/c")).unwrap();
    let moved = fs::rename(fixture.at("a"), fixture.at("a/b/c/a"));
    assert_eq!(moved.unwrap_err().raw_os_error(), Some(rustix::io::Errno::INVAL.raw_os_error()));
}

#[test]
fn appends_of_many_writers_are_whole_and_none_is_lost() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("log");
    fs::write(&path, b"").unwrap();
    thread::scope(|scope| {
        for writer in 0..4u8 {
            let path = &path;
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).open(path).unwrap();
                for _ in 0..500 {
                    log.write_all(&[writer; 100]).unwrap();
                }
            });
        }
    });
    let all = fs::read(&path).unwrap();
    assert_eq!(all.len(), 4 * 500 * 100);
    assert!(all.chunks(100).all(|record| record.iter().all(|b| *b == record[0])));
}

#[test]
fn two_processes_append_to_one_file() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("log");
    let loops = "for i in $(seq 200); do echo line >> \"$1\"; done";
    let start = || Command::new("sh").args(["-c", loops, "sh"]).arg(&path).spawn().unwrap();
    let mut both = [start(), start()];
    assert!(both.iter_mut().all(|child| child.wait().unwrap().success()));
    assert_eq!(fs::read_to_string(&path).unwrap().lines().filter(|l| *l == "line").count(), 400);
}

#[test]
fn sparse_files_have_holes_that_can_be_found_and_made() {
    let Some(fixture) = MountFixture::new() else { return };
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(fixture.at("sparse")).unwrap();
    file.write_all_at(b"end", 10 << 20).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)), Ok(0));
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert!(data > 0 && data <= 10 << 20, "data is found at {data}");
    assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20);
    file.write_all_at(&vec![9; 1 << 20], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 1000, 500_000).unwrap();
    let mut back = vec![1; 502_000];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back[..1000].iter().all(|b| *b == 9) && back[501_000..].iter().all(|b| *b == 9));
    assert!(back[1000..501_000].iter().all(|b| *b == 0));
}

#[test]
fn a_range_is_copied_from_file_to_file() {
    let Some(fixture) = MountFixture::new() else { return };
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(fixture.at("from"), &bytes).unwrap();
    let (from, to) = (File::open(fixture.at("from")).unwrap(), File::create(fixture.at("to")).unwrap());
    let (mut at, mut into, mut left) = (12_345, 0, 200_000);
    while left > 0 {
        let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), left).unwrap();
        assert!(copied > 0);
        left -= copied;
    }
    assert_eq!(fs::read(fixture.at("to")).unwrap(), bytes[12_345..212_345]);
}

#[test]
fn copying_a_range_moves_no_data_wherever_it_begins_and_ends() {
    const METADATA_BYTES_MAX: u64 = 64 << 10;
    let Some(fixture) = MountFixture::new() else { return };
    let bytes: Vec<u8> = (0..9_000_000u32).map(|i| (i / 7 % 251) as u8).collect();
    fs::write(fixture.at("from"), &bytes).unwrap();
    let from = File::open(fixture.at("from")).unwrap();
    let to = File::options().read(true).write(true).create_new(true).open(fixture.at("to")).unwrap();
    to.write_all_at(&bytes[..100_000], 0).unwrap();
    to.sync_all().unwrap();
    let before = fixture.written_bytes();
    let mut expected = bytes[..100_000].to_vec();
    for (start, len, place) in [(1, 8_999_998, 3), (4096, 1, 4095), (777_777, 1_048_577, 99_999)] {
        let (mut at, mut into) = (start as u64, place as u64);
        let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), len);
        assert_eq!(copied, Ok(len), "in one call");
        expected.resize(expected.len().max(place + len), 0);
        expected[place..place + len].copy_from_slice(&bytes[start..start + len]);
    }
    to.sync_all().unwrap();
    let written = fixture.written_bytes() - before;
    assert!(written < METADATA_BYTES_MAX, "{written} bytes were written for 10 MB");
    assert!(fs::read(fixture.at("to")).unwrap() == expected);
}

#[test]
fn direct_and_buffered_io_see_the_same_bytes() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("file");
    fs::write(&path, vec![1; 64 << 10]).unwrap();
    assert_eq!(fs::read(&path).unwrap()[0], 1);
    let direct = OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed())
        .open(&path)
        .unwrap();
    direct.write_all_at(&vec![2; 4096], 8192).unwrap();
    let back = fs::read(&path).unwrap();
    assert!(back[8192..12288].iter().all(|b| *b == 2) && back[8191] == 1 && back[12288] == 1);
}

#[test]
fn links_of_both_kinds_are_followed() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at("file"), b"shared").unwrap();
    fs::hard_link(fixture.at("file"), fixture.at("hard")).unwrap();
    symlink("file", fixture.at("soft")).unwrap();
    assert_eq!(fs::metadata(fixture.at("file")).unwrap().nlink(), 2);
    assert_eq!(fs::read_link(fixture.at("soft")).unwrap().to_str(), Some("file"));
    fs::remove_file(fixture.at("file")).unwrap();
    assert_eq!(fs::read(fixture.at("hard")).unwrap(), b"shared");
    assert!(fs::read(fixture.at("soft")).is_err());
    assert_eq!(fs::metadata(fixture.at("hard")).unwrap().nlink(), 1);
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("file");
    fs::write(&path, b"").unwrap();
    rustix::fs::setxattr(&path, "user.colour", b"green", XattrFlags::CREATE).unwrap();
    let again = rustix::fs::setxattr(&path, "user.colour", b"red", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    let mut value = [0; 5];
    assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut value[..]), Ok(5));
    assert_eq!(&value, b"green");
    assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut value[..2]), Err(rustix::io::Errno::RANGE));
    let mut names = [0; 64];
    let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
    assert_eq!(&names[..len], b"user.colour\0");
    rustix::fs::removexattr(&path, "user.colour").unwrap();
    assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut value[..]), Err(rustix::io::Errno::NODATA));
}

#[test]
fn a_file_without_a_name_gets_one_by_a_link_or_is_removed() {
    let Some(fixture) = MountFixture::shared() else { return };
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let unnamed = || rustix::fs::open(fixture.path(), flags, Mode::from_raw_mode(0o640)).unwrap();
    let (kept, dropped) = (File::from(unnamed()), File::from(unnamed()));
    for file in [&kept, &dropped] {
        file.write_all_at(&vec![3; 300_000], 0).unwrap();
        let seen = file.metadata().unwrap();
        assert_eq!((seen.nlink(), seen.len(), seen.mode() & 0o7777), (0, 300_000, 0o640));
    }
    assert_eq!(fs::read_dir(fixture.path()).unwrap().count(), 0);
    let opened = format!("/proc/self/fd/{}", kept.as_raw_fd());
    rustix::fs::linkat(CWD, opened, CWD, fixture.at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop((kept, dropped));
    assert_eq!(fs::read(fixture.at("named")).unwrap(), vec![3; 300_000]);
    assert_eq!(fs::metadata(fixture.at("named")).unwrap().nlink(), 1);
    fs::remove_file(fixture.at("named")).unwrap();
}

#[test]
fn a_file_has_a_time_of_birth_that_later_changes_leave() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("file");
    fs::write(&path, b"first").unwrap();
    let born = fs::metadata(&path).unwrap().created().unwrap();
    fs::write(&path, b"second").unwrap();
    let changed = fs::metadata(&path).unwrap();
    assert_eq!(changed.created().unwrap(), born);
    assert!(changed.modified().unwrap() >= born && born > std::time::UNIX_EPOCH);
}

#[test]
fn the_kernel_drops_inodes_that_nobody_uses_when_there_are_many() {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version: Vec<u32> = release.split(['.', '-']).map_while(|word| word.parse().ok()).collect();
    if version < vec![6, 18] {
        return skip(Need::FusePrune, release);
    }
    let options = MountOptions { inodes_max: 500, ..MountOptions::default() };
    let Some(fixture) = MountFixture::mounted(&options) else { return };
    fs::write(fixture.at("open"), b"open").unwrap();
    let open = File::open(fixture.at("open")).unwrap();
    fs::remove_file(fixture.at("open")).unwrap();
    for number in 0..5000 {
        fs::write(fixture.at(&format!("file{number}")), b"x").unwrap();
    }
    let few = || fixture.remembered_inodes() < 1000;
    wait_until("the kernel has forgotten most of them", few);
    let mut byte = [0];
    open.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!((byte, open.metadata().unwrap().nlink()), (*b"o", 0), "it is in use, so it stays");
    assert_eq!(fs::read(fixture.at("file0")).unwrap(), b"x", "a forgotten file is found again");
}

#[test]
fn an_access_list_lets_one_user_in_and_shows_in_the_mode() {
    let Some(fixture) = MountFixture::shared() else { return };
    let path = fixture.at("file");
    fs::write(&path, b"secret").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(!fixture.can_read(&path, 4321));
    let list = fixture::access_list_for(4321);
    rustix::fs::setxattr(&path, "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    assert!(fixture.can_read(&path, 4321));
    assert!(!fixture.can_read(&path, 4322));
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(!fixture.can_read(&path, 4321), "chmod has emptied the mask");
}

#[test]
fn a_name_that_is_cached_does_not_open_a_directory_that_is_closed() {
    let Some(fixture) = MountFixture::shared() else { return };
    fs::create_dir(fixture.at("dir")).unwrap();
    fs::write(fixture.at("dir/file"), b"readable").unwrap();
    fs::set_permissions(fixture.at("dir/file"), PermissionsExt::from_mode(0o644)).unwrap();
    assert!(fixture.can_read(&fixture.at("dir/file"), 4321));
    fs::set_permissions(fixture.at("dir"), PermissionsExt::from_mode(0o700)).unwrap();
    assert!(!fixture.can_read(&fixture.at("dir/file"), 4321));
}

#[test]
fn writing_takes_the_set_user_id_bit_away() {
    let Some(fixture) = MountFixture::shared() else { return };
    let path = fixture.at("program");
    fs::write(&path, b"").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
    assert!(fixture.as_user(4321, &format!("echo x >> {}", path.display())));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn a_new_file_belongs_to_its_creator() {
    let Some(fixture) = MountFixture::shared() else { return };
    fs::set_permissions(fixture.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    assert!(fixture.as_user(4321, &format!("echo x > {}", fixture.at("theirs").display())));
    let seen = fs::metadata(fixture.at("theirs")).unwrap();
    assert_eq!((seen.uid(), seen.gid()), (4321, 4321));
}

#[test]
fn times_before_1970_survive() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("file");
    fs::write(&path, b"").unwrap();
    let old = rustix::fs::Timespec { tv_sec: -2, tv_nsec: 800_000_000 };
    let both = rustix::fs::Timestamps { last_access: old, last_modification: old };
    rustix::fs::utimensat(rustix::fs::CWD, &path, &both, AtFlags::empty()).unwrap();
    let seen = fs::metadata(&path).unwrap();
    assert_eq!((seen.mtime(), seen.mtime_nsec()), (-2, 800_000_000));
}

#[test]
fn a_listing_shows_each_name_once() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::create_dir(fixture.at("dir")).unwrap();
    for i in 0..3000 {
        fs::write(fixture.at(&format!("dir/name-{i}")), b"x").unwrap();
    }
    let mut names: Vec<_> =
        fs::read_dir(fixture.at("dir")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3000);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3000);
    let sizes: u64 =
        fs::read_dir(fixture.at("dir")).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(sizes, 3000);
}

#[test]
fn a_listing_neither_skips_nor_repeats_while_names_go() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::create_dir(fixture.at("dir")).unwrap();
    for i in 0..2000 {
        fs::write(fixture.at(&format!("dir/{i}")), b"").unwrap();
    }
    let mut removed = 0;
    for entry in fs::read_dir(fixture.at("dir")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        removed += 1;
    }
    assert_eq!(removed, 2000);
    fs::remove_dir(fixture.at("dir")).unwrap();
}

#[test]
fn locks_of_whole_files_and_of_ranges_keep_others_out() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("file");
    fs::write(&path, b"").unwrap();
    let (one, two) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    rustix::fs::flock(&one, FlockOperation::NonBlockingLockExclusive).unwrap();
    let refused = rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    drop(one);
    // Waits: a child process that another test is just starting may have a copy of the descriptor for a
    // moment.
    rustix::fs::flock(&two, FlockOperation::LockExclusive).unwrap();
    let writable = OpenOptions::new().write(true).open(&path).unwrap();
    rustix::fs::fcntl_lock(&writable, FlockOperation::NonBlockingLockExclusive).unwrap();
    // Ends with 7 if the range is locked by another process.
    let other = "import fcntl, sys\nfile = open(sys.argv[1], 'r+')\n\
                 try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept BlockingIOError: sys.exit(7)";
    let lock = || Command::new("python3").args(["-c", other]).arg(&path).status();
    let Ok(status) = lock() else { return skip(Need::Python, "python3 does not start") };
    assert_eq!(status.code(), Some(7), "another process is kept out of the range");
    drop(writable);
    assert_eq!(lock().unwrap().code(), Some(0), "another process gets the range when it is free");
}

#[test]
fn a_shared_mapping_and_the_file_are_one() {
    let Some(fixture) = MountFixture::new() else { return };
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(fixture.at("mapped")).unwrap();
    file.set_len(8192).unwrap();
    let mut map = fixture::Mapping::new(&file, 8192);
    map.bytes()[5000] = 42;
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    assert_eq!(byte, [42]);
    file.write_all_at(b"!", 1).unwrap();
    assert_eq!(map.bytes()[1], b'!');
    map.sync();
    drop((map, file));
    assert_eq!(fs::read(fixture.at("mapped")).unwrap()[5000], 42);
}

#[test]
fn fsync_of_files_and_directories_flushes_the_device() {
    let Some(fixture) = MountFixture::new() else { return };
    let file = File::create(fixture.at("file")).unwrap();
    let directory = File::open(fixture.path()).unwrap();
    let syncs: [(&str, &dyn Fn() -> io::Result<()>); 3] = [
        ("fsync", &|| file.sync_all()),
        ("fdatasync", &|| file.sync_data()),
        ("fsync of the directory", &|| directory.sync_all()),
    ];
    for (call, sync) in syncs {
        (&file).write_all(b"durable").unwrap();
        let before = fixture.flushes();
        sync().unwrap();
        assert!(fixture.flushes() > before, "{call} flushes the device");
    }
}

#[test]
fn the_name_of_the_file_that_a_mount_opens_once_is_free() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at(".warpfire-opened-once");
    // By the thread that has mounted, too.
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(fs::read_dir(fixture.path()).unwrap().count(), 0);
    fs::write(&path, b"an ordinary file").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"an ordinary file");
}

#[test]
fn what_is_to_be_durable_flushes_the_device() {
    let Some(fixture) = MountFixture::new() else { return };
    for (name, flags) in [("synchronous", libc::O_SYNC), ("durable data", libc::O_DSYNC)] {
        for reads in [false, true] {
            let mut options = OpenOptions::new();
            options.read(reads).write(true).create_new(true).custom_flags(flags);
            let file = options.open(fixture.at(&format!("{name}, read: {reads}"))).unwrap();
            for _ in 0..3 {
                let before = fixture.flushes();
                (&file).write_all(b"durable").unwrap();
                assert!(fixture.flushes() > before, "{name}, read: {reads}");
            }
        }
    }
    let file = File::create(fixture.at("one call")).unwrap();
    let before = fixture.flushes();
    for (flags, flushed) in [(ReadWriteFlags::empty(), false), (ReadWriteFlags::DSYNC, true)] {
        rustix::io::pwritev2(&file, &[io::IoSlice::new(b"bytes")], 0, flags).unwrap();
        assert_eq!(fixture.flushes() > before, flushed, "{flags:?}");
    }
}

#[test]
fn a_durable_asynchronous_write_flushes_the_device() {
    let Some(fixture) = MountFixture::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = c_program("aio", directory.path()) else { return };
    let path = fixture.at("file");
    fs::write(&path, [b'o'; 4096]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    for (when, flushed) in [("later", false), ("ended", true)] {
        let before = fixture.flushes();
        assert!(Command::new(&program).arg(&path).arg(when).status().unwrap().success());
        assert_eq!(fixture.flushes() > before, flushed, "{when}");
    }
}

#[test]
fn bytes_stored_by_a_mapping_of_a_direct_descriptor_are_data() {
    let Some(fixture) = MountFixture::new() else { return };
    let path = fixture.at("file");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let file = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut mapping = Mapping::new(&file, 1 << 20);
    mapping.bytes()[8192] = 65;
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)), Ok(8192));
}

#[test]
fn the_reported_free_space_shrinks_by_the_bytes_written() {
    let Some(fixture) = MountFixture::new() else { return };
    let before = rustix::fs::statvfs(fixture.path()).unwrap();
    fs::write(fixture.at("file"), vec![3; 4 << 20]).unwrap();
    let after = rustix::fs::statvfs(fixture.path()).unwrap();
    assert_eq!(after.f_namemax, 255);
    assert_eq!((after.f_bsize, after.f_blocks), (before.f_bsize, before.f_blocks));
    let (free_before, free_after) = (before.f_bavail * before.f_bsize, after.f_bavail * after.f_bsize);
    let taken = free_before.checked_sub(free_after).expect("a write never adds free space");
    assert!((4 << 20..6 << 20).contains(&taken), "{taken} bytes for 4 MiB");
    assert!(after.f_ffree <= before.f_ffree && after.f_files >= after.f_ffree);
}

#[test]
fn long_names_and_targets_are_refused_with_their_errors() {
    let Some(fixture) = MountFixture::new() else { return };
    fs::write(fixture.at(&"n".repeat(255)), b"").unwrap();
    let too_long = Some(rustix::io::Errno::NAMETOOLONG.raw_os_error());
    assert_eq!(fs::write(fixture.at(&"n".repeat(256)), b"").unwrap_err().raw_os_error(), too_long);
    let target = |bytes: usize| symlink("t".repeat(bytes), fixture.at(&format!("link-{bytes}")));
    target(4095).unwrap();
    assert_eq!(fs::read_link(fixture.at("link-4095")).unwrap().as_os_str().len(), 4095);
    assert_eq!(target(4096).unwrap_err().raw_os_error(), too_long);
}

#[test]
fn a_file_of_small_pieces_is_defragmented_by_reading_it_through_the_mount() {
    const PIECE: usize = 4096;
    const FILE: usize = 8 << 20;
    let Some(fixture) = MountFixture::new() else { return };
    let bytes: Vec<u8> = (0..FILE).map(|i| (i / 7 % 251) as u8).collect();
    fs::write(fixture.at("from"), &bytes).unwrap();
    let from = File::open(fixture.at("from")).unwrap();
    let to = File::options().read(true).write(true).create_new(true).open(fixture.at("to")).unwrap();
    let starts = (0..FILE).step_by(PIECE).rev();
    for (place, start) in starts.clone().enumerate() {
        let (mut at, mut into) = (start as u64, (place * PIECE) as u64);
        assert_eq!(rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), PIECE), Ok(PIECE));
    }
    let expected: Vec<u8> = starts.flat_map(|start| bytes[start..start + PIECE].to_vec()).collect();
    let mut written = Vec::new();
    for _ in 0..3 {
        to.sync_all().unwrap();
        let before = fixture.written_bytes();
        rustix::fs::fadvise(&to, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(fs::read(fixture.at("to")).unwrap() == expected);
        to.sync_all().unwrap();
        written.push(fixture.written_bytes() - before);
    }
    assert!(written[0] > FILE as u64 / 2, "{written:?}: the first read defragments most of it");
    assert!(written[2] < FILE as u64 / 8, "{written:?}: it is not defragmented again and again");
}

#[test]
fn a_limited_volume_shows_its_room_and_refuses_what_exceeds_it() {
    let Some(fixture) = MountFixture::new() else { return };
    let root = fixture.fs().root();
    let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    fixture.fs().create_volume(&root, b"jobs", user).unwrap();
    let change = LimitChange { bytes: NewLimit::Max(1 << 20), files: NewLimit::Max(3) };
    fixture.fs().limit_volume(&root, b"jobs", change).unwrap();
    let jobs = fixture.path().join("jobs");
    fs::write(jobs.join("one"), vec![1; 512 << 10]).unwrap();
    let shown = rustix::fs::statvfs(&jobs).unwrap();
    let kib = |blocks: u64| (blocks * shown.f_frsize) >> 10;
    assert_eq!((kib(shown.f_blocks), kib(shown.f_bfree), kib(shown.f_bavail)), (1024, 512, 512));
    assert_eq!((shown.f_files, shown.f_ffree), (3, 1));
    assert!(rustix::fs::statvfs(fixture.path()).unwrap().f_blocks > 1024, "the pool is larger");
    let refused = fs::write(jobs.join("two"), vec![2; (512 << 10) + 1]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    // A kernel that sends a write in pieces has written the first ones.
    let two = fs::OpenOptions::new().write(true).open(jobs.join("two")).unwrap();
    two.set_len(0).unwrap();
    rustix::fs::fallocate(&two, rustix::fs::FallocateFlags::empty(), 0, 512 << 10).unwrap();
    let refused = rustix::fs::fallocate(&two, rustix::fs::FallocateFlags::empty(), 512 << 10, 1);
    assert_eq!(refused, Err(Errno::DQUOT));
    two.write_all_at(&vec![3; 512 << 10], 0).unwrap();
    let refused = fs::create_dir(jobs.join("three")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    fs::remove_file(jobs.join("one")).unwrap();
    // The file counts until the kernel has forgotten it.
    wait_until("room for a directory", || match fs::create_dir(jobs.join("three")) {
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
            false
        }
        Ok(()) => true,
    });
    let shown = rustix::fs::statvfs(jobs.join("three")).unwrap();
    assert_eq!((kib(shown.f_bavail), shown.f_ffree), (512, 0));
}
