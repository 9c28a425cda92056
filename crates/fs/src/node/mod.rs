//! Inodes in use.
//!
//! # Terms
//! A node's *record* is its inode in the store; its *home* is the key that holds the record.
//!
//! # Invariants
//! 1. At most one live node stands for an inode number.
//! 2. A node's state equals its record, but for a directory's pending touch.
//! 3. A record that exists is changed only by who holds its node's state for writing; `PendingTimes` is the one exception, and its
//!    changes commute with all but those that set the same time (`deferred`).
//! 4. After each change of a record, and before its node's state is let go, the stripe of its home moves on (`version_counters`). So
//!    who read a record, and then finds no node for it and its stripe unmoved, may make the node from what it read.
//! 5. A commit of a transaction changes records while it is alone (`tx`), and then the nodes that are held.
//! 6. A dying node's file has lost its last name while no one else held the node. No one finds it any more: who meets it waits
//!    for its state and looks again.
//!
//! ```text
//!            create, lookup                unlink, rename over
//!   (none) ────────────────► Dentry, Own ─────────────────────► Orphan ──► (none)   `Fs::reap`, last holder gone
//!                             │      ▲  link: Dentry → Own        (held by others)
//!                             └──────┘
//!                             └────────────────────────────────► Gone               (no one else holds it; or a directory)
//! ```

mod inode_cache;
mod version_counters;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use warpfire_format::fs::{
    Attrs, FileKind, Inode, InodeContent, InodeEdit, InodeTime, Key, KeyBuf, NAME_BYTES_MAX, VolumeId,
    dentry_key, inode_key,
};

use crate::error::FsError;

pub(crate) use inode_cache::{InodeCache, NodeLookup};
pub(crate) use version_counters::VersionCounters;

/// A name in a directory.
pub(crate) type NameBuf = SmallVec<[u8; 24]>;

/// Checks a name that is to be made, removed or found in a directory. `.` and `..` are paths, not names.
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

/// An inode that someone uses. While it is held its number stays valid, also when its last name goes.
pub struct Node {
    ino: u64,
    kind: FileKind,
    pub(crate) state: RwLock<NodeState>,
    /// Held shared by who adds a name to this directory, exclusively by who removes the directory.
    pub(crate) children: RwLock<()>,
    pub(crate) pending_times: Mutex<PendingTimes>,
    dying: AtomicBool,
    inode_cache: Arc<InodeCache>,
}

/// A node that is held.
pub type NodeRef = Arc<Node>;

/// What a node knows of its record.
#[derive(Clone, Debug)]
pub(crate) struct NodeState {
    pub(crate) attrs: Attrs,
    pub(crate) location: RecordLocation,
    pub(crate) layout: Layout,
    /// A directory's parent and its name there. Of a file whose record is at its own key a name that it had, if one is known.
    pub(crate) dentry: Option<(u64, NameBuf)>,
    pub(crate) history: EditHistory,
}

/// Where a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordLocation {
    /// In its only name.
    Dentry(u64, NameBuf),
    /// At its own key.
    Own,
    /// Among the orphans. Only a file that was made without a name can be given one.
    Orphan { linkable: bool },
    /// Nowhere.
    Gone,
}

/// Where a regular file's extents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// In the record, or there are none.
    Inline,
    /// At keys of their own.
    Regions,
}

/// Edits merged into one value since it was last written whole, as far as is known: it only says when to do so again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EditHistory {
    /// Which region the edits are of; 0 for a small file.
    pub(crate) region: u64,
    pub(crate) edits: u32,
    pub(crate) bytes: u32,
    /// Edits merged into the record of a file whose extents are at keys of their own.
    pub(crate) record_edits: u32,
}

impl EditHistory {
    /// Whether there is nothing to remember.
    pub(crate) fn is_empty(&self) -> bool {
        self.edits == 0 && self.record_edits == 0
    }
}

/// When names in a directory changed, as far as that may not be in its record yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PendingTimes {
    /// Whether `shown` is to be committed at the next cut.
    pub(crate) pending: bool,
    /// Latest since the node was made or its times were set: what its times are.
    pub(crate) shown: Option<InodeTime>,
    /// How many there were since the node was made.
    pub(crate) count: u64,
    /// Whether the times were set since the node was made, in place of what had been shown.
    pub(crate) was_set: bool,
}

impl PendingTimes {
    /// What brings the record up to date, `None` if it is.
    pub(crate) fn edit(&self) -> Option<InodeEdit<'static>> {
        let at = self.shown.filter(|_| self.pending)?;
        Some(InodeEdit { mtime: Some(at), ctime_max: Some(at), ..InodeEdit::default() })
    }
}

impl NodeState {
    pub(crate) fn new(inode: &Inode<'_>, location: RecordLocation) -> NodeState {
        NodeState {
            attrs: inode.attrs,
            location,
            layout: if matches!(inode.content, InodeContent::Regions) {
                Layout::Regions
            } else {
                Layout::Inline
            },
            dentry: match inode.content {
                InodeContent::Directory(parent, name) => Some((parent, NameBuf::from_slice(name))),
                _ => None,
            },
            history: EditHistory::default(),
        }
    }

    /// The key of the record, `None` if it has none any more.
    pub(crate) fn record_key(&self, volume: VolumeId, ino: u64) -> Option<KeyBuf> {
        match &self.location {
            RecordLocation::Dentry(dir, name) => Some(dentry_key(volume, *dir, name)),
            RecordLocation::Own => Some(inode_key(volume, ino)),
            RecordLocation::Orphan { .. } => Some(Key::Orphan(volume, ino).encode()),
            RecordLocation::Gone => None,
        }
    }

    /// Whether the last name is gone.
    pub(crate) fn is_unlinked(&self) -> bool {
        matches!(self.location, RecordLocation::Orphan { .. } | RecordLocation::Gone)
    }
}

impl Node {
    pub(crate) fn new(inode_cache: &Arc<InodeCache>, ino: u64, state: NodeState) -> Node {
        Node {
            ino,
            kind: state.attrs.kind,
            state: RwLock::new(state),
            children: RwLock::new(()),
            pending_times: Mutex::default(),
            dying: AtomicBool::new(false),
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

    /// Ends dying: the change that would have removed the file failed.
    pub(crate) fn revive(&self) {
        self.dying.store(false, Ordering::Release);
    }

    /// The attributes in `state`, with times of changes that are still on their way to the record.
    pub(crate) fn current(&self, state: &NodeState) -> Attrs {
        let mut attrs = state.attrs;
        if self.is_dir()
            && let Some(t) = self.pending_times.lock().shown
        {
            attrs.mtime = t;
            attrs.ctime = attrs.ctime.max(t);
        }
        attrs
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let node = std::ptr::from_ref(self);
        self.inode_cache.remove_node(self.ino, node, self.state.get_mut());
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {} ({:?})", self.ino, self.kind)
    }
}
