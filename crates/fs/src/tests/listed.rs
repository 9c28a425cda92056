//! Attributes of listed files: whatever has happened since the listing, they are those of a search.

use std::sync::Arc;

use warpfire_meta::Storage;

use super::{TestRandom, world, world_with};
use crate::acl::Caller;
use crate::{Fs, FsError, FsOptions, ListedFile, NewMode, NodeRef, Position, RenameMode, SetAttr, SetTime};

const ROOT: Caller<'static> = Caller::ROOT;
const ALICE: Caller<'static> = Caller { uid: 10, gid: 20, groups: &[], checked: false };

fn list<E: Storage>(fs: &Fs<E>, dir: &NodeRef) -> Vec<ListedFile> {
    fs.list_files(&ROOT, dir, None, usize::MAX).unwrap()
}

/// One change of few names, of any kind that moves a record or changes it.
fn change<E: Storage>(fs: &Fs<E>, draw: &mut TestRandom) -> Result<(), FsError> {
    let root = fs.root();
    let dirs = [NodeRef::clone(&root), fs.lookup(&ROOT, &root, b"dir")?];
    let mut at = || (draw.below(2) as usize, [b'a' + draw.below(5) as u8]);
    let ((dir, name), (to_dir, to)) = (at(), at());
    let (dir, to_dir, mode) = (&dirs[dir], &dirs[to_dir], NewMode::exact(0o644));
    let found = || fs.lookup(&ROOT, dir, &name);
    let set = |set: SetAttr| fs.setattr(&ROOT, &found()?, &set).map(|_| ());
    match draw.below(13) {
        0..=3 => fs.create_file(&ROOT, dir, &name, mode, b"x").map(|_| ()),
        4 => fs.unlink(&ROOT, dir, &name),
        5 => fs.rename(&ROOT, (dir, &name), (to_dir, &to), RenameMode::Replace),
        6 => fs.rename(&ROOT, (dir, &name), (to_dir, &to), RenameMode::Exchange),
        7 => fs.link(&ROOT, &found()?, to_dir, &to),
        8 => fs.write(&ROOT, &found()?, Position::End, b"more").map(|_| ()),
        9 => fs.read(&found()?, 0, &mut [0; 10]).map(|_| ()),
        10 => set(SetAttr { mode: Some(0o600 + draw.below(8) as u32), ..SetAttr::default() }),
        11 => set(SetAttr { size_bytes: Some(draw.below(9000)), ..SetAttr::default() }),
        _ => set(SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }),
    }
}

#[test]
fn attributes_of_old_listings_are_those_of_a_search() {
    for seed in 0..20 {
        let fs = Arc::new(world());
        let root = fs.root();
        // A rollback leaves it where it is.
        let dir = fs.mkdir(&ROOT, &root, b"dir", NewMode::exact(0o755)).unwrap();
        let mut draw = TestRandom(seed);
        let mut listings: Vec<(&NodeRef, Vec<ListedFile>)> = Vec::new();
        fs.create_snapshot(b"empty").unwrap();
        for step in 0..150 {
            match draw.below(40) {
                0..=3 => {
                    let tx = fs.begin().unwrap();
                    for _ in 0..=draw.below(4) {
                        let _ = change(tx.files(), &mut draw);
                    }
                    tx.commit().unwrap();
                }
                4 if step > 20 => {
                    let kept = format!("before {step}");
                    fs.roll_back(b"empty", kept.as_bytes(), &mut |_| ()).map(drop).unwrap();
                }
                _ => {
                    for _ in 0..=draw.below(4) {
                        let _ = change(&*fs, &mut draw);
                    }
                }
            }
            let listed = if draw.below(2) == 0 { &root } else { &dir };
            listings.push((listed, list(&fs, listed)));
            if listings.len() > 6 {
                listings.remove(draw.below(7) as usize);
            }
            for (at, files) in &listings {
                for file in files {
                    let searched = fs.lookup(&ROOT, at, &file.entry.name).map(|node| fs.getattr(&node));
                    let told = fs.attributes_now(&ROOT, at, file);
                    match (told, searched) {
                        (Ok(told), Ok(searched)) => assert_eq!(told, searched, "seed {seed}, step {step}"),
                        (Err(FsError::NotFound), Err(FsError::NotFound)) => {}
                        (told, searched) => panic!("seed {seed}, step {step}: {told:?}, {searched:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn who_may_not_search_the_directory_gets_no_attributes() {
    let fs = world();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"dir", NewMode::exact(0o744)).unwrap();
    fs.create_file(&ROOT, &dir, b"file", NewMode::exact(0o644), b"x").unwrap();
    let files = fs.list_files(&ALICE, &dir, None, 10).unwrap();
    assert_eq!(files[0].entry.name[..], b"file"[..]);
    assert!(matches!(fs.attributes_now(&ALICE, &dir, &files[0]), Err(FsError::AccessDenied)));
    fs.setattr(&ROOT, &dir, &SetAttr { mode: Some(0o711), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.attributes_now(&ALICE, &dir, &files[0]).unwrap().size_bytes, 1);
    assert!(matches!(fs.list_files(&ALICE, &dir, None, 10), Err(FsError::AccessDenied)));
    let file = fs.lookup(&ROOT, &dir, b"file").unwrap();
    assert!(matches!(fs.list_files(&ROOT, &file, None, 10), Err(FsError::NotDirectory)));
}

#[test]
fn attributes_that_a_transaction_has_listed_are_a_read_of_it() {
    let (engine, clock) = world_with();
    let fs = Arc::new(Fs::open(engine, clock, FsOptions::default()).unwrap());
    fs.create_file(&ROOT, &fs.root(), b"file", NewMode::exact(0o644), b"x").unwrap();
    let tx = fs.begin().unwrap();
    let files = list(tx.files(), &tx.files().root());
    let seen = tx.files().attributes_now(&ROOT, &tx.files().root(), &files[0]).unwrap();
    tx.files().create_file(&ROOT, &tx.files().root(), b"new", NewMode::exact(0o644), b"").unwrap();
    let file = fs.lookup(&ROOT, &fs.root(), b"file").unwrap();
    fs.write(&ROOT, &file, Position::End, b"more").unwrap();
    assert_eq!(seen.size_bytes, 1);
    assert!(matches!(tx.commit(), Err(FsError::Conflict { .. })));
}
