//! Measures the library: a pool on new image files, in this process.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use warpfire::{Dir, File, Pool, PoolOptions, Warpfire};
use warpfire_terminal::{Failure, Size};

use crate::backing::PoolSpec;
use crate::target::{Counters, Directory, LargeFile, Target};

/// A pool on its own image files, opened through the library.
pub struct Library {
    spec: PoolSpec,
    pool: Option<Warpfire>,
    background: bool,
    cache: Option<Size>,
    snapshots: Option<SnapshotLoad>,
}

/// Snapshots that are taken while files are written: one after every so many writes, until there are enough.
struct SnapshotLoad {
    count: u64,
    every: u64,
    writes: AtomicU64,
}

impl Library {
    pub fn new(spec: PoolSpec, background: bool, cache: Option<Size>) -> Self {
        Library { spec, pool: None, background, cache, snapshots: None }
    }

    /// Takes `count` snapshots during the first `writes` writes of each run, one for each write at most.
    pub fn with_snapshots(self, count: u64, writes: u64) -> Self {
        let count = count.min(writes);
        let every = (writes / count.max(1)).max(1);
        Library { snapshots: Some(SnapshotLoad { count, every, writes: AtomicU64::new(0) }), ..self }
    }

    /// Takes the snapshot that is due after one more write.
    fn note_write(&self) -> Result<(), Failure> {
        let Some(load) = &self.snapshots else { return Ok(()) };
        let writes = load.writes.fetch_add(1, Ordering::Relaxed) + 1;
        if writes.is_multiple_of(load.every) && writes / load.every <= load.count {
            self.pool().create_snapshot(format!("after {writes}"))?;
        }
        Ok(())
    }

    fn options(&self, options: PoolOptions) -> PoolOptions {
        let options = options.background(self.background);
        self.cache.map_or(options.clone(), |Size(bytes)| options.cache_bytes(bytes))
    }

    fn pool(&self) -> &Warpfire {
        self.pool.as_ref().expect("a benchmark begins with a fresh target")
    }

    fn close(&mut self) -> Result<(), Failure> {
        match self.pool.take() {
            Some(pool) => Ok(pool.close()?),
            None => Ok(()),
        }
    }
}

impl Target for Library {
    fn name(&self) -> String {
        match &self.snapshots {
            Some(load) => format!("library, {} snapshots", load.count),
            None => "library".to_owned(),
        }
    }

    fn fresh(&mut self) -> Result<(), Failure> {
        self.close()?;
        let images = self.spec.fresh_images()?;
        self.pool = Some(self.options(self.spec.options()).create(&images)?);
        if let Some(load) = &mut self.snapshots {
            *load.writes.get_mut() = 0;
        }
        Ok(())
    }

    fn cold(&mut self) -> Result<(), Failure> {
        self.close()?;
        self.pool = Some(self.options(Pool::options()).open(self.spec.images())?);
        Ok(())
    }

    fn counters(&self) -> Option<Counters> {
        let devices = self.pool().stats().devices;
        let counters = devices.iter().map(|device| Counters {
            reads: device.counters.reads,
            read_bytes: device.counters.read_bytes,
            writes: device.counters.writes,
            written_bytes: device.counters.written_bytes,
            flushes: device.counters.flushes,
        });
        Some(counters.sum())
    }

    fn stored_bytes(&self) -> Option<u64> {
        Some(self.pool().stats().space.live_bytes)
    }

    fn server(&self) -> Option<u32> {
        Some(std::process::id())
    }

    fn directory(&self, number: u64) -> Result<Box<dyn Directory + '_>, Failure> {
        let path = PathBuf::from(format!("/{number:08}"));
        self.pool().create_dir_all(&path)?;
        let (pool, dir) = (self.pool(), self.pool().dir(&path)?);
        Ok(Box::new(LibraryDirectory { library: self, pool, dir, path }))
    }

    fn large_file(&self) -> Result<Box<dyn LargeFile + '_>, Failure> {
        let options = warpfire::OpenOptions::new().read(true).write(true).create(true);
        let file = options.open(self.pool(), "/large")?;
        Ok(Box::new(LibraryFile { library: self, file }))
    }

    fn sync(&self) -> Result<(), Failure> {
        Ok(self.pool().sync()?)
    }
}

struct LibraryDirectory<'a> {
    library: &'a Library,
    pool: &'a Warpfire,
    dir: Dir,
    path: PathBuf,
}

impl Directory for LibraryDirectory<'_> {
    fn create(&mut self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        self.dir.write(name, bytes)?;
        self.library.note_write()
    }

    fn create_synced(&mut self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        self.dir.write(name, bytes)?;
        self.pool.sync()?;
        self.library.note_write()
    }

    fn read(&mut self, name: &str, into: &mut Vec<u8>) -> Result<(), Failure> {
        *into = self.dir.read(name)?;
        Ok(())
    }

    fn stat(&mut self, name: &str) -> Result<(), Failure> {
        std::hint::black_box(self.dir.metadata(name)?);
        Ok(())
    }

    fn list_and_stat(&mut self) -> Result<u64, Failure> {
        let mut count = 0;
        for entry in self.pool.read_dir(&self.path)? {
            std::hint::black_box(entry?.metadata()?);
            count += 1;
        }
        Ok(count)
    }

    fn remove(&mut self, name: &str) -> Result<(), Failure> {
        Ok(self.dir.remove_file(name)?)
    }
}

struct LibraryFile<'a> {
    library: &'a Library,
    file: File,
}

impl LargeFile for LibraryFile<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Failure> {
        Ok(self.file.read_exact_at(into, at)?)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all_at(bytes, at)?;
        self.library.note_write()
    }

    fn sync(&self) -> Result<(), Failure> {
        Ok(self.file.sync_all()?)
    }
}
