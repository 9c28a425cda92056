//! Extended attributes, by path.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use warpfire_fs::{Follow, XattrMode};
use warpfire_meta::Storage;

use crate::{Result, Warpfire};

impl<E: Storage> Warpfire<E> {
    /// The value of an extended attribute.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/a", b"")?;
    /// fs.set_xattr("/a", "user.colour", b"green")?;
    /// assert_eq!(fs.xattr("/a", "user.colour")?, b"green");
    /// assert_eq!(fs.list_xattrs("/a")?, ["user.colour"]);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` for the file or the attribute; `Unsupported` for a namespace that does not exist;
    /// `PermissionDenied`.
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        let node = self.node_at(path.as_ref(), Follow::Yes)?;
        Ok(self.fs().getxattr(&self.identity().caller(), &node, name.as_ref().as_bytes())?)
    }

    /// Sets the value of an extended attribute, and makes the attribute if it is missing.
    ///
    /// # Errors
    /// As [`xattr`](Warpfire::xattr); `InvalidInput` for a value above 64 KiB; `NoSpace`.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let node = self.node_at(path.as_ref(), Follow::Yes)?;
        let (name, value) = (name.as_ref().as_bytes(), value.as_ref());
        Ok(self.fs().setxattr(&self.identity().caller(), &node, name, value, XattrMode::Either)?)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`xattr`](Warpfire::xattr).
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let node = self.node_at(path.as_ref(), Follow::Yes)?;
        Ok(self.fs().removexattr(&self.identity().caller(), &node, name.as_ref().as_bytes())?)
    }

    /// The names of all extended attributes that the identity of this handle may see, in the order of their
    /// bytes.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied` if a directory on the path may not be searched.
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        let node = self.node_at(path.as_ref(), Follow::Yes)?;
        let names = self.fs().listxattr(&self.identity().caller(), &node)?;
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect())
    }
}
