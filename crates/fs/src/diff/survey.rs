//! The survey: facts about all changes that a diff needs before it can list the first.
//!
//! # Terms
//! A *way* is a name that a walk has to visit although the name itself has not changed: it refers to a
//! changed directory, or to a directory on the way to one.
//!
//! # Invariants
//! 1. `ways` has the ways of each side. The after side also has a name of each changed file of several names,
//!    unless a changed name refers to the file (`tests::diff::model`).
//! 2. All that a survey keeps is charged to the account of the filesystem (`charge_entry`;
//!    `tests::memory::a_diff_is_charged_until_it_is_dropped`).
//! 3. `moved` has each file that existed before and has an added name, with all its added and removed names,
//!    in order (assert in `find_sources`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::PathBuf;

use warpfire_format::fs::{Dentry, FileKind, Key, VolumeId, number_in, volume_of};
use warpfire_meta::{KeyRange, MemoryCharge, MemoryNeed, ScanPage, Storage};

use super::sides::{DentryId, DiffSide, DiffSides, name_of};
use crate::error::FsError;
use crate::keys::{dentry_range, inode_key, xattr_range};
use crate::limits::PAGE_BYTES;

/// Changed keys, or names, that one look-up returns.
const KEYS_AT_ONCE: usize = 1024;

/// Memory of an entry beside the bytes of its name.
const ENTRY_BYTES: usize = 96;

/// The facts, by inode number and by name.
pub(crate) struct Survey {
    ways: [BTreeSet<DentryId>; 2],
    moved: BTreeMap<u64, MovedFile>,
    /// New files with a number that is not surely new.
    made: BTreeSet<u64>,
    /// Files of several names that the diff has listed, with the path at which it did.
    reported: BTreeMap<u64, PathBuf>,
    /// Memory of all entries.
    bytes: usize,
    charge: MemoryCharge,
}

/// Names of a file that existed before, in order.
#[derive(Default)]
pub(crate) struct MovedFile {
    removed: Vec<DentryId>,
    added: Vec<DentryId>,
    /// A name that was changed and refers to the file on both sides.
    stays: Option<DentryId>,
}

impl MovedFile {
    /// The removed name that an added name replaces. The first removed name is paired with the first added
    /// name, and so on.
    pub(crate) fn renamed_from(&self, to: &DentryId) -> Option<&DentryId> {
        let number = self.added.binary_search(to).ok()?;
        self.removed.get(number)
    }

    /// Whether an added name replaces this removed name.
    pub(crate) fn is_renamed(&self, from: &DentryId) -> bool {
        self.removed.binary_search(from).is_ok_and(|number| number < self.added.len())
    }

    /// The names that are removed, and one that stays, if it is known.
    pub(crate) fn names_before(&self) -> impl Iterator<Item = &DentryId> {
        self.removed.iter().chain(&self.stays)
    }

    /// The names that are added.
    pub(crate) fn added(&self) -> &[DentryId] {
        &self.added
    }

    /// A name of the file on the before side.
    pub(crate) fn had(&self) -> Option<&DentryId> {
        self.stays.as_ref().or(self.removed.first())
    }

    /// Names of the file on the after side, as far as they are known here.
    pub(crate) fn has(&self) -> impl Iterator<Item = &DentryId> {
        self.stays.iter().chain(&self.added)
    }
}

impl Survey {
    pub(crate) fn make<E: Storage>(sides: &DiffSides<E>) -> Result<Survey, FsError> {
        Survey::make_with(sides, false)
    }

    /// As `make`. With `all_names` the after side has all names of a changed file of several names.
    pub(crate) fn make_with<E: Storage>(sides: &DiffSides<E>, all_names: bool) -> Result<Survey, FsError> {
        let mut survey = Survey {
            ways: Default::default(),
            moved: BTreeMap::new(),
            made: BTreeSet::new(),
            reported: BTreeMap::new(),
            bytes: 0,
            charge: sides.charge(),
        };
        let mut shared = BTreeSet::new();
        let (mut last_dir, mut value) = (0, Vec::new());
        // Keys of inodes come before keys of names. So `shared` is complete when the first name is visited,
        // and loses each file that a changed name refers to: the walk meets those without help.
        each_changed(sides, &mut |key| {
            match Key::decode(key)? {
                Key::Inode(volume, ino) => match sides.own(DiffSide::After, number_in(volume, ino))? {
                    Some(record) if record.kind == FileKind::Directory => {
                        survey.add_way(sides, DiffSide::After, record.ino)?;
                    }
                    Some(record) => {
                        survey.charge_entry(0)?;
                        shared.insert(record.ino);
                    }
                    None => {}
                },
                // Without a name, the file is on no side.
                Key::Orphan(volume, ino) if sides.get(DiffSide::After, key, &mut value)? => {
                    shared.remove(&number_in(volume, ino));
                }
                Key::Dentry(volume, dir, name) => {
                    let dir = number_in(volume, dir);
                    if dir != last_dir {
                        survey.add_way(sides, DiffSide::After, dir)?;
                        survey.add_way(sides, DiffSide::Before, dir)?;
                        last_dir = dir;
                    }
                    if let Some(ino) = sides.leads_to(DiffSide::After, dir, name)? {
                        // With all names, the changed one may be where nobody looks.
                        if !all_names {
                            shared.remove(&ino);
                        }
                        if !sides.is_surely_new(ino)
                            && sides.leads_to(DiffSide::Before, dir, name)? != Some(ino)
                        {
                            survey.charge_entry(name.len())?;
                            survey.moved.entry(ino).or_default().added.push((dir, name.into()));
                        }
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        survey.find_sources(sides)?;
        survey.find_made(sides)?;
        survey.find_names(sides, shared, all_names)?;
        Ok(survey)
    }

    /// Charges one more entry with a name of so many bytes.
    ///
    /// # Errors
    /// `Memory`.
    fn charge_entry(&mut self, name_bytes: usize) -> Result<(), FsError> {
        self.bytes += ENTRY_BYTES + name_bytes;
        Ok(self.charge.grow_to(self.bytes, MemoryNeed::Needed)?)
    }

    /// Whether the file did not exist before.
    pub(crate) fn is_new<E: Storage>(&self, sides: &DiffSides<E>, ino: u64) -> bool {
        sides.is_surely_new(ino) || self.made.contains(&ino)
    }

    /// The path at which the diff has listed a file of several names, if it has.
    pub(crate) fn reported(&self, ino: u64) -> Option<&PathBuf> {
        self.reported.get(&ino)
    }

    /// Notes the path at which the diff lists a file of several names.
    ///
    /// # Errors
    /// `Memory`.
    pub(crate) fn report(&mut self, ino: u64, path: PathBuf) -> Result<(), FsError> {
        self.charge_entry(path.as_os_str().len())?;
        self.reported.insert(ino, path);
        Ok(())
    }

    /// The names of a file that existed before and has an added name.
    pub(crate) fn moved(&self, ino: u64) -> Option<&MovedFile> {
        self.moved.get(&ino)
    }

    /// All files with an added name that existed before.
    pub(crate) fn all_moved(&self) -> impl Iterator<Item = (u64, &MovedFile)> {
        self.moved.iter().map(|(ino, moved)| (*ino, moved))
    }

    /// The first way in a directory after the name `last`.
    pub(crate) fn next_way(&self, side: DiffSide, dir: u64, last: &Option<DentryId>) -> Option<&DentryId> {
        let start = match last {
            Some(dentry) => Bound::Excluded(dentry),
            None => Bound::Included(&(dir, crate::node::NameBuf::new())),
        };
        self.ways[side as usize].range((start, Bound::Unbounded)).next().filter(|dentry| dentry.0 == dir)
    }

    /// Adds the names from the root to a directory.
    pub(crate) fn add_way<E: Storage>(
        &mut self,
        sides: &DiffSides<E>,
        side: DiffSide,
        mut dir: u64,
    ) -> Result<(), FsError> {
        while let Some(dentry) = sides.dentry_of(side, dir)? {
            dir = dentry.0;
            self.charge_entry(dentry.1.len())?;
            if !self.ways[side as usize].insert(dentry) {
                // The rest of the way is there since this name was added.
                break;
            }
        }
        Ok(())
    }

    /// Finds the removed names of files with an added name.
    fn find_sources<E: Storage>(&mut self, sides: &DiffSides<E>) -> Result<(), FsError> {
        if self.moved.is_empty() {
            return Ok(());
        }
        each_changed(sides, &mut |key| {
            let Some((dir, name)) = name_of(key)? else { return Ok(()) };
            let Some(ino) = sides.leads_to(DiffSide::Before, dir, &name)? else { return Ok(()) };
            if self.moved.contains_key(&ino) {
                self.charge_entry(name.len())?;
            }
            if let Some(moved) = self.moved.get_mut(&ino) {
                if sides.leads_to(DiffSide::After, dir, &name)? == Some(ino) {
                    moved.stays = Some((dir, name));
                } else {
                    moved.removed.push((dir, name));
                }
            }
            Ok(())
        })?;
        debug_assert!(
            self.moved.values().all(|moved| moved.added.is_sorted() && moved.removed.is_sorted()),
            "changed names are visited in order"
        );
        Ok(())
    }

    /// Finds the new files among those with an added name: no changed name referred to them before, and they
    /// had no record of their own.
    fn find_made<E: Storage>(&mut self, sides: &DiffSides<E>) -> Result<(), FsError> {
        for (ino, moved) in &self.moved {
            if moved.removed.is_empty()
                && moved.stays.is_none()
                && sides.own(DiffSide::Before, *ino)?.is_none()
            {
                self.made.insert(*ino);
            }
        }
        self.moved.retain(|ino, _| !self.made.contains(ino));
        Ok(())
    }

    /// Finds a name of each of these files. No changed name refers to them.
    fn find_names<E: Storage>(
        &mut self,
        sides: &DiffSides<E>,
        files: BTreeSet<u64>,
        all_names: bool,
    ) -> Result<(), FsError> {
        let mut found = Vec::new();
        let mut unnamed = BTreeSet::new();
        for ino in files {
            match sides.known_dentry(ino) {
                Some(dentry) if sides.leads_to(DiffSide::After, dentry.0, &dentry.1)? == Some(ino) => {
                    found.push(dentry);
                }
                _ => _ = unnamed.insert(ino),
            }
        }
        // The transaction met these files by names that it has removed since. Only a search of all names
        // finds the others.
        search(sides, unnamed, all_names, &mut found)?;
        for dentry in found {
            self.add_way(sides, DiffSide::After, dentry.0)?;
            self.charge_entry(dentry.1.len())?;
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
    for volume in sides.volumes()? {
        let mut start = inode_key(number_in(volume, 0));
        let end = xattr_range(number_in(volume, 0)).0;
        loop {
            let keys = sides.changed(&start, Some(&end), KEYS_AT_ONCE)?;
            keys.iter().try_for_each(|key| visit(key))?;
            debug_assert!(keys.is_sorted(), "changed keys come in order");
            let Some(last) = keys.last().filter(|_| keys.len() == KEYS_AT_ONCE) else { break };
            start.clear();
            start.extend_from_slice(last);
            start.push(0);
        }
    }
    Ok(())
}

/// Searches all names for one of each of these files, or for all of them, and adds these to `found`.
fn search<E: Storage>(
    sides: &DiffSides<E>,
    mut files: BTreeSet<u64>,
    all_names: bool,
    found: &mut Vec<DentryId>,
) -> Result<(), FsError> {
    // All names of a file are in its own volume.
    let volumes: BTreeSet<VolumeId> = files.iter().map(|ino| volume_of(*ino)).collect();
    volumes.into_iter().try_for_each(|volume| search_in(volume, sides, &mut files, all_names, found))
}

/// As `search`, among the names of one volume.
fn search_in<E: Storage>(
    volume: VolumeId,
    sides: &DiffSides<E>,
    files: &mut BTreeSet<u64>,
    all_names: bool,
    found: &mut Vec<DentryId>,
) -> Result<(), FsError> {
    // Of one page at a time, without the read set: see `peek_range`. It ends when each file has a name.
    let mut start = dentry_range(number_in(volume, 1)).0;
    let end = xattr_range(number_in(volume, 0)).0;
    let mut page = ScanPage::default();
    while files.iter().any(|ino| volume_of(*ino) == volume) {
        let range = KeyRange { start: &start, end: Some(&end) };
        sides.page(range, KEYS_AT_ONCE, PAGE_BYTES, &mut page)?;
        for entry in page.iter() {
            let dentry = Dentry::decode(entry.value)?.in_volume(volume);
            if let Dentry::Reference(_, ino) = dentry
                && (if all_names { files.contains(&ino) } else { files.remove(&ino) })
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
