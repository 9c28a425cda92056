//! What has to be known of all changes before the first can be told.
//!
//! # Invariants
//! 1. `ways` of a side has each name there that leads to a changed directory, or to a directory on the way to one; inside also a name of each file of
//!    several names that has changed, unless a changed name leads there.
//! 2. `moved` has each file that was there before and of which a name comes, with all its names that come, and that go.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::PathBuf;

use warpfire_format::fs::{Dentry, FileKind, Key, dentry_range, inode_key, xattr_range};
use warpfire_meta::{KeyRange, ScanPage, Storage};

use super::sides::{DentryId, DiffSide, DiffSides, name_of};
use crate::error::FsError;
use crate::limits::PAGE_BYTES;

/// Changed keys, or names, that are looked up at a time.
const KEYS_AT_ONCE: usize = 1024;

#[derive(Default)]
pub(super) struct Survey {
    ways: [BTreeSet<DentryId>; 2],
    moved: BTreeMap<u64, MovedFile>,
    /// Files of several names that have been told of, with the path.
    pub(super) reported: BTreeMap<u64, PathBuf>,
}

/// Names of a file that was there before, in order.
#[derive(Default)]
pub(super) struct MovedFile {
    removed: Vec<DentryId>,
    added: Vec<DentryId>,
    stays: Option<DentryId>,
}

impl MovedFile {
    /// The name in whose place this one, which comes, is.
    pub(super) fn renamed_from(&self, to: &DentryId) -> Option<&DentryId> {
        let number = self.added.binary_search(to).ok()?;
        self.removed.get(number)
    }

    /// Whether another name is in the place of this one, which goes.
    pub(super) fn is_renamed(&self, from: &DentryId) -> bool {
        self.removed.binary_search(from).is_ok_and(|number| number < self.added.len())
    }

    /// A name that the file had before.
    pub(super) fn had(&self) -> Option<&DentryId> {
        self.stays.as_ref().or(self.removed.first())
    }

    /// Names that the file has inside, as far as they are known here.
    pub(super) fn has(&self) -> impl Iterator<Item = &DentryId> {
        self.stays.iter().chain(&self.added)
    }
}

impl Survey {
    pub(super) fn make<E: Storage>(sides: &DiffSides<E>) -> Result<Survey, FsError> {
        let mut survey = Survey::default();
        let mut shared = BTreeSet::new();
        let mut last_dir = 0;
        // Inodes come before names.
        each_changed(sides, &mut |key| {
            match Key::decode(key)? {
                Key::Inode(_, ino) => match sides.own(DiffSide::After, ino)? {
                    Some(record) if record.kind == FileKind::Directory => {
                        survey.add_way(sides, DiffSide::After, ino)?;
                    }
                    Some(_) => _ = shared.insert(ino),
                    None => {}
                },
                Key::Dentry(_, dir, name) => {
                    if dir != last_dir {
                        survey.add_way(sides, DiffSide::After, dir)?;
                        survey.add_way(sides, DiffSide::Before, dir)?;
                        last_dir = dir;
                    }
                    if let Some(ino) = sides.leads_to(DiffSide::After, dir, name)? {
                        shared.remove(&ino);
                        if !sides.is_new(ino) && sides.leads_to(DiffSide::Before, dir, name)? != Some(ino) {
                            survey.moved.entry(ino).or_default().added.push((dir, name.into()));
                        }
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        survey.find_sources(sides)?;
        survey.find_names(sides, shared)?;
        Ok(survey)
    }

    /// Which file that was there before this is, if one of its names comes.
    pub(super) fn moved(&self, ino: u64) -> Option<&MovedFile> {
        self.moved.get(&ino)
    }

    /// The first name of a directory after `last` that is on the way to something.
    pub(super) fn next_way(&self, side: DiffSide, dir: u64, last: &Option<DentryId>) -> Option<&DentryId> {
        let start = match last {
            Some(dentry) => Bound::Excluded(dentry),
            None => Bound::Included(&(dir, crate::node::NameBuf::new())),
        };
        self.ways[side as usize].range((start, Bound::Unbounded)).next().filter(|dentry| dentry.0 == dir)
    }

    fn add_way<E: Storage>(
        &mut self,
        sides: &DiffSides<E>,
        side: DiffSide,
        mut dir: u64,
    ) -> Result<(), FsError> {
        while let Some(dentry) = sides.dentry_of(side, dir)? {
            dir = dentry.0;
            if !self.ways[side as usize].insert(dentry) {
                break;
            }
        }
        Ok(())
    }

    /// Finds the names that files had of which a name comes.
    fn find_sources<E: Storage>(&mut self, sides: &DiffSides<E>) -> Result<(), FsError> {
        if self.moved.is_empty() {
            return Ok(());
        }
        each_changed(sides, &mut |key| {
            let Some((dir, name)) = name_of(key)? else { return Ok(()) };
            let Some(ino) = sides.leads_to(DiffSide::Before, dir, &name)? else { return Ok(()) };
            if let Some(moved) = self.moved.get_mut(&ino) {
                if sides.leads_to(DiffSide::After, dir, &name)? == Some(ino) {
                    moved.stays = Some((dir, name));
                } else {
                    moved.removed.push((dir, name));
                }
            }
            Ok(())
        })
    }

    /// Finds a name of each of these files, to which no changed name leads.
    fn find_names<E: Storage>(&mut self, sides: &DiffSides<E>, files: BTreeSet<u64>) -> Result<(), FsError> {
        let (mut found, mut unnamed) = (Vec::new(), BTreeSet::new());
        for ino in files {
            match sides.known_dentry(ino) {
                Some(dentry) if sides.leads_to(DiffSide::After, dentry.0, &dentry.1)? == Some(ino) => {
                    found.push(dentry);
                }
                _ => _ = unnamed.insert(ino),
            }
        }
        // The transaction has met these by names that it has taken away since. What others there are only the names say.
        search(sides, unnamed, &mut found)?;
        for dentry in found {
            self.add_way(sides, DiffSide::After, dentry.0)?;
            self.ways[DiffSide::After as usize].insert(dentry);
        }
        Ok(())
    }
}

/// Visits keys of inodes and names that have been changed, in order.
fn each_changed<E: Storage>(
    sides: &DiffSides<E>,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), FsError>,
) -> Result<(), FsError> {
    let mut start = inode_key(sides.volume(), 0);
    let end = xattr_range(sides.volume(), 0).0;
    loop {
        let keys = sides.changed(&start, Some(&end), KEYS_AT_ONCE)?;
        keys.iter().try_for_each(|key| visit(key))?;
        let Some(last) = keys.last().filter(|_| keys.len() == KEYS_AT_ONCE) else { return Ok(()) };
        start.clear();
        start.extend_from_slice(last);
        start.push(0);
    }
}

/// Looks through all names for one of each of these files.
fn search<E: Storage>(
    sides: &DiffSides<E>,
    mut files: BTreeSet<u64>,
    found: &mut Vec<DentryId>,
) -> Result<(), FsError> {
    let mut start = dentry_range(sides.volume(), 1).0;
    let end = xattr_range(sides.volume(), 0).0;
    let mut page = ScanPage::default();
    while !files.is_empty() {
        let range = KeyRange { start: &start, end: Some(&end) };
        sides.tx_fs().engine.peek_range(range, KEYS_AT_ONCE, PAGE_BYTES, &mut page)?;
        for entry in page.iter() {
            let dentry = Dentry::decode(entry.value)?;
            if let Dentry::Reference(_, ino) = dentry
                && files.remove(&ino)
            {
                found.extend(name_of(entry.key)?);
            }
        }
        let Some(last) = page.iter().last().filter(|_| page.more) else { return Ok(()) };
        start.clear();
        start.extend_from_slice(last.key);
        start.push(0);
    }
    Ok(())
}
