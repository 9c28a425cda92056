//! Permission checks: they bring the mode and the list of an inode to the decisions of `acl`.

use warpfire_format::fs::{Attrs, flag};
use warpfire_meta::Storage;

use super::mode_of;
use crate::acl::{Acl, AclError, Caller, Perm, Subject, XATTR_ACCESS, may_delete_from};
use crate::damage::MALFORMED_LIST;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::xattr_key;
use crate::node::Node;
use crate::op::{HeapBytes, Operation, PureRead, RecordedCaller, ReplayScene};

impl From<AclError> for FsError {
    /// The error for a list that a caller sets.
    fn from(e: AclError) -> Self {
        match e {
            // As Linux answers a version that it does not know.
            AclError::Version(_) => FsError::Unsupported,
            _ => FsError::Invalid("not a well-formed access control list"),
        }
    }
}

/// The attributes that permissions depend on, without a list.
pub(crate) fn subject(attrs: &Attrs) -> Subject<'static> {
    debug_assert!(attrs.permissions <= 0o7777, "the kind of a file is not among its permissions");
    Subject { uid: attrs.uid, gid: attrs.gid, mode: mode_of(attrs), acl: None }
}

impl<E: Storage> Fs<E> {
    /// Checks that the caller has all permissions of `want`.
    ///
    /// # Errors
    /// `AccessDenied` if it has not; `Damaged` for a list that does not decode.
    pub fn access(&self, caller: &Caller<'_>, node: &Node, want: Perm) -> Result<(), FsError> {
        let record = || CheckAccess { caller: RecordedCaller::of(caller), node: node.ino(), want };
        self.call(record, || {
            let attrs = node.state.read().attrs;
            self.permit(caller, node.ino(), &attrs, want)
        })
    }

    /// Checks that the caller has all permissions of `want` on an inode with these attributes.
    ///
    /// # Errors
    /// As `access`.
    pub(crate) fn permit(
        &self,
        caller: &Caller<'_>,
        ino: u64,
        attrs: &Attrs,
        want: Perm,
    ) -> Result<(), FsError> {
        let plain = subject(attrs);
        // A list never changes the answer for root and the owner, so its read is saved.
        let listed = attrs.flags & flag::ACL != 0 && !caller.is_root() && caller.uid != attrs.uid;
        let permitted = if listed {
            let list = self.read_acl(ino, XATTR_ACCESS)?;
            Subject { acl: list.as_ref(), ..plain }.permits(caller, want)
        } else {
            plain.permits(caller, want)
        };
        if permitted { Ok(()) } else { Err(FsError::AccessDenied) }
    }

    /// Checks that the caller may take the name of a file that belongs to `victim_uid` out of `dir`.
    pub(crate) fn permit_removal(
        &self,
        caller: &Caller<'_>,
        dir: &Node,
        victim_uid: u32,
    ) -> Result<(), FsError> {
        debug_assert!(dir.is_dir(), "a name is removed from a directory");
        let attrs = dir.state.read().attrs;
        self.permit(caller, dir.ino(), &attrs, Perm::WRITE.or(Perm::EXECUTE))?;
        let permitted = may_delete_from(&subject(&attrs), victim_uid, caller);
        if permitted { Ok(()) } else { Err(FsError::NotPermitted) }
    }

    /// The access control list of an inode in the attribute `name`, if it has one.
    ///
    /// # Errors
    /// `Damaged`, also for a stored list that is not well-formed.
    pub(crate) fn read_acl(&self, ino: u64, name: &[u8]) -> Result<Option<Acl>, FsError> {
        let mut value = Vec::new();
        if !self.get(&xattr_key(ino, name), &mut value)? {
            return Ok(None);
        }
        // A list is checked before it is stored.
        Acl::from_xattr(super::xattr::decode(&value)?).map_err(|_| MALFORMED_LIST.into())
    }
}

/// [`Fs::access`] as a journal keeps it.
struct CheckAccess {
    caller: RecordedCaller,
    node: u64,
    want: Perm,
}

impl<E: Storage> Operation<Fs<E>> for CheckAccess {
    fn name(&self) -> &'static str {
        "check permission"
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
        fs.access(&self.caller.get(), scene.node(self.node)?, self.want)
    }
}
