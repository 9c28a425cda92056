//! A mounted pool by the calls of the system, through its mount.
//!
//! Invariants
//! 1. Every path begins at the root of the mount and stays there: a symbolic link in the pool leads to a file
//!    of the pool or to none (`MountedTree::at`, by `openat2`).
//! 2. No call leaves the filesystem of the pool: another one that is mounted over one of its directories is
//!    refused.
//! 3. Below a directory that a command works through, names are opened one by one, without following: whoever
//!    may change a directory of the pool cannot lead the command elsewhere (`Listing`, `remove_all`).
//! 4. Only a regular file is read or written, and opening never waits for the other end of a pipe.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, Dir, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid, chownat, fstat, linkat, mkdirat,
    openat, openat2, readlinkat, renameat_with, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, Result};
use warpfire::FileType;

use super::attributes::{Attributes, NewAttributes};
use super::error::TreeError;

/// How a path of a pool is resolved: see the invariants.
const IN_POOL: ResolveFlags =
    ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);

/// How a name in an open directory is resolved.
const IN_DIRECTORY: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// A descriptor that names a file, and can neither be read nor written.
const NAMED: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

const LISTABLE: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Tries of a call that the kernel could not finish, because something on the way was renamed.
const TRIES_MAX: u32 = 64;

/// The files of a mounted pool.
#[derive(Debug)]
pub struct MountedTree {
    root: OwnedFd,
    mountpoint: Arc<Path>,
    is_plain: bool,
}

impl MountedTree {
    /// The tree at a mountpoint. With `is_plain`, messages name files by their paths below it.
    pub fn open(mountpoint: &Path, is_plain: bool) -> Result<MountedTree> {
        let flags = NAMED | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let root = openat(CWD, mountpoint, flags, Mode::empty())?;
        // The kernel asks the server here, so a dead mount and one of another user show now.
        fstat(&root)?;
        Ok(MountedTree { root, mountpoint: mountpoint.into(), is_plain })
    }

    /// The view of a transaction at this directory, with the names of this mount.
    pub fn over(&self, view: &Path) -> Result<MountedTree> {
        let root = MountedTree::open(view, self.is_plain)?.root;
        Ok(MountedTree { root, mountpoint: Arc::clone(&self.mountpoint), is_plain: self.is_plain })
    }

    /// The number of the filesystem.
    pub fn device(&self) -> Result<(u32, u32)> {
        let device = fstat(&self.root)?.st_dev;
        Ok((rustix::fs::major(device), rustix::fs::minor(device)))
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    pub fn error(&self, errno: Errno) -> TreeError {
        TreeError::Mounted { errno, mountpoint: Arc::clone(&self.mountpoint), is_plain: self.is_plain }
    }

    /// Opens a path of the pool.
    fn at(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        self.at_with(path, flags, Mode::empty())
    }

    fn at_with(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let mut tries = 0;
        loop {
            match openat2(&self.root, path, flags | OFlags::CLOEXEC, mode, IN_POOL) {
                Err(Errno::AGAIN | Errno::INTR) if tries < TRIES_MAX => tries += 1,
                opened => return opened,
            }
        }
    }

    /// The directory of a file, and its name there. The root and paths that end with `..` have none.
    fn parent<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or(Errno::BUSY)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok((self.at(parent.unwrap_or(Path::new("/")), NAMED | OFlags::DIRECTORY)?, name))
    }

    pub fn metadata(&self, path: &Path) -> Result<Attributes> {
        attributes(self.at(path, NAMED)?)
    }

    pub fn symlink_metadata(&self, path: &Path) -> Result<Attributes> {
        attributes(self.at(path, NAMED | OFlags::NOFOLLOW)?)
    }

    pub fn read_link(&self, path: &Path) -> Result<PathBuf> {
        let link = self.at(path, NAMED | OFlags::NOFOLLOW)?;
        let text = readlinkat(&link, "", Vec::new())?;
        Ok(PathBuf::from(OsStr::from_bytes(text.as_bytes())))
    }

    /// The entries of a directory.
    pub fn read_dir(&self, path: &Path) -> Result<Listing> {
        Listing::of(Arc::new(self.open_dir(path)?))
    }

    /// Opens a directory, for its entries and for [`open_in`].
    pub fn open_dir(&self, path: &Path) -> Result<OwnedFd> {
        self.at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a regular file for reading.
    pub fn open_file(&self, path: &Path) -> Result<File> {
        self.regular(self.at(path, NAMED)?, OFlags::RDONLY)
    }

    /// Opens a regular file for writing. With `create`, makes it if it does not exist.
    pub fn open_to_write(&self, path: &Path, create: bool) -> Result<File> {
        if create {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
            return Ok(File::from(self.at_with(path, flags, Mode::from_raw_mode(0o666))?));
        }
        self.regular(self.at(path, NAMED)?, OFlags::WRONLY)
    }

    /// Opens a regular file for reading and writing, and makes it if it does not exist.
    pub fn open_or_make(&self, path: &Path) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = self.at_with(path, flags, Mode::from_raw_mode(0o666))?;
        match attributes(opened.try_clone().map_err(|_| Errno::MFILE)?)?.is_file() {
            true => Ok(File::from(opened)),
            false => Err(Errno::OPNOTSUPP),
        }
    }

    fn regular(&self, named: OwnedFd, flags: OFlags) -> Result<File> {
        match attributes(named.try_clone().map_err(|_| Errno::MFILE)?)?.file_type {
            FileType::File => {}
            FileType::Dir => return Err(Errno::ISDIR),
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(File::from(openat(CWD, magic_path(named.as_fd()), flags | OFlags::CLOEXEC, Mode::empty())?))
    }

    pub fn create_dir(&self, path: &Path) -> Result<()> {
        if path.file_name().is_none() && self.metadata(path).is_ok() {
            return Err(Errno::EXIST);
        }
        let (parent, name) = self.parent(path)?;
        mkdirat(parent, name, Mode::from_raw_mode(0o777))
    }

    pub fn create_dir_all(&self, path: &Path) -> Result<()> {
        let mut made = PathBuf::from("/");
        for component in path.components() {
            match component {
                Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
                Component::ParentDir => made.push(".."),
                Component::Normal(name) => made.push(name),
            }
            match self.create_dir(&made) {
                Err(Errno::EXIST) if self.metadata(&made).is_ok_and(|there| there.is_dir()) => {}
                other => other?,
            }
        }
        Ok(())
    }

    pub fn set(&self, path: &Path, set: &NewAttributes) -> Result<()> {
        set_on(&self.at(path, NAMED)?, set)
    }

    pub fn set_symlink(&self, path: &Path, set: &NewAttributes) -> Result<()> {
        set_on(&self.at(path, NAMED | OFlags::NOFOLLOW)?, set)
    }

    pub fn remove_file(&self, path: &Path) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        unlinkat(parent, name, AtFlags::empty())
    }

    /// Removes a directory with everything in it; of the root only the content.
    pub fn remove_dir_all_with(&self, path: &Path, mut progress: impl FnMut()) -> Result<()> {
        let top = self.at(path, LISTABLE)?;
        remove_all(top, &mut progress)?;
        let root = fstat(&self.root)?;
        let is_root =
            fstat(self.at(path, NAMED | OFlags::NOFOLLOW)?).is_ok_and(|top| top.st_ino == root.st_ino);
        if is_root {
            return Ok(());
        }
        let (parent, name) = self.parent(path)?;
        unlinkat(parent, name, AtFlags::REMOVEDIR)?;
        progress();
        Ok(())
    }

    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.rename_as(from, to, RenameFlags::empty())
    }

    pub fn rename_new(&self, from: &Path, to: &Path) -> Result<()> {
        self.rename_as(from, to, RenameFlags::NOREPLACE)
    }

    pub fn exchange(&self, a: &Path, b: &Path) -> Result<()> {
        self.rename_as(a, b, RenameFlags::EXCHANGE)
    }

    fn rename_as(&self, from: &Path, to: &Path, flags: RenameFlags) -> Result<()> {
        let ((from, old), (to, new)) = (self.parent(from)?, self.parent(to)?);
        renameat_with(from, old, to, new, flags)
    }

    pub fn hard_link(&self, original: &Path, link: &Path) -> Result<()> {
        let ((from, old), (to, new)) = (self.parent(original)?, self.parent(link)?);
        linkat(from, old, to, new, AtFlags::empty())
    }

    pub fn symlink(&self, text: &OsStr, link: &Path) -> Result<()> {
        let (parent, name) = self.parent(link)?;
        symlinkat(text, parent, name)
    }
}

/// Opens a name in an open directory of a mounted pool. A link is opened by `O_PATH` and `O_NOFOLLOW` only.
pub fn open_in(directory: impl AsFd, name: &OsStr, flags: OFlags) -> Result<OwnedFd> {
    openat2(directory, name, flags | OFlags::CLOEXEC, Mode::empty(), IN_DIRECTORY)
}

fn attributes(named: OwnedFd) -> Result<Attributes> {
    let found = File::from(named).metadata();
    Ok(found.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?.into())
}

/// Sets attributes of a file that is open, or of a link that is named.
fn set_on(file: &OwnedFd, set: &NewAttributes) -> Result<()> {
    if set.owner.is_some() || set.group.is_some() {
        let (owner, group) = (set.owner.map(Uid::from_raw), set.group.map(Gid::from_raw));
        chownat(file, "", owner, group, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = set.mode {
        rustix::fs::chmod(magic_path(file.as_fd()), Mode::from_raw_mode(mode))?;
    }
    match set.times() {
        Some(times) => utimensat(file, "", &times, AtFlags::EMPTY_PATH),
        None => Ok(()),
    }
}

/// A path to the open file itself, whatever its name is by now, for calls that take no descriptor.
fn magic_path(file: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Removes everything in a directory. Each directory below is open while its content goes, so the removal
/// stays in it wherever it is moved.
fn remove_all(top: OwnedFd, progress: &mut impl FnMut()) -> Result<()> {
    struct Level {
        directory: OwnedFd,
        /// Directories in it that are left, and the one that is being emptied.
        below: Vec<OsString>,
    }
    let reached = |directory: OwnedFd, progress: &mut dyn FnMut()| -> Result<Level> {
        let mut below = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            match unlinkat(&directory, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => below.push(name.to_owned()),
                removed => {
                    removed?;
                    progress();
                }
            }
        }
        Ok(Level { directory, below })
    };
    let mut levels = vec![reached(top, progress)?];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.below.last() {
            let opened = open_in(&level.directory, name, LISTABLE)?;
            levels.push(reached(opened, progress)?);
            continue;
        }
        levels.pop();
        if let Some(above) = levels.last_mut() {
            let name = above.below.pop().expect("the directory that was emptied has a name above");
            unlinkat(&above.directory, name, AtFlags::REMOVEDIR)?;
            progress();
        }
    }
    Ok(())
}

/// The entries of a directory of a mounted pool, in the order of the server: that of the bytes of the names.
pub struct Listing {
    directory: Arc<OwnedFd>,
    entries: Dir,
}

/// One entry of a directory.
#[derive(Debug)]
pub struct ListedFile {
    directory: Arc<OwnedFd>,
    name: OsString,
    file_type: FileType,
}

impl Listing {
    fn of(directory: Arc<OwnedFd>) -> Result<Listing> {
        Ok(Listing { entries: Dir::read_from(&*directory)?, directory })
    }
}

impl Iterator for Listing {
    type Item = Result<ListedFile>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.entries.next()? {
                Ok(entry) => entry,
                Err(errno) => return Some(Err(errno)),
            };
            let name = OsStr::from_bytes(CStr::to_bytes(entry.file_name()));
            if name != "." && name != ".." {
                let (directory, name) = (Arc::clone(&self.directory), name.to_owned());
                let mut found = ListedFile { directory, name, file_type: FileType::File };
                return Some(found.learn_type(entry.file_type()).map(|()| found));
            }
        }
    }
}

impl ListedFile {
    /// Takes the type of the listing, or asks for it where the listing has none.
    fn learn_type(&mut self, listed: rustix::fs::FileType) -> Result<()> {
        self.file_type = match listed {
            rustix::fs::FileType::RegularFile => FileType::File,
            rustix::fs::FileType::Directory => FileType::Dir,
            rustix::fs::FileType::Symlink => FileType::Symlink,
            _ => self.metadata()?.file_type,
        };
        Ok(())
    }

    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    pub fn metadata(&self) -> Result<Attributes> {
        attributes(openat(&*self.directory, &self.name, NAMED | OFlags::NOFOLLOW, Mode::empty())?)
    }

    /// Sets attributes; a symbolic link is not followed.
    pub fn set(&self, set: &NewAttributes) -> Result<()> {
        set_on(&open_in(&self.directory, &self.name, NAMED | OFlags::NOFOLLOW)?, set)
    }

    /// The entries of the directory that has this name; a link is not followed.
    pub fn read_dir(&self) -> Result<Listing> {
        Listing::of(Arc::new(open_in(&self.directory, &self.name, LISTABLE)?))
    }
}
