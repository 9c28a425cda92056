//! The trees that a stream is about: that of the snapshot, and that of the base, if there is one.
//!
//! # Terms
//! A file is *known* if the receiver has it already: it is in the tree of the base. The *base name* of a
//! known file is the name there by which the receiver finds it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use warpfire_format::fs::{Dentry, FileKind};
use warpfire_meta::{KeyRange, ScanPage, Storage};

use crate::diff::sides::{DentryId, DiffSide, DiffSides, name_of};
use crate::diff::survey::Survey;
use crate::error::FsError;
use crate::fs::ROOT_INO;
use crate::keys::{dentry_range, xattr_range};
use crate::limits::{DEPTH_MAX, PAGE_BYTES, PAGE_ENTRIES};
use crate::transfer::is_receive_directory;

/// Directories of which it is remembered whether they are in the tree.
const REMEMBERED_MAX: usize = 1 << 16;

/// Both trees.
pub(super) struct SentTrees<E: Storage> {
    pub(super) sides: DiffSides<E>,
    /// The inode number of the root of both.
    pub(super) root: u64,
    /// The changes between them; `None` without a base.
    pub(super) survey: Option<Survey>,
    /// Base names that did not change, of files that have further names now.
    unchanged: BTreeMap<u64, DentryId>,
    /// The same, by name.
    pub(super) unchanged_names: BTreeMap<DentryId, u64>,
    inside: [HashMap<u64, bool>; 2],
}

impl<E: Storage> SentTrees<E> {
    pub(super) fn new(sides: DiffSides<E>, root: &[u8], has_base: bool) -> Result<SentTrees<E>, FsError> {
        let found = find_root(&sides, DiffSide::After, root)?;
        let mut trees = SentTrees {
            sides,
            root: found,
            survey: None,
            unchanged: BTreeMap::new(),
            unchanged_names: BTreeMap::new(),
            inside: Default::default(),
        };
        if has_base {
            if find_root(&trees.sides, DiffSide::Before, root)? != found {
                return Err(FsError::NotDirectory);
            }
            // A file of several names may have changed, of which only one is in the tree.
            let all_names = found != trees.sides.root();
            trees.survey = Some(Survey::make_with(&trees.sides, all_names)?);
            trees.find_unchanged()?;
        }
        Ok(trees)
    }

    /// Whether the tree is only a part of the pool: files and directories may come into it from outside.
    pub(super) fn is_part(&self) -> bool {
        self.root != self.sides.root()
    }

    pub(super) fn has_base(&self) -> bool {
        self.survey.is_some()
    }

    /// Whether a directory is in the tree of a side.
    pub(super) fn is_inside(&mut self, side: DiffSide, dir: u64) -> Result<bool, FsError> {
        let mut at = dir;
        let mut passed = Vec::new();
        let inside = loop {
            if at == self.root {
                break true;
            }
            if let Some(known) = self.inside[side as usize].get(&at) {
                break *known;
            }
            // The bound ends a circle of damaged records.
            if at == ROOT_INO || passed.len() > DEPTH_MAX as usize {
                break false;
            }
            passed.push(at);
            let Some((parent, name)) = self.sides.dentry_of(side, at)? else { break false };
            if is_receive_directory(parent, &name) {
                break false;
            }
            at = parent;
        };
        let remembered = &mut self.inside[side as usize];
        if remembered.len() + passed.len() > REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.extend(passed.into_iter().take(REMEMBERED_MAX).map(|dir| (dir, inside)));
        Ok(inside)
    }

    /// The base name of a file with an added name; `None` if the receiver does not have the file.
    pub(super) fn base_name(&mut self, ino: u64) -> Result<Option<DentryId>, FsError> {
        let changed = self.changed_base_name(ino)?;
        Ok(changed.or_else(|| self.unchanged.get(&ino).cloned()))
    }

    fn changed_base_name(&mut self, ino: u64) -> Result<Option<DentryId>, FsError> {
        let names: Vec<DentryId> = match self.survey.as_ref().and_then(|survey| survey.moved(ino)) {
            Some(moved) => moved.names_before().cloned().collect(),
            None => return Ok(None),
        };
        for name in names {
            if self.is_inside(DiffSide::Before, name.0)? && !is_receive_directory(name.0, &name.1) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// The number of names in the tree that a known file gets.
    pub(super) fn added_names(&mut self, ino: u64) -> Result<u64, FsError> {
        let dirs: Vec<u64> = match self.survey.as_ref().and_then(|survey| survey.moved(ino)) {
            Some(moved) => moved.added().iter().map(|(dir, _)| *dir).collect(),
            None => return Ok(0),
        };
        let mut count = 0;
        for dir in dirs {
            count += u64::from(self.is_inside(DiffSide::After, dir)?);
        }
        Ok(count)
    }

    /// Searches all names of the base for one of each file that has an added name, and whose names in the
    /// base have not changed.
    fn find_unchanged(&mut self) -> Result<(), FsError> {
        let moved: Vec<u64> = match &self.survey {
            Some(survey) => survey.all_moved().map(|(ino, _)| ino).collect(),
            None => return Ok(()),
        };
        let mut wanted = BTreeSet::new();
        for ino in moved {
            if self.changed_base_name(ino)?.is_none()
                && self.sides.own(DiffSide::Before, ino)?.is_some_and(|record| record.is_shared())
                && self.added_names(ino)? > 0
            {
                wanted.insert(ino);
            }
        }
        if self.is_part() {
            self.add_files_that_came(&mut wanted)?;
        }
        let mut start = dentry_range(1).0;
        let end = xattr_range(0).0;
        let mut page = ScanPage::default();
        while !wanted.is_empty() {
            let range = KeyRange { start: &start, end: Some(&end) };
            self.sides.page_of(DiffSide::Before, range, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
            for entry in page.iter() {
                let Dentry::Reference(kind, ino) = Dentry::decode(entry.value)? else { continue };
                let Some(name) = name_of(entry.key)? else { continue };
                if kind != FileKind::Directory
                    && wanted.contains(&ino)
                    && self.is_inside(DiffSide::Before, name.0)?
                {
                    wanted.remove(&ino);
                    if let Some(survey) = &mut self.survey {
                        survey.add_way(&self.sides, DiffSide::Before, name.0)?;
                    }
                    self.unchanged_names.insert(name.clone(), ino);
                    self.unchanged.insert(ino, name);
                }
            }
            let Some(last) = page.iter().next_back().filter(|_| page.more) else { break };
            start.clear();
            start.extend_from_slice(last.key);
            start.push(0);
        }
        Ok(())
    }
}

impl<E: Storage> SentTrees<E> {
    /// Adds the files of several names in directories that came into the tree: the receiver may have them by
    /// another name.
    fn add_files_that_came(&mut self, wanted: &mut BTreeSet<u64>) -> Result<(), FsError> {
        let moved: Vec<u64> = match &self.survey {
            Some(survey) => survey.all_moved().map(|(ino, _)| ino).collect(),
            None => return Ok(()),
        };
        let mut dirs = Vec::new();
        for ino in moved {
            let is_dir = self.sides.own(DiffSide::After, ino)?.is_some_and(|record| !record.is_shared());
            if is_dir && self.changed_base_name(ino)?.is_none() && self.added_names(ino)? > 0 {
                dirs.push(ino);
            }
        }
        let mut page = ScanPage::default();
        while let Some(dir) = dirs.pop() {
            let (mut start, end) = dentry_range(dir);
            loop {
                let range = KeyRange { start: &start, end: Some(&end) };
                self.sides.page_of(DiffSide::After, range, PAGE_ENTRIES, PAGE_BYTES, &mut page)?;
                for entry in page.iter() {
                    match Dentry::decode(entry.value)? {
                        Dentry::Reference(FileKind::Directory, below) => dirs.push(below),
                        Dentry::Reference(_, ino)
                            if self.sides.own(DiffSide::Before, ino)?.is_some()
                                && self.changed_base_name(ino)?.is_none() =>
                        {
                            wanted.insert(ino);
                        }
                        _ => {}
                    }
                }
                let Some(last) = page.iter().next_back().filter(|_| page.more) else { break };
                start.clear();
                start.extend_from_slice(last.key);
                start.push(0);
            }
        }
        Ok(())
    }
}

/// The directory at a path of a side. Links are not followed.
fn find_root<E: Storage>(sides: &DiffSides<E>, side: DiffSide, path: &[u8]) -> Result<u64, FsError> {
    let mut at = sides.root();
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let record = sides.find(side, at, name)?.ok_or(FsError::NotFound)?;
        if record.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        at = record.ino;
    }
    Ok(at)
}
