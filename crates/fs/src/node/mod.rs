//! Inodes in use.
//!
//! # Terms
//! A node's *record* is its inode in the store; its *home* is the key that holds the record.
//!
//! # Invariants
//! 1. At most one live node stands for an inode number.
//! 2. A node's state equals its record, but for a directory's pending touch.
//! 3. A record that exists is changed only by who holds its node's state for writing; `Touch` is the one exception, and its
//!    changes commute with all but those that set the same time (`dirty`).
//! 4. After each change of a record, and before its node's state is let go, the stripe of its home moves on (`stripes`). So
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

mod stripes;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use warpfire_format::fs::{
    Attrs, Content, FileKind, Inode, InodeEdit, Key, KeyBuf, NAME_BYTES_MAX, Stamp, VolumeId, dentry_key,
    inode_key,
};

use crate::error::FsError;

pub(crate) use stripes::Stripes;
pub(crate) use table::{Found, Table};

/// A name in a directory.
pub(crate) type Name = SmallVec<[u8; 24]>;

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
    pub(crate) state: RwLock<State>,
    /// Held shared by who adds a name to this directory, exclusively by who removes the directory.
    pub(crate) children: RwLock<()>,
    pub(crate) touch: Mutex<Touch>,
    dying: AtomicBool,
    table: Arc<Table>,
}

/// A node that is held.
pub type NodeRef = Arc<Node>;

/// What a node knows of its record.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) attrs: Attrs,
    pub(crate) home: Home,
    pub(crate) layout: Layout,
    /// A directory's parent and its name there. Of a file whose record is at its own key a name that it had, if one is known.
    pub(crate) place: Option<(u64, Name)>,
    pub(crate) history: History,
}

/// Where a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In its only name.
    Dentry(u64, Name),
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
pub(crate) struct History {
    /// Which region the edits are of; 0 for a small file.
    pub(crate) region: u64,
    pub(crate) edits: u32,
    pub(crate) bytes: u32,
    /// Edits merged into the record of a file whose extents are at keys of their own.
    pub(crate) record_edits: u32,
}

impl History {
    /// Whether there is nothing to remember.
    pub(crate) fn is_empty(&self) -> bool {
        self.edits == 0 && self.record_edits == 0
    }
}

/// When names in a directory changed, as far as that may not be in its record yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Touch {
    /// Whether `shown` is to be committed at the next cut.
    pub(crate) pending: bool,
    /// Latest since the node was made or its times were set: what its times are.
    pub(crate) shown: Option<Stamp>,
    /// How many there were since the node was made.
    pub(crate) count: u64,
    /// Whether the times were set since the node was made, in place of what had been shown.
    pub(crate) was_set: bool,
}

impl Touch {
    /// What brings the record up to date, `None` if it is.
    pub(crate) fn edit(&self) -> Option<InodeEdit<'static>> {
        let at = self.shown.filter(|_| self.pending)?;
        Some(InodeEdit { mtime: Some(at), ctime_max: Some(at), ..InodeEdit::default() })
    }
}

impl State {
    pub(crate) fn new(inode: &Inode<'_>, home: Home) -> State {
        State {
            attrs: inode.attrs,
            home,
            layout: if matches!(inode.content, Content::Regions) { Layout::Regions } else { Layout::Inline },
            place: match inode.content {
                Content::Directory(parent, name) => Some((parent, Name::from_slice(name))),
                _ => None,
            },
            history: History::default(),
        }
    }

    /// The key of the record, `None` if it has none any more.
    pub(crate) fn home_key(&self, volume: VolumeId, ino: u64) -> Option<KeyBuf> {
        match &self.home {
            Home::Dentry(dir, name) => Some(dentry_key(volume, *dir, name)),
            Home::Own => Some(inode_key(volume, ino)),
            Home::Orphan { .. } => Some(Key::Orphan(volume, ino).encode()),
            Home::Gone => None,
        }
    }

    /// Whether the last name is gone.
    pub(crate) fn is_unlinked(&self) -> bool {
        matches!(self.home, Home::Orphan { .. } | Home::Gone)
    }
}

impl Node {
    pub(crate) fn new(table: &Arc<Table>, ino: u64, state: State) -> Node {
        Node {
            ino,
            kind: state.attrs.kind,
            state: RwLock::new(state),
            children: RwLock::new(()),
            touch: Mutex::default(),
            dying: AtomicBool::new(false),
            table: Arc::clone(table),
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
    pub(crate) fn current(&self, state: &State) -> Attrs {
        let mut attrs = state.attrs;
        if self.is_dir()
            && let Some(t) = self.touch.lock().shown
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
        self.table.forget(self.ino, node, self.state.get_mut());
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {} ({:?})", self.ino, self.kind)
    }
}
