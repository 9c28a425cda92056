//! Snapshots in the tree of a pool. `DIR/.snapshots/NAME/...` is a path below the directory DIR as the
//! snapshot NAME shows it, wherever DIR was then. `DIR/.snapshots/@MOMENT/...` is one in the newest snapshot
//! at that moment. A file that somebody has made with the name `.snapshots` comes first. A mount shows the
//! same paths, so the command line has one form for both.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

use warpfire::{Dir, ErrorKind, Snapshot, Storage, Warpfire, gmt_second};

use super::{TreeError, TreeResult};
use crate::output::moment_of_name;

/// The name in a directory that leads to its snapshots.
pub const SNAPSHOTS: &str = ".snapshots";

/// A path of a pool, by what it leads to.
pub enum Placed {
    /// A file of the pool as it is now.
    Now,
    /// The snapshots of a directory.
    Snapshots(Dir),
    /// A file in a snapshot.
    Then {
        snapshot: Snapshot,
        /// The name of the snapshot.
        name: OsString,
        /// The path of the file there.
        path: PathBuf,
    },
}

/// A path through a directory `.snapshots`.
#[derive(PartialEq, Eq, Debug)]
struct SnapshotPath<'a> {
    /// The directory that `.snapshots` is in.
    directory: PathBuf,
    /// The name below `.snapshots`, if the path goes on.
    name: Option<&'a OsStr>,
    /// The path behind that name, relative.
    rest: PathBuf,
}

/// The parts of a path through `.snapshots`, for each place where it has that name.
fn splits(path: &Path) -> impl Iterator<Item = SnapshotPath<'_>> {
    let parts: Vec<Component<'_>> = path.components().filter(|part| *part != Component::RootDir).collect();
    (0..parts.len()).filter_map(move |at| {
        if parts[at] != Component::Normal(SNAPSHOTS.as_ref()) {
            return None;
        }
        let name = match parts.get(at + 1) {
            None => None,
            Some(Component::Normal(name)) => Some(*name),
            // `..` leads back to the pool.
            Some(_) => return None,
        };
        let directory = Path::new("/").join(parts[..at].iter().collect::<PathBuf>());
        Some(SnapshotPath { directory, name, rest: parts.iter().skip(at + 2).collect() })
    })
}

/// The parts of a path that leads to snapshots; `None` if it leads to a file of now, or nowhere.
fn find<'a, E: Storage>(
    pool: &Warpfire<E>,
    path: &'a Path,
) -> TreeResult<Option<(Dir<E>, SnapshotPath<'a>)>> {
    for split in splits(path) {
        match pool.symlink_metadata(split.directory.join(SNAPSHOTS)) {
            // Somebody has made it.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Without the directory, the call on the whole path says why.
                return Ok(pool.dir(&split.directory).ok().map(|dir| (dir, split)));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// What a path of an open pool leads to.
pub fn placed(pool: &Warpfire, path: &Path) -> TreeResult<Placed> {
    let Some((dir, split)) = find(pool, path)? else { return Ok(Placed::Now) };
    let Some(name) = split.name else { return Ok(Placed::Snapshots(dir)) };
    let text = name.to_str().unwrap_or_default();
    let name = if let Some(second) = gmt_second(text.as_bytes()) {
        pool.snapshot_in_second(second)?.name
    } else if let Some(moment) = moment_of_name(text) {
        pool.snapshot_at(moment)?.name
    } else {
        name.to_owned()
    };
    let snapshot = pool.open_snapshot(&name)?;
    let path = dir.path_in(&snapshot)?.join(split.rest);
    Ok(Placed::Then { snapshot, name, path })
}

/// Refuses a change at a path that leads to snapshots.
pub fn check_changeable<E: Storage>(pool: &Warpfire<E>, path: &Path) -> TreeResult<()> {
    if find(pool, path)?.is_none() { Ok(()) } else { Err(TreeError::Snapshot) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_at_each_directory_of_snapshots() {
        let of = |path: &str| -> Vec<(String, String, String)> {
            let text = |path: &Path| path.display().to_string();
            let parts = |split: SnapshotPath<'_>| {
                let name = split.name.unwrap_or_default().to_string_lossy().into_owned();
                (text(&split.directory), name, text(&split.rest))
            };
            splits(Path::new(path)).map(parts).collect()
        };
        let one = |directory: &str, name: &str, rest: &str| (directory.into(), name.into(), rest.into());
        assert_eq!(of("/.snapshots/monday/a/b"), [one("/", "monday", "a/b")]);
        assert_eq!(of("/.snapshots/monday"), [one("/", "monday", "")]);
        assert_eq!(of("/.snapshots/"), [one("/", "", "")]);
        assert_eq!(of("a/b/.snapshots/monday/c"), [one("/a/b", "monday", "c")]);
        let both = [one("/a", "b", ".snapshots/c"), one("/a/.snapshots/b", "c", "")];
        assert_eq!(of("/a/.snapshots/b/.snapshots/c"), both);
        assert_eq!(of("/.snapshots/.."), []);
        assert_eq!(of("/a/.snapshots.d"), []);
        assert_eq!(of("/"), []);
    }
}
