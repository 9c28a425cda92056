//! The removal of a directory with everything in it.

use warpfire_meta::Storage;

use crate::acl::Caller;
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{NameBuf, NodeRef};

/// Names that one listing returns.
const NAMES_AT_ONCE: usize = 1024;

/// Removes a name, and everything below it. A name that does not exist is no error.
pub(super) fn remove_tree<S: Storage>(fs: &Fs<S>, dir: &NodeRef, name: &[u8]) -> Result<(), FsError> {
    let root = Caller::ROOT;
    let node = match fs.lookup(&root, dir, name) {
        Err(FsError::NotFound) => return Ok(()),
        found => found?,
    };
    if !node.is_dir() {
        return fs.unlink(&root, dir, name);
    }
    let mut levels: Vec<(NodeRef, NameBuf, NodeRef)> = vec![(NodeRef::clone(dir), name.into(), node)];
    while let Some((parent, name, node)) = levels.last() {
        let entries = fs.readdir(&root, node, None, NAMES_AT_ONCE)?;
        if entries.is_empty() {
            fs.rmdir(&root, parent, name)?;
            levels.pop();
            continue;
        }
        let mut below = None;
        for entry in entries {
            if entry.kind == warpfire_format::fs::FileKind::Directory {
                below =
                    Some((NodeRef::clone(node), entry.name.clone(), fs.lookup(&root, node, &entry.name)?));
                break;
            }
            fs.unlink(&root, node, &entry.name)?;
        }
        levels.extend(below);
    }
    Ok(())
}
