//! Listing directories.
//!
//! A directory that is open has a handle, because positions in it are numbers and what they mean is the handle's. The
//! kernel does not cache listings: what it had read through one handle it would go on with through another.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::FixedState;
use fuser::{Errno, FileHandle, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use hashbrown::HashMap;
use parking_lot::Mutex;
use warpfire_fs::{DirEntry, DirHandle};
use warpfire_meta::Storage;

use super::{GENERATION, Refusal, RequestResult, Server};
use crate::attr::{file_attr, file_type};
use crate::invalidation_gate::GatePass;

/// Names asked of the filesystem at a time: about what a page of an answer has room for ...
const NAMES_AT_ONCE: usize = 128;
/// ... and with attributes: what a page of an answer has room for, and what the largest has, of 1 MiB.
const NODES_AT_ONCE_MIN: usize = 24;
/// See [`NODES_AT_ONCE_MIN`].
const NODES_AT_ONCE_MAX: usize = 6144;

/// An open directory.
pub(super) struct OpenDir {
    handle: DirHandle,
    /// How many names the last answer with attributes told of.
    nodes_sent: AtomicUsize,
}

/// Open directories, by the number that the kernel has for them.
pub(super) struct OpenDirs {
    handles: Mutex<HashMap<u64, Arc<OpenDir>, FixedState>>,
    next: AtomicU64,
}

impl OpenDirs {
    pub(super) fn new() -> OpenDirs {
        let handles = Mutex::new(HashMap::with_hasher(FixedState::with_seed(0)));
        OpenDirs { handles, next: AtomicU64::new(1) }
    }

    pub(super) fn add(&self, handle: DirHandle) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let dir = OpenDir { handle, nodes_sent: AtomicUsize::new(NODES_AT_ONCE_MIN) };
        self.handles.lock().insert(number, Arc::new(dir));
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

    fn get(&self, number: FileHandle) -> RequestResult<Arc<OpenDir>> {
        self.handles.lock().get(&number.0).cloned().ok_or(Refusal(Errno::EBADF))
    }
}

impl<E: Storage> Server<E> {
    /// Names and kinds from a position on, as many as the answer has room for.
    pub(super) fn list_names(&self, number: FileHandle, from: u64, mut reply: ReplyDirectory) {
        let filled = self.open_dirs.get(number).and_then(|dir| {
            self.walk(&dir.handle, from, |cookie, entry| {
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
    pub(super) fn list_nodes(
        &self,
        pass: &GatePass<'_>,
        number: FileHandle,
        from: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let filled = self.open_dirs.get(number).and_then(|dir| {
            let mut nodes_sent = 0;
            let keep = pass.cache_time();
            let at_once = dir.nodes_sent.load(Ordering::Relaxed);
            self.fs.visit_handle(&dir.handle, from, at_once, &mut |cookie, name, node| {
                let attr = file_attr(&self.fs.getattr(node));
                if reply.add(attr.ino, cookie, OsStr::from_bytes(name), &keep, &attr, GENERATION) {
                    return true;
                }
                nodes_sent += 1;
                // These are shown, not told of: the kernel knows them as directories already.
                if name != b"." && name != b".." {
                    self.context.nodes.count_lookup(node.ino(), node);
                }
                false
            })?;
            // The next answer has as much room, if not quite as long names.
            dir.nodes_sent
                .store((nodes_sent + 1).clamp(NODES_AT_ONCE_MIN, NODES_AT_ONCE_MAX), Ordering::Relaxed);
            Ok(())
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
        mut visit: impl FnMut(u64, &DirEntry) -> RequestResult<bool>,
    ) -> RequestResult<()> {
        let mut position = from;
        loop {
            let entries = self.fs.read_handle(handle, position, NAMES_AT_ONCE)?;
            for (cookie, entry) in &entries {
                if visit(*cookie, entry)? {
                    return Ok(());
                }
                position = *cookie;
            }
            if entries.len() < NAMES_AT_ONCE {
                return Ok(());
            }
        }
    }
}
