//! What a diff tells of single changes.

use std::sync::Arc;

use warpfire_meta::{SliceStore, Store};

use crate::acl::Caller;
use crate::tests::{World, world};
use crate::{
    Aspect, Change, Differing, Fs, FsError, How, NewMode, NodeRef, Position, RenameMode, SetAttr, SetTime,
    Transaction, XattrMode,
};

const ROOT: Caller<'static> = Caller::ROOT;
const MODE: NewMode = NewMode { mode: 0o644, umask: 0 };

fn shared() -> Arc<World> {
    Arc::new(world())
}

fn make<E: Store + SliceStore>(fs: &Fs<E>, dir: &NodeRef, name: &[u8], bytes: &[u8]) -> NodeRef {
    fs.create_file(&ROOT, dir, name, MODE, bytes).unwrap();
    fs.lookup(&ROOT, dir, name).unwrap()
}

fn rename<E: Store + SliceStore>(fs: &Fs<E>, from: &[u8], to: &[u8]) {
    fs.rename(&ROOT, (&fs.root(), from), (&fs.root(), to), RenameMode::Replace).unwrap();
}

fn diff<E: Store + SliceStore>(tx: &Transaction<E>) -> Vec<Change> {
    tx.diff().unwrap().map(Result::unwrap).collect()
}

/// Each change as one word, its path and what differs.
fn told<E: Store + SliceStore>(tx: &Transaction<E>) -> Vec<String> {
    let shown = |change: &Change| {
        let path = change.path.display();
        let word = match &change.how {
            How::Created => format!("created {path}"),
            How::Deleted => format!("deleted {path}"),
            How::Renamed(from) => format!("renamed {} to {path}", from.display()),
            How::Linked(Some(other)) => format!("linked {} as {path}", other.display()),
            How::Linked(None) => format!("linked {path}"),
            How::Changed => format!("changed {path}"),
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
    let inside = tx.files();
    rename(inside, b"old", b"new");
    assert_eq!(told(&tx), ["renamed /old to /new"]);
    let dir = inside.lookup(&ROOT, &inside.root(), b"new").unwrap();
    inside.unlink(&ROOT, &dir, b"a").unwrap();
    inside.rename(&ROOT, (&dir, b"b"), (&dir, b"d"), RenameMode::Replace).unwrap();
    make(inside, &dir, b"e", b"y");
    let expected = ["renamed /old to /new", "renamed /old/b to /new/d", "created /new/e", "deleted /old/a"];
    assert_eq!(told(&tx), expected);
}

#[test]
fn a_file_that_takes_the_name_of_another_is_not_the_other_changed() {
    let fs = shared();
    make(&fs, &fs.root(), b"file", b"one");
    let tx = fs.begin().unwrap();
    tx.files().unlink(&ROOT, &tx.files().root(), b"file").unwrap();
    make(tx.files(), &tx.files().root(), b"file", b"two");
    assert_eq!(told(&tx), ["deleted /file", "created /file"]);
}

#[test]
fn what_is_changed_and_changed_back_is_not_told() {
    let fs = shared();
    let file = make(&fs, &fs.root(), b"file", b"one");
    let mtime = fs.getattr(&file).mtime;
    let tx = fs.begin().unwrap();
    let inside = tx.files();
    let file = inside.lookup(&ROOT, &inside.root(), b"file").unwrap();
    inside.write(&ROOT, &file, Position::At(0), b"two").unwrap();
    assert_eq!(told(&tx), ["changed /file Data ModifiedTime"]);
    inside.write(&ROOT, &file, Position::At(0), b"one").unwrap();
    inside.setattr(&ROOT, &file, &SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() }).unwrap();
    rename(inside, b"file", b"elsewhere");
    rename(inside, b"elsewhere", b"file");
    make(inside, &inside.root(), b"passing", b"x");
    inside.unlink(&ROOT, &inside.root(), b"passing").unwrap();
    assert_eq!(told(&tx), Vec::<String>::new());
}

#[test]
fn attributes_and_extended_ones_are_told_by_name_and_a_directory_only_what_someone_set() {
    let fs = shared();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"dir", MODE).unwrap();
    let file = make(&fs, &dir, b"file", b"x");
    fs.setxattr(&ROOT, &file, b"user.gone", b"1", XattrMode::Either).unwrap();
    let tx = fs.begin().unwrap();
    let inside = tx.files();
    let dir = inside.lookup(&ROOT, &inside.root(), b"dir").unwrap();
    let file = inside.lookup(&ROOT, &dir, b"file").unwrap();
    inside.removexattr(&ROOT, &file, b"user.gone").unwrap();
    inside.setxattr(&ROOT, &file, b"user.new", b"2", XattrMode::Either).unwrap();
    inside.setattr(&ROOT, &file, &SetAttr { mode: Some(0o600), uid: Some(7), ..SetAttr::default() }).unwrap();
    make(inside, &dir, b"other", b"");
    assert_eq!(told(&tx), ["changed /dir/file Mode Owner Xattrs", "created /dir/other"]);
    assert_eq!(diff(&tx)[0].xattrs, (2, vec!["user.gone".into(), "user.new".into()]));
    let later = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    inside.setattr(&ROOT, &dir, &later).unwrap();
    inside.setattr(&ROOT, &inside.root(), &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
    assert_eq!(told(&tx)[..2], ["changed / Mode", "changed /dir ModifiedTime"]);
}

#[test]
fn names_of_one_file_are_told_each_and_its_content_once() {
    let fs = shared();
    make(&fs, &fs.root(), b"b", b"x");
    let tx = fs.begin().unwrap();
    let inside = tx.files();
    let file = inside.lookup(&ROOT, &inside.root(), b"b").unwrap();
    inside.link(&ROOT, &file, &inside.root(), b"a").unwrap();
    inside.link(&ROOT, &file, &inside.root(), b"c").unwrap();
    inside.write(&ROOT, &file, Position::End, b"y").unwrap();
    let new = make(inside, &inside.root(), b"new", b"");
    inside.link(&ROOT, &new, &inside.root(), b"newer").unwrap();
    let expected = [
        "linked /b as /a Data Size ModifiedTime",
        "linked /b as /c",
        "created /new",
        "linked /new as /newer",
    ];
    assert_eq!(told(&tx), expected);
}

/// Once such a file was told of before its names were known, and not compared.
#[test]
fn a_file_that_is_renamed_and_has_one_more_name_is_compared_at_the_first() {
    let fs = shared();
    make(&fs, &fs.root(), b"was", b"x");
    let tx = fs.begin().unwrap();
    let inside = tx.files();
    let file = inside.lookup(&ROOT, &inside.root(), b"was").unwrap();
    rename(inside, b"was", b"is");
    let dir = inside.mkdir(&ROOT, &inside.root(), b"dir", MODE).unwrap();
    inside.link(&ROOT, &file, &dir, b"also").unwrap();
    inside.write(&ROOT, &file, Position::At(0), b"y").unwrap();
    let expected = ["created /dir", "linked /is as /dir/also Data ModifiedTime", "renamed /was to /is"];
    assert_eq!(told(&tx), expected);
}

/// The names by which the transaction met the file are gone; the one that is left was never looked at.
#[test]
fn a_file_that_is_changed_behind_a_name_that_nobody_met_is_told_there() {
    let fs = shared();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"far", MODE).unwrap();
    let file = make(&fs, &fs.root(), b"near", b"x");
    fs.link(&ROOT, &file, &dir, b"away").unwrap();
    let tx = fs.begin().unwrap();
    let inside = tx.files();
    let file = inside.lookup(&ROOT, &inside.root(), b"near").unwrap();
    inside.write(&ROOT, &file, Position::At(0), b"y").unwrap();
    assert_eq!(told(&tx), ["changed /near Data ModifiedTime"]);
    inside.unlink(&ROOT, &inside.root(), b"near").unwrap();
    assert_eq!(told(&tx), ["changed /far/away Data ModifiedTime", "deleted /near"]);
}

#[test]
fn an_open_file_without_a_name_is_told_only_as_deleted() {
    let fs = shared();
    make(&fs, &fs.root(), b"file", b"x");
    let tx = fs.begin().unwrap();
    let inside = tx.files();
    let file = inside.lookup(&ROOT, &inside.root(), b"file").unwrap();
    inside.unlink(&ROOT, &inside.root(), b"file").unwrap();
    inside.write(&ROOT, &file, Position::At(0), b"y").unwrap();
    let unnamed = inside.tmpfile(&ROOT, &inside.root(), MODE).unwrap();
    inside.write(&ROOT, &unnamed, Position::At(0), b"z").unwrap();
    assert_eq!(told(&tx), ["deleted /file"]);
}

#[test]
fn a_large_file_differs_where_it_was_written_and_where_it_grew() {
    let fs = shared();
    let file = make(&fs, &fs.root(), b"file", b"");
    fs.write(&ROOT, &file, Position::At(0), &vec![1; 3 << 20]).unwrap();
    let tx = fs.begin().unwrap();
    let inside = tx.files();
    let file = inside.lookup(&ROOT, &inside.root(), b"file").unwrap();
    inside.write(&ROOT, &file, Position::At(100_000), &vec![2; 70_000]).unwrap();
    inside.write(&ROOT, &file, Position::End, &[3; 10]).unwrap();
    let expected =
        Differing { bytes: 70_010, count: 2, ranges: vec![100_000..170_000, 3 << 20..(3 << 20) + 10] };
    assert_eq!(diff(&tx)[0].data, expected);
    assert_eq!(diff(&tx)[0].aspects(), [Aspect::Data, Aspect::Size, Aspect::ModifiedTime]);
    inside.truncate(&ROOT, &file, 1 << 20).unwrap();
    let ranges = || -> Vec<(u64, u64)> {
        diff(&tx)[0].data.ranges.iter().map(|range| (range.start, range.end)).collect()
    };
    assert_eq!(ranges(), [(100_000, 170_000)]);
    // Cleared to its end and long again: a hole is other content than what was there.
    inside.truncate(&ROOT, &file, 0).unwrap();
    inside.truncate(&ROOT, &file, 3 << 20).unwrap();
    assert_eq!(ranges(), [(0, 3 << 20)]);
}

#[test]
fn what_others_commit_meanwhile_is_not_told_and_looking_does_not_conflict() {
    let fs = shared();
    make(&fs, &fs.root(), b"theirs", b"x");
    let tx = fs.begin().unwrap();
    let inside = tx.files();
    make(inside, &inside.root(), b"mine", b"x");
    fs.write(&ROOT, &fs.lookup(&ROOT, &fs.root(), b"theirs").unwrap(), Position::At(0), b"y").unwrap();
    assert_eq!(told(&tx), ["created /mine"]);
    let replays = fs.transaction_counts().replays;
    let mut unread = tx.diff().unwrap();
    tx.commit().unwrap();
    assert_eq!(fs.transaction_counts().replays, replays, "a diff reads nothing");
    assert!(unread.all(|change| change.is_ok() || matches!(change, Err(FsError::Ended))));
    assert!(unread.next().is_none());
}
