//! Finding a file again: in a transaction that follows another one, by the place that the file had there.

use warpfire_format::fs::FileKind;
use warpfire_meta::Storage;

use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{Node, NodeRef, RecordLocation};
use crate::op::{HeapBytes, Operation, ReplayScene};

/// The place of a file in a transaction, for [`Fs::find_again`] in another one.
#[derive(Clone, Debug)]
pub struct FilePlace {
    ino: u64,
    kind: FileKind,
    location: RecordLocation,
}

impl Node {
    /// The place of the file, as its transaction has left it.
    #[must_use]
    pub fn place(&self) -> FilePlace {
        FilePlace { ino: self.ino(), kind: self.kind(), location: self.state.read().location.clone() }
    }
}

impl<E: Storage> Fs<E> {
    /// The file that had this place in another transaction of the same filesystem. It has no callers'
    /// permissions to check: the caller has the file open.
    ///
    /// # Errors
    /// `NotFound` if the file is gone, or if its only name has changed; `Gone` in a volume that is removed;
    /// `Damaged`, `Ended`.
    pub fn find_again(&self, place: &FilePlace) -> Result<NodeRef, FsError> {
        self.call(
            || FindAgain { place: place.clone() },
            || {
                // The names of a volume that is removed stay for a while.
                self.check_live(place.ino)?;
                let found = match &place.location {
                    RecordLocation::Dentry(dir, name) => self.find(*dir, name)?,
                    RecordLocation::Own => self.at_own_key(place.kind, place.ino)?,
                    RecordLocation::Orphan { .. } | RecordLocation::Gone => None,
                };
                found.filter(|node| node.ino() == place.ino).ok_or(FsError::NotFound)
            },
        )
    }
}

/// [`Fs::find_again`] as a journal keeps it.
struct FindAgain {
    place: FilePlace,
}

impl<E: Storage> Operation<Fs<E>> for FindAgain {
    fn name(&self) -> &'static str {
        "open again"
    }

    fn subject(&self) -> (u64, &[u8]) {
        match &self.place.location {
            RecordLocation::Dentry(dir, name) => (*dir, name),
            _ => (self.place.ino, b""),
        }
    }

    fn heap_bytes(&self) -> usize {
        match &self.place.location {
            RecordLocation::Dentry(_, name) => name.heap_bytes(),
            _ => 0,
        }
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let node = fs.find_again(&self.place)?;
        scene.add(node);
        Ok(())
    }
}
