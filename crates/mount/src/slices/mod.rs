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
use warpfire_fs::{Fs, FsError, InsertSource, NodeRef, YankedSlice};
use warpfire_meta::Storage;

use crate::caller::CallerGroups;
pub use client::{MountedSlice, remove_range};
pub(crate) use shelf::SliceShelf;
use wire::SlicePart;
pub(crate) use wire::{SliceReply, SliceRequest};

/// A request, with all that its answer needs.
pub(crate) struct SliceTask<E: Storage> {
    pub(crate) fs: Arc<Fs<E>>,
    pub(crate) shelf: Arc<SliceShelf>,
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    pub(crate) node: NodeRef,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: CallerGroups,
    pub(crate) request: SliceRequest,
    pub(crate) read_only: bool,
}

/// Why there is no answer: the filesystem's reason, or one of here.
pub(crate) enum SliceRefusal {
    Filesystem(FsError),
    Errno(Errno),
}

impl From<FsError> for SliceRefusal {
    fn from(e: FsError) -> SliceRefusal {
        SliceRefusal::Filesystem(e)
    }
}

impl From<rustix::io::Errno> for SliceRefusal {
    fn from(errno: rustix::io::Errno) -> SliceRefusal {
        SliceRefusal::Errno(Errno::from_i32(errno.raw_os_error()))
    }
}

impl SliceRequest {
    /// What one must be allowed to do with the file.
    fn needs(&self) -> Option<Perm> {
        match self {
            SliceRequest::Yank { .. } => Some(Perm::READ),
            SliceRequest::Join { .. } | SliceRequest::Drop { .. } => None,
            _ => Some(Perm::WRITE),
        }
    }
}

impl<E: Storage> SliceTask<E> {
    /// Does what is asked, and has the kernel forget what it knew of the file if that changes it.
    pub(crate) fn answer(&self) -> Result<SliceReply, SliceRefusal> {
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
            return self.answer_unchanged();
        }
        self.invalidate_kernel_cache();
        let reply = self.change(&caller);
        self.invalidate_kernel_cache();
        reply
    }

    /// What changes no file.
    fn answer_unchanged(&self) -> Result<SliceReply, SliceRefusal> {
        let now = SystemClock.monotonic_nanos();
        let keep = |slice: YankedSlice, seconds: u32| {
            let time = Duration::from_secs(seconds.into());
            self.fs.lease(&slice, time)?;
            let until = now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            let len = slice.len_bytes();
            let slice = self.shelf.put(self.uid, slice, until, now)?;
            Ok(SliceReply { offset: 0, len, slice })
        };
        match self.request {
            SliceRequest::Yank { offset, len, seconds } => {
                keep(self.fs.yank(&self.node, offset, len)?, seconds)
                    .map(|reply| SliceReply { offset, ..reply })
            }
            SliceRequest::Join { slice, other, seconds } => {
                let parts = [slice, other].map(|number| self.shelf.get(self.uid, number, now));
                let [first, second] = parts;
                let joined = YankedSlice::join(&[first?, second?])?.expect("two slices make one");
                keep(joined, seconds)
            }
            SliceRequest::Drop { slice } => {
                self.shelf.remove(self.uid, slice, now)?;
                Ok(SliceReply { slice, ..SliceReply::default() })
            }
            _ => unreachable!("the others change the file"),
        }
    }

    fn part(&self, SlicePart { slice, from, len }: SlicePart) -> Result<YankedSlice, SliceRefusal> {
        let slice = self.shelf.get(self.uid, slice, SystemClock.monotonic_nanos())?;
        Ok(slice.part(from..from.saturating_add(len)))
    }

    /// What changes the file, in one commit.
    fn change(&self, caller: &Caller<'_>) -> Result<SliceReply, SliceRefusal> {
        let (fs, node) = (&self.fs, &self.node);
        Ok(match self.request {
            SliceRequest::Paste { part, position } => {
                let slice = self.part(part)?;
                let offset = fs.paste(caller, node, position, &slice)?;
                SliceReply { offset, len: slice.len_bytes(), slice: part.slice }
            }
            SliceRequest::Insert { part, offset } => {
                let slice = self.part(part)?;
                fs.insert_range(caller, node, offset, InsertSource::Slice(&slice))?;
                SliceReply { offset, len: slice.len_bytes(), slice: part.slice }
            }
            SliceRequest::InsertZeros { len, offset } => {
                fs.insert_range(caller, node, offset, InsertSource::Hole(len))?;
                SliceReply { offset, len, slice: 0 }
            }
            SliceRequest::Remove { offset, len } => {
                let size = fs.getattr(node).size_bytes;
                fs.remove_range(caller, node, offset, len)?;
                SliceReply { offset, len: size.saturating_sub(offset).min(len), slice: 0 }
            }
            SliceRequest::Replace { slice } => {
                let whole = self.part(SlicePart { slice, from: 0, len: u64::MAX })?;
                fs.replace_content(caller, node, &whole)?;
                SliceReply { offset: 0, len: whole.len_bytes(), slice }
            }
            SliceRequest::Yank { .. } | SliceRequest::Join { .. } | SliceRequest::Drop { .. } => {
                unreachable!("these change no file")
            }
        })
    }

    /// Has the kernel hand over and forget pages and attributes of the file.
    fn invalidate_kernel_cache(&self) {
        let notifier = self.notifier.get().expect("who asks has asked through the mount");
        if let Err(e) = notifier.inval_inode(INodeNo(self.node.ino()), 0, 0) {
            // It had nothing to forget, or there is no mount any more.
            tracing::debug!(ino = self.node.ino(), "the kernel does not forget: {e}");
        }
    }
}
