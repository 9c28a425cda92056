//! The model: a filesystem in its plainest form, nodes by number, each whole in memory.
//!
//! It is the oracle of every test here. A copy of a [`Model`] shares its nodes and costs one pointer for
//! each, so a workload keeps a copy for each of its operations.
//!
//! # Invariants
//! 1. Node 0 is the root directory. Every other node has `links` names; a directory has one name. In a clone
//!    a file may have fewer names: it keeps its number of links.
//! 2. An operation that fails changes nothing.
//! 3. A clone is a copy of all nodes below a directory, in a volume of its own. Its root has another volume
//!    than the directory with its name, which is its door.

mod answer;
mod apply;
mod clones;
mod content;
mod errno;
mod names;
mod picture;

use std::collections::BTreeMap;
use std::sync::Arc;

use warpfire_env::Timestamp;
use warpfire_fs::FileKind;

pub use answer::{ModelAnswer, OpOutput, Stat};
pub use content::{FileContent, PAGE};
pub use errno::Errno;
pub use picture::{Picture, PictureEntry, show_path};

/// A file's name in a directory.
pub type Name = Vec<u8>;

/// Names from the root down; empty for the root itself.
pub type Path = Vec<Name>;

type NodeId = u64;

const ROOT: NodeId = 0;

/// Bits of a node's number below the number of its fork. No fork makes 2^32 nodes.
const FORK_BITS: u32 = 32;

/// Longest name.
const NAME_BYTES_MAX: usize = 255;

#[derive(Clone, Debug)]
enum Body {
    File(FileContent),
    Directory(BTreeMap<Name, NodeId>),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Clone, Debug)]
struct ModelNode {
    kind: FileKind,
    permissions: u32,
    uid: u32,
    gid: u32,
    links: u32,
    mtime: Timestamp,
    ctime: Timestamp,
    xattrs: BTreeMap<Name, Vec<u8>>,
    /// How often room was reserved in it.
    reservations: u32,
    /// The number of its volume; 0 is the first one.
    volume: u32,
    body: Body,
}

/// A tree of names and everything behind them.
#[derive(Clone, Debug)]
pub struct Model {
    nodes: BTreeMap<NodeId, Arc<ModelNode>>,
    next: NodeId,
    /// The picture of each snapshot, by its name.
    snapshots: BTreeMap<Name, Arc<Picture>>,
    /// The nodes of each snapshot, by its name.
    trees: BTreeMap<Name, Arc<BTreeMap<NodeId, Arc<ModelNode>>>>,
    /// The name of the snapshot of each bookmark, by the name of the bookmark.
    bookmarks: BTreeMap<Name, Name>,
    /// Of each clone that was made: the number of origins that its readers pass. The first one has number 1.
    origins: Vec<usize>,
}

impl Model {
    /// A new, empty filesystem.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        let root = ModelNode {
            kind: FileKind::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            mtime: now,
            ctime: now,
            xattrs: BTreeMap::new(),
            reservations: 0,
            volume: 0,
            body: Body::Directory(BTreeMap::new()),
        };
        Model {
            nodes: BTreeMap::from([(ROOT, Arc::new(root))]),
            next: ROOT + 1,
            snapshots: BTreeMap::new(),
            trees: BTreeMap::new(),
            bookmarks: BTreeMap::new(),
            origins: Vec::new(),
        }
    }

    /// A copy for a transaction. The copy's number is part of the numbers of its new nodes, so that no two
    /// forks make the same node.
    #[must_use]
    pub(crate) fn fork(&self, number: u64) -> Model {
        Model {
            nodes: self.nodes.clone(),
            next: number << FORK_BITS,
            snapshots: BTreeMap::new(),
            trees: BTreeMap::new(),
            bookmarks: BTreeMap::new(),
            origins: self.origins.clone(),
        }
    }

    /// The nodes of a fork, as the next state of this model.
    #[must_use]
    pub(crate) fn replaced_by(&self, fork: Model) -> Model {
        Model { nodes: fork.nodes, ..self.clone() }
    }

    /// The names of the snapshots.
    pub fn snapshots(&self) -> impl Iterator<Item = &Name> {
        self.snapshots.keys()
    }

    /// Whether a rollback to this snapshot is possible: there is one, and no clone, neither now nor then.
    #[must_use]
    pub(crate) fn may_roll_back(&self, snapshot: &Name) -> bool {
        let has_no_clone = |nodes: &BTreeMap<NodeId, Arc<ModelNode>>| nodes.values().all(|n| n.volume == 0);
        has_no_clone(&self.nodes) && self.trees.get(snapshot).is_some_and(|then| has_no_clone(then))
    }

    /// The names of the bookmarks.
    pub fn bookmarks(&self) -> impl Iterator<Item = &Name> {
        self.bookmarks.keys()
    }

    /// Takes over the times of directories from the product, through `find`. When several transactions change
    /// a directory, no rule determines which of their times it has.
    pub(crate) fn take_times_of_directories<E>(
        &mut self,
        mut find: impl FnMut(&Path) -> Result<(Timestamp, Timestamp), E>,
    ) -> Result<(), E> {
        for (path, _) in self.paths().into_iter().filter(|(_, kind)| *kind == FileKind::Directory) {
            let times = find(&path)?;
            let id = self.lookup(&path).unwrap_or_else(|_| unreachable!("the path was just listed"));
            let node = self.node_mut(id);
            (node.mtime, node.ctime) = times;
        }
        Ok(())
    }

    /// Nodes that exist, the root among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether only the root exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 1
    }

    /// Every path and the kind of its node, in order, the root first.
    #[must_use]
    pub fn paths(&self) -> Vec<(Path, FileKind)> {
        let mut found = Vec::new();
        self.walk(ROOT, &mut Vec::new(), &mut |path, id| found.push((path.clone(), self.node(id).kind)));
        found
    }

    /// Every path and the number of its node, in the same order.
    #[must_use]
    pub fn nodes_by_path(&self) -> Vec<(Path, u64)> {
        let mut found = Vec::new();
        self.walk(ROOT, &mut Vec::new(), &mut |path, id| found.push((path.clone(), id)));
        found
    }

    /// The numbers of regular files, directories, symbolic links, other nodes, and names.
    #[must_use]
    pub fn counts(&self) -> [u64; 5] {
        let of_kind = |wanted: fn(&Body) -> bool| self.nodes.values().filter(|n| wanted(&n.body)).count();
        let names = self.paths().len() - 1;
        let nodes = [
            of_kind(|body| matches!(body, Body::File(_))),
            of_kind(|body| matches!(body, Body::Directory(_))),
            of_kind(|body| matches!(body, Body::Symlink(_))),
            of_kind(|body| matches!(body, Body::Special)),
            names,
        ];
        nodes.map(|n| n as u64)
    }

    /// A regular file's length; `None` if the path leads to no regular file.
    #[must_use]
    pub fn size_bytes(&self, path: &Path) -> Option<u64> {
        match &self.node(self.lookup(path).ok()?).body {
            Body::File(content) => Some(content.size_bytes()),
            Body::Directory(_) | Body::Symlink(_) | Body::Special => None,
        }
    }

    /// Names of a node's extended attributes.
    #[must_use]
    pub fn xattrs(&self, path: &Path) -> Vec<Name> {
        self.lookup(path).map_or_else(|_| Vec::new(), |id| self.node(id).xattrs.keys().cloned().collect())
    }

    fn node(&self, id: NodeId) -> &ModelNode {
        self.nodes.get(&id).expect("a name leads to a node that exists")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut ModelNode {
        Arc::make_mut(self.nodes.get_mut(&id).expect("a name leads to a node that exists"))
    }

    fn walk(&self, id: NodeId, path: &mut Path, visit: &mut dyn FnMut(&Path, NodeId)) {
        visit(path, id);
        if let Body::Directory(names) = &self.node(id).body {
            for (name, child) in names {
                path.push(name.clone());
                self.walk(*child, path, visit);
                path.pop();
            }
        }
    }
}
