//! Clones of directories: copies of all their nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warpfire_env::Timestamp;
use warpfire_fs::FileKind;
use warpfire_meta::ORIGINS_MAX;

use super::{Body, Errno, Model, NodeId, Path, ROOT};

impl Model {
    /// The path of each door, and whether the clone behind it reads on in an origin.
    #[must_use]
    pub fn doors(&self) -> BTreeMap<Path, bool> {
        let mut doors = BTreeMap::new();
        self.walk(ROOT, &mut Vec::new(), &mut |path, id| {
            let volume = self.node(id).volume;
            let parent = path.split_last().and_then(|(_, parent)| self.lookup(parent).ok());
            if parent.is_some_and(|parent| self.node(parent).volume != volume) {
                doors.insert(path.clone(), self.origins_of(volume) > 0);
            }
        });
        doors
    }

    /// The number of origins that a reader of a volume passes.
    fn origins_of(&self, volume: u32) -> usize {
        volume.checked_sub(1).map_or(0, |clone| self.origins[clone as usize])
    }

    pub(super) fn clone_directory(
        &mut self,
        source: &Path,
        door: &Path,
        now: Timestamp,
    ) -> Result<(), Errno> {
        let source = self.lookup(source)?;
        let (dir, name, found) = self.place(door)?;
        if found.is_some() {
            return Err(Errno(libc::EEXIST));
        }
        if self.node(source).kind != FileKind::Directory {
            return Err(Errno(libc::ENOTDIR));
        }
        let origins = self.origins_of(self.node(source).volume) + 1;
        let below = self.all_below(source);
        if origins > ORIGINS_MAX || self.has_door(&below) {
            return Err(Errno(libc::EINVAL));
        }
        self.origins.push(origins);
        let volume = u32::try_from(self.origins.len()).expect("clones are few");
        let first = self.next;
        // Each node has one copy, whatever the number of its names.
        let copies: BTreeMap<NodeId, NodeId> = below.into_iter().zip(first..).collect();
        self.next += copies.len() as NodeId;
        for (of, id) in &copies {
            let mut node = self.node(*of).clone();
            node.volume = volume;
            if let Body::Directory(names) = &mut node.body {
                names.values_mut().for_each(|below| *below = copies[below]);
            }
            self.nodes.insert(*id, Arc::new(node));
        }
        let root = copies[&source];
        self.node_mut(root).ctime = now;
        self.names_mut(dir).insert(name.clone(), root);
        self.node_mut(dir).links += 1;
        self.touch(dir, now);
        Ok(())
    }

    /// The clone shows the same as before.
    pub(super) fn detach(&mut self, door: &Path) -> Result<(), Errno> {
        let (dir, _, found) = self.place(door)?;
        let volume = self.node(found.ok_or(Errno(libc::ENOENT))?).volume;
        if volume == self.node(dir).volume || self.origins_of(volume) == 0 {
            return Err(Errno(libc::EINVAL));
        }
        self.origins[volume as usize - 1] = 0;
        Ok(())
    }

    pub(super) fn drop_clone(&mut self, door: &Path, now: Timestamp) -> Result<(), Errno> {
        let (dir, name, found) = self.place(door)?;
        let root = found.ok_or(Errno(libc::ENOENT))?;
        let volume = self.node(root).volume;
        if volume == self.node(dir).volume || self.has_door(&self.all_below(root)) {
            return Err(Errno(libc::EINVAL));
        }
        self.names_mut(dir).remove(name);
        self.node_mut(dir).links -= 1;
        self.touch(dir, now);
        // Also the files without names: they may have had one outside of the directory that was cloned.
        self.nodes.retain(|_, node| node.volume != volume);
        Ok(())
    }

    /// An empty directory goes by `rmdir` only if it is not the root of a clone.
    pub(super) fn check_no_door(&self, dir: NodeId, id: NodeId) -> Result<(), Errno> {
        match self.node(dir).volume == self.node(id).volume {
            true => Ok(()),
            false => Err(Errno(libc::EBUSY)),
        }
    }

    fn all_below(&self, top: NodeId) -> BTreeSet<NodeId> {
        let mut all = BTreeSet::new();
        self.walk(top, &mut Vec::new(), &mut |_, id| _ = all.insert(id));
        all
    }

    fn has_door(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let volumes: BTreeSet<u32> = nodes.iter().map(|id| self.node(*id).volume).collect();
        volumes.len() > 1
    }
}
