//! Calls as they are written down: names and numbers, never nodes; long data as slices.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use warpfire_meta::{SliceStore, Store};
use warpfire_units::SlicePtr;

use super::begin::Inside;
use super::savepoint::Savepoint;
use crate::acl::{Caller, Groups, Perm};
use crate::attrs::{NewMode, SetAttr, XattrMode};
use crate::data::{AllocMode, Position, ReadAt, Seek, Source};
use crate::error::FsError;
use crate::fs::ROOT_INO;
use crate::names::{NewFile, RenameMode};
use crate::node::{Name, NodeRef};
use crate::path::Follow;
use crate::slice::{Inserted, Yanked};
use warpfire_format::fs::FileKind;

/// Groups, by number.
#[derive(Clone, Debug)]
struct Kept(Box<[u32]>);

impl Groups for Kept {
    fn contains(&self, gid: u32) -> bool {
        self.0.contains(&gid)
    }

    fn all(&self) -> Vec<u32> {
        self.0.to_vec()
    }
}

/// Who called.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    uid: u32,
    gid: u32,
    groups: Kept,
    checked: bool,
}

impl Who {
    pub(crate) fn of(caller: &Caller<'_>) -> Who {
        Who {
            uid: caller.uid,
            gid: caller.gid,
            groups: Kept(caller.groups.all().into()),
            checked: caller.checked,
        }
    }

    fn caller(&self) -> Caller<'_> {
        Caller { uid: self.uid, gid: self.gid, groups: &self.groups, checked: self.checked }
    }
}

/// Bytes that were written. Short ones rode in the change and are kept; of longer ones only where they are.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Bytes(Box<[u8]>),
    Slices(Arc<[SlicePtr]>),
}

/// What was inserted into a file.
#[derive(Clone, Debug)]
pub(crate) enum KeptInserted {
    Hole(u64),
    Slice(Yanked),
}

impl KeptInserted {
    fn given(&self) -> Inserted<'_> {
        match self {
            KeptInserted::Hole(len_bytes) => Inserted::Hole(*len_bytes),
            KeptInserted::Slice(slice) => Inserted::Slice(slice),
        }
    }
}

impl Data {
    /// What was staged, without the bytes of slices.
    pub(crate) fn of(source: &Source<'_>) -> Data {
        match source {
            Source::Bytes(bytes) => Data::Bytes((*bytes).into()),
            Source::Slices(slices) => Data::Slices(slices.as_slice().into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Data::Bytes(bytes) => bytes,
            Data::Slices(_) => &[],
        }
    }

    fn source(&self) -> Source<'_> {
        match self {
            Data::Bytes(bytes) => Source::Bytes(bytes),
            Data::Slices(slices) => Source::Slices(slices.to_vec()),
        }
    }
}

/// A call. Files are inode numbers. There may be very many: what is long and rare is in a box.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Lookup {
        who: Who,
        dir: u64,
        name: Name,
    },
    Parent {
        dir: u64,
    },
    /// A savepoint, by number.
    Mark {
        number: u64,
    },
    /// Going back to one.
    Back {
        number: u64,
    },
    Resolve {
        who: Who,
        base: u64,
        path: Box<[u8]>,
        follow: Follow,
    },
    List {
        who: Who,
        dir: u64,
        after: Option<Name>,
        max: usize,
    },
    /// As `List`, with nodes and their attributes, on a handle: who asks was asked when it was opened. At most `max` were taken.
    Visit {
        dir: u64,
        after: Option<Name>,
        max: usize,
    },
    Make {
        who: Who,
        dir: u64,
        name: Name,
        kind: FileKind,
        mode: NewMode,
        rdev: u64,
        content: Data,
        set: Option<Box<SetAttr>>,
        keeps_node: bool,
    },
    Tmpfile {
        who: Who,
        dir: u64,
        mode: NewMode,
    },
    Unlink {
        who: Who,
        dir: u64,
        name: Name,
    },
    Rmdir {
        who: Who,
        dir: u64,
        name: Name,
    },
    Link {
        who: Who,
        node: u64,
        dir: u64,
        name: Name,
    },
    Rename {
        who: Who,
        from: (u64, Name),
        to: (u64, Name),
        mode: RenameMode,
    },
    Read {
        node: u64,
        parts: Box<[(u64, usize)]>,
    },
    ReadFile {
        who: Who,
        dir: u64,
        name: Name,
    },
    Seek {
        node: u64,
        what: Seek,
        offset: u64,
    },
    /// `tells`: whether the caller learned where it went.
    Write {
        who: Who,
        node: u64,
        position: Position,
        data: Data,
        tells: bool,
    },
    Truncate {
        who: Who,
        node: u64,
        size: u64,
    },
    Allocate {
        who: Who,
        node: u64,
        mode: AllocMode,
        offset: u64,
        len: u64,
    },
    Copy {
        who: Who,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    },
    /// `told`: what the caller got, kept for itself; `None` if it failed.
    Yank {
        node: u64,
        offset: u64,
        len: u64,
        told: Option<Yanked>,
    },
    Paste {
        who: Who,
        node: u64,
        position: Position,
        slice: Yanked,
    },
    Replace {
        who: Who,
        node: u64,
        slice: Yanked,
    },
    Insert {
        who: Who,
        node: u64,
        offset: u64,
        inserted: KeptInserted,
    },
    Remove {
        who: Who,
        node: u64,
        offset: u64,
        len: u64,
    },
    Concat {
        who: Who,
        target: u64,
        sources: Box<[u64]>,
    },
    Attributes {
        node: u64,
    },
    /// `tells`: whether the caller learned what they are then.
    SetAttributes {
        who: Who,
        node: u64,
        set: Box<SetAttr>,
        tells: bool,
    },
    Target {
        node: u64,
    },
    Access {
        who: Who,
        node: u64,
        want: Perm,
    },
    GetXattr {
        who: Who,
        node: u64,
        name: Box<[u8]>,
    },
    ListXattr {
        who: Who,
        node: u64,
    },
    SetXattr {
        who: Who,
        node: u64,
        name: Box<[u8]>,
        value: Box<[u8]>,
        mode: XattrMode,
    },
    RemoveXattr {
        who: Who,
        node: u64,
        name: Box<[u8]>,
    },
}

/// Names read ahead of a visit that is repeated.
const VISIT_AT_ONCE: usize = 256;

/// What calls gave that later calls need, by number.
#[derive(Default)]
pub(crate) struct Scene {
    pub(crate) nodes: Nodes,
    savepoints: HashMap<u64, Savepoint, FixedState>,
    /// A value that was yanked again has other bytes than it had.
    pub(crate) has_other_bytes: bool,
}

type Nodes = HashMap<u64, NodeRef, FixedState>;

/// The node with this number: what an earlier call gave. If none did, the earlier call has answered otherwise.
fn node(nodes: &Nodes, ino: u64) -> Result<&NodeRef, FsError> {
    nodes.get(&ino).ok_or(FsError::NotFound)
}

impl Call {
    /// What people call it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Call::Lookup { .. } | Call::Resolve { .. } => "look up",
            Call::Parent { .. } => "look up the parent",
            Call::Mark { .. } | Call::Back { .. } => "go back",
            Call::List { .. } | Call::Visit { .. } => "list",
            Call::Make { kind: FileKind::Directory, .. } => "make a directory",
            Call::Make { .. } | Call::Tmpfile { .. } => "create",
            Call::Unlink { .. } => "unlink",
            Call::Rmdir { .. } => "remove a directory",
            Call::Link { .. } => "link",
            Call::Rename { .. } => "rename",
            Call::Read { .. } | Call::ReadFile { .. } => "read",
            Call::Seek { .. } => "seek",
            Call::Write { .. } => "write",
            Call::Truncate { .. } => "truncate",
            Call::Allocate { .. } => "allocate",
            Call::Copy { .. } => "copy a range",
            Call::Yank { .. } => "yank",
            Call::Paste { .. } => "paste",
            Call::Replace { .. } => "replace content",
            Call::Insert { .. } => "insert a range",
            Call::Remove { .. } => "remove a range",
            Call::Concat { .. } => "concatenate",
            Call::Attributes { .. } => "read attributes",
            Call::SetAttributes { .. } => "set attributes",
            Call::Target { .. } => "read a link",
            Call::Access { .. } => "check permission",
            Call::GetXattr { .. } | Call::ListXattr { .. } => "read extended attributes",
            Call::SetXattr { .. } | Call::RemoveXattr { .. } => "set extended attributes",
        }
    }

    /// The file it was about, and the name in it if it was about one.
    pub(crate) fn subject(&self) -> (u64, &[u8]) {
        match self {
            Call::Lookup { dir, name, .. }
            | Call::Make { dir, name, .. }
            | Call::Unlink { dir, name, .. }
            | Call::Rmdir { dir, name, .. }
            | Call::Link { dir, name, .. }
            | Call::ReadFile { dir, name, .. }
            | Call::Rename { from: (dir, name), .. } => (*dir, name),
            Call::Resolve { base, path, .. } => (*base, path),
            Call::Mark { .. } | Call::Back { .. } => (ROOT_INO, b""),
            Call::Parent { dir }
            | Call::List { dir, .. }
            | Call::Visit { dir, .. }
            | Call::Tmpfile { dir, .. } => (*dir, b""),
            Call::Copy { to: (node, _), .. }
            | Call::Read { node, .. }
            | Call::Seek { node, .. }
            | Call::Write { node, .. }
            | Call::Truncate { node, .. }
            | Call::Allocate { node, .. }
            | Call::Yank { node, .. }
            | Call::Paste { node, .. }
            | Call::Replace { node, .. }
            | Call::Insert { node, .. }
            | Call::Remove { node, .. }
            | Call::Concat { target: node, .. }
            | Call::Attributes { node }
            | Call::SetAttributes { node, .. }
            | Call::Target { node }
            | Call::Access { node, .. }
            | Call::GetXattr { node, .. }
            | Call::ListXattr { node, .. }
            | Call::SetXattr { node, .. }
            | Call::RemoveXattr { node, .. } => (*node, b""),
        }
    }

    /// Makes the call. What it answers is in the journal of `fs`; nodes that it gives are kept in `scene`.
    pub(crate) fn make<E: Store + SliceStore>(&self, fs: &Inside<E>, scene: &mut Scene) {
        // Each call writes down its own error; whether it is the same as then is for the journals to say.
        let _ = self.try_make(fs, scene);
    }

    fn try_make<E: Store + SliceStore>(&self, fs: &Inside<E>, scene: &mut Scene) -> Result<(), FsError> {
        let mut keep = None;
        let nodes = &mut scene.nodes;
        match self {
            Call::Lookup { who, dir, name } => {
                keep = Some(fs.lookup(&who.caller(), node(nodes, *dir)?, name)?)
            }
            Call::Mark { number } => _ = scene.savepoints.insert(*number, fs.mark(*number)),
            Call::Back { number } => {
                fs.go_back(scene.savepoints.get(number).ok_or(FsError::NotFound)?)?;
            }
            Call::Parent { dir } => keep = Some(fs.parent(node(nodes, *dir)?)?),
            Call::Resolve { who, base, path, follow } => {
                let found = fs.resolve_parent(&who.caller(), node(nodes, *base)?, path, *follow)?;
                nodes.insert(found.dir.ino(), found.dir);
                keep = found.node;
            }
            Call::List { who, dir, after, max } => {
                fs.readdir(&who.caller(), node(nodes, *dir)?, after.as_deref(), *max)?;
            }
            Call::Visit { dir, after, max } => {
                let (dir, mut left) = (NodeRef::clone(node(nodes, *dir)?), *max);
                fs.visit_told(&dir, after.as_deref(), left.min(VISIT_AT_ONCE), &mut |_, found| {
                    let full = left == 0;
                    if let Some(found) = found.filter(|_| !full) {
                        left -= 1;
                        nodes.insert(found.ino(), NodeRef::clone(found));
                    }
                    full
                })?;
            }
            Call::Make { who, dir, name, kind, mode, rdev, content, set, keeps_node } => {
                let new = NewFile {
                    kind: *kind,
                    mode: *mode,
                    rdev: *rdev,
                    content: content.bytes(),
                    set: set.as_deref(),
                };
                let (caller, source) = (who.caller(), content.source());
                keep = fs.make_source(&caller, node(nodes, *dir)?, name, &new, &source, *keeps_node)?.1;
            }
            Call::Tmpfile { who, dir, mode } => {
                keep = Some(fs.tmpfile(&who.caller(), node(nodes, *dir)?, *mode)?)
            }
            Call::Unlink { who, dir, name } => fs.unlink(&who.caller(), node(nodes, *dir)?, name)?,
            Call::Rmdir { who, dir, name } => fs.rmdir(&who.caller(), node(nodes, *dir)?, name)?,
            Call::Link { who, node: file, dir, name } => {
                fs.link(&who.caller(), node(nodes, *file)?, node(nodes, *dir)?, name)?;
            }
            Call::Rename { who, from, to, mode } => {
                let (source, target) = (node(nodes, from.0)?, node(nodes, to.0)?);
                fs.rename(&who.caller(), (source, &from.1), (target, &to.1), *mode)?;
            }
            Call::Read { node: file, parts } => {
                let mut buffers: Vec<Vec<u8>> = parts.iter().map(|(_, len)| vec![0; *len]).collect();
                let starts = parts.iter().map(|(offset, _)| *offset);
                let mut reads: Vec<ReadAt<'_>> =
                    starts.zip(&mut buffers).map(|(offset, buf)| ReadAt::new(offset, buf)).collect();
                fs.read_many(node(nodes, *file)?, &mut reads)?;
            }
            Call::ReadFile { who, dir, name } => _ = fs.read_file(&who.caller(), node(nodes, *dir)?, name)?,
            Call::Seek { node: file, what, offset } => _ = fs.seek(node(nodes, *file)?, *what, *offset)?,
            Call::Write { who, node: file, position, data, tells } => {
                fs.write_source(&who.caller(), node(nodes, *file)?, *position, &data.source(), *tells)?;
            }
            Call::Truncate { who, node: file, size } => {
                fs.truncate(&who.caller(), node(nodes, *file)?, *size)?
            }
            Call::Allocate { who, node: file, mode, offset, len } => {
                fs.fallocate(&who.caller(), node(nodes, *file)?, *mode, *offset, *len)?;
            }
            Call::Copy { who, from, to, len } => {
                let (source, target) = (node(nodes, from.0)?, node(nodes, to.0)?);
                fs.copy_range(&who.caller(), (source, from.1), (target, to.1), *len)?;
            }
            Call::Yank { node: file, offset, len, told } => {
                let now = fs.yank(node(nodes, *file)?, *offset, *len)?;
                // What can not be read is not known to be the same.
                let is_same =
                    told.as_ref().is_some_and(|told| fs.are_same_bytes(told, &now).unwrap_or(false));
                scene.has_other_bytes |= !is_same;
            }
            Call::Paste { who, node: file, position, slice } => {
                fs.paste(&who.caller(), node(nodes, *file)?, *position, slice)?;
            }
            Call::Replace { who, node: file, slice } => {
                fs.replace_content(&who.caller(), node(nodes, *file)?, slice)?;
            }
            Call::Insert { who, node: file, offset, inserted } => {
                fs.insert_range(&who.caller(), node(nodes, *file)?, *offset, inserted.given())?;
            }
            Call::Remove { who, node: file, offset, len } => {
                fs.remove_range(&who.caller(), node(nodes, *file)?, *offset, *len)?;
            }
            Call::Concat { who, target, sources } => {
                let sources: Vec<NodeRef> =
                    sources.iter().map(|ino| node(nodes, *ino).cloned()).collect::<Result<_, _>>()?;
                fs.concat(&who.caller(), node(nodes, *target)?, &sources)?;
            }
            Call::Attributes { node: file } => _ = fs.getattr(node(nodes, *file)?),
            Call::SetAttributes { who, node: file, set, tells } => {
                fs.setattr_and_tell(&who.caller(), node(nodes, *file)?, set, *tells)?;
            }
            Call::Target { node: file } => _ = fs.readlink(node(nodes, *file)?)?,
            Call::Access { who, node: file, want } => fs.access(&who.caller(), node(nodes, *file)?, *want)?,
            Call::GetXattr { who, node: file, name } => {
                fs.getxattr(&who.caller(), node(nodes, *file)?, name)?;
            }
            Call::ListXattr { who, node: file } => _ = fs.listxattr(&who.caller(), node(nodes, *file)?)?,
            Call::SetXattr { who, node: file, name, value, mode } => {
                fs.setxattr(&who.caller(), node(nodes, *file)?, name, value, *mode)?;
            }
            Call::RemoveXattr { who, node: file, name } => {
                fs.removexattr(&who.caller(), node(nodes, *file)?, name)?;
            }
        }
        if let Some(node) = keep {
            nodes.insert(node.ino(), node);
        }
        Ok(())
    }
}
