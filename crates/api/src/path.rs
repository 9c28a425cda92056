//! From paths to nodes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use warpfire_fs::{Follow, FsError, NodeRef};
use warpfire_meta::Storage;

use crate::{Result, Warpfire};

impl<E: Storage> Warpfire<E> {
    /// The node that a path leads to. A path without a leading slash starts at the root too; an empty one is the root.
    pub(crate) fn node_at(&self, path: &Path, follow: Follow) -> Result<NodeRef> {
        let path = path.as_os_str().as_bytes();
        if path.is_empty() {
            return Ok(self.fs().root());
        }
        Ok(self.fs().resolve(&self.identity().caller(), &self.fs().root(), path, follow)?)
    }

    /// The folder that holds, or would hold, a path's last name, and that name.
    pub(crate) fn parent_of(&self, path: &Path) -> Result<(NodeRef, OsString)> {
        let root = self.fs().root();
        let path = path.as_os_str().as_bytes();
        let resolved = self.fs().resolve_parent(&self.identity().caller(), &root, path, Follow::No)?;
        if resolved.name.is_empty() {
            return Err(FsError::Busy.into());
        }
        Ok((resolved.dir, OsString::from_vec(resolved.name.to_vec())))
    }

    /// The node that a name in a folder leads to, through symbolic links.
    pub(crate) fn node_through_links(&self, dir: &NodeRef, name: &OsStr) -> Result<NodeRef> {
        Ok(self.fs().resolve(&self.identity().caller(), dir, name.as_bytes(), Follow::Yes)?)
    }
}
