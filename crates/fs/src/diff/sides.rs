//! Reading both sides of a diff. Nothing that is read here goes into the read set of a transaction.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use warpfire_format::fs::{
    Dentry, DoorVolume, FileKind, Inode, InodeContent, Key, VolumeId, local_of, number_from, number_in,
    volume_of, volume_range,
};
use warpfire_meta::{KeyRange, MemoryCharge, MetaError, Pin, ScanPage, SliceRead, SliceStore, Storage};

use super::snapshots::SnapshotPair;
use crate::attrs::{Attr, attr_of};
use crate::error::FsError;
use crate::fs::ROOT_INO;
use crate::keys::{dentry_key, inode_key};
use crate::limits::{DEPTH_MAX, PAGE_BYTES, PAGE_ENTRIES};
use crate::node::NameBuf;
use crate::tx::TxFs;

/// A name, by its directory.
pub(crate) type DentryId = (u64, NameBuf);

/// One of the two states that a diff compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DiffSide {
    /// The base when the transaction began, or the older snapshot.
    Before,
    /// The transaction's view of it now, or the newer state.
    After,
}

/// A file's record on one side.
pub(crate) struct SideRecord {
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
    /// Whether the record is at its own key: that of a directory, or of a file that has or had several names.
    pub(crate) is_own: bool,
    bytes: Vec<u8>,
}

impl SideRecord {
    pub(crate) fn inode(&self) -> Result<Inode<'_>, FsError> {
        Ok(Inode::decode(&self.bytes)?.in_volume(volume_of(self.ino)))
    }

    pub(crate) fn attr(&self) -> Result<Attr, FsError> {
        Ok(attr_of(self.ino, &self.inode()?.attrs))
    }

    /// Whether the file may have several names.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_own && self.kind != FileKind::Directory
    }
}

/// The two states, for reading.
pub(crate) enum DiffSides<E: Storage> {
    /// The base of a transaction, and its view.
    Transaction(Arc<TxFs<E>>),
    /// Two versions of the store.
    Snapshots(Box<SnapshotPair<E>>),
}

impl<E: Storage> DiffSides<E> {
    /// The first volume, and those behind doors on the after side.
    pub(crate) fn volumes(&self) -> Result<Vec<VolumeId>, FsError> {
        let (start, end) = volume_range();
        let (mut start, mut volumes) = (start.to_vec(), vec![VolumeId::FIRST]);
        let mut page = ScanPage::default();
        loop {
            let range = KeyRange { start: &start, end: Some(&end) };
            self.page(range, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
            for entry in page.iter() {
                if let Key::Volume(volume) = Key::decode(entry.key)?
                    && DoorVolume::decode(entry.value)?.removed_at.is_none()
                {
                    volumes.push(volume);
                }
            }
            let Some(last) = page.iter().next_back().filter(|_| page.more) else { return Ok(volumes) };
            // The smallest key past the last one.
            start = [last.key, &[0]].concat();
        }
    }

    /// Whether there is a volume behind a door on either side, or may be one among more than a page of them.
    pub(crate) fn have_doors(&self) -> Result<bool, FsError> {
        let (start, end) = volume_range();
        let range = KeyRange { start: &start, end: Some(&end) };
        let (mut page, mut may_have_more) = (ScanPage::default(), false);
        for side in [DiffSide::Before, DiffSide::After] {
            self.page_of(side, range, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
            may_have_more |= page.more;
            for entry in page.iter() {
                if DoorVolume::decode(entry.value)?.removed_at.is_none() {
                    return Ok(true);
                }
            }
        }
        Ok(may_have_more)
    }

    pub(crate) fn root(&self) -> u64 {
        match self {
            DiffSides::Transaction(tx_fs) => tx_fs.root().ino(),
            DiffSides::Snapshots(_) => ROOT_INO,
        }
    }

    /// Whether times of access are compared. Reading a file changes them, so that they say nothing about
    /// snapshots.
    pub(crate) fn compares_access_times(&self) -> bool {
        matches!(self, DiffSides::Transaction(_))
    }

    /// Whether the content of files is known on both sides. On the side of a bookmark it is not: files may
    /// have no bytes there.
    pub(crate) fn know_content(&self) -> bool {
        !matches!(self, DiffSides::Snapshots(pair) if pair.is_bookmark)
    }

    /// A charge for the memory of the diff.
    pub(crate) fn charge(&self) -> MemoryCharge {
        match self {
            DiffSides::Transaction(tx_fs) => tx_fs.memory.coarse_charge(),
            DiffSides::Snapshots(pair) => pair.memory.coarse_charge(),
        }
    }

    /// A pin. While it lives, the slices that records name stay where they are.
    ///
    /// # Errors
    /// As pinning in the store.
    pub(crate) fn pin(&self) -> Result<Pin, FsError> {
        Ok(match self {
            DiffSides::Transaction(tx_fs) => tx_fs.engine.pin()?,
            DiffSides::Snapshots(pair) => pair.engine.pin()?,
        })
    }

    /// Whether this inode number surely did not exist before. Between snapshots, a new file may have a lower
    /// number: see `Survey::is_new`.
    pub(crate) fn is_surely_new(&self, ino: u64) -> bool {
        match self {
            DiffSides::Transaction(tx_fs) => tx_fs.numbers.has_drawn(ino),
            DiffSides::Snapshots(pair) => {
                pair.next_ino_before <= local_of(ino) || pair.next_volume_before <= volume_of(ino)
            }
        }
    }

    pub(crate) fn get(&self, side: DiffSide, key: &[u8], out: &mut Vec<u8>) -> Result<bool, FsError> {
        Ok(match (self, side) {
            (DiffSides::Transaction(tx_fs), DiffSide::Before) => tx_fs.engine.peek_below(key, out)?,
            (DiffSides::Transaction(tx_fs), DiffSide::After) => tx_fs.engine.peek(key, out)?,
            (DiffSides::Snapshots(pair), side) => pair.get(side, key, out)?,
        })
    }

    /// Keys that have been changed, in order, at most `max`.
    pub(crate) fn changed(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        max: usize,
    ) -> Result<Vec<Box<[u8]>>, FsError> {
        let range = KeyRange { start, end };
        Ok(match self {
            DiffSides::Transaction(tx_fs) => tx_fs.engine.changed_keys(range, max)?,
            DiffSides::Snapshots(pair) => (pair.changed)(range, max)?,
        })
    }

    /// A page of a range on the after side.
    pub(crate) fn page(
        &self,
        range: KeyRange<'_>,
        max_entries: usize,
        max_bytes: usize,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        match self {
            DiffSides::Transaction(tx_fs) => tx_fs.engine.peek_range(range, max_entries, max_bytes, page),
            DiffSides::Snapshots(pair) => pair.page(DiffSide::After, range, max_entries, max_bytes, page),
        }
    }

    /// As `page`, on either side of a pair of snapshots.
    ///
    /// # Errors
    /// Those of a scan.
    pub(crate) fn page_of(
        &self,
        side: DiffSide,
        range: KeyRange<'_>,
        max_entries: usize,
        max_bytes: usize,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        match self {
            DiffSides::Transaction(_) => unreachable!("only snapshots are sent"),
            DiffSides::Snapshots(pair) => pair.page(side, range, max_entries, max_bytes, page),
        }
    }

    /// Reads slices.
    pub(crate) fn read_slices(&self, reads: &mut [SliceRead<'_>]) -> Result<(), FsError> {
        match self {
            DiffSides::Transaction(tx_fs) => tx_fs.engine.read(reads)?,
            DiffSides::Snapshots(pair) => pair.engine.read(reads)?,
        }
        Ok(())
    }

    /// The inode that a name refers to.
    pub(crate) fn leads_to(&self, side: DiffSide, dir: u64, name: &[u8]) -> Result<Option<u64>, FsError> {
        let mut value = Vec::new();
        let there = self.get(side, &dentry_key(dir, name), &mut value)?;
        Ok(if there { Some(Dentry::decode(&value)?.in_volume(volume_of(dir)).ino()) } else { None })
    }

    /// The record of the file that a name refers to.
    pub(crate) fn find(&self, side: DiffSide, dir: u64, name: &[u8]) -> Result<Option<SideRecord>, FsError> {
        let mut bytes = Vec::new();
        if !self.get(side, &dentry_key(dir, name), &mut bytes)? {
            return Ok(None);
        }
        let dentry = Dentry::decode(&bytes)?.in_volume(volume_of(dir));
        let ino = dentry.ino();
        let kind = dentry.kind();
        match dentry {
            Dentry::Embedded(_) => Ok(Some(SideRecord { ino, kind, is_own: false, bytes })),
            // It may be missing only if the transaction removed it after its name was read.
            Dentry::Reference(..) => self.own(side, ino),
        }
    }

    /// The record that is at its own key.
    pub(crate) fn own(&self, side: DiffSide, ino: u64) -> Result<Option<SideRecord>, FsError> {
        let mut bytes = Vec::new();
        if !self.get(side, &inode_key(ino), &mut bytes)? {
            return Ok(None);
        }
        let kind = Inode::decode(&bytes)?.attrs.kind;
        Ok(Some(SideRecord { ino, kind, is_own: true, bytes }))
    }

    /// The parent of a directory and its name there; `None` for the root, and for one that is not on this
    /// side.
    pub(crate) fn dentry_of(&self, side: DiffSide, dir: u64) -> Result<Option<DentryId>, FsError> {
        if dir == self.root() {
            return Ok(None);
        }
        let Some(record) = self.own(side, dir)? else { return Ok(None) };
        let dentry = match record.inode()?.content {
            InodeContent::Directory(parent, name) => Some((number_from(volume_of(dir), parent), name.into())),
            _ => None,
        };
        Ok(dentry)
    }

    /// A name that a file of several names had when the transaction met it, if it is known.
    pub(crate) fn known_dentry(&self, ino: u64) -> Option<DentryId> {
        let DiffSides::Transaction(tx_fs) = self else { return None };
        tx_fs.node_in_use(ino)?.state.read().dentry.as_deref().cloned()
    }

    /// The path of a name; `None` if it is not on this side.
    pub(crate) fn path_of(&self, side: DiffSide, dentry: &DentryId) -> Result<Option<PathBuf>, FsError> {
        // Upwards to the root. The bound ends a cycle of damaged records.
        let mut dir = dentry.0;
        let mut names = vec![dentry.1.clone()];
        while dir != self.root() && names.len() < DEPTH_MAX as usize {
            let Some((parent, name)) = self.dentry_of(side, dir)? else { return Ok(None) };
            names.push(name);
            dir = parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(Some(OsStr::from_bytes(&path).into()))
    }
}

/// The directory and name of a key, if it is the key of a name.
pub(crate) fn name_of(key: &[u8]) -> Result<Option<DentryId>, FsError> {
    Ok(match Key::decode(key)? {
        Key::Dentry(volume, dir, name) => Some((number_in(volume, dir), name.into())),
        _ => None,
    })
}
