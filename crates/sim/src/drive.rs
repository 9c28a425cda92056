//! Does operations on the product, by path and as user 0.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use warpfire_fs::acl::Caller;
use warpfire_fs::{
    AllocMode, Attr, CloneSource, FileKind, Fs, FsError, NewMode, NodeRef, Position, RenameMode, SetAttr,
    SetTime, XattrMode, YankedSlice,
};
use warpfire_meta::{MetaError, SnapshotStore, Storage, Store};

use crate::model::{Errno, Name, OpOutput, Path, Stat};
use crate::op::{Op, Slot, Span};

const ROOT: Caller<'static> = Caller::ROOT;

/// Does an operation, and returns its output and the value that it yanked. Operations on transactions, on
/// slots and on the session itself do nothing here: the session does them.
///
/// # Errors
/// The error of the filesystem.
pub fn drive<E: Storage>(
    fs: &Fs<E>,
    op: &Op,
    values: &BTreeMap<Slot, YankedSlice>,
) -> Result<(OpOutput, Option<YankedSlice>), FsError> {
    // Each path is looked up anew, as by a program without open files: the model has no handles.
    let output = match op {
        Op::Write(path, offset, fill) => {
            OpOutput::Number(fs.write(&ROOT, &node(fs, path)?, Position::At(*offset), &fill.bytes())?)
        }
        Op::Append(path, fill) => {
            OpOutput::Number(fs.write(&ROOT, &node(fs, path)?, Position::End, &fill.bytes())?)
        }
        Op::CopyRange(from, span, to, at) => {
            let from = node(fs, from)?;
            let to = node(fs, to)?;
            OpOutput::Number(fs.copy_range(&ROOT, (&from, span.offset), (&to, *at), span.len)?)
        }
        Op::Paste(slot, path, at) => {
            let value = values.get(slot).expect("only a slot with a value is pasted");
            let position = at.map_or(Position::End, Position::At);
            OpOutput::Number(fs.paste(&ROOT, &node(fs, path)?, position, value)?)
        }
        Op::Yank(path, span, _) => {
            let value = fs.yank(&node(fs, path)?, span.offset, span.len)?;
            let mut bytes = vec![0; usize::try_from(value.len_bytes()).expect("values are short")];
            fs.read_yanked_slice(&value, 0, &mut bytes)?;
            return Ok((OpOutput::Bytes(bytes), Some(value)));
        }
        Op::Read(path, span) => {
            let mut bytes = vec![0; usize::try_from(span.len).expect("reads are short")];
            let len = fs.read(&node(fs, path)?, span.offset, &mut bytes)?;
            bytes.truncate(len);
            OpOutput::Bytes(bytes)
        }
        Op::List(path) => {
            let entries = fs.readdir(&ROOT, &node(fs, path)?, None, usize::MAX)?;
            OpOutput::Names(entries.iter().map(|entry| (entry.name.to_vec(), entry.kind)).collect())
        }
        Op::Stat(path) => OpOutput::Stat(stat(&fs.getattr(&*node(fs, path)?))),
        Op::SetMode(path, mode) => set(fs, path, &SetAttr { mode: Some(*mode), ..SetAttr::default() })?,
        Op::SetOwner(path, uid, gid) => {
            set(fs, path, &SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })?
        }
        _ => {
            change(fs, op)?;
            OpOutput::Nothing
        }
    };
    Ok((output, None))
}

/// Does an operation that returns only its success.
fn change<E: Storage>(fs: &Fs<E>, op: &Op) -> Result<(), FsError> {
    match op {
        // Modes are exact, without a umask: the model has none.
        Op::Create(path) => {
            let (dir, name) = place(fs, path)?;
            fs.create(&ROOT, &dir, name, NewMode::exact(0o644)).map(drop)
        }
        Op::Put(path, fill) => {
            let (dir, name) = place(fs, path)?;
            fs.create_file(&ROOT, &dir, name, NewMode::exact(0o644), &fill.bytes()).map(drop)
        }
        Op::Mkdir(path) => {
            let (dir, name) = place(fs, path)?;
            fs.mkdir(&ROOT, &dir, name, NewMode::exact(0o755)).map(drop)
        }
        Op::Symlink(path, target) => {
            let (dir, name) = place(fs, path)?;
            fs.symlink(&ROOT, &dir, name, target).map(drop)
        }
        Op::Mkfifo(path) => {
            let (dir, name) = place(fs, path)?;
            fs.mknod(&ROOT, &dir, name, FileKind::Fifo, NewMode::exact(0o644), 0).map(drop)
        }
        Op::AppendBlindly(path, fill) => fs.append(&ROOT, &node(fs, path)?, &fill.bytes()),
        Op::Truncate(path, size) => fs.truncate(&ROOT, &node(fs, path)?, *size),
        Op::Allocate(path, span) => allocate(fs, path, AllocMode::Allocate, *span),
        Op::Punch(path, span) => allocate(fs, path, AllocMode::PunchHole, *span),
        Op::Insert(path, span) => allocate(fs, path, AllocMode::Insert, *span),
        Op::Collapse(path, span) => allocate(fs, path, AllocMode::Collapse, *span),
        Op::Link(from, to) => {
            let from = node(fs, from)?;
            let (dir, name) = place(fs, to)?;
            fs.link(&ROOT, &from, &dir, name)
        }
        Op::Unlink(path) => {
            let (dir, name) = place(fs, path)?;
            fs.unlink(&ROOT, &dir, name)
        }
        Op::Rmdir(path) => {
            let (dir, name) = place(fs, path)?;
            fs.rmdir(&ROOT, &dir, name)
        }
        Op::Rename(from, to, mode) => rename(fs, from, to, *mode),
        Op::SetTime(path, seconds) => {
            let time = warpfire_env::Timestamp { seconds: *seconds, nanos: 0 };
            let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
            fs.set_attributes(&ROOT, &node(fs, path)?, &set)
        }
        Op::SetXattr(path, name, fill) => {
            fs.setxattr(&ROOT, &*node(fs, path)?, name, &fill.bytes(), XattrMode::Either)
        }
        Op::RemoveXattr(path, name) => fs.removexattr(&ROOT, &*node(fs, path)?, name),
        Op::Fsync(path) => fs.fsync(&node(fs, path)?),
        Op::Sync => fs.sync(),
        Op::Background(steps) => background(fs.engine().as_ref(), *steps),
        _ => Ok(()),
    }
}

/// Does a rollback, or an operation on bookmarks and clones.
///
/// # Errors
/// The error of the filesystem.
pub(crate) fn change_pool<E: Storage + SnapshotStore>(fs: &Fs<E>, op: &Op) -> Result<(), FsError> {
    match op {
        Op::RollBack(snapshot, kept) => fs.roll_back(snapshot, kept, &mut |_| ()).map(drop),
        Op::Bookmark(snapshot, name) => fs.create_bookmark(snapshot, name).map(drop),
        Op::DropBookmark(name) => fs.delete_bookmark(name).map(drop),
        Op::Clone(source, door) => {
            let source = node(fs, source)?;
            let (dir, name) = place(fs, door)?;
            fs.clone_directory(CloneSource::Directory(&source), &dir, name).map(drop)
        }
        Op::Detach(door) => {
            let path: Vec<u8> = door.iter().flat_map(|name| [b"/", &name[..]].concat()).collect();
            fs.detach_volume(&path, &mut |_| ControlFlow::Continue(())).map(drop)
        }
        Op::DropClone(door) => {
            let (dir, name) = place(fs, door)?;
            fs.delete_volume(&dir, name, &mut |_| ()).map(drop)
        }
        _ => Ok(()),
    }
}

/// The error number of an error.
#[must_use]
pub fn errno_of(error: &FsError) -> Errno {
    Errno(error.errno())
}

/// The node that a path leads to; symbolic links are not followed.
///
/// # Errors
/// The error of looking its names up.
pub fn node<E: Storage>(fs: &Fs<E>, path: &[Name]) -> Result<NodeRef, FsError> {
    path.iter().try_fold(fs.root(), |dir, name| fs.lookup(&ROOT, &dir, name))
}

fn place<'a, E: Storage>(fs: &Fs<E>, path: &'a Path) -> Result<(NodeRef, &'a [u8]), FsError> {
    let (name, parent) = path.split_last().expect("the root is never named by an operation on names");
    Ok((node(fs, parent)?, name))
}

fn rename<E: Storage>(fs: &Fs<E>, from: &Path, to: &Path, mode: RenameMode) -> Result<(), FsError> {
    let (from_dir, from_name) = place(fs, from)?;
    let (to_dir, to_name) = place(fs, to)?;
    fs.rename(&ROOT, (&from_dir, from_name), (&to_dir, to_name), mode)
}

fn set<E: Storage>(fs: &Fs<E>, path: &Path, change: &SetAttr) -> Result<OpOutput, FsError> {
    Ok(OpOutput::Stat(stat(&fs.setattr(&ROOT, &node(fs, path)?, change)?)))
}

fn stat(attr: &Attr) -> Stat {
    let is_dir = attr.kind == FileKind::Directory;
    Stat {
        kind: attr.kind,
        permissions: attr.mode & 0o7777,
        owner: (attr.uid, attr.gid),
        links: attr.links,
        size_bytes: if is_dir { 0 } else { attr.size_bytes },
        times: (!is_dir).then_some((attr.mtime, attr.ctime)),
    }
}

fn allocate<E: Storage>(fs: &Fs<E>, path: &Path, mode: AllocMode, span: Span) -> Result<(), FsError> {
    fs.fallocate(&ROOT, &node(fs, path)?, mode, span.offset, span.len)
}

/// Commits of one step of settling: few, so that a session is cut in the middle of a rollback.
const SETTLING_COMMITS: u32 = 8;

/// Settles rollbacks for some commits, if there are any. A full pool refuses that.
///
/// # Errors
/// Any other error of the filesystem.
pub(crate) fn settle_some<E: Storage + SnapshotStore>(fs: &Fs<E>) -> Result<(), FsError> {
    let mut commits = 0;
    let mut goes_on = || {
        commits += 1;
        commits < SETTLING_COMMITS
    };
    match fs.settle_rollbacks(&mut goes_on) {
        Err(FsError::NoSpace) => Ok(()),
        settled => settled,
    }
}

/// Does some pieces of background work.
///
/// # Errors
/// The error of the engine.
pub(crate) fn background<E: Store>(engine: &E, steps: u32) -> Result<(), FsError> {
    for _ in 0..steps {
        if !engine.background_step().map_err(|e: MetaError| FsError::from(e))? {
            break;
        }
    }
    Ok(())
}
