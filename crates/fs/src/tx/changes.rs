//! The changes that others have made of what a transaction has read, and their meaning for it.
//!
//! # Terms
//! A change is *tolerable* if no call of the transaction answers otherwise because of it, and the
//! transaction's own changes mean the same over it. A commit goes on over tolerable changes. All other
//! changes *matter*: the calls are replayed.
//!
//! # Invariants
//! 1. Tolerable are only differences that no digest contains: an access time, the times of a directory and
//!    its count of links (`Digestible for Attr`); and the records of the pool and its counters, by which no
//!    call answers. A record that the transaction has written whole would undo them, so no change of such a
//!    record is tolerable (`tests::transactions`, `tests::conflicts`).
//! 2. A read is affected by every change that matters of what it has read. A read that is not affected
//!    answers as before (`ChangesByOthers::affects`; `tests::serial` judges histories with such reads).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use warpfire_format::fs::{Attrs, Dentry, FileKind, Inode, InodeContent, Key, REGION_BYTES, number_in};
use warpfire_meta::{Batch, BatchOp};

use crate::error::FsError;
use crate::op::PureRead;
use crate::volume::live_record;

/// How a transaction has written a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OwnWrite {
    Nothing,
    /// Edits, which mean the same over another record.
    Edits,
    /// A value or a deletion, which replaces whatever is there.
    Whole,
}

/// The changes of one file by others.
#[derive(Default, Debug)]
struct FileChanges {
    /// The size, the place of the content, or the existence.
    size: bool,
    /// Indexes of regions.
    regions: BTreeSet<u64>,
}

/// The changes by others since a transaction, or its last replay, has read.
#[derive(Default, Debug)]
pub(super) struct ChangesByOthers {
    files: BTreeMap<u64, FileChanges>,
    /// Keys with changes that are tolerable.
    tolerable: Vec<Box<[u8]>>,
    /// The first key with a change that matters.
    first: Option<Box<[u8]>>,
    /// Whether there are too many changes to list them.
    is_unknown: bool,
}

impl ChangesByOthers {
    /// Too many changes to list.
    pub(super) fn unknown() -> ChangesByOthers {
        ChangesByOthers { is_unknown: true, ..ChangesByOthers::default() }
    }

    /// The changes of these keys. `values` reads a key's value as the transaction has read it, and as it is
    /// now. `batch` has the transaction's own changes.
    pub(super) fn of(
        keys: Vec<Box<[u8]>>,
        batch: &Batch,
        mut values: impl FnMut(&[u8], &mut Vec<u8>, &mut Vec<u8>) -> Result<(bool, bool), FsError>,
    ) -> Result<ChangesByOthers, FsError> {
        let mut changes = ChangesByOthers::default();
        if keys.is_empty() {
            return Ok(changes);
        }
        // One walk over the own changes, because they may be many and the keys are few.
        let mut own: HashMap<&[u8], OwnWrite> = keys.iter().map(|key| (&**key, OwnWrite::Nothing)).collect();
        for op in batch.iter() {
            if let Some(write) = own.get_mut(op.key()) {
                let edits = matches!(op, BatchOp::Merge(..)) && *write != OwnWrite::Whole;
                *write = if edits { OwnWrite::Edits } else { OwnWrite::Whole };
            }
        }
        let own: Vec<OwnWrite> = keys.iter().map(|key| own[&**key]).collect();
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for (key, own) in keys.into_iter().zip(own) {
            let (was, is) = values(&key, &mut old, &mut new)?;
            let (old, new) = (was.then_some(&*old), is.then_some(&*new));
            if changes.add(Key::decode(&key)?, own, old, new)? {
                changes.tolerable.push(key);
            } else {
                changes.first.get_or_insert(key);
            }
        }
        Ok(changes)
    }

    /// Adds the change of one key. Returns whether it is tolerable.
    fn add(
        &mut self,
        key: Key<'_>,
        own: OwnWrite,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, FsError> {
        // A value that is back is as good as one that has not changed.
        if old == new {
            return Ok(true);
        }
        match key {
            Key::Region(volume, ino, index) => {
                _ = self.files.entry(number_in(volume, ino)).or_default().regions.insert(index);
            }
            Key::Xattr(volume, ino, _) => _ = self.files.entry(number_in(volume, ino)).or_default(),
            Key::Inode(..) | Key::Orphan(..) | Key::Dentry(..) => {
                let (old, new) = (inode_in(key, old)?, inode_in(key, new)?);
                if let (Some(old), Some(new)) = (&old, &new)
                    && old.ino == new.ino
                {
                    if own != OwnWrite::Whole && differ_tolerably(old, new) {
                        return Ok(true);
                    }
                    let size = old.attrs.size_bytes != new.attrs.size_bytes || !have_same_content(old, new);
                    self.files.entry(new.ino).or_default().size |= size;
                    return Ok(false);
                }
                for inode in [old, new].into_iter().flatten() {
                    self.files.entry(inode.ino).or_default().size = true;
                }
            }
            // A call in a volume that is removed fails.
            Key::Volume(_) => {
                let is_live = |record: Option<&[u8]>| match record {
                    Some(record) => Ok::<_, FsError>(live_record(record)?.is_some()),
                    None => Ok(false),
                };
                if !is_live(old)? || is_live(new)? {
                    return Ok(true);
                }
                self.is_unknown = true;
            }
            // No call answers by these. A read set beyond its limit covers them too.
            Key::Pool(_)
            | Key::Counter(..)
            | Key::Snapshot(..)
            | Key::SnapshotName(..)
            | Key::SnapshotRule(..)
            | Key::Bookmark(..)
            | Key::Rollback(..) => return Ok(true),
        }
        Ok(false)
    }

    /// Whether all changes are tolerable.
    pub(super) fn are_tolerable(&self) -> bool {
        self.first.is_none() && !self.is_unknown
    }

    /// The keys with tolerable changes.
    pub(super) fn take_tolerable(&mut self) -> Vec<Box<[u8]>> {
        std::mem::take(&mut self.tolerable)
    }

    /// The first key with a change that matters.
    pub(super) fn first_key(&self) -> Option<&[u8]> {
        self.first.as_deref()
    }

    /// Whether the changes may give a read another answer.
    pub(super) fn affects(&self, read: PureRead) -> bool {
        if self.is_unknown {
            return true;
        }
        let Some(changes) = self.files.get(&read.ino) else { return false };
        let Some((start, end)) = read.bytes else { return true };
        let region = u64::from(REGION_BYTES);
        changes.size || changes.regions.range(start / region..end.div_ceil(region)).next().is_some()
    }
}

/// The inode in the record of this key.
fn inode_in<'v>(key: Key<'_>, value: Option<&'v [u8]>) -> Result<Option<Inode<'v>>, FsError> {
    let Some(value) = value else { return Ok(None) };
    Ok(match key {
        Key::Dentry(volume, ..) => match Dentry::decode(value)?.in_volume(volume) {
            Dentry::Embedded(inode) => Some(inode),
            Dentry::Reference(..) => None,
        },
        Key::Inode(volume, _) | Key::Orphan(volume, _) => Some(Inode::decode(value)?.in_volume(volume)),
        _ => None,
    })
}

/// Whether the records of an inode differ in nothing that a digest contains.
fn differ_tolerably(old: &Inode<'_>, new: &Inode<'_>) -> bool {
    let mut attrs = Attrs { atime: old.attrs.atime, ..new.attrs };
    if attrs.kind == FileKind::Directory {
        attrs = Attrs { mtime: old.attrs.mtime, ctime: old.attrs.ctime, links: old.attrs.links, ..attrs };
    }
    attrs == old.attrs && have_same_content(old, new)
}

/// Whether the contents of two records are the same, byte for byte.
fn have_same_content(a: &Inode<'_>, b: &Inode<'_>) -> bool {
    match (a.content, b.content) {
        (InodeContent::None, InodeContent::None) | (InodeContent::Regions, InodeContent::Regions) => true,
        (InodeContent::Small(a), InodeContent::Small(b)) => a.raw() == b.raw(),
        (InodeContent::Symlink(a), InodeContent::Symlink(b)) => a == b,
        (InodeContent::Directory(parent, name), InodeContent::Directory(other, other_name)) => {
            (parent, name) == (other, other_name)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use warpfire_format::fs::InodeTime;

    use super::*;

    fn record(attrs: Attrs) -> Vec<u8> {
        let mut value = Vec::new();
        Inode { ino: 7, attrs, content: InodeContent::Regions }.encode(&mut value);
        value
    }

    fn attrs() -> Attrs {
        let attrs = crate::fs::new_attrs(FileKind::Regular, 0o644, InodeTime::default());
        Attrs { size_bytes: 100 << 20, allocated_bytes: 100 << 20, ..attrs }
    }

    fn changes_of(changed: &[(&[u8], &[u8], &[u8])], batch: &Batch) -> ChangesByOthers {
        let keys = changed.iter().map(|(key, _, _)| Box::from(*key)).collect();
        ChangesByOthers::of(keys, batch, |key, old, new| {
            let (_, was, is) = changed.iter().find(|(changed, _, _)| *changed == key).unwrap();
            old.clone_from(&was.to_vec());
            new.clone_from(&is.to_vec());
            Ok((true, true))
        })
        .unwrap()
    }

    #[test]
    fn a_read_is_affected_by_changes_of_its_bytes_alone() {
        let key = crate::keys::inode_key(7);
        let region = crate::keys::region_key(7, 5);
        let later = record(Attrs { mtime: InodeTime { seconds: 9, nanos: 0 }, ..attrs() });
        let written: [(&[u8], &[u8], &[u8]); 2] = [(&key, &record(attrs()), &later), (&region, b"a", b"b")];
        let changes = changes_of(&written, &Batch::new());
        let read = |ino, start: u64, end: u64| PureRead { ino, bytes: Some((start << 20, end << 20)) };
        assert!(!changes.are_tolerable());
        assert!(changes.affects(read(7, 5, 6)) && changes.affects(read(7, 0, 100)));
        assert!(!changes.affects(read(7, 0, 5)) && !changes.affects(read(7, 6, 100)));
        assert!(changes.affects(PureRead::of_all(7)), "a time has changed");
        assert!(!changes.affects(PureRead::of_all(8)));
        let longer = record(Attrs { size_bytes: 101 << 20, allocated_bytes: 101 << 20, ..attrs() });
        let grown: [(&[u8], &[u8], &[u8]); 1] = [(&key, &record(attrs()), &longer)];
        assert!(changes_of(&grown, &Batch::new()).affects(read(7, 0, 1)), "the size decides where it ends");
        assert!(ChangesByOthers::unknown().affects(read(8, 0, 1)));
    }

    #[test]
    fn an_access_time_is_tolerable_unless_the_record_is_written_whole() {
        let key = crate::keys::inode_key(7);
        let read_later = record(Attrs { atime: InodeTime { seconds: 9, nanos: 0 }, ..attrs() });
        let changed: [(&[u8], &[u8], &[u8]); 1] = [(&key, &record(attrs()), &read_later)];
        let mut batch = Batch::new();
        assert!(changes_of(&changed, &batch).are_tolerable());
        batch.merge(&key, b"an edit");
        assert!(changes_of(&changed, &batch).are_tolerable());
        batch.put(&key, b"a value");
        assert!(!changes_of(&changed, &batch).are_tolerable());
    }
}
