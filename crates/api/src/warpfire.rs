//! A pool that is open: its life, and calls by path.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, ReentrantMutex};
use warpfire_fs::{Follow, Fs, IntervalSync, NewMode, RenameMode};
use warpfire_meta::Storage;

use crate::metadata::SetMetadata;
use crate::open_pool::{Engine, OpenPool};
use crate::stats::Stats;
use crate::{Dir, Error, File, FileType, Identity, Metadata, OpenOptions, ReadDir, Result};

/// Permissions of files and folders that are made without saying otherwise, as with the umask 022.
pub(crate) const FILE_MODE: NewMode = NewMode { mode: 0o666, umask: 0o022 };
const DIR_MODE: NewMode = NewMode { mode: 0o777, umask: 0o022 };

/// A pool that is open. Clones share it; the last one that goes closes it.
///
/// Paths are those of the pool, from its root; a path without a leading `/` means the same as one with it. Names follow `std::fs`.
///
/// ```
/// use warpfire::Pool;
///
/// let fs = Pool::options().in_memory()?;
/// fs.create_dir_all("/photos/2026")?;
/// fs.write("/photos/2026/one.jpg", b"...")?;
/// fs.rename("/photos/2026", "/photos/this-year")?;
/// let names: Vec<_> = fs.read_dir("/photos/this-year")?.map(|entry| entry.map(|entry| entry.file_name().to_owned())).collect::<Result<_, _>>()?;
/// assert_eq!(names, ["one.jpg"]);
/// fs.sync()?;
/// # Ok::<(), warpfire::Error>(())
/// ```
///
/// The parameter is the store that its calls work on: a pool's engine, or [what a transaction sees](crate::Inside).
pub struct Warpfire<E: Storage = Engine> {
    fs: Arc<Fs<E>>,
    pub(crate) shared: Arc<SharedPool>,
    identity: Arc<Identity>,
}

/// What all handles of one open pool share.
pub(crate) struct SharedPool {
    pub open_pool: OpenPool,
    /// `None` once the pool has been closed, and where nothing is committed at intervals.
    interval_sync: Mutex<Option<IntervalSync>>,
    /// Held by a transaction that has met conflicts again and again, for which those that begin wait.
    pub priority: ReentrantMutex<()>,
}

impl<E: Storage> Clone for Warpfire<E> {
    fn clone(&self) -> Self {
        self.acting(Arc::clone(&self.identity))
    }
}

impl<E: Storage> std::fmt::Debug for Warpfire<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Warpfire({:?})", self.identity)
    }
}

impl Drop for SharedPool {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure; who has to know calls `close`.
        let _ = self.close();
    }
}

impl SharedPool {
    fn close(&self) -> Result<()> {
        // Its last sync is over before the filesystem closes.
        drop(self.interval_sync.lock().take());
        Ok(self.open_pool.fs.close()?)
    }
}

impl Warpfire {
    pub(crate) fn new(
        open_pool: OpenPool,
        identity: Identity,
        sync_interval: Option<Duration>,
    ) -> Result<Self> {
        let interval_sync = match sync_interval {
            Some(interval) => {
                let fs = Arc::clone(&open_pool.fs);
                // A sync that fails leaves the pool read-only, and every later call reports that.
                let sync = move || drop(fs.sync());
                Some(IntervalSync::always(interval, sync).map_err(|error| Error::no_thread(&error))?)
            }
            None => None,
        };
        let shared = Arc::new(SharedPool {
            open_pool,
            interval_sync: Mutex::new(interval_sync),
            priority: ReentrantMutex::new(()),
        });
        Ok(Warpfire { fs: Arc::clone(&shared.open_pool.fs), shared, identity: Arc::new(identity) })
    }

    /// Other files of the same pool, on behalf of the same: those that a transaction sees.
    pub(crate) fn over<E: Storage>(&self, fs: &Arc<Fs<E>>) -> Warpfire<E> {
        let (shared, identity) = (Arc::clone(&self.shared), Arc::clone(&self.identity));
        Warpfire { fs: Arc::clone(fs), shared, identity }
    }

    /// The filesystem below, for doors that are built on this crate. Calls there are on nodes and name their caller.
    #[must_use]
    pub fn filesystem(&self) -> &Arc<Fs<Engine>> {
        &self.shared.open_pool.fs
    }

    /// Makes everything that was done before this call, through any handle, durable.
    ///
    /// # Errors
    /// `ReadOnly` if the pool could not; what was durable before still is.
    pub fn sync(&self) -> Result<()> {
        Ok(self.fs().sync()?)
    }

    /// Makes everything durable and closes the pool for all its handles. Dropping the last handle does the same, without a word if it fails.
    ///
    /// # Errors
    /// As [`sync`](Warpfire::sync).
    pub fn close(self) -> Result<()> {
        self.shared.close()
    }

    /// How the pool is doing.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.open_pool.stats()
    }
}

impl<E: Storage> Warpfire<E> {
    pub(crate) fn fs(&self) -> &Fs<E> {
        &self.fs
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    fn acting(&self, identity: Arc<Identity>) -> Self {
        Warpfire { fs: Arc::clone(&self.fs), shared: Arc::clone(&self.shared), identity }
    }

    /// The same files on behalf of someone else.
    #[must_use]
    pub fn acting_as(&self, identity: Identity) -> Self {
        self.acting(Arc::new(identity))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `IsADirectory`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File<E>> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file for writing, made if it is missing and emptied if it is not.
    ///
    /// # Errors
    /// `NotFound` for a folder on the way, `PermissionDenied`, `IsADirectory`, `NoSpace`.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File<E>> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// Opens a folder, for many calls on the files in it.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `PermissionDenied`.
    pub fn dir(&self, path: impl AsRef<Path>) -> Result<Dir<E>> {
        Dir::at_path(self, path.as_ref())
    }

    /// A whole file.
    ///
    /// # Errors
    /// As [`open`](Warpfire::open); `Damaged`.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.open(path)?.read_to_end()
    }

    /// Makes the file hold these bytes and nothing else. A new file is made with them in one commit: after a crash it is there whole
    /// or not at all.
    ///
    /// # Errors
    /// As [`create`](Warpfire::create).
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.parent_of(path.as_ref())?;
        Dir::at(self, parent).write(&name, bytes)
    }

    /// Makes a folder.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound` for a folder on the way, `PermissionDenied`, `NoSpace`.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent_of(path.as_ref())?;
        self.fs().mkdir(&self.identity.caller(), &parent, name.as_bytes(), DIR_MODE)?;
        Ok(())
    }

    /// Removes anything but a folder.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `PermissionDenied`.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent_of(path.as_ref())?;
        Ok(self.fs().unlink(&self.identity.caller(), &parent, name.as_bytes())?)
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `DirectoryNotEmpty`, `PermissionDenied`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent_of(path.as_ref())?;
        Ok(self.fs().rmdir(&self.identity.caller(), &parent, name.as_bytes())?)
    }

    /// Renames, replacing what has the new name, in one commit.
    ///
    /// # Errors
    /// `NotFound`; `DirectoryNotEmpty`, `IsADirectory` or `NotADirectory` for a target that can not be replaced; `InvalidInput` if a
    /// folder would be moved into itself; `PermissionDenied`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from_dir, from_name) = self.parent_of(from.as_ref())?;
        let (to_dir, to_name) = self.parent_of(to.as_ref())?;
        let (from, to) = ((&from_dir, from_name.as_bytes()), (&to_dir, to_name.as_bytes()));
        Ok(self.fs().rename(&self.identity.caller(), from, to, RenameMode::Replace)?)
    }

    /// Swaps what two paths lead to, in one commit: at every moment both are there. They may be files, directories or anything else.
    ///
    /// # Errors
    /// `NotFound` if one of them is not there; `InvalidInput` if a directory would be moved into itself; `PermissionDenied`.
    pub fn exchange(&self, a: impl AsRef<Path>, b: impl AsRef<Path>) -> Result<()> {
        let (a_dir, a_name) = self.parent_of(a.as_ref())?;
        let (b_dir, b_name) = self.parent_of(b.as_ref())?;
        let (a, b) = ((&a_dir, a_name.as_bytes()), (&b_dir, b_name.as_bytes()));
        Ok(self.fs().exchange(&self.identity.caller(), a, b)?)
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`, `PermissionDenied`, also for a folder.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let node = self.node_at(original.as_ref(), Follow::No)?;
        let (parent, name) = self.parent_of(link.as_ref())?;
        Ok(self.fs().link(&self.identity.caller(), &node, &parent, name.as_bytes())?)
    }

    /// Makes a symbolic link that points to `original`, whether or not that exists.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound` for a folder on the way, `PermissionDenied`, `NoSpace`.
    pub fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent_of(link.as_ref())?;
        let target = original.as_ref().as_os_str().as_bytes();
        self.fs().symlink(&self.identity.caller(), &parent, name.as_bytes(), target)?;
        Ok(())
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` if it is no symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let node = self.node_at(path.as_ref(), Follow::No)?;
        Ok(PathBuf::from(OsString::from_vec(self.fs().readlink(&node)?)))
    }

    /// Makes a pipe, a socket or a device, with these permissions and, for a device, major and minor number.
    ///
    /// # Errors
    /// `InvalidInput` for folders and symbolic links; `PermissionDenied` if someone else than the superuser makes a device; as [`create`](Warpfire::create).
    pub fn create_special(
        &self,
        path: impl AsRef<Path>,
        kind: FileType,
        mode: u32,
        device: (u32, u32),
    ) -> Result<()> {
        let (parent, name) = self.parent_of(path.as_ref())?;
        let device = rustix::fs::makedev(device.0, device.1);
        let mode = NewMode::exact(mode);
        self.fs().mknod(&self.identity.caller(), &parent, name.as_bytes(), kind.into(), mode, device)?;
        Ok(())
    }

    /// What is known about the file that a path leads to.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied` for a folder on the way.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.fs().getattr(&*self.node_at(path.as_ref(), Follow::Yes)?).into())
    }

    /// As [`metadata`](Warpfire::metadata), of a symbolic link itself.
    ///
    /// # Errors
    /// As [`metadata`](Warpfire::metadata).
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.fs().getattr(&*self.node_at(path.as_ref(), Follow::No)?).into())
    }

    /// Whether a path leads to something that can be reached.
    #[must_use]
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.metadata(path).is_ok()
    }

    /// Sets permissions, owner, group and times of the file that a path leads to.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied` as for chmod, chown and utimensat.
    pub fn set_metadata(&self, path: impl AsRef<Path>, set: &SetMetadata) -> Result<()> {
        let node = self.node_at(path.as_ref(), Follow::Yes)?;
        self.fs().set_attributes(&self.identity.caller(), &node, &set.0)?;
        Ok(())
    }

    /// As [`set_metadata`](Warpfire::set_metadata), of a symbolic link itself.
    ///
    /// # Errors
    /// As [`set_metadata`](Warpfire::set_metadata); `Unsupported` for the permissions of a symbolic link.
    pub fn set_symlink_metadata(&self, path: impl AsRef<Path>, set: &SetMetadata) -> Result<()> {
        let node = self.node_at(path.as_ref(), Follow::No)?;
        self.fs().set_attributes(&self.identity.caller(), &node, &set.0)?;
        Ok(())
    }

    /// Sets permission bits.
    ///
    /// # Errors
    /// As [`set_metadata`](Warpfire::set_metadata).
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.set_metadata(path, &SetMetadata::new().mode(mode))
    }

    /// The names in a folder, in the order of their bytes, read as they are asked for.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `PermissionDenied`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir<E>> {
        ReadDir::start(self, self.node_at(path.as_ref(), Follow::Yes)?)
    }
}
