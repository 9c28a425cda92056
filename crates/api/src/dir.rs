//! Directories: a handle for many calls on the files in one, and listing.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpfire_fs::{Follow, FsError, ListedFile, NodeRef, RemovedFiles};
use warpfire_meta::Storage;

use crate::warpfire::FILE_MODE;
use crate::{Engine, Error, File, FileType, Metadata, Result, SetMetadata, Snapshot, SnapshotInfo, Warpfire};

/// An open directory. Its calls take names, not paths: they skip the walk from the root. The directory stays
/// usable after it was renamed or moved.
///
/// ```
/// use warpfire::Pool;
///
/// let fs = Pool::options().in_memory()?;
/// fs.create_dir("/mail")?;
/// let mail = fs.dir("/mail")?;
/// for number in 0..1000 {
///     mail.write(format!("{number}.eml"), b"Subject: hello\r\n")?;
/// }
/// fs.sync()?;
/// assert_eq!(mail.read("999.eml")?, b"Subject: hello\r\n");
/// # Ok::<(), warpfire::Error>(())
/// ```
pub struct Dir<E: Storage = Engine> {
    pool: Warpfire<E>,
    node: NodeRef,
}

impl<E: Storage> Clone for Dir<E> {
    fn clone(&self) -> Self {
        Dir::at(&self.pool, NodeRef::clone(&self.node))
    }
}

impl<E: Storage> std::fmt::Debug for Dir<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dir({:?})", self.node)
    }
}

impl<E: Storage> Dir<E> {
    pub(crate) fn at_path(pool: &Warpfire<E>, path: &Path) -> Result<Self> {
        let node = pool.node_at(path, Follow::Yes)?;
        if !node.is_dir() {
            return Err(FsError::NotDirectory.into());
        }
        Ok(Dir::at(pool, node))
    }

    pub(crate) fn at(pool: &Warpfire<E>, node: NodeRef) -> Self {
        Dir { pool: pool.clone(), node }
    }

    pub(crate) fn node(&self) -> &NodeRef {
        &self.node
    }

    fn child(&self, name: &OsStr) -> Result<NodeRef> {
        Ok(self.pool.fs().lookup(&self.pool.identity().caller(), &self.node, name.as_bytes())?)
    }

    /// As [`Warpfire::write`], for a name in this directory. A name that is missing costs one commit and one
    /// lookup.
    ///
    /// # Errors
    /// `PermissionDenied`, `IsADirectory`, `NoSpace`; `InvalidInput` for a name that is empty, has a `/`, or
    /// is longer than 255 bytes.
    pub fn write(&self, name: impl AsRef<OsStr>, bytes: impl AsRef<[u8]>) -> Result<()> {
        let (name, bytes) = (name.as_ref(), bytes.as_ref());
        let caller = self.pool.identity().caller();
        match self.pool.fs().create_file(&caller, &self.node, name.as_bytes(), FILE_MODE, bytes) {
            Ok(_) => Ok(()),
            Err(FsError::Exists) => self.overwrite(name, bytes),
            Err(error) => Err(error.into()),
        }
    }

    fn overwrite(&self, name: &OsStr, bytes: &[u8]) -> Result<()> {
        let options = crate::OpenOptions::new().write(true);
        let file = options.open_node(&self.pool, self.pool.node_through_links(&self.node, name)?)?;
        file.overwrite(bytes)
    }

    /// As [`write`](Dir::write), and sets permissions, owner and times. A new file gets all of it in one
    /// commit.
    ///
    /// # Errors
    /// As [`write`](Dir::write) and [`Warpfire::set_metadata`].
    pub fn write_with(
        &self,
        name: impl AsRef<OsStr>,
        bytes: impl AsRef<[u8]>,
        set: &SetMetadata,
    ) -> Result<()> {
        let (name, bytes) = (name.as_ref(), bytes.as_ref());
        let (fs, caller) = (self.pool.fs(), self.pool.identity().caller());
        match fs.create_file_with(&caller, &self.node, name.as_bytes(), FILE_MODE, bytes, &set.0) {
            Ok(_) => return Ok(()),
            Err(FsError::Exists) => self.overwrite(name, bytes)?,
            Err(error) => return Err(error.into()),
        }
        let node = self.pool.node_through_links(&self.node, name)?;
        fs.set_attributes(&caller, &node, &set.0)?;
        Ok(())
    }

    /// Makes a file with these bytes, permissions, owner and times in one commit.
    ///
    /// ```
    /// use warpfire::{ErrorKind, Pool, SetMetadata};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// let root = fs.dir("/")?;
    /// root.write_new_with("a", b"one", &SetMetadata::new().mode(0o600))?;
    /// let taken = root.write_new_with("a", b"two", &SetMetadata::new()).unwrap_err();
    /// assert_eq!((taken.kind(), fs.read("/a")?), (ErrorKind::AlreadyExists, b"one".to_vec()));
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists` if anything has this name; otherwise as [`write_with`](Dir::write_with).
    pub fn write_new_with(
        &self,
        name: impl AsRef<OsStr>,
        bytes: impl AsRef<[u8]>,
        set: &SetMetadata,
    ) -> Result<()> {
        let (name, caller) = (name.as_ref().as_bytes(), self.pool.identity().caller());
        self.pool.fs().create_file_with(&caller, &self.node, name, FILE_MODE, bytes.as_ref(), &set.0)?;
        Ok(())
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `PermissionDenied`, `Damaged`.
    pub fn read(&self, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        let name = name.as_ref();
        let caller = self.pool.identity().caller();
        match self.pool.fs().read_file(&caller, &self.node, name.as_bytes()) {
            // It is a symbolic link. Opening follows it.
            Err(FsError::Invalid(_)) => self.open(name)?.read_to_end(),
            other => Ok(other?),
        }
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `PermissionDenied`.
    pub fn open(&self, name: impl AsRef<OsStr>) -> Result<File<E>> {
        let node = self.pool.node_to_read(&self.node, name.as_ref())?;
        crate::OpenOptions::new().read(true).open_node(&self.pool, node)
    }

    /// Size, type, permissions, owner and times of a file; of a symbolic link, its own.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`.
    pub fn metadata(&self, name: impl AsRef<OsStr>) -> Result<Metadata> {
        Ok(self.pool.fs().getattr(&*self.child(name.as_ref())?).into())
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `PermissionDenied`.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let caller = self.pool.identity().caller();
        Ok(self.pool.fs().unlink(&caller, &self.node, name.as_ref().as_bytes())?)
    }

    /// Removes everything except subdirectories, and passes their names to `found`. `progress` is called for
    /// each removal. The answer is for [`Fs::rmdir_after`](warpfire_fs::Fs::rmdir_after).
    pub(crate) fn remove_files(
        &self,
        mut progress: impl FnMut(),
        mut found: impl FnMut(&OsStr),
    ) -> Result<RemovedFiles> {
        let caller = self.pool.identity().caller();
        let mut before = None;
        loop {
            let removed = self.pool.fs().remove_files(&caller, &self.node, before.as_ref())?;
            (0..removed.files).for_each(|_| progress());
            removed.directories.iter().for_each(|name| found(OsStr::from_bytes(name)));
            if removed.is_end {
                return Ok(removed);
            }
            before = Some(removed);
        }
    }

    /// Swaps two names of this directory in one commit, so both exist at every moment.
    ///
    /// # Errors
    /// As [`Warpfire::exchange`].
    pub fn exchange(&self, a: impl AsRef<OsStr>, b: impl AsRef<OsStr>) -> Result<()> {
        let caller = self.pool.identity().caller();
        let (a, b) = (a.as_ref().as_bytes(), b.as_ref().as_bytes());
        Ok(self.pool.fs().exchange(&caller, (&self.node, a), (&self.node, b))?)
    }

    /// The path that this directory has in a snapshot, also if it was renamed or moved since.
    ///
    /// ```
    /// use warpfire::{ErrorKind, Pool};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.create_dir("/mail")?;
    /// fs.write("/mail/1", b"then")?;
    /// fs.create_snapshot("monday")?;
    /// fs.write("/mail/1", b"now")?;
    /// fs.rename("/mail", "/post")?;
    /// let monday = fs.open_snapshot("monday")?;
    /// let then = fs.dir("/post")?.path_in(&monday)?;
    /// assert_eq!(then.to_str(), Some("/mail"));
    /// assert_eq!(monday.read(then.join("1"))?, b"then");
    /// fs.create_dir("/new")?;
    /// assert_eq!(fs.dir("/new")?.path_in(&monday).unwrap_err().kind(), ErrorKind::NotFound);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` if the snapshot does not show the directory; `Damaged`.
    pub fn path_in(&self, snapshot: &Snapshot) -> Result<PathBuf> {
        Ok(OsString::from_vec(snapshot.fs().path_then(self.node.ino())?).into())
    }

    /// Lists the directory, as [`Warpfire::read_dir`].
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub fn read_dir(&self) -> Result<ReadDir<E>> {
        ReadDir::start(&self.pool, NodeRef::clone(&self.node))
    }
}

impl Dir {
    /// The snapshots that show this directory, from the oldest to the newest.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let fs = self.pool.fs();
        let mut found = Vec::new();
        for snapshot in fs.snapshots()? {
            if fs.shows_directory(&snapshot, self.node.ino())? {
                found.push(snapshot.into());
            }
        }
        Ok(found)
    }
}

/// Names per page: one call of the filesystem reads so many.
const PAGE_NAMES: usize = 1024;

/// A listing of a directory, page by page, without `.` and `..`. A name that exists from the first page to
/// the last comes exactly once, whatever else changes in between.
///
/// Where metadata is damaged, the listing has an error of kind `Damaged` and goes on after it with the names
/// that can be read. Names that were removed may come back then. In a transaction the listing ends.
pub struct ReadDir<E: Storage = Engine> {
    dir: Arc<Dir<E>>,
    page: VecDeque<ListedFile>,
    /// The last name of the page. `None` if no page follows.
    after: Option<Vec<u8>>,
    /// The damage that the page has passed.
    damage: Option<Error>,
}

impl<E: Storage> std::fmt::Debug for ReadDir<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadDir({:?})", self.dir)
    }
}

impl<E: Storage> ReadDir<E> {
    pub(crate) fn start(pool: &Warpfire<E>, node: NodeRef) -> Result<Self> {
        let dir = Arc::new(Dir::at(pool, node));
        let mut listing = ReadDir { dir, page: VecDeque::new(), after: None, damage: None };
        listing.read_page(None)?;
        Ok(listing)
    }

    fn read_page(&mut self, after: Option<&[u8]>) -> Result<()> {
        let (fs, caller) = (self.dir.pool.fs(), self.dir.pool.identity().caller());
        let page = match fs.list_files(&caller, &self.dir.node, after, PAGE_NAMES) {
            Err(error @ FsError::Damaged { .. }) => {
                let (page, is_past) = fs.readdir_past_damage(&caller, &self.dir.node, after, PAGE_NAMES)?;
                self.damage = is_past.then(|| error.into());
                page.into_iter().map(ListedFile::from).collect()
            }
            page => page?,
        };
        self.after = page.last().filter(|_| page.len() == PAGE_NAMES).map(|last| last.entry.name.to_vec());
        self.page = page.into();
        Ok(())
    }
}

impl<E: Storage> Iterator for ReadDir<E> {
    type Item = Result<DirEntry<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.is_empty()
            && let Some(after) = self.after.take()
            && let Err(error) = self.read_page(Some(&after))
        {
            return Some(Err(error));
        }
        if let Some(damage) = self.damage.take() {
            return Some(Err(damage));
        }
        let file = self.page.pop_front()?;
        Some(Ok(DirEntry { dir: Arc::clone(&self.dir), file }))
    }
}

/// One name of a directory.
pub struct DirEntry<E: Storage = Engine> {
    dir: Arc<Dir<E>>,
    file: ListedFile,
}

impl<E: Storage> Clone for DirEntry<E> {
    fn clone(&self) -> Self {
        DirEntry { dir: Arc::clone(&self.dir), file: self.file.clone() }
    }
}

impl<E: Storage> std::fmt::Debug for DirEntry<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirEntry({:?} in {:?})", self.file_name(), self.dir)
    }
}

impl<E: Storage> DirEntry<E> {
    /// The name.
    #[must_use]
    pub fn file_name(&self) -> &OsStr {
        OsStr::from_bytes(&self.file.entry.name)
    }

    /// The type of the file, as of when its page was read.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.file.entry.kind.into()
    }

    /// The inode number of the file.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.file.entry.ino
    }

    /// Opens the directory that has this name; a symbolic link is not followed.
    ///
    /// # Errors
    /// `NotADirectory`; `NotFound` if the name has been removed since; `PermissionDenied`.
    pub fn open_dir(&self) -> Result<Dir<E>> {
        let node = self.dir.child(self.file_name())?;
        if !node.is_dir() {
            return Err(FsError::NotDirectory.into());
        }
        Ok(Dir::at(&self.dir.pool, node))
    }

    /// Size, type, permissions, owner and times as of now; of a symbolic link, its own.
    ///
    /// # Errors
    /// `NotFound` if the name has been removed since; `PermissionDenied`.
    pub fn metadata(&self) -> Result<Metadata> {
        let Dir { pool, node } = &*self.dir;
        Ok(pool.fs().attributes_now(&pool.identity().caller(), node, &self.file)?.into())
    }

    /// Sets permissions, owner and times, as [`Warpfire::set_symlink_metadata`]. The path may be longer than
    /// a call by path takes.
    ///
    /// # Errors
    /// As [`Warpfire::set_symlink_metadata`]; `NotFound` if the name has been removed since.
    pub fn set_metadata(&self, set: &SetMetadata) -> Result<()> {
        let node = self.dir.child(self.file_name())?;
        let pool = &self.dir.pool;
        pool.fs().set_attributes(&pool.identity().caller(), &node, &set.0)?;
        Ok(())
    }
}
