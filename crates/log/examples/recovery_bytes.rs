//! Bytes that an open reads after a crash that follows many written bytes and one sync.
//!
//! `cargo run --release -p warpfire-log --example recovery_bytes -- 1 4 16 100` takes numbers of GB. The
//! payload is zeroes, and the device keeps no block of zeroes, so the example needs memory for headers only.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use warpfire_env::sync::RwLock;
use warpfire_env::{
    AlignedBuf, Clock, Device, DeviceError, DeviceInfo, SystemClock, SystemRandom, Timestamp,
};
use warpfire_log::{Log, LogStore, Stream};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_units::BLOCK_BYTES;

type Block = Box<[u8; BLOCK_BYTES]>;

/// A device in memory that keeps no block of zeroes.
struct SparseDevice {
    info: DeviceInfo,
    blocks: RwLock<HashMap<u64, Block>>,
    read_bytes: AtomicU64,
}

impl SparseDevice {
    fn new(size_bytes: u64) -> Self {
        SparseDevice {
            info: DeviceInfo { name: "sparse".to_owned(), size_bytes, zones: None },
            blocks: RwLock::default(),
            read_bytes: AtomicU64::new(0),
        }
    }
}

impl Device for SparseDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        let blocks = self.blocks.read();
        for (number, out) in (offset_bytes / BLOCK_BYTES as u64..).zip(buf.chunks_exact_mut(BLOCK_BYTES)) {
            match blocks.get(&number) {
                Some(block) => out.copy_from_slice(&block[..]),
                None => out.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        let mut blocks = self.blocks.write();
        for (number, bytes) in (offset_bytes / BLOCK_BYTES as u64..).zip(buf.chunks_exact(BLOCK_BYTES)) {
            let block: Block = Box::new(bytes.try_into().expect("chunks are blocks"));
            if block.iter().all(|byte| *byte == 0) {
                blocks.remove(&number);
            } else {
                blocks.insert(number, block);
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Writes `gigabytes` and one sync, and opens the pool again as after a `kill -9`.
fn crash_after(gigabytes: u64) {
    let device = Arc::new(SparseDevice::new(gigabytes * 1_250_000_000 / (1 << 30) * (1 << 30) + (8 << 30)));
    let devices = || vec![Arc::clone(&device) as Arc<dyn Device>];
    let options = CreateOptions { data: 1, parity: 0, zone_bytes: None, force: false };
    let pool = Pool::create(devices(), &options, &SystemRandom, Timestamp::default()).expect("a new device");
    let log = Log::create(pool).expect("a new pool").0.with_writer_thread();
    let piece = AlignedBuf::zeroed(4 << 20);
    for _ in 0..gigabytes * 1_000_000_000 / piece.len() as u64 {
        log.append(Stream::Large, &piece).expect("there is room");
    }
    log.log(b"one record").expect("there is room");
    log.sync().expect("the device does not fail");
    // Nothing is written when a log is dropped.
    drop(log);
    let before = device.read_bytes.load(Ordering::Relaxed);
    let began = SystemClock.monotonic_nanos();
    let (pool, root) = Pool::open(devices(), &SystemRandom).expect("the pool is there");
    let (_log, recovered) = Log::open(pool, &root).expect("the log is there");
    let took = Duration::from_nanos(SystemClock.monotonic_nanos() - began);
    let read = device.read_bytes.load(Ordering::Relaxed) - before;
    let records = recovered.records.count();
    println!("{gigabytes} GB written: open reads {} MB in {:.2?}, {records} record", read / 1_000_000, took);
}

fn main() {
    for gigabytes in std::env::args().skip(1) {
        crash_after(gigabytes.parse().expect("arguments are numbers of GB"));
    }
}
