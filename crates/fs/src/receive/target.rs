//! The directory that shows a received tree.

use warpfire_format::fs::file_name;
use warpfire_meta::Storage;

use crate::acl::Caller;
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::NodeRef;

/// A directory, by its path from the root of the pool. It need not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceiveTarget {
    names: Vec<Vec<u8>>,
}

impl ReceiveTarget {
    /// The directory at a path.
    ///
    /// # Errors
    /// `Invalid` for a path with `.` or `..`; `NameTooLong`.
    pub fn new(path: &[u8]) -> Result<ReceiveTarget, FsError> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let names = names.map(|name| match file_name(name) {
            Ok(name) => Ok(name.to_vec()),
            Err(_) if name.len() > warpfire_format::fs::NAME_BYTES_MAX => Err(FsError::NameTooLong),
            Err(_) => Err(FsError::Invalid("the path of a target has no '.' and no '..'")),
        });
        Ok(ReceiveTarget { names: names.collect::<Result<_, _>>()? })
    }

    /// The path, which begins with `/`.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        let mut path = Vec::new();
        for name in &self.names {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    /// The name of its spool.
    pub(super) fn spool_name(&self) -> Vec<u8> {
        let hash = blake3::hash(&self.path()).to_hex();
        hash.as_bytes().iter().take(32).copied().collect()
    }

    /// Its own name; `None` for the root of the pool.
    pub(super) fn name(&self) -> Option<&[u8]> {
        self.names.last().map(Vec::as_slice)
    }

    /// The directory that has its name. Links are not followed.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub(super) fn parent<S: Storage>(&self, fs: &Fs<S>) -> Result<NodeRef, FsError> {
        let (_, above) = self.names.split_last().unwrap_or((&EMPTY, &[]));
        walk(fs, above)
    }

    /// The directory itself.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub(super) fn find<S: Storage>(&self, fs: &Fs<S>) -> Result<NodeRef, FsError> {
        walk(fs, &self.names)
    }
}

static EMPTY: Vec<u8> = Vec::new();

fn walk<S: Storage>(fs: &Fs<S>, names: &[Vec<u8>]) -> Result<NodeRef, FsError> {
    let mut at = fs.root();
    for name in names {
        at = fs.lookup(&Caller::ROOT, &at, name)?;
        if !at.is_dir() {
            return Err(FsError::NotDirectory);
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_directory_has_one_spool_however_it_is_written() {
        let of = |path: &[u8]| ReceiveTarget::new(path).unwrap();
        assert_eq!(of(b"/a//b/").path(), b"/a/b");
        assert_eq!(of(b"a/b").spool_name(), of(b"/a/b").spool_name());
        assert_ne!(of(b"/a").spool_name(), of(b"/b").spool_name());
        assert_eq!((of(b"").path(), of(b"/").name()), (b"/".to_vec(), None));
        assert!(ReceiveTarget::new(b"/a/../b").is_err());
    }
}
