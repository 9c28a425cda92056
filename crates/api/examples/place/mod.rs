//! Files that are read and written as anywhere, in a pool or in a directory of the host.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{Advice, fadvise};
use warpfire::{File, OpenOptions, Warpfire};

use crate::measure::Outcome;

/// Where a job is done.
pub enum Place {
    Pool(Warpfire),
    Host(PathBuf),
}

/// A file there.
pub enum Content {
    Pool(File),
    Host(fs::File),
}

impl Place {
    /// The pool, and the host's directory if there is one.
    pub fn all(pool: &Warpfire, host: Option<PathBuf>) -> Vec<Place> {
        std::iter::once(Place::Pool(pool.clone())).chain(host.map(Place::Host)).collect()
    }

    /// The pool, if it is one.
    pub fn pool(&self) -> Option<&Warpfire> {
        match self {
            Place::Pool(pool) => Some(pool),
            Place::Host(_) => None,
        }
    }

    /// What to call it.
    pub fn name(&self) -> &'static str {
        match self {
            Place::Pool(_) => "the pool",
            Place::Host(_) => "the host",
        }
    }

    /// An empty file.
    pub fn make(&self, name: &str) -> Outcome<Content> {
        Ok(match self {
            Place::Pool(pool) => Content::Pool(make(pool, name)?),
            Place::Host(directory) => {
                let mut options = fs::File::options();
                let options = options.read(true).write(true).create(true).truncate(true);
                Content::Host(options.open(directory.join(name))?)
            }
        })
    }

    /// Takes a file away, so that the host is as it was.
    pub fn remove(&self, name: &str) -> Outcome<()> {
        match self {
            Place::Pool(pool) => Ok(pool.remove_file(format!("/{name}"))?),
            Place::Host(directory) => Ok(fs::remove_file(directory.join(name))?),
        }
    }
}

/// An empty file in a pool's root.
pub fn make(pool: &Warpfire, name: &str) -> warpfire::Result<File> {
    let path = format!("/{name}");
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(pool, path)
}

impl Content {
    /// Fills the whole buffer.
    pub fn read(&self, into: &mut [u8], at: u64) -> Outcome<()> {
        match self {
            Content::Pool(file) => Ok(file.read_exact_at(into, at)?),
            Content::Host(file) => Ok(file.read_exact_at(into, at)?),
        }
    }

    /// Writes all the bytes.
    pub fn write(&self, bytes: &[u8], at: u64) -> Outcome<()> {
        match self {
            Content::Pool(file) => Ok(file.write_all_at(bytes, at)?),
            Content::Host(file) => Ok(file.write_all_at(bytes, at)?),
        }
    }

    /// Makes it durable, and has the host forget its copy in memory: a pool keeps none of file data.
    pub fn settle(&self) -> Outcome<()> {
        match self {
            Content::Pool(file) => file.sync_all()?,
            Content::Host(file) => {
                file.sync_all()?;
                fadvise(file, 0, None, Advice::DontNeed)?;
            }
        }
        Ok(())
    }
}
