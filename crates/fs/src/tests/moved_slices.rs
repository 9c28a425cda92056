//! Values that a transaction yanked, when the store moves their bytes before the commit.

use std::sync::Arc;

use super::engine::{LogEngine, format, open};
use crate::acl::Caller;
use crate::{Fs, FsError, NewMode, Position};

const ROOT: Caller<'static> = Caller::ROOT;
const LEN: usize = 3000;

/// A transaction yanks short bytes and appends them, and others append too, so its calls are made again;
/// `between` comes before that.
fn yank_and_append(between: impl FnOnce(&Fs<LogEngine>)) -> (Arc<Fs<LogEngine>>, Result<(), FsError>) {
    let fs = Arc::new(open(format(), Fs::format));
    let make = |name: &[u8], bytes: &[u8]| {
        fs.create_file(&ROOT, &fs.root(), name, NewMode::exact(0o644), bytes).unwrap();
    };
    make(b"source", &[7; LEN]);
    make(b"target", b"");
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let source = tx_fs.lookup(&ROOT, &tx_fs.root(), b"source").unwrap();
    let target = tx_fs.lookup(&ROOT, &tx_fs.root(), b"target").unwrap();
    let slice = tx_fs.yank(&source, 0, LEN as u64).unwrap();
    let mut bytes = vec![0; LEN];
    assert_eq!(tx_fs.read_yanked_slice(&slice, 0, &mut bytes).unwrap(), LEN);
    tx_fs.append(&ROOT, &target, &bytes).unwrap();
    drop((source, target, slice));
    fs.append(&ROOT, &fs.lookup(&ROOT, &fs.root(), b"target").unwrap(), b"others ").unwrap();
    between(&fs);
    let outcome = tx.commit();
    assert_eq!(fs.transaction_counts().replays, 1);
    (fs, outcome)
}

/// The answers of `yank` were compared by their pointers, so writing a table before the commit made a
/// conflict.
#[test]
fn packed_bytes_compare_equal_to_the_bytes_before() {
    let (fs, outcome) = yank_and_append(|fs| fs.engine().flush().unwrap());
    outcome.unwrap();
    let appended = [b"others ".as_slice(), &[7; LEN]].concat();
    assert_eq!(fs.read_file(&ROOT, &fs.root(), b"target").unwrap(), appended);
}

#[test]
fn other_bytes_of_the_same_length_are_a_conflict() {
    let change = |fs: &Fs<LogEngine>| {
        let source = fs.lookup(&ROOT, &fs.root(), b"source").unwrap();
        fs.write(&ROOT, &source, Position::At(LEN as u64 - 1), b"x").unwrap();
        fs.engine().flush().unwrap();
    };
    let (_, outcome) = yank_and_append(change);
    assert!(matches!(outcome, Err(FsError::Conflict { call: "yank", .. })), "{outcome:?}");
}

#[test]
fn the_same_bytes_written_anew_are_no_conflict() {
    let change = |fs: &Fs<LogEngine>| {
        let source = fs.lookup(&ROOT, &fs.root(), b"source").unwrap();
        fs.write(&ROOT, &source, Position::At(0), &[7; LEN]).unwrap();
    };
    yank_and_append(change).1.unwrap();
}
