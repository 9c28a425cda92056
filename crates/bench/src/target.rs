//! The interface of a target: what a workload asks of the filesystem that it measures.

use serde::{Deserialize, Serialize};
use warpfire_terminal::Failure;

use crate::directory::Tree;

/// A place that keeps files and can be measured.
pub trait Target: Sync {
    /// Its name in the report.
    fn name(&self) -> String;

    /// Removes all files.
    fn fresh(&mut self) -> Result<(), Failure>;

    /// Drops its caches. The caller has synced everything before.
    fn cold(&mut self) -> Result<(), Failure>;

    /// What its devices have done so far; `None` if they have no counters.
    fn counters(&self) -> Option<Counters>;

    /// Live bytes on its devices, without parity and headers; `None` if it does not count them.
    fn stored_bytes(&self) -> Option<u64> {
        None
    }

    /// The process that serves the files and that has the peak memory to report; `None` for a kernel
    /// filesystem.
    fn server(&self) -> Option<u32>;

    /// Opens a directory, and makes it if it is missing. The first one has the number 0.
    fn directory(&self, number: u64) -> Result<Box<dyn Directory + '_>, Failure>;

    /// Opens the one large file, and makes it if it is missing.
    fn large_file(&self) -> Result<Box<dyn LargeFile + '_>, Failure>;

    /// Makes everything durable.
    fn sync(&self) -> Result<(), Failure>;
}

/// A target whose files lie in a directory of the system.
pub trait TreeTarget: Sync {
    /// See [`Target::name`].
    fn name(&self) -> String;

    /// See [`Target::fresh`].
    fn fresh(&mut self) -> Result<(), Failure>;

    /// See [`Target::cold`].
    fn cold(&mut self) -> Result<(), Failure>;

    /// See [`Target::counters`].
    fn counters(&self) -> Option<Counters> {
        None
    }

    /// See [`Target::server`].
    fn server(&self) -> Option<u32> {
        None
    }

    /// The directory.
    fn tree(&self) -> &Tree;
}

impl<T: TreeTarget> Target for T {
    fn name(&self) -> String {
        TreeTarget::name(self)
    }

    fn fresh(&mut self) -> Result<(), Failure> {
        TreeTarget::fresh(self)
    }

    fn cold(&mut self) -> Result<(), Failure> {
        TreeTarget::cold(self)
    }

    fn counters(&self) -> Option<Counters> {
        TreeTarget::counters(self)
    }

    fn server(&self) -> Option<u32> {
        TreeTarget::server(self)
    }

    fn directory(&self, number: u64) -> Result<Box<dyn Directory + '_>, Failure> {
        self.tree().directory(number)
    }

    fn large_file(&self) -> Result<Box<dyn LargeFile + '_>, Failure> {
        self.tree().large_file()
    }

    fn sync(&self) -> Result<(), Failure> {
        self.tree().sync()
    }
}

/// An open directory with small files.
pub trait Directory: Send {
    /// Makes a file with these bytes.
    fn create(&mut self, name: &str, bytes: &[u8]) -> Result<(), Failure>;

    /// Makes a file with these bytes, durable on return.
    fn create_synced(&mut self, name: &str, bytes: &[u8]) -> Result<(), Failure>;

    /// Reads a whole file into a buffer that the caller uses again.
    fn read(&mut self, name: &str, into: &mut Vec<u8>) -> Result<(), Failure>;

    /// Reads the attributes of a file.
    fn stat(&mut self, name: &str) -> Result<(), Failure>;

    /// Lists the directory and reads the attributes of each file. Returns how many files there are.
    fn list_and_stat(&mut self) -> Result<u64, Failure>;

    /// Removes a file.
    fn remove(&mut self, name: &str) -> Result<(), Failure>;
}

/// The large file, which all threads share.
pub trait LargeFile: Sync {
    /// Fills the buffer with the bytes from an offset.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Failure>;

    /// Writes the buffer at an offset.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Failure>;

    /// Makes all writes durable.
    fn sync(&self) -> Result<(), Failure>;
}

/// Counters of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Reads that reached a device.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Writes that reached a device.
    pub writes: u64,
    /// Bytes of these writes, parity and headers included.
    pub written_bytes: u64,
    /// Cache flushes.
    pub flushes: u64,
}

impl std::iter::Sum for Counters {
    fn sum<I: Iterator<Item = Counters>>(counters: I) -> Counters {
        counters.fold(Counters::default(), |sum, counters| Counters {
            reads: sum.reads + counters.reads,
            read_bytes: sum.read_bytes + counters.read_bytes,
            writes: sum.writes + counters.writes,
            written_bytes: sum.written_bytes + counters.written_bytes,
            flushes: sum.flushes + counters.flushes,
        })
    }
}

impl Counters {
    /// The differences from earlier counters.
    #[must_use]
    pub fn since(self, earlier: Counters) -> Counters {
        Counters {
            reads: self.reads.saturating_sub(earlier.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            writes: self.writes.saturating_sub(earlier.writes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }
}
