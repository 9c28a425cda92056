//! Resolves paths to inodes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use warpfire_fs::{Follow, FsError, NodeRef};
use warpfire_meta::Storage;

use crate::{Result, Warpfire};

impl<E: Storage> Warpfire<E> {
    /// The inode at a path. Every path begins at the root, with or without a leading slash; an empty one is
    /// the root.
    pub(crate) fn node_at(&self, path: &Path, follow: Follow) -> Result<NodeRef> {
        let path = path.as_os_str().as_bytes();
        if path.is_empty() {
            return Ok(self.fs().root());
        }
        Ok(self.fs().resolve(&self.identity().caller(), &self.fs().root(), path, follow)?)
    }

    /// As `node_at`, for a caller that reads the file. A symbolic link at the end is followed.
    pub(crate) fn node_at_to_read(&self, path: &Path) -> Result<NodeRef> {
        let root = self.fs().root();
        if path.as_os_str().is_empty() { Ok(root) } else { self.node_to_read(&root, path.as_os_str()) }
    }

    /// The file that a path below a directory leads to, through symbolic links, for a caller that reads it.
    pub(crate) fn node_to_read(&self, dir: &NodeRef, path: &OsStr) -> Result<NodeRef> {
        Ok(self.fs().resolve_to_read(&self.identity().caller(), dir, path.as_bytes())?)
    }

    /// The directory that holds (or would hold) the last name of a path, and that name.
    pub(crate) fn parent_of(&self, path: &Path) -> Result<(NodeRef, OsString)> {
        let root = self.fs().root();
        let path = path.as_os_str().as_bytes();
        let resolved = self.fs().resolve_parent(&self.identity().caller(), &root, path, Follow::No)?;
        if resolved.name.is_empty() {
            return Err(FsError::Busy.into());
        }
        Ok((resolved.dir, OsString::from_vec(resolved.name.to_vec())))
    }

    /// As `parent_of`, for a call that makes the name. The root exists.
    pub(crate) fn parent_of_new(&self, path: &Path) -> Result<(NodeRef, OsString)> {
        self.parent_of(path).map_err(|error| match error.errno() {
            busy if busy == FsError::Busy.errno() => FsError::Exists.into(),
            _ => error,
        })
    }

    /// The inode of a name in a directory, through symbolic links.
    pub(crate) fn node_through_links(&self, dir: &NodeRef, name: &OsStr) -> Result<NodeRef> {
        Ok(self.fs().resolve(&self.identity().caller(), dir, name.as_bytes(), Follow::Yes)?)
    }
}
