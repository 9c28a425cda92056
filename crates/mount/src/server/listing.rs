//! Listing directories.
//!
//! A directory that is open has a handle, because positions in it are numbers and what they mean is the handle's. The
//! kernel does not cache listings: what it had read through one handle it would go on with through another.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use fuser::{Errno, FileHandle, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use hashbrown::HashMap;
use parking_lot::Mutex;
use warpfire_fs::acl::Caller;
use warpfire_fs::{DirEntry, DirHandle, FsError};
use warpfire_meta::{SliceStore, Store};

use super::init::KEEP;
use super::{Answer, GENERATION, Refusal, Server};
use crate::attr::{file_attr, file_type};

/// Names asked of the filesystem at a time: about what a page of an answer has room for ...
const NAMES_AT_ONCE: usize = 128;
/// ... and with attributes.
const NODES_AT_ONCE: usize = 24;

/// Open directories, by the number that the kernel has for them.
pub(super) struct OpenDirs {
    handles: Mutex<HashMap<u64, Arc<DirHandle>, FixedState>>,
    next: AtomicU64,
}

impl OpenDirs {
    pub(super) fn new() -> OpenDirs {
        let handles = Mutex::new(HashMap::with_hasher(FixedState::with_seed(0)));
        OpenDirs { handles, next: AtomicU64::new(1) }
    }

    pub(super) fn add(&self, handle: DirHandle) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles.lock().insert(number, Arc::new(handle));
        FileHandle(number)
    }

    pub(super) fn remove(&self, number: FileHandle) {
        let gone = self.handles.lock().remove(&number.0);
        drop(gone);
    }

    pub(super) fn clear(&self) {
        let gone =
            std::mem::replace(&mut *self.handles.lock(), HashMap::with_hasher(FixedState::with_seed(0)));
        drop(gone);
    }

    fn get(&self, number: FileHandle) -> Answer<Arc<DirHandle>> {
        self.handles.lock().get(&number.0).cloned().ok_or(Refusal(Errno::EBADF))
    }
}

impl<E: Store + SliceStore> Server<E> {
    /// Names and kinds from a position on, as many as the answer has room for.
    pub(super) fn list_names(&self, number: FileHandle, from: u64, mut reply: ReplyDirectory) {
        let filled = self.open_dirs.get(number).and_then(|handle| {
            self.walk(&handle, from, NAMES_AT_ONCE, |cookie, entry| {
                let name = OsStr::from_bytes(&entry.name);
                Ok(reply.add(INodeNo(entry.ino), cookie, file_type(entry.kind), name))
            })
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    /// As `list_names`, and tells of the nodes too.
    pub(super) fn list_nodes(&self, number: FileHandle, from: u64, mut reply: ReplyDirectoryPlus) {
        let filled = self.open_dirs.get(number).and_then(|handle| {
            self.walk(&handle, from, NODES_AT_ONCE, |cookie, entry| {
                let name = OsStr::from_bytes(&entry.name);
                if entry.name.as_slice() == b"." || entry.name.as_slice() == b".." {
                    // Shown, not told of: the kernel knows them as directories already.
                    let mut attr = file_attr(&self.fs.getattr(handle.dir()));
                    attr.ino = INodeNo(entry.ino);
                    return Ok(reply.add(attr.ino, cookie, name, &KEEP, &attr, GENERATION));
                }
                let node = match self.fs.lookup(&Caller::ROOT, handle.dir(), &entry.name) {
                    Ok(node) => node,
                    // It went after the names were read.
                    Err(FsError::NotFound) => return Ok(false),
                    Err(e) => return Err(e.into()),
                };
                let attr = file_attr(&self.fs.getattr(&node));
                let full = reply.add(attr.ino, cookie, name, &KEEP, &attr, GENERATION);
                if !full {
                    self.nodes.remember(node.ino(), &node);
                }
                Ok(full)
            })
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    /// Visits entries from a position on until there are no more, or `visit` says that it is full.
    fn walk(
        &self,
        handle: &DirHandle,
        from: u64,
        at_once: usize,
        mut visit: impl FnMut(u64, &DirEntry) -> Answer<bool>,
    ) -> Answer<()> {
        let mut position = from;
        loop {
            let entries = self.fs.read_handle(handle, position, at_once)?;
            for (cookie, entry) in &entries {
                if visit(*cookie, entry)? {
                    return Ok(());
                }
                position = *cookie;
            }
            if entries.len() < at_once {
                return Ok(());
            }
        }
    }
}
