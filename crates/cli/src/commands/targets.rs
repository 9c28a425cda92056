//! The names that files get when a command moves or links them to a destination.

use std::path::{Path, PathBuf};

use warpfire_terminal::Failure;

use crate::tree::{TransactionTree, Tree};

/// A destination: a new name, or a directory that the files come into.
pub struct Targets<'a> {
    fs: &'a Tree,
    destination: &'a Path,
    is_directory: bool,
}

impl<'a> Targets<'a> {
    /// The destination of so many files.
    ///
    /// # Errors
    /// Many files, and the destination is no directory.
    pub fn new(
        fs: &'a Tree,
        tx: &TransactionTree,
        files: usize,
        destination: &'a Path,
    ) -> Result<Self, Failure> {
        let is_directory = tx.metadata(destination).is_ok_and(|metadata| metadata.is_dir());
        if files > 1 && !is_directory {
            return Err(Failure::usage(format_args!("{} is not a directory", fs.shown(destination)))
                .hint("with several files the destination is an existing directory"));
        }
        Ok(Targets { fs, destination, is_directory })
    }

    /// The new name of a file.
    ///
    /// # Errors
    /// The file has no name: it is the root, or its path ends with `..`.
    pub fn of(&self, file: &Path) -> Result<PathBuf, Failure> {
        if !self.is_directory {
            return Ok(self.destination.to_path_buf());
        }
        match file.file_name() {
            Some(name) => Ok(self.destination.join(name)),
            None => Err(Failure::new(format_args!("{} has no name of its own", self.fs.shown(file)))
                .hint("name a file or directory below the root")),
        }
    }
}
