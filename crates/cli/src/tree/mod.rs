//! The files of a pool as the commands see them: by the library in a pool that this process has open, or
//! through the mount of the server that has it open.
//!
//! Paths begin at the root of the pool either way, and calls are named as those of the library.

mod attributes;
mod error;
mod mounted;
mod open;
mod snapshots;
mod transaction;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use warpfire::{Dir, ErrorKind, FileType, OpenOptions, Snapshot, SnapshotEngine, Warpfire};
use warpfire_terminal::{Failure, shown};

use crate::location::names_directory;

pub use attributes::{Attributes, NewAttributes, NewTime};
pub use error::{TreeError, TreeResult, below, of_mount};
pub use mounted::{MountedTree, open_in};
pub use open::{mounted_at, open, open_for_reading, refuse_mounted};
pub use snapshots::{Placed, check_changeable, placed};
pub use transaction::{TransactionTree, transact};

/// The files of a pool.
pub enum Tree {
    /// The pool is open in this process.
    Open(Warpfire),
    /// Another process has it open and has mounted it.
    Mounted(MountedTree),
}

/// A regular file that is open.
pub enum TreeFile {
    Open(warpfire::File),
    Snapshot(warpfire::File<SnapshotEngine>),
    Mounted(File),
}

/// The entries of a directory, in the order of the bytes of their names.
pub enum TreeListing {
    Open(warpfire::ReadDir),
    Snapshot(warpfire::ReadDir<SnapshotEngine>),
    /// The snapshots that show a directory, by their names.
    Snapshots(Dir, std::vec::IntoIter<OsString>),
    Mounted(mounted::Listing),
}

/// One entry of a directory.
pub enum TreeEntry {
    Open(warpfire::DirEntry),
    Snapshot(warpfire::DirEntry<SnapshotEngine>),
    /// A directory in a snapshot, by the name of the snapshot and its path there.
    Then(OsString, Snapshot, PathBuf),
    Mounted(mounted::ListedFile),
}

/// Runs a call that changes a file on either kind of tree.
macro_rules! call {
    ($tree:expr, $path:ident, $files:ident => $call:expr) => {
        match $tree {
            Tree::Open($files) => {
                check_changeable($files, $path)?;
                $call.map_err(TreeError::from)
            }
            Tree::Mounted($files) => $call.map_err(|errno| $files.error(errno)),
        }
    };
}

impl Tree {
    pub fn metadata(&self, path: &Path) -> TreeResult<Attributes> {
        match self {
            Tree::Open(files) => Ok(match placed(files, path)? {
                Placed::Now => files.metadata(path)?.into(),
                Placed::Snapshots(dir) => dir.metadata(".")?.into(),
                Placed::Then { snapshot, path, .. } => snapshot.metadata(path)?.into(),
            }),
            Tree::Mounted(files) => files.metadata(path).map_err(|errno| files.error(errno)),
        }
    }

    pub fn symlink_metadata(&self, path: &Path) -> TreeResult<Attributes> {
        match self {
            Tree::Open(files) => Ok(match placed(files, path)? {
                Placed::Now => files.symlink_metadata(path)?.into(),
                Placed::Snapshots(dir) => dir.metadata(".")?.into(),
                Placed::Then { snapshot, path, .. } => snapshot.symlink_metadata(path)?.into(),
            }),
            Tree::Mounted(files) => files.symlink_metadata(path).map_err(|errno| files.error(errno)),
        }
    }

    pub fn read_link(&self, path: &Path) -> TreeResult<PathBuf> {
        match self {
            Tree::Open(files) => Ok(match placed(files, path)? {
                Placed::Now | Placed::Snapshots(_) => files.read_link(path)?,
                Placed::Then { snapshot, path, .. } => snapshot.read_link(path)?,
            }),
            Tree::Mounted(files) => files.read_link(path).map_err(|errno| files.error(errno)),
        }
    }

    pub fn read_dir(&self, path: &Path) -> TreeResult<TreeListing> {
        match self {
            Tree::Open(files) => Ok(match placed(files, path)? {
                Placed::Now => TreeListing::Open(files.read_dir(path)?),
                Placed::Snapshots(dir) => {
                    let mut names: Vec<_> = dir.snapshots()?.into_iter().map(|then| then.name).collect();
                    names.sort();
                    TreeListing::Snapshots(dir, names.into_iter())
                }
                Placed::Then { snapshot, path, .. } => TreeListing::Snapshot(snapshot.read_dir(path)?),
            }),
            Tree::Mounted(files) => {
                let listing = files.read_dir(path).map_err(|errno| files.error(errno))?;
                Ok(TreeListing::Mounted(listing))
            }
        }
    }

    /// The next entry of a listing of this tree.
    pub fn next_entry(&self, listing: &mut TreeListing) -> Option<TreeResult<TreeEntry>> {
        Some(match listing {
            TreeListing::Open(listing) => listing.next()?.map(TreeEntry::Open).map_err(TreeError::from),
            TreeListing::Snapshot(listing) => {
                listing.next()?.map(TreeEntry::Snapshot).map_err(TreeError::from)
            }
            TreeListing::Snapshots(dir, names) => self.next_snapshot(dir, names)?,
            TreeListing::Mounted(listing) => {
                listing.next()?.map(TreeEntry::Mounted).map_err(|errno| self.mount_error(errno))
            }
        })
    }

    /// The next snapshot in a listing of those of a directory. One that was deleted since is left out.
    fn next_snapshot(
        &self,
        dir: &Dir,
        names: &mut std::vec::IntoIter<OsString>,
    ) -> Option<TreeResult<TreeEntry>> {
        let Tree::Open(files) = self else { unreachable!("a mount lists its snapshots itself") };
        names.find_map(|name| {
            let then = files.open_snapshot(&name).and_then(|then| Ok((dir.path_in(&then)?, then)));
            match then {
                Ok((path, then)) => Some(Ok(TreeEntry::Then(name, then, path))),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => Some(Err(error.into())),
            }
        })
    }

    /// The attributes of an entry of this tree as of now; of a symbolic link, its own.
    pub fn entry_metadata(&self, entry: &TreeEntry) -> TreeResult<Attributes> {
        match entry {
            TreeEntry::Open(entry) => Ok(entry.metadata()?.into()),
            TreeEntry::Snapshot(entry) => Ok(entry.metadata()?.into()),
            TreeEntry::Then(_, then, path) => Ok(then.metadata(path)?.into()),
            TreeEntry::Mounted(entry) => entry.metadata().map_err(|errno| self.mount_error(errno)),
        }
    }

    /// Sets attributes of an entry of this tree; a symbolic link is not followed.
    pub fn set_entry(&self, entry: &TreeEntry, set: &NewAttributes) -> TreeResult<()> {
        match entry {
            TreeEntry::Open(entry) => Ok(entry.set_metadata(&set.for_library())?),
            TreeEntry::Snapshot(_) | TreeEntry::Then(..) => Err(TreeError::Snapshot),
            TreeEntry::Mounted(entry) => entry.set(set).map_err(|errno| self.mount_error(errno)),
        }
    }

    /// The entries of the directory that an entry of this tree is; a symbolic link is not followed.
    pub fn read_dir_of(&self, entry: &TreeEntry) -> TreeResult<TreeListing> {
        match entry {
            TreeEntry::Open(entry) => Ok(TreeListing::Open(entry.open_dir()?.read_dir()?)),
            TreeEntry::Snapshot(entry) => Ok(TreeListing::Snapshot(entry.open_dir()?.read_dir()?)),
            TreeEntry::Then(_, then, path) => Ok(TreeListing::Snapshot(then.read_dir(path)?)),
            TreeEntry::Mounted(entry) => {
                let listing = entry.read_dir().map_err(|errno| self.mount_error(errno))?;
                Ok(TreeListing::Mounted(listing))
            }
        }
    }

    /// Opens a regular file for reading.
    pub fn open_file(&self, path: &Path) -> TreeResult<TreeFile> {
        match self {
            Tree::Open(files) => Ok(match placed(files, path)? {
                Placed::Now | Placed::Snapshots(_) => TreeFile::Open(files.open(path)?),
                Placed::Then { snapshot, path, .. } => TreeFile::Snapshot(snapshot.open(path)?),
            }),
            Tree::Mounted(files) => {
                Ok(TreeFile::Mounted(files.open_file(path).map_err(|errno| files.error(errno))?))
            }
        }
    }

    /// Opens a regular file for writing. With `create`, makes it if it does not exist.
    pub fn open_to_write(&self, path: &Path, create: bool) -> TreeResult<TreeFile> {
        match self {
            Tree::Open(files) => {
                check_changeable(files, path)?;
                let options = OpenOptions::new().write(true).create(create);
                Ok(TreeFile::Open(options.open(files, path)?))
            }
            Tree::Mounted(files) => {
                let opened = files.open_to_write(path, create).map_err(|errno| files.error(errno))?;
                Ok(TreeFile::Mounted(opened))
            }
        }
    }

    /// Reads into a buffer; returns the bytes read, 0 at the end of the file.
    pub fn read_at(&self, file: &TreeFile, buffer: &mut [u8], at: u64) -> TreeResult<usize> {
        match file {
            TreeFile::Open(file) => Ok(file.read_at(buffer, at)?),
            TreeFile::Snapshot(file) => Ok(file.read_at(buffer, at)?),
            TreeFile::Mounted(file) => {
                rustix::io::pread(file, buffer, at).map_err(|errno| self.mount_error(errno))
            }
        }
    }

    /// Sets the length of a file to what `new` makes of the present one.
    pub fn set_len(&self, file: &TreeFile, new: impl FnOnce(u64) -> u64) -> TreeResult<()> {
        match file {
            TreeFile::Open(file) => Ok(file.set_len(new(file.metadata()?.len()))?),
            TreeFile::Snapshot(file) => Ok(file.set_len(new(file.metadata()?.len()))?),
            TreeFile::Mounted(file) => {
                let len = |file| rustix::fs::fstat(file).map(|stat| u64::try_from(stat.st_size).unwrap_or(0));
                let set = len(file).and_then(|len| rustix::fs::ftruncate(file, new(len)));
                set.map_err(|errno| self.mount_error(errno))
            }
        }
    }

    pub fn create_dir(&self, path: &Path) -> TreeResult<()> {
        call!(self, path, files => files.create_dir(path))
    }

    pub fn create_dir_all(&self, path: &Path) -> TreeResult<()> {
        call!(self, path, files => files.create_dir_all(path))
    }

    pub fn remove_file(&self, path: &Path) -> TreeResult<()> {
        call!(self, path, files => files.remove_file(path))
    }

    /// Removes a directory with everything in it. `progress` is called after each removal.
    pub fn remove_dir_all(&self, path: &Path, progress: impl FnMut()) -> TreeResult<()> {
        call!(self, path, files => files.remove_dir_all_with(path, progress))
    }

    /// Sets attributes; a symbolic link is followed.
    pub fn set(&self, path: &Path, set: &NewAttributes) -> TreeResult<()> {
        match self {
            Tree::Open(files) => {
                check_changeable(files, path)?;
                Ok(files.set_metadata(path, &set.for_library())?)
            }
            Tree::Mounted(files) => files.set(path, set).map_err(|errno| files.error(errno)),
        }
    }

    /// Sets attributes; a symbolic link is not followed.
    pub fn set_symlink(&self, path: &Path, set: &NewAttributes) -> TreeResult<()> {
        match self {
            Tree::Open(files) => {
                check_changeable(files, path)?;
                Ok(files.set_symlink_metadata(path, &set.for_library())?)
            }
            Tree::Mounted(files) => files.set_symlink(path, set).map_err(|errno| files.error(errno)),
        }
    }

    /// Refuses a path with a slash at its end if the name before the slash is no directory, but a link or a
    /// file. The calls that remove and move names follow such a link, and the system's programs do not.
    /// `look` reads attributes without following.
    pub fn check_slash(
        &self,
        path: &Path,
        look: impl Fn(&Path) -> TreeResult<Attributes>,
    ) -> Result<(), Failure> {
        if !names_directory(path) {
            return Ok(());
        }
        // The path of the components has no slash at its end.
        match look(path.components().as_path()) {
            Ok(there) if there.is_symlink() => Err(self
                .not_a_directory(path)
                .hint("it is a symbolic link; name it without the slash, or name the directory itself")),
            Ok(there) if !there.is_dir() => Err(self.not_a_directory(path)),
            _ => Ok(()),
        }
    }

    /// The failure of a command that needs a directory where there is none.
    pub fn not_a_directory(&self, path: &Path) -> Failure {
        let path = match self {
            Tree::Mounted(files) if files.is_plain() => &below(files.mountpoint(), path),
            _ => path,
        };
        Failure::local_as(path, &Errno::NOTDIR.into(), "not a directory")
    }

    /// The name of a file in messages.
    pub fn shown(&self, path: &Path) -> String {
        match self {
            Tree::Mounted(files) if files.is_plain() => shown(&below(files.mountpoint(), path)),
            _ => shown(path),
        }
    }

    /// Ends the use of the pool. Changes of a pool that is open become durable; those of a mounted one do
    /// when its server syncs.
    pub fn close(self) -> Result<(), Failure> {
        match self {
            Tree::Open(files) => Ok(files.close()?),
            Tree::Mounted(_) => Ok(()),
        }
    }

    /// The error of a call on something that was opened in this tree.
    fn mount_error(&self, errno: Errno) -> TreeError {
        match self {
            Tree::Mounted(files) => files.error(errno),
            Tree::Open(_) => unreachable!("files of an open pool have errors of the library"),
        }
    }
}

impl TreeEntry {
    pub fn file_name(&self) -> &OsStr {
        match self {
            TreeEntry::Open(entry) => entry.file_name(),
            TreeEntry::Snapshot(entry) => entry.file_name(),
            TreeEntry::Then(name, ..) => name,
            TreeEntry::Mounted(entry) => entry.file_name(),
        }
    }

    pub fn file_type(&self) -> FileType {
        match self {
            TreeEntry::Open(entry) => entry.file_type(),
            TreeEntry::Snapshot(entry) => entry.file_type(),
            TreeEntry::Then(..) => FileType::Dir,
            TreeEntry::Mounted(entry) => entry.file_type(),
        }
    }
}
