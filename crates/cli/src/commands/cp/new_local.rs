//! New local files that get their name when they are whole.
//!
//! Invariants
//! 1. A new regular file has no name, or a hidden one, and is for this user alone, until it is complete.
//!    Owner, mode, attributes and times are set through its descriptor (`NewFileAside`).
//! 2. A file that fails leaves nothing: the system removes a file without a name, and dropping removes the
//!    hidden name. A process that is killed may leave a regular file under a hidden name. The next copy that
//!    needs a hidden name in that directory removes it (`free_hidden_name`).
//! 3. A link or special file gets its name at once if that is free, because it is whole when it is made. It
//!    replaces another file by a rename of the hidden name (`NewEntry`).
//! 4. While a regular file has a hidden name, its maker holds a lock on it, and has seen under the lock that
//!    the name is still that of its file. Only a process that gets the lock removes such a name. So no
//!    process removes or renames the file of a living one (`hide`, `free_hidden_name`).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, OFlags, RenameFlags};
use rustix::fs::{flock, fstat, linkat, openat, renameat_with, statat, unlinkat};
use rustix::io::Errno;

use super::local::{LocalDir, PRIVATE_FILE, magic_path};

/// Hidden names that are tried before the directory is given up.
const NAMES_MAX: u32 = 1000;

fn hidden_name(number: u32) -> OsString {
    OsString::from(format!(".warpfire-cp-{number}"))
}

/// A link or special file. Dropping it removes it, unless it was put in its place.
pub struct NewEntry<'a> {
    dir: &'a LocalDir,
    name: OsString,
    is_put: bool,
}

impl<'a> NewEntry<'a> {
    /// Makes an entry with `make`, which gets the directory and a name that is free: `target`, or a hidden
    /// one if that is taken.
    pub fn make<T>(
        dir: &'a LocalDir,
        target: &OsStr,
        mut make: impl FnMut(&LocalDir, &OsStr) -> rustix::io::Result<T>,
    ) -> io::Result<(NewEntry<'a>, T)> {
        for name in std::iter::once(target.to_owned()).chain((0..NAMES_MAX).map(hidden_name)) {
            match make(dir, &name) {
                Ok(made) => return Ok((NewEntry { dir, name, is_put: false }, made)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// The name that it has so far.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Gives it its place, in place of a file, link, pipe or socket there.
    ///
    /// # Errors
    /// `AlreadyExists` if a device node of this machine is there: a rename would remove it.
    pub fn put(mut self, target: &OsStr) -> io::Result<()> {
        if self.name == target {
            self.is_put = true;
            return Ok(());
        }
        replace(self.dir, &self.name, target)
    }
}

impl Drop for NewEntry<'_> {
    fn drop(&mut self) {
        if !self.is_put {
            // After a rename it is there only if its place is another name of the same file.
            let _ = unlinkat(self.dir, &self.name, AtFlags::empty());
        }
    }
}

fn replace(dir: &LocalDir, from: &OsStr, target: &OsStr) -> io::Result<()> {
    // A device node in a pool is no device that this machine needs.
    if !dir.is_in_mount()
        && let Ok(there) = statat(dir, target, AtFlags::SYMLINK_NOFOLLOW)
    {
        let kind = FileType::from_raw_mode(there.st_mode);
        if matches!(kind, FileType::BlockDevice | FileType::CharacterDevice) {
            let device = "is a device node; name another file, or print the file with 'warpfire cat'";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, device));
        }
    }
    Ok(renameat_with(dir, from, dir, target, RenameFlags::empty())?)
}

/// A regular file that is being written. Dropping it removes it.
pub struct NewFileAside<'a> {
    dir: &'a LocalDir,
    file: File,
    /// Its hidden name; `None` if it has no name.
    name: Option<OsString>,
}

impl<'a> NewFileAside<'a> {
    /// Makes an empty file. Where the filesystem has no files without a name, it gets a hidden one.
    pub fn make(dir: &'a LocalDir) -> io::Result<NewFileAside<'a>> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match openat(dir, ".", flags, PRIVATE_FILE) {
            Ok(file) => Ok(NewFileAside { dir, file: File::from(file), name: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => NewFileAside::named(dir),
            Err(error) => Err(error.into()),
        }
    }

    fn named(dir: &'a LocalDir) -> io::Result<NewFileAside<'a>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut made = None;
        let name = hide(dir, |name| {
            made = Some(File::from(openat(dir, name, flags, PRIVATE_FILE)?));
            let file = made.as_ref().expect("it was made in the line above");
            let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
            Ok(is_named(dir, name, file))
        })?;
        let file = made.expect("a hidden name is that of a file");
        Ok(NewFileAside { dir, file, name: Some(name) })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its place, in place of a file, link, pipe or socket there.
    ///
    /// # Errors
    /// As [`NewEntry::put`].
    pub fn put(mut self, target: &OsStr) -> io::Result<()> {
        if self.name.is_none() {
            let path = magic_path(&self.file);
            let link = |name: &OsStr| linkat(CWD, &path, self.dir, name, AtFlags::SYMLINK_FOLLOW);
            match link(target) {
                Err(Errno::EXIST) => {}
                linked => return Ok(linked?),
            }
            // A file without a name cannot replace another: only a rename does.
            let _ = flock(&self.file, FlockOperation::NonBlockingLockExclusive);
            let hidden = hide(self.dir, |name| link(name).map(|()| true))?;
            self.name = Some(hidden);
        }
        if let Some(name) = &self.name {
            replace(self.dir, name, target)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for NewFileAside<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(self.dir, name, AtFlags::empty());
        }
    }
}

/// Takes a hidden name by `take`, which returns whether it has it.
fn hide(dir: &LocalDir, mut take: impl FnMut(&OsStr) -> rustix::io::Result<bool>) -> io::Result<OsString> {
    for name in (0..NAMES_MAX).map(hidden_name) {
        let taken = match take(&name) {
            Err(Errno::EXIST) if free_hidden_name(dir, &name) => take(&name),
            taken => taken,
        };
        match taken {
            Ok(true) => return Ok(name),
            Ok(false) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}

/// Removes a regular file that a killed process has left under a hidden name. Returns whether it did.
fn free_hidden_name(dir: &LocalDir, name: &OsStr) -> bool {
    let Ok((file, _)) = dir.open_file(name) else { return false };
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && is_named(dir, name, &file)
        && unlinkat(dir, name, AtFlags::empty()).is_ok()
}

/// Whether a name is that of an open file.
fn is_named(dir: &LocalDir, name: &OsStr, file: &File) -> bool {
    let named = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    let opened = fstat(file);
    matches!((named, opened), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}
