//! A device of any size. Its blocks lie in one unlinked file, so that they take none of the memory that is
//! measured.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::sync::Mutex;
use warpfire_env::{Device, DeviceError, DeviceInfo};
use warpfire_units::BLOCK_BYTES;

/// The file under all devices.
pub(crate) struct Backing {
    file: File,
    blocks: AtomicU64,
}

impl Backing {
    pub(crate) fn new() -> io::Result<Arc<Backing>> {
        let path = std::env::temp_dir().join(format!("warpfire-petabytes-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Arc::new(Backing { file, blocks: AtomicU64::new(0) }))
    }
}

/// A device that keeps the blocks that were written.
pub(crate) struct SparseDevice {
    info: DeviceInfo,
    backing: Arc<Backing>,
    /// The place in the file of each block.
    places: Mutex<HashMap<u64, u64>>,
    pub(crate) reads: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

impl SparseDevice {
    pub(crate) fn new(number: usize, size_bytes: u64, backing: &Arc<Backing>) -> Self {
        SparseDevice {
            info: DeviceInfo { name: format!("sparse{number}"), size_bytes, zones: None },
            backing: Arc::clone(backing),
            places: Mutex::default(),
            reads: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
        }
    }
}

impl Device for SparseDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let places = self.places.lock();
        let (mut number, mut rest) = (offset_bytes / BLOCK_BYTES as u64, buf);
        while !rest.is_empty() {
            // Blocks that were written together lie together.
            let first = places.get(&number).copied();
            let is_next = |n: u64| places.get(&(number + n)).copied() == first.map(|first| first + n);
            let blocks = (1..rest.len() as u64 / BLOCK_BYTES as u64).take_while(|n| is_next(*n)).count() + 1;
            let blocks = if first.is_some() { blocks } else { 1 };
            let (piece, later) = rest.split_at_mut(blocks * BLOCK_BYTES);
            match first {
                Some(place) => {
                    let at = place * BLOCK_BYTES as u64;
                    self.backing.file.read_exact_at(piece, at).expect("the file is there");
                }
                None => piece.fill(0),
            }
            (number, rest) = (number + blocks as u64, later);
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        let count = (buf.len() / BLOCK_BYTES) as u64;
        let place = self.backing.blocks.fetch_add(count, Ordering::Relaxed);
        self.backing.file.write_all_at(buf, place * BLOCK_BYTES as u64).expect("the file takes the bytes");
        let first = offset_bytes / BLOCK_BYTES as u64;
        self.places.lock().extend((0..count).map(|n| (first + n, place + n)));
        self.written_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
