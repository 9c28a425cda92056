//! Measures the device itself, as the limit of what a filesystem can reach: one file, without the page cache.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use warpfire::prefilled;
use warpfire_env::AlignedBuf;
use warpfire_terminal::Failure;
use warpfire_units::BLOCK_BYTES;

use crate::target::{Counters, Directory, LargeFile, Target};

/// A bare file with `O_DIRECT`. It has no names. Of the workloads on small files it can do the synced create
/// only, as a write of one block and an fdatasync(2).
pub struct Raw {
    path: PathBuf,
    size_bytes: u64,
    file: Option<File>,
}

impl Raw {
    pub fn new(path: PathBuf, size_bytes: u64) -> Self {
        Raw { path, size_bytes: size_bytes.next_multiple_of(BLOCK_BYTES as u64), file: None }
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("a benchmark begins with a fresh target")
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::local(&self.path, error)
    }
}

impl Target for Raw {
    fn name(&self) -> String {
        "raw file".to_owned()
    }

    fn fresh(&mut self) -> Result<(), Failure> {
        self.file = None;
        // Prewritten, so that the measured writes change no metadata of the filesystem below.
        let made = prefilled(&self.path, self.size_bytes, |_| ());
        self.file = Some(made.map_err(|error| self.failed(&error))?);
        Ok(())
    }

    fn cold(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn counters(&self) -> Option<Counters> {
        None
    }

    fn server(&self) -> Option<u32> {
        None
    }

    fn directory(&self, number: u64) -> Result<Box<dyn Directory + '_>, Failure> {
        // Each directory stands for a part of the file of its own, so that threads write different blocks.
        let start = (number << 24) % self.size_bytes;
        Ok(Box::new(RawDirectory { raw: self, at: start, block: AlignedBuf::zeroed(BLOCK_BYTES) }))
    }

    fn large_file(&self) -> Result<Box<dyn LargeFile + '_>, Failure> {
        Ok(Box::new(RawFile(self)))
    }

    fn sync(&self) -> Result<(), Failure> {
        self.file().sync_data().map_err(|error| self.failed(&error))
    }
}

struct RawDirectory<'a> {
    raw: &'a Raw,
    at: u64,
    block: AlignedBuf,
}

impl RawDirectory<'_> {
    fn no_names(&self) -> Failure {
        Failure::new("a bare file has no names")
    }
}

impl Directory for RawDirectory<'_> {
    fn create(&mut self, _name: &str, _bytes: &[u8]) -> Result<(), Failure> {
        Err(self.no_names())
    }

    fn create_synced(&mut self, _name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let kept = bytes.len().min(BLOCK_BYTES);
        self.block[..kept].copy_from_slice(&bytes[..kept]);
        let written = self.raw.file().write_all_at(&self.block, self.at);
        written.map_err(|error| self.raw.failed(&error))?;
        self.at = (self.at + BLOCK_BYTES as u64) % self.raw.size_bytes;
        self.raw.sync()
    }

    fn read(&mut self, _name: &str, _into: &mut Vec<u8>) -> Result<(), Failure> {
        Err(self.no_names())
    }

    fn stat(&mut self, _name: &str) -> Result<(), Failure> {
        Err(self.no_names())
    }

    fn list_and_stat(&mut self) -> Result<u64, Failure> {
        Err(self.no_names())
    }

    fn remove(&mut self, _name: &str) -> Result<(), Failure> {
        Err(self.no_names())
    }
}

struct RawFile<'a>(&'a Raw);

impl LargeFile for RawFile<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Failure> {
        self.0.file().read_exact_at(into, at).map_err(|error| self.0.failed(&error))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.0.file().write_all_at(bytes, at).map_err(|error| self.0.failed(&error))
    }

    fn sync(&self) -> Result<(), Failure> {
        self.0.sync()
    }
}
