//! Paths, for programs that call the library. The mount's kernel walks by itself.

use std::hash::{Hash, Hasher};

use warpfire_format::fs::FileKind;
use warpfire_meta::Storage;

use crate::acl::Caller;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::{PATH_BYTES_MAX, SYMLINKS_MAX};
use crate::node::{NameBuf, NodeRef};
use crate::op::{Digestible, HeapBytes, Operation, RecordedCaller, ReplayScene};

/// Whether a symbolic link at a path's end is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// To where it leads.
    Yes,
    /// Not: the link itself is meant.
    No,
}

/// Where a path's last name is.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The directory that holds, or would hold, the last name.
    pub dir: NodeRef,
    /// The last name; empty if the path leads to a directory by `/`, `.` or `..`, which is then `node`.
    pub name: NameBuf,
    /// What is there, if anything.
    pub node: Option<NodeRef>,
    /// Whether the path ended in a slash: only a directory is meant.
    pub wants_dir: bool,
}

/// What is still to be walked.
struct PathWalk {
    rest: Vec<u8>,
    links: u32,
}

impl<E: Storage> Fs<E> {
    /// The node at a path. A path that begins with `/` starts at the root, others at `base`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `AccessDenied`, `SymlinkLoop` above 40 links, `NameTooLong` above 255 bytes a name or 4095 a path.
    pub fn resolve(
        &self,
        caller: &Caller<'_>,
        base: &NodeRef,
        path: &[u8],
        follow: Follow,
    ) -> Result<NodeRef, FsError> {
        let resolved = self.resolve_parent(caller, base, path, follow)?;
        resolved.node.ok_or(FsError::NotFound)
    }

    /// As `resolve`, but the last name need not be there: for making, removing and renaming. A link that is followed to where nothing is
    /// gives the name that it leads to.
    ///
    /// # Errors
    /// As `resolve`.
    pub fn resolve_parent(
        &self,
        caller: &Caller<'_>,
        base: &NodeRef,
        path: &[u8],
        follow: Follow,
    ) -> Result<Resolved, FsError> {
        let record = || ResolvePath {
            caller: RecordedCaller::of(caller),
            base: base.ino(),
            path: path.into(),
            follow,
        };
        self.call(record, || {
            if path.is_empty() {
                return Err(FsError::NotFound);
            }
            if path.len() > PATH_BYTES_MAX {
                return Err(FsError::NameTooLong);
            }
            if path.contains(&0) {
                return Err(FsError::Invalid("a path holds no NUL"));
            }
            let mut walk = PathWalk { rest: path.to_vec(), links: 0 };
            let mut at = NodeRef::clone(base);
            loop {
                let (name, last, wants_dir) = match walk.next() {
                    PathStep::Root => {
                        at = self.root();
                        continue;
                    }
                    PathStep::End => {
                        return Ok(Resolved {
                            dir: NodeRef::clone(&at),
                            name: NameBuf::new(),
                            node: Some(at),
                            wants_dir: true,
                        });
                    }
                    PathStep::Name { name, last, wants_dir } => (name, last, wants_dir),
                };
                if name == b"." || name == b".." {
                    at = self.lookup(caller, &at, &name)?;
                    if last {
                        return Ok(Resolved {
                            dir: NodeRef::clone(&at),
                            name: NameBuf::new(),
                            node: Some(at),
                            wants_dir: true,
                        });
                    }
                    continue;
                }
                let node = match self.lookup(caller, &at, &name) {
                    Err(FsError::NotFound) if last => None,
                    other => Some(other?),
                };
                let Some(node) = node else {
                    return Ok(Resolved { dir: at, name: NameBuf::from_vec(name), node: None, wants_dir });
                };
                if node.kind() == FileKind::Symlink && (!last || follow == Follow::Yes || wants_dir) {
                    walk.follow(&self.readlink(&node)?)?;
                    continue;
                }
                if (!last || wants_dir) && !node.is_dir() {
                    return Err(FsError::NotDirectory);
                }
                if last {
                    return Ok(Resolved {
                        dir: at,
                        name: NameBuf::from_vec(name),
                        node: Some(node),
                        wants_dir,
                    });
                }
                at = node;
            }
        })
    }
}

enum PathStep {
    /// The walk starts over at the root.
    Root,
    Name {
        name: Vec<u8>,
        last: bool,
        wants_dir: bool,
    },
    End,
}

impl PathWalk {
    fn next(&mut self) -> PathStep {
        let slashes = self.rest.iter().take_while(|b| **b == b'/').count();
        if slashes > 0 {
            self.rest.drain(..slashes);
            return PathStep::Root;
        }
        let len = self.rest.iter().position(|b| *b == b'/').unwrap_or(self.rest.len());
        if len == 0 {
            return PathStep::End;
        }
        let name: Vec<u8> = self.rest.drain(..len).collect();
        let slashes = self.rest.iter().take_while(|b| **b == b'/').count();
        self.rest.drain(..slashes);
        PathStep::Name { name, last: self.rest.is_empty(), wants_dir: slashes > 0 && self.rest.is_empty() }
    }

    /// Puts a link's target before what is left of the path.
    fn follow(&mut self, target: &[u8]) -> Result<(), FsError> {
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            return Err(FsError::SymlinkLoop);
        }
        let rest = std::mem::take(&mut self.rest);
        self.rest.extend_from_slice(target);
        if !rest.is_empty() {
            self.rest.push(b'/');
            self.rest.extend_from_slice(&rest);
        }
        // Links that grow the path are bounded by their number: 40 times 4095 bytes.
        Ok(())
    }
}

/// [`Fs::resolve_parent`] as a journal keeps it.
struct ResolvePath {
    caller: RecordedCaller,
    base: u64,
    path: Box<[u8]>,
    follow: Follow,
}

impl<E: Storage> Operation<Fs<E>> for ResolvePath {
    fn name(&self) -> &'static str {
        "look up"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.base, &self.path)
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.path.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let base = scene.node(self.base)?;
        let resolved = fs.resolve_parent(&self.caller.get(), base, &self.path, self.follow)?;
        scene.add(resolved.dir);
        if let Some(node) = resolved.node {
            scene.add(node);
        }
        Ok(())
    }
}

impl Digestible for Resolved {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.dir.ino(), self.name.as_slice(), self.wants_dir).hash(state);
        self.node.as_ref().map(|node| (node.ino(), node.kind() as u8)).hash(state);
    }
}
