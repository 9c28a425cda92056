//! What a benchmark runs against.

use serde::Serialize;
use warpfire_terminal::Failure;

/// Something that keeps files and can be measured.
pub trait Target: Sync {
    /// What the rows of this target are called.
    fn name(&self) -> String;

    /// Makes it empty.
    fn fresh(&mut self) -> Result<(), Failure>;

    /// Lets it forget what it has cached. Everything must have been synced before.
    fn cold(&mut self) -> Result<(), Failure>;

    /// What its devices have done so far; `None` where nobody counts.
    fn counters(&self) -> Option<Counters>;

    /// Bytes on its devices that something refers to, parity and headers not counted; `None` where nobody counts.
    fn stored_bytes(&self) -> Option<u64> {
        None
    }

    /// The process that serves the files and whose peak memory counts; `None` for a kernel filesystem.
    fn server(&self) -> Option<u32>;

    /// A directory, made when it is missing. Directory 0 is the first.
    fn directory(&self, number: u64) -> Result<Box<dyn Directory + '_>, Failure>;

    /// The one large file, made when it is missing.
    fn large_file(&self) -> Result<Box<dyn LargeFile + '_>, Failure>;

    /// Makes everything durable.
    fn sync(&self) -> Result<(), Failure>;
}

/// Small files under their names.
pub trait Directory: Send {
    /// Makes a file with these bytes.
    fn create(&mut self, name: &str, bytes: &[u8]) -> Result<(), Failure>;

    /// Makes a file with these bytes, durable on return.
    fn create_synced(&mut self, name: &str, bytes: &[u8]) -> Result<(), Failure>;

    /// Reads a whole file into a buffer that is reused.
    fn read(&mut self, name: &str, into: &mut Vec<u8>) -> Result<(), Failure>;

    /// Goes through the directory and looks at each file; gives how many there are.
    fn list_and_stat(&mut self) -> Result<u64, Failure>;

    /// Removes a file.
    fn remove(&mut self, name: &str) -> Result<(), Failure>;
}

/// One file that is larger than a call; shared between threads.
pub trait LargeFile: Sync {
    /// Fills the buffer from the offset.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Failure>;

    /// Writes the buffer at the offset.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Failure>;

    /// Makes everything that was written durable.
    fn sync(&self) -> Result<(), Failure>;
}

/// What devices did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counters {
    /// Reads that reached a device.
    pub reads: u64,
    /// Bytes of those.
    pub read_bytes: u64,
    /// Writes that reached a device.
    pub writes: u64,
    /// Bytes of those, parity and headers included.
    pub written_bytes: u64,
    /// Cache flushes.
    pub flushes: u64,
}

impl Counters {
    /// What was done since an earlier look.
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
