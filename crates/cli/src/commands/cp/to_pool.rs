//! Makes the files of a copy in a pool: no symbolic link below the named destination is followed.
//!
//! A short file gets its name in one commit, with its content and attributes. Any other file is made in a
//! transaction of its own, or all files together in the one of `--atomic`. So no other process and no crash
//! finds a part of a file.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use warpfire::{Dir, ErrorKind, OpenOptions, SetMetadata, Storage, Tx, Warpfire};
use warpfire_terminal::Failure;

use super::job::CopyJob;
use super::short::ShortContent;
use super::sink::{Existing, Sink};
use super::source::{Attributes, Content, FileIdentity, NewFile};
use super::xattrs::{XattrStage, Xattrs};

/// A directory of a pool, or of a transaction.
pub struct PoolSink<'a, E: Storage> {
    fs: &'a Warpfire<E>,
    /// The pool, if each file is a transaction of its own; `None` if `fs` is a transaction already.
    pool: Option<&'a Warpfire>,
    /// The current directory and those above it up to the one that the copy began in.
    levels: Vec<PoolLevel<E>>,
    /// Files that may get further names: the path of the first.
    linked: HashMap<FileIdentity, PathBuf>,
    is_superuser: bool,
}

struct PoolLevel<E: Storage> {
    path: PathBuf,
    /// `None` if a plan only would have made it.
    dir: Option<Dir<E>>,
}

impl<'a> PoolSink<'a, warpfire::Engine> {
    /// Makes each file as a change of its own.
    ///
    /// # Errors
    /// The destination is no directory.
    pub fn of_pool(fs: &'a Warpfire, directory: &Path) -> Result<Self, Failure> {
        PoolSink::at(fs, Some(fs), directory)
    }
}

impl<'a> PoolSink<'a, warpfire::TxEngine> {
    /// Makes all files in a transaction.
    ///
    /// # Errors
    /// The destination is no directory.
    pub fn of_transaction(tx: &'a Tx, directory: &Path) -> Result<Self, Failure> {
        PoolSink::at(tx, None, directory)
    }
}

impl<'a, E: Storage> PoolSink<'a, E> {
    fn at(fs: &'a Warpfire<E>, pool: Option<&'a Warpfire>, directory: &Path) -> Result<Self, Failure> {
        let dir = fs.dir(directory).map_err(|error| Failure::at(directory, &error))?;
        let levels = vec![PoolLevel { path: directory.to_path_buf(), dir: Some(dir) }];
        let is_superuser = rustix::process::geteuid().is_root();
        Ok(PoolSink { fs, pool, levels, linked: HashMap::new(), is_superuser })
    }

    fn level(&self) -> &PoolLevel<E> {
        self.levels.last().expect("the directory that the copy began in stays")
    }

    fn target(&self, name: &OsStr) -> PathBuf {
        self.level().path.join(name)
    }

    /// Notes the path of a file that may get further names.
    fn note(&mut self, new: NewFile<'_>, target: &Path) {
        if let Some(identity) = &new.attributes.identity {
            self.linked.insert(identity.clone(), target.to_path_buf());
        }
    }

    /// The path of a file that this copy has made before. No link is followed to it.
    fn first_copy(&self, identity: &FileIdentity) -> Option<PathBuf> {
        let FileIdentity::Path(below) = identity else { return self.linked.get(identity).cloned() };
        let mut path = self.levels.first()?.path.clone();
        for name in below {
            if !self.fs.symlink_metadata(&path).is_ok_and(|above| above.is_dir()) {
                return None;
            }
            path.push(name);
        }
        self.fs.symlink_metadata(&path).is_ok_and(|there| !there.is_dir()).then_some(path)
    }

    /// Makes a file in one commit, if it is short, has no holes, and replaces nothing. `false` if not.
    fn write_whole(
        &self,
        new: NewFile<'_>,
        whole: &ShortContent,
        kept: &SetMetadata,
    ) -> Result<bool, Failure> {
        let Some(dir) = self.level().dir.as_ref().filter(|_| whole.is_dense()) else { return Ok(false) };
        match dir.write_new_with(new.name, whole.bytes(), kept) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Makes a change in a transaction: in `fs` if that is one, else in one of its own.
macro_rules! whole {
    ($sink:expr, |$fs:ident| $work:expr) => {
        match $sink.pool {
            Some(pool) => {
                let tx = pool.begin()?;
                let done = {
                    let $fs = &*tx;
                    $work
                };
                tx.commit()?;
                done
            }
            None => {
                let $fs = $sink.fs;
                $work
            }
        }
    };
}

impl<E: Storage> Sink for PoolSink<'_, E> {
    fn look(&mut self, name: &OsStr) -> Result<Option<Existing>, Failure> {
        let Some(dir) = &self.level().dir else { return Ok(None) };
        match dir.metadata(name) {
            Ok(metadata) => Ok(Some(Existing { modified: metadata.modified() })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
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
        let path = self.target(name);
        let is_there = self.fs.symlink_metadata(&path).is_ok_and(|there| there.is_dir());
        if !is_there && !is_plan {
            self.fs.create_dir(&path).map_err(|error| Failure::at(&path, &error))?;
        }
        let dir = if is_there || !is_plan {
            Some(self.fs.dir(&path).map_err(|error| Failure::at(&path, &error))?)
        } else {
            None
        };
        self.levels.push(PoolLevel { path, dir });
        Ok(())
    }

    fn keep(&mut self, attributes: &Attributes, xattrs: &Xattrs) -> Result<(), Failure> {
        set_attributes(self.fs, &self.level().path, attributes, xattrs, self.is_superuser)
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
        let target = self.target(new.name);
        let kept = kept(new.attributes, self.is_superuser);
        let mut short;
        let mut content = content;
        if ShortContent::is_short(new.attributes) && content.shared_path().is_none() {
            short = ShortContent::read(job, content)?;
            if xattrs.is_empty() && self.write_whole(new, &short, &kept)? {
                self.note(new, &target);
                job.progress.bytes(short.bytes().len() as u64);
                return Ok(short.bytes().len() as u64);
            }
            content = &mut short;
        }
        let is_superuser = self.is_superuser;
        let bytes = whole!(self, |fs| {
            let bytes = make_file(job, fs, &target, content)?;
            set_attributes(fs, &target, new.attributes, xattrs, is_superuser)?;
            bytes
        });
        self.note(new, &target);
        Ok(bytes)
    }

    fn symlink(&mut self, new: NewFile<'_>, to: &OsStr) -> Result<(), Failure> {
        let target = self.target(new.name);
        let kept = kept(new.attributes, self.is_superuser);
        whole!(self, |fs| {
            remove_existing(fs, &target)?;
            fs.symlink(to, &target)?;
            fs.set_symlink_metadata(&target, &kept)?;
        });
        self.note(new, &target);
        Ok(())
    }

    fn special(&mut self, new: NewFile<'_>, xattrs: &Xattrs) -> Result<(), Failure> {
        let (target, is_superuser) = (self.target(new.name), self.is_superuser);
        let Attributes { kind, mode, device, .. } = *new.attributes;
        whole!(self, |fs| {
            remove_existing(fs, &target)?;
            fs.create_special(&target, kind, mode, device)?;
            set_attributes(fs, &target, new.attributes, xattrs, is_superuser)?;
        });
        self.note(new, &target);
        Ok(())
    }

    fn link(&mut self, new: NewFile<'_>) -> Result<bool, Failure> {
        let first = new.attributes.identity.as_ref().and_then(|identity| self.first_copy(identity));
        let Some(first) = first else { return Ok(false) };
        let target = self.target(new.name);
        if first != target {
            whole!(self, |fs| {
                remove_existing(fs, &target)?;
                fs.hard_link(&first, &target)?;
            });
        }
        Ok(true)
    }

    fn shown(&self, name: &OsStr) -> PathBuf {
        self.target(name)
    }
}

/// Makes a regular file in place of one that is there. Returns the bytes of its data.
fn make_file<F: Storage>(
    job: &mut CopyJob,
    fs: &Warpfire<F>,
    target: &Path,
    content: &mut dyn Content,
) -> Result<u64, Failure> {
    if let Some(source) = content.shared_path() {
        let number = |path: &Path| fs.symlink_metadata(path).map(|metadata| metadata.ino()).ok();
        if number(target).is_some_and(|there| Some(there) == number(source)) {
            return Err(Failure::new("is the file itself").hint("name another destination"));
        }
        remove_existing(fs, target)?;
        return Ok(fs.copy(source, target)?);
    }
    remove_existing(fs, target)?;
    let to = OpenOptions::new().write(true).create_new(true).open(fs, target)?;
    let poured = job.pour(content, |bytes, at| Ok(to.write_all_at(bytes, at)?))?;
    if poured.end < content.len() {
        // A hole at the end was not written.
        to.set_len(content.len())?;
    }
    Ok(poured.bytes)
}

/// Removes a file, link or special file, so that another can be made there.
fn remove_existing<F: Storage>(fs: &Warpfire<F>, target: &Path) -> Result<(), warpfire::Error> {
    match fs.remove_file(target) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Sets the attributes of anything but a symbolic link.
fn set_attributes<F: Storage>(
    fs: &Warpfire<F>,
    target: &Path,
    attributes: &Attributes,
    xattrs: &Xattrs,
    is_superuser: bool,
) -> Result<(), Failure> {
    xattrs.set_on_pool(fs, target, XattrStage::Before)?;
    fs.set_metadata(target, &kept(attributes, is_superuser))?;
    xattrs.set_on_pool(fs, target, XattrStage::After)
}

/// The metadata to set on a copy. The owner is set only by the superuser: other users cannot change it.
fn kept(attributes: &Attributes, is_superuser: bool) -> SetMetadata {
    let mut kept = SetMetadata::new();
    if let Some(accessed) = attributes.accessed {
        kept = kept.accessed(accessed);
    }
    if let Some(modified) = attributes.modified {
        kept = kept.modified(modified);
    }
    if attributes.kind != warpfire::FileType::Symlink {
        kept = kept.mode(attributes.mode);
    }
    match attributes.owner {
        Some((user, group)) if is_superuser => kept.owner(user).group(group),
        _ => kept,
    }
}
