//! The gate of transactions: commits beside plain calls, other commits and power cuts.

use std::sync::Arc;

use shuttle::thread;
use warpfire_fs::acl::Caller;
use warpfire_fs::{FsError, NewMode, Position};
use warpfire_schedules::{Stack, TestFs, draw, explore};

const ROOT: Caller<'static> = Caller::ROOT;
const EACH: u64 = 3;

fn read(fs: &TestFs, name: &[u8]) -> u64 {
    let bytes = fs.read_file(&ROOT, &fs.root(), name).expect("the file is there");
    u64::from_le_bytes(bytes.try_into().expect("a file holds one number"))
}

/// Moves an amount from one file to another in a transaction. Returns whether it was committed.
fn try_transfer(fs: &Arc<TestFs>) -> bool {
    let tx = fs.begin().expect("a transaction begins");
    let inside = tx.files();
    let (from, to) = if draw(2) == 0 { (b"a", b"b") } else { (b"b", b"a") };
    let number = |name: &[u8]| {
        let bytes = inside.read_file(&ROOT, &inside.root(), name).expect("the file is there");
        u64::from_le_bytes(bytes.try_into().expect("a file holds one number"))
    };
    let write = |name: &[u8], number: u64| {
        let node = inside.lookup(&ROOT, &inside.root(), name).expect("the file is there");
        inside.write(&ROOT, &node, Position::At(0), &number.to_le_bytes()).expect("there is room");
    };
    let (rich, poor) = (number(from), number(to));
    let amount = draw(rich + 1);
    write(from, rich - amount);
    write(to, poor + amount);
    let log = inside.lookup(&ROOT, &inside.root(), b"log").expect("the file is there");
    inside.append(&ROOT, &log, b"t").expect("there is room");
    match tx.commit() {
        Ok(()) => true,
        Err(FsError::Conflict { .. }) => false,
        Err(e) => panic!("{e}"),
    }
}

/// Both numbers as one moment has them.
fn assert_balanced(fs: &Arc<TestFs>) {
    let tx = fs.begin_read_only().expect("a transaction begins");
    let inside = tx.files();
    let number = |name: &[u8]| {
        let bytes = inside.read_file(&ROOT, &inside.root(), name).expect("the file is there");
        u64::from_le_bytes(bytes.try_into().expect("a file holds one number"))
    };
    assert_eq!(number(b"a") + number(b"b"), 100);
}

fn create(stack: &Stack) -> Arc<TestFs> {
    let fs = stack.create_fs();
    let make = |name: &[u8], content: &[u8]| {
        fs.create_file(&ROOT, &fs.root(), name, NewMode::exact(0o644), content).expect("there is room");
    };
    make(b"a", &50u64.to_le_bytes());
    make(b"b", &50u64.to_le_bytes());
    make(b"log", b"");
    fs.sync().expect("no device fails");
    fs
}

#[test]
fn transactions_commit_whole_beside_plain_appends_and_readers() {
    explore(200, || {
        let stack = Stack::draw();
        let fs = create(&stack);
        let committed: u64 = thread::scope(|scope| {
            let mut writers = Vec::new();
            for _ in 0..2 {
                writers.push(scope.spawn(|| (0..EACH).filter(|_| try_transfer(&fs)).count() as u64));
            }
            writers.push(scope.spawn(|| {
                let node = fs.lookup(&ROOT, &fs.root(), b"log").expect("the file is there");
                (0..EACH).for_each(|_| fs.append(&ROOT, &node, b"p").expect("there is room"));
                EACH
            }));
            scope.spawn(|| (0..EACH).for_each(|_| assert_balanced(&fs)));
            writers.into_iter().map(|writer| writer.join().expect("a writer does not panic")).sum()
        });
        assert_eq!(read(&fs, b"a") + read(&fs, b"b"), 100);
        let log = fs.read_file(&ROOT, &fs.root(), b"log").expect("the file is there");
        assert_eq!(log.len() as u64, committed, "each append is there once: {log:?}");
        fs.close().expect("no device fails");
    });
}

#[test]
fn a_power_cut_beside_commits_leaves_each_transaction_whole_or_absent() {
    explore(200, || {
        let stack = Stack::draw();
        let fs = create(&stack);
        let cuts: Vec<Stack> = thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        try_transfer(&fs);
                        if draw(2) == 0 {
                            fs.sync().expect("no device fails");
                        }
                    }
                });
            }
            let cutter = scope.spawn(|| {
                let cut = |_| {
                    (0..draw(300)).for_each(|_| thread::yield_now());
                    stack.cut()
                };
                (0..3).map(cut).collect()
            });
            cutter.join().expect("the cutter does not panic")
        });
        fs.close().expect("no device fails");
        cuts.iter().for_each(|after| assert_balanced(&after.open_fs()));
    });
}

/// Two threads in one transaction: one reads and one writes, and a third commits when it likes.
#[test]
fn reads_of_one_transaction_end_before_its_commit() {
    explore(200, || {
        let stack = Stack::draw();
        let fs = create(&stack);
        let large = vec![1; 20_000];
        fs.create_file(&ROOT, &fs.root(), b"large", NewMode::exact(0o644), &large).expect("there is room");
        let tx = fs.begin().expect("a transaction begins");
        let files = Arc::clone(tx.files());
        let node = files.lookup(&ROOT, &files.root(), b"large").expect("the file is there");
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let mut bytes = vec![0; 20_000];
                        match files.read(&node, 0, &mut bytes) {
                            // The writes replace all bytes by one value.
                            Ok(_) => assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one moment"),
                            Err(FsError::Ended) => {}
                            Err(e) => panic!("{e}"),
                        }
                    }
                });
            }
            scope.spawn(|| match files.write(&ROOT, &node, Position::At(0), &vec![2; 20_000]) {
                Ok(_) | Err(FsError::Ended) => {}
                Err(e) => panic!("{e}"),
            });
            scope.spawn(move || {
                (0..draw(200)).for_each(|_| thread::yield_now());
                tx.commit().expect("nobody else changes the file");
            });
        });
        let after = fs.read_file(&ROOT, &fs.root(), b"large").expect("the file is there");
        assert!(after.iter().all(|byte| *byte == after[0]), "the write is there whole, or not at all");
        fs.close().expect("no device fails");
    });
}
