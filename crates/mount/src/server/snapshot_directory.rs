//! The directory `.snapshots`: its attributes, and the names of the snapshots in it.

use std::time::Duration;

use warpfire_env::Timestamp;
use warpfire_fs::{FileKind, Fs, FsError, Seq, SnapshotInfo, gmt_name, gmt_second};
use warpfire_fuse::{FileAttr, INodeNo, Time};
use warpfire_meta::{SnapshotStore, Storage};

use super::shown_snapshots::directory_of_snapshots;
use crate::options::SnapshotNames;

/// The name of the directory of snapshots.
pub(super) const SNAPSHOTS_NAME: &[u8] = b".snapshots";

/// The kernel does not cache the name of the directory and those in it: a name in it may be given to another
/// snapshot, and whom it admits differs from user to user.
pub(super) const NAME_TIME: Duration = Duration::ZERO;

/// Snapshots that are read at a time for a listing.
const LISTED_AT_ONCE: usize = 512;

/// Positions of `.` and `..` in a listing. A snapshot has the position of its seq behind them.
const FIXED_NAMES: u64 = 2;

/// Attributes of the directory: everybody may look into it, and nobody changes it.
pub(super) fn directory_attr(ino: INodeNo) -> FileAttr {
    let mode = u32::from(FileKind::Directory as u8) << 12 | 0o555;
    // One link and not two: programs such as find would take that for a directory without directories.
    FileAttr { links: 1, ..FileAttr::new(ino, mode, Time::default()) }
}

/// The snapshot that a name in the directory leads to, and whether the name is that of a moment.
pub(super) fn find<E: Storage>(
    fs: &Fs<E>,
    name: &[u8],
    parse_moment: fn(&str) -> Option<Timestamp>,
) -> Result<(SnapshotInfo, bool), FsError> {
    if name.first() != Some(&b'@') {
        return Ok((fs.snapshot(name)?, false));
    }
    if let Some(second) = gmt_second(name) {
        return Ok((fs.snapshot_in_second(second)?, true));
    }
    let text = std::str::from_utf8(name).map_err(|_| FsError::NotFound)?;
    Ok((fs.snapshot_at(parse_moment(text).ok_or(FsError::NotFound)?)?, true))
}

/// Lists the snapshots that show the directory around a directory of snapshots, from a position on. `add`
/// takes position, number, and name, and returns whether it has no room.
pub(super) fn list<E: Storage + SnapshotStore>(
    fs: &Fs<E>,
    ino: INodeNo,
    names: SnapshotNames,
    from: u64,
    mut add: impl FnMut(u64, INodeNo, &[u8]) -> bool,
) -> Result<(), FsError> {
    let directory = directory_of_snapshots(ino).expect("the listing is one of snapshots");
    for (at, name) in (1..).zip([&b"."[..], b".."]) {
        if at > from && add(at, ino, name) {
            return Ok(());
        }
    }
    // A snapshot has no number before it is looked up, so the entry has that of the directory.
    let mut add = |snapshot: &SnapshotInfo| -> Result<bool, FsError> {
        let gmt = gmt_name(snapshot.made).filter(|_| names == SnapshotNames::Gmt);
        let name = match (&gmt, names) {
            (Some(gmt), _) => gmt.as_bytes(),
            (None, SnapshotNames::Own) => &snapshot.name,
            (None, SnapshotNames::Gmt) => return Ok(false),
        };
        Ok(fs.shows_directory(snapshot, directory)? && add(snapshot.seq.0 + FIXED_NAMES, ino, name))
    };
    let mut after = Seq(from.saturating_sub(FIXED_NAMES));
    // Of several snapshots of one second, the name of the second leads to the last one.
    let mut last: Option<SnapshotInfo> = None;
    let is_hidden = |last: &SnapshotInfo, next: &SnapshotInfo| {
        names == SnapshotNames::Gmt && last.made.seconds == next.made.seconds
    };
    loop {
        let found = fs.snapshots_after(after, LISTED_AT_ONCE)?;
        let is_end = found.len() < LISTED_AT_ONCE;
        for snapshot in found {
            after = snapshot.seq;
            let before = last.replace(snapshot);
            let next = last.as_ref().expect("it has just been set");
            if let Some(before) = before.filter(|before| !is_hidden(before, next))
                && add(&before)?
            {
                return Ok(());
            }
        }
        if is_end {
            last.as_ref().map_or(Ok(false), &mut add)?;
            return Ok(());
        }
    }
}
