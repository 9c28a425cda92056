//! Names: finding, adding and taking them away.

use std::sync::Arc;

use warpfire_env::Timestamp;
use warpfire_fs::{FileKind, RenameMode};

use super::{Body, Errno, Model, ModelNode, NAME_BYTES_MAX, Name, NodeId, Path, ROOT};

impl Model {
    pub(super) fn lookup(&self, path: &[Name]) -> Result<NodeId, Errno> {
        path.iter().try_fold(ROOT, |dir, name| self.find(dir, name)?.ok_or(Errno(libc::ENOENT)))
    }

    /// The node of a name in a directory.
    pub(super) fn find(&self, dir: NodeId, name: &Name) -> Result<Option<NodeId>, Errno> {
        let Body::Directory(names) = &self.node(dir).body else { return Err(Errno(libc::ENOTDIR)) };
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        Ok(names.get(name).copied())
    }

    /// The directory of the path's last name, that name, and its node if there is one.
    pub(super) fn place<'a>(&self, path: &'a Path) -> Result<(NodeId, &'a Name, Option<NodeId>), Errno> {
        let (name, parent) = path.split_last().expect("the root is never named by an operation on names");
        let dir = self.lookup(parent)?;
        Ok((dir, name, self.find(dir, name)?))
    }

    pub(super) fn names_mut(&mut self, dir: NodeId) -> &mut std::collections::BTreeMap<Name, NodeId> {
        match &mut self.node_mut(dir).body {
            Body::Directory(names) => names,
            Body::File(_) | Body::Symlink(_) | Body::Special => unreachable!("a place is in a directory"),
        }
    }

    pub(super) fn touch(&mut self, dir: NodeId, now: Timestamp) {
        let node = self.node_mut(dir);
        (node.mtime, node.ctime) = (now, now);
    }

    pub(super) fn make(
        &mut self,
        path: &Path,
        kind: FileKind,
        permissions: u32,
        body: Body,
        now: Timestamp,
    ) -> Result<NodeId, Errno> {
        let (dir, name, found) = self.place(path)?;
        if found.is_some() {
            return Err(Errno(libc::EEXIST));
        }
        let is_dir = kind == FileKind::Directory;
        let volume = self.node(dir).volume;
        // After every check: an operation that fails takes no number.
        let id = self.next;
        self.next += 1;
        let node = ModelNode {
            kind,
            permissions,
            uid: 0,
            gid: 0,
            links: if is_dir { 2 } else { 1 },
            mtime: now,
            ctime: now,
            xattrs: std::collections::BTreeMap::new(),
            reservations: 0,
            volume,
            body,
        };
        self.nodes.insert(id, Arc::new(node));
        self.names_mut(dir).insert(name.clone(), id);
        if is_dir {
            self.node_mut(dir).links += 1;
        }
        self.touch(dir, now);
        Ok(id)
    }

    pub(super) fn link(&mut self, from: &Path, to: &Path, now: Timestamp) -> Result<(), Errno> {
        let id = self.lookup(from)?;
        let (dir, name, found) = self.place(to)?;
        if self.node(id).kind == FileKind::Directory {
            return Err(Errno(libc::EPERM));
        }
        if self.node(id).volume != self.node(dir).volume {
            return Err(Errno(libc::EXDEV));
        }
        if found.is_some() {
            return Err(Errno(libc::EEXIST));
        }
        self.names_mut(dir).insert(name.clone(), id);
        let node = self.node_mut(id);
        node.links += 1;
        node.ctime = now;
        self.touch(dir, now);
        Ok(())
    }

    pub(super) fn unlink(&mut self, path: &Path, now: Timestamp) -> Result<(), Errno> {
        let (dir, name, found) = self.place(path)?;
        let id = found.ok_or(Errno(libc::ENOENT))?;
        if self.node(id).kind == FileKind::Directory {
            return Err(Errno(libc::EISDIR));
        }
        self.names_mut(dir).remove(name);
        self.lose_name(id, now);
        self.touch(dir, now);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, path: &Path, now: Timestamp) -> Result<(), Errno> {
        let (dir, name, found) = self.place(path)?;
        let id = found.ok_or(Errno(libc::ENOENT))?;
        self.check_empty_directory(id)?;
        self.check_no_door(dir, id)?;
        self.names_mut(dir).remove(name);
        self.nodes.remove(&id);
        self.node_mut(dir).links -= 1;
        self.touch(dir, now);
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        from: &Path,
        to: &Path,
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<(), Errno> {
        let (from_dir, from_name, source) = self.place(from)?;
        let (to_dir, to_name, target) = self.place(to)?;
        if self.node(from_dir).volume != self.node(to_dir).volume {
            return Err(Errno(libc::EXDEV));
        }
        let source = source.ok_or(Errno(libc::ENOENT))?;
        let exchange = mode == RenameMode::Exchange;
        // The order of the checks is part of the model: it determines the error where several apply.
        if mode == RenameMode::NoReplace && target.is_some() {
            return Err(Errno(libc::EEXIST));
        }
        if exchange && target.is_none() {
            return Err(Errno(libc::ENOENT));
        }
        if self.holds(source, to_dir) || (exchange && target.is_some_and(|t| self.holds(t, from_dir))) {
            return Err(Errno(libc::EINVAL));
        }
        if target == Some(source) {
            return Ok(());
        }
        if exchange {
            let target = target.expect("checked above");
            self.names_mut(from_dir).insert(from_name.clone(), target);
            self.moved(target, to_dir, from_dir, now);
        } else {
            if let Some(target) = target {
                self.replace(source, target, to_dir, now)?;
            }
            self.names_mut(from_dir).remove(from_name);
        }
        self.names_mut(to_dir).insert(to_name.clone(), source);
        self.moved(source, from_dir, to_dir, now);
        self.touch(from_dir, now);
        self.touch(to_dir, now);
        Ok(())
    }

    /// Whether `dir` is `id` or lies below it.
    fn holds(&self, id: NodeId, dir: NodeId) -> bool {
        let mut found = false;
        if self.node(id).kind == FileKind::Directory {
            self.walk(id, &mut Vec::new(), &mut |_, below| found |= below == dir);
        }
        found
    }

    /// Counts a move of a node between directories. A directory counts in the links of its parent.
    fn moved(&mut self, id: NodeId, from_dir: NodeId, to_dir: NodeId, now: Timestamp) {
        let node = self.node_mut(id);
        node.ctime = now;
        if node.kind == FileKind::Directory {
            self.node_mut(from_dir).links -= 1;
            self.node_mut(to_dir).links += 1;
        }
    }

    /// Removes the node that a rename replaces.
    fn replace(
        &mut self,
        source: NodeId,
        target: NodeId,
        to_dir: NodeId,
        now: Timestamp,
    ) -> Result<(), Errno> {
        let is_dir = |id| self.node(id).kind == FileKind::Directory;
        match (is_dir(source), is_dir(target)) {
            (true, false) => return Err(Errno(libc::ENOTDIR)),
            (false, true) => return Err(Errno(libc::EISDIR)),
            (true, true) => {
                self.check_empty_directory(target)?;
                self.check_no_door(to_dir, target)?;
                self.nodes.remove(&target);
                self.node_mut(to_dir).links -= 1;
            }
            (false, false) => self.lose_name(target, now),
        }
        Ok(())
    }

    fn check_empty_directory(&self, id: NodeId) -> Result<(), Errno> {
        match &self.node(id).body {
            Body::Directory(names) if names.is_empty() => Ok(()),
            Body::Directory(_) => Err(Errno(libc::ENOTEMPTY)),
            Body::File(_) | Body::Symlink(_) | Body::Special => Err(Errno(libc::ENOTDIR)),
        }
    }

    fn lose_name(&mut self, id: NodeId, now: Timestamp) {
        let node = self.node_mut(id);
        node.links -= 1;
        node.ctime = now;
        if node.links == 0 {
            self.nodes.remove(&id);
        }
    }
}
