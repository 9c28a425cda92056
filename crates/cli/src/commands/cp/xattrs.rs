//! Extended attributes and access control lists, which `--archive` keeps.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};
use warpfire::{Storage, Warpfire};
use warpfire_terminal::Failure;

use super::local::magic_path;

/// Attributes of one file, in the order in which they were listed.
#[derive(Debug, Default)]
pub struct Xattrs(Vec<(OsString, Vec<u8>)>);

/// When an attribute is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrStage {
    /// Before owner and mode: after them the caller may no longer have the permission to set it.
    Before,
    /// After owner and mode, because they would change it.
    After,
}

/// Namespace of labels that security modules of a machine set by their own rules. They are not copied.
const LABELS: &[u8] = b"security.";
/// The one attribute in that namespace that is copied.
const CAPABILITY: &[u8] = b"security.capability";
/// Prefix of access control lists.
const LISTS: &[u8] = b"system.posix_acl_";

/// Longest list of names, and longest value, in bytes: the limits of Linux.
const BYTES_MAX: usize = 64 << 10;

fn stage(name: &OsStr) -> XattrStage {
    let name = name.as_bytes();
    if name == CAPABILITY || name.starts_with(LISTS) { XattrStage::After } else { XattrStage::Before }
}

fn is_copied(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name == CAPABILITY || !name.starts_with(LABELS)
}

impl Xattrs {
    /// The attributes of a local file that is no symbolic link. It is open or pinned; `shown` is its path for
    /// messages.
    pub fn of_local(file: impl AsFd, shown: &Path) -> Result<Self, Failure> {
        let failed = |error: rustix::io::Errno| Failure::local(shown, &error.into());
        let path = &magic_path(file);
        let mut names = vec![0; BYTES_MAX];
        let len = match listxattr(path, &mut names[..]) {
            // The filesystem of the file has no extended attributes.
            Err(rustix::io::Errno::OPNOTSUPP) => 0,
            listed => listed.map_err(failed)?,
        };
        let mut found = Vec::new();
        for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            let name = OsStr::from_bytes(name);
            if is_copied(name) {
                let mut value = vec![0; BYTES_MAX];
                let len = getxattr(path, name, &mut value[..]).map_err(failed)?;
                value.truncate(len);
                found.push((OsString::from_vec(name.as_bytes().to_vec()), value));
            }
        }
        Ok(Xattrs(found))
    }

    /// The attributes of a file of the pool that is no symbolic link.
    pub fn of_pool<E: Storage>(fs: &Warpfire<E>, path: &Path) -> Result<Self, Failure> {
        let names = fs.list_xattrs(path)?.into_iter().filter(|name| is_copied(name));
        names.map(|name| Ok((name.clone(), fs.xattr(path, &name)?))).collect::<Result<_, _>>().map(Xattrs)
    }

    /// Sets the attributes of one stage on a local file.
    pub fn set_on_local(&self, file: impl AsFd, shown: &Path, when: XattrStage) -> Result<(), Failure> {
        let path = &magic_path(file);
        for (name, value) in self.0.iter().filter(|(name, _)| stage(name) == when) {
            setxattr(path, name, value, XattrFlags::empty()).map_err(|error| {
                refused(name, &format_args!("{}: {}", shown.display(), io::Error::from(error)))
            })?;
        }
        Ok(())
    }

    /// Sets the attributes of one stage on a file of the pool.
    pub fn set_on_pool<E: Storage>(
        &self,
        fs: &Warpfire<E>,
        path: &Path,
        when: XattrStage,
    ) -> Result<(), Failure> {
        for (name, value) in self.0.iter().filter(|(name, _)| stage(name) == when) {
            fs.set_xattr(path, name, value).map_err(|error| refused(name, &error))?;
        }
        Ok(())
    }

    /// The attributes of a list that are copied.
    pub fn of_list(list: Vec<(OsString, Vec<u8>)>) -> Self {
        Xattrs(list.into_iter().filter(|(name, _)| is_copied(name)).collect())
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_slice()))
    }

    /// Whether there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn refused(name: &OsStr, reason: &dyn std::fmt::Display) -> Failure {
    Failure::new(format_args!("the attribute {} cannot be set: {reason}", name.display()))
}
