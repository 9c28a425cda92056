//! Walks through a directory and everything below it, in the order of the bytes of the names.
//!
//! Symbolic links are not followed. A directory is opened by its name in the one above it, so a tree may be
//! deeper than a path may be long.

use std::path::{Path, PathBuf};

use warpfire_terminal::Failure;

use super::tally::Tally;
use crate::tree::{Attributes, NewAttributes, Tree, TreeEntry, TreeError, TreeListing, TreeResult};

/// A file that a walk has found.
pub struct FoundFile {
    /// Its path in the pool.
    pub path: PathBuf,
    /// Its metadata when it was found.
    pub metadata: Attributes,
    /// 0 for the file that the walk began at.
    pub depth: usize,
    /// Its name in its directory, which is open; `None` for the file that the walk began at.
    entry: Option<TreeEntry>,
}

impl FoundFile {
    /// Sets attributes of the file, however long its path is; a symbolic link is not followed.
    ///
    /// # Errors
    /// The failure, with the path.
    pub fn set(&self, fs: &Tree, set: &NewAttributes) -> Result<(), Failure> {
        let done = match &self.entry {
            Some(entry) => fs.set_entry(entry, set),
            None => fs.set_symlink(&self.path, set),
        };
        done.map_err(|error| error.at(&self.path))
    }
}

/// The moment of a visit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The file has been found; the entries of a directory follow.
    Reached,
    /// All entries of the directory have been visited.
    Left,
}

/// A directory whose entries are being visited.
struct Level {
    /// `None` if it cannot be listed.
    listing: Option<TreeListing>,
    found: FoundFile,
}

/// Visits `top` and everything below it, to a depth of `depth_max`. A file that fails is reported, and the
/// walk goes on.
///
/// # Errors
/// Nobody reads stdout any more.
pub fn walk(
    fs: &Tree,
    tally: &Tally,
    top: &Path,
    depth_max: usize,
    mut visit: impl FnMut(Moment, &FoundFile) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let metadata = fs.symlink_metadata(top).map_err(|error| error.at(top));
    let Some(metadata) = tally.take(metadata)? else { return Ok(()) };
    let mut levels: Vec<Level> = Vec::new();
    let mut next = Some((FoundFile { path: top.to_path_buf(), metadata, depth: 0, entry: None }, None));
    loop {
        if let Some((found, opened)) = next.take() {
            tally.take(visit(Moment::Reached, &found))?;
            if found.metadata.is_dir() {
                let listing = match found.depth < depth_max {
                    true => tally.take(listing(fs, &found, opened))?,
                    false => None,
                };
                levels.push(Level { listing, found });
            }
        }
        let Some(level) = levels.last_mut() else { return Ok(()) };
        let above = &level.found;
        let Some(entry) = level.listing.as_mut().and_then(|listing| fs.next_entry(listing)) else {
            let left = levels.pop().expect("the list has a last level");
            tally.take(visit(Moment::Left, &left.found))?;
            continue;
        };
        let failed = |error: TreeError| error.at(&above.path);
        let Some(entry) = tally.take(entry.map_err(failed))? else { continue };
        let path = above.path.join(entry.file_name());
        let metadata = fs.entry_metadata(&entry).map_err(|error| error.at(&path));
        let Some(metadata) = tally.take(metadata)? else { continue };
        let opened = metadata.is_dir().then(|| fs.read_dir_of(&entry));
        next = Some((FoundFile { path, metadata, depth: above.depth + 1, entry: Some(entry) }, opened));
    }
}

fn listing(
    fs: &Tree,
    found: &FoundFile,
    opened: Option<TreeResult<TreeListing>>,
) -> Result<TreeListing, Failure> {
    let opened = opened.unwrap_or_else(|| fs.read_dir(&found.path));
    opened.map_err(|error| error.at(&found.path))
}
