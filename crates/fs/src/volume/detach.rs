//! Calls that detach clones from their origins.
//!
//! # Terms
//! To *detach* a clone is to copy the records that it shows of its origin into keys of its own, and then to
//! *release* the origin: readers of later seqs do not read on. The *tree of the origin* is what the origin
//! shows below the cloned directory at the clone's seq. It never changes.
//!
//! ```text
//!   1. copy      walk the tree of the origin; put each value that comes through it      `Copier`
//!   2. count     the inodes and bytes that the clone has by itself, beside its sums     `surplus`
//!   3. release   one commit: the record says so, and the sums become exact              `release`
//!   4. forget    once no snapshot from before the release reads on: the record loses    `forget_origins`
//!                its origin, which then keeps nothing for the clone
//! ```
//!
//! # Invariants
//! 1. A copy changes no answer: the value that it puts is the one that the clone shows. Its commit fails if a
//!    key has changed since it was read, and then the values are read again while no call runs
//!    (`tests::detach::writers_lose_nothing_while_their_clone_is_copied`).
//! 2. A key that the clone settles stays settled: operands fold onto its value, and a delete stays while
//!    the record has an origin. So a copy that was broken off or cut goes on where it stopped
//!    (`tests::detach::a_copy_that_is_stopped_goes_on_when_it_is_called_again`).
//! 3. The tree of the origin has every key that a reader of the clone can reach through the origin: names and
//!    numbers come into a clone from nowhere else. So after the walk nothing that can be reached reads on.
//!    Records outside of the cloned directory are not copied.
//! 4. The surplus of the sums is the same at every seq after the copy: each commit changes sums and records
//!    alike. It goes in the commit of the release, so the sums are exact wherever the origin is released.
//! 5. Before the release a crash leaves a clone that reads on as before; after it, one that does not
//!    (`warpfire-sim`, `tests/volumes.rs`).
//! 6. A page is in memory at a time, and of each directory on the path of the walk a page of subdirectories.

use std::ops::ControlFlow;

use warpfire_format::Corrupt;
use warpfire_format::fs::{
    Attrs, Dentry, DoorVolume, FileKind, Inode, InodeContent, Key, KeyBuf, KeyKind, VolumeId, VolumeOrigin,
    encode_counter, flag, number_in,
};
use warpfire_meta::{
    Admit, Batch, CommitError, Direction, DomainPart, KeyRange, ReadSet, SUMS, ScanPage, SnapshotStore,
    Storage,
};
use warpfire_slices::Pin;
use warpfire_units::Seq;

use super::sums::COUNTERS;
use super::{VolumeInfo, VolumeUse};
use crate::damage::{NO_INODE_OF_NAME, OWN_ANCESTOR};
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::{dentry_range, inode_key, region_range, xattr_range};
use crate::limits::{DEPTH_MAX, PAGE_BYTES, PAGE_ENTRIES};

/// Names after which copies are committed, however few they are.
const PAGE_NAMES: u64 = PAGE_ENTRIES as u64;

/// How far a detach has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DetachProgress {
    /// Names of the origin that it has looked at.
    pub names: u64,
    /// Records that it has copied. Those that the clone has by itself are not copied.
    pub records: u64,
}

/// Called after each page. `Break` stops the detach; the copies so far stay.
pub type WatchDetach<'a> = &'a mut dyn FnMut(&DetachProgress) -> ControlFlow<()>;

/// Why a detach ends early.
enum EndedEarly {
    Stopped,
    Failed(FsError),
}

impl<T: Into<FsError>> From<T> for EndedEarly {
    fn from(error: T) -> Self {
        EndedEarly::Failed(error.into())
    }
}

/// The records that are read and wait for their commit.
struct PendingCopies<S> {
    /// From the first read of a pointer to the commit that names it again.
    _pin: Pin,
    snapshot: S,
    keys: Vec<Box<[u8]>>,
    batch: Batch,
    bytes: usize,
    /// Names that had been looked at before.
    names_before: u64,
}

/// A directory on the path of the walk.
struct DirectoryOnPath {
    /// Its number in the origin's volume.
    dir: u64,
    /// Its subdirectories of the last page that were not walked yet.
    subdirectories: Vec<u64>,
    /// Where the next page of its names begins; `None` after the last one.
    next: Option<Vec<u8>>,
}

/// Copies the records of a clone that come through its origin.
struct Copier<'a, E: Storage + SnapshotStore> {
    fs: &'a Fs<E>,
    volume: VolumeId,
    origin: VolumeOrigin,
    pending: Option<PendingCopies<E::Snapshot>>,
    done: DetachProgress,
    watch: WatchDetach<'a>,
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Detaches the clone behind a door from its origin: afterwards it keeps nothing of the origin, its reads
    /// pass no origin, and clones of it begin anew at one origin. Only records are copied; both sides go on
    /// sharing their bytes. It can be used while this runs. Snapshots from before still read on, so the
    /// versions of the origin stay until the last of them is deleted. Durable after the next sync. `None`:
    /// `watch` has stopped it. Then, and after an error or a crash, the clone is as it was; a later call goes
    /// on.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the name is no door, or the volume reads on in no origin; `Gone` if the
    /// volume is deleted at the same time; `NoSpace` for the copies; `ReadOnly`; `OpenForReading`; `Damaged`.
    pub fn detach_volume(&self, door: &[u8], watch: WatchDetach<'_>) -> Result<Option<VolumeInfo>, FsError> {
        if self.options.read_only {
            return Err(FsError::OpenForReading);
        }
        let (dir, name) = self.place_of_door(door)?;
        let (volume, record) = {
            let _guard = self.enter_unrecorded();
            self.volume_behind(&dir, &name)?
        };
        let origin = record.origin.filter(|origin| origin.released_at.is_none());
        let origin = origin.ok_or(FsError::Invalid("the volume has no origin to be detached from"))?;
        let done = DetachProgress::default();
        let mut copier = Copier { fs: self, volume, origin, pending: None, done, watch };
        let surplus = copier.copy_tree(record.root).and_then(|()| copier.surplus());
        let surplus = match surplus {
            Ok(surplus) => surplus,
            Err(EndedEarly::Stopped) => return Ok(None),
            Err(EndedEarly::Failed(error)) => return Err(error),
        };
        self.release(volume, &surplus)?;
        // The detach has succeeded, so an error here is not its answer: the next call that looks tries again.
        let _ = self.forget_origins();
        let _guard = self.enter_unrecorded();
        Ok(Some(self.volume_info(volume, &self.check_not_gone(volume)?, Seq::MAX)?))
    }

    /// Takes the origins out of the records of detached clones that no reader needs any more. A removed clone
    /// keeps its own until its record goes.
    ///
    /// # Errors
    /// `NoSpace`; `ReadOnly`; `Damaged`.
    pub fn forget_origins(&self) -> Result<(), FsError> {
        if self.options.read_only {
            return Ok(());
        }
        // A clone that loses its origin may have been the last reader of another one.
        let mut has_forgotten = true;
        while has_forgotten {
            has_forgotten = false;
            for domain in self.engine.unneeded_origins() {
                has_forgotten |= self.forget_origin(VolumeId(u32::from_be_bytes(domain)))?;
            }
            if has_forgotten {
                self.engine.sync(Seq::MAX)?;
            }
        }
        Ok(())
    }

    /// Takes a released origin out of the record of a clone. `false`: it has none, or the clone is gone.
    fn forget_origin(&self, volume: VolumeId) -> Result<bool, FsError> {
        let _exclusive = self.call_gate.enter_exclusive();
        let record = match self.live_volume(volume) {
            Err(FsError::NotFound) => return Ok(false),
            found => found?,
        };
        // Another call may have been here first.
        if record.origin.is_none_or(|origin| origin.released_at.is_none()) {
            return Ok(false);
        }
        let (mut batch, mut value) = (Batch::new(), Vec::new());
        DoorVolume { origin: None, ..record }.encode(&mut value);
        batch.put(&Key::Volume(volume).encode(), &value);
        self.engine.forget_origin(volume.0.to_be_bytes(), &batch)?;
        Ok(true)
    }

    /// The record of a volume, in a call that has found it before.
    fn check_not_gone(&self, volume: VolumeId) -> Result<DoorVolume, FsError> {
        self.live_volume(volume).map_err(|error| match error {
            FsError::NotFound => FsError::Gone,
            error => error,
        })
    }

    /// Releases the origin of a clone that has all that it shows, and takes the surplus from its sums.
    fn release(&self, volume: VolumeId, surplus: &[i64; SUMS]) -> Result<(), FsError> {
        let _exclusive = self.call_gate.enter_exclusive();
        let record = self.check_not_gone(volume)?;
        // Another call may have detached it.
        let Some(origin) = record.origin.filter(|origin| origin.released_at.is_none()) else { return Ok(()) };
        let (mut changes, mut exact) = (Batch::new(), self.volume_sums(volume, Seq::MAX)?);
        let mut operand = Vec::new();
        for (sum, id) in COUNTERS.into_iter().enumerate() {
            let change = surplus[sum].wrapping_neg();
            changes.add(sum, change);
            exact[sum] = exact[sum].wrapping_add(change);
            operand.clear();
            encode_counter(&mut operand, change);
            changes.merge_naming(&Key::Counter(volume, id).encode(), &operand, []);
        }
        // Also in a full pool: a release takes no more room than a deletion does.
        self.engine.commit_with_snapshot(&changes, Admit::Reserve, &mut |seq, batch| {
            let origin = Some(VolumeOrigin { released_at: Some(seq), ..origin });
            let mut value = Vec::new();
            DoorVolume { origin, is_detached: true, ..record }.encode(&mut value);
            batch.put(&Key::Volume(volume).encode(), &value);
        })?;
        self.deferred.add_sums(changes.sums());
        self.limited_volumes.set(volume, record.limits, VolumeUse::of(&exact));
        Ok(())
    }
}

/// The key past the last one of a page, if more follow.
fn next_start(page: &ScanPage) -> Option<Vec<u8>> {
    page.iter().next_back().filter(|_| page.more).map(|last| [last.key, &[0]].concat())
}

/// The attributes of the inode in a value, if there is one.
fn attrs_in(key: &[u8], value: &[u8]) -> Result<Option<Attrs>, Corrupt> {
    Ok(match Key::decode(key)? {
        Key::Inode(..) | Key::Orphan(..) => Some(Inode::decode(value)?.attrs),
        Key::Dentry(..) => match Dentry::decode(value)? {
            Dentry::Embedded(inode) => Some(inode.attrs),
            Dentry::Reference(..) => None,
        },
        _ => None,
    })
}

impl<E: Storage + SnapshotStore> Copier<'_, E> {
    /// Copies the records of the tree of the origin. `root` is the local number of its root.
    fn copy_tree(&mut self, root: u64) -> Result<(), EndedEarly> {
        let mut path = vec![self.enter(root)?];
        while let Some(top) = path.last_mut() {
            if let Some(dir) = top.subdirectories.pop() {
                if path.len() > DEPTH_MAX as usize {
                    return Err(OWN_ANCESTOR.into());
                }
                let below = self.enter(dir)?;
                path.push(below);
            } else if let Some(start) = top.next.take() {
                let dir = top.dir;
                let (subdirectories, next) = self.copy_names(dir, &start)?;
                (top.subdirectories, top.next) = (subdirectories, next);
            } else {
                path.pop();
            }
        }
        self.commit()
    }

    /// Copies the inode of a directory and what belongs to it, and begins with its names.
    fn enter(&mut self, local: u64) -> Result<DirectoryOnPath, EndedEarly> {
        self.copy_keyed(local)?;
        let dir = number_in(self.origin.volume, local);
        let next = Some(dentry_range(dir).0.to_vec());
        Ok(DirectoryOnPath { dir, subdirectories: Vec::new(), next })
    }

    /// Copies a page of the names of a directory with what belongs to their files. Returns the subdirectories
    /// in it, and where the next page begins.
    fn copy_names(&mut self, dir: u64, start: &[u8]) -> Result<(Vec<u64>, Option<Vec<u8>>), EndedEarly> {
        let end = dentry_range(dir).1;
        let range = KeyRange { start, end: Some(&end) };
        let (mut page, forward) = (ScanPage::default(), Direction::Forward);
        self.fs.engine.scan(range, self.origin.seq, forward, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
        let mut subdirectories = Vec::new();
        for entry in page.iter() {
            match Dentry::decode(entry.value)? {
                Dentry::Embedded(inode) => self.copy_parts(&inode)?,
                Dentry::Reference(FileKind::Directory, local) => subdirectories.push(local),
                Dentry::Reference(_, local) => self.copy_keyed(local)?,
            }
        }
        let next = next_start(&page);
        self.copy_range(start, next.as_deref().unwrap_or(&end))?;
        self.done.names += page.len() as u64;
        self.report()?;
        Ok((subdirectories, next))
    }

    /// Copies an inode that has a key, and what belongs to it.
    fn copy_keyed(&mut self, local: u64) -> Result<(), EndedEarly> {
        let key = inode_key(number_in(self.origin.volume, local));
        let mut value = Vec::new();
        if !self.fs.engine.get(&key, self.origin.seq, &mut value)? {
            return Err(NO_INODE_OF_NAME.into());
        }
        self.copy_range(&key, &[&key[..], &[0]].concat())?;
        self.copy_parts(&Inode::decode(&value)?)
    }

    /// Copies the attributes and the regions of an inode.
    fn copy_parts(&mut self, inode: &Inode<'_>) -> Result<(), EndedEarly> {
        let ino = number_in(self.origin.volume, inode.ino);
        let of_attributes = (inode.attrs.flags & flag::XATTRS != 0).then(|| xattr_range(ino));
        let of_regions = matches!(inode.content, InodeContent::Regions).then(|| region_range(ino, 0));
        let ranges: [Option<(KeyBuf, KeyBuf)>; 2] = [of_attributes, of_regions];
        ranges.iter().flatten().try_for_each(|(start, end)| self.copy_range(start, end))
    }

    /// Reads the values of the clone that come through the origin, at the keys of a range of the origin, and
    /// commits those that are a page.
    fn copy_range(&mut self, start: &[u8], end: &[u8]) -> Result<(), EndedEarly> {
        let (mut start, end) = (self.own(start), self.own(end));
        loop {
            let pending = match self.pending.take() {
                Some(pending) => pending,
                None => PendingCopies {
                    _pin: self.fs.pin_to_commit()?,
                    snapshot: self.fs.engine.snapshot(),
                    keys: Vec::new(),
                    batch: Batch::new(),
                    bytes: 0,
                    names_before: self.done.names,
                },
            };
            let pending = self.pending.insert(pending);
            let limits = (PAGE_ENTRIES - pending.keys.len(), PAGE_BYTES - pending.bytes);
            let (at, mut page) = (self.fs.engine.seq(&pending.snapshot), ScanPage::default());
            let range = KeyRange { start: &start, end: Some(&end) };
            self.fs.engine.scan_part(range, at, DomainPart::ReadOn, limits, &mut page)?;
            for entry in page.iter() {
                pending.keys.push(entry.key.into());
                pending.batch.put(entry.key, entry.value);
            }
            pending.bytes += page.bytes();
            // A walk that finds little to copy holds no old snapshot, and no pin.
            let is_old = pending.keys.is_empty() || self.done.names - pending.names_before >= PAGE_NAMES;
            if is_old || pending.keys.len() >= PAGE_ENTRIES || pending.bytes >= PAGE_BYTES {
                self.commit()?;
                self.report()?;
            }
            let Some(next) = next_start(&page) else { return Ok(()) };
            start = next;
        }
    }

    /// The same key in the clone.
    fn own(&self, key: &[u8]) -> Vec<u8> {
        let volume = self.volume.0.to_be_bytes();
        [&volume, key.get(volume.len()..).unwrap_or_default()].concat()
    }

    /// Commits the copies that wait.
    fn commit(&mut self) -> Result<(), EndedEarly> {
        let Some(pending) = self.pending.take().filter(|pending| !pending.keys.is_empty()) else {
            return Ok(());
        };
        let reads = ReadSet::new(self.fs.engine.seq(&pending.snapshot), &pending.keys, []);
        let committed = {
            // A deletion of the volume is before this call or after it.
            let _guard = self.fs.enter_unrecorded();
            self.fs.check_not_gone(self.volume)?;
            self.fs.engine.commit(&pending.batch, Some(&reads), Admit::User)
        };
        match committed {
            Ok(_) => self.done.records += pending.keys.len() as u64,
            Err(CommitError::Conflict) => self.copy_alone(&pending.keys)?,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Copies keys while no call runs: others have changed some of them since they were read.
    fn copy_alone(&mut self, keys: &[Box<[u8]>]) -> Result<(), EndedEarly> {
        let fs = self.fs;
        let _pin = fs.pin_to_commit()?;
        let _exclusive = fs.call_gate.enter_exclusive();
        fs.check_not_gone(self.volume)?;
        loop {
            let snapshot = fs.engine.snapshot();
            let at = fs.engine.seq(&snapshot);
            let (mut batch, mut page, mut read) = (Batch::new(), ScanPage::default(), Vec::new());
            for key in keys {
                let past = [key, &[0][..]].concat();
                let range = KeyRange { start: key, end: Some(&past) };
                fs.engine.scan_part(range, at, DomainPart::ReadOn, (1, PAGE_BYTES), &mut page)?;
                page.iter().for_each(|entry| batch.put(entry.key, entry.value));
                read.extend(page.iter().next().map(|_| key));
            }
            match fs.engine.commit(&batch, Some(&ReadSet::new(at, &read, [])), Admit::User) {
                Ok(_) => {
                    self.done.records += read.len() as u64;
                    return Ok(());
                }
                // A sync point has added the times of directories, which are few and come once.
                Err(CommitError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// By how much the sums of the clone exceed what it has by itself.
    fn surplus(&mut self) -> Result<[i64; SUMS], EndedEarly> {
        let snapshot = self.fs.engine.snapshot();
        let at = self.fs.engine.seq(&snapshot);
        let mut surplus = self.fs.volume_sums(self.volume, at)?;
        let from_kind = |kind: KeyKind| [&self.volume.0.to_be_bytes()[..], &[kind as u8]].concat();
        // Inodes, orphans and names.
        let (mut start, end) = (from_kind(KeyKind::Inode), from_kind(KeyKind::Xattr));
        let (mut page, limits) = (ScanPage::default(), (PAGE_ENTRIES, PAGE_BYTES));
        loop {
            let range = KeyRange { start: &start, end: Some(&end) };
            self.fs.engine.scan_part(range, at, DomainPart::Settled, limits, &mut page)?;
            for entry in page.iter() {
                let Some(attrs) = attrs_in(entry.key, entry.value)? else { continue };
                let found = [1, attrs.allocated_bytes, attrs.reserved_bytes].map(u64::cast_signed);
                for (sum, found) in surplus.iter_mut().zip(found) {
                    *sum = sum.wrapping_sub(found);
                }
            }
            self.report()?;
            let Some(next) = next_start(&page) else { return Ok(surplus) };
            start = next;
        }
    }

    fn report(&mut self) -> Result<(), EndedEarly> {
        match (self.watch)(&self.done) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(EndedEarly::Stopped),
        }
    }
}
