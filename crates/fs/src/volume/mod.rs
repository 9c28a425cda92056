//! Volumes behind doors: clones of directories, and empty volumes.
//!
//! A *volume* is a tree of its own in the keys of its own domain. A *door* is a name in a directory that
//! refers to the root of another volume. A *clone* is a volume with an origin: another volume at a seq, which
//! it shows where it has no changes of its own. So a clone of any size is a commit of some records.
//!
//! ```text
//!        create_volume,              delete_volume,         forget_volumes, when no clone
//!        clone_directory: a door     the door goes          and no snapshot reads it
//!   (nothing) ─────────────────────► live ─────────────► removed ────────────────► (nothing)
//!
//!   a live clone:      detach_volume                  forget_origins, when no
//!                                                     snapshot from before reads on
//!   reads on ───────────────────────► detached, with ────────────────────────────► detached,
//!                                     a released origin                            without an origin
//! ```
//!
//! # Invariants
//! 1. A live volume other than the first has one door, and its root has the door as parent and name. Both are
//!    made in one commit with the record of the volume, and the door goes in the commit that removes it
//!    (`tests::volumes`, `warpfire-check`).
//! 2. No directory with a door in it is cloned, so a door is never read through an origin
//!    (`find_door_inside`).
//! 3. A name and its file, and both names of a rename, are in one volume: records of a volume have local
//!    numbers (`OtherVolume`).
//! 4. No number of a volume is used twice: the filesystem record has the next one.
//! 5. The sums of the first volume count all volumes. Each other volume has sums of its own beside, which its
//!    removal takes away: those of its origin then, and every change since (`with_volume_sums`). A clone of a
//!    part of its origin counts the whole origin, so its sums are not too low. Those of a detached clone are
//!    exact.
//! 6. Open files in a volume that is deleted are gone: each call on them fails with `Gone` or `NotFound`.

mod detach;
mod limits;
mod make;
mod order;
mod remove;
mod set_limits;
mod sums;

pub use detach::{DetachProgress, WatchDetach};
pub(crate) use limits::{Claim, LimitedVolumes, VolumeUse};
pub use make::CloneSource;
pub use order::VolumeOrder;
pub use set_limits::{LimitChange, NewLimit};

use warpfire_env::Timestamp;
use warpfire_format::fs::{
    Dentry, DoorVolume, FileKind, Inode, InodeContent, Key, VolumeId, VolumeLimits, VolumeOrigin,
    number_from, number_in, volume_of, volume_range,
};
use warpfire_meta::{Direction, KeyRange, ScanPage, Storage};
use warpfire_units::Seq;

use crate::damage::VOLUME_HAS_NO_ROOT;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::{dentry_key, inode_key, share_volume};
use crate::limits::{DEPTH_MAX, PAGE_ENTRIES};
use crate::node::NodeRef;
use crate::stamp::timestamp;

/// A live volume behind a door.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// Its number: 2 or higher, never used again.
    pub number: u32,
    /// Inode number of its root.
    pub root: u64,
    /// The path of its door.
    pub path: Vec<u8>,
    /// The time at which it was made.
    pub made: Timestamp,
    /// Of a clone: the number of the volume that it shows, and the version.
    pub origin: Option<(u32, Seq)>,
    /// Of a detached clone: the origin that snapshots from before the detach show still, and that is kept for
    /// them.
    pub former_origin: Option<(u32, Seq)>,
    /// Inodes that it shows, or more: a clone of a part of a volume counts the whole volume.
    pub inodes: u64,
    /// Bytes of its files without holes, or more, as for `inodes`. Shared bytes count once for each file.
    pub file_bytes: u64,
    /// The most that it may have.
    pub limits: VolumeLimits,
}

/// The record of a volume; `None` if the volume is removed.
pub(crate) fn live_record(value: &[u8]) -> Result<Option<DoorVolume>, FsError> {
    Ok(Some(DoorVolume::decode(value)?).filter(|record| record.removed_at.is_none()))
}

impl<E: Storage> Fs<E> {
    /// The records of all volumes behind doors as of a seq, those of removed ones too.
    fn door_volumes(&self, at: Seq) -> Result<Vec<(VolumeId, DoorVolume)>, FsError> {
        let (start, end) = volume_range();
        let (mut start, mut found) = (start.to_vec(), Vec::new());
        let mut page = ScanPage::default();
        loop {
            let range = KeyRange { start: &start, end: Some(&end) };
            self.engine.scan(range, at, Direction::Forward, PAGE_ENTRIES, usize::MAX, &mut page)?;
            for entry in page.iter() {
                if let Key::Volume(volume) = Key::decode(entry.key)? {
                    found.push((volume, DoorVolume::decode(entry.value)?));
                }
            }
            let Some(last) = page.iter().next_back().filter(|_| page.more) else { return Ok(found) };
            // The smallest key past the last one.
            start = [last.key, &[0]].concat();
        }
    }

    /// The volumes behind doors.
    pub(crate) fn live_volumes(&self) -> Result<Vec<(VolumeId, DoorVolume)>, FsError> {
        let snapshot = self.engine.snapshot();
        self.live_volumes_at(self.engine.seq(&snapshot))
    }

    pub(crate) fn live_volumes_at(&self, at: Seq) -> Result<Vec<(VolumeId, DoorVolume)>, FsError> {
        let mut volumes = self.door_volumes(at)?;
        volumes.retain(|(_, record)| record.removed_at.is_none());
        Ok(volumes)
    }

    /// The parent of a directory and its name there, as of a seq.
    fn place_at(&self, dir: u64, at: Seq) -> Result<(u64, Vec<u8>), FsError> {
        let mut value = Vec::new();
        if !self.engine.get(&inode_key(dir), at, &mut value)? {
            return Err(VOLUME_HAS_NO_ROOT.into());
        }
        match Inode::decode(&value)?.content {
            InodeContent::Directory(parent, name) => Ok((number_from(volume_of(dir), parent), name.to_vec())),
            _ => Err(VOLUME_HAS_NO_ROOT.into()),
        }
    }

    /// The door of each live volume as of a seq: the volume, the directory and the name.
    pub(crate) fn doors_at(&self, at: Seq) -> Result<Vec<(VolumeId, u64, Vec<u8>)>, FsError> {
        let place = |(volume, record): &(VolumeId, DoorVolume)| {
            let (dir, name) = self.place_at(number_in(*volume, record.root), at)?;
            Ok((*volume, dir, name))
        };
        self.live_volumes_at(at)?.iter().map(place).collect()
    }

    /// A live volume with a door in the directory or below it, as of a seq.
    fn find_door_inside(&self, dir: u64, at: Seq) -> Result<Option<VolumeId>, FsError> {
        for (volume, door_dir, _) in self.doors_at(at)? {
            let mut above = door_dir;
            for _ in 0..DEPTH_MAX {
                if above == dir {
                    return Ok(Some(volume));
                }
                let (parent, _) = self.place_at(above, at)?;
                // The root is its own parent.
                if parent == above {
                    break;
                }
                above = parent;
            }
        }
        Ok(None)
    }

    /// All volumes behind doors, by rising number.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn volumes(&self) -> Result<Vec<VolumeInfo>, FsError> {
        let snapshot = self.engine.snapshot();
        let at = self.engine.seq(&snapshot);
        let live = self.live_volumes_at(at)?;
        live.iter().map(|(volume, record)| self.volume_info(*volume, record, at)).collect()
    }

    fn volume_info(&self, volume: VolumeId, record: &DoorVolume, at: Seq) -> Result<VolumeInfo, FsError> {
        let root = number_in(volume, record.root);
        let [inodes, file_bytes, _] = self.volume_sums(volume, at)?;
        let (released, origin) = match record.origin {
            Some(origin) if origin.released_at.is_some() => (Some(origin), None),
            origin => (None, origin),
        };
        let volume_and_seq = |origin: VolumeOrigin| (origin.volume.0, origin.seq);
        Ok(VolumeInfo {
            number: volume.0,
            root,
            path: self.path_at(root, at)?,
            made: timestamp(record.made),
            origin: origin.map(volume_and_seq),
            former_origin: released.map(volume_and_seq),
            inodes: inodes.max(0).cast_unsigned(),
            file_bytes: file_bytes.max(0).cast_unsigned(),
            limits: record.limits,
        })
    }

    /// The path of a directory as of a seq.
    fn path_at(&self, dir: u64, at: Seq) -> Result<Vec<u8>, FsError> {
        let (mut names, mut below) = (Vec::new(), dir);
        for _ in 0..DEPTH_MAX {
            let (parent, name) = self.place_at(below, at)?;
            if parent == below {
                break;
            }
            names.push(name);
            below = parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    /// Checks that the volume of an inode is not deleted. In a transaction this is a read like others: the
    /// deletion of the volume conflicts with it.
    pub(crate) fn check_live(&self, ino: u64) -> Result<(), FsError> {
        match volume_of(ino) {
            VolumeId::FIRST => Ok(()),
            volume => match self.live_volume(volume) {
                Err(FsError::NotFound) => Err(FsError::Gone),
                found => found.map(drop),
            },
        }
    }

    /// The record of a live volume behind a door.
    pub(crate) fn live_volume(&self, volume: VolumeId) -> Result<DoorVolume, FsError> {
        let mut value = Vec::new();
        if !self.get(&Key::Volume(volume).encode(), &mut value)? {
            return Err(FsError::NotFound);
        }
        live_record(&value)?.ok_or(FsError::NotFound)
    }

    /// The volume behind a door.
    fn volume_behind(&self, dir: &NodeRef, name: &[u8]) -> Result<(VolumeId, DoorVolume), FsError> {
        let mut value = Vec::new();
        if !self.get(&dentry_key(dir.ino(), name), &mut value)? {
            return Err(FsError::NotFound);
        }
        let root = match Dentry::decode(&value)?.in_volume(volume_of(dir.ino())) {
            Dentry::Reference(FileKind::Directory, root) if !share_volume(root, dir.ino()) => root,
            _ => return Err(FsError::Invalid("the name is not the door of a volume")),
        };
        let volume = volume_of(root);
        Ok((volume, self.live_volume(volume)?))
    }

    /// Brings a door that was made or removed to the node of its directory.
    fn show_door(&self, dir: &NodeRef, key: &[u8], links_add: i32) {
        let mut state = dir.state.write();
        state.attrs.links = state.attrs.links.saturating_add_signed(links_add);
        drop(state);
        self.version_counters.bump(key);
        self.version_counters.bump(&inode_key(dir.ino()));
    }
}
