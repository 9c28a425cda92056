//! Names, paths and offsets at their limits, and one beyond.

use rustix::io::Errno;
use warpfire::{Error, ErrorKind, OpenOptions, Pool, Warpfire};

/// The last offset at which a file can end.
const END_MAX: u64 = (1 << 63) - 1;

fn pool() -> Warpfire {
    Pool::options().size_bytes(32 << 20).in_memory().expect("memory makes a pool")
}

fn number<T>(outcome: Result<T, Error>) -> i32 {
    let error = outcome.err().expect("the call fails");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    error.errno()
}

#[test]
fn a_name_has_at_most_255_bytes() {
    let fs = pool();
    let (longest, longer) = ("n".repeat(255), "n".repeat(256));
    fs.write(&longest, b"kept").expect("255 bytes are a name");
    fs.create_dir("/directory").expect("a name");
    assert_eq!(number(fs.write(&longer, b"")), Errno::NAMETOOLONG.raw_os_error());
    assert_eq!(number(fs.create_dir(&longer)), Errno::NAMETOOLONG.raw_os_error());
    assert_eq!(number(fs.rename(&longest, &longer)), Errno::NAMETOOLONG.raw_os_error());
    assert_eq!(number(fs.hard_link(&longest, &longer)), Errno::NAMETOOLONG.raw_os_error());
    assert_eq!(number(fs.symlink("/", &longer)), Errno::NAMETOOLONG.raw_os_error());
    assert_eq!(number(fs.read(&longer)), Errno::NAMETOOLONG.raw_os_error());
    assert_eq!(fs.read(&longest).expect("still there"), b"kept");
}

#[test]
fn a_path_has_at_most_4095_bytes_and_its_end() {
    let fs = pool();
    let mut path = String::new();
    while path.len() < 4095 {
        path += "/";
        path += &"d".repeat((4095 - path.len()).min(255));
        fs.create_dir(&path).expect("a path within the limit");
    }
    assert_eq!(path.len(), 4095);
    assert!(fs.metadata(&path).expect("it is there").is_dir());
    for length in [4096, 4097] {
        let longer = format!("{path}{}", "/".repeat(length - path.len()));
        assert_eq!(number(fs.metadata(&longer)), Errno::NAMETOOLONG.raw_os_error(), "{length}");
    }
}

#[test]
fn a_file_ends_at_most_at_2_to_the_63_minus_1() {
    let fs = pool();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/far").expect("a new file");
    file.write_all_at(b"end", END_MAX - 3).expect("it ends at the limit");
    assert_eq!(file.metadata().expect("open").len(), END_MAX);
    let mut bytes = [0; 3];
    file.read_exact_at(&mut bytes, END_MAX - 3).expect("the bytes are there");
    assert_eq!(&bytes, b"end");
    for at in [END_MAX - 2, END_MAX, 1 << 63, u64::MAX - 2, u64::MAX] {
        assert_eq!(number(file.write_all_at(b"end", at)), Errno::FBIG.raw_os_error(), "at {at}");
    }
    assert_eq!(number(file.append(b"x")), Errno::FBIG.raw_os_error());
    file.set_len(END_MAX).expect("the limit is a length");
    number(file.set_len(1 << 63));
    number(file.set_len(u64::MAX));
    assert_eq!(file.metadata().expect("open").len(), END_MAX);
    fs.sync().expect("and all of it is durable");
}

#[test]
fn reads_and_ranges_beyond_every_limit_are_answered() {
    let fs = pool();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/f").expect("a new file");
    file.write_all_at(&[7; 10_000], 0).expect("there is room");
    let mut bytes = [0; 16];
    for at in [10_000, END_MAX, 1 << 63, u64::MAX] {
        assert_eq!(file.read_at(&mut bytes, at).expect("past the end is no error"), 0, "at {at}");
        file.next_data(at).expect("past the end is no error");
    }
    file.punch_hole(9_000..u64::MAX).expect_err("a range beyond the limit");
    file.punch_hole(9_000..END_MAX).expect("a range up to it");
    number(file.allocate(0..u64::MAX));
    number(file.insert_range(4_096..4_096 + END_MAX));
    file.remove_range(10_000..u64::MAX).expect("there is nothing to take past the end");
    number(file.copy_range_from(&file, 0, u64::MAX, 5_000));
    assert_eq!(file.copy_range_from(&file, u64::MAX, 1, 0).unwrap_or(0), 0);
    let mut expected = vec![7; 9_000];
    expected.resize(10_000, 0);
    assert_eq!(fs.read("/f").expect("still whole"), expected);
}

#[test]
fn transactions_beyond_their_memory_are_refused_and_the_calls_before_can_be_committed() {
    let fs = Pool::options().size_bytes(64 << 20).transaction_memory(4 << 20).in_memory().expect("a pool");
    let tx = fs.begin().expect("a transaction");
    let refused = (0..100_000).find_map(|n| tx.write(format!("/{n}"), b"x").err().map(|e| (n, e)));
    let (made, error) = refused.expect("the memory ends");
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NoMemory, Errno::NOMEM.raw_os_error()), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("transaction")), "{error}");
    tx.commit().expect("nothing else has changed");
    assert!(fs.exists(format!("/{}", made - 1)) && !fs.exists(format!("/{made}")));
    let tx = fs.begin().expect("a transaction");
    tx.write("/again", b"there is room again").expect("all memory has come back");
    tx.commit().expect("it commits");
}
