//! Showing attributes.

use warpfire_format::fs::{Attrs, Content, FileKind, Inode};
use warpfire_meta::{SliceStore, Store};

use super::attr::{Attr, attr_of};
use crate::damage::NO_RECORD;
use crate::error::FsError;
use crate::fs::{AtimeMode, Fs};
use crate::limits::RELATIME_SECONDS;
use crate::node::Node;
use crate::tx::Call;

impl<E: Store + SliceStore> Fs<E> {
    /// What `stat` shows.
    #[must_use]
    pub fn getattr(&self, node: &Node) -> Attr {
        self.call(|| Call::Attributes { node: node.ino() }, || self.getattr_in_turn(node))
    }

    fn getattr_in_turn(&self, node: &Node) -> Attr {
        attr_of(node.ino(), &node.current(&node.state.read()))
    }

    /// A symbolic link's target.
    ///
    /// # Errors
    /// `Invalid` if the node is no symbolic link.
    pub fn readlink(&self, node: &Node) -> Result<Vec<u8>, FsError> {
        self.call(|| Call::Target { node: node.ino() }, || self.readlink_in_turn(node))
    }

    fn readlink_in_turn(&self, node: &Node) -> Result<Vec<u8>, FsError> {
        if node.kind() != FileKind::Symlink {
            return Err(FsError::Invalid("not a symbolic link"));
        }
        let state = node.state.read();
        let mut value = Vec::new();
        let Some(key) = state.home_key(self.volume, node.ino()) else { return Err(FsError::NotFound) };
        if !self.get(&key, &mut value)? {
            return Err(lost());
        }
        let Content::Symlink(target) = Inode::decode(&value)?.content else { return Err(lost()) };
        let target = target.to_vec();
        drop(state);
        self.was_read(node)?;
        Ok(target)
    }

    /// Renews the access time if it is due.
    pub(crate) fn was_read(&self, node: &Node) -> Result<(), FsError> {
        let _turn = self.turns.take();
        let attrs = node.current(&node.state.read());
        if self.atime_is_due(&attrs) { self.renew_atime(node, self.now()) } else { Ok(()) }
    }

    /// Whether a read now renews the access time: if that is not later than the last change, or is a day old.
    pub(crate) fn atime_is_due(&self, attrs: &Attrs) -> bool {
        if self.options.atime == AtimeMode::Never {
            return false;
        }
        let changed = attrs.atime <= attrs.mtime || attrs.atime <= attrs.ctime;
        changed || self.now().seconds.saturating_sub(attrs.atime.seconds) >= RELATIME_SECONDS
    }
}

/// A record that must be there is not.
pub(crate) fn lost() -> FsError {
    NO_RECORD.into()
}
