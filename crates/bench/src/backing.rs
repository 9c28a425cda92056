//! The directory for all files of a benchmark, and the image files of the pools that it makes there.

use std::path::{Path, PathBuf};

use warpfire::{Pool, PoolOptions, prefilled};
use warpfire_terminal::Failure;

/// A new directory inside the one that the user names. It is removed with its content when the benchmark
/// ends.
pub struct Backing {
    directory: PathBuf,
}

impl Backing {
    /// Makes the directory.
    pub fn new(inside: &Path) -> Result<Self, Failure> {
        let directory = inside.join(format!("warpfire-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory).map_err(|error| Failure::local(&directory, &error))?;
        Ok(Backing { directory })
    }

    /// The path of a file in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes an empty directory in it.
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.path(name);
        std::fs::create_dir_all(&path).map_err(|error| Failure::local(&path, &error))?;
        Ok(path)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            warpfire_terminal::note(format_args!(
                "{} could not be removed: {error}",
                self.directory.display()
            ));
        }
    }
}

/// The pool that a benchmark makes for itself.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    directory: PathBuf,
    devices: usize,
    data: u16,
    parity: u8,
    device_bytes: u64,
    prewritten: bool,
}

impl PoolSpec {
    /// A pool of `data + parity` image files in a directory of their own, with `total_bytes` of space for
    /// files. Prewritten image files are filled with zeros once, before the first pool. Others are sparse and
    /// new for each pool.
    #[must_use]
    pub fn new(directory: PathBuf, data: u16, parity: u8, total_bytes: u64, prewritten: bool) -> Self {
        let devices = usize::from(data) + usize::from(parity);
        let device_bytes = (total_bytes / u64::from(data)).next_multiple_of(1 << 20);
        PoolSpec { directory, devices, data, parity, device_bytes, prewritten }
    }

    /// The image files.
    #[must_use]
    pub fn images(&self) -> Vec<PathBuf> {
        (0..self.devices).map(|number| self.directory.join(format!("{number:03}.img"))).collect()
    }

    /// Makes the image files ready for a new pool: removes those of the previous run, or keeps them with
    /// their space if they are prewritten.
    pub fn fresh_images(&self) -> Result<Vec<PathBuf>, Failure> {
        let images = self.images();
        for image in &images {
            match (self.prewritten, image.exists()) {
                (true, false) => prefilled(image, self.device_bytes, |_| ()).map(drop),
                (false, true) => std::fs::remove_file(image),
                (true, true) | (false, false) => Ok(()),
            }
            .map_err(|error| Failure::local(image, &error))?;
        }
        Ok(images)
    }

    /// Bytes of each image file.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Devices of a stripe that hold data, and those that hold parity.
    #[must_use]
    pub fn geometry(&self) -> (u16, u8) {
        (self.data, self.parity)
    }

    /// Options that make the pool. They overwrite the previous pool if its image files are kept.
    #[must_use]
    pub fn options(&self) -> PoolOptions {
        Pool::options()
            .data(self.data)
            .parity(self.parity)
            .size_bytes(self.device_bytes)
            .force(self.prewritten)
    }

    /// The directory that holds the image files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}
