//! One interface to files in a pool and to files in a directory of the host.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{Advice, fadvise};
use warpfire::{File, OpenOptions, Warpfire};

use crate::measure::ExampleResult;

/// The place where a job runs.
pub enum Storage {
    Pool(Warpfire),
    Host(PathBuf),
}

/// An open file in one of them.
pub enum StoredFile {
    Pool(File),
    Host(fs::File),
}

impl Storage {
    /// The pool, and the host's directory if one is named.
    pub fn all(pool: &Warpfire, host: Option<PathBuf>) -> Vec<Storage> {
        std::iter::once(Storage::Pool(pool.clone())).chain(host.map(Storage::Host)).collect()
    }

    /// The pool; `None` for the host.
    pub fn pool(&self) -> Option<&Warpfire> {
        match self {
            Storage::Pool(pool) => Some(pool),
            Storage::Host(_) => None,
        }
    }

    /// Its name in the report.
    pub fn name(&self) -> &'static str {
        match self {
            Storage::Pool(_) => "the pool",
            Storage::Host(_) => "the host",
        }
    }

    /// Makes an empty file.
    pub fn make(&self, name: &str) -> ExampleResult<StoredFile> {
        Ok(match self {
            Storage::Pool(pool) => StoredFile::Pool(make(pool, name)?),
            Storage::Host(directory) => {
                let mut options = fs::File::options();
                let options = options.read(true).write(true).create(true).truncate(true);
                StoredFile::Host(options.open(directory.join(name))?)
            }
        })
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) -> ExampleResult<()> {
        match self {
            Storage::Pool(pool) => Ok(pool.remove_file(format!("/{name}"))?),
            Storage::Host(directory) => Ok(fs::remove_file(directory.join(name))?),
        }
    }
}

/// Makes an empty file in the root of a pool.
pub fn make(pool: &Warpfire, name: &str) -> warpfire::Result<File> {
    let path = format!("/{name}");
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(pool, path)
}

impl StoredFile {
    /// Fills the whole buffer.
    pub fn read(&self, into: &mut [u8], at: u64) -> ExampleResult<()> {
        match self {
            StoredFile::Pool(file) => Ok(file.read_exact_at(into, at)?),
            StoredFile::Host(file) => Ok(file.read_exact_at(into, at)?),
        }
    }

    /// Writes all the bytes.
    pub fn write(&self, bytes: &[u8], at: u64) -> ExampleResult<()> {
        match self {
            StoredFile::Pool(file) => Ok(file.write_all_at(bytes, at)?),
            StoredFile::Host(file) => Ok(file.write_all_at(bytes, at)?),
        }
    }

    /// Makes the file durable and drops the host's page cache of it, because a pool does not cache file data
    /// either.
    pub fn settle(&self) -> ExampleResult<()> {
        match self {
            StoredFile::Pool(file) => file.sync_all()?,
            StoredFile::Host(file) => {
                file.sync_all()?;
                fadvise(file, 0, None, Advice::DontNeed)?;
            }
        }
        Ok(())
    }
}
