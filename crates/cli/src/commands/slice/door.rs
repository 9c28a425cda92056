//! What both doors to a pool's files do with ranges of them.

use std::ops::Range;
use std::path::{Path, PathBuf};

use warpfire_terminal::Failure;

/// A range of a file, inside it.
#[derive(Clone, Debug)]
pub struct Part {
    pub path: PathBuf,
    pub range: Range<u64>,
}

impl Part {
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Where a part goes.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Over what is at this offset.
    Over(u64),
    /// Between what is before this offset and what is from there on.
    Between(u64),
    /// Behind everything.
    End,
}

/// A way to the files: the library, or a mount.
pub trait Door {
    /// A file's length.
    fn len(&self, path: &Path) -> Result<u64, Failure>;

    /// Prints a part.
    fn print(&self, part: &Part) -> Result<(), Failure>;

    /// Makes `target` hold these parts, one after the other, and nothing else. It is made if it is missing, and may be a source.
    fn assemble(&self, parts: &[Part], target: &Path) -> Result<(), Failure>;

    /// Writes a part into `target`, which is made if it is missing and may be the source.
    fn paste(&self, part: &Part, target: &Path, place: Place) -> Result<(), Failure>;

    /// Takes a part away; what follows moves down.
    fn remove(&self, part: &Part) -> Result<(), Failure>;
}
