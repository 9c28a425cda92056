//! Ioctls that rearrange files: operations that copy_file_range(2) and fallocate(2) do not have.
//!
//! # Invariants
//! 1. The kernel does not send how a file was opened. So the caller needs the permission to read or write the
//!    file at the time of the call, as for a new open (`answer`).
//! 2. Before a range is taken or a file changed, the kernel sends the pages that programs wrote through
//!    mappings; after a change, and before the answer, the kernel drops its pages and attributes of the file.
//!    Both are one invalidation (`invalidate_kernel_cache`).
//! 3. A serving thread sends no invalidation, because the kernel may wait for that thread to answer a request
//!    first. A `SliceTask` runs on one of the `BlockingThreads`.

mod client;
mod shelf;
mod wire;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use warpfire_env::{Clock, SystemClock};
use warpfire_fs::acl::{Caller, Perm};
use warpfire_fs::{Fs, FsError, InsertSource, NodeRef, YankedSlice};
use warpfire_fuse::{Errno, INodeNo, Notifier};
use warpfire_meta::Storage;

use crate::caller::{CallerGroups, has_no_share};
pub use client::{MountedSlice, remove_range};
pub(crate) use shelf::SliceShelf;
use shelf::YANK_MAX;
use wire::SlicePart;
pub(crate) use wire::{SliceReply, SliceRequest};

/// Largest size of a file.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// A request with everything that is needed to answer it on another thread.
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

/// A refused request: an error of the filesystem, or an errno of this module.
pub(crate) enum SliceRefusal {
    Filesystem(FsError),
    Errno(Errno),
}

impl From<FsError> for SliceRefusal {
    fn from(e: FsError) -> SliceRefusal {
        SliceRefusal::Filesystem(e)
    }
}

impl From<Errno> for SliceRefusal {
    fn from(errno: Errno) -> SliceRefusal {
        SliceRefusal::Errno(errno)
    }
}

impl SliceRequest {
    /// The permission that the caller needs on the file.
    fn needs(&self) -> Option<Perm> {
        match self {
            SliceRequest::Yank { .. } => Some(Perm::READ),
            SliceRequest::Join { .. } | SliceRequest::Drop { .. } => None,
            _ => Some(Perm::WRITE),
        }
    }
}

impl<E: Storage> SliceTask<E> {
    /// Runs the request. If it changes the file, the kernel's cache of the file is emptied.
    pub(crate) fn answer(&self) -> Result<SliceReply, SliceRefusal> {
        let caller = Caller { uid: self.uid, gid: self.gid, groups: &self.groups, checked: false };
        let needs = self.request.needs();
        let changes = needs == Some(Perm::WRITE);
        if changes && self.read_only {
            return Err(Errno::ROFS.into());
        }
        if let Some(needs) = needs {
            self.fs.access(&caller, &self.node, needs)?;
        }
        if let SliceRequest::Yank { offset, len, .. } = self.request {
            self.invalidate_kernel_cache(offset, len);
        }
        if !changes {
            return self.answer_unchanged();
        }
        // Before: makes the kernel send mapped pages. After: drops pages that were read before the change.
        // Also after a failure, because a commit that failed may have been made.
        self.invalidate_kernel_cache(0, u64::MAX);
        let reply = self.change(&caller);
        self.invalidate_kernel_cache(0, u64::MAX);
        reply
    }

    /// Runs a request that changes no file.
    fn answer_unchanged(&self) -> Result<SliceReply, SliceRefusal> {
        let now = SystemClock.monotonic_nanos();
        let keep = |slice: YankedSlice, seconds: u32| {
            let time = Duration::from_secs(seconds.into());
            // Two deadlines: the lease keeps the bytes in the log, the shelf keeps the number.
            self.fs.lease(&slice, time)?;
            let until = now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            let len = slice.len_bytes();
            let slice = self.shelf.put(self.uid, slice, until, now)?;
            Ok(SliceReply { offset: 0, len, slice })
        };
        match self.request {
            SliceRequest::Yank { offset, len, seconds } => {
                let yanked = match has_no_share(self.uid) {
                    true => self.fs.yank(&self.node, offset, len)?,
                    false => self.fs.yank_within(&self.node, offset, len, YANK_MAX)?,
                };
                keep(yanked, seconds).map(|reply| SliceReply { offset, ..reply })
            }
            SliceRequest::Join { slice, other, seconds } => {
                let parts = [slice, other].map(|number| self.shelf.get(self.uid, number, now));
                let [first, second] = parts;
                let joined = YankedSlice::join(&[first?, second?])?.expect("two slices make one");
                let kept = keep(joined, seconds)?;
                // The lease is of the bytes, which all three share: so is the deadline of their numbers.
                self.shelf.share_deadline(self.uid, kept.slice, [slice, other]);
                Ok(kept)
            }
            SliceRequest::Drop { slice } => {
                self.shelf.remove(self.uid, slice, now)?;
                Ok(SliceReply { slice, ..SliceReply::default() })
            }
            _ => unreachable!("all other requests change the file"),
        }
    }

    fn part(&self, SlicePart { slice, from, len }: SlicePart) -> Result<YankedSlice, SliceRefusal> {
        let slice = self.shelf.get(self.uid, slice, SystemClock.monotonic_nanos())?;
        Ok(slice.part(from..from.saturating_add(len)))
    }

    /// Runs a request that changes the file, in one commit.
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
                // For the answer only. A concurrent write may change the size before the commit.
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
                unreachable!("these requests change no file")
            }
        })
    }

    /// Makes the kernel send the changed pages of a range, then drop its pages and the file's attributes.
    fn invalidate_kernel_cache(&self, offset: u64, len: u64) {
        let notifier = self.notifier.get().expect("the notifier is set before the first request");
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        // The kernel adds both numbers; no file ends behind their largest sum.
        let (offset, len) = (signed(offset), signed(len.min(FILE_BYTES_MAX.saturating_sub(offset))));
        if let Err(e) = notifier.inval_inode(INodeNo(self.node.ino()), offset, len) {
            // The kernel had nothing in its cache, or the mount has ended.
            tracing::debug!(ino = self.node.ino(), error = %e, "nothing to invalidate");
        }
    }
}
