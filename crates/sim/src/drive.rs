//! Doing operations to the product, by path and as user 0.

use warpfire_fs::acl::Caller;
use warpfire_fs::{
    AllocMode, Fs, FsError, NewMode, NodeRef, Position, RenameMode, SetAttr, SetTime, XattrMode,
};
use warpfire_meta::{MetaError, SliceStore, Store};

use crate::model::{Errno, Name, Path};
use crate::op::{Op, Span};

const ROOT: Caller<'static> = Caller::ROOT;

/// Does an operation. `Reopen` is for whoever holds the devices and does nothing here.
///
/// # Errors
/// What the filesystem says.
pub fn drive<E: Store + SliceStore>(fs: &Fs<E>, op: &Op) -> Result<(), FsError> {
    match op {
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
            fs.mknod(&ROOT, &dir, name, warpfire_fs::FileKind::Fifo, NewMode::exact(0o644), 0).map(drop)
        }
        Op::Write(path, offset, fill) => {
            fs.write(&ROOT, &node(fs, path)?, Position::At(*offset), &fill.bytes()).map(drop)
        }
        Op::Append(path, fill) => fs.write(&ROOT, &node(fs, path)?, Position::End, &fill.bytes()).map(drop),
        Op::Truncate(path, size) => fs.truncate(&ROOT, &node(fs, path)?, *size),
        Op::Allocate(path, span) => allocate(fs, path, AllocMode::Allocate, *span),
        Op::Punch(path, span) => allocate(fs, path, AllocMode::PunchHole, *span),
        Op::Insert(path, span) => allocate(fs, path, AllocMode::Insert, *span),
        Op::Collapse(path, span) => allocate(fs, path, AllocMode::Collapse, *span),
        Op::CopyRange(from, span, to, at) => {
            let (from, to) = (node(fs, from)?, node(fs, to)?);
            fs.copy_range(&ROOT, (&from, span.offset), (&to, *at), span.len).map(drop)
        }
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
        Op::SetMode(path, mode) => set(fs, path, SetAttr { mode: Some(*mode), ..SetAttr::default() }),
        Op::SetOwner(path, uid, gid) => {
            set(fs, path, SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })
        }
        Op::SetTime(path, seconds) => {
            let time = warpfire_env::Timestamp { seconds: *seconds, nanos: 0 };
            set(fs, path, SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() })
        }
        Op::SetXattr(path, name, fill) => {
            fs.setxattr(&ROOT, &*node(fs, path)?, name, &fill.bytes(), XattrMode::Either)
        }
        Op::RemoveXattr(path, name) => fs.removexattr(&ROOT, &*node(fs, path)?, name),
        Op::Fsync(path) => fs.fsync(&node(fs, path)?),
        Op::Sync => fs.sync(),
        Op::Background(steps) => background(fs.engine().as_ref(), *steps),
        Op::Reopen => Ok(()),
    }
}

/// What the operating system would say.
#[must_use]
pub fn errno_of(error: &FsError) -> Errno {
    Errno(error.errno())
}

/// The node that a path leads to; symbolic links are not followed.
///
/// # Errors
/// What looking its names up says.
pub fn node<E: Store + SliceStore>(fs: &Fs<E>, path: &[Name]) -> Result<NodeRef, FsError> {
    path.iter().try_fold(fs.root(), |dir, name| fs.lookup(&ROOT, &dir, name))
}

fn place<'a, E: Store + SliceStore>(fs: &Fs<E>, path: &'a Path) -> Result<(NodeRef, &'a [u8]), FsError> {
    let (name, parent) = path.split_last().expect("the root is never named by an operation on names");
    Ok((node(fs, parent)?, name))
}

fn rename<E: Store + SliceStore>(
    fs: &Fs<E>,
    from: &Path,
    to: &Path,
    mode: RenameMode,
) -> Result<(), FsError> {
    let (from_dir, from_name) = place(fs, from)?;
    let (to_dir, to_name) = place(fs, to)?;
    fs.rename(&ROOT, (&from_dir, from_name), (&to_dir, to_name), mode)
}

fn set<E: Store + SliceStore>(fs: &Fs<E>, path: &Path, change: SetAttr) -> Result<(), FsError> {
    fs.setattr(&ROOT, &node(fs, path)?, &change).map(drop)
}

fn allocate<E: Store + SliceStore>(
    fs: &Fs<E>,
    path: &Path,
    mode: AllocMode,
    span: Span,
) -> Result<(), FsError> {
    fs.fallocate(&ROOT, &node(fs, path)?, mode, span.offset, span.len)
}

fn background<E: Store>(engine: &E, steps: u32) -> Result<(), FsError> {
    for _ in 0..steps {
        if !engine.background_step().map_err(|e: MetaError| FsError::from(e))? {
            break;
        }
    }
    Ok(())
}
