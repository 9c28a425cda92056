//! One directory in the snapshots: where a snapshot shows the directory that has a number now.
//!
//! A directory keeps its inode number when it is renamed or moved, and no number is given out twice. So the
//! number leads to the same directory in every snapshot that shows it, whatever its path was then. A
//! directory of a volume is in the snapshots that show the volume: an older one has no such volume, though
//! the keys of a clone read on in its origin there.

use warpfire_format::fs::{Key, VolumeId, volume_of};
use warpfire_meta::{SnapshotStore, SnapshotView, Storage, Store};

use super::SnapshotInfo;
use crate::acl::{Caller, Perm};
use crate::damage::OWN_ANCESTOR;
use crate::error::FsError;
use crate::fs::{Fs, ROOT_INO};
use crate::keys::inode_key;
use crate::limits::DEPTH_MAX;
use crate::node::{NameBuf, NodeRef};
use crate::volume::live_record;

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Whether a snapshot shows the directory that has this inode number now. One that has been deleted since
    /// shows nothing.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn shows_directory(&self, snapshot: &SnapshotInfo, dir: u64) -> Result<bool, FsError> {
        // Every snapshot shows the root.
        if dir == ROOT_INO {
            return Ok(true);
        }
        let Some(view) = SnapshotView::open(&self.engine, snapshot.seq) else { return Ok(false) };
        let (volume, mut value) = (volume_of(dir), Vec::new());
        if volume != VolumeId::FIRST
            && !(view.get(&Key::Volume(volume).encode(), snapshot.seq, &mut value)?
                && live_record(&value)?.is_some())
        {
            return Ok(false);
        }
        Ok(view.get(&inode_key(dir), snapshot.seq, &mut value)?)
    }
}

impl<E: Storage> Fs<SnapshotView<E>> {
    /// The directory that has this inode number in the snapshot.
    ///
    /// # Errors
    /// `NotFound`; `AccessDenied` if the caller could not reach it then, because a directory above it did not
    /// let the caller through; `Damaged`.
    pub fn directory_then(&self, caller: &Caller<'_>, ino: u64) -> Result<NodeRef, FsError> {
        let _guard = self.enter_unrecorded();
        let dir = self.numbered_directory(ino)?;
        self.each_above(&dir, &mut |parent, _| self.access(caller, parent, Perm::EXECUTE))?;
        Ok(dir)
    }

    /// The path that the directory with this inode number has in the snapshot. It begins with `/`.
    ///
    /// # Errors
    /// `NotFound`; `Damaged`.
    pub fn path_then(&self, ino: u64) -> Result<Vec<u8>, FsError> {
        let _guard = self.enter_unrecorded();
        let dir = self.numbered_directory(ino)?;
        let mut names = Vec::new();
        self.each_above(&dir, &mut |_, name| {
            names.push(name);
            Ok(())
        })?;
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(if path.is_empty() { b"/".to_vec() } else { path })
    }

    fn numbered_directory(&self, ino: u64) -> Result<NodeRef, FsError> {
        if volume_of(ino) != VolumeId::FIRST {
            self.live_volume(volume_of(ino))?;
        }
        self.directory(ino)?.ok_or(FsError::NotFound)
    }

    /// Calls `visit` with each directory above `dir`, and with the name there that leads down to `dir`.
    fn each_above(
        &self,
        dir: &NodeRef,
        visit: &mut dyn FnMut(&NodeRef, NameBuf) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let mut at = NodeRef::clone(dir);
        for _ in 0..DEPTH_MAX {
            if at.ino() == ROOT_INO {
                return Ok(());
            }
            let (parent, name) = *at.state.read().dentry.clone().ok_or(FsError::NotDirectory)?;
            let parent = self.directory(parent)?.ok_or(FsError::NotFound)?;
            visit(&parent, name)?;
            at = parent;
        }
        // Damaged records lead in a circle.
        Err(OWN_ANCESTOR.into())
    }
}
