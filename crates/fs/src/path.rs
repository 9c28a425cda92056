//! Path lookup, for programs that use the library. With a mount the kernel splits paths into names.

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
    /// The answer is the file that the link leads to.
    Yes,
    /// The answer is the link itself.
    No,
}

/// The place that a path leads to.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The directory that holds, or would hold, the last name.
    pub dir: NodeRef,
    /// The last name. It is empty if the path ends in `/`, `.` or `..` alone; `node` is that directory then.
    pub name: NameBuf,
    /// The node of the last name, if the name exists.
    pub node: Option<NodeRef>,
    /// Whether the path ended in a slash: then the last name must be a directory.
    pub wants_dir: bool,
}

/// The part of a path that is not walked yet, and the number of symbolic links that were followed.
struct PathWalk {
    rest: Vec<u8>,
    links: u32,
}

impl<E: Storage> Fs<E> {
    /// The node at a path. A path that begins with `/` starts at the root, others at `base`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `AccessDenied`; `SymlinkLoop` above 40 links; `NameTooLong` if a name has
    /// more than 255 bytes or the path more than 4095.
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

    /// The node at a path, for a caller that will read the file: one device read brings a small file whole. A
    /// symbolic link at the end is followed.
    ///
    /// # Errors
    /// As `resolve`.
    pub fn resolve_to_read(
        &self,
        caller: &Caller<'_>,
        base: &NodeRef,
        path: &[u8],
    ) -> Result<NodeRef, FsError> {
        let resolved = self.walk_path(caller, base, path, Follow::Yes, Fs::lookup_to_read)?;
        resolved.node.ok_or(FsError::NotFound)
    }

    /// As `resolve`, but the last name need not exist: for calls that make, remove or rename it. A link that
    /// is followed and leads to a missing name resolves to that name.
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
        self.walk_path(caller, base, path, follow, Fs::lookup)
    }

    /// Walks a path; `lookup_last` looks up the last name.
    fn walk_path(
        &self,
        caller: &Caller<'_>,
        base: &NodeRef,
        path: &[u8],
        follow: Follow,
        lookup_last: impl Fn(&Fs<E>, &Caller<'_>, &NodeRef, &[u8]) -> Result<NodeRef, FsError>,
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
            // One name in each turn. `at` is the directory that the walk is in; a link puts its target before
            // the rest of the path, so links nest without recursion.
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
                    // They lead to a directory without a name to make or remove there.
                    at = self.lookup(caller, &at, &name)?;
                    debug_assert!(at.is_dir(), "'.' and '..' lead to directories");
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
                let node = match last {
                    false => Some(self.lookup(caller, &at, &name)?),
                    true => match lookup_last(self, caller, &at, &name) {
                        Err(FsError::NotFound) => None,
                        other => Some(other?),
                    },
                };
                let Some(node) = node else {
                    return Ok(Resolved { dir: at, name: NameBuf::from_vec(name), node: None, wants_dir });
                };
                // A slash after a link asks for the directory that it leads to, so the link is followed then
                // too.
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

/// The next step of a walk.
enum PathStep {
    /// Go to the root.
    Root,
    /// Go to a name in the directory that the walk is in.
    Name {
        name: Vec<u8>,
        /// Whether the path ends after the name.
        last: bool,
        /// Whether a slash is between the name and the path's end.
        wants_dir: bool,
    },
    /// The path has no name left.
    End,
}

impl PathWalk {
    fn next(&mut self) -> PathStep {
        // Slashes after a name are taken with the name, so slashes here begin a path or a link's target.
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
        debug_assert!(!name.contains(&b'/'), "a name ends before a slash");
        PathStep::Name { name, last: self.rest.is_empty(), wants_dir: slashes > 0 && self.rest.is_empty() }
    }

    /// Puts a link's target before the rest of the path. The number of links bounds the length: 40 times 4095
    /// bytes.
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
        debug_assert!(self.rest.len() >= rest.len() + target.len(), "nothing of the path is lost");
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
