//! Reads a whole filesystem into a picture: every name, attribute and byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use warpfire_fs::acl::Caller;
use warpfire_fs::{FileKind, Fs, FsError, NodeRef, Seek};
use warpfire_meta::{SnapshotStore, Storage};

use crate::model::{FileContent, Name, Path, Picture, PictureEntry};

const ROOT: Caller<'static> = Caller::ROOT;

/// Names in one page of a listing: few, so that listings go on from page to page.
const PAGE_NAMES: usize = 7;

/// Files longer than this are read only in the ranges that `seek` reports as data.
const READ_WHOLE_BYTES: u64 = 1 << 20;

/// Bytes read at a time.
const READ_BYTES: usize = 256 << 10;

/// The picture of a filesystem.
///
/// # Errors
/// The first failure, and its path.
pub fn observe<E: Storage>(fs: &Fs<E>) -> Result<Picture, (Path, FsError)> {
    observe_below(fs, &fs.root())
}

/// As `observe`, with the pictures of all snapshots, the bookmarks and the doors of clones.
///
/// # Errors
/// As `observe`. A failure in a snapshot has the path in it.
pub fn observe_all<E: Storage + SnapshotStore>(fs: &Fs<E>) -> Result<Picture, (Path, FsError)> {
    let mut picture = observe(fs)?;
    for snapshot in fs.snapshots().map_err(|e| (Path::new(), e))? {
        let then = fs.open_snapshot(&snapshot.name).map_err(|e| (Path::new(), e))?;
        picture.snapshots.insert(snapshot.name, Arc::new(observe(&*then)?));
    }
    let bookmarks = fs.bookmarks().map_err(|e| (Path::new(), e))?;
    picture.bookmarks = bookmarks.into_iter().map(|mark| (mark.name, mark.snapshot)).collect();
    for volume in fs.volumes().map_err(|e| (Path::new(), e))? {
        let names = volume.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        picture.doors.insert(names.map(<[u8]>::to_vec).collect(), volume.origin.is_some());
    }
    Ok(picture)
}

/// Every path below a directory with its bytes; `None` for a directory. Doors are directories.
pub type Listing = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The names and bytes below a directory, of a tree with directories and files alone. The directory has the
/// empty path there.
///
/// # Errors
/// The first failure.
pub fn listing<E: Storage>(fs: &Fs<E>, top: &NodeRef) -> Result<Listing, FsError> {
    let (mut all, mut todo) = (Listing::new(), vec![(Vec::new(), top.clone())]);
    while let Some((path, dir)) = todo.pop() {
        for entry in fs.readdir(&ROOT, &dir, None, usize::MAX)? {
            let below = [&path[..], b"/", &entry.name].concat();
            if entry.kind == FileKind::Directory {
                todo.push((below, fs.lookup(&ROOT, &dir, &entry.name)?));
            } else {
                all.insert(below, Some(fs.read_file(&ROOT, &dir, &entry.name)?));
            }
        }
        all.insert(path, None);
    }
    Ok(all)
}

/// The picture of a directory and the tree below it. The directory has the empty path there.
///
/// # Errors
/// As `observe`.
pub fn observe_below<E: Storage>(fs: &Fs<E>, top: &NodeRef) -> Result<Picture, (Path, FsError)> {
    let (picture, failures) = walk(fs, top, true);
    failures.into_iter().next().map_or(Ok(picture), Err)
}

/// The picture of the readable part of a filesystem, and the failures. Paths below a failure are in neither.
pub fn observe_readable<E: Storage>(fs: &Fs<E>) -> (Picture, Vec<(Path, FsError)>) {
    walk(fs, &fs.root(), false)
}

fn walk<E: Storage>(fs: &Fs<E>, top: &NodeRef, stop: bool) -> (Picture, Vec<(Path, FsError)>) {
    let mut walk =
        TreeWalk { fs, stop, picture: Picture::default(), failures: Vec::new(), first: BTreeMap::new() };
    walk.visit(&mut Vec::new(), top);
    (walk.picture, walk.failures)
}

struct TreeWalk<'a, E: Storage> {
    fs: &'a Fs<E>,
    /// Whether the first failure ends the walk.
    stop: bool,
    picture: Picture,
    failures: Vec<(Path, FsError)>,
    first: BTreeMap<u64, Path>,
}

impl<E: Storage> TreeWalk<'_, E> {
    fn visit(&mut self, path: &mut Path, node: &NodeRef) {
        if let Err(e) = self.try_visit(path, node) {
            self.failures.push((path.clone(), e));
        }
    }

    fn try_visit(&mut self, path: &mut Path, node: &NodeRef) -> Result<(), FsError> {
        let entry = self.entry(path, node)?;
        let is_dir = entry.kind == FileKind::Directory;
        self.picture.entries.insert(path.clone(), entry);
        if !is_dir {
            return Ok(());
        }
        for name in self.names(node)? {
            if self.stop && !self.failures.is_empty() {
                break;
            }
            path.push(name.clone());
            match self.fs.lookup(&ROOT, node, &name) {
                Ok(child) => self.visit(path, &child),
                Err(e) => self.failures.push((path.clone(), e)),
            }
            path.pop();
        }
        Ok(())
    }

    fn names(&self, dir: &NodeRef) -> Result<Vec<Name>, FsError> {
        let mut names: Vec<Name> = Vec::new();
        loop {
            let page = self.fs.readdir(&ROOT, dir, names.last().map(Vec::as_slice), PAGE_NAMES)?;
            let is_last = page.len() < PAGE_NAMES;
            names.extend(page.into_iter().map(|entry| entry.name.to_vec()));
            if is_last {
                return Ok(names);
            }
        }
    }

    fn entry(&mut self, path: &Path, node: &NodeRef) -> Result<PictureEntry, FsError> {
        let attr = self.fs.getattr(node);
        let content = match attr.kind {
            FileKind::Regular => read_all(self.fs, node, attr.size_bytes)?,
            FileKind::Symlink => {
                let mut content = FileContent::default();
                content.write(0, &self.fs.readlink(node)?);
                content
            }
            _ => FileContent::default(),
        };
        let mut xattrs = BTreeMap::new();
        for name in self.fs.listxattr(&ROOT, node)?.split(|b| *b == 0).filter(|name| !name.is_empty()) {
            xattrs.insert(name.to_vec(), self.fs.getxattr(&ROOT, node, name)?);
        }
        // The first path instead of the inode's number: the model numbers nodes otherwise.
        Ok(PictureEntry {
            kind: attr.kind,
            permissions: attr.mode & 0o7777,
            owner: (attr.uid, attr.gid),
            links: attr.links,
            mtime: attr.mtime,
            ctime: attr.ctime,
            xattrs,
            content,
            same_as: self.first.entry(attr.ino).or_insert_with(|| path.clone()).clone(),
        })
    }
}

fn read_all<E: Storage>(fs: &Fs<E>, node: &NodeRef, size: u64) -> Result<FileContent, FsError> {
    let mut content = FileContent::default();
    content.truncate(size);
    let mut buf = vec![0; READ_BYTES.min(usize::try_from(size).unwrap_or(READ_BYTES))];
    let mut at = 0;
    while at < size {
        let mut end = size;
        if size > READ_WHOLE_BYTES {
            match fs.seek(node, Seek::Data, at) {
                Ok(data) => at = data,
                Err(FsError::NoSuchOffset) => break,
                Err(e) => return Err(e),
            }
            end = fs.seek(node, Seek::Hole, at)?;
        }
        let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(buf.len());
        let read = fs.read(node, at, &mut buf[..len])?;
        content.write(at, &buf[..read]);
        at += len as u64;
    }
    Ok(content)
}
