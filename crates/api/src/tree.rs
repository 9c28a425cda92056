//! Calls by path that touch more than one file.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use warpfire_fs::NodeRef;
use warpfire_meta::Storage;

use crate::{Dir, ErrorKind, Result, Warpfire};

impl<E: Storage> Warpfire<E> {
    /// Makes a directory and all missing directories above it. A directory that exists already is no error.
    ///
    /// # Errors
    /// `NotADirectory` if a part of the path is something else; `PermissionDenied`, `NoSpace`.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut made = PathBuf::from("/");
        for component in path.as_ref().components() {
            match component {
                Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
                Component::ParentDir => made.push(".."),
                Component::Normal(name) => made.push(name),
            }
            match self.create_dir(&made) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && self.is_dir(&made) => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.metadata(path).is_ok_and(|metadata| metadata.is_dir())
    }

    /// Removes a directory with everything in it; for anything else, as
    /// [`remove_file`](Warpfire::remove_file). Of the root only the content is removed.
    ///
    /// No symbolic link is followed: if another caller puts one in the place of a directory, the link itself
    /// is removed.
    ///
    /// It is many commits, each of up to 128 files or one directory: a crash may leave a part. Inside a
    /// [transaction](Warpfire::begin) it is all or nothing.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`. Earlier removals of this call stay.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        self.remove_dir_all_with(path, || ())
    }

    /// As [`remove_dir_all`](Warpfire::remove_dir_all). `progress` is called after each removal.
    ///
    /// # Errors
    /// As [`remove_dir_all`](Warpfire::remove_dir_all).
    pub fn remove_dir_all_with(&self, path: impl AsRef<Path>, mut progress: impl FnMut()) -> Result<()> {
        let path = path.as_ref();
        if !self.symlink_metadata(path)?.is_dir() {
            self.remove_file(path)?;
            progress();
            return Ok(());
        }
        let is_root = path.components().all(|component| component == Component::RootDir);
        let place = if is_root { None } else { Some(self.parent_of(path)?) };
        let dir = is_root.then(|| Dir::at(self, self.fs().root()));
        // A list and not recursion: directories may be nested deeper than the stack allows. Each is found by
        // its name in its parent: no path is too long, and no link that another caller puts there is
        // followed.
        let mut levels = vec![RemovedLevel { place, dir }];
        while let Some(level) = levels.last_mut() {
            let Some(dir) = level.open(self)? else {
                levels.pop();
                progress();
                continue;
            };
            let mut below = Vec::new();
            let removed = dir.remove_files(&mut progress, |name| {
                below
                    .push(RemovedLevel { place: Some((NodeRef::clone(dir.node()), name.into())), dir: None });
            })?;
            if below.is_empty() {
                if let Some((parent, name)) = &level.place {
                    self.fs().rmdir_after(&self.identity().caller(), parent, name.as_bytes(), &removed)?;
                    progress();
                }
                levels.pop();
            }
            levels.append(&mut below);
        }
        Ok(())
    }
}

/// A directory that is being removed, or waits for that.
struct RemovedLevel<E: Storage> {
    /// The parent and the name there; `None` for the root.
    place: Option<(NodeRef, OsString)>,
    /// `None` until its turn comes.
    dir: Option<Dir<E>>,
}

impl<E: Storage> RemovedLevel<E> {
    /// Opens the directory. Anything else that has its name now is removed, and the answer is `None`.
    fn open(&mut self, pool: &Warpfire<E>) -> Result<Option<Dir<E>>> {
        if let (None, Some((parent, name))) = (&self.dir, &self.place) {
            let (fs, caller) = (pool.fs(), pool.identity().caller());
            let node = fs.lookup(&caller, parent, name.as_bytes())?;
            if !node.is_dir() {
                fs.unlink(&caller, parent, name.as_bytes())?;
                return Ok(None);
            }
            self.dir = Some(Dir::at(pool, node));
        }
        Ok(self.dir.clone())
    }
}

#[cfg(test)]
mod tests {
    use crate::Pool;

    #[test]
    fn a_tree_that_no_path_reaches_is_removed() {
        let fs = Pool::options().in_memory().unwrap();
        fs.create_dir("/a").unwrap();
        fs.write("/a/file", b"deep").unwrap();
        let name = "x".repeat(250);
        for _ in 0..20 {
            fs.create_dir("/b").unwrap();
            fs.rename("/a", format!("/b/{name}")).unwrap();
            fs.rename("/b", "/a").unwrap();
        }
        let mut removed = 0;
        fs.remove_dir_all_with("/a", || removed += 1).unwrap();
        assert_eq!((removed, fs.exists("/a")), (22, false));
    }

    #[test]
    fn the_target_of_a_link_in_the_place_of_a_directory_stays() {
        let fs = Pool::options().in_memory().unwrap();
        fs.create_dir_all("/tree/dir").unwrap();
        fs.write("/tree/file", b"").unwrap();
        fs.create_dir("/victim").unwrap();
        fs.write("/victim/file", b"kept").unwrap();
        let mut is_first = true;
        // The first removal comes after the listing, and before the directory is opened.
        fs.remove_dir_all_with("/tree", || {
            if std::mem::take(&mut is_first) {
                fs.rename("/tree/dir", "/dir").unwrap();
                fs.symlink("/victim", "/tree/dir").unwrap();
            }
        })
        .unwrap();
        assert!(!fs.exists("/tree") && fs.exists("/dir"));
        assert_eq!(fs.read("/victim/file").unwrap(), b"kept");
    }
}
