//! Calls that read attributes, and the renewal of access times.

use std::hash::{Hash, Hasher};

use warpfire_format::fs::{Attrs, FileKind, Inode, InodeContent};
use warpfire_meta::Storage;

use super::attr::{Attr, attr_of};
use crate::damage::NO_RECORD;
use crate::error::FsError;
use crate::fs::{AtimeMode, Fs};
use crate::limits::RELATIME_SECONDS;
use crate::node::Node;
use crate::op::{CallNumber, Digestible, Operation, PureRead, ReplayScene};
use crate::stamp::stamp;

impl<E: Storage> Fs<E> {
    /// The attributes of a file. They are in memory, so the call cannot fail.
    #[must_use]
    pub fn getattr(&self, node: &Node) -> Attr {
        let record = || ReadAttributes { node: node.ino() };
        self.call(record, || attr_of(node.ino(), &node.current(&node.state.read())))
    }

    /// As `getattr`, with the number of the call in the journal of the transaction, for
    /// [`Fs::mark_unseen`]. `None` outside of a transaction, and if its journal has ended.
    #[must_use]
    pub fn getattr_numbered(&self, node: &Node) -> (Attr, Option<CallNumber>) {
        let record = || ReadAttributes { node: node.ino() };
        let run = || attr_of(node.ino(), &node.current(&node.state.read()));
        self.call_gate.call_numbered(|| stamp(self.clock.now()), record, run)
    }

    /// Notes that the answer of a `getattr_numbered` has reached no program, so that no conflict comes from
    /// it.
    pub fn mark_unseen(&self, number: CallNumber) {
        self.call_gate.mark_unseen(number);
    }

    /// As `getattr`, for a caller that passes only the kind, the permissions and the owner on to a program.
    /// In a transaction nothing else counts as read.
    #[must_use]
    pub fn permissions(&self, node: &Node) -> Attr {
        let record = || ReadPermissions { node: node.ino() };
        self.call(record, || Permissions(attr_of(node.ino(), &node.current(&node.state.read())))).0
    }

    /// As `getattr`, for a caller that passes nothing of the answer on to a program. In a transaction nothing
    /// counts as read.
    #[must_use]
    pub fn unseen_attributes(&self, node: &Node) -> Attr {
        let _guard = self.call_gate.enter();
        attr_of(node.ino(), &node.current(&node.state.read()))
    }

    /// Whether the file was made in this transaction, so that nobody else knows it.
    #[must_use]
    pub fn is_made_here(&self, node: &Node) -> bool {
        self.numbers.has_drawn(node.ino())
    }

    /// The target of a symbolic link, 1 to 4095 bytes.
    ///
    /// # Errors
    /// `Invalid` if the node is not a symbolic link; `NotFound` if the link has been removed.
    pub fn readlink(&self, node: &Node) -> Result<Vec<u8>, FsError> {
        let record = || ReadTarget { node: node.ino() };
        self.call(record, || {
            if node.kind() != FileKind::Symlink {
                return Err(FsError::Invalid("not a symbolic link"));
            }
            let state = node.state.read();
            let mut value = Vec::new();
            let Some(key) = state.record_key(node.ino()) else { return Err(FsError::NotFound) };
            if !self.get(&key, &mut value)? {
                return Err(missing_record());
            }
            let InodeContent::Symlink(target) = Inode::decode(&value)?.content else {
                return Err(missing_record());
            };
            let target = target.to_vec();
            // The renewal takes the state for writing.
            drop(state);
            self.renew_atime_if_due(node)?;
            Ok(target)
        })
    }

    /// Renews the access time if it is due.
    pub(crate) fn renew_atime_if_due(&self, node: &Node) -> Result<(), FsError> {
        let _guard = self.call_gate.enter();
        let attrs = node.current(&node.state.read());
        if self.atime_is_due(&attrs) { self.renew_atime(node, self.now()) } else { Ok(()) }
    }

    /// Whether a read now renews the access time: it is not later than the last change, or it is a day old.
    pub(crate) fn atime_is_due(&self, attrs: &Attrs) -> bool {
        match self.options.atime {
            _ if self.options.read_only => return false,
            AtimeMode::Never => return false,
            AtimeMode::Strict => return true,
            AtimeMode::Relatime => {}
        }
        let changed = attrs.atime <= attrs.mtime || attrs.atime <= attrs.ctime;
        changed || self.now().seconds.saturating_sub(attrs.atime.seconds) >= RELATIME_SECONDS
    }
}

/// The error of an inode in use without a record.
pub(crate) fn missing_record() -> FsError {
    NO_RECORD.into()
}

/// [`Fs::getattr`] as a journal keeps it.
struct ReadAttributes {
    node: u64,
}

impl<E: Storage> Operation<Fs<E>> for ReadAttributes {
    fn name(&self) -> &'static str {
        "read attributes"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        0
    }

    fn pure_read(&self) -> Option<PureRead> {
        Some(PureRead::of_all(self.node))
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let _ = fs.getattr(scene.node(self.node)?);
        Ok(())
    }
}

/// Attributes of which only those count that decide about access.
struct Permissions(Attr);

impl Digestible for Permissions {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.0.ino, self.0.mode, self.0.uid, self.0.gid, self.0.rdev).hash(state);
    }
}

/// [`Fs::permissions`] as a journal keeps it.
struct ReadPermissions {
    node: u64,
}

impl<E: Storage> Operation<Fs<E>> for ReadPermissions {
    fn name(&self) -> &'static str {
        "read permissions"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        0
    }

    fn pure_read(&self) -> Option<PureRead> {
        Some(PureRead::of_all(self.node))
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let _ = fs.permissions(scene.node(self.node)?);
        Ok(())
    }
}

/// [`Fs::readlink`] as a journal keeps it.
struct ReadTarget {
    node: u64,
}

impl<E: Storage> Operation<Fs<E>> for ReadTarget {
    fn name(&self) -> &'static str {
        "read a link"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        0
    }

    fn pure_read(&self) -> Option<PureRead> {
        Some(PureRead::of_all(self.node))
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.readlink(scene.node(self.node)?).map(drop)
    }
}
