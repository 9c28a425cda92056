//! Extended attributes, access control lists included.
//!
//! # Invariants
//! 1. An inode with an extended attribute has `flag::XATTRS`, so an inode without the flag needs no read. The
//!    flag stays when the last attribute is removed.
//! 2. The flags for lists and capabilities agree with the attributes: both change in one commit (`setxattr`,
//!    `removexattr`, `plan_acl`).
//! 3. The access list agrees with the mode bits (`plan_acl`, `chmod_acl`; `acl` defines it).

use warpfire_format::Corrupt;
use warpfire_format::fs::{FileKind, InodeEdit, InodeTime, Key, decode_xattr, encode_xattr, flag};
use warpfire_meta::{Admit, Batch, Direction, KeyRange, ScanPage, Storage};

use super::access::subject;
use super::set::CAPABILITY;
use crate::acl::{Acl, Caller, Perm, XATTR_ACCESS, XATTR_DEFAULT};
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::{xattr_key, xattr_range};
use crate::limits::{PAGE_BYTES, PAGE_ENTRIES, XATTR_BYTES_MAX, XATTR_LIST_BYTES_MAX};
use crate::node::{Node, NodeState};
use crate::op::{HeapBytes, Operation, PureRead, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

/// Whether `setxattr` makes an attribute or replaces it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// It does either.
    #[default]
    Either,
    /// The attribute must not exist.
    Create,
    /// The attribute must exist.
    Replace,
}

/// The value of an attribute's key.
pub(crate) fn encode(value: &[u8]) -> Vec<u8> {
    debug_assert!(value.len() <= XATTR_BYTES_MAX, "the caller has checked the length");
    let mut out = Vec::with_capacity(value.len() + 1);
    encode_xattr(&mut out, value);
    out
}

/// The attribute's bytes in the value of its key.
pub(crate) fn decode(value: &[u8]) -> Result<&[u8], Corrupt> {
    decode_xattr(value)
}

/// The namespace of an attribute, which its name begins with. It decides which callers may read and change
/// it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum XattrNamespace {
    User,
    Trusted,
    Security,
    Acl,
}

/// The namespace of an attribute's name.
///
/// # Errors
/// `Range` for a name that is empty, too long or has a NUL; `Unsupported` for other namespaces.
fn namespace_of(name: &[u8]) -> Result<XattrNamespace, FsError> {
    if name.is_empty() || name.len() > warpfire_format::fs::XATTR_NAME_BYTES_MAX || name.contains(&0) {
        return Err(FsError::Range(name.len()));
    }
    let spaces: [(&[u8], XattrNamespace); 3] = [
        (b"user.", XattrNamespace::User),
        (b"trusted.", XattrNamespace::Trusted),
        (b"security.", XattrNamespace::Security),
    ];
    if name == XATTR_ACCESS || name == XATTR_DEFAULT {
        return Ok(XattrNamespace::Acl);
    }
    let found = spaces.iter().find(|(prefix, _)| name.len() > prefix.len() && name.starts_with(prefix));
    found.map(|(_, space)| *space).ok_or(FsError::Unsupported)
}

impl<E: Storage> Fs<E> {
    /// The value of an attribute, up to 64 KiB.
    ///
    /// # Errors
    /// `NoAttribute` if the inode has none of that name; `Unsupported` for an unknown namespace; `Range` for
    /// a name that is too long; `AccessDenied`.
    pub fn getxattr(&self, caller: &Caller<'_>, node: &Node, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let record = || GetXattr { caller: RecordedCaller::of(caller), node: node.ino(), name: name.into() };
        self.call(record, || {
            let space = namespace_of(name)?;
            let state = node.state.read();
            self.permit_xattr(caller, node, &state, space, Perm::READ)?;
            if state.attrs.flags & flag::XATTRS == 0 {
                return Err(FsError::NoAttribute);
            }
            let mut value = Vec::new();
            if !self.get(&xattr_key(node.ino(), name), &mut value)? {
                return Err(FsError::NoAttribute);
            }
            Ok(decode(&value)?.to_vec())
        })
    }

    /// The names of all attributes that the caller may see, in the order of their bytes, each with a NUL
    /// after it.
    ///
    /// # Errors
    /// `ValueTooLarge` if they are more than 64 KiB.
    pub fn listxattr(&self, caller: &Caller<'_>, node: &Node) -> Result<Vec<u8>, FsError> {
        let record = || ListXattrs { caller: RecordedCaller::of(caller), node: node.ino() };
        self.call(record, || {
            let state = node.state.read();
            let mut names = Vec::new();
            if state.attrs.flags & flag::XATTRS == 0 {
                return Ok(names);
            }
            self.for_each_xattr(node.ino(), &mut |name| {
                if caller.is_root() || !name.starts_with(b"trusted.") {
                    names.extend_from_slice(name);
                    names.push(0);
                }
                if names.len() > XATTR_LIST_BYTES_MAX { Err(FsError::ValueTooLarge) } else { Ok(()) }
            })?;
            Ok(names)
        })
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// `Exists` or `NoAttribute` as `mode` asks; `ValueTooLarge` above 64 KiB; `Invalid` for a malformed
    /// list; `NotPermitted`, `AccessDenied`, `Unsupported` as on Linux.
    pub fn setxattr(
        &self,
        caller: &Caller<'_>,
        node: &Node,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        let record = || SetXattr {
            caller: RecordedCaller::of(caller),
            node: node.ino(),
            name: name.into(),
            value: value.into(),
            mode,
        };
        self.call(record, || {
            let space = namespace_of(name)?;
            if value.len() > XATTR_BYTES_MAX {
                return Err(FsError::ValueTooLarge);
            }
            let mut state = node.state.write();
            self.permit_xattr(caller, node, &state, space, Perm::WRITE)?;
            // A directory that was removed has no record, and nothing would remove the attribute again.
            if state.is_unlinked() && node.is_dir() {
                return Err(FsError::NotFound);
            }
            let key = xattr_key(node.ino(), name);
            if mode != XattrMode::Either {
                let there = state.attrs.flags & flag::XATTRS != 0 && self.get(&key, &mut Vec::new())?;
                match mode {
                    XattrMode::Create if there => return Err(FsError::Exists),
                    XattrMode::Replace if !there => return Err(FsError::NoAttribute),
                    _ => {}
                }
            }
            let mut scratch = Scratch::take();
            let now = self.now();
            // A list may become mode bits alone, and it changes the mode, so it has a plan of its own.
            if space == XattrNamespace::Acl {
                let list = Acl::from_xattr(value)?;
                let edit =
                    self.plan_acl(caller, node, &state, name, list.as_ref(), now, &mut scratch.batch)?;
                return self.commit_edit(node, &mut state, &edit, &mut scratch.batch, Admit::User);
            }
            scratch.batch.put_naming(&key, &encode(value), []);
            let mut flags = state.attrs.flags | flag::XATTRS;
            if name == CAPABILITY {
                flags |= flag::CAPABILITY;
            }
            let edit = InodeEdit { ctime: Some(now), flags: Some(flags), ..InodeEdit::default() };
            self.commit_edit(node, &mut state, &edit, &mut scratch.batch, Admit::User)
        })
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `NoAttribute` if the inode has none of that name; otherwise as `setxattr`.
    pub fn removexattr(&self, caller: &Caller<'_>, node: &Node, name: &[u8]) -> Result<(), FsError> {
        let record =
            || RemoveXattr { caller: RecordedCaller::of(caller), node: node.ino(), name: name.into() };
        self.call(record, || {
            let space = namespace_of(name)?;
            let mut state = node.state.write();
            self.permit_xattr(caller, node, &state, space, Perm::WRITE)?;
            let key = xattr_key(node.ino(), name);
            let there = state.attrs.flags & flag::XATTRS != 0 && self.get(&key, &mut Vec::new())?;
            if !there {
                return Err(FsError::NoAttribute);
            }
            let mut scratch = Scratch::take();
            scratch.batch.delete(&key);
            // `flag::XATTRS` stays: other attributes may be left, and a scan for them costs more than it
            // saves.
            let gone = match name {
                XATTR_ACCESS => flag::ACL,
                XATTR_DEFAULT => flag::DEFAULT_ACL,
                CAPABILITY => flag::CAPABILITY,
                _ => 0,
            };
            let flags = Some(state.attrs.flags & !gone);
            let edit = InodeEdit { ctime: Some(self.now()), flags, ..InodeEdit::default() };
            self.commit_edit(node, &mut state, &edit, &mut scratch.batch, Admit::Reserve)
        })
    }

    /// Plans the change of a list, or its removal with `None`. The permissions of an access list become the
    /// mode's, and a list that means no more than the mode is not stored.
    #[expect(clippy::too_many_arguments, reason = "one step of `setxattr`, with its state")]
    fn plan_acl(
        &self,
        caller: &Caller<'_>,
        node: &Node,
        state: &NodeState,
        name: &[u8],
        list: Option<&Acl>,
        now: InodeTime,
        batch: &mut Batch,
    ) -> Result<InodeEdit<'static>, FsError> {
        let mut edit = InodeEdit { ctime: Some(now), ..InodeEdit::default() };
        let is_access = name == XATTR_ACCESS;
        debug_assert!(is_access || name == XATTR_DEFAULT, "an inode has two lists");
        // Only a directory has a default list. The removal of one that is not there succeeds, as on Linux.
        if !is_access && !node.is_dir() {
            return if list.is_some() { Err(FsError::AccessDenied) } else { Ok(edit) };
        }
        let bit = if is_access { flag::ACL } else { flag::DEFAULT_ACL };
        let mut kept = list.is_some();
        // The mode follows as from a chmod, so a caller outside of the file's group loses the set-group-id
        // bit.
        if let (true, Some(list)) = (is_access, list) {
            let file = subject(&state.attrs);
            let wanted = file.mode & !0o777 | list.mode();
            // The kernel leaves this to the filesystem, also if it has checked permissions.
            let mode = crate::acl::mode_after_chmod(&file, wanted, &Caller { checked: false, ..*caller });
            edit.permissions = Some((mode & 0o7777) as u16);
            kept = list.equivalent_mode().is_none();
        }
        let key = xattr_key(node.ino(), name);
        match list.filter(|_| kept) {
            Some(list) => {
                batch.put_naming(&key, &encode(&list.to_xattr()), []);
                edit.flags = Some(state.attrs.flags | flag::XATTRS | bit);
            }
            None => {
                batch.delete(&key);
                edit.flags = Some(state.attrs.flags & !bit);
            }
        }
        Ok(edit)
    }

    /// Checks that the caller may read or write (`want`) an attribute of this namespace.
    fn permit_xattr(
        &self,
        caller: &Caller<'_>,
        node: &Node,
        state: &NodeState,
        space: XattrNamespace,
        want: Perm,
    ) -> Result<(), FsError> {
        let attrs = &state.attrs;
        let writes = want == Perm::WRITE;
        debug_assert!(writes || want == Perm::READ, "an attribute is read or written");
        // The rules of xattr(7). A caller that may not see an attribute learns only that it does not exist.
        match space {
            // The kernel checks these two itself, by capabilities. It also removes `security.capability` in
            // the name of any user that changes the content of the file.
            XattrNamespace::Trusted | XattrNamespace::Security if caller.checked => Ok(()),
            XattrNamespace::Trusted if !caller.is_root() => {
                Err(if writes { FsError::NotPermitted } else { FsError::NoAttribute })
            }
            XattrNamespace::Security if writes && !caller.is_root() => Err(FsError::NotPermitted),
            XattrNamespace::Trusted | XattrNamespace::Security => Ok(()),
            XattrNamespace::Acl if node.kind() == FileKind::Symlink => Err(FsError::Unsupported),
            XattrNamespace::Acl if writes && !subject(attrs).is_owned_by(caller) => {
                Err(FsError::NotPermitted)
            }
            XattrNamespace::Acl => Ok(()),
            XattrNamespace::User => {
                if !matches!(node.kind(), FileKind::Regular | FileKind::Directory) {
                    return Err(if writes { FsError::NotPermitted } else { FsError::NoAttribute });
                }
                let sticky = node.is_dir() && attrs.permissions & 0o1000 != 0;
                if writes && sticky && !subject(attrs).is_owned_by(caller) {
                    return Err(FsError::NotPermitted);
                }
                self.permit(caller, node.ino(), attrs, want)
            }
        }
    }

    /// Visits the names of all attributes of an inode, in the order of their bytes.
    pub(crate) fn for_each_xattr(
        &self,
        ino: u64,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let (mut start, end) = xattr_range(ino);
        // One snapshot for all pages: the walk sees the attributes of one moment.
        let snapshot = self.engine.snapshot();
        let at = self.engine.seq(&snapshot);
        let mut page = ScanPage::default();
        loop {
            let range = KeyRange { start: &start, end: Some(&end) };
            self.engine.scan(range, at, Direction::Forward, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
            for entry in page.iter() {
                if let Key::Xattr(_, _, name) = Key::decode(entry.key)? {
                    visit(name)?;
                }
            }
            // The next key in order is the last one with a zero byte after it.
            let Some(last) = page.iter().last().filter(|_| page.more) else { return Ok(()) };
            start = last.key.into();
            start.push(0);
        }
    }
}

/// [`Fs::getxattr`] as a journal keeps it.
struct GetXattr {
    caller: RecordedCaller,
    node: u64,
    name: Box<[u8]>,
}

impl<E: Storage> Operation<Fs<E>> for GetXattr {
    fn name(&self) -> &'static str {
        "read extended attributes"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.name.heap_bytes()
    }

    fn pure_read(&self) -> Option<PureRead> {
        Some(PureRead::of_all(self.node))
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.getxattr(&self.caller.get(), scene.node(self.node)?, &self.name).map(drop)
    }
}

/// [`Fs::listxattr`] as a journal keeps it.
struct ListXattrs {
    caller: RecordedCaller,
    node: u64,
}

impl<E: Storage> Operation<Fs<E>> for ListXattrs {
    fn name(&self) -> &'static str {
        "read extended attributes"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes()
    }

    fn pure_read(&self) -> Option<PureRead> {
        Some(PureRead::of_all(self.node))
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.listxattr(&self.caller.get(), scene.node(self.node)?).map(drop)
    }
}

/// [`Fs::setxattr`] as a journal keeps it.
struct SetXattr {
    caller: RecordedCaller,
    node: u64,
    name: Box<[u8]>,
    value: Box<[u8]>,
    mode: XattrMode,
}

impl<E: Storage> Operation<Fs<E>> for SetXattr {
    fn name(&self) -> &'static str {
        "set extended attributes"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.name.heap_bytes() + self.value.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.setxattr(&self.caller.get(), scene.node(self.node)?, &self.name, &self.value, self.mode)
    }
}

/// [`Fs::removexattr`] as a journal keeps it.
struct RemoveXattr {
    caller: RecordedCaller,
    node: u64,
    name: Box<[u8]>,
}

impl<E: Storage> Operation<Fs<E>> for RemoveXattr {
    fn name(&self) -> &'static str {
        "set extended attributes"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.name.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.removexattr(&self.caller.get(), scene.node(self.node)?, &self.name)
    }
}
