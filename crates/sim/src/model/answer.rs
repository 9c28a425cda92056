//! The answer of an operation: everything that its caller learns. Conflicts of transactions are judged by it.

use warpfire_env::Timestamp;
use warpfire_fs::FileKind;

use super::{Body, Errno, FileContent, Model, Name, NodeId, Path, ROOT};
use crate::op::Op;
use crate::open_transactions::Slots;

/// The output of an operation that succeeds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpOutput {
    /// Success, and no more.
    Nothing,
    /// An offset or a length.
    Number(u64),
    /// Bytes of a file.
    Bytes(Vec<u8>),
    /// Names, in order, and the kinds of their nodes.
    Names(Vec<(Name, FileKind)>),
    /// Attributes.
    Stat(Stat),
}

/// Attributes that calls return. The times of a directory are left out: they move with every name in it, so
/// no transaction conflicts over them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits.
    pub permissions: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Names; of a directory 2 and one for each subdirectory.
    pub links: u32,
    /// Bytes of a file or a link's target; 0 of anything else.
    pub size_bytes: u64,
    /// Last change of content and of anything; `None` for a directory.
    pub times: Option<(Timestamp, Timestamp)>,
}

/// An operation's output, and the nodes that it concerns.
#[derive(Clone, Debug)]
pub struct ModelAnswer {
    pub(crate) output: Result<OpOutput, Errno>,
    visited: Vec<NodeId>,
    /// For calls that return attributes: the file's content, and how often room was reserved in it. The
    /// number of allocated bytes depends on both in a way that the model does not know.
    content_after: Option<(FileContent, u32)>,
}

impl ModelAnswer {
    /// Whether a caller learns the same from both answers; `None` if the model does not know.
    pub(crate) fn is_same(&self, other: &ModelAnswer) -> Option<bool> {
        let ModelAnswer { output, visited, content_after } = self;
        if without_links_of_directories(output) != without_links_of_directories(&other.output)
            || *visited != other.visited
        {
            return Some(false);
        }
        (*content_after == other.content_after).then_some(true)
    }
}

/// The output as far as it can conflict: a directory's count of links depends on names that nobody has asked
/// for.
fn without_links_of_directories(output: &Result<OpOutput, Errno>) -> Result<OpOutput, Errno> {
    match output {
        Ok(OpOutput::Stat(stat)) if stat.kind == FileKind::Directory => {
            Ok(OpOutput::Stat(Stat { links: 0, ..stat.clone() }))
        }
        other => other.clone(),
    }
}

impl Model {
    /// Does an operation as of `now`, and returns everything that the caller learns.
    pub fn answer(&mut self, op: &Op, slots: &Slots, now: Timestamp) -> ModelAnswer {
        let mut visited = self.visited(op);
        let made = self.next;
        let output = self.apply(op, slots, now);
        if self.next != made {
            visited.push(made);
        }
        let content_after = match (op, &output) {
            (Op::SetMode(path, _) | Op::SetOwner(path, ..) | Op::Stat(path), Ok(_)) => {
                let content = |id| Ok((self.content(id)?.clone(), self.node(id).reservations));
                self.lookup(path).and_then(content).ok()
            }
            _ => None,
        };
        ModelAnswer { output, visited, content_after }
    }

    /// The nodes on the operation's paths, and those that it lists.
    fn visited(&self, op: &Op) -> Vec<NodeId> {
        let parent = |path: &'_ Path| path.len().saturating_sub(1);
        // An operation that changes a name visits the directory, but not the node of the name: with another
        // node there its caller would learn the same.
        let (first, second) = match op {
            Op::Create(path)
            | Op::Put(path, _)
            | Op::Mkdir(path)
            | Op::Symlink(path, _)
            | Op::Mkfifo(path)
            | Op::Unlink(path)
            | Op::Rmdir(path) => ((path, parent(path)), None),
            Op::Link(from, to) => ((from, from.len()), Some((to, parent(to)))),
            Op::Rename(from, to, _) => ((from, parent(from)), Some((to, parent(to)))),
            Op::CopyRange(from, _, to, _) => ((from, from.len()), Some((to, to.len()))),
            Op::Write(path, ..)
            | Op::Append(path, _)
            | Op::AppendBlindly(path, _)
            | Op::Truncate(path, _)
            | Op::Allocate(path, _)
            | Op::Punch(path, _)
            | Op::Insert(path, _)
            | Op::Collapse(path, _)
            | Op::SetMode(path, _)
            | Op::SetOwner(path, ..)
            | Op::SetTime(path, _)
            | Op::SetXattr(path, ..)
            | Op::RemoveXattr(path, _)
            | Op::Read(path, _)
            | Op::List(path)
            | Op::Stat(path)
            | Op::Yank(path, ..)
            | Op::Paste(_, path, _)
            | Op::Fsync(path) => ((path, path.len()), None),
            _ => return Vec::new(),
        };
        let mut visited = Vec::new();
        for (path, len) in std::iter::once(first).chain(second) {
            let mut dir = ROOT;
            for name in path.iter().take(len) {
                let Ok(Some(id)) = self.find(dir, name) else { return visited };
                visited.push(id);
                dir = id;
            }
        }
        if let (Op::List(path), Some(dir)) = (op, visited.last().copied().or(Some(ROOT)))
            && let Body::Directory(names) = &self.node(dir).body
            && visited.len() == path.len()
        {
            visited.extend(names.values());
        }
        visited
    }

    pub(super) fn stat(&self, id: NodeId) -> Stat {
        let node = self.node(id);
        let size_bytes = match &node.body {
            Body::File(content) => content.size_bytes(),
            Body::Symlink(target) => target.len() as u64,
            Body::Directory(_) | Body::Special => 0,
        };
        Stat {
            kind: node.kind,
            permissions: node.permissions,
            owner: (node.uid, node.gid),
            links: node.links,
            size_bytes,
            times: (node.kind != FileKind::Directory).then_some((node.mtime, node.ctime)),
        }
    }

    pub(super) fn list(&self, path: &Path) -> Result<OpOutput, Errno> {
        match &self.node(self.lookup(path)?).body {
            Body::Directory(names) => {
                let entries = names.iter().map(|(name, id)| (name.clone(), self.node(*id).kind));
                Ok(OpOutput::Names(entries.collect()))
            }
            Body::File(_) | Body::Symlink(_) | Body::Special => Err(Errno(libc::ENOTDIR)),
        }
    }
}
