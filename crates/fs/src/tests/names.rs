//! Names: one test for each behaviour that a call promises.

use super::{TestFs, Ticking, world, world_with};
use crate::acl::{Caller, Perm};
use crate::{
    AllocMode, DirEntry, DirHandle, FileKind, Follow, Fs, FsError, FsOptions, NewMode, NodeRef, Position,
    RenameMode, SetAttr, SetTime, XattrMode,
};
use std::sync::Arc;
use warpfire_env::Timestamp;
use warpfire_meta::Store;

const ROOT: Caller<'static> = Caller::ROOT;
const ALICE: Caller<'static> = Caller { uid: 10, gid: 20, groups: &[30u32; 1], checked: false };
const BOB: Caller<'static> = Caller { uid: 11, gid: 21, groups: &[0u32; 0], checked: false };

fn mode(bits: u32) -> NewMode {
    NewMode::exact(bits)
}

fn file(fs: &TestFs, dir: &NodeRef, name: &str, data: &[u8]) -> NodeRef {
    fs.create_file(&ROOT, dir, name.as_bytes(), mode(0o644), data).unwrap();
    fs.lookup(&ROOT, dir, name.as_bytes()).unwrap()
}

fn dir(fs: &TestFs, at: &NodeRef, name: &str) -> NodeRef {
    fs.mkdir(&ROOT, at, name.as_bytes(), mode(0o755)).unwrap()
}

fn text(fs: &TestFs, node: &NodeRef) -> Vec<u8> {
    let mut buf = vec![0; 200_000];
    let len = fs.read(node, 0, &mut buf).unwrap();
    buf.truncate(len);
    buf
}

fn names(fs: &TestFs, at: &NodeRef) -> Vec<String> {
    let all = fs.readdir(&ROOT, at, None, usize::MAX).unwrap();
    all.iter().map(|e: &DirEntry| String::from_utf8(e.name.to_vec()).unwrap()).collect()
}

macro_rules! refused {
    ($call:expr, $kind:pat) => {
        match $call {
            Err($kind) => {}
            other => panic!("{} gave {:?}", stringify!($call), other.map(|_| ())),
        }
    };
}

#[test]
fn a_name_is_made_once() {
    let fs = world();
    let root = fs.root();
    file(&fs, &root, "a", b"one");
    refused!(fs.create(&ROOT, &root, b"a", mode(0o644)), FsError::Exists);
    refused!(fs.mkdir(&ROOT, &root, b"a", mode(0o755)), FsError::Exists);
    assert_eq!(fs.read_file(&ROOT, &root, b"a").unwrap(), b"one");
    assert_eq!(names(&fs, &root), ["a"]);
}

#[test]
fn names_are_bytes_within_limits() {
    let fs = world();
    let root = fs.root();
    file(&fs, &root, &"n".repeat(255), b"");
    refused!(fs.create(&ROOT, &root, &[b'n'; 256], mode(0o644)), FsError::NameTooLong);
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        refused!(fs.create(&ROOT, &root, bad, mode(0o644)), FsError::Invalid(_));
    }
}

#[test]
fn an_unlinked_file_lives_while_it_is_held() {
    let fs = world();
    let root = fs.root();
    let node = file(&fs, &root, "a", b"still here");
    fs.unlink(&ROOT, &root, b"a").unwrap();
    refused!(fs.lookup(&ROOT, &root, b"a"), FsError::NotFound);
    assert_eq!(text(&fs, &node), b"still here");
    assert_eq!(fs.getattr(&node).links, 0);
    fs.write(&ROOT, &node, Position::End, b", and more").unwrap();
    assert_eq!(text(&fs, &node), b"still here, and more");
    refused!(fs.link(&ROOT, &node, &root, b"back"), FsError::NotFound);
    assert_eq!(fs.statfs().unwrap().inodes, 2);
    drop(node);
    fs.reap().unwrap();
    assert_eq!(fs.statfs().unwrap().inodes, 1);
    assert_eq!(fs.statfs().unwrap().file_bytes, 0);
}

#[test]
fn orphans_that_a_crash_leaves_go_when_the_pool_is_opened() {
    let (engine, clock) = world_with();
    let fs = Fs::open(Arc::clone(&engine), clock.clone(), FsOptions::default()).unwrap();
    let root = fs.root();
    let node = file(&fs, &root, "a", &vec![7; 3 << 20]);
    fs.unlink(&ROOT, &root, b"a").unwrap();
    let temporary = fs.tmpfile(&ROOT, &root, mode(0o600)).unwrap();
    // The crash: nothing is dropped in order.
    fs.sync().unwrap();
    std::mem::forget((node, temporary));
    let again = Fs::open(Arc::clone(&engine), clock, FsOptions::default()).unwrap();
    assert_eq!(again.statfs().unwrap().inodes, 1);
    while engine.background_step().unwrap() {}
    assert_eq!(engine.slices_stored(), 0, "their bytes are free again");
}

#[test]
fn hard_links_share_one_inode_and_the_last_name_takes_it_away() {
    let fs = world();
    let root = fs.root();
    let node = file(&fs, &root, "a", b"x");
    let sub = dir(&fs, &root, "sub");
    fs.link(&ROOT, &node, &sub, b"b").unwrap();
    fs.link(&ROOT, &node, &root, b"c").unwrap();
    refused!(fs.link(&ROOT, &node, &root, b"a"), FsError::Exists);
    refused!(fs.link(&ROOT, &sub, &root, b"d"), FsError::NotPermitted);
    assert_eq!(fs.getattr(&node).links, 3);
    let found = fs.lookup(&ROOT, &sub, b"b").unwrap();
    assert_eq!(found.ino(), node.ino());
    drop((found, node));
    let node = fs.lookup(&ROOT, &root, b"c").unwrap();
    fs.write(&ROOT, &node, Position::At(0), b"y").unwrap();
    assert_eq!(fs.read_file(&ROOT, &sub, b"b").unwrap(), b"y");
    drop(node);
    for (at, name) in [(&root, b"a"), (&sub, b"b"), (&root, b"c")] {
        fs.unlink(&ROOT, at, name).unwrap();
    }
    assert_eq!(fs.statfs().unwrap().inodes, 2);
}

#[test]
fn a_temporary_file_gets_a_name_by_linking() {
    let fs = world();
    let root = fs.root();
    let node = fs.tmpfile(&ROOT, &root, mode(0o600)).unwrap();
    fs.write(&ROOT, &node, Position::At(0), b"made in the dark").unwrap();
    assert_eq!(fs.getattr(&node).links, 0);
    fs.link(&ROOT, &node, &root, b"a").unwrap();
    assert_eq!(fs.getattr(&node).links, 1);
    drop(node);
    fs.reap().unwrap();
    assert_eq!(fs.read_file(&ROOT, &root, b"a").unwrap(), b"made in the dark");
}

#[test]
fn a_directory_goes_only_when_it_is_empty() {
    let fs = world();
    let root = fs.root();
    let d = dir(&fs, &root, "d");
    file(&fs, &d, "a", b"");
    refused!(fs.rmdir(&ROOT, &root, b"d"), FsError::NotEmpty);
    refused!(fs.unlink(&ROOT, &root, b"d"), FsError::IsDirectory);
    refused!(fs.rmdir(&ROOT, &d, b"a"), FsError::NotDirectory);
    fs.unlink(&ROOT, &d, b"a").unwrap();
    fs.rmdir(&ROOT, &root, b"d").unwrap();
    refused!(fs.create(&ROOT, &d, b"late", mode(0o644)), FsError::NotFound);
    assert_eq!(fs.getattr(&d).links, 0);
    assert_eq!(fs.getattr(&root).links, 2);
    assert!(fs.readdir(&ROOT, &d, None, 10).unwrap().is_empty());
}

#[test]
fn a_directory_counts_its_subdirectories_and_shows_changes_at_once() {
    let fs = world();
    let root = fs.root();
    let before = fs.getattr(&root);
    let a = dir(&fs, &root, "a");
    let b = dir(&fs, &root, "b");
    assert_eq!(fs.getattr(&root).links, 4);
    assert!(fs.getattr(&root).mtime > before.mtime);
    fs.rename(&ROOT, (&root, b"b"), (&a, b"b"), RenameMode::Replace).unwrap();
    assert_eq!((fs.getattr(&root).links, fs.getattr(&a).links), (3, 3));
    fs.sync().unwrap();
    assert_eq!(fs.parent(&b).unwrap().ino(), a.ino());
    fs.rmdir(&ROOT, &a, b"b").unwrap();
    assert_eq!(fs.getattr(&a).links, 2);
}

#[test]
fn times_of_directories_survive_a_sync_and_reopening() {
    let (engine, clock) = world_with();
    let fs = Fs::open(Arc::clone(&engine), clock.clone(), FsOptions::default()).unwrap();
    let d = dir(&fs, &fs.root(), "d");
    file(&fs, &d, "a", b"");
    let shown = fs.getattr(&d);
    fs.sync().unwrap();
    drop((d, fs));
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let d = fs.lookup(&ROOT, &fs.root(), b"d").unwrap();
    assert_eq!(fs.getattr(&d), shown);
}

#[test]
fn renaming_replaces_in_one_step() {
    let fs = world();
    let root = fs.root();
    let old = file(&fs, &root, "to", b"old");
    file(&fs, &root, "from", b"new");
    refused!(fs.rename(&ROOT, (&root, b"from"), (&root, b"to"), RenameMode::NoReplace), FsError::Exists);
    fs.rename(&ROOT, (&root, b"from"), (&root, b"to"), RenameMode::Replace).unwrap();
    assert_eq!(names(&fs, &root), ["to"]);
    assert_eq!(fs.read_file(&ROOT, &root, b"to").unwrap(), b"new");
    assert_eq!(text(&fs, &old), b"old", "the node of the old file still reads it");
    assert_eq!(fs.getattr(&old).links, 0);
}

#[test]
fn renaming_follows_an_open_file() {
    let fs = world();
    let root = fs.root();
    let node = file(&fs, &root, "a", b"1");
    let d = dir(&fs, &root, "d");
    fs.rename(&ROOT, (&root, b"a"), (&d, b"b"), RenameMode::Replace).unwrap();
    fs.write(&ROOT, &node, Position::End, b"2").unwrap();
    assert_eq!(fs.read_file(&ROOT, &d, b"b").unwrap(), b"12");
    assert_eq!(fs.lookup(&ROOT, &d, b"b").unwrap().ino(), node.ino());
}

#[test]
fn renaming_between_kinds_is_refused() {
    let fs = world();
    let root = fs.root();
    file(&fs, &root, "f", b"");
    let d = dir(&fs, &root, "d");
    let e = dir(&fs, &root, "e");
    file(&fs, &e, "x", b"");
    let rename = |a: &[u8], b: &[u8]| fs.rename(&ROOT, (&root, a), (&root, b), RenameMode::Replace);
    refused!(rename(b"d", b"f"), FsError::NotDirectory);
    refused!(rename(b"f", b"d"), FsError::IsDirectory);
    refused!(rename(b"d", b"e"), FsError::NotEmpty);
    refused!(rename(b"none", b"e"), FsError::NotFound);
    rename(b"e", b"d").unwrap();
    assert_eq!(names(&fs, &root), ["d", "f"]);
    assert_eq!(fs.getattr(&root).links, 3);
    refused!(fs.create(&ROOT, &d, b"late", mode(0o644)), FsError::NotFound);
}

#[test]
fn a_directory_never_becomes_its_own_ancestor() {
    let fs = world();
    let root = fs.root();
    let a = dir(&fs, &root, "a");
    let b = dir(&fs, &a, "b");
    let c = dir(&fs, &b, "c");
    refused!(fs.rename(&ROOT, (&root, b"a"), (&c, b"x"), RenameMode::Replace), FsError::Invalid(_));
    refused!(fs.rename(&ROOT, (&root, b"a"), (&a, b"x"), RenameMode::Replace), FsError::Invalid(_));
    refused!(fs.rename(&ROOT, (&b, b"c"), (&root, b"a"), RenameMode::Exchange), FsError::Invalid(_));
    refused!(fs.rename(&ROOT, (&b, b"c"), (&root, b"a"), RenameMode::Replace), FsError::NotEmpty);
}

#[test]
fn exchanging_swaps_two_names() {
    let fs = world();
    let root = fs.root();
    let d = dir(&fs, &root, "d");
    let f = file(&fs, &d, "f", b"file");
    let e = dir(&fs, &root, "e");
    refused!(fs.rename(&ROOT, (&d, b"f"), (&root, b"none"), RenameMode::Exchange), FsError::NotFound);
    fs.rename(&ROOT, (&d, b"f"), (&root, b"e"), RenameMode::Exchange).unwrap();
    assert_eq!(fs.lookup(&ROOT, &root, b"e").unwrap().ino(), f.ino());
    assert_eq!(fs.lookup(&ROOT, &d, b"f").unwrap().ino(), e.ino());
    assert_eq!((fs.getattr(&root).links, fs.getattr(&d).links), (3, 3));
    assert_eq!(fs.parent(&e).unwrap().ino(), d.ino());
    assert_eq!(fs.read_file(&ROOT, &root, b"e").unwrap(), b"file");
}

#[test]
fn renaming_with_a_whiteout_replaces_and_leaves_a_device() {
    let fs = world();
    let root = fs.root();
    file(&fs, &root, "to", b"old");
    file(&fs, &root, "from", b"new");
    let inodes = fs.statfs().unwrap().inodes;
    fs.rename(&BOB, (&root, b"from"), (&root, b"to"), RenameMode::Whiteout).unwrap_err();
    fs.rename(&ROOT, (&root, b"from"), (&root, b"to"), RenameMode::Whiteout).unwrap();
    assert_eq!(fs.read_file(&ROOT, &root, b"to").unwrap(), b"new");
    let whiteout = fs.getattr(&fs.lookup(&ROOT, &root, b"from").unwrap());
    assert_eq!((whiteout.kind, whiteout.rdev, whiteout.mode & 0o7777), (FileKind::CharDevice, 0, 0));
    assert_eq!(fs.statfs().unwrap().inodes, inodes, "one file is gone and a whiteout has come");
    // A file with several names has its record elsewhere.
    let to = fs.lookup(&ROOT, &root, b"to").unwrap();
    fs.link(&ROOT, &to, &root, b"second").unwrap();
    fs.rename(&ROOT, (&root, b"second"), (&root, b"third"), RenameMode::Whiteout).unwrap();
    assert_eq!(names(&fs, &root), ["from", "second", "third", "to"]);
    fs.unlink(&ROOT, &root, b"second").unwrap();
    assert_eq!(fs.getattr(&to).links, 2);
}

#[test]
fn two_names_of_one_file_stay_when_one_is_renamed_to_the_other() {
    let fs = world();
    let root = fs.root();
    let node = file(&fs, &root, "a", b"");
    fs.link(&ROOT, &node, &root, b"b").unwrap();
    fs.rename(&ROOT, (&root, b"a"), (&root, b"b"), RenameMode::Replace).unwrap();
    assert_eq!(names(&fs, &root), ["a", "b"]);
    assert_eq!(fs.getattr(&node).links, 2);
}

#[test]
fn a_listing_goes_on_by_name_whatever_changes() {
    let fs = world();
    let root = fs.root();
    for i in 0..3000 {
        file(&fs, &root, &format!("n{i:05}"), b"");
    }
    let handle = fs.opendir(&ROOT, &root).unwrap();
    let first = fs.read_handle(&handle, 0, 1000).unwrap();
    assert_eq!(&first[0].1.name[..], b".");
    assert_eq!(&first[1].1.name[..], b"..");
    for i in (0..900).step_by(2) {
        fs.unlink(&ROOT, &root, format!("n{i:05}").as_bytes()).unwrap();
    }
    let mut at = first.last().unwrap().0;
    let mut seen: Vec<_> = first.into_iter().skip(2).map(|(_, e)| e.name).collect();
    loop {
        let more = fs.read_handle(&handle, at, 777).unwrap();
        let Some(last) = more.last() else { break };
        at = last.0;
        seen.extend(more.into_iter().map(|(_, e)| e.name));
    }
    let expect: Vec<_> = (0..3000).map(|i| format!("n{i:05}")).collect();
    assert!(seen.iter().map(|n| &n[..]).eq(expect.iter().map(|n| n.as_bytes())), "each name once");
    let again = fs.read_handle(&handle, 500, 1).unwrap();
    assert_eq!(&again[0].1.name[..], b"n00499", "a cookie names its place, though n00498 is gone");
}

#[test]
fn a_listing_that_may_pass_damage_is_the_usual_one_where_there_is_none() {
    let fs = world();
    let root = fs.root();
    let node = file(&fs, &root, "file", b"");
    let dir = fs.mkdir(&ROOT, &root, b"dir", mode(0o700)).unwrap();
    for name in ["a", "b", "c"] {
        file(&fs, &dir, name, b"");
    }
    for (after, max) in [(None, 10), (Some(&b"a"[..]), 1), (Some(b"c"), 10)] {
        let usual = fs.readdir(&ROOT, &dir, after, max).unwrap();
        assert_eq!(fs.readdir_past_damage(&ROOT, &dir, after, max).unwrap(), (usual, false));
    }
    refused!(fs.readdir_past_damage(&ROOT, &node, None, 10), FsError::NotDirectory);
    refused!(fs.readdir_past_damage(&BOB, &dir, None, 10), FsError::AccessDenied);
}

/// All entries that a handle lists after a cookie, in answers of up to `room` entries.
fn visited(fs: &TestFs, handle: &DirHandle, from: u64, room: usize) -> Vec<(u64, Vec<u8>, NodeRef)> {
    let mut seen: Vec<(u64, Vec<u8>, NodeRef)> = Vec::new();
    loop {
        let at = seen.last().map_or(from, |(at, ..)| *at);
        let mut count = 0;
        fs.visit_handle(handle, at, 7, &mut |cookie, name, node| {
            let full = count == room;
            if !full {
                seen.push((cookie, name.to_vec(), NodeRef::clone(node)));
                count += 1;
            }
            full
        })
        .unwrap();
        if count == 0 {
            return seen;
        }
    }
}

#[test]
fn a_listing_with_nodes_agrees_with_one_without_and_with_lookups() {
    let fs = world();
    let root = fs.root();
    let linked = file(&fs, &root, "linked", b"two names");
    fs.link(&ROOT, &linked, &root, b"other").unwrap();
    dir(&fs, &root, "directory");
    fs.symlink(&ROOT, &root, b"symbolic", b"linked").unwrap();
    for i in 0..100 {
        file(&fs, &root, &format!("n{i:05}"), &vec![1; i * 50]);
    }
    let handle = fs.opendir(&ROOT, &root).unwrap();
    let plain = fs.read_handle(&handle, 0, usize::MAX).unwrap();
    for room in [1, 7, 10, 1000] {
        let seen = visited(&fs, &handle, 0, room);
        let entry_of =
            |(at, name, node): &(u64, Vec<u8>, NodeRef)| (*at, name.clone(), node.ino(), node.kind());
        let listed = |(at, entry): &(u64, DirEntry)| (*at, entry.name.to_vec(), entry.ino, entry.kind);
        assert!(seen.iter().map(entry_of).eq(plain.iter().map(listed)), "answers of {room}");
        for (_, name, node) in &seen {
            let found = fs.lookup(&ROOT, &root, name).unwrap();
            assert!(Arc::ptr_eq(node, &found), "one node stands for {}", String::from_utf8_lossy(name));
        }
    }
}

#[test]
fn a_listing_with_nodes_shows_what_has_changed_since_it_began() {
    let fs = world();
    let root = fs.root();
    for i in 0..50 {
        file(&fs, &root, &format!("n{i:05}"), b"old");
    }
    let handle = fs.opendir(&ROOT, &root).unwrap();
    let mut visits = 0;
    fs.visit_handle(&handle, 0, 100, &mut |_, name, node| {
        visits += 1;
        if name == b"n00003" {
            // The listing has read this name already and has not made its node yet.
            let grown = fs.lookup(&ROOT, &root, b"n00010").unwrap();
            fs.write(&ROOT, &grown, Position::At(0), b"something new").unwrap();
            fs.unlink(&ROOT, &root, b"n00011").unwrap();
        }
        assert_ne!(name, b"n00011", "it was removed before it was listed");
        if name == b"n00010" {
            assert_eq!(fs.getattr(node).size_bytes, 13);
        }
        false
    })
    .unwrap();
    assert_eq!(visits, 2 + 49);
    let after = visited(&fs, &handle, 14, 5);
    assert_eq!(after[0].1, b"n00012", "the removed name keeps its cookie");
}

#[test]
fn permissions_bind_everyone_but_root() {
    let fs = world();
    let root = fs.root();
    refused!(fs.create(&ALICE, &root, b"a", mode(0o644)), FsError::AccessDenied);
    let location = fs.mkdir(&ROOT, &root, b"home", mode(0o755)).unwrap();
    fs.setattr(&ROOT, &location, &SetAttr { uid: Some(10), gid: Some(20), ..SetAttr::default() }).unwrap();
    let node = fs.create(&ALICE, &location, b"a", mode(0o640)).unwrap();
    assert_eq!((fs.getattr(&node).uid, fs.getattr(&node).gid), (10, 20));
    refused!(fs.access(&BOB, &node, Perm::READ), FsError::AccessDenied);
    refused!(fs.unlink(&BOB, &location, b"a"), FsError::AccessDenied);
    let chmod = |who, m| fs.setattr(who, &node, &SetAttr { mode: Some(m), ..SetAttr::default() });
    refused!(chmod(&BOB, 0o777), FsError::NotPermitted);
    chmod(&ALICE, 0o4755).unwrap();
    assert_eq!(fs.getattr(&node).mode, 0o104_755);
    let chown = |who, uid, gid| fs.setattr(who, &node, &SetAttr { uid, gid, ..SetAttr::default() });
    refused!(chown(&ALICE, Some(11), None), FsError::NotPermitted);
    refused!(chown(&ALICE, None, Some(21)), FsError::NotPermitted);
    chown(&ALICE, None, Some(30)).unwrap();
    assert_eq!(fs.getattr(&node).mode, 0o100_755, "a change of owner takes set-id bits away");
    fs.setattr(&ROOT, &root, &SetAttr { mode: Some(0o1777), ..SetAttr::default() }).unwrap();
    fs.create(&ALICE, &root, b"mine", mode(0o666)).unwrap();
    refused!(fs.unlink(&BOB, &root, b"mine"), FsError::NotPermitted);
    refused!(fs.rename(&BOB, (&root, b"mine"), (&root, b"his"), RenameMode::Replace), FsError::NotPermitted);
    fs.unlink(&ALICE, &root, b"mine").unwrap();
}

#[test]
fn writing_takes_special_bits_and_capabilities_away() {
    let fs = world();
    let root = fs.root();
    let node = fs.create(&ROOT, &root, b"a", mode(0o6777)).unwrap();
    fs.setxattr(&ROOT, &node, b"security.capability", b"c", XattrMode::Either).unwrap();
    fs.write(&ALICE, &node, Position::At(0), b"x").unwrap();
    assert_eq!(fs.getattr(&node).mode, 0o100_777);
    refused!(fs.getxattr(&ROOT, &node, b"security.capability"), FsError::NoAttribute);
}

#[test]
fn a_set_group_id_directory_gives_its_group_on() {
    let fs = world();
    let root = fs.root();
    let d = fs.mkdir(&ROOT, &root, b"d", mode(0o2777)).unwrap();
    fs.setattr(&ROOT, &d, &SetAttr { gid: Some(77), ..SetAttr::default() }).unwrap();
    let node = fs.create(&ALICE, &d, b"a", mode(0o644)).unwrap();
    let sub = fs.mkdir(&ALICE, &d, b"sub", mode(0o755)).unwrap();
    assert_eq!(fs.getattr(&node).gid, 77);
    assert_eq!((fs.getattr(&sub).gid, fs.getattr(&sub).mode), (77, 0o042_755));
}

#[test]
fn times_before_1970_and_after_2106_come_back() {
    let (engine, clock) = world_with();
    let fs = Fs::open(Arc::clone(&engine), clock.clone(), FsOptions::default()).unwrap();
    let node = file(&fs, &fs.root(), "a", b"");
    let early = Timestamp { seconds: -62_135_596_800, nanos: 1 };
    let late = Timestamp { seconds: 253_402_300_799, nanos: 999_999_999 };
    let set =
        SetAttr { atime: Some(SetTime::At(early)), mtime: Some(SetTime::At(late)), ..SetAttr::default() };
    fs.setattr(&ROOT, &node, &set).unwrap();
    drop((node, fs));
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let attr = fs.getattr(&fs.lookup(&ROOT, &fs.root(), b"a").unwrap());
    assert_eq!((attr.atime, attr.mtime), (early, late));
}

#[test]
fn a_read_renews_the_access_time_once_a_day_or_after_a_change() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine, Arc::<Ticking>::clone(&clock), FsOptions::default()).unwrap();
    let node = file(&fs, &fs.root(), "a", b"x");
    text(&fs, &node);
    let first = fs.getattr(&node).atime;
    assert!(first > fs.getattr(&node).mtime);
    text(&fs, &node);
    assert_eq!(fs.getattr(&node).atime, first);
    clock.skip_seconds(24 * 60 * 60);
    text(&fs, &node);
    let second = fs.getattr(&node).atime;
    assert!(second > first);
    fs.write(&ROOT, &node, Position::At(0), b"y").unwrap();
    text(&fs, &node);
    assert!(fs.getattr(&node).atime > second);
}

#[test]
fn attributes_are_kept_listed_and_removed() {
    let fs = world();
    let root = fs.root();
    let node = file(&fs, &root, "a", b"");
    let set = |name: &[u8], value: &[u8], m| fs.setxattr(&ROOT, &node, name, value, m);
    refused!(set(b"user.a", b"1", XattrMode::Replace), FsError::NoAttribute);
    set(b"user.a", b"1", XattrMode::Create).unwrap();
    refused!(set(b"user.a", b"2", XattrMode::Create), FsError::Exists);
    set(b"user.b", &vec![9; 65536], XattrMode::Either).unwrap();
    refused!(set(b"user.c", &vec![9; 65537], XattrMode::Either), FsError::ValueTooLarge);
    refused!(set(b"nowhere.c", b"", XattrMode::Either), FsError::Unsupported);
    set(b"trusted.t", b"t", XattrMode::Either).unwrap();
    assert_eq!(fs.listxattr(&ROOT, &node).unwrap(), b"trusted.t\0user.a\0user.b\0");
    assert_eq!(fs.listxattr(&ALICE, &node).unwrap(), b"user.a\0user.b\0");
    assert_eq!(fs.getxattr(&ROOT, &node, b"user.b").unwrap().len(), 65536);
    fs.removexattr(&ROOT, &node, b"user.a").unwrap();
    refused!(fs.removexattr(&ROOT, &node, b"user.a"), FsError::NoAttribute);
    refused!(fs.setxattr(&BOB, &node, b"user.x", b"", XattrMode::Either), FsError::AccessDenied);
}

#[test]
fn a_list_decides_for_the_users_it_names_and_follows_chmod() {
    use crate::acl::{Acl, AclEntry, AclTag, XATTR_ACCESS, XATTR_DEFAULT};
    let fs = world();
    let root = fs.root();
    let entry = |tag, bits| AclEntry { tag, perm: Perm::from_bits(bits) };
    let acl = Acl::new([
        entry(AclTag::Owner, 6),
        entry(AclTag::User(10), 6),
        entry(AclTag::OwningGroup, 0),
        entry(AclTag::Mask, 6),
        entry(AclTag::Other, 0),
    ])
    .unwrap();
    let node = file(&fs, &root, "a", b"");
    refused!(fs.setxattr(&ROOT, &node, XATTR_ACCESS, &[1, 0, 0, 0], XattrMode::Either), FsError::Unsupported);
    refused!(fs.setxattr(&ROOT, &node, XATTR_ACCESS, &[2, 0, 0], XattrMode::Either), FsError::Invalid(_));
    fs.setxattr(&ROOT, &node, XATTR_ACCESS, &acl.to_xattr(), XattrMode::Either).unwrap();
    assert_eq!(fs.getattr(&node).mode, 0o100_660);
    fs.access(&ALICE, &node, Perm::WRITE).unwrap();
    refused!(fs.access(&BOB, &node, Perm::READ), FsError::AccessDenied);
    fs.setattr(&ROOT, &node, &SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    refused!(fs.access(&ALICE, &node, Perm::WRITE), FsError::AccessDenied);
    fs.access(&ALICE, &node, Perm::READ).unwrap();
    let d = dir(&fs, &root, "d");
    fs.setxattr(&ROOT, &d, XATTR_DEFAULT, &acl.to_xattr(), XattrMode::Either).unwrap();
    let sub = dir(&fs, &d, "sub");
    let child = fs.create(&ROOT, &sub, b"c", NewMode { mode: 0o666, umask: 0o077 }).unwrap();
    fs.access(&ALICE, &child, Perm::WRITE).unwrap();
    refused!(fs.setxattr(&ROOT, &node, XATTR_ACCESS, b"rubbish", XattrMode::Either), FsError::Unsupported);
    fs.removexattr(&ROOT, &node, XATTR_ACCESS).unwrap();
    refused!(fs.access(&ALICE, &node, Perm::READ), FsError::AccessDenied);
}

#[test]
fn special_files_keep_their_kind_and_number() {
    let fs = world();
    let root = fs.root();
    refused!(fs.mknod(&ALICE, &root, b"d", FileKind::BlockDevice, mode(0o600), 1), FsError::NotPermitted);
    let node = fs.mknod(&ROOT, &root, b"d", FileKind::BlockDevice, mode(0o600), 0x0801).unwrap();
    assert_eq!((fs.getattr(&node).mode, fs.getattr(&node).rdev), (0o060_600, 0x0801));
    let fifo = fs.mknod(&ROOT, &root, b"f", FileKind::Fifo, mode(0o600), 9).unwrap();
    assert_eq!((fs.getattr(&fifo).mode, fs.getattr(&fifo).rdev), (0o010_600, 0));
    refused!(fs.read(&fifo, 0, &mut [0]), FsError::Invalid(_));
}

#[test]
fn paths_are_walked_through_links() {
    let fs = world();
    let root = fs.root();
    let a = dir(&fs, &root, "a");
    let f = file(&fs, &a, "f", b"found");
    fs.symlink(&ROOT, &root, b"abs", b"/a/f").unwrap();
    fs.symlink(&ROOT, &a, b"rel", b"../a/./f").unwrap();
    fs.symlink(&ROOT, &root, b"toa", b"a").unwrap();
    fs.symlink(&ROOT, &root, b"loop", b"loop").unwrap();
    let at = |path: &str| fs.resolve(&ROOT, &root, path.as_bytes(), Follow::Yes);
    for path in ["/a/f", "a//f", "abs", "/abs", "a/rel", "toa/f", "toa/../a/rel", "./a/../abs"] {
        assert_eq!(at(path).unwrap().ino(), f.ino(), "{path}");
    }
    refused!(at("loop"), FsError::SymlinkLoop);
    refused!(at("a/f/"), FsError::NotDirectory);
    refused!(at("a/f/x"), FsError::NotDirectory);
    refused!(at("nothing/x"), FsError::NotFound);
    refused!(at(""), FsError::NotFound);
    refused!(at(&"x/".repeat(2100)), FsError::NameTooLong);
    assert_eq!(at("toa/").unwrap().ino(), a.ino());
    let link = fs.resolve(&ROOT, &root, b"abs", Follow::No).unwrap();
    assert_eq!(fs.readlink(&link).unwrap(), b"/a/f");
    let new = fs.resolve_parent(&ROOT, &root, b"toa/new", Follow::Yes).unwrap();
    assert_eq!((new.dir.ino(), &new.name[..], new.node.is_none()), (a.ino(), &b"new"[..], true));
}

#[test]
fn offsets_at_the_limits_are_answered() {
    let fs = world();
    let node = file(&fs, &fs.root(), "a", b"");
    let end = i64::MAX.cast_unsigned();
    refused!(fs.write(&ROOT, &node, Position::At(end), b"x"), FsError::FileTooLarge);
    refused!(fs.write(&ROOT, &node, Position::At(u64::MAX), b"x"), FsError::FileTooLarge);
    refused!(fs.truncate(&ROOT, &node, end + 1), FsError::FileTooLarge);
    fs.write(&ROOT, &node, Position::At(end - 1), b"x").unwrap();
    assert_eq!((fs.getattr(&node).size_bytes, fs.getattr(&node).allocated_bytes), (end, 1));
    let mut buf = [9; 4];
    assert_eq!(fs.read(&node, end - 2, &mut buf).unwrap(), 2);
    assert_eq!(buf, [0, b'x', 9, 9]);
    fs.truncate(&ROOT, &node, 0).unwrap();
    assert_eq!(fs.getattr(&node).allocated_bytes, 0);
    fs.truncate(&ROOT, &node, end).unwrap();
    fs.unlink(&ROOT, &fs.root(), b"a").unwrap();
}

#[test]
fn a_range_is_inserted_into_a_file_that_is_almost_as_long_as_a_file_may_be() {
    let fs = world();
    let node = file(&fs, &fs.root(), "long", b"");
    let (page, mib) = (4096, 1 << 20);
    let size = crate::limits::FILE_BYTES_MAX - mib;
    fs.truncate(&ROOT, &node, size).unwrap();
    fs.fallocate(&ROOT, &node, AllocMode::Insert, mib, page).unwrap();
    assert_eq!(fs.getattr(&node).size_bytes, size + page);
    let refused = fs.fallocate(&ROOT, &node, AllocMode::Insert, 0, mib);
    assert!(matches!(refused, Err(FsError::FileTooLarge)), "{refused:?}");
}
