//! Transactions through the library, on pools in memory.

use std::thread;

use warpfire::{ErrorKind, OpenOptions, Pool, Warpfire};

fn pool() -> Warpfire {
    Pool::options().data(2).parity(1).size_bytes(64 << 20).in_memory().expect("a pool in memory")
}

fn number(bytes: &[u8]) -> u64 {
    String::from_utf8_lossy(bytes).parse().expect("a number")
}

#[test]
fn handles_and_listings_inside_show_the_changes_of_the_transaction() {
    let fs = pool();
    fs.create_dir("/d").unwrap();
    fs.write("/d/old", b"old").unwrap();
    let tx = fs.begin().unwrap();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&tx, "/d/new").unwrap();
    file.write_all_at(&[7; 200_000], 0).unwrap();
    tx.rename("/d/old", "/d/older").unwrap();
    tx.set_xattr("/d/new", "user.colour", b"red").unwrap();
    let dir = tx.dir("/d").unwrap();
    let names: Vec<_> = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().to_owned()).collect();
    assert_eq!(names, ["new", "older"]);
    assert_eq!(tx.metadata("/d/new").unwrap().len(), 200_000);
    assert!(!fs.exists("/d/new") && fs.exists("/d/old"));
    tx.commit().unwrap();
    assert_eq!(fs.read("/d/new").unwrap(), [7; 200_000]);
    assert_eq!(fs.xattr("/d/new", "user.colour").unwrap(), b"red");
    assert!(fs.exists("/d/older") && !fs.exists("/d/old"));
    let late = file.write_all_at(b"late", 0).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::WrongTransaction);
    assert_eq!(dir.read("new").unwrap_err().kind(), ErrorKind::WrongTransaction);
}

#[test]
fn an_exchange_swaps_files_and_directories_by_path_and_by_name() {
    let fs = pool();
    fs.create_dir("/d").unwrap();
    fs.write("/d/inner", b"inner").unwrap();
    fs.write("/f", b"file").unwrap();
    assert_eq!(fs.exchange("/f", "/none").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs.exchange("/d/inner", "/d").unwrap_err().kind(), ErrorKind::InvalidInput);
    fs.exchange("/f", "/d").unwrap();
    assert_eq!((fs.read("/d").unwrap(), fs.read("/f/inner").unwrap()), (b"file".into(), b"inner".into()));
    let tx = fs.begin().unwrap();
    tx.dir("/").unwrap().exchange("f", "d").unwrap();
    tx.exchange("/f", "/d/inner").unwrap();
    assert_eq!(tx.read("/f").unwrap(), b"inner");
    assert_eq!(fs.read("/d").unwrap(), b"file", "nothing changes outside before the commit");
    tx.commit().unwrap();
    assert_eq!((fs.read("/f").unwrap(), fs.read("/d/inner").unwrap()), (b"inner".into(), b"file".into()));
}

#[test]
fn threads_that_count_in_transactions_lose_no_count() {
    let fs = pool();
    fs.write("/a", b"0").unwrap();
    fs.write("/b", b"1000").unwrap();
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..100 {
                    fs.transact(|tx| {
                        let (a, b) = (number(&tx.read("/a")?), number(&tx.read("/b")?));
                        assert_eq!(a + b, 1000, "both numbers are of one moment");
                        tx.write("/a", (a + 1).to_string())?;
                        tx.write("/b", (b - 1).to_string())
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!((number(&fs.read("/a").unwrap()), number(&fs.read("/b").unwrap())), (400, 600));
}

#[test]
fn blind_appends_of_transactions_and_of_plain_calls_all_arrive_whole_without_a_conflict() {
    let fs = pool();
    fs.write("/log", b"").unwrap();
    let append = |fs: &Warpfire, text: &str| {
        let tx = fs.begin().unwrap();
        let log = OpenOptions::new().append(true).open(&tx, "/log").unwrap();
        log.append_blindly(text.as_bytes()).unwrap();
        tx.commit().unwrap();
    };
    thread::scope(|s| {
        for thread in 0..4 {
            let fs = &fs;
            s.spawn(move || {
                let plain = OpenOptions::new().append(true).open(fs, "/log").unwrap();
                for i in 0..100 {
                    append(fs, &format!("{thread}t{i:03}\n"));
                    plain.append(format!("{thread}p{i:03}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let log = String::from_utf8(fs.read("/log").unwrap()).unwrap();
    let mut lines: Vec<&str> = log.lines().collect();
    assert!(lines.iter().all(|line| line.len() == 5), "no append is torn");
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 800);
    assert_eq!(fs.stats().transactions.commits, 400);
    assert_eq!(fs.stats().transactions.conflicts, 0);
}

#[test]
fn a_transaction_that_fills_the_pool_gets_no_space_and_other_writers_continue() {
    let fs = Pool::options().size_bytes(64 << 20).in_memory().unwrap();
    let tx = fs.begin().unwrap();
    let full = (0..1000).find_map(|n| tx.write(format!("/{n}"), vec![n as u8; 1 << 20]).err()).unwrap();
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    drop(tx);
    assert_eq!(fs.read_dir("/").unwrap().count(), 0);
    // Its space is free once its segments have been cleaned.
    let written = (0..50).filter(|_| fs.write("/others", vec![1; 1 << 20]).is_ok()).count();
    assert_eq!(written, 50);
    assert_eq!(fs.read("/others").unwrap().len(), 1 << 20);
}

#[test]
fn a_durable_commit_is_there_after_a_close_without_sync() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("pool.img");
    let fs = Pool::options().size_bytes(64 << 20).create([&image]).unwrap();
    let tx = fs.begin().unwrap();
    tx.create_dir("/d").unwrap();
    tx.write("/d/a", b"a").unwrap();
    tx.write("/b", vec![2; 100_000]).unwrap();
    tx.commit_durable().unwrap();
    let open = fs.begin().unwrap();
    open.write("/never", b"").unwrap();
    fs.close().unwrap();
    assert!(open.commit().is_err(), "the pool is closed");
    let fs = Pool::options().open([&image]).unwrap();
    assert_eq!((fs.read("/d/a").unwrap(), fs.read("/b").unwrap()), (b"a".to_vec(), vec![2; 100_000]));
    assert!(!fs.exists("/never"));
}

/// Every thread appends to one file, writes to its own range of another, makes names in one directory and
/// sets the attributes of both files. No transaction reads anything that another one changes, so none
/// conflicts, however often commits replay.
#[test]
fn concurrent_changes_that_no_transaction_reads_never_conflict() {
    const THREADS: u64 = 8;
    const EACH: u64 = 60;
    let fs = pool();
    fs.create_dir("/d").unwrap();
    fs.write("/log", b"").unwrap();
    fs.write("/places", [0; 100_000]).unwrap();
    thread::scope(|s| {
        for thread in 0..THREADS {
            let fs = &fs;
            s.spawn(move || {
                for i in 0..EACH {
                    let tx = fs.begin().unwrap();
                    let number = thread * EACH + i;
                    let log = OpenOptions::new().append(true).open(&tx, "/log").unwrap();
                    log.append_blindly(&number.to_le_bytes()).unwrap();
                    let places = OpenOptions::new().write(true).open(&tx, "/places").unwrap();
                    places.write_all_at(&number.to_le_bytes(), number * 8).unwrap();
                    tx.write(format!("/d/{number}"), number.to_le_bytes()).unwrap();
                    tx.set_mode("/log", 0o600 + (number % 8) as u32).unwrap();
                    tx.set_mode("/d", 0o700 + (number % 8) as u32).unwrap();
                    tx.commit().unwrap();
                }
            });
        }
    });
    let total = THREADS * EACH;
    let numbers = |bytes: Vec<u8>| -> Vec<u64> {
        bytes.chunks(8).map(|number| u64::from_le_bytes(number.try_into().unwrap())).collect()
    };
    let mut appended = numbers(fs.read("/log").unwrap());
    appended.sort_unstable();
    assert_eq!(appended, (0..total).collect::<Vec<_>>());
    assert_eq!(numbers(fs.read("/places").unwrap())[..total as usize], (0..total).collect::<Vec<_>>());
    assert_eq!(fs.read_dir("/d").unwrap().count() as u64, total);
    let counts = fs.stats().transactions;
    assert_eq!((counts.commits, counts.conflicts), (total, 0));
    assert!(counts.replays > 0, "commits replay, because others changed the same files");
}
