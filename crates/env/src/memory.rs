//! A device in memory, for pools that end with their process.
//!
//! A *chunk* is an aligned range of 1 MiB of the device.
//!
//! 1. A chunk takes memory from its first write until all of it is discarded (test
//!    `a_discarded_chunk_frees_its_memory_and_reads_as_zeros`).
//! 2. An operation inside one chunk is atomic. An operation over several chunks is not, as on a real device.

use std::fmt;

use parking_lot::RwLock;
use warpfire_units::BLOCK_BYTES;

use crate::device::{Device, DeviceError, DeviceInfo, ZoneReport};

const CHUNK_BYTES: usize = 256 * BLOCK_BYTES;

type Chunk = RwLock<Option<Box<[u8]>>>;

/// A conventional device in memory. Its bytes are lost with it; a flush does nothing.
pub struct MemDevice {
    info: DeviceInfo,
    chunks: Vec<Chunk>,
}

impl fmt::Debug for MemDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemDevice").field("info", &self.info).finish_non_exhaustive()
    }
}

/// The part of a range that lies in one chunk.
struct ChunkPart {
    chunk: usize,
    start: usize,
    len: usize,
}

fn parts(offset_bytes: u64, len: usize) -> impl Iterator<Item = ChunkPart> {
    let mut at = usize::try_from(offset_bytes).expect("the range lies in memory");
    let mut left = len;
    std::iter::from_fn(move || {
        let (chunk, start) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
        let len = left.min(CHUNK_BYTES - start);
        at += len;
        left -= len;
        (len > 0).then_some(ChunkPart { chunk, start, len })
    })
}

impl MemDevice {
    /// A device of zeros. `size_bytes` is rounded down to whole blocks; unwritten parts take no memory.
    #[must_use]
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        let size_bytes = size_bytes - size_bytes % BLOCK_BYTES as u64;
        let size = usize::try_from(size_bytes).expect("a device in memory is smaller than memory");
        let chunks = std::iter::repeat_with(Chunk::default).take(size.div_ceil(CHUNK_BYTES)).collect();
        MemDevice { info: DeviceInfo { name: name.into(), size_bytes, zones: None }, chunks }
    }
}

impl Device for MemDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset_bytes: u64, mut buf: &mut [u8]) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, buf.len() as u64)?;
        for part in parts(offset_bytes, buf.len()) {
            let (out, rest) = buf.split_at_mut(part.len);
            match &*self.chunks[part.chunk].read() {
                Some(bytes) => out.copy_from_slice(&bytes[part.start..part.start + part.len]),
                None => out.fill(0),
            }
            buf = rest;
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, mut buf: &[u8]) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, buf.len() as u64)?;
        for part in parts(offset_bytes, buf.len()) {
            let (from, rest) = buf.split_at(part.len);
            let mut chunk = self.chunks[part.chunk].write();
            let bytes = chunk.get_or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
            bytes[part.start..part.start + part.len].copy_from_slice(from);
            buf = rest;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.info.check_range(offset_bytes, len_bytes)?;
        let len = usize::try_from(len_bytes).expect("the range lies in memory");
        for part in parts(offset_bytes, len) {
            let mut chunk = self.chunks[part.chunk].write();
            if part.len == CHUNK_BYTES {
                *chunk = None;
            } else if let Some(bytes) = &mut *chunk {
                bytes[part.start..part.start + part.len].fill(0);
            }
        }
        Ok(())
    }

    fn reset_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.discard(offset_bytes, len_bytes)
    }

    fn zone_report(&self, _offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discarded_chunk_frees_its_memory_and_reads_as_zeros() {
        let device = MemDevice::new("memory", 3 * CHUNK_BYTES as u64 + 1);
        assert_eq!(device.info().size_bytes, 3 * CHUNK_BYTES as u64);
        let chunk = CHUNK_BYTES as u64;
        device.write(chunk - 4096, &vec![7; CHUNK_BYTES + 8192]).unwrap();
        device.discard(chunk - 4096, chunk + 4096).unwrap();
        let held: Vec<bool> = device.chunks.iter().map(|c| c.read().is_some()).collect();
        assert_eq!(held, [true, false, true]);
        let mut back = vec![1; CHUNK_BYTES + 8192];
        device.read(chunk - 4096, &mut back).unwrap();
        let (gone, kept) = back.split_at(CHUNK_BYTES + 4096);
        assert!(gone.iter().all(|&b| b == 0) && kept.iter().all(|&b| b == 7));
    }
}
