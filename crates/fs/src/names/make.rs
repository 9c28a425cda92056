//! Calls that make files, directories, links, pipes, sockets and devices, and give them a name.
//!
//! ```text
//!   mkdir, create, symlink, mknod, create_file
//!     └─► make: checks the arguments, stages long content
//!           └─► make_source: one recorded call
//!                 ├─ make_staged: locks, commit
//!                 └─ node_of: the node, if the caller wants it
//!
//!   tmpfile: a file without a name, which is an orphan from the start
//! ```
//!
//! # Invariants
//! 1. Everything that belongs to a new inode is in one commit: name, record, lists, regions, the parent's
//!    links and the sums (`make_staged`, `tmpfile`).
//! 2. Long content goes to the slice store before any lock is taken, so no lock waits for a device (`make`).

use std::hash::{Hash, Hasher};

use warpfire_format::fs::{
    Attrs, Dentry, ExtentReader, FileKind, Inode, InodeContent, InodeEdit, InodeTime, SMALL_FILE_BYTES_MAX,
    encode_region, flag,
};
use warpfire_meta::{Admit, Batch, Slices, Storage};

use crate::acl::{Acl, Caller, InheritedAcl, Perm, XATTR_ACCESS, XATTR_DEFAULT, inherit};
use crate::attrs::{NewMode, SetAttr};
use crate::data::{RecordedContent, WriteSource, by_region};
use crate::deferred::{BYTES, INODES};
use crate::error::FsError;
use crate::fs::{Fs, new_attrs};
use crate::keys::{dentry_key, inode_key, orphan_key, region_key, stored, xattr_key};
use crate::limits::{FILE_BYTES_MAX, LINKS_MAX, TARGET_BYTES_MAX};
use crate::node::{NameBuf, NodeLookup, NodeRef, NodeState, RecordLocation, RecordWatch, check_name};
use crate::op::{Digestible, HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

const S_ISGID: u32 = 0o2000;

/// A file that a call makes.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// Kind of file.
    pub kind: FileKind,
    /// Its mode, and the caller's umask.
    pub mode: NewMode,
    /// Number of a device; 0 for other kinds.
    pub rdev: u64,
    /// Target of a symbolic link, or content of a regular file.
    pub content: &'a [u8],
    /// Attributes to set in the same commit, as `setattr` would right after.
    pub set: Option<&'a SetAttr>,
}

/// A new inode before it is written.
struct DraftInode {
    ino: u64,
    attrs: Attrs,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl<E: Storage> Fs<E> {
    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists`, `NotFound` if `dir` is gone, `AccessDenied`, `TooManyLinks`, `NoSpace`, `NameTooLong`.
    pub fn mkdir(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        mode: NewMode,
    ) -> Result<NodeRef, FsError> {
        self.make_node(
            caller,
            dir,
            name,
            &NewFile { kind: FileKind::Directory, mode, rdev: 0, content: b"", set: None },
        )
    }

    /// Makes an empty regular file that must not exist yet.
    ///
    /// # Errors
    /// As `mkdir`.
    pub fn create(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        mode: NewMode,
    ) -> Result<NodeRef, FsError> {
        self.make_node(
            caller,
            dir,
            name,
            &NewFile { kind: FileKind::Regular, mode, rdev: 0, content: b"", set: None },
        )
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As `mkdir`; `NameTooLong` for a target above 4095 bytes, `NotFound` for an empty one.
    pub fn symlink(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        target: &[u8],
    ) -> Result<NodeRef, FsError> {
        let mode = NewMode::exact(0o777);
        self.make_node(
            caller,
            dir,
            name,
            &NewFile { kind: FileKind::Symlink, mode, rdev: 0, content: target, set: None },
        )
    }

    /// Makes a pipe, a socket, a device, or an empty regular file.
    ///
    /// # Errors
    /// As `mkdir`; `Invalid` for directories and symbolic links; `NotPermitted` if the caller of a device is
    /// not root.
    pub fn mknod(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        kind: FileKind,
        mode: NewMode,
        rdev: u64,
    ) -> Result<NodeRef, FsError> {
        let rdev = match kind {
            FileKind::Directory | FileKind::Symlink => {
                return Err(FsError::Invalid("mknod makes no such file"));
            }
            FileKind::CharDevice | FileKind::BlockDevice if !caller.is_root() => {
                return Err(FsError::NotPermitted);
            }
            FileKind::CharDevice | FileKind::BlockDevice => rdev,
            _ => 0,
        };
        self.make_node(caller, dir, name, &NewFile { kind, mode, rdev, content: b"", set: None })
    }

    /// Makes a regular file with its content in one commit and returns its inode number. It makes no node,
    /// which saves the work when nobody opens the file.
    ///
    /// # Errors
    /// As `mkdir`; `FileTooLarge`.
    pub fn create_file(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        mode: NewMode,
        data: &[u8],
    ) -> Result<u64, FsError> {
        let new = NewFile { kind: FileKind::Regular, mode, rdev: 0, content: data, set: None };
        self.make(caller, dir, name, &new, false).map(|(ino, _)| ino)
    }

    /// As `create_file`, and sets attributes in the same commit.
    ///
    /// # Errors
    /// As `create_file` and `setattr`; `Invalid` if a size is to be set.
    pub fn create_file_with(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        mode: NewMode,
        data: &[u8],
        set: &SetAttr,
    ) -> Result<u64, FsError> {
        let new = NewFile { kind: FileKind::Regular, mode, rdev: 0, content: data, set: Some(set) };
        self.make(caller, dir, name, &new, false).map(|(ino, _)| ino)
    }

    /// Makes a regular file without a name. `link` can give it one; without a name the file is removed after
    /// its last holder drops the node.
    ///
    /// # Errors
    /// As `mkdir`.
    pub fn tmpfile(&self, caller: &Caller<'_>, dir: &NodeRef, mode: NewMode) -> Result<NodeRef, FsError> {
        let record = || MakeTmpfile { caller: RecordedCaller::of(caller), dir: dir.ino(), mode };
        self.call(record, || {
            let new = NewFile { kind: FileKind::Regular, mode, rdev: 0, content: b"", set: None };
            let now = self.now();
            let mut draft = self.draft(caller, dir, &new, now, Perm::WRITE.or(Perm::EXECUTE))?;
            // An orphan's record, so that a crash before `link` leaves a file that the next open removes.
            draft.attrs.links = 0;
            let mut scratch = Scratch::take();
            let Scratch { batch, value, .. } = &mut *scratch;
            let inode = Inode {
                ino: draft.ino,
                attrs: draft.attrs,
                content: InodeContent::Small(ExtentReader::EMPTY),
            };
            inode.encode(value);
            batch.put_naming(&orphan_key(draft.ino), value, []);
            self.put_acls(&draft, batch);
            batch.add(INODES, 1);
            self.commit(batch, Admit::User)?;
            let state = || NodeState::new(&inode, RecordLocation::Orphan { linkable: true });
            match self.inode_cache.insert_made(draft.ino, || true, state) {
                NodeLookup::Node(node) => Ok(node),
                NodeLookup::Dying(_) | NodeLookup::Stale | NodeLookup::Refused(_) => {
                    unreachable!("no other call knows the number yet")
                }
            }
        })
    }

    fn make_node(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        new: &NewFile<'_>,
    ) -> Result<NodeRef, FsError> {
        let (_, node) = self.make(caller, dir, name, new, true)?;
        node.ok_or(FsError::NotFound)
    }

    pub(crate) fn make(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        new: &NewFile<'_>,
        keeps_node: bool,
    ) -> Result<(u64, Option<NodeRef>), FsError> {
        check_name(name)?;
        check_content(new)?;
        // Before the gate and all locks: the write of long content may wait for devices.
        let source = match new.kind {
            FileKind::Regular if !new.content.is_empty() => {
                WriteSource::stage(&*self.engine, new.content, Admit::User)?
            }
            _ => WriteSource::Bytes(new.content),
        };
        let made = self.make_source(caller, dir, name, new, &source, keeps_node);
        // The commit has taken references of its own. After a failure this release frees the slices.
        source.release(&*self.engine);
        made
    }

    /// Makes a file with the content of `source`, and its node if `keeps_node`. `new.content` is empty if the
    /// source is a slice.
    pub(crate) fn make_source(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        new: &NewFile<'_>,
        source: &WriteSource<'_>,
        keeps_node: bool,
    ) -> Result<(u64, Option<NodeRef>), FsError> {
        let record = || MakeFile {
            caller: RecordedCaller::of(caller),
            dir: dir.ino(),
            name: name.into(),
            kind: new.kind,
            mode: new.mode,
            rdev: new.rdev,
            content: RecordedContent::of(source),
            set: new.set.copied().map(Box::new),
            keeps_node,
        };
        let run = || {
            // The node is made after the locks are released: a listing that finds the name first is as good.
            let (ino, made) = self.make_staged(caller, dir, name, new, source)?;
            let node = if keeps_node { Some(self.node_of(dir, name, ino, made)?) } else { None };
            Ok(CreatedFile(ino, node))
        };
        self.call(record, run).map(|CreatedFile(ino, node)| (ino, node))
    }

    /// The node of a new inode.
    fn node_of(&self, dir: &NodeRef, name: &[u8], ino: u64, made: NewInode<'_>) -> Result<NodeRef, FsError> {
        let found = self.inode_cache.insert_made(ino, || made.watch.is_unmoved(), || made.state);
        match found {
            NodeLookup::Node(node) => Ok(node),
            // Another call has found the name since, and has changed or removed the file.
            NodeLookup::Dying(_) | NodeLookup::Stale => self.find(dir.ino(), name)?.ok_or(FsError::NotFound),
            NodeLookup::Refused(e) => Err(e.into()),
        }
    }

    fn make_staged(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        name: &[u8],
        new: &NewFile<'_>,
        source: &WriteSource<'_>,
    ) -> Result<(u64, NewInode<'_>), FsError> {
        let now = self.now();
        // Until the commit the directory cannot be removed.
        let adding = dir.children.read();
        let key = dentry_key(dir.ino(), name);
        let guard = self.engine.lock(&[&key]);
        let mut scratch = Scratch::take();
        let Scratch { batch, value, .. } = &mut *scratch;
        // A caller without write permission learns that the name exists if it may search the directory: as on
        // Linux, `Exists` comes before `AccessDenied`.
        let taken = self.get(&key, value)?;
        let want = if taken { Perm::EXECUTE } else { Perm::WRITE.or(Perm::EXECUTE) };
        let draft = self.draft(caller, dir, new, now, want);
        if taken {
            return Err(draft.err().unwrap_or(FsError::Exists));
        }
        let mut draft = draft?;
        let is_dir = new.kind == FileKind::Directory;
        let mut tail = Vec::new();
        let mut named = Slices::new();
        value.clear();
        let content = match new.kind {
            FileKind::Regular => {
                draft.attrs.size_bytes = source.len();
                draft.attrs.allocated_bytes = draft.attrs.size_bytes;
                // A small file keeps its extents in the record, after the fixed part. A larger one starts
                // with regions, so no later commit has to promote it.
                let regions = by_region(&source.pieces(0));
                if source.len() <= u64::from(SMALL_FILE_BYTES_MAX) {
                    for (_, extents) in regions {
                        extents.encode(&mut tail);
                        named.extend(extents.pointers());
                    }
                    InodeContent::Small(ExtentReader::EMPTY)
                } else {
                    for (index, extents) in regions {
                        encode_region(&mut tail, &extents, false);
                        batch.put_naming(&region_key(draft.ino, index), &tail, extents.pointers());
                        tail.clear();
                    }
                    InodeContent::Regions
                }
            }
            FileKind::Symlink => {
                draft.attrs.size_bytes = new.content.len() as u64;
                InodeContent::Symlink(new.content)
            }
            FileKind::Directory => InodeContent::Directory(stored(draft.ino, dir.ino()), name),
            _ => InodeContent::None,
        };
        let inode = Inode { ino: draft.ino, attrs: draft.attrs, content };
        inode.encode(value);
        value.extend_from_slice(&tail);
        // A directory has a key of its own, because its children refer to it. The record of anything else is
        // the value of its only name, so a lookup is one read.
        let (location, record_key) = if is_dir {
            let own = inode_key(draft.ino);
            batch.put_naming(&own, value, []);
            value.clear();
            Dentry::encode_reference(value, new.kind, stored(dir.ino(), draft.ino));
            (RecordLocation::Own, own)
        } else {
            (RecordLocation::Dentry(dir.ino(), name.into()), key.clone())
        };
        batch.put_naming(&key, value, named);
        self.put_acls(&draft, batch);
        batch.add(INODES, 1);
        batch.add(BYTES, draft.attrs.allocated_bytes.cast_signed());
        // Before the commit: if it has moved when the node is made, another call has changed the file since.
        let watch = self.version_counters.watch(&record_key);
        if is_dir {
            // The `..` of the new directory is a link to the parent.
            let mut parent = dir.state.write();
            if parent.attrs.links >= LINKS_MAX {
                return Err(FsError::TooManyLinks);
            }
            let edit = InodeEdit { links_add: 1, ..InodeEdit::default() };
            self.commit_edit(dir, &mut parent, &edit, batch, Admit::User)?;
        } else {
            self.commit(batch, Admit::User)?;
        }
        self.defer_times(dir, now);
        let state = NodeState::new(&inode, location);
        debug_assert!(!state.is_unlinked(), "a new file has its name");
        drop(guard);
        drop(adding);
        Ok((draft.ino, NewInode { state, watch }))
    }

    /// Checks that the caller has the permissions `want` for the directory, and decides number, attributes
    /// and lists of a new inode there.
    fn draft(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        new: &NewFile<'_>,
        now: InodeTime,
        want: Perm,
    ) -> Result<DraftInode, FsError> {
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        let parent = {
            let state = dir.state.read();
            if state.is_unlinked() {
                return Err(FsError::NotFound);
            }
            state.attrs
        };
        self.permit(caller, dir.ino(), &parent, want)?;
        let parent_default = if parent.flags & flag::DEFAULT_ACL != 0 {
            self.read_acl(dir.ino(), XATTR_DEFAULT)?
        } else {
            None
        };
        let mut mode = (new.kind as u32) << 12 | new.mode.mode & 0o7777;
        let mut gid = caller.gid;
        // In a set-group-id directory new files belong to its group and new directories pass the bit on. An
        // executable keeps a set-group-id bit of its own only if its maker is in that group; the kernel has
        // cleared the bit already if it checks permissions.
        if u32::from(parent.permissions) & S_ISGID != 0 {
            gid = parent.gid;
            if new.kind == FileKind::Directory {
                mode |= S_ISGID;
            } else if mode & (S_ISGID | 0o010) == S_ISGID | 0o010
                && !(caller.checked || caller.is_root() || caller.is_in(gid))
            {
                mode &= !S_ISGID;
            }
        }
        let InheritedAcl { mode, access, default } = inherit(parent_default.as_ref(), mode, new.mode.umask);
        debug_assert_eq!(mode >> 12, new.kind as u32, "a list changes permissions, not the kind of a file");
        let mut attrs = new_attrs(new.kind, (mode & 0o7777) as u16, now);
        attrs.uid = caller.uid;
        attrs.gid = gid;
        attrs.rdev = new.rdev;
        for (list, bit) in [(&access, flag::ACL), (&default, flag::DEFAULT_ACL)] {
            if list.is_some() {
                attrs.flags |= bit | flag::XATTRS;
            }
        }
        let mut draft = DraftInode { ino: self.new_ino(dir)?, attrs, access, default };
        if let Some(set) = new.set {
            let edit = self.plan_setattr(caller, draft.ino, &draft.attrs, set, now)?;
            edit.apply(&mut draft.attrs)?;
            // The list and the mode agree, as after a chmod.
            if let (Some(permissions), Some(list)) = (edit.permissions, &mut draft.access) {
                list.chmod(u32::from(permissions));
            }
        }
        Ok(draft)
    }

    /// Adds the lists of a new inode to the batch.
    fn put_acls(&self, draft: &DraftInode, batch: &mut Batch) {
        debug_assert_eq!(
            draft.access.is_some(),
            draft.attrs.flags & flag::ACL != 0,
            "a flag says whether the inode has an access list"
        );
        debug_assert_eq!(
            draft.default.is_some(),
            draft.attrs.flags & flag::DEFAULT_ACL != 0,
            "a flag says whether the directory has a default list"
        );
        for (list, name) in [(&draft.access, XATTR_ACCESS), (&draft.default, XATTR_DEFAULT)] {
            if let Some(list) = list {
                let value = crate::attrs::encode_xattr_value(&list.to_xattr());
                batch.put_naming(&xattr_key(draft.ino, name), &value, []);
            }
        }
    }
}

/// A new inode after its commit.
struct NewInode<'a> {
    state: NodeState,
    /// Watches the key of the record since before the commit. If its counter has moved, the inode may have
    /// changed.
    watch: RecordWatch<'a>,
}

/// Checks a file before anything is made.
fn check_content(new: &NewFile<'_>) -> Result<(), FsError> {
    if new.kind == FileKind::Symlink {
        if new.content.is_empty() {
            return Err(FsError::NotFound);
        }
        if new.content.len() > TARGET_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        if new.content.contains(&0) {
            return Err(FsError::Invalid("a target holds no NUL"));
        }
    }
    if new.set.is_some_and(|set| set.size_bytes.is_some()) {
        return Err(FsError::Invalid("a new file is as long as its bytes"));
    }
    if new.content.len() as u64 > FILE_BYTES_MAX {
        return Err(FsError::FileTooLarge);
    }
    Ok(())
}

/// [`Fs::make_source`] as a journal keeps it: every call that makes a file with a name, except `link`.
struct MakeFile {
    caller: RecordedCaller,
    dir: u64,
    name: NameBuf,
    kind: FileKind,
    mode: NewMode,
    rdev: u64,
    content: RecordedContent,
    set: Option<Box<SetAttr>>,
    keeps_node: bool,
}

impl<E: Storage> Operation<Fs<E>> for MakeFile {
    fn name(&self) -> &'static str {
        if self.kind == FileKind::Directory { "make a directory" } else { "create" }
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.dir, &self.name)
    }

    fn heap_bytes(&self) -> usize {
        let set = self.set.as_ref().map_or(0, |_| size_of::<SetAttr>());
        self.caller.heap_bytes() + self.name.heap_bytes() + self.content.heap_bytes() + set
    }

    fn content_bytes(&self) -> usize {
        self.content.content_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let new = NewFile {
            kind: self.kind,
            mode: self.mode,
            rdev: self.rdev,
            content: self.content.bytes(),
            set: self.set.as_deref(),
        };
        let dir = scene.node(self.dir)?;
        let source = self.content.source();
        let made = fs.make_source(&self.caller.get(), dir, &self.name, &new, &source, self.keeps_node)?;
        if let Some(node) = made.1 {
            scene.add(node);
        }
        Ok(())
    }
}

/// [`Fs::tmpfile`] as a journal keeps it.
struct MakeTmpfile {
    caller: RecordedCaller,
    dir: u64,
    mode: NewMode,
}

impl<E: Storage> Operation<Fs<E>> for MakeTmpfile {
    fn name(&self) -> &'static str {
        "create"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.dir, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let node = fs.tmpfile(&self.caller.get(), scene.node(self.dir)?, self.mode)?;
        scene.add(node);
        Ok(())
    }
}

/// The answer of a call that makes a file: its inode number, and its node if the caller asked for it.
struct CreatedFile(u64, Option<NodeRef>);

impl Digestible for CreatedFile {
    fn add_to(&self, state: &mut impl Hasher) {
        self.0.hash(state);
    }
}
