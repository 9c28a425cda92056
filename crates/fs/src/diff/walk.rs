//! The walk of one side along changed names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use warpfire_format::fs::{FileKind, Key};
use warpfire_meta::Storage;

use super::sides::{DentryId, DiffSide, DiffSides, SideRecord, name_of};
use super::survey::{MovedFile, Survey};
use super::{ChangeKind, ChangedRanges, PathChange, XATTRS_LISTED_MAX};
use crate::error::FsError;
use crate::keys::{dentry_key, dentry_range, share_volume, xattr_range};
use crate::transfer::is_receive_directory;

/// The position of a walk.
pub(super) struct SideWalk {
    side: DiffSide,
    /// The directories from the root on, the innermost last.
    levels: Vec<WalkLevel>,
    /// The path of the name that was visited last.
    path: Vec<u8>,
}

/// A directory on the walk's way from the root.
struct WalkLevel {
    dir: u64,
    /// Length of the directory's own path.
    path_len: usize,
    /// The name in it that was visited last.
    last: Option<DentryId>,
}

/// Whether a walk visits a path after another.
pub(super) fn is_after(path: &Path, other: &Path) -> bool {
    // Names are compared one by one: the separator counts as less than any byte of a name.
    let order = |path: &Path| -> Vec<u8> {
        let bytes = path.as_os_str().as_bytes();
        bytes.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect()
    };
    order(path) > order(other)
}

impl SideWalk {
    pub(super) fn new(side: DiffSide, root: u64) -> SideWalk {
        SideWalk { side, levels: vec![WalkLevel { dir: root, path_len: 0, last: None }], path: Vec::new() }
    }

    /// Walks on to the next change of this side; `None` at the end.
    pub(super) fn step<E: Storage>(
        &mut self,
        pair: &mut DiffContext<'_, E>,
    ) -> Result<Option<PathChange>, FsError> {
        while let Some(level) = self.levels.last_mut() {
            let Some(dentry) = pair.next_name(self.side, level.dir, &level.last)? else {
                self.levels.pop();
                continue;
            };
            debug_assert!(
                level.last.as_ref().is_none_or(|last| *last < dentry),
                "names are visited in order"
            );
            self.path.truncate(level.path_len);
            self.path.push(b'/');
            self.path.extend_from_slice(&dentry.1);
            level.last = Some(dentry.clone());
            let visit = match self.side {
                DiffSide::Before => pair.look_before(&dentry, &self.path)?,
                DiffSide::After => pair.look_after(&dentry, &self.path)?,
            };
            // The directory's own change is listed before the names in it.
            if let Some(dir) = visit.dir {
                self.levels.push(WalkLevel { dir, path_len: self.path.len(), last: None });
            }
            if visit.change.is_some() {
                return Ok(visit.change);
            }
        }
        Ok(None)
    }
}

/// The result of the visit of one name.
#[derive(Default)]
struct NameVisit {
    change: Option<PathChange>,
    /// The directory that the name refers to, to walk into.
    dir: Option<u64>,
}

/// Both sides and their survey.
pub(super) struct DiffContext<'a, E: Storage> {
    pub(super) sides: &'a DiffSides<E>,
    pub(super) survey: &'a mut Survey,
}

impl<E: Storage> DiffContext<'_, E> {
    /// The change of the root directory itself.
    pub(super) fn root(&mut self) -> Result<Option<PathChange>, FsError> {
        let ino = self.sides.root();
        let before = self.sides.own(DiffSide::Before, ino)?;
        match self.sides.own(DiffSide::After, ino)? {
            Some(after) => self.change_if_any(b"/", ChangeKind::Changed, before, &after),
            None => Ok(None),
        }
    }

    /// The first name of a directory after `last` that has changed or is a way.
    fn next_name(
        &self,
        side: DiffSide,
        dir: u64,
        last: &Option<DentryId>,
    ) -> Result<Option<DentryId>, FsError> {
        let (mut start, end) = dentry_range(dir);
        if let Some((_, name)) = last {
            start = dentry_key(dir, name);
            start.push(0);
        }
        let changed = match self.sides.changed(&start, Some(&end), 1)?.first() {
            Some(key) => name_of(key)?,
            None => None,
        };
        let way = self.survey.next_way(side, dir, last).cloned();
        Ok(changed.into_iter().chain(way).min())
    }

    /// Visits a name on the walk of the before side, which lists removed names.
    fn look_before(&mut self, dentry: &DentryId, path: &[u8]) -> Result<NameVisit, FsError> {
        let (dir, name) = dentry;
        if is_receive_directory(*dir, name) {
            return Ok(NameVisit::default());
        }
        let Some(record) = self.sides.find(DiffSide::Before, *dir, name)? else {
            return Ok(NameVisit::default());
        };
        let mut visit = NameVisit { change: None, dir: directory(&record) };
        let stays = self.sides.leads_to(DiffSide::After, *dir, name)? == Some(record.ino);
        if !stays && !self.survey.moved(record.ino).is_some_and(|moved| moved.is_renamed(dentry)) {
            visit.change = Some(new_change(path, ChangeKind::Deleted, Some(record.attr()?), None));
        }
        Ok(visit)
    }

    /// Visits a name on the walk of the after side, which lists added names and changed files.
    ///
    /// ```text
    ///   1. the file did not exist before      created, or linked at its second name
    ///   2. the name referred to it before     changed, at the first name that the walk meets
    ///   3. a removed name is paired with it   renamed
    ///   4. else                               linked
    /// ```
    fn look_after(&mut self, dentry: &DentryId, path: &[u8]) -> Result<NameVisit, FsError> {
        let (dir, name) = dentry;
        if is_receive_directory(*dir, name) {
            return Ok(NameVisit::default());
        }
        // Before the records are read: comparing content reads the slices that they name.
        let _pin = self.sides.pin()?;
        let Some(record) = self.sides.find(DiffSide::After, *dir, name)? else {
            return Ok(NameVisit::default());
        };
        // Of a new volume only the door is listed: the rest shows what its origin does, or is as new.
        let is_new_door = !share_volume(*dir, record.ino) && self.survey.is_new(self.sides, record.ino);
        let below = directory(&record).filter(|_| !is_new_door);
        let visit = |change| NameVisit { change, dir: below };
        let first = self.survey.reported(record.ino).cloned();
        if record.is_shared() && first.is_none() {
            self.survey.report(record.ino, path_buf(path))?;
        }
        // Case 1.
        if self.survey.is_new(self.sides, record.ino) {
            let kind = first.map_or(ChangeKind::Created, |first| ChangeKind::Linked(Some(first)));
            return Ok(visit(Some(new_change(path, kind, None, Some(record.attr()?)))));
        }
        let before = self.sides.find(DiffSide::Before, *dir, name)?.filter(|before| before.ino == record.ino);
        // Case 2.
        if before.is_some() {
            return Ok(visit(match first {
                None => self.change_if_any(path, ChangeKind::Changed, before, &record)?,
                Some(_) => None,
            }));
        }
        // Cases 3 and 4.
        let moved = self.survey.moved(record.ino);
        let from = moved.and_then(|moved| moved.renamed_from(dentry));
        let kind = match from.map(|from| self.sides.path_of(DiffSide::Before, from)).transpose()?.flatten() {
            Some(from) => ChangeKind::Renamed(from),
            None => ChangeKind::Linked(self.other_name(dentry, record.ino)?),
        };
        if first.is_some() {
            // The file's own change was listed at another name: here both sides are the same.
            let attr = Some(record.attr()?);
            return Ok(visit(Some(new_change(path, kind, attr, attr))));
        }
        let before = match from.or_else(|| moved.and_then(MovedFile::had)) {
            Some((dir, name)) => self.sides.find(DiffSide::Before, *dir, name)?,
            None => self.sides.own(DiffSide::Before, record.ino)?,
        };
        let before = before.filter(|before| before.ino == record.ino);
        Ok(visit(Some(self.compare(path, kind, before, &record)?)))
    }

    /// The path of another name of a file on the after side, if one is known.
    fn other_name(&self, dentry: &DentryId, ino: u64) -> Result<Option<PathBuf>, FsError> {
        let moved = self.survey.moved(ino).into_iter().flat_map(MovedFile::has).cloned();
        for other in moved.chain(self.sides.known_dentry(ino)).filter(|other| other != dentry) {
            if self.sides.leads_to(DiffSide::After, other.0, &other.1)? == Some(ino) {
                return self.sides.path_of(DiffSide::After, &other);
            }
        }
        Ok(None)
    }

    fn change_if_any(
        &self,
        path: &[u8],
        kind: ChangeKind,
        before: Option<SideRecord>,
        after: &SideRecord,
    ) -> Result<Option<PathChange>, FsError> {
        let change = self.compare(path, kind, before, after)?;
        Ok(Some(change).filter(|change| !change.aspects().is_empty()))
    }

    fn compare(
        &self,
        path: &[u8],
        kind: ChangeKind,
        before: Option<SideRecord>,
        after: &SideRecord,
    ) -> Result<PathChange, FsError> {
        // The old record is missing only if a transaction has changed the name since the walk read it.
        let Some(before) = before else { return Ok(new_change(path, kind, None, Some(after.attr()?))) };
        debug_assert_eq!(before.ino, after.ino, "a file is compared with itself");
        let (was, mut is) = (before.attr()?, after.attr()?);
        if !self.sides.compares_access_times() {
            is.atime = was.atime;
        }
        let mut change = new_change(path, kind, Some(was), Some(is));
        if after.kind == FileKind::Regular {
            change.data = self.sides.differing(&before, after)?;
        }
        change.xattrs = self.xattrs(after.ino)?;
        Ok(change)
    }

    /// The number of extended attributes that differ, and the names of the first.
    fn xattrs(&self, ino: u64) -> Result<(u64, Vec<OsString>), FsError> {
        let (start, end) = xattr_range(ino);
        let mut count = 0;
        let mut names = Vec::new();
        let mut before = Vec::new();
        let mut after = Vec::new();
        // All at once: a file has no more of them than its list of names has room for.
        for key in self.sides.changed(&start, Some(&end), usize::MAX)? {
            let Key::Xattr(_, _, name) = Key::decode(&key)? else { continue };
            let was = self.sides.get(DiffSide::Before, &key, &mut before)?;
            let is = self.sides.get(DiffSide::After, &key, &mut after)?;
            if was != is || (is && before != after) {
                count += 1;
                if names.len() < XATTRS_LISTED_MAX {
                    names.push(OsString::from_vec(name.to_vec()));
                }
            }
        }
        Ok((count, names))
    }
}

fn directory(record: &SideRecord) -> Option<u64> {
    (record.kind == FileKind::Directory).then_some(record.ino)
}

fn path_buf(path: &[u8]) -> PathBuf {
    OsStr::from_bytes(path).into()
}

fn new_change(
    path: &[u8],
    kind: ChangeKind,
    before: Option<crate::attrs::Attr>,
    after: Option<crate::attrs::Attr>,
) -> PathChange {
    let data = ChangedRanges::default();
    let xattrs = (0, Vec::new());
    PathChange { path: path_buf(path), kind, before, after, data, xattrs }
}
