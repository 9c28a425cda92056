//! The walk of the snapshot: it makes what the receiver lacks, places what it has elsewhere, and changes the
//! rest.
//!
//! In a *known* directory only changed names are visited, and in a new one all names. A directory is left
//! after everything below it, and gets its attributes then: its times are those of the snapshot, and a
//! default list of it is not inherited by what the receiver makes in it.

use std::collections::{HashMap, HashSet, VecDeque};

use warpfire_format::fs::{Dentry, FileKind, Inode, InodeContent, Key};
use warpfire_format::stream::{FileAttributes, MadeFile, StreamRecord};
use warpfire_meta::{KeyRange, ScanPage, Storage};

use super::SendError;
use super::place::ReceiverPlace;
use super::tree::SentTrees;
use super::writer::StreamWriter;
use crate::damage::{NO_INODE_OF_NAME, NO_ROOT_INODE, WRONG_RANGE};
use crate::diff::sides::{DentryId, DiffSide, SideRecord, name_of};
use crate::keys::{dentry_key, dentry_range};
use crate::limits::PAGE_BYTES;
use crate::node::NameBuf;
use crate::transfer::is_receive_directory;

/// Names that one look-up returns.
const NAMES_AT_ONCE: usize = 1024;

/// New subdirectories of a directory that are remembered. Further ones are looked up again.
const SUBDIRECTORIES_MAX: usize = 4096;

/// A directory on the way of the walk.
pub(super) struct AttachLevel {
    pub(super) dir: u64,
    is_known: bool,
    /// Whether a name in it was made, placed or taken away.
    has_new_names: bool,
    /// New directories in it that are still to be visited.
    new_dirs: VecDeque<(NameBuf, u64)>,
    /// The names after this one may be of further new directories.
    more_after: Option<NameBuf>,
    /// The way in it that was visited last.
    last: Option<DentryId>,
}

impl AttachLevel {
    fn new(dir: u64, is_known: bool) -> AttachLevel {
        let new_dirs = VecDeque::new();
        AttachLevel { dir, is_known, has_new_names: false, new_dirs, more_after: None, last: None }
    }

    fn add_new_dir(&mut self, name: &[u8], ino: u64) {
        if self.more_after.is_some() {
            return;
        }
        if self.new_dirs.len() == SUBDIRECTORIES_MAX {
            self.more_after = self.new_dirs.back().map(|(last, _)| last.clone());
            return;
        }
        self.new_dirs.push_back((name.into(), ino));
    }
}

/// A walk of the snapshot.
pub(super) struct Attach<'s, E: Storage> {
    pub(super) trees: SentTrees<E>,
    pub(super) writer: StreamWriter<'s>,
    place: ReceiverPlace,
    /// Files of several names that are stashed, with the number of names that are left.
    stashed: HashMap<u64, u64>,
    /// Files of several names that were known and were compared.
    compared: HashSet<u64>,
}

/// Whether a visit of names goes on after a name with the same pin and page.
#[derive(PartialEq, Eq)]
enum Visit {
    GoesOn,
    /// The file was long: its bytes were read with other pins, and that of the visit may have ended.
    ReadsAgain,
}

impl<'s, E: Storage> Attach<'s, E> {
    pub(super) fn new(trees: SentTrees<E>, writer: StreamWriter<'s>) -> Self {
        Attach {
            trees,
            writer,
            place: ReceiverPlace::default(),
            stashed: HashMap::new(),
            compared: HashSet::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<(), SendError> {
        let mut levels = vec![AttachLevel::new(self.trees.root, self.trees.has_base())];
        self.visit_names(levels.last_mut().expect("the root"))?;
        while let Some(level) = levels.last_mut() {
            if let Some((name, dir, is_known)) = self.next_below(level)? {
                self.place.enter(name);
                let mut below = AttachLevel::new(dir, is_known);
                self.visit_names(&mut below)?;
                levels.push(below);
                continue;
            }
            let level = levels.pop().expect("there is a last level");
            self.leave(&level)?;
            self.place.leave();
        }
        self.writer.end()
    }

    pub(super) fn put(&mut self, record: &StreamRecord<'_>) -> Result<(), SendError> {
        self.place.follow(&mut self.writer)?;
        self.writer.record(record)
    }

    /// The next directory below to visit.
    fn next_below(&mut self, level: &mut AttachLevel) -> Result<Option<(NameBuf, u64, bool)>, SendError> {
        loop {
            if let Some((name, dir)) = level.new_dirs.pop_front() {
                return Ok(Some((name, dir, false)));
            }
            let Some(after) = level.more_after.take() else { break };
            self.find_new_dirs(level, &after)?;
        }
        loop {
            let Some(survey) = &self.trees.survey else { return Ok(None) };
            let way = survey.next_way(DiffSide::After, level.dir, &level.last).cloned();
            let Some(way) = way else { return Ok(None) };
            level.last = Some(way.clone());
            if is_receive_directory(way.0, &way.1) {
                continue;
            }
            let found = self.trees.sides.find(DiffSide::After, way.0, &way.1)?;
            let Some(record) = found.filter(|record| record.kind == FileKind::Directory) else { continue };
            // New ones were among the changed names.
            let stays = level.is_known
                && self.trees.sides.leads_to(DiffSide::Before, way.0, &way.1)? == Some(record.ino);
            if stays || self.trees.base_name(record.ino)?.is_some() {
                return Ok(Some((way.1, record.ino, true)));
            }
        }
    }

    /// Looks up further new directories of a level.
    fn find_new_dirs(&mut self, level: &mut AttachLevel, after: &[u8]) -> Result<(), SendError> {
        let (_, end) = dentry_range(level.dir);
        let mut start = dentry_key(level.dir, after);
        start.push(0);
        let mut page = ScanPage::default();
        while level.more_after.is_none() {
            let range = KeyRange { start: &start, end: Some(&end) };
            self.trees.sides.page_of(DiffSide::After, range, NAMES_AT_ONCE, PAGE_BYTES, &mut page)?;
            for entry in page.iter() {
                let Dentry::Reference(FileKind::Directory, ino) = Dentry::decode(entry.value)? else {
                    continue;
                };
                let Some((dir, name)) = name_of(entry.key)? else { return Err(WRONG_RANGE.into()) };
                let is_new =
                    !level.is_known || self.trees.sides.leads_to(DiffSide::Before, dir, &name)? != Some(ino);
                if is_new && self.trees.base_name(ino)?.is_none() {
                    level.add_new_dir(&name, ino);
                }
            }
            let Some(last) = page.iter().next_back().filter(|_| page.more) else { return Ok(()) };
            start.clear();
            start.extend_from_slice(last.key);
            start.push(0);
        }
        Ok(())
    }

    fn visit_names(&mut self, level: &mut AttachLevel) -> Result<(), SendError> {
        if level.is_known { self.visit_changed_names(level) } else { self.visit_all_names(level) }
    }

    fn visit_changed_names(&mut self, level: &mut AttachLevel) -> Result<(), SendError> {
        let (mut start, end) = dentry_range(level.dir);
        loop {
            let keys = self.trees.sides.changed(&start, Some(&end), NAMES_AT_ONCE)?;
            for key in &keys {
                let Some((dir, name)) = name_of(key)? else { return Err(WRONG_RANGE.into()) };
                if is_receive_directory(dir, &name) {
                    continue;
                }
                // Before the record is read: it names slices.
                self.writer.pin(&self.trees.sides)?;
                let before = self.trees.sides.find(DiffSide::Before, dir, &name)?;
                match self.trees.sides.find(DiffSide::After, dir, &name)? {
                    Some(record) => self.visit_name(level, &name, &record, before)?,
                    None => level.has_new_names |= before.is_some(),
                }
                self.writer.unpin()?;
            }
            let Some(last) = keys.last().filter(|_| keys.len() == NAMES_AT_ONCE) else { break };
            start.clear();
            start.extend_from_slice(last);
            start.push(0);
        }
        self.visit_changed_files(level)
    }

    /// Visits files of several names that have changed without a change of a name.
    fn visit_changed_files(&mut self, level: &mut AttachLevel) -> Result<(), SendError> {
        let mut last = None;
        loop {
            let survey = self.trees.survey.as_ref().expect("a known directory is in the survey");
            let Some(way) = survey.next_way(DiffSide::After, level.dir, &last).cloned() else {
                return Ok(());
            };
            self.writer.pin(&self.trees.sides)?;
            let found = self.trees.sides.find(DiffSide::After, way.0, &way.1)?;
            if let Some(record) = found.filter(|record| record.kind != FileKind::Directory) {
                let before = self.trees.sides.find(DiffSide::Before, way.0, &way.1)?;
                // A name that has changed was visited.
                if before.as_ref().is_some_and(|before| before.ino == record.ino) {
                    self.visit_name(level, &way.1, &record, before)?;
                }
            }
            self.writer.unpin()?;
            last = Some(way);
        }
    }

    /// Visits a name of a known directory. `before` is what it referred to in the base. The caller has a pin.
    fn visit_name(
        &mut self,
        level: &mut AttachLevel,
        name: &[u8],
        record: &SideRecord,
        before: Option<SideRecord>,
    ) -> Result<(), SendError> {
        if let Some(before) = before.filter(|before| before.ino == record.ino) {
            if record.kind != FileKind::Directory && self.is_first_comparison(record) {
                self.change(name, &before, record)?;
            }
            return Ok(());
        }
        level.has_new_names = true;
        let Some(base_name) = self.trees.base_name(record.ino)? else {
            return self.make(level, name, &record.inode()?);
        };
        if record.kind == FileKind::Directory {
            return self.put(&StreamRecord::Place { name, number: record.ino, is_last: true });
        }
        self.put_place(name, record.ino)?;
        if self.is_first_comparison(record)
            && let Some(before) = self.trees.sides.find(DiffSide::Before, base_name.0, &base_name.1)?
        {
            self.change(name, &before, record)?;
        }
        Ok(())
    }

    /// Whether a known file is to be compared: it is not, at a second name.
    fn is_first_comparison(&mut self, record: &SideRecord) -> bool {
        !record.is_shared() || self.compared.insert(record.ino)
    }

    /// Gives a stashed file a name.
    fn put_place(&mut self, name: &[u8], ino: u64) -> Result<(), SendError> {
        let names = match self.stashed.get(&ino) {
            Some(left) => *left,
            None => self.trees.added_names(ino)?,
        };
        let left = names.saturating_sub(1);
        if left > 0 {
            self.stashed.insert(ino, left);
        } else {
            self.stashed.remove(&ino);
        }
        // A name in a directory that came into the tree did not change, and is not counted.
        let is_last = left == 0 && !self.trees.is_part();
        self.put(&StreamRecord::Place { name, number: ino, is_last })
    }

    /// Visits all names of a new directory.
    fn visit_all_names(&mut self, level: &mut AttachLevel) -> Result<(), SendError> {
        let (mut start, end) = dentry_range(level.dir);
        let mut page = ScanPage::default();
        loop {
            self.writer.pin(&self.trees.sides)?;
            let range = KeyRange { start: &start, end: Some(&end) };
            self.trees.sides.page_of(DiffSide::After, range, NAMES_AT_ONCE, PAGE_BYTES, &mut page)?;
            let mut next = None;
            for entry in page.iter() {
                let Key::Dentry(_, dir, name) = Key::decode(entry.key)? else {
                    return Err(WRONG_RANGE.into());
                };
                if is_receive_directory(dir, name) {
                    continue;
                }
                // With parts that wait, the pin ends too.
                let visit = self.visit_new_name(level, name, entry.value)?;
                if visit == Visit::ReadsAgain || self.writer.has_waiting() {
                    next = Some(entry.key);
                    break;
                }
            }
            self.writer.unpin()?;
            let last = next.or_else(|| page.iter().next_back().filter(|_| page.more).map(|last| last.key));
            let Some(last) = last else { return Ok(()) };
            start.clear();
            start.extend_from_slice(last);
            start.push(0);
        }
    }

    fn visit_new_name(
        &mut self,
        level: &mut AttachLevel,
        name: &[u8],
        value: &[u8],
    ) -> Result<Visit, SendError> {
        level.has_new_names = true;
        let is_long = |inode: &Inode<'_>| matches!(inode.content, InodeContent::Regions);
        let dentry = Dentry::decode(value)?;
        let after = |long: bool| if long { Visit::ReadsAgain } else { Visit::GoesOn };
        if self.trees.has_base()
            && let Some(base_name) = self.trees.base_name(dentry.ino())?
        {
            if dentry.kind() == FileKind::Directory {
                let number = dentry.ino();
                self.put(&StreamRecord::Place { name, number, is_last: true })?;
                return Ok(Visit::GoesOn);
            }
            self.put_place(name, dentry.ino())?;
            let found = self.trees.sides.find(DiffSide::After, level.dir, name)?;
            let Some(record) = found else { return Ok(Visit::GoesOn) };
            if self.is_first_comparison(&record)
                && let Some(before) = self.trees.sides.find(DiffSide::Before, base_name.0, &base_name.1)?
            {
                self.change(name, &before, &record)?;
            }
            return Ok(Visit::ReadsAgain);
        }
        match dentry {
            Dentry::Embedded(inode) => {
                self.make(level, name, &inode)?;
                Ok(after(is_long(&inode)))
            }
            Dentry::Reference(_, ino) => {
                if let Some(left) = self.stashed.get(&ino) {
                    debug_assert!(*left > 0);
                    self.put_place(name, ino)?;
                    return Ok(Visit::GoesOn);
                }
                let record = self.trees.sides.own(DiffSide::After, ino)?.ok_or(NO_INODE_OF_NAME)?;
                let inode = record.inode()?;
                self.make(level, name, &inode)?;
                Ok(after(is_long(&inode)))
            }
        }
    }

    /// Makes a file that the receiver does not have, or gives it a further name.
    fn make(&mut self, level: &mut AttachLevel, name: &[u8], inode: &Inode<'_>) -> Result<(), SendError> {
        let kind = inode.attrs.kind;
        if kind == FileKind::Directory {
            level.add_new_dir(name, inode.ino);
            let made = MadeFile { name, ..new_file(inode) };
            return self.put(&StreamRecord::Make(made));
        }
        if self.stashed.contains_key(&inode.ino) {
            return self.put_place(name, inode.ino);
        }
        let names_left = u64::from(inode.attrs.links).saturating_sub(1);
        let number = if names_left > 0 { inode.ino } else { 0 };
        if names_left > 0 {
            self.stashed.insert(inode.ino, names_left);
        }
        self.put_new_file(MadeFile { name, number, ..new_file(inode) }, inode)
    }

    /// Sets the attributes of a directory, if something below has changed them or they have changed.
    fn leave(&mut self, level: &AttachLevel) -> Result<(), SendError> {
        let after = self.trees.sides.own(DiffSide::After, level.dir)?.ok_or(NO_ROOT_INODE)?;
        let inode = after.inode()?;
        let before = match level.is_known {
            true => self.trees.sides.own(DiffSide::Before, level.dir)?,
            false => None,
        };
        let Some(before) = before else {
            self.put(&StreamRecord::Open(b""))?;
            self.put(&StreamRecord::Attributes(attributes_of(&inode)))?;
            return self.put_xattrs(&inode);
        };
        let was = before.inode()?;
        let mut is_open = false;
        if level.has_new_names || attributes_differ(&was, &inode) {
            self.put(&StreamRecord::Open(b""))?;
            self.put(&StreamRecord::Attributes(attributes_of(&inode)))?;
            is_open = true;
        }
        self.put_changed_xattrs(b"", &inode, &mut is_open)
    }
}

/// A new file without its name and content.
fn new_file<'a>(inode: &Inode<'a>) -> MadeFile<'a> {
    let target = match inode.content {
        InodeContent::Symlink(target) => target,
        _ => &[],
    };
    let is_device = matches!(inode.attrs.kind, FileKind::CharDevice | FileKind::BlockDevice);
    MadeFile {
        kind: inode.attrs.kind,
        name: &[],
        number: 0,
        attributes: attributes_of(inode),
        rdev: if is_device { inode.attrs.rdev } else { 0 },
        target,
        pieces: Vec::new(),
    }
}

pub(super) fn attributes_of(inode: &Inode<'_>) -> FileAttributes {
    let attrs = &inode.attrs;
    FileAttributes {
        permissions: attrs.permissions,
        uid: attrs.uid,
        gid: attrs.gid,
        mtime: attrs.mtime,
        atime: attrs.atime,
    }
}

/// Whether attributes differ that a receiver sets; a time of access alone is no difference.
pub(super) fn attributes_differ(before: &Inode<'_>, after: &Inode<'_>) -> bool {
    let of = |inode| FileAttributes { atime: Default::default(), ..attributes_of(inode) };
    of(before) != of(after)
}
