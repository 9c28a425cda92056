//! Files rearranged through the mount, by ioctls: what copy_file_range(2) and fallocate(2) have no words for.
//!
//! # Invariants
//! 1. The kernel does not say how a file was opened, so who asks must be allowed to read or write it now, as for opening it again.
//! 2. The kernel is told of a change that it has not made before the answer: what programs wrote through mappings is handed over before the change, and pages and
//!    attributes from before are forgotten after it.
//! 3. A thread that takes requests from the kernel does not tell it something: it would wait for itself. A waiter does.

mod client;
mod shelf;
mod wire;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{Errno, INodeNo, Notifier};
use warpfire_env::{Clock, SystemClock};
use warpfire_fs::acl::{Caller, Perm};
use warpfire_fs::{Fs, FsError, Inserted, NodeRef, Yanked};
use warpfire_meta::{SliceStore, Store};

use crate::groups::ProcessGroups;
pub use client::{MountedSlice, remove_range};
pub(crate) use shelf::Shelf;
use wire::Part;
pub(crate) use wire::{Request, Told};

/// A request, with all that its answer needs.
pub(crate) struct Asked<E: Store + SliceStore> {
    pub(crate) fs: Arc<Fs<E>>,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    pub(crate) node: NodeRef,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: ProcessGroups,
    pub(crate) request: Request,
    pub(crate) read_only: bool,
}

/// Why there is no answer: the filesystem's reason, or one of here.
pub(crate) enum Refused {
    ByFs(FsError),
    Here(Errno),
}

impl From<FsError> for Refused {
    fn from(e: FsError) -> Refused {
        Refused::ByFs(e)
    }
}

impl From<rustix::io::Errno> for Refused {
    fn from(errno: rustix::io::Errno) -> Refused {
        Refused::Here(Errno::from_i32(errno.raw_os_error()))
    }
}

impl Request {
    /// What one must be allowed to do with the file.
    fn needs(&self) -> Option<Perm> {
        match self {
            Request::Yank { .. } => Some(Perm::READ),
            Request::Join { .. } | Request::Drop { .. } => None,
            _ => Some(Perm::WRITE),
        }
    }
}

impl<E: Store + SliceStore> Asked<E> {
    /// Does what is asked, and has the kernel forget what it knew of the file if that changes it.
    pub(crate) fn answer(&self) -> Result<Told, Refused> {
        let caller = Caller { uid: self.uid, gid: self.gid, groups: &self.groups, checked: false };
        let needs = self.request.needs();
        let changes = needs == Some(Perm::WRITE);
        if changes && self.read_only {
            return Err(rustix::io::Errno::ROFS.into());
        }
        if let Some(needs) = needs {
            self.fs.access(&caller, &self.node, needs)?;
        }
        if !changes {
            return self.take();
        }
        self.forget();
        let told = self.change(&caller);
        self.forget();
        told
    }

    /// What changes no file.
    fn take(&self) -> Result<Told, Refused> {
        let now = SystemClock.monotonic_nanos();
        let keep = |slice: Yanked, seconds: u32| {
            let time = Duration::from_secs(seconds.into());
            self.fs.lease(&slice, time)?;
            let until = now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            let len = slice.len_bytes();
            let slice = self.shelf.put(self.uid, slice, until, now)?;
            Ok(Told { offset: 0, len, slice })
        };
        match self.request {
            Request::Yank { offset, len, seconds } => {
                keep(self.fs.yank(&self.node, offset, len)?, seconds).map(|told| Told { offset, ..told })
            }
            Request::Join { slice, other, seconds } => {
                let parts = [slice, other].map(|number| self.shelf.get(self.uid, number, now));
                let [first, second] = parts;
                let joined = Yanked::join(&[first?, second?])?.expect("two slices make one");
                keep(joined, seconds)
            }
            Request::Drop { slice } => {
                self.shelf.forget(self.uid, slice, now)?;
                Ok(Told { slice, ..Told::default() })
            }
            _ => unreachable!("the others change the file"),
        }
    }

    fn part(&self, Part { slice, from, len }: Part) -> Result<Yanked, Refused> {
        let slice = self.shelf.get(self.uid, slice, SystemClock.monotonic_nanos())?;
        Ok(slice.part(from..from.saturating_add(len)))
    }

    /// What changes the file, in one commit.
    fn change(&self, caller: &Caller<'_>) -> Result<Told, Refused> {
        let (fs, node) = (&self.fs, &self.node);
        Ok(match self.request {
            Request::Paste { part, position } => {
                let slice = self.part(part)?;
                let offset = fs.paste(caller, node, position, &slice)?;
                Told { offset, len: slice.len_bytes(), slice: part.slice }
            }
            Request::Insert { part, offset } => {
                let slice = self.part(part)?;
                fs.insert_range(caller, node, offset, Inserted::Slice(&slice))?;
                Told { offset, len: slice.len_bytes(), slice: part.slice }
            }
            Request::InsertZeros { len, offset } => {
                fs.insert_range(caller, node, offset, Inserted::Hole(len))?;
                Told { offset, len, slice: 0 }
            }
            Request::Remove { offset, len } => {
                let size = fs.getattr(node).size_bytes;
                fs.remove_range(caller, node, offset, len)?;
                Told { offset, len: size.saturating_sub(offset).min(len), slice: 0 }
            }
            Request::Replace { slice } => {
                let whole = self.part(Part { slice, from: 0, len: u64::MAX })?;
                fs.replace_content(caller, node, &whole)?;
                Told { offset: 0, len: whole.len_bytes(), slice }
            }
            Request::Yank { .. } | Request::Join { .. } | Request::Drop { .. } => {
                unreachable!("these change no file")
            }
        })
    }

    /// Has the kernel hand over and forget pages and attributes of the file.
    fn forget(&self) {
        let notifier = self.notifier.get().expect("who asks has asked through the mount");
        if let Err(e) = notifier.inval_inode(INodeNo(self.node.ino()), 0, 0) {
            // It had nothing to forget, or there is no mount any more.
            tracing::debug!(ino = self.node.ino(), "the kernel does not forget: {e}");
        }
    }
}
