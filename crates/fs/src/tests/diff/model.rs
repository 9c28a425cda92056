//! Random changes inside a transaction, or between snapshots: the diff against a comparison of the two whole
//! trees.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpfire_env::Timestamp;
use warpfire_meta::{SnapshotStore, Storage, Store};

use crate::acl::Caller;
use crate::tests::engine::{format, open};
use crate::tests::{TestRandom, world};
use crate::{
    Aspect, Attr, ChangeKind, FileKind, Follow, Fs, FsError, NewMode, NodeRef, PathChange, Position,
    RANGES_LISTED_MAX, RenameMode, SetAttr, SetTime, XattrMode,
};

const ROOT: Caller<'static> = Caller::ROOT;

/// Changes of up to this many bytes are compared byte by byte.
const EXACT_BYTES_MAX: u64 = 64 << 10;

/// One whole file, by number.
#[derive(Clone, PartialEq, Eq)]
struct File {
    attr: Attr,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// One whole tree.
#[derive(Default)]
struct TreePicture {
    /// By directory and name: the path, and the inode that the name refers to.
    names: BTreeMap<(u64, Vec<u8>), (PathBuf, u64)>,
    files: BTreeMap<u64, File>,
}

fn file_of<E: Storage>(fs: &Fs<E>, node: &NodeRef) -> File {
    let attr = fs.getattr(node);
    let content = match attr.kind {
        FileKind::Regular => {
            let mut content = vec![0; attr.size_bytes as usize];
            fs.read(node, 0, &mut content).unwrap();
            content
        }
        FileKind::Symlink => fs.readlink(node).unwrap(),
        _ => Vec::new(),
    };
    let names = fs.listxattr(&ROOT, node).unwrap();
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let xattrs = names.map(|name| (name.to_vec(), fs.getxattr(&ROOT, node, name).unwrap())).collect();
    File { attr, content, xattrs }
}

fn picture<E: Storage>(fs: &Fs<E>) -> TreePicture {
    let mut picture = TreePicture::default();
    let mut todo = vec![(PathBuf::from("/"), fs.root())];
    while let Some((path, node)) = todo.pop() {
        picture.files.insert(node.ino(), file_of(fs, &node));
        if node.is_dir() {
            for entry in fs.readdir(&ROOT, &node, None, usize::MAX).unwrap() {
                let below = path.join(OsStr::from_bytes(&entry.name));
                picture.names.insert((node.ino(), entry.name.to_vec()), (below.clone(), entry.ino));
                todo.push((below, fs.lookup(&ROOT, &node, &entry.name).unwrap()));
            }
        }
    }
    picture
}

/// The aspects that differ, without the times of directories, which change by themselves.
fn aspects_of(before: &File, after: &File) -> Vec<Aspect> {
    let is_dir = before.attr.kind == FileKind::Directory;
    let mut was = before.content.clone();
    was.resize(after.content.len(), 0);
    let all = [
        (Aspect::Data, was != after.content),
        (Aspect::Size, before.attr.size_bytes != after.attr.size_bytes),
        (Aspect::Mode, before.attr.mode != after.attr.mode),
        (Aspect::Owner, before.attr.uid != after.attr.uid || before.attr.gid != after.attr.gid),
        (Aspect::ModifiedTime, !is_dir && before.attr.mtime != after.attr.mtime),
        (Aspect::AccessTime, before.attr.atime != after.attr.atime),
        (Aspect::Xattrs, before.xattrs != after.xattrs),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(aspect, _)| aspect).collect()
}

/// Checks that the changes are those between the two pictures.
fn agree(changes: &[PathChange], before: &TreePicture, after: &TreePicture, what: &str) {
    let mut sorted = changes.to_vec();
    sorted.sort_by_key(|change| {
        let parts: Vec<_> = change.path.components().map(|part| part.as_os_str().to_owned()).collect();
        (parts, change.kind != ChangeKind::Deleted)
    });
    let paths = |changes: &[PathChange]| changes.iter().map(|change| change.path.clone()).collect::<Vec<_>>();
    assert_eq!(paths(changes), paths(&sorted), "{what}: in order");

    // Each removed name and each added name is listed once.
    let mut removed: BTreeMap<u64, Vec<&Path>> = BTreeMap::new();
    let mut added: BTreeMap<u64, Vec<&Path>> = BTreeMap::new();
    for (key, (path, ino)) in &before.names {
        if after.names.get(key).is_none_or(|(_, there)| there != ino) {
            removed.entry(*ino).or_default().push(path);
        }
    }
    for (key, (path, ino)) in &after.names {
        if before.names.get(key).is_none_or(|(_, there)| there != ino) {
            added.entry(*ino).or_default().push(path);
        }
    }
    let mut expected: BTreeSet<(PathBuf, &str, Option<PathBuf>)> = BTreeSet::new();
    let mut listed: BTreeSet<(PathBuf, &str, Option<PathBuf>)> = BTreeSet::new();
    for (ino, removed) in &removed {
        let added = added.get(ino).map_or(0, Vec::len);
        for path in removed.iter().skip(added) {
            expected.insert((path.to_path_buf(), "deleted", None));
        }
    }
    for (ino, added) in &added {
        let removed: &[&Path] = removed.get(ino).map_or(&[], Vec::as_slice);
        let mut paths = added.clone();
        if !before.files.contains_key(ino) {
            // The first name in order is created, the others are links to it.
            paths.sort();
            expected.insert((paths[0].to_path_buf(), "created", None));
            expected.extend(paths[1..].iter().map(|path| (path.to_path_buf(), "linked", None)));
            continue;
        }
        for (n, path) in paths.iter().enumerate() {
            let from = removed.get(n).map(|from| from.to_path_buf());
            expected.insert((path.to_path_buf(), if from.is_some() { "renamed" } else { "linked" }, from));
        }
    }
    let mut compared: BTreeMap<u64, Vec<Aspect>> = BTreeMap::new();
    for change in changes {
        let listed_as = match &change.kind {
            ChangeKind::Created => ("created", None),
            ChangeKind::Deleted => ("deleted", None),
            ChangeKind::Renamed(from) => ("renamed", Some(from.clone())),
            ChangeKind::Linked(_) => ("linked", None),
            ChangeKind::Changed => ("", None),
        };
        if !listed_as.0.is_empty() {
            assert!(
                listed.insert((change.path.clone(), listed_as.0, listed_as.1)),
                "{what}: twice: {change:?}"
            );
        }
        if let ChangeKind::Linked(Some(other)) = &change.kind {
            let ino = change.after.expect("a link stays").ino;
            let is_name = after.names.values().any(|(path, there)| path == other && *there == ino);
            assert!(is_name && *other != change.path, "{what}: another name: {change:?}");
        }
        if let (Some(was), Some(is)) = (change.before, change.after) {
            assert_eq!(was.ino, is.ino, "{what}: {change:?}");
            let there = after.names.values().any(|(path, ino)| *path == change.path && *ino == is.ino);
            assert!(there || change.path == Path::new("/"), "{what}: where it will be: {change:?}");
            let mut aspects = change.aspects();
            if is.kind == FileKind::Directory {
                aspects.retain(|aspect| *aspect != Aspect::ModifiedTime);
            }
            if change.data.bytes > EXACT_BYTES_MAX
                && !aspects_of(&before.files[&is.ino], &after.files[&is.ino]).contains(&Aspect::Data)
            {
                // The bytes were written again with the same value: a large change is not compared.
                aspects.retain(|aspect| *aspect != Aspect::Data);
            }
            assert!(
                change.kind != ChangeKind::Changed || !change.aspects().is_empty(),
                "{what}: nothing differs: {change:?}"
            );
            if !aspects.is_empty() {
                assert!(
                    compared.insert(is.ino, aspects).is_none(),
                    "{what}: a file is compared once: {change:?}"
                );
                ranges_agree(change, &before.files[&is.ino], &after.files[&is.ino], what);
            }
        }
    }
    assert_eq!(listed, expected, "{what}: names");
    let mut differing: BTreeMap<u64, Vec<Aspect>> = BTreeMap::new();
    for (ino, was) in &before.files {
        if let Some(is) = after.files.get(ino) {
            let aspects = aspects_of(was, is);
            if !aspects.is_empty() {
                differing.insert(*ino, aspects);
            }
        }
    }
    assert_eq!(compared, differing, "{what}: files");
}

fn ranges_agree(change: &PathChange, before: &File, after: &File, what: &str) {
    let mut listed = vec![false; after.content.len()];
    let ranges = &change.data.ranges;
    ranges.iter().for_each(|range| listed[range.start as usize..range.end as usize].fill(true));
    assert_eq!(change.data.count.min(RANGES_LISTED_MAX as u64), ranges.len() as u64, "{what}: {change:?}");
    if change.data.count == ranges.len() as u64 {
        assert_eq!(
            listed.iter().filter(|listed| **listed).count() as u64,
            change.data.bytes,
            "{what}: {change:?}"
        );
        for (at, byte) in after.content.iter().enumerate() {
            let same = before.content.get(at).copied().unwrap_or(0) == *byte;
            assert!(same || listed[at], "{what}: byte {at} differs: {change:?}");
        }
    }
    let xattrs = before.xattrs.keys().chain(after.xattrs.keys()).collect::<BTreeSet<_>>();
    let differing = xattrs.iter().filter(|name| before.xattrs.get(**name) != after.xattrs.get(**name));
    let differing: Vec<OsString> = differing.map(|name| OsString::from_vec(name.to_vec())).collect();
    assert_eq!(change.xattrs, (differing.len() as u64, differing), "{what}");
}

fn path(draw: &mut TestRandom) -> Vec<u8> {
    let mut path = Vec::new();
    for _ in 0..=draw.below(3) {
        path.push(b'/');
        path.push(b'a' + draw.below(4) as u8);
    }
    path
}

/// One random change, which may fail.
fn act<E: Storage>(fs: &Fs<E>, draw: &mut TestRandom) -> Result<(), FsError> {
    let mode = NewMode::exact(0o640);
    let find = |path: &[u8]| fs.resolve(&ROOT, &fs.root(), path, Follow::No);
    let place = |path: &[u8]| fs.resolve_parent(&ROOT, &fs.root(), path, Follow::No);
    let one = path(draw);
    let two = path(draw);
    let most = if draw.below(8) == 0 { 90_000 } else { 60 };
    let bytes = vec![draw.below(3) as u8; draw.below(most) as usize];
    match draw.below(20) {
        0..=2 => {
            let at = place(&one)?;
            fs.create_file(&ROOT, &at.dir, &at.name, mode, &bytes).map(drop)
        }
        3 | 4 => {
            let at = place(&one)?;
            fs.mkdir(&ROOT, &at.dir, &at.name, mode).map(drop)
        }
        5 => {
            let at = place(&one)?;
            if draw.below(2) == 0 {
                return fs.symlink(&ROOT, &at.dir, &at.name, b"target").map(drop);
            }
            fs.mknod(&ROOT, &at.dir, &at.name, FileKind::Fifo, mode, 0).map(drop)
        }
        6 => {
            let at = place(&one)?;
            let node = fs.tmpfile(&ROOT, &at.dir, mode)?;
            fs.write(&ROOT, &node, Position::At(0), &bytes)?;
            fs.link(&ROOT, &node, &at.dir, &at.name)
        }
        7 | 8 => {
            let at = place(&one)?;
            fs.unlink(&ROOT, &at.dir, &at.name)
        }
        9 => {
            let at = place(&one)?;
            fs.rmdir(&ROOT, &at.dir, &at.name)
        }
        10 | 11 => {
            let node = find(&one)?;
            let at = place(&two)?;
            fs.link(&ROOT, &node, &at.dir, &at.name)
        }
        12..=14 => {
            let from = place(&one)?;
            let to = place(&two)?;
            let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            fs.rename(&ROOT, (&from.dir, &from.name), (&to.dir, &to.name), mode[draw.below(3) as usize])
        }
        15 => fs.write(&ROOT, &find(&one)?, Position::At(draw.below(100)), &bytes).map(drop),
        16 => fs.truncate(&ROOT, &find(&one)?, draw.below(150)),
        17 => {
            let mode = (draw.below(2) == 0).then_some(0o600 + draw.below(2) as u32);
            let uid = (draw.below(3) == 0).then_some(draw.below(3) as u32);
            let mtime = (draw.below(3) == 0).then_some(SetTime::Now);
            fs.set_attributes(&ROOT, &find(&one)?, &SetAttr { mode, uid, mtime, ..SetAttr::default() })
        }
        18 => {
            let name = [&b"user.one"[..], b"user.two"][draw.below(2) as usize];
            fs.setxattr(&ROOT, &*find(&one)?, name, &bytes[..bytes.len().min(9)], XattrMode::Either)
        }
        _ => fs.removexattr(&ROOT, &*find(&one)?, b"user.one"),
    }
}

fn story<E: Storage>(fs: Fs<E>, seed: u64, upkeep: &dyn Fn(&Fs<E>, u64)) {
    let fs = Arc::new(fs);
    let mut draw = TestRandom(seed);
    for round in 0..6 {
        for _ in 0..draw.below(60) {
            let _ = act(&*fs, &mut draw);
        }
        upkeep(&fs, draw.next());
        // Both begin now. Reading inside renews no access times.
        let tx = fs.begin().unwrap();
        let untouched = fs.begin_read_only().unwrap();
        let before = picture(&**untouched.files());
        let mut points = Vec::new();
        for step in 0..draw.below(30) {
            let _ = act(&**tx.files(), &mut draw);
            match draw.below(12) {
                0 => points.push(tx.savepoint()),
                1 => points.pop().into_iter().for_each(|point| tx.roll_back(&point).unwrap()),
                2 => _ = act(&*fs, &mut draw),
                3 => upkeep(&fs, draw.next()),
                _ => {}
            }
            if draw.below(4) == 0 {
                let changes: Vec<PathChange> = tx.diff().unwrap().map(Result::unwrap).collect();
                let what = format!("seed {seed} round {round} step {step}");
                agree(&changes, &before, &picture(&**tx.files()), &what);
            }
        }
        if draw.below(2) == 0 {
            // Calls of others between may make a conflict.
            let _ = tx.commit();
        }
    }
}

#[test]
fn a_diff_agrees_with_a_comparison_of_both_trees() {
    for seed in 0..400 {
        story(world(), seed, &|_, _| {});
    }
}

#[test]
fn a_diff_agrees_wherever_the_engine_has_put_the_bytes() {
    for seed in 0..150 {
        story(open(format(), Fs::format), 5000 + seed, &|fs, draw| match draw % 5 {
            0 => fs.engine().flush().unwrap(),
            1 | 2 => _ = fs.engine().background_step().unwrap(),
            3 => fs.sync().unwrap(),
            _ => fs.engine().compact().unwrap(),
        });
    }
}

/// Without access times: diffs of snapshots do not compare them.
fn without_access_times(mut picture: TreePicture) -> TreePicture {
    for file in picture.files.values_mut() {
        file.attr.atime = Timestamp::default();
    }
    picture
}

/// Random changes, snapshots and transactions: the diffs of all pairs of snapshots, and of each and now.
fn story_of_snapshots<E>(fs: Fs<E>, seed: u64, upkeep: &dyn Fn(&Fs<E>, u64))
where
    E: Storage + SnapshotStore,
{
    let fs = Arc::new(fs);
    let mut draw = TestRandom(seed);
    let mut snapshots = Vec::new();
    for round in 0..6u64 {
        // An inode number that a transaction has drawn before the snapshot is a new file after it.
        let tx = fs.begin().unwrap();
        for _ in 0..draw.below(10) {
            let _ = act(&**tx.files(), &mut draw);
        }
        for _ in 0..draw.below(40) {
            let _ = act(&*fs, &mut draw);
        }
        let snapshot = fs.create_snapshot(format!("s{round}").as_bytes()).unwrap();
        let shown = fs.open_found_snapshot(&snapshot).unwrap();
        snapshots.push((snapshot, without_access_times(picture(&*shown))));
        drop(shown);
        let _ = tx.commit();
        for _ in 0..draw.below(20) {
            let _ = act(&*fs, &mut draw);
            if draw.below(6) == 0 {
                upkeep(&fs, draw.next());
            }
        }
        let now = without_access_times(picture(&*fs));
        for (from, (before, was)) in snapshots.iter().enumerate() {
            let ends = snapshots[from..].iter().map(|(after, is)| (Some(after), is));
            for (after, is) in ends.chain([(None, &now)]) {
                let changes = fs.diff_snapshots(before, after).unwrap();
                let changes: Vec<PathChange> = changes.map(Result::unwrap).collect();
                let what = format!("seed {seed} round {round} from {from} to {:?}", after.map(|s| s.seq));
                agree(&changes, was, is, &what);
            }
        }
        if draw.below(3) == 0 {
            let (gone, _) = snapshots.remove(draw.below(snapshots.len() as u64) as usize);
            fs.delete_snapshot(&gone.name).unwrap();
            assert!(fs.diff_snapshots(&gone, None).is_err(), "a deleted snapshot has no diff");
        }
    }
}

#[test]
fn diffs_of_snapshots_agree_with_comparisons_of_whole_trees() {
    for seed in 0..150 {
        story_of_snapshots(world(), seed, &|_, _| {});
    }
}

#[test]
fn diffs_of_snapshots_agree_wherever_the_engine_has_put_the_bytes() {
    for seed in 0..60 {
        story_of_snapshots(open(format(), Fs::format), 9000 + seed, &|fs, draw| match draw % 5 {
            0 => fs.engine().flush().unwrap(),
            1 | 2 => _ = fs.engine().background_step().unwrap(),
            3 => fs.sync().unwrap(),
            _ => fs.engine().compact().unwrap(),
        });
    }
}
