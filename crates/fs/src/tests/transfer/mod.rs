//! Streams: snapshots and the changes between them, sent from one filesystem and received by another.

mod bookmarks;
mod cuts;
mod hostile;
mod trees;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use warpfire_format::Uuid;
use warpfire_format::stream::StreamMark;
use warpfire_meta::{SnapshotStore, Storage, Store};

use super::TestRandom;
use crate::acl::{Acl, AclEntry, AclTag, Caller, Perm, XATTR_ACCESS, XATTR_DEFAULT};
use crate::{
    AllocMode, FileKind, Follow, Fs, FsError, NewMode, NodeRef, Position, ReceiveError, ReceiveTarget,
    ReceivedTree, Receiver, RenameMode, STREAM_MARK_BYTES, Seek, SendBase, SendOrder, SentStream, SetAttr,
    SetTime, SnapshotInfo, XattrMode,
};

const ROOT: Caller<'static> = Caller::ROOT;

fn pool() -> Uuid {
    Uuid::new(77).unwrap()
}

/// One file of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Pictured {
    mode: u32,
    owner: (u32, u32),
    rdev: u64,
    links: u32,
    mtime: (i64, u32),
    content: Vec<u8>,
    /// Where data and holes begin, in turn.
    holes: Vec<u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same file.
    first: Vec<u8>,
}

type Picture = BTreeMap<Vec<u8>, Pictured>;

/// The tree below a directory.
fn picture<S: Storage>(fs: &Fs<S>, top: &str) -> Picture {
    let top = fs.resolve(&ROOT, &fs.root(), top.as_bytes(), Follow::No).unwrap();
    let mut found = Picture::new();
    let mut first: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut todo = vec![(b"/".to_vec(), top)];
    while let Some((path, node)) = todo.pop() {
        let attr = fs.getattr(&node);
        let mut content = Vec::new();
        let mut holes = Vec::new();
        match attr.kind {
            FileKind::Regular => {
                content.resize(attr.size_bytes as usize, 0);
                assert_eq!(fs.read(&node, 0, &mut content).unwrap(), content.len());
                let mut at = 0;
                while let Ok(data) = fs.seek(&node, Seek::Data, at) {
                    let hole = fs.seek(&node, Seek::Hole, data).unwrap();
                    holes.extend([data, hole]);
                    at = hole;
                }
            }
            FileKind::Symlink => content = fs.readlink(&node).unwrap(),
            _ => {}
        }
        let names = fs.listxattr(&ROOT, &node).unwrap();
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let names = names.filter(|name| !name.starts_with(b"trusted.warpfire."));
        let xattrs = names.map(|name| (name.to_vec(), fs.getxattr(&ROOT, &node, name).unwrap())).collect();
        if node.is_dir() {
            for entry in fs.readdir(&ROOT, &node, None, usize::MAX).unwrap().into_iter().rev() {
                let mut below = path.clone();
                if below != b"/" {
                    below.push(b'/');
                }
                below.extend_from_slice(&entry.name);
                todo.push((below, fs.lookup(&ROOT, &node, &entry.name).unwrap()));
            }
        }
        let one = Pictured {
            mode: attr.mode,
            owner: (attr.uid, attr.gid),
            rdev: attr.rdev,
            links: attr.links,
            mtime: (attr.mtime.seconds, attr.mtime.nanos),
            content,
            holes,
            xattrs,
            first: first.entry(attr.ino).or_insert_with(|| path.clone()).clone(),
        };
        found.insert(path, one);
    }
    // Other names of a file may be outside of the tree.
    let mut links: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    found.values().for_each(|one| *links.entry(one.first.clone()).or_default() += 1);
    for one in found.values_mut().filter(|one| one.mode >> 12 != FileKind::Directory as u32) {
        one.links = links[&one.first];
    }
    found
}

/// Demands that two trees are the same.
fn same(found: &Picture, wanted: &Picture, what: &str) {
    for (path, one) in wanted {
        let shown = String::from_utf8_lossy(path);
        let Some(other) = found.get(path) else { panic!("{what}: {shown} is missing") };
        if other != one {
            let short = |one: &Pictured| Pictured { content: Vec::new(), ..one.clone() };
            assert_eq!(short(other), short(one), "{what}: {shown}");
            assert!(other.content == one.content, "{what}: content of {shown}");
        }
    }
    let extra = found.keys().find(|path| !wanted.contains_key(*path));
    assert!(extra.is_none(), "{what}: {:?} is too much", extra.map(|path| String::from_utf8_lossy(path)));
}

/// A stream, whole. The base is a snapshot or a bookmark.
fn stream<E: Storage + SnapshotStore>(fs: &Fs<E>, base: Option<&str>, snapshot: &str, root: &str) -> Vec<u8> {
    send(fs, base, snapshot, root, None).0
}

fn send<E: Storage + SnapshotStore>(
    fs: &Fs<E>,
    base: Option<&str>,
    snapshot: &str,
    root: &str,
    continued_at: Option<StreamMark>,
) -> (Vec<u8>, SentStream) {
    let bookmark = base.and_then(|base| fs.bookmark(base.as_bytes()).ok());
    let base = base.filter(|_| bookmark.is_none()).map(|base| fs.snapshot(base.as_bytes()).unwrap());
    let snapshot = fs.snapshot(snapshot.as_bytes()).unwrap();
    let order = SendOrder {
        base: base.as_ref().map(SendBase::Snapshot).or(bookmark.as_ref().map(SendBase::Bookmark)),
        root: root.as_bytes(),
        continued_at,
        ..whole_order(&snapshot)
    };
    let mut out = Vec::new();
    let sent = fs.send(&order, &mut |bytes| {
        out.extend_from_slice(bytes);
        ControlFlow::Continue(())
    });
    let sent = sent.unwrap();
    assert_eq!(sent.written_bytes, out.len() as u64);
    (out, sent)
}

/// The order to send a snapshot whole.
fn whole_order(snapshot: &SnapshotInfo) -> SendOrder<'_> {
    SendOrder {
        pool: pool(),
        snapshot,
        base: None,
        root: b"/",
        continued_at: None,
        mark_bytes: STREAM_MARK_BYTES,
    }
}

fn target(path: &str) -> ReceiveTarget {
    ReceiveTarget::new(path.as_bytes()).unwrap()
}

fn receive<E: Storage + SnapshotStore>(
    fs: &Arc<Fs<E>>,
    path: &str,
    bytes: &[u8],
) -> Result<ReceivedTree, ReceiveError> {
    let mut receiver = fs.receive(&target(path), None)?;
    receiver.feed(bytes)?;
    finish(receiver)
}

fn finish<E: Storage + SnapshotStore>(receiver: Receiver<E>) -> Result<ReceivedTree, ReceiveError> {
    receiver.finish(&|tx| tx.commit())
}

/// Draws changes of a tree.
struct Changes<'a, S: Storage> {
    fs: &'a Fs<S>,
    random: &'a mut TestRandom,
}

impl<S: Storage> Changes<'_, S> {
    fn all(&self) -> Vec<(NodeRef, Vec<u8>, NodeRef)> {
        let mut found = Vec::new();
        let mut todo = vec![self.fs.root()];
        while let Some(dir) = todo.pop() {
            for entry in self.fs.readdir(&ROOT, &dir, None, usize::MAX).unwrap() {
                let node = self.fs.lookup(&ROOT, &dir, &entry.name).unwrap();
                if node.is_dir() {
                    todo.push(NodeRef::clone(&node));
                }
                found.push((NodeRef::clone(&dir), entry.name.to_vec(), node));
            }
        }
        found
    }

    fn name(&mut self) -> Vec<u8> {
        match self.random.below(20) {
            0 => vec![0xff, 0xfe, b'a' + self.random.below(5) as u8],
            1 => vec![b'x'; 255],
            n => format!("n{}", n % 9).into_bytes(),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let longest = [10, 300, 5_000, 70_000, 300_000, 1_500_000][self.random.below(6) as usize];
        let seed = self.random.next();
        let len = self.random.below(longest) as usize;
        (0..len).map(|n| (seed.wrapping_mul(n as u64 | 1) >> 32) as u8).collect()
    }

    fn step(&mut self) -> Result<(), FsError> {
        let fs = self.fs;
        let all = self.all();
        let mut dirs: Vec<NodeRef> = all
            .iter()
            .filter(|(_, _, node)| node.is_dir())
            .map(|(_, _, node)| NodeRef::clone(node))
            .collect();
        dirs.push(fs.root());
        let dir = NodeRef::clone(&dirs[self.random.below(dirs.len() as u64) as usize]);
        let name = self.name();
        let draw = self.random.below(26);
        if draw < 9 || all.is_empty() {
            let bytes = self.bytes();
            return match draw {
                0 | 1 => fs.mkdir(&ROOT, &dir, &name, NewMode::exact(0o755)).map(drop),
                2 => fs.symlink(&ROOT, &dir, &name, b"/some/where").map(drop),
                3 => fs.mknod(&ROOT, &dir, &name, FileKind::Fifo, NewMode::exact(0o600), 0).map(drop),
                4 => fs
                    .mknod(&ROOT, &dir, &name, FileKind::CharDevice, NewMode::exact(0o600), 0x0105)
                    .map(drop),
                _ => fs.create_file(&ROOT, &dir, &name, NewMode::exact(0o4751), &bytes).map(drop),
            };
        }
        let (parent, old, node) = &all[self.random.below(all.len() as u64) as usize];
        let offset = self.random.below(2_000_000);
        match draw {
            9 | 10 => fs.link(&ROOT, node, &dir, &name),
            11..=14 => fs.rename(&ROOT, (parent, old), (&dir, &name), RenameMode::Replace),
            15 => {
                let (other, swapped, _) = &all[self.random.below(all.len() as u64) as usize];
                fs.exchange(&ROOT, (parent, old), (other, swapped))
            }
            16 if node.is_dir() => fs.rmdir(&ROOT, parent, old),
            16 => fs.unlink(&ROOT, parent, old),
            17 => {
                let value = self.bytes();
                fs.setxattr(&ROOT, node, b"trusted.t", &value[..value.len().min(900)], XattrMode::Either)
            }
            18 => fs.removexattr(&ROOT, node, b"trusted.t"),
            19 => {
                let entry = |tag, perm| AclEntry { tag, perm };
                let list = Acl::new([
                    entry(AclTag::Owner, Perm::READ),
                    entry(AclTag::User(1234), Perm::WRITE),
                    entry(AclTag::OwningGroup, Perm::READ),
                    entry(AclTag::Mask, Perm::READ),
                    entry(AclTag::Other, Perm::NONE),
                ]);
                let which =
                    if node.is_dir() && self.random.below(2) == 0 { XATTR_DEFAULT } else { XATTR_ACCESS };
                fs.setxattr(&ROOT, node, which, &list.unwrap().to_xattr(), XattrMode::Either)
            }
            20 => {
                let time = warpfire_env::Timestamp { seconds: -(offset as i64), nanos: 123_456_789 };
                let set = SetAttr {
                    mode: (node.kind() != FileKind::Symlink).then_some(0o2770),
                    uid: Some(offset as u32),
                    gid: Some(7),
                    mtime: Some(SetTime::At(time)),
                    ..SetAttr::default()
                };
                fs.set_attributes(&ROOT, node, &set)
            }
            21 => fs.truncate(&ROOT, node, offset),
            22 => fs.fallocate(&ROOT, node, AllocMode::PunchHole, offset / 2, 100_000),
            23 => {
                let (_, _, other) = &all[self.random.below(all.len() as u64) as usize];
                fs.copy_range(&ROOT, (other, 0), (node, 0), u64::MAX >> 1).map(drop)
            }
            _ => {
                let bytes = self.bytes();
                fs.write(&ROOT, node, Position::At(offset / 3), &bytes).map(drop)
            }
        }
    }

    /// Makes changes; those that are not allowed have no effect.
    fn make(&mut self, count: u64) {
        for _ in 0..count {
            match self.step() {
                Ok(()) => {}
                Err(FsError::NoSpace | FsError::Damaged { .. } | FsError::Unknown(_)) => {
                    panic!("a healthy pool")
                }
                Err(_) => {}
            }
        }
    }
}

/// The marks in a stream, with their places.
fn marks(stream: &[u8]) -> Vec<(usize, StreamMark)> {
    use warpfire_format::stream::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};
    let mut found = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        let head: &[u8; FRAME_HEADER_BYTES] = stream[at..].first_chunk().unwrap();
        let header = FrameHeader::decode(head).unwrap();
        let end = at + FRAME_HEADER_BYTES + header.payload_bytes;
        if header.kind == FrameKind::Mark {
            found.push((at, StreamMark::decode(&stream[at + FRAME_HEADER_BYTES..end]).unwrap()));
        }
        at = end;
    }
    found
}

/// Makes everything in the store stay where it is, or move, as upkeep does.
fn upkeep<E: Store>(engine: &E, random: &mut TestRandom) {
    for _ in 0..random.below(30) {
        engine.background_step().unwrap();
    }
}
