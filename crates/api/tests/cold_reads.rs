//! The device reads of small files of which nothing is in memory: each costs one, by its name or opened.

use warpfire::{OpenOptions, Pool, Warpfire};

/// The cache has room for a part of the records, and for what finds them.
const CACHE_BYTES: u64 = 3 << 20;

type Read = fn(&Warpfire, &str) -> Vec<u8>;

fn by_name(pool: &Warpfire, name: &str) -> Vec<u8> {
    pool.dir("/files").and_then(|dir| dir.read(name)).expect("it was made")
}

fn opened(pool: &Warpfire, name: &str) -> Vec<u8> {
    pool.read(format!("/files/{name}")).expect("it was made")
}

/// As a program with a small buffer reads.
fn opened_in_pieces(pool: &Warpfire, name: &str) -> Vec<u8> {
    let options = OpenOptions::new().read(true);
    let file = options.open(pool, format!("/files/{name}")).expect("it was made");
    let (mut bytes, mut piece) = (Vec::new(), [0; 512]);
    loop {
        let len = file.read_at(&mut piece, bytes.len() as u64).expect("nothing fails");
        if len == 0 {
            return bytes;
        }
        bytes.extend_from_slice(&piece[..len]);
    }
}

/// Device reads a file, of files drawn at random, when the indexes are in memory.
fn reads_a_file(files: u64, size: usize, read: Read) -> f64 {
    let home = tempfile::tempdir().expect("there is a directory for temporary files");
    let image = home.path().join("pool.img");
    let options = Pool::options().size_bytes(1 << 30).background(false);
    let pool = options.create([&image]).expect("the disk has room");
    pool.create_dir("/files").expect("a new directory");
    let name = |n: u64| format!("file {n:08}");
    let content = |n: u64| [n.to_le_bytes().as_slice(), &vec![7; size - 8]].concat();
    let dir = pool.dir("/files").expect("it was made");
    for n in 0..files {
        dir.write(name(n), content(n)).expect("there is room");
    }
    drop(dir);
    pool.close().expect("nothing fails");

    let options = Pool::options().background(false).cache_bytes(CACHE_BYTES);
    let pool = options.open([&image]).expect("it was closed");
    let device_reads = || pool.stats().devices.iter().map(|device| device.counters.reads).sum::<u64>();
    let count = files / 4;
    let mut before = 0;
    for turn in 0..2 * count {
        if turn == count {
            before = device_reads();
        }
        let n = turn * 7_919_111 % files;
        assert_eq!(read(&pool, &name(n)), content(n), "file {n}");
    }
    (device_reads() - before) as f64 / count as f64
}

#[test]
fn a_small_file_costs_one_device_read_by_its_name_or_opened() {
    let ways: [(&str, Read); 3] =
        [("by name", by_name), ("opened", opened), ("opened, in pieces", opened_in_pieces)];
    for (files, size, most) in [(60_000, 100, 1.05), (40_000, 1000, 1.05), (3000, 20_000, 1.3)] {
        for (way, read) in ways {
            let reads = reads_a_file(files, size, read);
            println!("{size} bytes, {way}: {reads:.3} device reads a file");
            assert!(reads <= most, "{size} bytes, {way}: {reads:.3} device reads a file");
        }
    }
}
