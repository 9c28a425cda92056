//! Nodes: the inodes in use, in memory.
//!
//! # Terms
//! The *record* of a node is the value in the metadata engine that describes its inode. The *record location*
//! is the key that holds the record ([`RecordLocation`]). A node is *dying* while a call removes its file.
//!
//! # Invariants
//! 1. At most one live node stands for an inode number (assert in `InodeCache::get_or_insert`).
//! 2. A node's state equals its record, except for the pending times of a directory (`tests/check.rs`
//!    compares what callers see with the records).
//! 3. A call changes a record only while it holds the state of the record's node for writing (asserts in
//!    `Fs::commit_edit`, `plan_departure`, `plan_arrival` and others). Pending times are the one exception;
//!    their edits commute with all edits that do not set the same time (`deferred`).
//! 4. After each change of a record, and before the release of its node's state, the version counter of the
//!    record's key moves (`version_counters`). So a reader of a record that then finds no node and an unmoved
//!    counter may make the node from that record (the tests `threads`).
//! 5. A commit of a transaction changes records while it is alone in the base, and then the nodes in use (the
//!    assert in `Fs::show_changes`).
//! 6. The file of a dying node has lost its last name, and no other caller holds the node (assert in
//!    `InodeCache::claim`). A call that finds it waits for its state and searches again.
//!
//! The states of a record location, with the functions that change it:
//!
//! ```text
//!            create, lookup             unlink, rename: plan_departure
//!   (none) ────────────────► Dentry ──┬─ other callers hold the node ─► Orphan ──► (none)   Fs::reap
//!                 │            │ link ├─ no other caller holds it ────► Gone
//!                 │            ▼      │
//!                 └─────────► Own ────┘
//!                              └─ rmdir: plan_directory_removal ──────► Gone
//!
//!   tmpfile ────────────────► Orphan { linkable } ── link ──► Dentry
//! ```

mod inode_cache;
mod pending_times;
mod tx_nodes;
mod version_counters;

use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use warpfire_env::{RankedRawRwLock, RankedReadGuard, RankedRwLock, RankedWriteGuard};
use warpfire_format::fs::{
    Attrs, FileKind, Inode, InodeContent, KeyBuf, NAME_BYTES_MAX, number_from, volume_of,
};

use crate::error::FsError;
use crate::keys::{dentry_key, inode_key, orphan_key};
use crate::limits::FILE_BYTES_MAX;
use crate::lock_ranks::{CHILDREN, STATE};

pub(crate) use inode_cache::{InodeCache, NodeLookup};
pub(crate) use pending_times::{NodeTimes, PendingTimes};
#[cfg(test)]
pub(crate) use tx_nodes::NODES_KEPT_MIN;
pub(crate) use version_counters::{CounterSnapshot, RecordWatch, VersionCounters};

/// A name in a directory. Most names fit without an allocation.
pub(crate) type NameBuf = SmallVec<[u8; 24]>;

/// Checks a name for a call that makes, removes or finds it. `.` and `..` are paths, not names.
///
/// # Errors
/// `NameTooLong` above 255 bytes, `Invalid`.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(FsError::Invalid("a name is not empty and holds neither '/' nor NUL"));
    }
    if name == b"." || name == b".." {
        return Err(FsError::Invalid("'.' and '..' are in every directory already"));
    }
    Ok(())
}

/// An inode in use. While a caller holds the node, the inode number stays valid, also after the loss of the
/// last name.
pub struct Node {
    ino: u64,
    kind: FileKind,
    pub(crate) state: RankedRwLock<STATE, NodeState>,
    /// Held shared while a name is added to this directory, exclusively while the directory is removed.
    pub(crate) children: RankedRwLock<CHILDREN, ()>,
    pub(crate) pending_times: NodeTimes,
    dying: AtomicBool,
    /// Bytes outside of the node: those of the names that it was made with, and of the directory's own name.
    outside_bytes: u16,
    inode_cache: Arc<InodeCache>,
}

/// A state that is held for reading.
pub(crate) type StateReadGuard<'a> = RankedReadGuard<'a, STATE, NodeState>;
/// A state that is held for writing.
pub(crate) type StateWriteGuard<'a> = RankedWriteGuard<'a, STATE, NodeState>;

/// A hold of a node.
pub type NodeRef = Arc<Node>;

/// The part of a record that its node has in memory.
#[derive(Clone, Debug)]
pub(crate) struct NodeState {
    pub(crate) attrs: Attrs,
    pub(crate) location: RecordLocation,
    pub(crate) layout: Layout,
    /// The parent of a directory and the directory's name there. For a file with a record at its own key, a
    /// name that it had at some time, if one is known.
    pub(crate) dentry: Option<Box<(u64, NameBuf)>>,
    pub(crate) history: EditHistory,
}

impl NodeState {
    /// An offset at or past the end of the last extent. Reserved extents may lie past the file's size.
    pub(crate) fn extents_end(&self) -> u64 {
        if self.attrs.reserved_bytes > 0 { FILE_BYTES_MAX } else { self.attrs.size_bytes }
    }
}

/// The key that holds a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordLocation {
    /// The key of its only name: the directory and the name.
    Dentry(u64, NameBuf),
    /// The inode's own key: a directory, or a file that has or had several names.
    Own,
    /// The inode's key in the list of orphans. `link` gives a name only to a file that was made without one.
    Orphan { linkable: bool },
    /// No key: the record has been deleted.
    Gone,
}

/// The place of a regular file's extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The record. A file without extents has this layout too.
    Inline,
    /// Regions, which are keys of their own.
    Regions,
}

/// A count of the edits that were merged into a value since it was last written whole. It only decides when
/// to refold, so it may be too low.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EditHistory {
    /// The region that the edits belong to; 0 for a small file.
    pub(crate) region: u64,
    pub(crate) edits: u32,
    /// Inline bytes of these edits.
    pub(crate) bytes: u32,
    /// Edits of the record of a file with regions.
    pub(crate) record_edits: u32,
}

impl EditHistory {
    /// Whether there is nothing to remember.
    pub(crate) fn is_empty(&self) -> bool {
        self.edits == 0 && self.record_edits == 0
    }
}

impl NodeState {
    /// The state of an inode with its record at `location`.
    pub(crate) fn new(inode: &Inode<'_>, location: RecordLocation) -> NodeState {
        let is_dir = inode.attrs.kind == FileKind::Directory;
        assert!(
            !is_dir || !matches!(location, RecordLocation::Dentry(..)),
            "a directory has a key of its own"
        );
        NodeState {
            attrs: inode.attrs,
            location,
            layout: if matches!(inode.content, InodeContent::Regions) {
                Layout::Regions
            } else {
                Layout::Inline
            },
            dentry: match inode.content {
                InodeContent::Directory(parent, name) => {
                    let parent = number_from(volume_of(inode.ino), parent);
                    Some(Box::new((parent, NameBuf::from_slice(name))))
                }
                _ => None,
            },
            history: EditHistory::default(),
        }
    }

    /// The key of the record; `None` if the record has been deleted.
    pub(crate) fn record_key(&self, ino: u64) -> Option<KeyBuf> {
        match &self.location {
            RecordLocation::Dentry(dir, name) => Some(dentry_key(*dir, name)),
            RecordLocation::Own => Some(inode_key(ino)),
            RecordLocation::Orphan { .. } => Some(orphan_key(ino)),
            RecordLocation::Gone => None,
        }
    }

    fn outside_bytes(&self) -> u16 {
        let long = |name: &NameBuf| if name.spilled() { name.capacity() } else { 0 };
        let located = match &self.location {
            RecordLocation::Dentry(_, name) => long(name),
            _ => 0,
        };
        let boxed = |dentry: &(u64, NameBuf)| size_of_val(dentry) + long(&dentry.1);
        let bytes = located + self.dentry.as_deref().map_or(0, boxed);
        u16::try_from(bytes).unwrap_or(u16::MAX)
    }

    /// Whether the last name is gone.
    pub(crate) fn is_unlinked(&self) -> bool {
        matches!(self.location, RecordLocation::Orphan { .. } | RecordLocation::Gone)
    }
}

impl Node {
    /// Whether this is the cache of the node.
    pub(crate) fn is_in(&self, inode_cache: &Arc<InodeCache>) -> bool {
        Arc::ptr_eq(&self.inode_cache, inode_cache)
    }

    pub(crate) fn new(inode_cache: &Arc<InodeCache>, ino: u64, state: NodeState) -> Node {
        let place = inode_cache.lock_place(ino);
        let outside_bytes = state.outside_bytes();
        Node {
            ino,
            kind: state.attrs.kind,
            children: RankedRwLock::from_raw(RankedRawRwLock::of(place), ()),
            pending_times: NodeTimes::of_new(state.attrs.kind, place),
            state: RankedRwLock::from_raw(RankedRawRwLock::of(place), state),
            dying: AtomicBool::new(false),
            outside_bytes,
            inode_cache: Arc::clone(inode_cache),
        }
    }

    /// Its inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// What kind of file it is.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(crate) fn is_dying(&self) -> bool {
        self.dying.load(Ordering::Acquire)
    }

    /// Ends the dying: the commit that would have removed the file has failed.
    pub(crate) fn revive(&self) {
        debug_assert!(self.state.is_locked_exclusive(), "a node dies and revives under its state");
        self.dying.store(false, Ordering::Release);
    }

    /// The attributes in `state` with the pending times: the attributes that callers see.
    pub(crate) fn current(&self, state: &NodeState) -> Attrs {
        debug_assert!(self.state.is_locked(), "a state is read under its lock");
        let mut attrs = state.attrs;
        if self.is_dir()
            && let Some(t) = self.pending_times.get().shown
        {
            attrs.mtime = t;
            // A change of attributes after the last change of a name has a later time in the record.
            attrs.ctime = attrs.ctime.max(t);
        }
        attrs
    }
}

/// A mount keeps one for each inode that the kernel remembers: in a release build it takes these bytes.
const NODE_BYTES: usize = 264;
const _: () = assert!(cfg!(debug_assertions) || size_of::<Node>() <= NODE_BYTES);

impl Drop for Node {
    fn drop(&mut self) {
        let node = std::ptr::from_ref(self);
        self.inode_cache.remove_node(self.ino, self.outside_bytes, node, self.state.get_mut());
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {} ({:?})", self.ino, self.kind)
    }
}
