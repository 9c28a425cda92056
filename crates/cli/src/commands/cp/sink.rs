//! What a copy writes: a directory of a pool, a local directory, an archive, or stdout.
//!
//! A sink has a current directory. The copy enters directories, makes files in them, sets the attributes of
//! each directory when it is full, and leaves it.

use std::ffi::OsStr;
use std::path::PathBuf;

use warpfire::Timestamp;
use warpfire_terminal::Failure;

use super::job::CopyJob;
use super::source::{Attributes, Content, NewFile};
use super::xattrs::Xattrs;

/// A file that the target has already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Existing {
    pub modified: Timestamp,
}

pub trait Sink {
    /// The file of this name in the current directory; `None` if there is none.
    fn look(&mut self, name: &OsStr) -> Result<Option<Existing>, Failure>;

    /// Makes a directory if none is there, and enters it; without a name it is the current directory. With
    /// `is_plan` nothing is made.
    fn enter(
        &mut self,
        name: Option<&OsStr>,
        attributes: &Attributes,
        xattrs: &Xattrs,
        is_plan: bool,
    ) -> Result<(), Failure>;

    /// Sets the attributes of the current directory.
    fn keep(&mut self, attributes: &Attributes, xattrs: &Xattrs) -> Result<(), Failure>;

    /// Whether a local directory, by device and inode number, is the current directory or one above it in the
    /// copy.
    fn is_within(&self, _directory: (u64, u64)) -> bool {
        false
    }

    /// Returns to the directory above.
    fn leave(&mut self);

    /// Makes a regular file, whole or not at all, in place of one of its name. Returns the bytes of data.
    fn file(
        &mut self,
        job: &mut CopyJob,
        new: NewFile<'_>,
        xattrs: &Xattrs,
        content: &mut dyn Content,
    ) -> Result<u64, Failure>;

    fn symlink(&mut self, new: NewFile<'_>, to: &OsStr) -> Result<(), Failure>;

    /// Makes a pipe, socket or device node.
    fn special(&mut self, new: NewFile<'_>, xattrs: &Xattrs) -> Result<(), Failure>;

    /// Makes another name of a file that this copy has made before; `false` if there is no such file.
    fn link(&mut self, new: NewFile<'_>) -> Result<bool, Failure>;

    /// The path of a name in the current directory, for messages.
    fn shown(&self, name: &OsStr) -> PathBuf;
}
