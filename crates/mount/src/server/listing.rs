//! Listing of directories.
//!
//! An open directory has a handle, because positions in a listing are numbers that only the handle can
//! resolve. So the kernel must not cache listings: it would continue the listing of one handle with positions
//! of another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use warpfire_fs::acl::Caller;
use warpfire_fs::{DirEntry, DirHandle, FsError, NodeRef};
use warpfire_fuse::{Errno, FileHandle, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use warpfire_meta::{MemoryRefused, Storage};

use super::{Refusal, RequestResult, Server};
use crate::caller::share_of;
use crate::invalidation_gate::GatePass;

/// Names to read from the filesystem at a time: about as many as one page of an answer holds.
const NAMES_AT_ONCE: usize = 128;
/// Nodes with attributes to read at a time, at least: as many as one page of an answer holds.
const NODES_AT_ONCE_MIN: usize = 24;
/// Nodes with attributes to read at a time, at most: as many as the largest answer, of 1 MiB, holds.
const NODES_AT_ONCE_MAX: usize = 6144;

/// An open directory.
pub(super) struct OpenDir {
    handle: DirHandle,
    /// How many names the last answer with attributes held.
    nodes_sent: AtomicUsize,
}

/// Open directories by handle number.
pub(super) struct OpenDirs {
    handles: Mutex<HashMap<u64, Arc<OpenDir>, FixedState>>,
}

/// The number of the next handle. No number is used twice: a late request on a handle of one transaction must
/// not meet that of another, which the same view shows later.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);

impl OpenDirs {
    pub(super) fn new() -> OpenDirs {
        let handles = Mutex::new(HashMap::with_hasher(FixedState::with_seed(0)));
        OpenDirs { handles }
    }

    pub(super) fn add(&self, handle: DirHandle) -> FileHandle {
        let number = NEXT_HANDLE.fetch_add(1, Ordering::Relaxed);
        let dir = OpenDir { handle, nodes_sent: AtomicUsize::new(NODES_AT_ONCE_MIN) };
        self.handles.lock().insert(number, Arc::new(dir));
        FileHandle(number)
    }

    pub(super) fn remove(&self, number: FileHandle) {
        let directory = self.handles.lock().remove(&number.0);
        // Here and in `clear` the handle is dropped without the lock: it holds a node.
        drop(directory);
    }

    /// Whether a directory is open.
    pub(super) fn are_any(&self) -> bool {
        !self.handles.lock().is_empty()
    }

    pub(super) fn clear(&self) {
        let directories =
            std::mem::replace(&mut *self.handles.lock(), HashMap::with_hasher(FixedState::with_seed(0)));
        drop(directories);
    }

    fn get(&self, number: FileHandle) -> RequestResult<Arc<OpenDir>> {
        self.handles.lock().get(&number.0).cloned().ok_or(Refusal(Errno::BADF))
    }
}

/// The refusal of a call on an open directory. Without memory for it a program learns that it, or everyone,
/// has too many of them open.
fn refusal(e: FsError) -> Refusal {
    match e {
        FsError::Memory(MemoryRefused::Share) => Refusal(Errno::MFILE),
        FsError::Memory(MemoryRefused::Total) => Refusal(Errno::NFILE),
        e => e.into(),
    }
}

impl<E: Storage> Server<E> {
    /// Opens a directory, charged to the caller: in a view too, because the server itself opens the root of a
    /// view before a commit, also when its user has no room.
    pub(super) fn open_directory(&self, caller: &Caller<'_>, dir: &NodeRef) -> RequestResult<FileHandle> {
        let account = self.fs.memory_account(share_of(caller.uid));
        let opened = self.fs.opendir_charged(caller, dir, &account);
        opened.map(|handle| self.open_dirs.add(handle)).map_err(refusal)
    }

    /// Answers with names and kinds from a position on, as many as fit.
    pub(super) fn list_names(&self, number: FileHandle, from: u64, mut reply: ReplyDirectory) {
        let filled = self.open_dirs.get(number).and_then(|dir| {
            self.walk(&dir.handle, from, |cookie, entry| {
                Ok(reply.add(INodeNo(self.number_of(entry.ino)), cookie, entry.kind as u8, &entry.name))
            })
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    /// As `list_names`, with the attributes of the nodes too. Each one sent counts as a lookup.
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
            let visited = self.fs.visit_handle(&dir.handle, from, at_once, &mut |cookie, name, node| {
                let attr = self.sent_attr(&self.fs.getattr(node));
                if reply.add(cookie, name, keep, &attr) {
                    return true;
                }
                nodes_sent += 1;
                // The protocol counts no lookup for these two.
                if name != b"." && name != b".." {
                    self.count_lookup(attr.ino.0, node);
                }
                false
            });
            match visited {
                // Their lookups are counted, so the kernel must learn of them. The next call meets the error.
                Err(_) if nodes_sent > 0 => {}
                visited => visited.map_err(refusal)?,
            }
            // The next answer holds about as many: reading more would waste the attributes that do not fit.
            dir.nodes_sent
                .store((nodes_sent + 1).clamp(NODES_AT_ONCE_MIN, NODES_AT_ONCE_MAX), Ordering::Relaxed);
            Ok(())
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    /// Visits entries from a position on until there are no more, or until `visit` returns true: the answer
    /// is full.
    fn walk(
        &self,
        handle: &DirHandle,
        from: u64,
        mut visit: impl FnMut(u64, &DirEntry) -> RequestResult<bool>,
    ) -> RequestResult<()> {
        let mut position = from;
        loop {
            let entries = self.fs.read_handle(handle, position, NAMES_AT_ONCE).map_err(refusal)?;
            for (cookie, entry) in &entries {
                if visit(*cookie, entry)? {
                    return Ok(());
                }
                position = *cookie;
            }
            debug_assert!(entries.len() <= NAMES_AT_ONCE, "no more entries are read than were requested");
            if entries.len() < NAMES_AT_ONCE {
                return Ok(());
            }
        }
    }
}
