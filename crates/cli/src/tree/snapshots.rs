//! Snapshots in the tree of a pool: `/.snapshots/NAME/...` is a path in the snapshot NAME, and
//! `/.snapshots/@MOMENT/...` one in the newest snapshot at that moment. A mount shows the
//! same paths, so the command line has one form for both.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use warpfire::{Snapshot, Warpfire};

use super::{TreeError, TreeResult};
use crate::output::moment_of_name;

/// The directory of the root that holds the snapshots.
pub const SNAPSHOTS: &str = ".snapshots";

/// A path of a pool, by what it leads to.
pub enum Placed {
    /// A file of the pool as it is now.
    Now,
    /// The directory of the snapshots.
    Snapshots,
    /// A file in a snapshot, by its path there.
    Then(Snapshot, PathBuf),
}

/// The name of the snapshot in a path, and the path in it; `None` outside of snapshots. Without a name, the
/// path is the directory of the snapshots.
pub fn split(path: &Path) -> Option<(Option<&OsStr>, PathBuf)> {
    let mut parts = path.components().filter(|part| *part != Component::RootDir);
    if parts.next() != Some(Component::Normal(SNAPSHOTS.as_ref())) {
        return None;
    }
    match parts.next() {
        None => Some((None, PathBuf::from("/"))),
        Some(Component::Normal(name)) => Some((Some(name), Path::new("/").join(parts.collect::<PathBuf>()))),
        // `..` leads back to the pool.
        Some(_) => None,
    }
}

/// What a path of an open pool leads to.
pub fn placed(pool: &Warpfire, path: &Path) -> TreeResult<Placed> {
    Ok(match split(path) {
        None => Placed::Now,
        Some((None, _)) => Placed::Snapshots,
        Some((Some(name), path)) => match name.to_str().and_then(moment_of_name) {
            None => Placed::Then(pool.open_snapshot(name)?, path),
            Some(moment) => Placed::Then(pool.open_snapshot(pool.snapshot_at(moment)?.name)?, path),
        },
    })
}

/// Refuses a change at a path in a snapshot.
pub fn check_changeable(path: &Path) -> TreeResult<()> {
    if split(path).is_none() { Ok(()) } else { Err(TreeError::Snapshot) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_the_directory_of_snapshots_is_in_one() {
        let of = |path: &str| {
            split(Path::new(path)).map(|(name, rest)| {
                (name.map(|name| name.to_string_lossy().into_owned()), rest.display().to_string())
            })
        };
        assert_eq!(of("/.snapshots/monday/a/b"), Some((Some("monday".into()), "/a/b".into())));
        assert_eq!(of("/.snapshots/monday"), Some((Some("monday".into()), "/".into())));
        assert_eq!(of("/.snapshots/"), Some((None, "/".into())));
        assert_eq!(of("/.snapshots/.."), None);
        assert_eq!(of("/a/.snapshots/monday"), None);
        assert_eq!(of("/"), None);
    }
}
