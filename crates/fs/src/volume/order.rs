//! Changes of volumes by paths, as a user orders them.

use warpfire_meta::{SnapshotStore, Storage};

use super::{CloneSource, LimitChange, VolumeInfo};
use crate::acl::Caller;
use crate::error::FsError;
use crate::fs::Fs;
use crate::invalidation::Invalidation;
use crate::node::{NameBuf, NodeRef};
use crate::path::Follow;

/// A change of volumes, by paths that begin at the root of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeOrder<'a> {
    /// Make an empty volume behind a new door.
    Create {
        /// The path of the door.
        door: &'a [u8],
        /// User and group of its root.
        owner: (u32, u32),
    },
    /// Clone a directory behind a new door.
    Clone {
        /// The snapshot that has the directory; `None`: as it is now.
        snapshot: Option<&'a [u8]>,
        /// The path of the directory.
        source: &'a [u8],
        /// The path of the door.
        door: &'a [u8],
    },
    /// Change the limits of the volume behind a door.
    Limit {
        /// The path of the door.
        door: &'a [u8],
        /// The change.
        change: LimitChange,
    },
    /// Delete the volume behind a door.
    Delete {
        /// The path of the door.
        door: &'a [u8],
    },
}

impl VolumeOrder<'_> {
    fn door(&self) -> &[u8] {
        match self {
            VolumeOrder::Create { door, .. }
            | VolumeOrder::Clone { door, .. }
            | VolumeOrder::Limit { door, .. }
            | VolumeOrder::Delete { door } => door,
        }
    }
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Changes volumes. `changed` is called with everything that has another answer afterwards, before the
    /// change; it may be called although the change then fails.
    ///
    /// # Errors
    /// As [`create_volume`](Fs::create_volume), [`clone_directory`](Fs::clone_directory),
    /// [`limit_volume`](Fs::limit_volume) and [`delete_volume`](Fs::delete_volume), and as
    /// [`resolve`](Fs::resolve).
    pub fn change_volume(
        &self,
        order: &VolumeOrder<'_>,
        changed: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<VolumeInfo, FsError> {
        let (dir, name) = self.place_of_door(order.door())?;
        changed(Invalidation::Name(dir.ino(), &name));
        changed(Invalidation::File(dir.ino()));
        match *order {
            VolumeOrder::Create { owner, .. } => self.create_volume(&dir, &name, owner),
            VolumeOrder::Clone { snapshot: None, source, .. } => {
                let source = self.resolve(&Caller::ROOT, &self.root(), source, Follow::Yes)?;
                self.clone_directory(CloneSource::Directory(&source), &dir, &name)
            }
            VolumeOrder::Clone { snapshot: Some(snapshot), source, .. } => {
                let then = self.open_snapshot(snapshot)?;
                let root = then.resolve(&Caller::ROOT, &then.root(), source, Follow::Yes)?.ino();
                self.clone_directory(CloneSource::Snapshot { name: snapshot, root }, &dir, &name)
            }
            VolumeOrder::Limit { change, .. } => self.limit_volume(&dir, &name, change),
            VolumeOrder::Delete { .. } => self.delete_volume(&dir, &name, changed),
        }
    }

    /// Calls `changed` with the door of an order and its directory.
    ///
    /// # Errors
    /// As [`resolve`](Fs::resolve).
    pub fn visit_door(
        &self,
        order: &VolumeOrder<'_>,
        changed: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<(), FsError> {
        let (dir, name) = self.place_of_door(order.door())?;
        changed(Invalidation::Name(dir.ino(), &name));
        changed(Invalidation::File(dir.ino()));
        Ok(())
    }

    pub(super) fn place_of_door(&self, path: &[u8]) -> Result<(NodeRef, NameBuf), FsError> {
        let place = self.resolve_parent(&Caller::ROOT, &self.root(), path, Follow::No)?;
        match place.node {
            // The root, or a path that ends in dots.
            Some(_) if place.name.is_empty() => Err(FsError::Exists),
            _ => Ok((place.dir, place.name)),
        }
    }
}
