//! The calls of a transaction as its journal describes them: by their names, the files that they are about,
//! and the memory that they take.

use std::sync::Arc;

use super::{Engine, TestFs, world_with};
use crate::acl::{Caller, Perm};
use crate::names::DirHandle;
use crate::{
    AllocMode, Follow, Fs, FsOptions, InsertSource, NewMode, NodeRef, Position, RenameMode, Seek, SetAttr,
    TxFs, XattrMode,
};

const MODE: NewMode = NewMode { mode: 0o755, umask: 0 };

/// Groups of the caller, which a journal keeps.
const GROUPS: [u32; 5] = [1, 2, 3, 4, 5];
const CALLER: Caller<'static> = Caller { uid: 0, gid: 0, groups: &GROUPS, checked: false };
const OF_CALLER: usize = size_of::<[u32; 5]>();

/// A name that takes memory of its own: as much as it is long, because that is a power of two.
const LONG: [u8; 128] = [b'n'; 128];

/// The form of a call in the journal.
#[derive(PartialEq, Eq, Debug)]
struct Recorded {
    call: &'static str,
    file: u64,
    name: Vec<u8>,
    heap_bytes: usize,
    content_bytes: usize,
    /// The file that a pure read reads, and its range.
    reads: Option<(u64, Option<(u64, u64)>)>,
}

/// The last call that `make` makes in a transaction.
fn recorded(fs: &Arc<TestFs>, make: impl Fn(&TxFs<Engine>, &dyn Fn(&str) -> NodeRef)) -> Recorded {
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    // Found before the call of the test, and not counted.
    let nodes = ["file", "other", "dir", "link"]
        .map(|name| (name, tx_fs.lookup(&CALLER, &tx_fs.root(), name.as_bytes()).unwrap()));
    let node = |wanted: &str| NodeRef::clone(&nodes.iter().find(|(name, _)| *name == wanted).unwrap().1);
    let count = |tx_fs: &TxFs<Engine>| {
        tx_fs.call_gate.enter().journal().unwrap().entries().expect("the journal is complete").len()
    };
    let before = count(tx_fs);
    make(tx_fs, &node);
    assert!(count(tx_fs) > before, "the call is recorded");
    let mut guard = tx_fs.call_gate.enter();
    let operation = &guard.journal().unwrap().entries().unwrap().last().unwrap().operation;
    let (file, name) = operation.subject();
    Recorded {
        call: operation.name(),
        file,
        name: name.to_vec(),
        heap_bytes: operation.heap_bytes(),
        content_bytes: operation.content_bytes(),
        reads: operation.pure_read().map(|read| (read.ino, read.bytes)),
    }
}

/// A filesystem with the files of [`recorded`], and names as long as [`LONG`].
fn filled() -> Arc<TestFs> {
    let (engine, clock) = world_with();
    let fs = Arc::new(Fs::open(engine, clock, FsOptions::default()).unwrap());
    let root = fs.root();
    for name in [&b"file"[..], b"other", &LONG] {
        fs.create_file(&CALLER, &root, name, MODE, &[7; 1000]).unwrap();
    }
    fs.mkdir(&CALLER, &root, b"dir", MODE).unwrap();
    fs.symlink(&CALLER, &root, b"link", b"file").unwrap();
    let file = fs.lookup(&CALLER, &root, b"file").unwrap();
    fs.setxattr(&CALLER, &file, &xattr(), b"1", XattrMode::Either).unwrap();
    fs
}

/// The name of an extended attribute, as long as [`LONG`].
fn xattr() -> Vec<u8> {
    [b"user.", &LONG[5..]].concat()
}

fn ino(fs: &Arc<TestFs>, name: &str) -> u64 {
    fs.lookup(&CALLER, &fs.root(), name.as_bytes()).unwrap().ino()
}

/// Calls about a name in the root directory.
#[test]
fn calls_about_a_name_are_described_by_directory_and_name() {
    let fs = filled();
    let root = fs.root().ino();
    type Call<'a> = (&'static str, usize, &'a dyn Fn(&TxFs<Engine>, &dyn Fn(&str) -> NodeRef));
    let replace = RenameMode::Replace;
    let to = [b't'; LONG.len()];
    let calls: [Call<'_>; 10] = [
        ("look up", LONG.len(), &|fs, _| _ = fs.lookup(&CALLER, &fs.root(), &LONG).unwrap()),
        ("look up", LONG.len(), &|fs, _| {
            _ = fs.resolve(&CALLER, &fs.root(), &LONG, Follow::Yes).unwrap();
        }),
        ("unlink", LONG.len(), &|fs, _| fs.unlink(&CALLER, &fs.root(), &LONG).unwrap()),
        ("remove a directory", LONG.len(), &|fs, _| {
            fs.rmdir(&CALLER, &fs.root(), &LONG).unwrap_err();
        }),
        ("rename", LONG.len() + to.len(), &|fs, _| {
            fs.rename(&CALLER, (&fs.root(), &LONG), (&fs.root(), &to), replace).unwrap();
        }),
        ("exchange", LONG.len() + LONG.len(), &|fs, _| {
            fs.exchange(&CALLER, (&fs.root(), &LONG), (&fs.root(), &LONG)).unwrap();
        }),
        ("create", LONG.len(), &|fs, _| {
            fs.create_file(&CALLER, &fs.root(), &LONG, MODE, b"").unwrap_err();
        }),
        ("make a directory", LONG.len(), &|fs, _| {
            fs.mkdir(&CALLER, &fs.root(), &LONG, MODE).unwrap_err();
        }),
        ("link", LONG.len(), &|fs, node| {
            fs.link(&CALLER, &node("file"), &fs.root(), &LONG).unwrap_err();
        }),
        ("read", LONG.len(), &|fs, _| _ = fs.read_file(&CALLER, &fs.root(), &LONG).unwrap()),
    ];
    for (call, of_names, make) in calls {
        let found = recorded(&fs, make);
        let heap_bytes = OF_CALLER + of_names;
        let name = LONG.to_vec();
        let expected = Recorded { call, file: root, name, heap_bytes, content_bytes: 0, reads: None };
        assert_eq!(found, expected);
    }
}

#[test]
fn a_file_that_is_made_with_its_content_is_described_with_that() {
    let fs = filled();
    let found = recorded(&fs, |fs, _| {
        fs.create_file(&CALLER, &fs.root(), b"new", MODE, b"abc").unwrap();
    });
    assert_eq!((found.call, found.content_bytes), ("create", 3));
}

/// Calls about one file or directory itself.
#[test]
fn calls_about_a_file_are_described_by_its_number() {
    let fs = filled();
    let (root, file, dir, link) = (fs.root().ino(), ino(&fs, "file"), ino(&fs, "dir"), ino(&fs, "link"));
    let xattr = xattr();
    let of_xattr = xattr.len();
    let handle_of = |fs: &TxFs<Engine>| -> DirHandle { fs.opendir(&Caller::ROOT, &fs.root()).unwrap() };
    let all = |ino| Some((ino, None));
    type Call<'a> = (
        &'static str,
        (u64, usize, Option<(u64, Option<(u64, u64)>)>),
        &'a dyn Fn(&TxFs<Engine>, &dyn Fn(&str) -> NodeRef),
    );
    let calls: [Call<'_>; 23] = [
        ("look up the parent", (dir, 0, None), &|fs, node| _ = fs.parent(&node("dir")).unwrap()),
        ("open again", (root, 0, None), &|fs, node| _ = fs.find_again(&node("file").place()).unwrap()),
        ("create", (dir, OF_CALLER, None), &|fs, node| _ = fs.tmpfile(&CALLER, &node("dir"), MODE).unwrap()),
        ("list", (root, OF_CALLER + LONG.len(), None), &|fs, _| {
            _ = fs.readdir(&CALLER, &fs.root(), Some(&LONG), 5).unwrap();
        }),
        ("read extended attributes", (file, OF_CALLER + of_xattr, all(file)), &|fs, node| {
            _ = fs.getxattr(&CALLER, &node("file"), &xattr).unwrap();
        }),
        ("read extended attributes", (file, OF_CALLER, all(file)), &|fs, node| {
            _ = fs.listxattr(&CALLER, &node("file")).unwrap();
        }),
        ("set extended attributes", (file, OF_CALLER + of_xattr + 2, None), &|fs, node| {
            fs.setxattr(&CALLER, &node("file"), &xattr, b"22", XattrMode::Replace).unwrap();
        }),
        ("set extended attributes", (file, OF_CALLER + of_xattr, None), &|fs, node| {
            fs.removexattr(&CALLER, &node("file"), &xattr).unwrap();
        }),
        ("read attributes", (file, 0, all(file)), &|fs, node| _ = fs.getattr(&node("file"))),
        ("read permissions", (file, 0, all(file)), &|fs, node| _ = fs.permissions(&node("file"))),
        ("read a link", (link, 0, all(link)), &|fs, node| _ = fs.readlink(&node("link")).unwrap()),
        ("set attributes", (file, OF_CALLER, None), &|fs, node| {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            _ = fs.setattr(&CALLER, &node("file"), &set).unwrap();
        }),
        ("check permission", (file, OF_CALLER, all(file)), &|fs, node| {
            fs.access(&CALLER, &node("file"), Perm::READ).unwrap();
        }),
        ("seek", (file, 0, all(file)), &|fs, node| _ = fs.seek(&node("file"), Seek::Data, 0).unwrap()),
        ("allocate", (file, OF_CALLER, None), &|fs, node| {
            fs.fallocate(&CALLER, &node("file"), AllocMode::PunchHole, 0, 10).unwrap();
        }),
        ("read", (file, size_of::<(u64, usize)>(), Some((file, Some((3, 13))))), &|fs, node| {
            fs.read(&node("file"), 3, &mut [0; 10]).map(drop).unwrap();
        }),
        ("write", (file, OF_CALLER, None), &|fs, node| {
            fs.write(&CALLER, &node("file"), Position::At(0), b"abc").map(drop).unwrap();
        }),
        ("overwrite", (file, OF_CALLER, None), &|fs, node| {
            fs.overwrite(&CALLER, &node("file"), b"abc").unwrap();
        }),
        ("truncate", (file, OF_CALLER, None), &|fs, node| {
            fs.truncate(&CALLER, &node("file"), 5).unwrap();
        }),
        ("copy a range", (file, OF_CALLER, None), &|fs, node| {
            fs.copy_range(&CALLER, (&node("other"), 0), (&node("file"), 0), 10).map(drop).unwrap();
        }),
        ("insert a range", (file, OF_CALLER, None), &|fs, node| {
            fs.insert_range(&CALLER, &node("file"), 5, InsertSource::Hole(10)).unwrap();
        }),
        ("remove a range", (file, OF_CALLER, None), &|fs, node| {
            fs.remove_range(&CALLER, &node("file"), 5, 10).map(drop).unwrap();
        }),
        ("list", (root, 0, None), &|fs, _| {
            let handle = handle_of(fs);
            fs.read_handle(&handle, 2, 5).map(drop).unwrap();
        }),
    ];
    for (call, (file, heap_bytes, reads), make) in calls {
        let found = recorded(&fs, make);
        let name = if call == "open again" { b"file".to_vec() } else { Vec::new() };
        // Both write three bytes.
        let content_bytes = if ["write", "overwrite"].contains(&call) { 3 } else { 0 };
        let expected = Recorded { call, file, name, heap_bytes, content_bytes, reads };
        assert_eq!(found, expected);
    }
}

/// Calls with a slice keep its bytes, if they are short, and the slices of several files.
#[test]
fn calls_with_slices_are_described_with_their_bytes() {
    let fs = filled();
    let file = ino(&fs, "file");
    let described = |make: &dyn Fn(&TxFs<Engine>, &NodeRef, &crate::YankedSlice)| {
        let found = recorded(&fs, |fs, node| {
            let slice = fs.yank(&node("other"), 0, 100).unwrap();
            make(fs, &node("file"), &slice);
        });
        assert_eq!((found.file, found.name, found.reads), (file, Vec::new(), None), "{}", found.call);
        (found.call, found.heap_bytes, found.content_bytes)
    };
    let pasted = described(&|fs, file, slice| {
        fs.paste(&CALLER, file, Position::End, slice).map(drop).unwrap();
    });
    let (call, heap_bytes, content_bytes) = pasted;
    assert_eq!((call, content_bytes), ("paste", 100));
    assert!(heap_bytes > OF_CALLER, "the pieces of the slice");
    let inserted = described(&|fs, file, slice| {
        fs.insert_range(&CALLER, file, 5, InsertSource::Slice(slice)).unwrap();
    });
    assert_eq!(inserted, ("insert a range", heap_bytes, content_bytes));
    let replaced = described(&|fs, file, slice| fs.replace_content(&CALLER, file, slice).map(drop).unwrap());
    assert_eq!(replaced, ("replace content", heap_bytes, content_bytes));
    let yanked = described(&|fs, file, _| _ = fs.yank(file, 0, 100).unwrap());
    assert_eq!(yanked, ("yank", heap_bytes - OF_CALLER, content_bytes));
}
