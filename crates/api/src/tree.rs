//! Calls by path that touch more than one file.

use std::path::{Component, Path, PathBuf};

use warpfire_meta::Storage;

use crate::{ErrorKind, Result, Warpfire};

impl<E: Storage> Warpfire<E> {
    /// Makes a folder and those above it that are missing. A folder that is there already is fine.
    ///
    /// # Errors
    /// `NotADirectory` if something else is in the way; `PermissionDenied`, `NoSpace`.
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

    /// Removes a folder with all that is in it, or anything else. The root is emptied and stays.
    ///
    /// This is many commits: after a crash a part may be left.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`. What was removed before stays removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if !self.symlink_metadata(path)?.is_dir() {
            return self.remove_file(path);
        }
        // Folders are walked by a list and not by recursion: they may be nested deeper than a stack is.
        let mut directories = vec![path.to_path_buf()];
        while let Some(directory) = directories.last().cloned() {
            let dir = self.dir(&directory)?;
            let mut found_directory = false;
            for entry in dir.read_dir()? {
                let entry = entry?;
                if entry.file_type() == crate::FileType::Dir {
                    directories.push(directory.join(entry.file_name()));
                    found_directory = true;
                } else {
                    dir.remove_file(entry.file_name())?;
                }
            }
            if !found_directory {
                directories.pop();
                if directory.components().any(|component| component != Component::RootDir) {
                    self.remove_dir(&directory)?;
                }
            }
        }
        Ok(())
    }
}
