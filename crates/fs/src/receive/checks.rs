//! Whether a stream fits its target.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpfire_format::fs::{FileKind, decode_xattr};
use warpfire_format::stream::{Received, StreamHeader};
use warpfire_meta::{SnapshotStore, Storage};

use super::ReceiveError;
use super::error::words;
use super::spool::Receiver;
use crate::acl::Caller;
use crate::diff::sides::{DiffSide, DiffSides};
use crate::diff::{Aspect, ChangeKind, Diff};
use crate::error::FsError;
use crate::keys::xattr_key;
use crate::node::NodeRef;
use crate::stamp::stamp;
use crate::transfer::RECEIVED_XATTR;
use crate::tx::Transaction;

const ROOT: Caller<'static> = Caller::ROOT;

/// Snapshots of one name that are numbered.
const NUMBERED_MAX: u32 = 100_000;

impl<E: Storage + SnapshotStore> Receiver<E> {
    /// Whether the target takes this stream, as far as that is known before the last step.
    pub(super) fn check_target(&self, header: &StreamHeader) -> Result<(), ReceiveError> {
        match &header.base {
            None => self.check_vacant(),
            Some(base) => {
                let Some((_, received)) = self.received()? else {
                    return Err(ReceiveError::NeverReceived(words(&base.name)));
                };
                if received.pool != header.pool {
                    return Err(ReceiveError::OtherSource("another pool"));
                }
                if received.root != header.root {
                    return Err(ReceiveError::OtherSource("another directory of that pool"));
                }
                if received.snapshot == header.snapshot {
                    return Err(ReceiveError::AlreadyShown(words(&header.snapshot.name)));
                }
                if received.snapshot.number != base.number || received.snapshot.made != base.made {
                    let (base, shown) = (words(&base.name), words(&received.snapshot.name));
                    return Err(ReceiveError::OtherBase { base, shown });
                }
                match self.fs.snapshot(&received.kept_as) {
                    Err(FsError::NotFound) => Err(ReceiveError::BaseDeleted(words(&received.kept_as))),
                    found => Ok(found.map(drop)?),
                }
            }
        }
    }

    /// Whether a full stream has a place.
    fn check_vacant(&self) -> Result<(), ReceiveError> {
        self.target.parent(&*self.fs).map_err(|_| ReceiveError::NoParent)?;
        match self.target.find(&*self.fs) {
            Err(FsError::NotFound) => Ok(()),
            Err(FsError::NotDirectory) => Err(ReceiveError::TargetExists),
            Ok(dir) if self.fs.readdir(&ROOT, &dir, None, 1)?.is_empty() => Ok(()),
            Ok(_) => Err(ReceiveError::TargetExists),
            Err(e) => Err(e.into()),
        }
    }

    /// The target and what its attribute says; `None` if it was not received.
    fn received(&self) -> Result<Option<(NodeRef, Received)>, ReceiveError> {
        let dir = match self.target.find(&*self.fs) {
            Err(FsError::NotFound | FsError::NotDirectory) => return Ok(None),
            found => found?,
        };
        let value = match self.fs.getxattr(&ROOT, &dir, RECEIVED_XATTR) {
            Err(FsError::NoAttribute) => return Ok(None),
            found => found?,
        };
        // The attribute of a copy names another inode.
        Ok(Received::decode(&value).ok().filter(|found| found.inode == dir.ino()).map(|found| (dir, found)))
    }

    /// The name for the receiver's snapshot.
    pub(super) fn snapshot_name(&self, header: &StreamHeader) -> Result<Vec<u8>, ReceiveError> {
        if let Some(name) = &self.keeps_as {
            return Ok(name.clone());
        }
        let wanted = &header.snapshot.name;
        if !self.is_taken(wanted)? {
            return Ok(wanted.clone());
        }
        for number in 2..NUMBERED_MAX {
            let suffix = format!("~{number}");
            let room = warpfire_format::fs::NAME_BYTES_MAX - suffix.len();
            let mut name: Vec<u8> = wanted.iter().copied().take(room).collect();
            name.extend_from_slice(suffix.as_bytes());
            if !self.is_taken(&name)? {
                return Ok(name);
            }
        }
        Err(ReceiveError::SnapshotTaken(words(wanted)))
    }

    fn is_taken(&self, name: &[u8]) -> Result<bool, FsError> {
        match self.fs.check_vacant_name(name) {
            Err(FsError::Exists) => Ok(true),
            vacant => vacant.map(|()| false),
        }
    }

    /// Checks that the target is as the receiver's snapshot of the base shows it. Called after the
    /// transaction of the last step has begun, so that every change before that is found. Returns a version
    /// up to which all changes are found.
    pub(super) fn check_unchanged(&self) -> Result<E::Snapshot, ReceiveError> {
        let checked = self.fs.engine().snapshot();
        let Some((dir, received)) = self.received()? else {
            return Err(ReceiveError::NeverReceived(words(b"?")));
        };
        let deleted = || ReceiveError::BaseDeleted(words(&received.kept_as));
        let kept = match self.fs.snapshot(&received.kept_as) {
            Err(FsError::NotFound) => return Err(deleted()),
            found => found?,
        };
        // Another snapshot may have got the name since.
        if stamp(kept.made) != received.kept_made {
            return Err(deleted());
        }
        let sides = self.fs.snapshot_sides(&kept, None)?;
        let mut value = Vec::new();
        let key = xattr_key(dir.ino(), RECEIVED_XATTR);
        if !sides.get(DiffSide::Before, &key, &mut value)?
            || decode_xattr(&value).ok().and_then(|value| Received::decode(value).ok())
                != Some(received.clone())
        {
            return Err(deleted());
        }
        let now = self.target_path();
        let then = match sides.dentry_of(DiffSide::Before, dir.ino())? {
            Some(dentry) => sides.path_of(DiffSide::Before, &dentry)?.unwrap_or_else(|| now.clone()),
            None => now.clone(),
        };
        match first_change(sides, &then, &now)? {
            Some(path) => Err(ReceiveError::Changed(path.into())),
            None => Ok(checked),
        }
    }

    /// Lets the commit of the last step fail as a conflict if anything in the target, or below it, has
    /// changed since `checked`. The changes that are found beside running work need no search alone in the
    /// base.
    pub(super) fn check_at_commit(
        &self,
        tx: &Transaction<E>,
        checked: E::Snapshot,
    ) -> Result<(), ReceiveError> {
        let path = self.target_path();
        let newest = self.fs.engine().snapshot();
        if let Some(path) = first_change(self.fs.sides_since(checked)?, &path, &path)? {
            return Err(ReceiveError::Changed(path.into()));
        }
        let fs = Arc::clone(&self.fs);
        tx.check_at_commit(move || match first_change(fs.sides_since(newest)?, &path, &path)? {
            Some(path) => Err(FsError::Conflict { call: "receive changes", path: path.into() }),
            None => Ok(()),
        });
        Ok(())
    }

    fn target_path(&self) -> PathBuf {
        OsStr::from_bytes(&self.target.path()).into()
    }
}

/// The path of a change in a tree or below it. The root of the tree has the paths `then` and `now`. No call
/// of the filesystem is made.
fn first_change<E: Storage>(sides: DiffSides<E>, then: &Path, now: &Path) -> Result<Option<String>, FsError> {
    for change in Diff::of_sides(sides)? {
        let change = change?;
        let is_below = match &change.kind {
            ChangeKind::Deleted => change.path.starts_with(then),
            // The target may have another name now.
            ChangeKind::Renamed(_) if change.path == now => !change.aspects().is_empty(),
            ChangeKind::Renamed(from) => from.starts_with(then) || change.path.starts_with(now),
            _ => change.path.starts_with(now),
        };
        // The filesystem changes the times of a directory itself; names in it are changes of their own.
        let is_time_of_directory = change.kind == ChangeKind::Changed
            && change.after.is_some_and(|after| after.kind == FileKind::Directory)
            && change.aspects() == [Aspect::ModifiedTime];
        if is_below && !is_time_of_directory {
            return Ok(Some(change.path.to_string_lossy().into()));
        }
    }
    Ok(None)
}
