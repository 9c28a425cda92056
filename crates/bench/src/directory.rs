//! Measures a directory through system calls: in a mounted pool, or in any other filesystem.
//!
//! The calls are those of `cat`, `find` and `tar`. The metadata calls of Rust's standard library, which its
//! `read_to_end` makes too, ask for the time of birth beside the rest. A mount answers that by another
//! request of the kernel, once for each file (decision 14).

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, RawDir, statat};
use warpfire_terminal::Failure;

use crate::target::{Directory, LargeFile};

/// Bytes that one call lists at most, as in the `readdir` of the GNU C library. A mount answers with as many.
const LISTING_BYTES: usize = 32 << 10;

/// The files of a benchmark below one directory.
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    pub fn new(root: PathBuf) -> Self {
        Tree { root }
    }

    /// Removes everything in it.
    pub fn clear(&self) -> Result<(), Failure> {
        let failed = |error| Failure::local(&self.root, &error);
        for entry in fs::read_dir(&self.root).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|error| Failure::local(&path, &error))?;
        }
        Ok(())
    }

    pub fn directory(&self, number: u64) -> Result<Box<dyn Directory + '_>, Failure> {
        let path = self.root.join(format!("{number:08}"));
        fs::create_dir_all(&path).map_err(|error| Failure::local(&path, &error))?;
        Ok(Box::new(TreeDirectory { path }))
    }

    pub fn large_file(&self) -> Result<Box<dyn LargeFile + '_>, Failure> {
        let path = self.root.join("large");
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        Ok(Box::new(TreeFile { file: options.map_err(|error| Failure::local(&path, &error))?, path }))
    }

    /// Syncs the filesystem that holds the directory. FUSE does not receive syncfs(2), but a pool makes
    /// everything durable when one file or directory is synced. So this makes both calls.
    pub fn sync(&self) -> Result<(), Failure> {
        let failed = |error| Failure::local(&self.root, &error);
        let root = File::open(&self.root).map_err(failed)?;
        rustix::fs::syncfs(&root).map_err(|error| failed(error.into()))?;
        root.sync_all().map_err(failed)
    }
}

/// Drops the kernel's caches of files, which only the superuser may do.
pub fn drop_caches() -> Result<(), Failure> {
    let control = Path::new("/proc/sys/vm/drop_caches");
    fs::write(control, "3")
        .map_err(|error| Failure::local(control, &error).hint("run it as root for cold reads"))
}

struct TreeDirectory {
    path: PathBuf,
}

impl TreeDirectory {
    fn make(&self, name: &str, bytes: &[u8], synced: bool) -> Result<(), Failure> {
        let path = self.path.join(name);
        // For writing alone, as tar, cp and a shell open a new file.
        let made = OpenOptions::new().write(true).create_new(true).open(&path).and_then(|file| {
            file.write_all_at(bytes, 0)?;
            if synced { file.sync_all() } else { Ok(()) }
        });
        made.map_err(|error| Failure::local(&path, &error))
    }
}

impl Directory for TreeDirectory {
    fn create(&mut self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        self.make(name, bytes, false)
    }

    fn create_synced(&mut self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        self.make(name, bytes, true)
    }

    fn read(&mut self, name: &str, into: &mut Vec<u8>) -> Result<(), Failure> {
        let path = self.path.join(name);
        let mut read = || {
            let mut file = File::open(&path)?;
            let size_bytes = rustix::fs::fstat(&file)?.st_size;
            into.clear();
            into.resize(usize::try_from(size_bytes).expect("a small file fits in memory"), 0);
            file.read_exact(into)?;
            // As a reader that does not trust the size: up to the end of the file.
            file.read(&mut [0; 512]).map(drop)
        };
        read().map_err(|error| Failure::local(&path, &error))
    }

    fn stat(&mut self, name: &str) -> Result<(), Failure> {
        let path = self.path.join(name);
        let attributes = rustix::fs::lstat(&path).map_err(|error| Failure::local(&path, &error.into()))?;
        std::hint::black_box(attributes.st_ino);
        Ok(())
    }

    fn list_and_stat(&mut self) -> Result<u64, Failure> {
        let list = || {
            let directory = File::open(&self.path)?;
            let mut buffer = Vec::with_capacity(LISTING_BYTES);
            let mut listing = RawDir::new(&directory, buffer.spare_capacity_mut());
            let mut count = 0;
            while let Some(entry) = listing.next().transpose()? {
                if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                    let attributes = statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                    std::hint::black_box(attributes.st_ino);
                    count += 1;
                }
            }
            Ok::<u64, std::io::Error>(count)
        };
        list().map_err(|error| Failure::local(&self.path, &error))
    }

    fn remove(&mut self, name: &str) -> Result<(), Failure> {
        let path = self.path.join(name);
        fs::remove_file(&path).map_err(|error| Failure::local(&path, &error))
    }
}

struct TreeFile {
    file: File,
    path: PathBuf,
}

impl LargeFile for TreeFile {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Failure> {
        self.file.read_exact_at(into, at).map_err(|error| Failure::local(&self.path, &error))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all_at(bytes, at).map_err(|error| Failure::local(&self.path, &error))
    }

    fn sync(&self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|error| Failure::local(&self.path, &error))
    }
}
