//! Extended attributes and access control lists, which `--archive` keeps.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};
use warpfire::Warpfire;
use warpfire_terminal::Failure;

/// Attributes of one file, in the order in which they were listed.
#[derive(Debug, Default)]
pub struct Xattrs(Vec<(OsString, Vec<u8>)>);

/// When an attribute is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrStage {
    /// Before owner and mode, which may take the right to set it away.
    Before,
    /// After them, as they would change it.
    After,
}

/// Attributes in this namespace are labels that a machine gives to files by its own rules, but for one.
const LABELS: &[u8] = b"security.";
const CAPABILITY: &[u8] = b"security.capability";
const LISTS: &[u8] = b"system.posix_acl_";

/// No list of names and no value is longer.
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
    /// Those of a local file, which is no symbolic link.
    pub fn of_local(path: &Path) -> Result<Self, Failure> {
        let failed = |error: rustix::io::Errno| Failure::local(path, &error.into());
        let mut names = vec![0; BYTES_MAX];
        let len = match listxattr(path, &mut names[..]) {
            // The filesystem that it is on has none.
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

    /// Those of a file of the pool, which is no symbolic link.
    pub fn of_pool(fs: &Warpfire, path: &Path) -> Result<Self, Failure> {
        let names = fs.list_xattrs(path)?.into_iter().filter(|name| is_copied(name));
        names.map(|name| Ok((name.clone(), fs.xattr(path, &name)?))).collect::<Result<_, _>>().map(Xattrs)
    }

    /// Sets those whose turn it is on a local file.
    pub fn set_on_local(&self, path: &Path, when: XattrStage) -> Result<(), Failure> {
        for (name, value) in self.0.iter().filter(|(name, _)| stage(name) == when) {
            setxattr(path, name, value, XattrFlags::empty()).map_err(|error| {
                refused(name, &format_args!("{}: {}", path.display(), io::Error::from(error)))
            })?;
        }
        Ok(())
    }

    /// Sets those whose turn it is on a file of the pool.
    pub fn set_on_pool(&self, fs: &Warpfire, path: &Path, when: XattrStage) -> Result<(), Failure> {
        for (name, value) in self.0.iter().filter(|(name, _)| stage(name) == when) {
            fs.set_xattr(path, name, value).map_err(|error| refused(name, &error))?;
        }
        Ok(())
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn refused(name: &OsStr, reason: &dyn std::fmt::Display) -> Failure {
    Failure::new(format_args!("the attribute {} is not kept: {reason}", name.display()))
}
