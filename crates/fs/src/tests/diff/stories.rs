//! Diffs of single changes.

use std::sync::Arc;

use warpfire_meta::Storage;

use crate::acl::Caller;
use crate::tests::{TestFs, world};
use crate::{
    Aspect, ChangeKind, ChangedRanges, Fs, FsError, NewMode, NodeRef, PathChange, Position, RenameMode,
    SetAttr, SetTime, Transaction, XattrMode,
};

const ROOT: Caller<'static> = Caller::ROOT;
const MODE: NewMode = NewMode { mode: 0o644, umask: 0 };

fn shared() -> Arc<TestFs> {
    Arc::new(world())
}

fn make<E: Storage>(fs: &Fs<E>, dir: &NodeRef, name: &[u8], bytes: &[u8]) -> NodeRef {
    fs.create_file(&ROOT, dir, name, MODE, bytes).unwrap();
    fs.lookup(&ROOT, dir, name).unwrap()
}

fn rename<E: Storage>(fs: &Fs<E>, from: &[u8], to: &[u8]) {
    fs.rename(&ROOT, (&fs.root(), from), (&fs.root(), to), RenameMode::Replace).unwrap();
}

fn diff<E: Storage>(tx: &Transaction<E>) -> Vec<PathChange> {
    tx.diff().unwrap().map(Result::unwrap).collect()
}

/// Each change as one word, its path and the aspects that differ.
fn changes_of<E: Storage>(tx: &Transaction<E>) -> Vec<String> {
    let shown = |change: &PathChange| {
        let path = change.path.display();
        let word = match &change.kind {
            ChangeKind::Created => format!("created {path}"),
            ChangeKind::Deleted => format!("deleted {path}"),
            ChangeKind::Renamed(from) => format!("renamed {} to {path}", from.display()),
            ChangeKind::Linked(Some(other)) => format!("linked {} as {path}", other.display()),
            ChangeKind::Linked(None) => format!("linked {path}"),
            ChangeKind::Changed => format!("changed {path}"),
        };
        change.aspects().iter().fold(word, |word, aspect| format!("{word} {aspect:?}"))
    };
    diff(tx).iter().map(shown).collect()
}

#[test]
fn a_directory_that_is_renamed_is_one_change_and_what_changed_in_it_is_under_the_new_name() {
    let fs = shared();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"old", MODE).unwrap();
    for name in [b"a", b"b", b"c"] {
        make(&fs, &dir, name, b"x");
    }
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    rename(tx_fs, b"old", b"new");
    assert_eq!(changes_of(&tx), ["renamed /old to /new"]);
    let dir = tx_fs.lookup(&ROOT, &tx_fs.root(), b"new").unwrap();
    tx_fs.unlink(&ROOT, &dir, b"a").unwrap();
    tx_fs.rename(&ROOT, (&dir, b"b"), (&dir, b"d"), RenameMode::Replace).unwrap();
    make(tx_fs, &dir, b"e", b"y");
    let expected = ["renamed /old to /new", "renamed /old/b to /new/d", "created /new/e", "deleted /old/a"];
    assert_eq!(changes_of(&tx), expected);
}

#[test]
fn all_ranges_that_differ_are_counted_though_not_all_are_listed() {
    let fs = shared();
    make(&fs, &fs.root(), b"file", &[0; 200_000]);
    let tx = fs.begin().unwrap();
    let inside = tx.files().lookup(&ROOT, &tx.files().root(), b"file").unwrap();
    for n in 0..20 {
        tx.files().write(&ROOT, &inside, Position::At(n * 8192), &[1; 10]).unwrap();
    }
    let changes = diff(&tx);
    let [change] = &changes[..] else { panic!("one file has changed: {changes:?}") };
    let data = &change.data;
    assert_eq!((data.count, data.bytes, data.ranges.len()), (20, 200, crate::RANGES_LISTED_MAX));
}

#[test]
fn a_file_that_takes_the_name_of_another_is_not_the_other_changed() {
    let fs = shared();
    make(&fs, &fs.root(), b"file", b"one");
    let tx = fs.begin().unwrap();
    tx.files().unlink(&ROOT, &tx.files().root(), b"file").unwrap();
    make(tx.files(), &tx.files().root(), b"file", b"two");
    assert_eq!(changes_of(&tx), ["deleted /file", "created /file"]);
}

#[test]
fn a_change_that_is_undone_is_not_listed() {
    let fs = shared();
    let file = make(&fs, &fs.root(), b"file", b"one");
    let mtime = fs.getattr(&file).mtime;
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let file = tx_fs.lookup(&ROOT, &tx_fs.root(), b"file").unwrap();
    tx_fs.write(&ROOT, &file, Position::At(0), b"two").unwrap();
    assert_eq!(changes_of(&tx), ["changed /file Data ModifiedTime"]);
    tx_fs.write(&ROOT, &file, Position::At(0), b"one").unwrap();
    tx_fs.setattr(&ROOT, &file, &SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() }).unwrap();
    rename(tx_fs, b"file", b"elsewhere");
    rename(tx_fs, b"elsewhere", b"file");
    make(tx_fs, &tx_fs.root(), b"passing", b"x");
    tx_fs.unlink(&ROOT, &tx_fs.root(), b"passing").unwrap();
    assert_eq!(changes_of(&tx), Vec::<String>::new());
}

#[test]
fn attributes_are_listed_by_name_and_those_of_a_directory_only_if_a_call_set_them() {
    let fs = shared();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"dir", MODE).unwrap();
    let file = make(&fs, &dir, b"file", b"x");
    fs.setxattr(&ROOT, &file, b"user.gone", b"1", XattrMode::Either).unwrap();
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let dir = tx_fs.lookup(&ROOT, &tx_fs.root(), b"dir").unwrap();
    let file = tx_fs.lookup(&ROOT, &dir, b"file").unwrap();
    tx_fs.removexattr(&ROOT, &file, b"user.gone").unwrap();
    tx_fs.setxattr(&ROOT, &file, b"user.new", b"2", XattrMode::Either).unwrap();
    tx_fs.setattr(&ROOT, &file, &SetAttr { mode: Some(0o600), uid: Some(7), ..SetAttr::default() }).unwrap();
    make(tx_fs, &dir, b"other", b"");
    assert_eq!(changes_of(&tx), ["changed /dir/file Mode Owner Xattrs", "created /dir/other"]);
    assert_eq!(diff(&tx)[0].xattrs, (2, vec!["user.gone".into(), "user.new".into()]));
    let later = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    tx_fs.setattr(&ROOT, &dir, &later).unwrap();
    tx_fs.setattr(&ROOT, &tx_fs.root(), &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
    assert_eq!(changes_of(&tx)[..2], ["changed / Mode", "changed /dir ModifiedTime"]);
}

#[test]
fn every_name_of_a_file_is_listed_and_its_content_once() {
    let fs = shared();
    make(&fs, &fs.root(), b"b", b"x");
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let file = tx_fs.lookup(&ROOT, &tx_fs.root(), b"b").unwrap();
    tx_fs.link(&ROOT, &file, &tx_fs.root(), b"a").unwrap();
    tx_fs.link(&ROOT, &file, &tx_fs.root(), b"c").unwrap();
    tx_fs.write(&ROOT, &file, Position::End, b"y").unwrap();
    let new = make(tx_fs, &tx_fs.root(), b"new", b"");
    tx_fs.link(&ROOT, &new, &tx_fs.root(), b"newer").unwrap();
    let expected = [
        "linked /b as /a Data Size ModifiedTime",
        "linked /b as /c",
        "created /new",
        "linked /new as /newer",
    ];
    assert_eq!(changes_of(&tx), expected);
}

/// A diff once listed such a file before it knew the file's names, and did not compare it.
#[test]
fn a_file_that_is_renamed_and_has_one_more_name_is_compared_at_the_first() {
    let fs = shared();
    make(&fs, &fs.root(), b"was", b"x");
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let file = tx_fs.lookup(&ROOT, &tx_fs.root(), b"was").unwrap();
    rename(tx_fs, b"was", b"is");
    let dir = tx_fs.mkdir(&ROOT, &tx_fs.root(), b"dir", MODE).unwrap();
    tx_fs.link(&ROOT, &file, &dir, b"also").unwrap();
    tx_fs.write(&ROOT, &file, Position::At(0), b"y").unwrap();
    let expected = ["created /dir", "linked /is as /dir/also Data ModifiedTime", "renamed /was to /is"];
    assert_eq!(changes_of(&tx), expected);
}

/// The transaction removed the name by which it met the file. Only the diff looks at the name that is left.
#[test]
fn a_file_changed_through_a_handle_is_listed_by_its_name() {
    let fs = shared();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"far", MODE).unwrap();
    let file = make(&fs, &fs.root(), b"near", b"x");
    fs.link(&ROOT, &file, &dir, b"away").unwrap();
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let file = tx_fs.lookup(&ROOT, &tx_fs.root(), b"near").unwrap();
    tx_fs.write(&ROOT, &file, Position::At(0), b"y").unwrap();
    assert_eq!(changes_of(&tx), ["changed /near Data ModifiedTime"]);
    tx_fs.unlink(&ROOT, &tx_fs.root(), b"near").unwrap();
    assert_eq!(changes_of(&tx), ["changed /far/away Data ModifiedTime", "deleted /near"]);
}

#[test]
fn an_open_file_without_a_name_is_listed_only_as_deleted() {
    let fs = shared();
    make(&fs, &fs.root(), b"file", b"x");
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let file = tx_fs.lookup(&ROOT, &tx_fs.root(), b"file").unwrap();
    tx_fs.unlink(&ROOT, &tx_fs.root(), b"file").unwrap();
    tx_fs.write(&ROOT, &file, Position::At(0), b"y").unwrap();
    let unnamed = tx_fs.tmpfile(&ROOT, &tx_fs.root(), MODE).unwrap();
    tx_fs.write(&ROOT, &unnamed, Position::At(0), b"z").unwrap();
    assert_eq!(changes_of(&tx), ["deleted /file"]);
}

#[test]
fn a_large_file_differs_where_it_was_written_and_where_it_grew() {
    let fs = shared();
    let file = make(&fs, &fs.root(), b"file", b"");
    fs.write(&ROOT, &file, Position::At(0), &vec![1; 3 << 20]).unwrap();
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let file = tx_fs.lookup(&ROOT, &tx_fs.root(), b"file").unwrap();
    tx_fs.write(&ROOT, &file, Position::At(100_000), &vec![2; 70_000]).unwrap();
    tx_fs.write(&ROOT, &file, Position::End, &[3; 10]).unwrap();
    let expected =
        ChangedRanges { bytes: 70_010, count: 2, ranges: vec![100_000..170_000, 3 << 20..(3 << 20) + 10] };
    assert_eq!(diff(&tx)[0].data, expected);
    assert_eq!(diff(&tx)[0].aspects(), [Aspect::Data, Aspect::Size, Aspect::ModifiedTime]);
    tx_fs.truncate(&ROOT, &file, 1 << 20).unwrap();
    let ranges = || -> Vec<(u64, u64)> {
        diff(&tx)[0].data.ranges.iter().map(|range| (range.start, range.end)).collect()
    };
    assert_eq!(ranges(), [(100_000, 170_000)]);
    // Emptied and long again: a hole differs from the old data.
    tx_fs.truncate(&ROOT, &file, 0).unwrap();
    tx_fs.truncate(&ROOT, &file, 3 << 20).unwrap();
    assert_eq!(ranges(), [(0, 3 << 20)]);
}

#[test]
fn concurrent_commits_are_not_listed_and_a_diff_does_not_conflict() {
    let fs = shared();
    make(&fs, &fs.root(), b"theirs", b"x");
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    make(tx_fs, &tx_fs.root(), b"mine", b"x");
    fs.write(&ROOT, &fs.lookup(&ROOT, &fs.root(), b"theirs").unwrap(), Position::At(0), b"y").unwrap();
    assert_eq!(changes_of(&tx), ["created /mine"]);
    let replays = fs.transaction_counts().replays;
    let mut unread = tx.diff().unwrap();
    tx.commit().unwrap();
    assert_eq!(fs.transaction_counts().replays, replays, "a diff reads nothing");
    assert!(unread.all(|change| change.is_ok() || matches!(change, Err(FsError::Ended))));
    assert!(unread.next().is_none());
}
