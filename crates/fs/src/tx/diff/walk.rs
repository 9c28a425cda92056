//! A walk of one side along what has changed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use warpfire_format::fs::{FileKind, Key, dentry_key, dentry_range, xattr_range};
use warpfire_meta::{SliceStore, Store};

use super::sides::{Place, Record, Side, Sides, name_of};
use super::survey::{Moved, Survey};
use super::{Change, Differing, How, XATTRS_TOLD_MAX};
use crate::error::FsError;

/// Where a walk is.
pub(super) struct Walk {
    side: Side,
    /// The directories from the root on, the innermost last.
    levels: Vec<Level>,
    /// The path of the name that was visited last.
    path: Vec<u8>,
}

struct Level {
    dir: u64,
    path_len: usize,
    last: Option<Place>,
}

/// Whether a path is visited after another.
pub(super) fn is_after(path: &Path, other: &Path) -> bool {
    // Names are compared one by one: what is between them is less than any byte of a name.
    let order = |path: &Path| -> Vec<u8> {
        let bytes = path.as_os_str().as_bytes();
        bytes.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect()
    };
    order(path) > order(other)
}

impl Walk {
    pub(super) fn new(side: Side, root: u64) -> Walk {
        Walk { side, levels: vec![Level { dir: root, path_len: 0, last: None }], path: Vec::new() }
    }

    /// Goes on to the next change of this side.
    pub(super) fn step<E: Store + SliceStore>(
        &mut self,
        pair: &mut Pair<'_, E>,
    ) -> Result<Option<Change>, FsError> {
        while let Some(level) = self.levels.last_mut() {
            let Some(place) = pair.next_name(self.side, level.dir, &level.last)? else {
                self.levels.pop();
                continue;
            };
            self.path.truncate(level.path_len);
            self.path.push(b'/');
            self.path.extend_from_slice(&place.1);
            level.last = Some(place.clone());
            let seen = match self.side {
                Side::Before => pair.look_before(&place, &self.path)?,
                Side::Inside => pair.look_inside(&place, &self.path)?,
            };
            if let Some(dir) = seen.dir {
                self.levels.push(Level { dir, path_len: self.path.len(), last: None });
            }
            if seen.change.is_some() {
                return Ok(seen.change);
            }
        }
        Ok(None)
    }
}

/// What is at a name.
#[derive(Default)]
struct Seen {
    change: Option<Change>,
    /// The directory that it leads to.
    dir: Option<u64>,
}

/// Both sides, and what is known of their changes.
pub(super) struct Pair<'a, E: Store + SliceStore> {
    pub(super) sides: &'a Sides<E>,
    pub(super) survey: &'a mut Survey,
}

impl<E: Store + SliceStore> Pair<'_, E> {
    /// What has changed of the root itself.
    pub(super) fn root(&mut self) -> Result<Option<Change>, FsError> {
        let ino = self.sides.root();
        let before = self.sides.own(Side::Before, ino)?;
        match self.sides.own(Side::Inside, ino)? {
            Some(after) => self.told_if_changed(b"/", How::Changed, before, &after),
            None => Ok(None),
        }
    }

    /// The first name of a directory after `last` that has changed, or is on the way to something that has.
    fn next_name(&self, side: Side, dir: u64, last: &Option<Place>) -> Result<Option<Place>, FsError> {
        let (mut start, end) = dentry_range(self.sides.volume(), dir);
        if let Some((_, name)) = last {
            start = dentry_key(self.sides.volume(), dir, name);
            start.push(0);
        }
        let changed = match self.sides.changed(&start, Some(&end), 1)?.first() {
            Some(key) => name_of(key)?,
            None => None,
        };
        let way = self.survey.next_way(side, dir, last).cloned();
        Ok(changed.into_iter().chain(way).min())
    }

    /// The walk of before tells of names that go.
    fn look_before(&mut self, place: &Place, path: &[u8]) -> Result<Seen, FsError> {
        let (dir, name) = place;
        let Some(record) = self.sides.find(Side::Before, *dir, name)? else { return Ok(Seen::default()) };
        let mut seen = Seen { change: None, dir: directory(&record) };
        let stays = self.sides.leads_to(Side::Inside, *dir, name)? == Some(record.ino);
        if !stays && !self.survey.moved(record.ino).is_some_and(|moved| moved.is_renamed(place)) {
            seen.change = Some(told(path, How::Deleted, Some(record.attr()?), None));
        }
        Ok(seen)
    }

    /// The walk of inside tells of names that come, and of files that change.
    fn look_inside(&mut self, place: &Place, path: &[u8]) -> Result<Seen, FsError> {
        let (dir, name) = place;
        let _pin = self.sides.pin();
        let Some(record) = self.sides.find(Side::Inside, *dir, name)? else { return Ok(Seen::default()) };
        let seen = |change| Seen { change, dir: directory(&record) };
        let first = self.survey.told.get(&record.ino).cloned();
        if record.is_shared() && first.is_none() {
            self.survey.told.insert(record.ino, path_buf(path));
        }
        if self.sides.is_made(record.ino) {
            let how = first.map_or(How::Created, |first| How::Linked(Some(first)));
            return Ok(seen(Some(told(path, how, None, Some(record.attr()?)))));
        }
        let before = self.sides.find(Side::Before, *dir, name)?.filter(|before| before.ino == record.ino);
        if before.is_some() {
            return Ok(seen(match first {
                None => self.told_if_changed(path, How::Changed, before, &record)?,
                Some(_) => None,
            }));
        }
        let moved = self.survey.moved(record.ino);
        let from = moved.and_then(|moved| moved.renamed_from(place));
        let how = match from.map(|from| self.sides.path_of(Side::Before, from)).transpose()?.flatten() {
            Some(from) => How::Renamed(from),
            None => How::Linked(self.other_name(place, record.ino)?),
        };
        if first.is_some() {
            let attr = Some(record.attr()?);
            return Ok(seen(Some(told(path, how, attr, attr))));
        }
        let before = match from.or_else(|| moved.and_then(Moved::had)) {
            Some((dir, name)) => self.sides.find(Side::Before, *dir, name)?,
            None => self.sides.own(Side::Before, record.ino)?,
        };
        let before = before.filter(|before| before.ino == record.ino);
        Ok(seen(Some(self.compared(path, how, before, &record)?)))
    }

    /// The path of another name that a file has inside.
    fn other_name(&self, place: &Place, ino: u64) -> Result<Option<PathBuf>, FsError> {
        let moved = self.survey.moved(ino).into_iter().flat_map(Moved::has).cloned();
        for other in moved.chain(self.sides.known_place(ino)).filter(|other| other != place) {
            if self.sides.leads_to(Side::Inside, other.0, &other.1)? == Some(ino) {
                return self.sides.path_of(Side::Inside, &other);
            }
        }
        Ok(None)
    }

    fn told_if_changed(
        &self,
        path: &[u8],
        how: How,
        before: Option<Record>,
        after: &Record,
    ) -> Result<Option<Change>, FsError> {
        let change = self.compared(path, how, before, after)?;
        Ok(Some(change).filter(|change| !change.aspects().is_empty()))
    }

    fn compared(
        &self,
        path: &[u8],
        how: How,
        before: Option<Record>,
        after: &Record,
    ) -> Result<Change, FsError> {
        // A record that is not there any more has been changed meanwhile.
        let Some(before) = before else { return Ok(told(path, how, None, Some(after.attr()?))) };
        let mut change = told(path, how, Some(before.attr()?), Some(after.attr()?));
        if after.kind == FileKind::Regular {
            change.data = self.sides.differing(&before, after)?;
        }
        change.xattrs = self.xattrs(after.ino)?;
        Ok(change)
    }

    /// Extended attributes that differ.
    fn xattrs(&self, ino: u64) -> Result<(u64, Vec<OsString>), FsError> {
        let (start, end) = xattr_range(self.sides.volume(), ino);
        let (mut count, mut names) = (0, Vec::new());
        let (mut before, mut after) = (Vec::new(), Vec::new());
        // As many as a list of names has room for at most.
        for key in self.sides.changed(&start, Some(&end), usize::MAX)? {
            let Key::Xattr(_, _, name) = Key::decode(&key)? else { continue };
            let was = self.sides.get(Side::Before, &key, &mut before)?;
            let is = self.sides.get(Side::Inside, &key, &mut after)?;
            if was != is || (is && before != after) {
                count += 1;
                if names.len() < XATTRS_TOLD_MAX {
                    names.push(OsString::from_vec(name.to_vec()));
                }
            }
        }
        Ok((count, names))
    }
}

fn directory(record: &Record) -> Option<u64> {
    (record.kind == FileKind::Directory).then_some(record.ino)
}

fn path_buf(path: &[u8]) -> PathBuf {
    OsStr::from_bytes(path).into()
}

fn told(
    path: &[u8],
    how: How,
    before: Option<crate::attrs::Attr>,
    after: Option<crate::attrs::Attr>,
) -> Change {
    let (data, xattrs) = (Differing::default(), (0, Vec::new()));
    Change { path: path_buf(path), how, before, after, data, xattrs }
}
