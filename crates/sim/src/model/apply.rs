//! The effect of each operation on the model.

use std::sync::Arc;

use warpfire_env::Timestamp;
use warpfire_fs::FileKind;

use super::{Body, Errno, FileContent, Model, Name, NodeId, OpOutput, Path};
use crate::op::{Op, Span};
use crate::open_transactions::Slots;

impl Model {
    /// Does an operation as of `now`, as user 0.
    ///
    /// # Errors
    /// The error that the product must return too. The model has not changed then.
    pub fn apply(&mut self, op: &Op, slots: &Slots, now: Timestamp) -> Result<OpOutput, Errno> {
        match op {
            // The offset comes from before the append; the append then fails where there is no file.
            Op::Append(path, fill) => {
                let end = self.size_bytes(path);
                self.change(path, now, |c| {
                    c.write(c.size_bytes(), &fill.bytes());
                    Ok(())
                })?;
                Ok(OpOutput::Number(end.expect("an append succeeds on a file only")))
            }
            Op::Write(path, offset, fill) => {
                self.change(path, now, |c| {
                    c.write(*offset, &fill.bytes());
                    Ok(())
                })?;
                Ok(OpOutput::Number(*offset))
            }
            Op::CopyRange(from, span, to, at) => self.copy_range(from, *span, to, *at, now),
            Op::Paste(slot, path, at) => {
                let bytes = slots.get(slot).expect("only a slot with a value is pasted");
                let content = self.content(self.lookup(path)?)?;
                let at = at.unwrap_or(content.size_bytes());
                // As for a write of no bytes: times and size stay.
                if !bytes.is_empty() {
                    self.change(path, now, |c| {
                        c.write(at, bytes);
                        Ok(())
                    })?;
                }
                Ok(OpOutput::Number(at))
            }
            Op::SetMode(path, _) | Op::SetOwner(path, ..) => {
                self.change_only(op, now)?;
                Ok(OpOutput::Stat(self.stat(self.lookup(path)?)))
            }
            Op::Read(path, span) | Op::Yank(path, span, _) => {
                let content = self.content(self.lookup(path)?)?;
                let len = span.len.min(content.size_bytes().saturating_sub(span.offset));
                let len = usize::try_from(len).expect("a single read is short");
                Ok(OpOutput::Bytes(content.read(span.offset, len)))
            }
            Op::List(path) => self.list(path),
            Op::Stat(path) => Ok(OpOutput::Stat(self.stat(self.lookup(path)?))),
            _ => self.change_only(op, now).map(|()| OpOutput::Nothing),
        }
    }

    /// Does an operation that returns only its success.
    fn change_only(&mut self, op: &Op, now: Timestamp) -> Result<(), Errno> {
        match op {
            // The permissions are those that `drive` passes to the product; a symbolic link always has 0o777.
            Op::Create(path) => {
                self.make(path, FileKind::Regular, 0o644, Body::File(FileContent::default()), now).map(drop)
            }
            Op::Put(path, fill) => {
                let mut content = FileContent::default();
                content.write(0, &fill.bytes());
                self.make(path, FileKind::Regular, 0o644, Body::File(content), now).map(drop)
            }
            Op::Mkdir(path) => {
                self.make(path, FileKind::Directory, 0o755, Body::Directory([].into()), now).map(drop)
            }
            Op::Symlink(path, target) => {
                self.make(path, FileKind::Symlink, 0o777, Body::Symlink(target.clone()), now).map(drop)
            }
            Op::Mkfifo(path) => self.make(path, FileKind::Fifo, 0o644, Body::Special, now).map(drop),
            Op::Link(from, to) => self.link(from, to, now),
            Op::Unlink(path) => self.unlink(path, now),
            Op::Rmdir(path) => self.rmdir(path, now),
            Op::Rename(from, to, mode) => self.rename(from, to, *mode, now),
            Op::AppendBlindly(path, fill) => self.change(path, now, |c| {
                c.write(c.size_bytes(), &fill.bytes());
                Ok(())
            }),
            Op::Truncate(path, size) => self.change(path, now, |c| {
                c.truncate(*size);
                Ok(())
            }),
            Op::Allocate(path, span) => {
                self.change(path, now, |c| {
                    c.truncate(c.size_bytes().max(span.offset + span.len));
                    Ok(())
                })?;
                let id = self.lookup(path)?;
                self.node_mut(id).reservations += 1;
                Ok(())
            }
            Op::Punch(path, span) => self.change(path, now, |c| {
                c.zero(span.offset, span.len);
                Ok(())
            }),
            Op::Insert(path, span) => self.change(path, now, |c| {
                check(span.offset < c.size_bytes())?;
                c.insert(span.offset, span.len);
                Ok(())
            }),
            Op::Collapse(path, span) => self.change(path, now, |c| {
                check(span.offset + span.len < c.size_bytes())?;
                c.collapse(span.offset, span.len);
                Ok(())
            }),
            Op::SetMode(path, mode) => {
                let id = self.lookup(path)?;
                if self.node(id).kind == FileKind::Symlink {
                    return Err(Errno(libc::EOPNOTSUPP));
                }
                let node = self.node_mut(id);
                (node.permissions, node.ctime) = (*mode, now);
                Ok(())
            }
            Op::SetOwner(path, uid, gid) => {
                let id = self.lookup(path)?;
                let node = self.node_mut(id);
                (node.uid, node.gid, node.ctime) = (*uid, *gid, now);
                Ok(())
            }
            Op::SetTime(path, seconds) => {
                let id = self.lookup(path)?;
                let node = self.node_mut(id);
                (node.mtime, node.ctime) = (Timestamp { seconds: *seconds, nanos: 0 }, now);
                Ok(())
            }
            Op::SetXattr(path, name, fill) => {
                let id = self.holder_of_user_xattrs(path)?;
                let node = self.node_mut(id);
                node.xattrs.insert(name.clone(), fill.bytes());
                node.ctime = now;
                Ok(())
            }
            Op::RemoveXattr(path, name) => {
                let id = self.holder_of_user_xattrs(path)?;
                if !self.node(id).xattrs.contains_key(name) {
                    return Err(Errno(libc::ENODATA));
                }
                let node = self.node_mut(id);
                node.xattrs.remove(name);
                node.ctime = now;
                Ok(())
            }
            Op::Fsync(path) => self.lookup(path).map(drop),
            Op::Snapshot(name) => {
                self.check_vacant_name(name)?;
                let mut picture = self.picture();
                picture.clear_all_but_the_tree();
                self.snapshots.insert(name.clone(), Arc::new(picture));
                self.trees.insert(name.clone(), Arc::new(self.nodes.clone()));
                Ok(())
            }
            // The snapshot that keeps the tree is an operation of its own, before this one.
            Op::RollBack(name, _) => {
                self.nodes = self.trees.get(name).ok_or(Errno(libc::ENOENT))?.as_ref().clone();
                Ok(())
            }
            Op::Bookmark(of, name) => {
                self.snapshots.get(of).ok_or(Errno(libc::ENOENT))?;
                self.check_vacant_name(name)?;
                self.bookmarks.insert(name.clone(), of.clone());
                Ok(())
            }
            Op::DropBookmark(name) => self.bookmarks.remove(name).map(drop).ok_or(Errno(libc::ENOENT)),
            Op::Clone(source, door) => self.clone_directory(source, door, now),
            Op::Detach(door) => self.detach(door),
            Op::DropClone(door) => self.drop_clone(door, now),
            Op::DropSnapshot(name) => {
                self.trees.remove(name);
                self.snapshots.remove(name).map(drop).ok_or(Errno(libc::ENOENT))
            }
            _ => Ok(()),
        }
    }

    /// Snapshots and bookmarks share one set of names.
    fn check_vacant_name(&self, name: &Name) -> Result<(), Errno> {
        match self.snapshots.contains_key(name) || self.bookmarks.contains_key(name) {
            true => Err(Errno(libc::EEXIST)),
            false => Ok(()),
        }
    }

    /// Copies a range, and returns the number of bytes.
    fn copy_range(
        &mut self,
        from: &Path,
        span: Span,
        to: &Path,
        at: u64,
        now: Timestamp,
    ) -> Result<OpOutput, Errno> {
        let from = self.lookup(from)?;
        let target = self.lookup(to)?;
        let source = self.content(from)?;
        self.content(target)?;
        let len = span.len.min(source.size_bytes().saturating_sub(span.offset));
        if from == target && span.offset < at + len && at < span.offset + len {
            return Err(Errno(libc::EINVAL));
        }
        // Read as a whole first: source and target may be parts of one file.
        let bytes = source.read(span.offset, usize::try_from(len).expect("copies are small"));
        if !bytes.is_empty() {
            self.change(to, now, |c| {
                c.write(at, &bytes);
                Ok(())
            })?;
        }
        Ok(OpOutput::Number(len))
    }

    /// Only files and directories have attributes in the namespace `user`.
    fn holder_of_user_xattrs(&self, path: &Path) -> Result<NodeId, Errno> {
        let id = self.lookup(path)?;
        match self.node(id).kind {
            FileKind::Regular | FileKind::Directory => Ok(id),
            _ => Err(Errno(libc::EPERM)),
        }
    }

    pub(super) fn content(&self, id: NodeId) -> Result<&FileContent, Errno> {
        match &self.node(id).body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(Errno(libc::EISDIR)),
            Body::Symlink(_) | Body::Special => Err(Errno(libc::EINVAL)),
        }
    }

    /// Changes a file's content and its times.
    fn change(
        &mut self,
        path: &Path,
        now: Timestamp,
        change: impl FnOnce(&mut FileContent) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let id = self.lookup(path)?;
        let mut content = self.content(id)?.clone();
        change(&mut content)?;
        let node = self.node_mut(id);
        node.body = Body::File(content);
        (node.mtime, node.ctime) = (now, now);
        Ok(())
    }
}

/// Ranges are shifted inside the file only.
fn check(is_inside: bool) -> Result<(), Errno> {
    if is_inside { Ok(()) } else { Err(Errno(libc::EINVAL)) }
}
