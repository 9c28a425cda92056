//! Calls that make volumes: empty ones, and clones of directories.

use warpfire_env::sync::atomic::Ordering;
use warpfire_format::fs::{
    Dentry, DoorVolume, FileKind, FilesystemRecord, Inode, InodeContent, InodeEdit, Key, PoolRecordId,
    VOLUME_MAX, VolumeId, VolumeOrigin, encode_counter, local_of, number_in, volume_of,
};
use warpfire_meta::{Admit, Batch, ORIGINS_MAX, SUMS, SnapshotStore, Storage};
use warpfire_units::Seq;

use super::VolumeInfo;
use super::sums::COUNTERS;
use crate::deferred::INODES;
use crate::error::FsError;
use crate::fs::{Fs, new_attrs};
use crate::keys::{dentry_key, inode_key, stored};
use crate::limits::LINKS_MAX;
use crate::node::{NodeRef, check_name};
use crate::stamp::stamp;

/// What to clone.
#[derive(Clone, Copy, Debug)]
pub enum CloneSource<'a> {
    /// A directory as it is now.
    Directory(&'a NodeRef),
    /// A directory as a snapshot shows it.
    Snapshot {
        /// The name of the snapshot.
        name: &'a [u8],
        /// The inode number of the directory.
        root: u64,
    },
}

/// A new volume.
struct NewVolume {
    record: DoorVolume,
    /// Its origin: the volume, and the seq if it is not the newest one.
    origin: Option<(VolumeId, Option<Seq>)>,
    /// The record of the root in its volume: the whole record, or an edit of the origin's.
    root: Result<Vec<u8>, Vec<u8>>,
    sums: [i64; SUMS],
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Makes an empty volume with a door `name` in a directory. Its root belongs to `uid` and `gid`. It is
    /// durable after the next sync.
    ///
    /// # Errors
    /// `Exists`; `NotDirectory`; `NotFound` in a directory that is gone; `Invalid` and `NameTooLong` for a
    /// name that none can have; `TooManyLinks`; `NoSpace`, also when all numbers of volumes are used;
    /// `ReadOnly`.
    pub fn create_volume(
        &self,
        dir: &NodeRef,
        name: &[u8],
        (uid, gid): (u32, u32),
    ) -> Result<VolumeInfo, FsError> {
        self.forget_volumes()?;
        let _exclusive = self.call_gate.enter_exclusive();
        let volume = self.check_new_door(dir, name)?;
        let now = stamp(self.clock.now());
        let root = number_in(volume, self.new_local_ino()?);
        let attrs = warpfire_format::fs::Attrs { uid, gid, ..new_attrs(FileKind::Directory, 0o755, now) };
        let mut value = Vec::new();
        let content = InodeContent::Directory(stored(root, dir.ino()), name);
        Inode { ino: root, attrs, content }.encode(&mut value);
        let mut sums = [0; SUMS];
        sums[INODES] = 1;
        let record = DoorVolume::new(now, local_of(root));
        self.create_behind_door(volume, dir, name, NewVolume { record, origin: None, root: Ok(value), sums })
    }

    /// Makes a clone of a directory, with everything in it, behind a door `name` in another directory or the
    /// same. It copies nothing, and takes as long for a large directory as for a small one. It can be changed
    /// at once, and neither sees the changes of the other. It is durable after the next sync.
    ///
    /// # Errors
    /// As `create_volume`. `NotFound` without such a snapshot; `NotDirectory` for another source; `Invalid`
    /// if there is a door in the directory, or if it is in a clone of a clone, eight deep.
    pub fn clone_directory(
        &self,
        source: CloneSource<'_>,
        dir: &NodeRef,
        name: &[u8],
    ) -> Result<VolumeInfo, FsError> {
        self.forget_volumes()?;
        let _exclusive = self.call_gate.enter_exclusive();
        let volume = self.check_new_door(dir, name)?;
        // Held until the new volume holds the versions itself.
        let (held, at, of) = match source {
            CloneSource::Directory(node) => {
                if !node.is_dir() {
                    return Err(FsError::NotDirectory);
                }
                if node.state.read().is_unlinked() {
                    return Err(FsError::NotFound);
                }
                (self.engine.snapshot(), None, node.ino())
            }
            CloneSource::Snapshot { name, root } => {
                let seq = self.snapshot(name)?.seq;
                (self.engine.snapshot_at(seq).ok_or(FsError::NotFound)?, Some(seq), root)
            }
        };
        let shown = self.engine.seq(&held);
        let mut value = Vec::new();
        if !self.engine.get(&inode_key(of), shown, &mut value)? {
            return Err(FsError::NotFound);
        }
        if Inode::decode(&value)?.attrs.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        let origin = volume_of(of);
        self.check_depth(origin, shown)?;
        if self.find_door_inside(of, shown)?.is_some() {
            return Err(FsError::Invalid("a directory with the door of a volume in it cannot be cloned"));
        }
        let now = stamp(self.clock.now());
        let root = number_in(volume, local_of(of));
        // The record of the origin's directory, with another place.
        let parent = Some((stored(root, dir.ino()), name));
        let mut operand = Vec::new();
        InodeEdit { ctime: Some(now), parent, ..InodeEdit::default() }.encode(&mut operand);
        let sums = self.sums_of_origin(origin, at)?;
        let record = DoorVolume::new(now, local_of(root));
        let new = NewVolume { record, origin: Some((origin, at)), root: Err(operand), sums };
        let made = self.create_behind_door(volume, dir, name, new);
        drop(held);
        made
    }

    /// Checks that a door can be made here. Returns the number of the next volume.
    fn check_new_door(&self, dir: &NodeRef, name: &[u8]) -> Result<VolumeId, FsError> {
        check_name(name)?;
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        {
            let state = dir.state.read();
            if state.is_unlinked() {
                return Err(FsError::NotFound);
            }
            if state.attrs.links >= LINKS_MAX {
                return Err(FsError::TooManyLinks);
            }
        }
        if self.get(&dentry_key(dir.ino(), name), &mut Vec::new())? {
            return Err(FsError::Exists);
        }
        let volume = VolumeId(self.next_volume.load(Ordering::Relaxed));
        if volume > VOLUME_MAX { Err(FsError::NoSpace) } else { Ok(volume) }
    }

    /// Checks that one more origin above this volume is not too many.
    fn check_depth(&self, volume: VolumeId, mut at: Seq) -> Result<(), FsError> {
        let (mut below, mut depth, mut value) = (volume, 1, Vec::new());
        // The newest records say which origins are released. That of a volume stays while it is an origin.
        while below != VolumeId::FIRST
            && self.engine.get(&Key::Volume(below).encode(), Seq::MAX, &mut value)?
        {
            let origin = DoorVolume::decode(&value)?.origin;
            let Some(origin) = origin.filter(|origin| origin.is_read_at(at)) else { break };
            (below, depth, at) = (origin.volume, depth + 1, at.min(origin.seq));
        }
        if depth > ORIGINS_MAX {
            return Err(FsError::Invalid("a clone of a clone cannot be more than eight deep"));
        }
        Ok(())
    }

    /// Makes a volume and its door, in one commit. The caller is alone in the base.
    fn create_behind_door(
        &self,
        volume: VolumeId,
        dir: &NodeRef,
        name: &[u8],
        new: NewVolume,
    ) -> Result<VolumeInfo, FsError> {
        assert!(self.call_gate.is_entered(), "a volume is made while no call runs");
        let next_ino = self.numbers.first_unreserved().ok_or(FsError::ReadOnlySnapshot)?;
        let next_volume = VolumeId(volume.0 + 1);
        let mut value = Vec::new();
        FilesystemRecord { next_volume, ..self.filesystem_record(next_ino) }.encode(&mut value);
        // What the origin must not show is in the second part of the commit.
        let mut changes = Batch::new();
        changes.put(&Key::Pool(PoolRecordId::Filesystem).encode(), &value);
        for (sum, added) in new.sums.into_iter().enumerate() {
            changes.add(sum, added);
        }
        let (root, key) = (number_in(volume, new.record.root), dentry_key(dir.ino(), name));
        let now = self.now();
        let mut record = new.record;
        self.engine.commit_with_snapshot(&changes, Admit::User, &mut |newest, batch| {
            record.origin = new.origin.map(|(of, at)| VolumeOrigin {
                volume: of,
                seq: at.unwrap_or(newest),
                released_at: None,
            });
            let mut put = |key: &[u8], encode: &dyn Fn(&mut Vec<u8>)| {
                let mut value = Vec::new();
                encode(&mut value);
                batch.put(key, &value);
            };
            put(&Key::Volume(volume).encode(), &|out| record.encode(out));
            put(&key, &|out| {
                Dentry::encode_reference(out, FileKind::Directory, stored(dir.ino(), root));
            });
            for (id, sum) in COUNTERS.into_iter().zip(new.sums) {
                put(&Key::Counter(volume, id).encode(), &|out| encode_counter(out, sum));
            }
            match &new.root {
                Ok(whole) => batch.put(&inode_key(root), whole),
                Err(operand) => batch.merge_naming(&inode_key(root), operand, []),
            }
            let mut operand = Vec::new();
            InodeEdit { links_add: 1, ..InodeEdit::default() }.encode(&mut operand);
            batch.merge_naming(&inode_key(dir.ino()), &operand, []);
        })?;
        self.deferred.add_sums(changes.sums());
        self.next_volume.store(next_volume.0, Ordering::Relaxed);
        self.show_door(dir, &key, 1);
        self.defer_times(dir, now);
        self.volume_info(volume, &record, Seq::MAX)
    }
}
