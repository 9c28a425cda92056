//! Transactions that have ended, that fill the pool, or that a killed program leaves behind.

use warpfire::{ErrorKind, OpenOptions, Pool};

use crate::rig::{Images, refused};

#[test]
fn handles_are_refused_after_the_commit_or_abort_of_their_transaction() {
    let fs = Pool::options().in_memory().expect("a pool in memory");
    fs.write("/a", b"before").expect("there is room");
    fs.create_dir("/d").expect("a new name");
    for commits in [false, true] {
        let tx = fs.begin().expect("a transaction");
        let file = OpenOptions::new().read(true).write(true).open(&tx, "/a").expect("it is there");
        let dir = tx.dir("/d").expect("it is there");
        let mut unread = tx.diff().expect("a listing");
        if commits {
            tx.commit().expect("nothing conflicts");
        } else {
            tx.abort();
        }
        refused(file.write_all_at(b"late", 0), ErrorKind::WrongTransaction);
        refused(file.yank(0..3), ErrorKind::WrongTransaction);
        refused(dir.write("late", b"x"), ErrorKind::WrongTransaction);
        refused(dir.read_dir().map(drop), ErrorKind::WrongTransaction);
        assert!(unread.next().is_none(), "nothing was changed");
        assert_eq!(fs.read("/a").expect("it is there"), b"before");
        assert_eq!(fs.read_dir("/d").expect("it is there").count(), 0);
    }
}

#[test]
fn a_read_only_transaction_refuses_changes() {
    let fs = Pool::options().in_memory().expect("a pool in memory");
    let tx = fs.begin_read_only().expect("a read-only transaction");
    refused(tx.write("/a", b"x"), ErrorKind::WrongTransaction);
    assert!(!fs.exists("/a"));
}

#[test]
fn a_transaction_that_fills_the_pool_gets_no_space_and_others_write_after_it_has_ended() {
    let fs = Pool::options().size_bytes(64 << 20).in_memory().expect("a pool in memory");
    fs.write("/others", vec![1; 1 << 20]).expect("there is room");
    let tx = fs.begin().expect("a transaction");
    let full = (0..1000).find_map(|n| tx.write(format!("/{n}"), vec![2; 1 << 20]).err());
    refused::<()>(Err(full.expect("the pool becomes full")), ErrorKind::NoSpace);
    assert_eq!(fs.read("/others").expect("it is there"), vec![1; 1 << 20]);
    fs.remove_file("/others").expect("removing always works");
    tx.abort();
    assert_eq!(fs.read_dir("/").expect("it is there").count(), 0);
    for round in 0..50 {
        fs.write("/more", vec![3; 1 << 20]).unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
}

#[test]
fn a_transaction_of_a_killed_program_leaves_no_trace() {
    let images = Images::with_files(1, 0, 3);
    let fs = Pool::options().open(&images.paths).expect("the pool opens");
    let tx = fs.begin().expect("a transaction");
    tx.write("/late", vec![1; 100_000]).expect("there is room");
    fs.sync().expect("sound devices do not fail");
    // Not dropped, as if the program had been killed.
    std::mem::forget(tx);
    std::mem::forget(fs);
    let copies = Images::new(1);
    std::fs::copy(&images.paths[0], &copies.paths[0]).expect("copied as it is");
    let fs = Pool::options().open(&copies.paths).expect("the pool opens");
    assert!(!fs.exists("/late"));
    assert_eq!(fs.read_dir("/").expect("it is there").count(), 3);
}
