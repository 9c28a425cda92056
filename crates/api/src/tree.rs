//! Calls by path that touch more than one file.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use warpfire_meta::Storage;

use crate::{ErrorKind, Result, Warpfire};

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
        // A list and not recursion: directories may be nested deeper than the stack allows.
        let mut directories = vec![path.to_path_buf()];
        while let Some(directory) = directories.last().cloned() {
            let mut found_directory = false;
            let removed = self.dir(&directory)?.remove_files(&mut progress, |name| {
                directories.push(directory.join(name));
                found_directory = true;
            })?;
            if !found_directory {
                directories.pop();
                if directory.components().any(|component| component != Component::RootDir) {
                    let (parent, name) = self.parent_of(&directory)?;
                    self.fs().rmdir_after(&self.identity().caller(), &parent, name.as_bytes(), &removed)?;
                    progress();
                }
            }
        }
        Ok(())
    }
}
