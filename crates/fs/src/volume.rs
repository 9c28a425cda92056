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
//!    part of its origin counts the whole origin, so its sums are not too low.
//! 6. Open files in a volume that is deleted are gone: each call on them fails with `Gone` or `NotFound`.

use std::collections::BTreeMap;

use warpfire_env::Timestamp;
use warpfire_env::sync::atomic::Ordering;
use warpfire_format::fs::{
    CounterId, Dentry, DoorVolume, FileKind, FilesystemRecord, Inode, InodeContent, InodeEdit, Key, KeyKind,
    LIMIT_MAX, PoolRecordId, VOLUME_MAX, VolumeId, VolumeLimits, VolumeOrigin, decode_counter,
    encode_counter, is_of_kind, is_of_volume, local_of, number_from, number_in, volume_of, volume_range,
};
use warpfire_meta::{
    Admit, Batch, BatchOp, Direction, KeyRange, ORIGINS_MAX, SUMS, ScanPage, SnapshotStore, Storage,
};
use warpfire_units::Seq;

use crate::damage::VOLUME_HAS_NO_ROOT;
use crate::deferred::INODES;
use crate::error::FsError;
use crate::fs::{Fs, new_attrs};
use crate::keys::{dentry_key, inode_key, share_volume, stored};
use crate::limits::{DEPTH_MAX, LINKS_MAX, PAGE_ENTRIES};
use crate::node::{NodeRef, PendingTimes, RecordLocation, check_name};
use crate::stamp::{stamp, timestamp};
use crate::tx::Invalidation;
use crate::volume_limits::{Claim, VolumeUse};

const COUNTERS: [CounterId; SUMS] = [CounterId::Inodes, CounterId::Bytes, CounterId::Reserved];

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
    /// Inodes that it shows, or more: a clone of a part of a volume counts the whole volume.
    pub inodes: u64,
    /// Bytes of its files without holes, or more, as for `inodes`. Shared bytes count once for each file.
    pub file_bytes: u64,
    /// The most that it may have.
    pub limits: VolumeLimits,
}

/// What becomes of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NewLimit {
    /// It stays.
    #[default]
    Same,
    /// There is none.
    None,
    /// So many, at most [`LIMIT_MAX`].
    Max(u64),
}

impl NewLimit {
    fn applied(self, before: Option<u64>) -> Result<Option<u64>, FsError> {
        match self {
            NewLimit::Same => Ok(before),
            NewLimit::None => Ok(None),
            NewLimit::Max(limit) if limit <= LIMIT_MAX => Ok(Some(limit)),
            NewLimit::Max(_) => Err(FsError::Invalid("a limit is below 2^63")),
        }
    }
}

/// A change of the limits of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitChange {
    /// That of bytes of files without holes, reserved bytes included. Shared bytes count once for each file,
    /// and snapshots do not count.
    pub bytes: NewLimit,
    /// That of inodes, the root of the volume included.
    pub files: NewLimit,
}

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

    /// The sums of a volume behind a door, as of a seq.
    pub(crate) fn volume_sums(&self, volume: VolumeId, at: Seq) -> Result<[i64; SUMS], FsError> {
        let (mut sums, mut value) = ([0; SUMS], Vec::new());
        for (sum, id) in sums.iter_mut().zip(COUNTERS) {
            if self.engine.get(&Key::Counter(volume, id).encode(), at, &mut value)? {
                *sum = decode_counter(&value)?;
            }
        }
        Ok(sums)
    }

    /// The sums of all volumes behind doors, as of a seq.
    pub(crate) fn sums_behind_doors(&self, at: Seq) -> Result<[i64; SUMS], FsError> {
        let mut all = [0_i64; SUMS];
        for (volume, _) in self.live_volumes_at(at)? {
            for (sum, of) in all.iter_mut().zip(self.volume_sums(volume, at)?) {
                *sum = sum.wrapping_add(of);
            }
        }
        Ok(all)
    }

    /// The batch of a call with what it adds to the sums of its own volume, and that volume; `None` if it
    /// adds nothing there.
    ///
    /// # Errors
    /// `Gone` if the volume has been deleted.
    pub(crate) fn with_volume_sums(&self, batch: &Batch) -> Result<Option<(VolumeId, Batch)>, FsError> {
        // All changes of a call are in one volume.
        let Some(first) = batch.iter().next() else { return Ok(None) };
        if is_of_volume(first.key(), VolumeId::FIRST) {
            return Ok(None);
        }
        let volume = match Key::decode(first.key())? {
            Key::Inode(volume, _)
            | Key::Orphan(volume, _)
            | Key::Dentry(volume, ..)
            | Key::Xattr(volume, ..)
            | Key::Region(volume, ..) => volume,
            _ => return Ok(None),
        };
        self.check_live(number_in(volume, 0))?;
        if *batch.sums() == [0; SUMS] {
            return Ok(None);
        }
        let (mut with, mut operand) = (batch.clone(), Vec::new());
        for (id, added) in COUNTERS.into_iter().zip(batch.sums()) {
            if *added != 0 {
                operand.clear();
                encode_counter(&mut operand, *added);
                with.merge_naming(&Key::Counter(volume, id).encode(), &operand, []);
            }
        }
        Ok(Some((volume, with)))
    }

    /// Reads the limits of all volumes, for the open of a filesystem.
    pub(crate) fn read_volume_limits(&self) -> Result<(), FsError> {
        for (volume, record) in self.live_volumes()? {
            if record.limits.is_some() {
                let sums = self.volume_sums(volume, Seq::MAX)?;
                self.limited_volumes.set(volume, record.limits, VolumeUse::of(&sums));
            }
        }
        Ok(())
    }

    /// Claims what the changes of a transaction add to each volume: they have the additions to its counters.
    pub(crate) fn claim_for_transaction(&self, changes: &Batch) -> Result<Vec<Claim<'_>>, FsError> {
        let mut added: BTreeMap<VolumeId, [i64; SUMS]> = BTreeMap::new();
        for op in changes.iter() {
            let BatchOp::Merge(key, operand) = op else { continue };
            // A transaction may have changed millions of names: only the keys of counters are decoded.
            if is_of_kind(key, KeyKind::Counter)
                && let Ok(Key::Counter(volume, id)) = Key::decode(key)
                && let Some(sum) = COUNTERS.iter().position(|counter| *counter == id)
            {
                let added = &mut added.entry(volume).or_default()[sum];
                *added = added.wrapping_add(decode_counter(operand)?);
            }
        }
        let mut claims = Vec::new();
        for (volume, sums) in added {
            claims.extend(self.limited_volumes.claim(volume, VolumeUse::of(&sums))?);
        }
        Ok(claims)
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
        Ok(VolumeInfo {
            number: volume.0,
            root,
            path: self.path_at(root, at)?,
            made: timestamp(record.made),
            origin: record.origin.map(|origin| (origin.volume.0, origin.seq)),
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
        let limits = VolumeLimits::default();
        let record = DoorVolume { made: now, root: local_of(root), removed_at: None, origin: None, limits };
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
        let limits = VolumeLimits::default();
        let record = DoorVolume { made: now, root: local_of(root), removed_at: None, origin: None, limits };
        let new = NewVolume { record, origin: Some((origin, at)), root: Err(operand), sums };
        let made = self.create_behind_door(volume, dir, name, new);
        drop(held);
        made
    }

    /// Deletes the volume behind a door, with everything in it, and its door. The deletion is durable on
    /// return, and takes as long for a large volume as for a small one. Its bytes come back when compaction
    /// drops its tables; what clones and snapshots of it show stays. `changed` is called with all that has
    /// another answer afterwards beside the door, before the change.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the name is no door, or the volume has the door of another one in it;
    /// `ReadOnly`.
    pub fn delete_volume(
        &self,
        dir: &NodeRef,
        name: &[u8],
        changed: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<VolumeInfo, FsError> {
        check_name(name)?;
        self.reap()?;
        let _exclusive = self.call_gate.enter_exclusive();
        let key = dentry_key(dir.ino(), name);
        let (volume, record) = self.volume_behind(dir, name)?;
        if self.doors_at(Seq::MAX)?.iter().any(|(_, dir, _)| volume_of(*dir) == volume) {
            return Err(FsError::Invalid("the volume has the door of another volume in it"));
        }
        let info = self.volume_info(volume, &record, Seq::MAX)?;
        let now = self.now();
        let mut changes = Batch::new();
        changes.delete(&key);
        let edit = InodeEdit { links_add: -1, ..InodeEdit::default() };
        let mut value = Vec::new();
        edit.encode(&mut value);
        changes.merge_naming(&inode_key(dir.ino()), &value, []);
        let sums = self.volume_sums(volume, Seq::MAX)?;
        for (sum, of) in sums.into_iter().enumerate() {
            changes.add(sum, of.wrapping_neg());
        }
        let nodes = self.inode_cache.nodes_in_use();
        let nodes: Vec<NodeRef> = nodes.into_iter().filter(|n| volume_of(n.ino()) == volume).collect();
        nodes.iter().for_each(|node| changed(Invalidation::File(node.ino())));
        self.engine.commit_with_snapshot(&changes, Admit::Reserve, &mut |seq, batch| {
            let mut value = Vec::new();
            DoorVolume { removed_at: Some(seq), ..record }.encode(&mut value);
            batch.put(&Key::Volume(volume).encode(), &value);
        })?;
        // The point of no return: from here on nothing may fail.
        self.limited_volumes.set(volume, VolumeLimits::default(), VolumeUse::default());
        self.deferred.add_sums(changes.sums());
        for node in nodes {
            let mut state = node.state.write();
            state.location = RecordLocation::Gone;
            state.attrs.links = 0;
            drop(state);
            let mut times = node.pending_times.lock();
            *times = PendingTimes { count: times.count, ..PendingTimes::default() };
        }
        self.show_door(dir, &key, -1);
        self.defer_times(dir, now);
        Ok(info)
    }

    /// Changes the limits of the volume behind a door. They hold from then on, and are durable after the next
    /// sync. A volume may have more than a limit already: that stays, and nothing is added.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the name is no door, or for a limit above [`LIMIT_MAX`]; `ReadOnly`.
    pub fn limit_volume(
        &self,
        dir: &NodeRef,
        name: &[u8],
        change: LimitChange,
    ) -> Result<VolumeInfo, FsError> {
        check_name(name)?;
        let _exclusive = self.call_gate.enter_exclusive();
        let (volume, record) = self.volume_behind(dir, name)?;
        let limits = VolumeLimits {
            bytes: change.bytes.applied(record.limits.bytes)?,
            files: change.files.applied(record.limits.files)?,
        };
        let record = DoorVolume { limits, ..record };
        let (mut batch, mut value) = (Batch::new(), Vec::new());
        record.encode(&mut value);
        batch.put(&Key::Volume(volume).encode(), &value);
        // While no call runs, so the sums in the store are those of all calls before.
        let sums = self.volume_sums(volume, Seq::MAX)?;
        let info = self.volume_info(volume, &record, Seq::MAX)?;
        // Also in a full pool: a limit takes no more room than a deletion does.
        self.commit(&batch, Admit::Reserve)?;
        self.limited_volumes.set(volume, limits, VolumeUse::of(&sums));
        Ok(info)
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

    /// Removes the records of removed volumes that nobody reads and of which nothing is left.
    ///
    /// # Errors
    /// `ReadOnly`; `Damaged`.
    pub fn forget_volumes(&self) -> Result<(), FsError> {
        if self.options.read_only {
            return Ok(());
        }
        let _guard = self.enter_unrecorded();
        for domain in self.engine.unneeded_domains()? {
            let mut batch = Batch::new();
            batch.delete(&Key::Volume(VolumeId(u32::from_be_bytes(domain))).encode());
            self.engine.forget_domain(domain, &batch)?;
        }
        Ok(())
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
    fn check_depth(&self, volume: VolumeId, at: Seq) -> Result<(), FsError> {
        let (mut below, mut depth, mut value) = (volume, 1, Vec::new());
        while below != VolumeId::FIRST && self.engine.get(&Key::Volume(below).encode(), at, &mut value)? {
            let Some(origin) = DoorVolume::decode(&value)?.origin else { break };
            (below, depth) = (origin.volume, depth + 1);
        }
        if depth > ORIGINS_MAX {
            return Err(FsError::Invalid("a clone of a clone cannot be more than eight deep"));
        }
        Ok(())
    }

    /// The sums of the volume that a new clone shows, now or at a snapshot.
    fn sums_of_origin(&self, origin: VolumeId, at: Option<Seq>) -> Result<[i64; SUMS], FsError> {
        if origin != VolumeId::FIRST {
            return self.volume_sums(origin, at.unwrap_or(Seq::MAX));
        }
        let all = match at {
            Some(at) => self.volume_sums(VolumeId::FIRST, at)?,
            None => self.deferred.sums(),
        };
        let mut own = all;
        for (sum, behind) in own.iter_mut().zip(self.sums_behind_doors(at.unwrap_or(Seq::MAX))?) {
            *sum = sum.wrapping_sub(behind);
        }
        Ok(own)
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
        FilesystemRecord { next_ino, next_volume }.encode(&mut value);
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
            record.origin = new.origin.map(|(of, at)| VolumeOrigin { volume: of, seq: at.unwrap_or(newest) });
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

    /// Brings a door that was made or removed to the node of its directory.
    fn show_door(&self, dir: &NodeRef, key: &[u8], links_add: i32) {
        let mut state = dir.state.write();
        state.attrs.links = state.attrs.links.saturating_add_signed(links_add);
        drop(state);
        self.version_counters.bump(key);
        self.version_counters.bump(&inode_key(dir.ino()));
    }
}
