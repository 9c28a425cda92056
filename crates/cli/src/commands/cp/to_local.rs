//! Makes the files of a copy in a local directory. `local.rs` says how other users of the target are kept
//! out, and `new_local.rs` how a file gets its name when it is whole.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType as NodeType, Gid, Timespec, Timestamps, UTIME_OMIT, Uid, makedev};
use rustix::fs::{chownat, copy_file_range, futimens, linkat, mknodat, symlinkat, utimensat};
use warpfire::{FileType, Timestamp};
use warpfire_terminal::Failure;

use super::job::{CopyJob, Poured};
use super::local::{LocalDir, PRIVATE_FILE, magic_path};
use super::new_local::{NewEntry, NewFileAside};
use super::sink::{Existing, Sink};
use super::source::{Attributes, Content, FileIdentity, NewFile};
use super::xattrs::{XattrStage, Xattrs};

/// A local directory.
pub struct LocalSink {
    /// The current directory and those above it up to the one that the copy began in.
    levels: Vec<LocalLevel>,
    /// Files that may get further names.
    linked: HashMap<FileIdentity, FirstCopy>,
    is_superuser: bool,
}

struct LocalLevel {
    name: OsString,
    path: PathBuf,
    /// `None` if a plan only would have made it.
    dir: Option<LocalDir>,
    /// Device and inode number.
    identity: Option<(u64, u64)>,
}

impl LocalLevel {
    fn new(name: OsString, path: PathBuf, dir: Option<LocalDir>) -> LocalLevel {
        let identity = dir.as_ref().and_then(|dir| dir.metadata().ok());
        LocalLevel { name, path, dir, identity: identity.map(|there| (there.dev(), there.ino())) }
    }
}

/// The first copy of a file with several names.
struct FirstCopy {
    /// Its path from the directory that the copy began in.
    path: PathBuf,
    /// Device and inode number.
    file: (u64, u64),
}

impl LocalSink {
    pub fn at(dir: LocalDir) -> LocalSink {
        let path = dir.shown(OsStr::new(""));
        let levels = vec![LocalLevel::new(OsString::new(), path, Some(dir))];
        let is_superuser = rustix::process::geteuid().is_root();
        LocalSink { levels, linked: HashMap::new(), is_superuser }
    }

    fn level(&self) -> &LocalLevel {
        self.levels.last().expect("the directory that the copy began in stays")
    }

    fn dir(&self) -> &LocalDir {
        self.level().dir.as_ref().expect("only a plan enters directories that are not there")
    }

    /// The failure of a call on a file of the target.
    fn failure(&self, path: &Path, error: &io::Error) -> Failure {
        match &self.levels[0].dir {
            Some(dir) => dir.failure(path, error),
            None => Failure::local(path, error),
        }
    }

    /// Notes a complete copy that may get further names.
    fn note(&mut self, new: NewFile<'_>, file: (u64, u64)) {
        if let Some(identity) = &new.attributes.identity {
            let levels = self.levels.iter().skip(1).map(|level| level.name.as_os_str());
            let first = FirstCopy { path: levels.chain([new.name]).collect(), file };
            self.linked.insert(identity.clone(), first);
        }
    }

    /// Sets the attributes of a new link or special file and puts it in its place.
    fn finish(
        &mut self,
        new: NewFile<'_>,
        xattrs: &Xattrs,
        make: impl FnMut(&LocalDir, &OsStr) -> rustix::io::Result<()>,
    ) -> Result<(), Failure> {
        let shown = self.shown(new.name);
        let failed = |error| self.failure(&shown, &error);
        let dir = self.dir();
        let (entry, ()) = NewEntry::make(dir, new.name, make).map_err(failed)?;
        let pinned = dir.pin(entry.name()).map_err(failed)?;
        // Found again by name: the owner of the directory may have put another file there.
        let there = pinned.metadata().map_err(failed)?;
        let is_ours = there.uid() == rustix::process::geteuid().as_raw() && there.nlink() == 1;
        if !is_ours || NodeType::from_raw_mode(there.mode()) != node_type(new.attributes.kind) {
            return Err(Failure::new("the new file was replaced during the copy").hint("copy it again"));
        }
        self.set_attributes(&pinned, new.attributes, xattrs, &shown)?;
        entry.put(new.name).map_err(failed)?;
        self.note(new, (there.dev(), there.ino()));
        Ok(())
    }

    /// Sets owner, mode and times, and with `--archive` extended attributes. The owner is set only by the
    /// superuser: other users cannot change it. `made` is a directory or file that is open, or a pinned link
    /// or special file.
    fn set_attributes(
        &self,
        made: impl AsFd,
        attributes: &Attributes,
        xattrs: &Xattrs,
        shown: &Path,
    ) -> Result<(), Failure> {
        let failed = |error: io::Error| self.failure(shown, &error);
        xattrs.set_on_local(&made, shown, XattrStage::Before)?;
        if let Some((user, group)) = attributes.owner.filter(|_| self.is_superuser) {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
            chownat(&made, "", Some(user), Some(group), AtFlags::EMPTY_PATH).map_err(|e| failed(e.into()))?;
        }
        if attributes.kind != FileType::Symlink {
            let permissions = Permissions::from_mode(attributes.mode);
            std::fs::set_permissions(magic_path(&made), permissions).map_err(failed)?;
        }
        xattrs.set_on_local(&made, shown, XattrStage::After)?;
        // Last, because no later step may change the times.
        let times = Timestamps {
            last_access: timespec(attributes.accessed),
            last_modification: timespec(attributes.modified),
        };
        let set = match attributes.kind {
            FileType::File | FileType::Dir => futimens(&made, &times),
            _ => utimensat(&made, "", &times, AtFlags::EMPTY_PATH),
        };
        set.map_err(|error| failed(error.into()))
    }
}

impl Sink for LocalSink {
    fn look(&mut self, name: &OsStr) -> Result<Option<Existing>, Failure> {
        let Some(dir) = &self.level().dir else { return Ok(None) };
        let there = dir.pin(name).and_then(|pinned| pinned.metadata());
        match there {
            Ok(there) => {
                let nanos = u32::try_from(there.mtime_nsec()).unwrap_or(0);
                Ok(Some(Existing { modified: Timestamp { seconds: there.mtime(), nanos } }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(dir.failure(&dir.shown(name), &error)),
        }
    }

    fn enter(
        &mut self,
        name: Option<&OsStr>,
        _: &Attributes,
        _: &Xattrs,
        is_plan: bool,
    ) -> Result<(), Failure> {
        let Some(name) = name else { return Ok(()) };
        let path = self.shown(name);
        let opened = match &self.level().dir {
            None => Ok(None),
            Some(dir) if is_plan => match dir.open(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                opened => opened.map(Some),
            },
            Some(dir) => dir.open_or_make(name).map(Some),
        };
        let dir = opened.map_err(|error| self.failure(&path, &error))?;
        self.levels.push(LocalLevel::new(name.to_owned(), path, dir));
        Ok(())
    }

    fn keep(&mut self, attributes: &Attributes, xattrs: &Xattrs) -> Result<(), Failure> {
        self.set_attributes(self.dir(), attributes, xattrs, &self.level().path)
    }

    fn is_within(&self, directory: (u64, u64)) -> bool {
        self.levels.iter().any(|level| level.identity == Some(directory))
    }

    fn leave(&mut self) {
        self.levels.pop();
    }

    fn file(
        &mut self,
        job: &mut CopyJob,
        new: NewFile<'_>,
        xattrs: &Xattrs,
        content: &mut dyn Content,
    ) -> Result<u64, Failure> {
        let shown = self.shown(new.name);
        let failed = |error| self.failure(&shown, &error);
        let aside = NewFileAside::make(self.dir()).map_err(failed)?;
        let to: &File = aside.file();
        let poured = match shared_file(content, self.dir(), new.name).map_err(failed)? {
            Shared::Itself => {
                return Err(Failure::new("is the file itself").hint("name another destination"));
            }
            Shared::File(from) => share(job, from, to, content.len()).map_err(failed)?,
            Shared::None => job.pour(content, |bytes, at| to.write_all_at(bytes, at).map_err(failed))?,
        };
        if poured.end < content.len() {
            // A hole at the end was not written.
            to.set_len(content.len()).map_err(failed)?;
        }
        self.set_attributes(to, new.attributes, xattrs, &shown)?;
        let identity = match &new.attributes.identity {
            Some(_) => to.metadata().map(|there| Some((there.dev(), there.ino()))).map_err(failed)?,
            None => None,
        };
        aside.put(new.name).map_err(failed)?;
        if let Some(file) = identity {
            self.note(new, file);
        }
        Ok(poured.bytes)
    }

    fn symlink(&mut self, new: NewFile<'_>, to: &OsStr) -> Result<(), Failure> {
        self.finish(new, &Xattrs::default(), |dir, name| symlinkat(to, dir, name))
    }

    fn special(&mut self, new: NewFile<'_>, xattrs: &Xattrs) -> Result<(), Failure> {
        let (major, minor) = new.attributes.device;
        let (kind, device) = (node_type(new.attributes.kind), makedev(major, minor));
        self.finish(new, xattrs, |dir, name| mknodat(dir, name, kind, PRIVATE_FILE, device))
    }

    /// A copy that is no longer in its place gets no further name.
    fn link(&mut self, new: NewFile<'_>) -> Result<bool, Failure> {
        let (Some(identity), Some(top)) = (&new.attributes.identity, &self.levels[0].dir) else {
            return Ok(false);
        };
        let entry = match (identity, self.linked.get(identity)) {
            (FileIdentity::Path(first), _) => link_below(top, first, self.dir(), new.name),
            (FileIdentity::Number(..), Some(first)) => link_again(first, top, self.dir(), new.name),
            (FileIdentity::Number(..), None) => None,
        };
        let Some(entry) = entry else { return Ok(false) };
        entry.put(new.name).map_err(|error| self.failure(&self.shown(new.name), &error))?;
        Ok(true)
    }

    fn shown(&self, name: &OsStr) -> PathBuf {
        let path = &self.level().path;
        if path.as_os_str().is_empty() { PathBuf::from(name) } else { path.join(name) }
    }
}

/// How the data of a copy comes to its place.
enum Shared<'a> {
    /// It is read and written.
    None,
    /// The pool copies the pointers of this file.
    File(&'a File),
    /// The target is the source.
    Itself,
}

/// Finds out whether the source is in the filesystem of the target. That is a mounted pool: between local
/// paths outside of pools nothing is copied.
fn shared_file<'a>(content: &'a dyn Content, dir: &LocalDir, target: &OsStr) -> io::Result<Shared<'a>> {
    let Some(from) = content.local_file() else { return Ok(Shared::None) };
    let source = from.metadata()?;
    if source.dev() != dir.metadata()?.dev() {
        return Ok(Shared::None);
    }
    let there = dir.pin(target).and_then(|there| there.metadata());
    let is_itself = there.is_ok_and(|there| (there.dev(), there.ino()) == (source.dev(), source.ino()));
    Ok(if is_itself { Shared::Itself } else { Shared::File(from) })
}

/// A mounted pool copies pointers, so a call of any length is short.
const SHARED_BYTES: u64 = 1 << 30;

/// Copies a file inside of a mounted pool: its pointers, not its data.
fn share(job: &mut CopyJob, from: &File, to: &File, len: u64) -> io::Result<Poured> {
    let mut end = 0;
    while end < len && !job.interrupt.has_come() {
        let wanted = usize::try_from((len - end).min(SHARED_BYTES)).unwrap_or(usize::MAX);
        let (mut source, mut target) = (end, end);
        let copied = copy_file_range(from, Some(&mut source), to, Some(&mut target), wanted)? as u64;
        if copied == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "became shorter during the copy; copy it again",
            ));
        }
        job.progress.bytes(copied);
        end += copied;
    }
    if end < len {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "the copy was interrupted"));
    }
    Ok(Poured { bytes: end, end })
}

/// Another name of a file below the top of the copy. No link is followed to it.
fn link_below<'a>(top: &LocalDir, first: &Path, dir: &'a LocalDir, target: &OsStr) -> Option<NewEntry<'a>> {
    let from = top.open_below(first.parent()?).ok()?;
    let first = first.file_name()?;
    let link = |dir: &LocalDir, name: &OsStr| linkat(&from, first, dir, name, AtFlags::empty());
    NewEntry::make(dir, target, link).ok().map(|(entry, ())| entry)
}

/// Another name of a file that was copied before; `None` if that copy is no longer in its place.
fn link_again<'a>(
    first: &FirstCopy,
    top: &LocalDir,
    dir: &'a LocalDir,
    target: &OsStr,
) -> Option<NewEntry<'a>> {
    let entry = link_below(top, &first.path, dir, target)?;
    let linked = dir.pin(entry.name()).and_then(|linked| linked.metadata()).ok()?;
    ((linked.dev(), linked.ino()) == first.file).then_some(entry)
}

/// The time for the system. A time that the source does not have stays that of the copy.
fn timespec(at: Option<Timestamp>) -> Timespec {
    match at {
        Some(at) => Timespec { tv_sec: at.seconds, tv_nsec: i64::from(at.nanos) },
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    }
}

fn node_type(kind: FileType) -> NodeType {
    match kind {
        FileType::Symlink => NodeType::Symlink,
        FileType::Fifo => NodeType::Fifo,
        FileType::Socket => NodeType::Socket,
        FileType::BlockDevice => NodeType::BlockDevice,
        _ => NodeType::CharacterDevice,
    }
}
