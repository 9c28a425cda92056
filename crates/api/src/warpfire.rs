//! An open pool: its life, and calls by path.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::{Mutex, ReentrantMutex};
use warpfire_env::{Clock, IntervalTask, SystemClock};
use warpfire_fs::{Follow, Fs, NewMode, RenameMode, SpaceInfo};
use warpfire_meta::Storage;

use crate::health::{HEALTH_INTERVAL, HealthBook};
use crate::metadata::SetMetadata;
use crate::open_pool::{Engine, OpenPool};
use crate::returns::{RETURN_INTERVAL, ReturningDevices};
use crate::stats::Stats;
use crate::stream::ReceivingTargets;
use crate::upkeep::{LostDevices, SETTLE_NANOS, WATCH_INTERVAL, note_progress};
use crate::upkeep_progress::UpkeepProgress;
use crate::wishes::WishBook;
use crate::{Dir, Error, File, FileType, Identity, Metadata, OpenOptions, ReadDir, Result};

/// Permissions of new files and directories for which the caller names none: those of the umask 022.
pub(crate) const FILE_MODE: NewMode = NewMode { mode: 0o666, umask: 0o022 };
const DIR_MODE: NewMode = NewMode { mode: 0o777, umask: 0o022 };

/// An open pool. Clones share it, and the pool closes when its last handle is dropped.
///
/// Paths begin at the root of the pool. A path without a leading `/` means the same as one with it. Calls are
/// named as in `std::fs` and follow symbolic links as those do.
///
/// A call that returns an error has changed nothing, unless its documentation says otherwise.
///
/// ```
/// use warpfire::Pool;
///
/// let fs = Pool::options().in_memory()?;
/// fs.create_dir_all("/photos/2026")?;
/// fs.write("/photos/2026/one.jpg", b"...")?;
/// fs.rename("/photos/2026", "/photos/this-year")?;
/// let mut names = Vec::new();
/// for entry in fs.read_dir("/photos/this-year")? {
///     names.push(entry?.file_name().to_owned());
/// }
/// assert_eq!(names, ["one.jpg"]);
/// fs.sync()?;
/// # Ok::<(), warpfire::Error>(())
/// ```
///
/// The parameter `E` is the store that the calls work on: [`Engine`] for the pool itself,
/// [`TxEngine`](crate::TxEngine) inside a transaction.
pub struct Warpfire<E: Storage = Engine> {
    fs: Arc<Fs<E>>,
    pub(crate) shared: Arc<SharedPool>,
    identity: Arc<Identity>,
}

/// The part of an open pool that all its handles share.
pub(crate) struct SharedPool {
    pub open_pool: OpenPool,
    pub health: Arc<HealthBook>,
    pub lost_devices: Arc<LostDevices>,
    pub wishes: Arc<WishBook>,
    pub pace: Arc<UpkeepProgress>,
    /// Whether the pool may be written.
    is_writable: bool,
    /// The background work on this pool: syncs, the size of the cache, the health record. None once the pool
    /// is closed.
    tasks: Mutex<Vec<IntervalTask>>,
    is_closed: AtomicBool,
    /// Held by a [`transact`](Warpfire::transact) that has met many conflicts. New transactions wait for it a
    /// while.
    pub priority: ReentrantMutex<()>,
    pub receiving: ReceivingTargets,
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
        // `drop` cannot return an error. A program that needs to know calls `close`.
        let _ = self.close();
    }
}

impl SharedPool {
    fn close(&self) -> Result<()> {
        // Dropping a task waits for its last turn. It must end before the filesystem closes.
        drop(std::mem::take(&mut *self.tasks.lock()));
        if self.is_writable && !self.is_closed.swap(true, Relaxed) {
            // A pool that takes no more writes still closes; its errors are forgotten then.
            let _ = self.health.store(&self.open_pool);
            let _ = self.wishes.store(&self.open_pool);
            // So that a rollback is settled also in a pool that is never open for long.
            self.settle_rollbacks();
        }
        Ok(self.open_pool.fs.close()?)
    }

    /// Settles rollbacks for a moment. What a full pool refuses is tried again by a later call.
    fn settle_rollbacks(&self) {
        let until_nanos = SystemClock.monotonic_nanos().saturating_add(SETTLE_NANOS);
        let _ = self.open_pool.fs.settle_rollbacks(&mut || SystemClock.monotonic_nanos() < until_nanos);
    }

    /// As `settle_rollbacks`, in a pool without background threads, which do that elsewhere.
    fn settle_without_threads(&self) {
        if !self.open_pool.has_background {
            self.settle_rollbacks();
        }
    }
}

impl Warpfire {
    pub(crate) fn new(
        open_pool: OpenPool,
        identity: Identity,
        sync_interval: Option<Duration>,
        cache_task: Option<IntervalTask>,
        spare_after: Duration,
    ) -> Result<Self> {
        let mut tasks: Vec<IntervalTask> = cache_task.into_iter().collect();
        let no_thread = |error: std::io::Error| Error::no_thread(&error);
        if let Some(interval) = sync_interval {
            let fs = Arc::clone(&open_pool.fs);
            // A failed sync leaves the pool read-only. Every later call reports that, so nothing is lost
            // here.
            let sync = move || drop(fs.sync());
            tasks.push(IntervalTask::always("warpfire-commit", interval, sync).map_err(no_thread)?);
        }
        let health = Arc::new(HealthBook::new(&open_pool));
        if open_pool.has_background {
            let (book, of_pool) = (Arc::clone(&health), open_pool.clone());
            // A record that cannot be stored keeps its old value.
            let store = move || drop(book.store_if_worse(&of_pool, SystemClock.monotonic_nanos()));
            tasks.push(IntervalTask::always("warpfire-health", HEALTH_INTERVAL, store).map_err(no_thread)?);
        }
        let lost_devices = Arc::new(LostDevices::new(spare_after));
        let wishes = Arc::new(WishBook::new(&open_pool));
        wishes.now().limit(open_pool.fs.engine().log().upkeep_limit());
        let pace = Arc::new(UpkeepProgress::default());
        if open_pool.has_background {
            let (lost, of_pool) = (Arc::clone(&lost_devices), open_pool.clone());
            let (wishes, pace) = (Arc::clone(&wishes), Arc::clone(&pace));
            let watch = move || {
                let now_nanos = SystemClock.monotonic_nanos();
                note_progress(&pace, &of_pool, now_nanos);
                // A checkpoint that fails is tried again; if the pool has latched, every later call reports
                // it.
                let is_paused = wishes.now().is_paused;
                drop(lost.watch(&of_pool, is_paused, now_nanos));
                // The last reader of a former origin may have ended, or compaction may have dropped the last
                // version of a removed volume.
                drop(of_pool.fs.forget_volumes());
                if !is_paused {
                    of_pool.fs.engine().look_for_quiet();
                }
                // What a full pool refuses is tried again.
                let until_nanos = now_nanos.saturating_add(SETTLE_NANOS);
                drop(of_pool.fs.settle_rollbacks(&mut || SystemClock.monotonic_nanos() < until_nanos));
            };
            tasks.push(IntervalTask::always("warpfire-upkeep", WATCH_INTERVAL, watch).map_err(no_thread)?);
            if !open_pool.is_read_only() {
                let (returning, of_pool) = (ReturningDevices::default(), open_pool.clone());
                // On a thread of its own: a path may take long to answer. What fails is tried again.
                let look = move || drop(returning.look(&of_pool, SystemClock.monotonic_nanos()));
                tasks.push(
                    IntervalTask::always("warpfire-returns", RETURN_INTERVAL, look).map_err(no_thread)?,
                );
            }
        }
        let shared = Arc::new(SharedPool {
            health,
            lost_devices,
            wishes,
            pace,
            is_writable: !open_pool.is_read_only(),
            is_closed: AtomicBool::new(false),
            open_pool,
            tasks: Mutex::new(tasks),
            priority: ReentrantMutex::new(()),
            receiving: ReceivingTargets::default(),
        });
        Ok(Warpfire { fs: Arc::clone(&shared.open_pool.fs), shared, identity: Arc::new(identity) })
    }

    /// A handle with the same identity on another filesystem of this pool: the one that a transaction sees.
    pub(crate) fn over<E: Storage>(&self, fs: &Arc<Fs<E>>) -> Warpfire<E> {
        let (shared, identity) = (Arc::clone(&self.shared), Arc::clone(&self.identity));
        Warpfire { fs: Arc::clone(fs), shared, identity }
    }

    /// The filesystem under this handle, for servers that are built on this crate, such as a FUSE mount. Its
    /// calls take inodes instead of paths, and each names its caller.
    #[must_use]
    pub fn filesystem(&self) -> &Arc<Fs<Engine>> {
        &self.shared.open_pool.fs
    }

    /// Makes all changes durable that any handle made before this call. Without background threads it also
    /// settles rollbacks, for half a second at most.
    ///
    /// # Errors
    /// `ReadOnly` if too many devices failed. Changes that an earlier sync made durable are safe.
    pub fn sync(&self) -> Result<()> {
        self.shared.settle_without_threads();
        Ok(self.fs().sync()?)
    }

    /// Makes all changes durable and closes the pool for all its handles. Dropping the last handle does the
    /// same, but cannot report an error.
    ///
    /// # Errors
    /// As [`sync`](Warpfire::sync).
    pub fn close(self) -> Result<()> {
        self.shared.close()
    }

    /// The space of the pool and the number of its files: the answer of `df` on a mount. Cheap: it reads no
    /// device.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/a", vec![7; 1 << 20])?;
    /// let space = fs.space()?;
    /// assert_eq!((space.inodes, space.file_bytes), (2, 1 << 20));
    /// assert!(space.available_bytes < space.total_bytes);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the engine if it cannot say how much space there is.
    pub fn space(&self) -> Result<SpaceInfo> {
        Ok(self.fs().statfs()?)
    }

    /// The state of the pool and of its devices, and counts of their work. Cheap: it reads no device.
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

    /// A handle on the same pool that acts as another identity.
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

    /// Opens a file for writing: makes it if it is missing, and empties it if it exists.
    ///
    /// # Errors
    /// `NotFound` if a directory on the path is missing, `PermissionDenied`, `IsADirectory`, `NoSpace`.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File<E>> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// Opens a directory, for many calls on the files in it.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `PermissionDenied`.
    pub fn dir(&self, path: impl AsRef<Path>) -> Result<Dir<E>> {
        Dir::at_path(self, path.as_ref())
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// As [`open`](Warpfire::open); `Damaged`.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.open(path)?.read_to_end()
    }

    /// Replaces the content of a file by these bytes, in one commit. A missing file is made with them. A
    /// reader and a crash find the old state or the new one, and nothing between. Only a file with more than
    /// 256 GiB of data becomes shorter in steps first, and stays shorter if the write fails.
    ///
    /// # Errors
    /// As [`create`](Warpfire::create).
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.parent_of(path.as_ref())?;
        Dir::at(self, parent).write(&name, bytes)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound` if a directory on the path is missing, `PermissionDenied`, `NoSpace`.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent_of_new(path.as_ref())?;
        self.fs().mkdir(&self.identity.caller(), &parent, name.as_bytes(), DIR_MODE)?;
        Ok(())
    }

    /// Removes a name of anything but a directory. The file goes with its last name, once nothing has it
    /// open.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `PermissionDenied`.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent_of(path.as_ref())?;
        Ok(self.fs().unlink(&self.identity.caller(), &parent, name.as_bytes())?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `DirectoryNotEmpty`, `PermissionDenied`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent_of(path.as_ref())?;
        Ok(self.fs().rmdir(&self.identity.caller(), &parent, name.as_bytes())?)
    }

    /// Gives a file or directory a new name, in one commit. A file or empty directory that has the new name
    /// is replaced.
    ///
    /// # Errors
    /// `NotFound`; `DirectoryNotEmpty`, `IsADirectory` or `NotADirectory` if the target cannot be replaced;
    /// `InvalidInput` if a directory would move into itself; `PermissionDenied`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_by(from.as_ref(), to.as_ref(), RenameMode::Replace)
    }

    /// As [`rename`](Warpfire::rename), but nothing is replaced.
    ///
    /// # Errors
    /// `AlreadyExists` if the new name is taken; otherwise as [`rename`](Warpfire::rename).
    pub fn rename_new(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_by(from.as_ref(), to.as_ref(), RenameMode::NoReplace)
    }

    fn rename_by(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()> {
        let (from_dir, from_name) = self.parent_of(from)?;
        let (to_dir, to_name) = self.parent_of(to)?;
        let (from, to) = ((&from_dir, from_name.as_bytes()), (&to_dir, to_name.as_bytes()));
        Ok(self.fs().rename(&self.identity.caller(), from, to, mode)?)
    }

    /// Swaps two names in one commit, so both exist at every moment. They may name files, directories or
    /// anything else.
    ///
    /// # Errors
    /// `NotFound` if one of them does not exist; `InvalidInput` if a directory would move into itself;
    /// `PermissionDenied`.
    pub fn exchange(&self, a: impl AsRef<Path>, b: impl AsRef<Path>) -> Result<()> {
        let (a_dir, a_name) = self.parent_of(a.as_ref())?;
        let (b_dir, b_name) = self.parent_of(b.as_ref())?;
        let (a, b) = ((&a_dir, a_name.as_bytes()), (&b_dir, b_name.as_bytes()));
        Ok(self.fs().exchange(&self.identity.caller(), a, b)?)
    }

    /// Adds another name to a file. `original` is not followed if it is a symbolic link.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`, `InvalidInput` if the file has as many names as one can have,
    /// `PermissionDenied`, which is also the answer for a directory.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let node = self.node_at(original.as_ref(), Follow::No)?;
        let (parent, name) = self.parent_of_new(link.as_ref())?;
        Ok(self.fs().link(&self.identity.caller(), &node, &parent, name.as_bytes())?)
    }

    /// Makes a symbolic link at `link` that points to `original`, which need not exist.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound` if a directory on the path is missing, `PermissionDenied`, `NoSpace`.
    pub fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent_of_new(link.as_ref())?;
        let target = original.as_ref().as_os_str().as_bytes();
        self.fs().symlink(&self.identity.caller(), &parent, name.as_bytes(), target)?;
        Ok(())
    }

    /// The path that a symbolic link points to.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` if it is not a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let node = self.node_at(path.as_ref(), Follow::No)?;
        Ok(PathBuf::from(OsString::from_vec(self.fs().readlink(&node)?)))
    }

    /// Makes a named pipe, a socket, a device node or an empty file. `mode` are its permission bits, exactly;
    /// `device` is the major and the minor number, and counts for device nodes only.
    ///
    /// # Errors
    /// `InvalidInput` for directories and symbolic links; `PermissionDenied` if an identity other than the
    /// superuser makes a device node; otherwise as [`create_dir`](Warpfire::create_dir).
    pub fn create_special(
        &self,
        path: impl AsRef<Path>,
        kind: FileType,
        mode: u32,
        device: (u32, u32),
    ) -> Result<()> {
        let (parent, name) = self.parent_of_new(path.as_ref())?;
        let device = rustix::fs::makedev(device.0, device.1);
        let mode = NewMode::exact(mode);
        self.fs().mknod(&self.identity.caller(), &parent, name.as_bytes(), kind.into(), mode, device)?;
        Ok(())
    }

    /// Size, type, permissions, owner and times of the file at a path.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied` if a directory on the path may not be searched.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.fs().getattr(&*self.node_at(path.as_ref(), Follow::Yes)?).into())
    }

    /// As [`metadata`](Warpfire::metadata), but of a symbolic link itself.
    ///
    /// # Errors
    /// As [`metadata`](Warpfire::metadata).
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.fs().getattr(&*self.node_at(path.as_ref(), Follow::No)?).into())
    }

    /// Whether something is at the path. `false` also if a directory on the path may not be searched.
    #[must_use]
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.metadata(path).is_ok()
    }

    /// Sets permissions, owner, group and times of the file at a path, in one commit.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied`, by the rules of chmod(2), chown(2) and utimensat(2).
    pub fn set_metadata(&self, path: impl AsRef<Path>, set: &SetMetadata) -> Result<()> {
        let node = self.node_at(path.as_ref(), Follow::Yes)?;
        self.fs().set_attributes(&self.identity.caller(), &node, &set.0)?;
        Ok(())
    }

    /// As [`set_metadata`](Warpfire::set_metadata), but of a symbolic link itself.
    ///
    /// # Errors
    /// As [`set_metadata`](Warpfire::set_metadata); `Unsupported` for the permissions of a symbolic link.
    pub fn set_symlink_metadata(&self, path: impl AsRef<Path>, set: &SetMetadata) -> Result<()> {
        let node = self.node_at(path.as_ref(), Follow::No)?;
        self.fs().set_attributes(&self.identity.caller(), &node, &set.0)?;
        Ok(())
    }

    /// Sets the permission bits, as chmod(2).
    ///
    /// # Errors
    /// As [`set_metadata`](Warpfire::set_metadata).
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.set_metadata(path, &SetMetadata::new().mode(mode))
    }

    /// Lists a directory in the order of the bytes of its names. The listing is read page by page.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `PermissionDenied`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir<E>> {
        ReadDir::start(self, self.node_at(path.as_ref(), Follow::Yes)?)
    }
}
