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
use warpfire_meta::{KeyRange, Page, SliceStore, Store};

use super::sides::{Place, Side, Sides, name_of};
use crate::error::FsError;
use crate::limits::PAGE_BYTES;

/// Changed keys, or names, that are looked up at a time.
const KEYS_AT_ONCE: usize = 1024;

#[derive(Default)]
pub(super) struct Survey {
    ways: [BTreeSet<Place>; 2],
    moved: BTreeMap<u64, Moved>,
    /// Files of several names that have been told of, with the path.
    pub(super) told: BTreeMap<u64, PathBuf>,
}

/// Names of a file that was there before, in order.
#[derive(Default)]
pub(super) struct Moved {
    gone: Vec<Place>,
    came: Vec<Place>,
    stays: Option<Place>,
}

impl Moved {
    /// The name in whose place this one, which comes, is.
    pub(super) fn renamed_from(&self, to: &Place) -> Option<&Place> {
        let number = self.came.binary_search(to).ok()?;
        self.gone.get(number)
    }

    /// Whether another name is in the place of this one, which goes.
    pub(super) fn is_renamed(&self, from: &Place) -> bool {
        self.gone.binary_search(from).is_ok_and(|number| number < self.came.len())
    }

    /// A name that the file had before.
    pub(super) fn had(&self) -> Option<&Place> {
        self.stays.as_ref().or(self.gone.first())
    }

    /// Names that the file has inside, as far as they are known here.
    pub(super) fn has(&self) -> impl Iterator<Item = &Place> {
        self.stays.iter().chain(&self.came)
    }
}

impl Survey {
    pub(super) fn make<E: Store + SliceStore>(sides: &Sides<E>) -> Result<Survey, FsError> {
        let mut survey = Survey::default();
        let mut shared = BTreeSet::new();
        let mut last_dir = 0;
        // Inodes come before names.
        each_changed(sides, &mut |key| {
            match Key::decode(key)? {
                Key::Inode(_, ino) => match sides.own(Side::Inside, ino)? {
                    Some(record) if record.kind == FileKind::Directory => {
                        survey.add_way(sides, Side::Inside, ino)?;
                    }
                    Some(_) => _ = shared.insert(ino),
                    None => {}
                },
                Key::Dentry(_, dir, name) => {
                    if dir != last_dir {
                        survey.add_way(sides, Side::Inside, dir)?;
                        survey.add_way(sides, Side::Before, dir)?;
                        last_dir = dir;
                    }
                    if let Some(ino) = sides.leads_to(Side::Inside, dir, name)? {
                        shared.remove(&ino);
                        if !sides.is_made(ino) && sides.leads_to(Side::Before, dir, name)? != Some(ino) {
                            survey.moved.entry(ino).or_default().came.push((dir, name.into()));
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
    pub(super) fn moved(&self, ino: u64) -> Option<&Moved> {
        self.moved.get(&ino)
    }

    /// The first name of a directory after `last` that is on the way to something.
    pub(super) fn next_way(&self, side: Side, dir: u64, last: &Option<Place>) -> Option<&Place> {
        let start = match last {
            Some(place) => Bound::Excluded(place),
            None => Bound::Included(&(dir, crate::node::Name::new())),
        };
        self.ways[side as usize].range((start, Bound::Unbounded)).next().filter(|place| place.0 == dir)
    }

    fn add_way<E: Store + SliceStore>(
        &mut self,
        sides: &Sides<E>,
        side: Side,
        mut dir: u64,
    ) -> Result<(), FsError> {
        while let Some(place) = sides.place_of(side, dir)? {
            dir = place.0;
            if !self.ways[side as usize].insert(place) {
                break;
            }
        }
        Ok(())
    }

    /// Finds the names that files had of which a name comes.
    fn find_sources<E: Store + SliceStore>(&mut self, sides: &Sides<E>) -> Result<(), FsError> {
        if self.moved.is_empty() {
            return Ok(());
        }
        each_changed(sides, &mut |key| {
            let Some((dir, name)) = name_of(key)? else { return Ok(()) };
            let Some(ino) = sides.leads_to(Side::Before, dir, &name)? else { return Ok(()) };
            if let Some(moved) = self.moved.get_mut(&ino) {
                if sides.leads_to(Side::Inside, dir, &name)? == Some(ino) {
                    moved.stays = Some((dir, name));
                } else {
                    moved.gone.push((dir, name));
                }
            }
            Ok(())
        })
    }

    /// Finds a name of each of these files, to which no changed name leads.
    fn find_names<E: Store + SliceStore>(
        &mut self,
        sides: &Sides<E>,
        files: BTreeSet<u64>,
    ) -> Result<(), FsError> {
        let (mut found, mut unnamed) = (Vec::new(), BTreeSet::new());
        for ino in files {
            match sides.known_place(ino) {
                Some(place) if sides.leads_to(Side::Inside, place.0, &place.1)? == Some(ino) => {
                    found.push(place);
                }
                _ => _ = unnamed.insert(ino),
            }
        }
        // The transaction has met these by names that it has taken away since. What others there are only the names say.
        search(sides, unnamed, &mut found)?;
        for place in found {
            self.add_way(sides, Side::Inside, place.0)?;
            self.ways[Side::Inside as usize].insert(place);
        }
        Ok(())
    }
}

/// Visits keys of inodes and names that have been changed, in order.
fn each_changed<E: Store + SliceStore>(
    sides: &Sides<E>,
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
fn search<E: Store + SliceStore>(
    sides: &Sides<E>,
    mut files: BTreeSet<u64>,
    found: &mut Vec<Place>,
) -> Result<(), FsError> {
    let mut start = dentry_range(sides.volume(), 1).0;
    let end = xattr_range(sides.volume(), 0).0;
    let mut page = Page::default();
    while !files.is_empty() {
        let range = KeyRange { start: &start, end: Some(&end) };
        sides.inside().engine.peek_range(range, KEYS_AT_ONCE, PAGE_BYTES, &mut page)?;
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
